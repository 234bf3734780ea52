#!/usr/bin/env bash
# Tests config/components/monitoring with Prometheus and promtool, in the version that hack/tools/monitoring pins:
#   - rules, dashboards and docs/tasks/alerts.md are what hack/monitoring.sh makes of their sources; dashboards are of Grafana's schema
#   - kustomize renders config/default with the component
#   - promtool accepts the rules, and each alert fires in its examples and is silent in others
#   - on a real control plane with two managers, a cloud and Prometheus, with times of alerts 60 times shorter: see
#     hack/test-monitoring-fleet.sh
#
# With PLANT=<violation> the script makes something wrong, and has to fail:
#   threshold   the brake of the fleet counts from 2 on        promtool sees an alert that does not fire
#   hasty       alerts do not wait                             promtool sees alerts before their time
#   name        a query has a metric that does not exist       it is not in docs/reference/telemetry.md
#   fault       no VM is killed                                an alert never fires
#   alert       an alert that is always there                  the fleet at rest is not quiet
#   panel       a query of a panel selects nothing             the panel has no data
#
# With PLOTS=<folder> the pictures of the dashboards stay there, as `make dashboard-plots` writes those of docs/reference/dashboards.md.
#
# It needs the executables of `make build`. The rest is built and kept in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

root=$(cd "$tools/../.." && pwd)
prometheus=$("$root/hack/prometheus.sh")
kubectl=$("$root/hack/control-plane.sh")/kubectl
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
find_go

passed() { printf 'PASS  monitoring: %s\n' "$*"; }

# Makes what PLANT names, in a copy of the sources.
plant() {
	local sources=$scratch/source
	cp -r "$tools/monitoring" "$sources"
	case ${PLANT:-} in
	'' | fault) ;;
	threshold) sed -i 's/(machine_fleet_brake) > 0/(machine_fleet_brake) > 1/' "$sources/alerts.yaml" ;;
	hasty) sed -i 's/^    for: .*/    for: 0s/' "$sources/alerts.yaml" ;;
	name) sed -i 's/(machine_class_invalid) == 1/(machine_class_wrong) == 1/' "$sources/alerts.yaml" ;;
	alert) sed -i 's/(machine_class_invalid) == 1/& or max by (namespace, name) (mcm_machine_info)/' "$sources/alerts.yaml" ;;
	panel) sed -i "s/(effects_longest_running_seconds)'/(effects_longest_running_seconds{effect=\"none\"})'/" "$sources/dashboards.yaml" ;;
	*) die "unknown violation $PLANT, see --help" ;;
	esac
	[ "${PLANT:-fault}" = fault ] || ! diff -rq "$tools/monitoring" "$sources" >/dev/null || die "PLANT=$PLANT changes nothing"
}

test_rendering() {
	local config
	mkdir "$scratch/overlay"
	config=$(realpath --relative-to="$scratch/overlay" "$root/config")
	printf 'resources: [%s/default]\ncomponents: [%s/components/monitoring]\n' "$config" "$config" >"$scratch/overlay/kustomization.yaml"
	"$kubectl" kustomize "$scratch/overlay" >"$scratch/rendered.yaml"
	passed "kustomize renders $(grep -c '^kind:' "$scratch/rendered.yaml") objects, $(grep -c 'grafana_dashboard: "1"' "$scratch/rendered.yaml") of them dashboards"
}

test_rules() {
	"$scratch/monitoring" generate "$root" "$scratch/generated"
	"$scratch/monitoring" rules 1 >"$scratch/rules.yaml"
	"$prometheus/promtool" check rules --lint=all --lint-fatal "$scratch/rules.yaml" >&2
	"$scratch/monitoring" unit-tests "$scratch/rules.yaml" >"$scratch/tests.yaml"
	"$prometheus/promtool" test rules "$scratch/tests.yaml" >&2
	passed "promtool: $(grep -c 'alert:' "$scratch/rules.yaml") alerts, $(grep -c 'eval_time:' "$scratch/tests.yaml") expectations"
}

started=$SECONDS
"$root/hack/monitoring.sh" --check
passed "rules, dashboards and docs/tasks/alerts.md are what their sources make"
plant
[ -z "${PLOTS:-}" ] || PLOTS=$(realpath "$PLOTS")
(cd "$scratch/source" && tools=$scratch tool_go source vet . && tools=$scratch tool_go source test . && tools=$scratch tool_go source build -o "$scratch/monitoring" .) >&2
test_rendering
test_rules
"$root/hack/test-monitoring-fleet.sh" "$scratch/monitoring" "$prometheus" "$scratch/rendered.yaml"
passed "all, in $((SECONDS - started)) s"
