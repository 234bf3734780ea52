#!/usr/bin/env bash
# Tests Nodewright with Argo CD's application controller and repo server: see hack/test-gitops.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# shellcheck source-path=SCRIPTDIR source=lib-gitops.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-gitops.sh"
# shellcheck source-path=SCRIPTDIR source=lib-gitops-scenarios.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-gitops-scenarios.sh"

# shellcheck disable=SC2034 # Used by what is sourced.
tool=argocd agent=argocd own=/applications/ healthy=Synced/Healthy progressing=/Progressing

argocd() { kube --namespace argocd "$@"; }
show_tool() { argocd get applications --output yaml; }
revision() { printf '%s' "$1"; }

# Prints the JSONPath $2 of the Application $1.
of() { argocd get application "$1" --ignore-not-found --output "jsonpath=$2"; }
message() { of "$1" '{.status.operationState.message} {.status.operationState.syncResult.resources[*].message} {.status.conditions[*].message}'; }

is_ready() { [ "$(of "$1" '{.status.sync.status}/{.status.health.status} {.status.sync.revision}')" = "Synced/Healthy $commit" ]; }
# An operation that is tried again is Running.
is_refused() { [ "$(of "$1" '{.status.operationState.phase}')" != Succeeded ] && grep -qF -- "$2" <<<"$(message "$1")"; }
has_failed() {
	[ "$(of fleet '{.status.health.status}')" = Degraded ] || return 1
	saw="Degraded: $(field mcd "$pool" '{.status.conditions[?(@.type=="Stalled")].message}' | head -c 120)"
}

# Waits for $1 comparisons with git.
reconciles() {
	local count before
	for ((count = 0; count < $1; count++)); do
		before=$(of fleet '{.status.reconciledAt}')
		eventually is_reconciled "$before"
	done
}
is_reconciled() { [ "$(of fleet '{.status.reconciledAt}')" != "$1" ]; }

start_argocd() {
	local ports
	mapfile -t ports < <(ports 4)
	kube apply --server-side --filename "$binaries/argocd.yaml" >/dev/null
	kube create namespace argocd >/dev/null
	eventually argocd get applications,appprojects >/dev/null 2>&1
	settings | argocd apply --filename - >/dev/null
	planted health || argocd patch configmap argocd-cm --patch-file "$root/config/argocd/argocd-cm.yaml" >/dev/null
	start redis "$binaries/redis" "127.0.0.1:${ports[0]}"
	start repo-server env -C "$scratch/argocd" "${environment[@]}" "$binaries/argocd-repo-server" --address=127.0.0.1 "--port=${ports[1]}" \
		--metrics-address=127.0.0.1 "--metrics-port=${ports[2]}" "--redis=127.0.0.1:${ports[0]}" --disable-tls --client-ca-path= --revision-cache-expiration=1s
	start application-controller env -C "$scratch/argocd" "${environment[@]}" "$binaries/argocd-application-controller" --namespace=argocd \
		"--metrics-port=${ports[3]}" "--redis=127.0.0.1:${ports[0]}" "--repo-server=127.0.0.1:${ports[1]}" --repo-server-plaintext \
		--app-resync=3 --app-resync-jitter=0 --self-heal-backoff-cap-seconds=3
}

# What both programs of Argo CD read from their environment.
mkdir "$scratch"/argocd
environment=(ARGOCD_FAKE_IN_CLUSTER=true "ARGOCD_TLS_DATA_PATH=$scratch/argocd" "ARGOCD_SSH_DATA_PATH=$scratch/argocd"
	"ARGOCD_GNUPGHOME=$scratch/argocd" ARGOCD_GPG_ENABLED=false "ARGOCD_PLUGINSOCKFILEPATH=$scratch/argocd"
	"ARGOCD_ASK_PASS_SOCK=$scratch/argocd/ask-pass.sock" "TMPDIR=$scratch/argocd" "HOME=$scratch/home" "PATH=$binaries:$PATH"
	KUBECONFIG="$KUBECONFIG")

# What an installation of Argo CD has before it starts.
settings() {
	cat <<-'END'
		apiVersion: v1
		kind: ConfigMap
		metadata: {name: argocd-cm, labels: {app.kubernetes.io/part-of: argocd}}
		---
		apiVersion: v1
		kind: Secret
		metadata: {name: argocd-secret, labels: {app.kubernetes.io/part-of: argocd}}
		stringData: {server.secretkey: test}
		---
		apiVersion: argoproj.io/v1alpha1
		kind: AppProject
		metadata: {name: default}
		spec:
		  sourceRepos: ['*']
		  destinations: [{namespace: '*', server: '*'}]
		  clusterResourceWhitelist: [{group: '*', kind: '*'}]
	END
}

# The Application of config/argocd for folder $1 of the local repository, in seconds instead of minutes.
application() {
	sed "s|repoURL: .*|repoURL: $repository|; s|path: fleet|path: $1|; s|^  name: fleet|  name: $1|
		s/duration: 10s/duration: 2s/; s/maxDuration: 1m/maxDuration: 3s/" "$root/config/argocd/application.yaml" | kube apply --filename - >/dev/null 2>&1
}

patch_fleet() { argocd patch application fleet "$@" >/dev/null; }

size_from_git() {
	case $1 in
	yes) patch_fleet --type=merge --patch '{"spec":{"ignoreDifferences":null}}' ;;
	no) application fleet ;;
	esac
}
stop_pruning() { patch_fleet --type=merge --patch '{"spec":{"syncPolicy":{"automated":{"prune":false}}}}'; }
suspend() { patch_fleet --type=merge --patch '{"spec":{"syncPolicy":{"automated":{"selfHeal":false}}}}'; }
delete_application() { argocd delete application fleet --wait=false >/dev/null; }

watches() {
	printf '%s|' applications argocd tool '{.object.metadata.name}' '{.object.status.sync.status}/{.object.status.health.status}' \
		'{.object.status.sync.revision}' '{.object.status.operationState.syncResult.revision}'
	printf '%s\n' '{.object.status.operationState.phase}'
}

is_progressing() { [ "$(of fleet '{.status.sync.status}/{.status.health.status}')" = Synced/Progressing ]; }

# The Application of the fleet is there before the CRDs, which are there before the manager.
late_crds() {
	application fleet
	eventually is_refused fleet 'no matches for kind "MachineClass"'
	application cluster
	eventually is_ready cluster
	eventually has_pool
	eventually is_progressing
	never 5 is_ready fleet
	equals "$(vms)" 0 "the number of VMs"
	saw="refused without CRDs, Progressing without a manager"
}

# Argo CD prunes no CRDs. The policies of config/guard keep the namespace, and so the machines, from a commit that leaves it out.
guarded() {
	local uids crds
	uids=$(machines "$pool")
	crds=$(kube get crds --output name)
	edit cluster/kustomization.yaml '/config\/crd/d'
	write_fleet secret machine_class machine_deployment
	if planted guard; then kube annotate namespace "$namespace" nodewright.dev/allow-deletion=true >/dev/null; fi
	commit "No CRDs and no namespace"
	eventually is_ready cluster
	eventually is_refused fleet 'it has machines'
	saw=$(excerpt fleet 'it has machines')
	equals "$(kube get crds --output name)" "$crds" "the list of CRDs"
	revert
	eventually is_ready fleet
	eventually is_ready cluster
	equals "$(machines "$pool")" "$uids" "the list of machines"
}

start_plane
start_git
start_argocd
run_scenarios
scenario deleted "a deleted Application takes its machines along"
