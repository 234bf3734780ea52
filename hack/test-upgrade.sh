#!/usr/bin/env bash
# Tests upgrades on a real control plane with a simulated cloud, from the previous version, which hack/previous-version pins, and from
# machine-controller-manager: a fleet with a pool at rest, one that is paused in the middle of a rollout, one that is being rolled, a drain
# that a budget holds, a preserved machine, and one that is to go first. Objects are compared field by field, VMs by their ids. Each
# scenario is a line, PASS or FAIL; the first that fails ends the run, and says where its logs are.
#
# Arguments are what to upgrade from, by default both: previous mcm. All traffic is on the loopback.
#
# With PLANT=<violation> the script makes something wrong, and has to fail:
#   crds       CRDs refuse more than two replicas          a stored object is refused
#   rolled     the label of a template changes             machines at rest are replaced
#   lost       an annotation is removed                    a field is lost
#   vm         a VM is deleted at the cloud                a machine has lost its VM
#   drain      the budget is removed early                 a machine goes before its drain may end
#   more       another machine is made                     the rollout has made one too many
#   held       the budget stays                            the drain does not end
#   rest       a pool is scaled at rest                    something is written
#   webhooks   the manager that serves them ends           a stored object is refused
#   back-rolled, back-lost, back-vm, back-drain, back-more, back-held, back-rest
#              (previous) the same in the downgrade
#   first      (previous) another machine is to go first   the scale-down takes the wrong one
#   old-crds   (previous) as crds, for those of the previous version
#   leader, back-leader   (previous) nobody is killed      the other manager does not lead
#   second, back-second   (previous) a second VM is made   a machine has had two
#   gone, back-gone       (previous) a machine is removed  it is replaced
#
# It needs the executables of `make build`, git and curl. The previous version and machine-controller-manager are built and kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

case ${1:-} in -h | --help) takes_no_arguments "$@" ;; esac
[ $# != 0 ] || set -- previous mcm
since=$SECONDS
for from; do
	[ -x "$tools/../test-upgrade-$from.sh" ] || die "unknown argument $from, see --help"
	"$tools/../test-upgrade-$from.sh"
done
printf 'PASS  %s, in %s s\n' "$*" "$((SECONDS - since))"
