#!/usr/bin/env bash
# Tests a fleet in git with the real controllers of Flux and of Argo CD, in the versions that hack/tools/gitops pins, on a real control
# plane with Nodewright, its webhooks and a simulated cloud, and a git server: the manifests of config/flux and config/argocd are what is
# tested. Each scenario is a line, PASS or FAIL; the first that fails ends the run, and says where its logs are.
#
# Arguments are the tools, by default both: flux argocd. All traffic is on the loopback.
#
# With PLANT=<violation> the script makes something wrong, and has to fail:
#   health     the health checks of config are missing       a fleet that no manager has seen counts as healthy
#   early      (flux) health that is always true             a fleet counts as healthy before its machines are there
#   rest       somebody writes at rest                       an object has another version
#   replicas   replicas in git are enforced                  what the autoscaler scales is taken back
#   prune      nothing is pruned                             a pool stays
#   drift      nothing is corrected                          a label stays
#   webhooks   there are no webhooks                         a commit does not wait for them
#   invalid    the commit is valid                           nothing is refused
#   managers   git has a field of another manager            the other manager loses it
#   stalled    the cloud makes VMs                           nothing fails
#   guard      the policies let CRDs be deleted              the machines go
#   handover   (flux) replicas leave git, owned by nobody    the pool loses its size
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

case ${1:-} in -h | --help) takes_no_arguments "$@" ;; esac
[ $# != 0 ] || set -- flux argocd
since=$SECONDS
for tool; do
	[ -x "$tools/../test-gitops-$tool.sh" ] || die "unknown argument $tool, see --help"
	"$tools/../test-gitops-$tool.sh"
done
printf 'PASS  %s, in %s s\n' "$*" "$((SECONDS - since))"
