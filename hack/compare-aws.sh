#!/usr/bin/env bash
# Compares machine-controller-manager's provider for AWS with our driver, and with docs/reference/aws-comparison.md:
#   hack/compare-aws.sh SOURCE DRIVER [--update]
# SOURCE is that of the provider, see hack/mcm-provider.sh. DRIVER is the path of nodewright-driver-aws. With --update the page is
# written; without it, another result than the page's is an error. hack/tools/compare-aws/main.go says what is compared.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

[ $# -ge 2 ] || takes_no_arguments "${1:---help}"
hack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$1 ours=$(realpath "$2")
shift 2
theirs=$("$hack/mcm-provider.sh" aws "$source")
moto=$("$hack/moto.sh")
find_go
tool_go compare-aws run . --theirs="$theirs" --ours="$ours" --moto="$moto" --page="$hack/../docs/reference/aws-comparison.md" "$@"
