#!/usr/bin/env bash
# Writes what is made of hack/tools/monitoring/alerts.yaml and dashboards.yaml: the rules and dashboards of
# config/components/monitoring, and docs/tasks/alerts.md. With --check, compares them instead, and fails if they differ. Both fail if a
# query is no PromQL, or selects a metric that docs/reference/telemetry.md does not name.
#
# Go is fetched from PyPI if it is missing or too old. The first run compiles Prometheus' parser (1 minute).
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

check=
[ "${1:-}" = --check ] && { check=1; shift; }
takes_no_arguments "$@"

root=$(cd "$tools/../.." && pwd)
find_go

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tool_go monitoring run . generate "$root" "$scratch"
for made in config/components/monitoring/rules.yaml config/components/monitoring/dashboards docs/tasks/alerts.md; do
	if [ -z "$check" ]; then
		rm -rf "${root:?}/$made"
		cp -r "$scratch/$made" "$root/$made"
	else
		diff -ru "$root/$made" "$scratch/$made" >&2 ||
			die "$made is not what hack/tools/monitoring makes: run make monitoring, and read the changes"
	fi
done
