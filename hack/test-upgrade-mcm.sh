#!/usr/bin/env bash
# Tests the upgrade from machine-controller-manager, in the version that hack/tools/machine-controller-manager pins: see hack/test-upgrade.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

mcm=$("$(dirname "${BASH_SOURCE[0]}")/mcm.sh")
crds=$("$(dirname "${BASH_SOURCE[0]}")/mcm-crds.sh")

# shellcheck disable=SC2034 # Used by what is sourced.
tool=mcm
# What Nodewright stores of its own.
adds='> Machine/[^ ]* \.metadata\.annotations\.\[nodewright\.dev/applied-node-template\]='
adds+='|> Machine/[^ ]* \.status\.conditions\[(Drained|InstanceProvisioned|NodeJoined)\]\.'
adds+='|> MachineClass/[^ ]* (\.metadata\.annotations\.\[nodewright\.dev/identity\]=|\.status\.conditions\[(InUse|ProviderSpecValid|SecretsFound)\]\.)'
adds+='|> MachineDeployment/[^ ]* \.status\.(conditions\[Reconciling\]\.|selector=|unavailableReplicas=)'
adds+='|> MachineSet/[^ ]* (\.metadata\.annotations\.\[nodewright\.dev/ledger\]=|\.status\.selector=)'
adds+='|> Secret/nodewright-webhook-certificate '
# The Node that is drained is cordoned with the label for load balancers.
adds+='|> Node/rest-[^ ]* \.metadata\.labels\.\[node\.kubernetes\.io/exclude-from-external-load-balancers\]='
adds+='|> Node/rest-[^ ]* (\.metadata\.annotations\.\[nodewright\.dev/cordoned\]=|\.spec\.(unschedulable=|taints)|\.status\.conditions\[Terminating\])'
# A set is written once; the time until which a machine is preserved has another format.
adds+='|[<>] MachineSet/[^ ]* \.status\.lastOperation\.lastUpdateTime='
adds+='|[<>] (Machine|Node)/[^ ]* \.status\.conditions\[Preserved\]\.(lastTransitionTime|message)='

# shellcheck source-path=SCRIPTDIR source=lib-upgrade.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-upgrade.sh"

start_first() {
	local port
	kube apply --server-side --filename "$crds" >/dev/null
	eventually kube wait --for=condition=Established --timeout=10s crds --all >/dev/null
	port=$(ports 1)
	start machine-controller-manager "$mcm/machine-controller-manager" "--namespace=$namespace" "--control-kubeconfig=$KUBECONFIG" \
		"--target-kubeconfig=$KUBECONFIG" --address=127.0.0.1 "--port=$port" --machine-safety-overshooting-period=300ms
	eventually curl --silent --fail --output /dev/null "http://127.0.0.1:$port/healthz"
	port=$(ports 1)
	start machine-controller "$mcm/machine-controller" "--namespace=$namespace" "--control-kubeconfig=$KUBECONFIG" \
		"--target-kubeconfig=$KUBECONFIG" --address=127.0.0.1 "--port=$port" "--simulated-cloud-url=$cloud"
	eventually curl --silent --fail --output /dev/null "http://127.0.0.1:$port/healthz"
}

stop_first() {
	stop machine-controller-manager
	stop machine-controller
}

upgraded() { hand_over large stop_first this "$products"; }

start_plane
scenario make_fleet "machine-controller-manager makes a fleet"
scenario new_crds "Nodewright's CRDs accept what is stored"
scenario upgraded "Nodewright takes over, rolls no machine, loses no field, and ends a rollout"
scenario release_drain "Nodewright ends a drain that was held meanwhile"
scenario rests "at rest Nodewright writes nothing"
scenario serves_webhooks "Nodewright's webhooks accept what is stored"
