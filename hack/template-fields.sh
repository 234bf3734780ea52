#!/usr/bin/env bash
# Compares api/render/src/templates/fields.txt, the fields that templates know of a ControllerConfig, with Go's types in the
# version of openshift/api that hack/tools/openshift-api pins. With --update, writes the file.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

update=
[ "${1:-}" = --update ] && { update=1; shift; }
takes_no_arguments "$@"

find_go
list=$tools/../../api/render/src/templates/fields.txt
found=$(tool_go openshift-api run ./template-fields) || die "failed to read Go's types"
if [ -n "$update" ]; then
	printf '%s\n' "$found" >"$list"
	exit
fi
diff -u "$list" - <<<"$found" >&2 ||
	die "the list differs from Go's types: run hack/template-fields.sh --update, and read the changes"
