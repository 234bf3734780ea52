#!/usr/bin/env bash
# The part of hack/test-monitoring.sh with a real fleet. Prometheus scrapes two managers each second, over HTTPS and with the token of
# a service account, and has the rules with all times 60 times shorter.
#   - the API server accepts the component, with the CRDs of Prometheus' operator
#   - a fleet grows, is rolled and loses a VM; at rest no alert is pending or fires for 20 s, which stand for 20 minutes
#   - faults of machines, objects, pools, the provider, the API server and the managers: each leads to its alert
#   - after that, each query of each panel has had data, and these have changed; a picture of each dashboard is drawn; each alert has
#     fired, or its source says why not
#
# Arguments: the executable of hack/tools/monitoring, the directory of Prometheus, and the rendered component. Everything is on free ports of the loopback.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

[ $# = 3 ] || takes_no_arguments "${1:---help}"
monitoring=$1 prometheus=$2 rendered=$3
# shellcheck disable=SC2034 # Used by lib-fleet.sh.
tool=monitoring
# How much shorter the times of alerts are.
factor=60
# Prometheus, once it runs.
url=
undecodable=/apis/machine.sapcloud.io/v1alpha1/namespaces/fleet/machines/undecodable

# shellcheck source-path=SCRIPTDIR source=lib-fleet.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-fleet.sh"

show_state() {
	kube get machinedeployments,machinesets,machines,machineclasses --all-namespaces --output wide
	[ -z "$url" ] || "$monitoring" alerts "$url"
	curl --silent "$cloud/vms"
}

# Prometheus with the rules, scraping the ports $@.
start_prometheus() {
	local port target targets=
	for target; do targets+="${targets:+, }127.0.0.1:$target"; done
	"$monitoring" rules "$factor" >"$scratch/rules.yaml"
	cat >"$scratch/prometheus.yaml" <<-END
		global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
		rule_files: [$scratch/rules.yaml]
		scrape_configs:
		- job_name: nodewright
		  scheme: https
		  honor_labels: true
		  authorization: {credentials_file: $scratch/token}
		  tls_config: {insecure_skip_verify: true}
		  static_configs: [{targets: [$targets], labels: {namespace: $namespace}}]
	END
	port=$(ports 1)
	url=http://127.0.0.1:$port
	start prometheus "$prometheus/prometheus" "--config.file=$scratch/prometheus.yaml" "--storage.tsdb.path=$scratch/tsdb" \
		"--web.listen-address=127.0.0.1:$port" --log.level=warn
	eventually curl --silent --fail --output /dev/null "$url/-/ready"
}

# The account of Prometheus, with the right to read metrics, and its token.
allow_prometheus() {
	kube create namespace nodewright-system >/dev/null
	kube apply --server-side --filename "$root/config/rbac/metrics.yaml" >/dev/null
	kube create namespace monitoring >/dev/null
	kube --namespace monitoring create serviceaccount prometheus >/dev/null
	kube create clusterrolebinding prometheus-reads-nodewright --clusterrole=nodewright-metrics-reader \
		--serviceaccount=monitoring:prometheus >/dev/null
	kube --namespace monitoring create token prometheus --duration=2h >"$scratch/token"
}

# The kubeconfig of the target cluster: the same API server, behind a program that can be stopped.
start_target() {
	local port server
	port=$(ports 1)
	server=$(grep -o 'https://[^"/]*' "$KUBECONFIG")
	server=${server#https://}
	forward=(start forward "$loopback" forward "127.0.0.1:$port" "$server")
	"${forward[@]}"
	sed "s|https://$server|https://127.0.0.1:$port|" "$KUBECONFIG" >"$scratch/target"
}

# Starts the manager $1, with its metrics on port $2 and its probes on port $3.
start_manager() {
	NODEWRIGHT_CLOUD_URL=$cloud MALLOC_ARENA_MAX=1 start "manager-$1" "$products/nodewright" manager \
		"--control-kubeconfig=$KUBECONFIG" "--target-kubeconfig=$scratch/target" "--namespace=$namespace" --address=127.0.0.1 \
		"--port=$2" "--health-probe-port=$3" --secure-metrics "--driver=$products/nodewright-driver-simulated" \
		--machine-creation-timeout=40s --provider-short-retry=2s --provider-medium-retry=3s --cloud-node=on \
		--node-deletion-grace=1s --node-deletion-after-start=0s --machine-safety-orphan-vms-period=5s --orphan-vms-grace=1s \
		--orphan-vms-minimum-age=0s --orphan-vms-vanished-pause=0s \
		"--machine-config-templates=$root/config/samples/machine-config/templates"
	eventually curl --silent --fail --output /dev/null "http://127.0.0.1:$3/readyz"
}

# Whether the alert $1 fires, with labels that match $2.
fires() { "$monitoring" alerts "$url" | grep -q "^firing $1 .*${2:-}"; }
# Waits until all of these alerts have fired, and shows each with the time that it took.
all_fire() {
	local since=$SECONDS alert
	for alert; do
		eventually fires "$alert"
		saw+="${saw:+, }${alert#Nodewright} $((SECONDS - since)) s"
	done
}
has_alerts() { [ -n "$("$monitoring" alerts "$url")" ]; }
is_quiet() { ! has_alerts; }

# Whether the API server takes all that is rendered, with each field.
accepted() {
	local operator=github.com/prometheus-operator/prometheus-operator crds
	crds=$(module_directory prometheus-operator "$operator")/example/prometheus-operator-crd
	kube apply --server-side --filename "$crds/monitoring.coreos.com_prometheusrules.yaml" \
		--filename "$crds/monitoring.coreos.com_servicemonitors.yaml" >/dev/null
	eventually kube get servicemonitors,prometheusrules >/dev/null 2>&1
	saw="$(kube apply --server-side --dry-run=server --validate=strict --filename "$rendered" | wc -l) objects"
	# So that the check can fail: a field that there is not.
	! sed 's/^    honorLabels:/    honourLabels:/' "$rendered" | kube apply --server-side --dry-run=server --validate=strict --filename - \
		>/dev/null 2>&1 || die "the API server accepts a ServiceMonitor with an unknown field"
}

fault() { order /faults "{\"operation\":\"$1\",\"match\":{\"machine\":\"$2\"},\"effect\":$3}"; }

# A fleet that works: it grows, is rolled, paused, and loses a VM.
moves() {
	local vms
	{
		class small small user-data 'externalCloudProvider: true'
		class large large user-data 'externalCloudProvider: true'
		deployment pool 3 small
	} | apply
	eventually has_replicas pool 3
	patch machinedeployment pool '{"spec":{"replicas":6,"strategy":{"rollingUpdate":{"maxSurge":2}}}}'
	eventually has_replicas pool 6
	patch machinedeployment pool '{"spec":{"paused":true,"template":{"spec":{"class":{"name":"large"}}}}}'
	patch machinedeployment pool '{"spec":{"paused":false}}'
	eventually has_replicas pool 6
	mapfile -t vms < <(vms_of pool)
	delete_of_cloud "/vms/${vms[0]}"
	eventually lacks_machine pool
	eventually has_replicas pool 6
	patch machinedeployment pool '{"spec":{"replicas":7}}'
	eventually has_replicas pool 7
	saw="7 machines"
}
lacks_machine() { ! has_replicas "$1" 6; }

# A pool of two nodes, of which one is updated.
has_pool() {
	local target node nodes
	kube apply --server-side --filename "$root/config/samples/machine-config" >/dev/null
	eventually has_target
	target=$(kube get machineconfigpool worker --output 'jsonpath={.spec.configuration.name}')
	mapfile -t nodes < <(nodes_of pool)
	for node in "${nodes[@]:0:2}"; do
		kube label node "$node" node-role.kubernetes.io/worker= >/dev/null
	done
	kube annotate node "${nodes[0]}" "machineconfiguration.openshift.io/"{currentConfig,desiredConfig}"=$target" \
		machineconfiguration.openshift.io/state=Done >/dev/null
	eventually updates 1
	saw="pool worker has the target $target"
}
has_target() { [ -n "$(kube get machineconfigpool worker --output 'jsonpath={.spec.configuration.name}')" ]; }
updates() { [ "$(kube get machineconfigpool worker --output 'jsonpath={.status.machineCount}/{.status.updatedMachineCount}')" = "2/$1" ]; }

rests() {
	eventually is_quiet
	never 20 has_alerts
	saw="no alert in 20 s"
}

# What is wrong with machines and objects at once: their alerts need minutes together.
machines_fail() {
	deployment stuck 1 large | apply
	eventually has_replicas stuck 1
	fault delete 'stuck-*' '{"kind":"error","code":"PermissionDenied"}'
	fault delete lost '{"kind":"error","code":"PermissionDenied"}'
	fault create 'refused-*' '{"kind":"error","code":"Internal"}'
	fault create 'hangs-*' '{"kind":"hang"}'
	fault create 'silent-*' '{"kind":"never-joins"}'
	in_fleet delete machinedeployment stuck --wait=false >/dev/null
	order /vms '{"name":"lost","token":"lost","tags":{"cluster":"fleet","machine":"lost"}}'
	{
		class invalid enormous user-data 'externalCloudProvider: true'
		class secretless small no-user-data 'externalCloudProvider: true'
		deployment refused 8 large 10
		deployment hangs 1 large
		deployment silent 2 large 10
		deployment secretless 1 secretless
	} | apply
	undecodable
	all_fire NodewrightMachineClassInvalid NodewrightUndecodableObjects
	# While it is there, no VM is taken for an orphan.
	kube delete --raw "$undecodable" >/dev/null
	all_fire NodewrightProviderCallHangs NodewrightMachineConfigurationInvalid NodewrightMachinePending \
		NodewrightRolloutStuck NodewrightDeploymentUnavailable NodewrightProviderCallsFail NodewrightOrphanVMDeletionsFail NodewrightDeploymentStalled NodewrightMachinesDoNotJoin \
		NodewrightMachinesFailed NodewrightOrphanVMs NodewrightMachineTerminating
}

# A machine whose labels are nested too deeply to be read.
undecodable() {
	local depth=9000
	{
		printf '{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"Machine","metadata":{"name":"undecodable"},"spec":{"class":'
		printf '{"kind":"MachineClass","name":"small"},"nodeTemplate":{"metadata":{"labels":'
		printf '{"a":%.0s' $(seq $depth)
		printf '"b"'
		printf '}%.0s' $(seq $depth)
		printf '}}}}'
	} >"$scratch/undecodable.json"
	kube create --raw "${undecodable%/*}" --filename "$scratch/undecodable.json" >/dev/null
}

# Ends these faults.
machines_recover() {
	delete_of_cloud /faults
	in_fleet delete machinedeployment refused hangs silent secretless >/dev/null
	in_fleet delete machineclass invalid --wait=false >/dev/null
	eventually is_gone machinedeployment refused
	eventually is_quiet
}

# Nodes of a pool: one fails with its configuration, the drain of another one began hours ago and does not end; a pool selects nothing.
pools_fail() {
	local nodes
	mapfile -t nodes < <(nodes_of pool)
	kube annotate --overwrite node "${nodes[0]}" machineconfiguration.openshift.io/{state=Degraded,reason=test} >/dev/null
	holds_drain "${nodes[1]}"
	kube apply --filename - >/dev/null <<-END
		apiVersion: machineconfiguration.openshift.io/v1
		kind: MachineConfigPool
		metadata: {name: empty}
		spec:
		  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: empty}}
		  nodeSelector: {matchLabels: {node-role.kubernetes.io/empty: ""}}
	END
	all_fire NodewrightNodeDrainSlow NodewrightPoolRenderDegraded NodewrightPoolDegraded
}

# A Pod on the node $1 that does not end, and a drain that has waited for it for two hours.
holds_drain() {
	kube apply --filename - >/dev/null <<-END
		apiVersion: v1
		kind: Pod
		metadata: {name: stays, namespace: default, finalizers: [example.com/stays]}
		spec: {nodeName: $1, containers: [{name: a, image: example.com/a}], tolerations: [{operator: Exists}]}
	END
	kube annotate node "$1" machineconfiguration.openshift.io/desiredDrain=drain-test \
		"nodewright.dev/config-drain=cordoned;drain-test;$(date --utc --date='2 hours ago' +%FT%TZ)" >/dev/null
	kube cordon "$1" >/dev/null
}

# More kubelets are silent than the brake lets be replaced; two of their VMs are gone.
fleet_brakes() {
	local vm vms
	mapfile -t vms < <(vms_of pool)
	for vm in "${vms[@]:2}"; do
		[ "${PLANT:-}" = fault ] || order "/vms/$vm/kubelet" '{"action":"silence"}'
	done
	for vm in "${vms[@]:5}"; do delete_of_cloud "/vms/$vm"; done
	all_fire NodewrightFleetBrake
	eventually asks_for_nodes
}
asks_for_nodes() { curl --silent --fail --data-urlencode 'query=node_deletion_permits_total{result="held"}' "$url/api/v1/query" | grep -q '"held"'; }

# A webhook that does not answer refuses the sets of new deployments.
writes_fail() {
	local number
	kube apply --filename - >/dev/null <<-END
		apiVersion: admissionregistration.k8s.io/v1
		kind: ValidatingWebhookConfiguration
		metadata: {name: broken}
		webhooks:
		- name: broken.example.com
		  admissionReviewVersions: [v1]
		  sideEffects: None
		  timeoutSeconds: 1
		  clientConfig: {url: "https://127.0.0.1:1/"}
		  rules: [{apiGroups: [machine.sapcloud.io], apiVersions: ["*"], operations: [CREATE], resources: [machinesets]}]
	END
	for number in {1..12}; do deployment "refused-$number" 1 large; done | apply
	all_fire NodewrightReconcileErrors
	kube delete validatingwebhookconfiguration broken >/dev/null
}

target_vanishes() {
	stop forward
	all_fire NodewrightWatchUnhealthy NodewrightFrozen
	"${forward[@]}"
	eventually is_not_frozen
}
is_not_frozen() { ! fires NodewrightFrozen; }

managers_vanish() {
	stop manager-2
	stop manager-1
	all_fire NodewrightDown
}

# Another program holds the Leases.
others_lead() {
	local lease
	for lease in machine-controller-manager machine-controller; do
		patch lease "$lease" "{\"spec\":{\"holderIdentity\":\"other\",\"leaseDurationSeconds\":3600,\"renewTime\":\"$(date --utc +%FT%T.%6NZ)\"}}"
	done
	start_manager 1 "${port[0]}" "${port[2]}"
	all_fire NodewrightNoLeader
}

panels_have_data() { saw=$("$monitoring" panels "$url" "$begun"); }
# Draws what the panels have shown, into the folder $PLOTS if there is one.
panels_are_drawn() {
	local into=${PLOTS:-$scratch/plots}
	mkdir -p "$into"
	evidence+=("$scratch/panels.json")
	"$monitoring" save "$url" "$begun" "$scratch/panels.json"
	"$monitoring" plot "$scratch/panels.json" "$into"
	saw="$(find "$into" -name '*.svg' | wc -l) pictures"
}
alerts_have_fired() { saw=$("$monitoring" fired "$url" "$begun"); }

# shellcheck disable=SC2034 # Used by lib-fleet.sh.
plane_flags=(--node-monitor-grace-period=5s) cloud_flags=(--lease-seconds=1 --delete-seconds=0.3)
start_plane
kube apply --server-side --kustomize "$root/config/crd" >/dev/null
kube apply --server-side --kustomize "$root/config/crd/machine-config" >/dev/null
kube create namespace "$namespace" >/dev/null
in_fleet create secret generic user-data --from-literal=userData=test >/dev/null
allow_prometheus
start_target
mapfile -t port < <(ports 4)
start_manager 1 "${port[0]}" "${port[2]}"
start_manager 2 "${port[1]}" "${port[3]}"
start_prometheus "${port[0]}" "${port[1]}"
begun=$(date +%s)
scenario accepted "the API server accepts the component"
scenario moves "a fleet grows, is rolled, loses a VM"
scenario has_pool "a pool of nodes has a target"
scenario rests "the fleet rests"
scenario machines_fail "faults of machines, objects and the provider"
scenario machines_recover "they end"
scenario pools_fail "faults of pools"
scenario fleet_brakes "most kubelets are silent"
scenario writes_fail "a webhook refuses writes"
scenario target_vanishes "the target cluster is out of reach"
scenario managers_vanish "no manager runs"
scenario others_lead "another program leads"
scenario panels_have_data "each panel has had data that move"
scenario panels_are_drawn "a picture of each dashboard is drawn"
scenario alerts_have_fired "each alert has fired"
