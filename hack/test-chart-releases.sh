#!/usr/bin/env bash
# Installs, upgrades, rolls back and uninstalls the chart of config/chart with the Helm at path $1, on a real control plane, which it
# starts. No Pod runs there: what the manager writes, such as its labels and the caBundle, the test writes in its place.
#
# It needs nodewright-control-plane in the target directory, and what hack/test-chart.sh builds.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

[ $# = 1 ] && [ -x "$1" ] || die "name the executable of Helm"
helm=$1
name=$(basename "$helm")
root=$(cd "$tools/../.." && pwd)
control_plane=${CARGO_TARGET_DIR:-$root/target}/debug/nodewright-control-plane
[ -x "$control_plane" ] || die "$control_plane is missing: run make test-chart"
kubectl=$("$root/hack/control-plane.sh")/kubectl
cert_manager=$("$root/hack/kube-schemas.sh")/cert-manager-crds
scratch=$(mktemp -d)
export HELM_CACHE_HOME=$scratch/cache HELM_CONFIG_HOME=$scratch/config HELM_DATA_HOME=$scratch/data
export KUBECONFIG=$scratch/plane/kubeconfig
chart=$scratch/chart
machine=machines.machine.sapcloud.io

passed() { printf 'ok    %s %s\n' "$name" "$*"; }
kube() { "$kubectl" "$@"; }
value() { kube get "$1" "$2" --namespace nodewright-system --output "jsonpath=$3"; }

# Runs a command until it succeeds, for at most a minute.
eventually() {
	local deadline=$((SECONDS + 60))
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || die "$name: not within a minute: $*"
		sleep 0.3
	done
}

equals() { [ "$1" = "$2" ] || die "$name: $3 is '$1', not '$2'"; }

start_control_plane() {
	"$control_plane" --dir "$scratch/plane" --ready-file "$scratch/ready" --without-scheduler >"$scratch/plane.log" 2>&1 &
	plane=$!
	# shellcheck disable=SC2064 # Both are known now.
	trap "kill $plane 2>/dev/null; wait $plane 2>/dev/null || true; rm -rf '$scratch'" EXIT
	eventually test -e "$scratch/ready"
}

# Makes the namespace $1 with the labels of that of config/manager, so that violations of the Pod Security Standards are refused.
make_namespace() {
	local restricted=pod-security.kubernetes.io
	kube create namespace "$1" >/dev/null
	kube label namespace "$1" "$restricted/enforce=restricted" "$restricted/warn=restricted" "$restricted/audit=restricted" \
		app.kubernetes.io/name=nodewright app.kubernetes.io/part-of=nodewright "app.kubernetes.io/instance=$1" >/dev/null
}

# Runs Helm, and fails if the API server warns.
quiet_helm() {
	local said
	said=$("$helm" "$@" 2>&1) || die "$name $*: $said"
	if grep -iE 'warnings.go|would violate|level=WARN' <<<"$said"; then die "$name $*: see above"; fi
}

# Checks that applying folder $1 of hack/chart would change nothing.
same_as_kustomize() {
	local difference
	difference=$(kube diff --server-side --force-conflicts -k "$root/hack/chart/$1" 2>&1) || {
		printf '%s\n' "$difference" >&2
		die "$name: kustomize would change what Helm has installed: see above"
	}
}

test_install() {
	make_namespace nodewright-system
	quiet_helm install nodewright "$chart" --namespace nodewright-system --values "$root/hack/chart/driver-aws/values.yaml"
	same_as_kustomize driver-aws
	passed "install: no warning, and kustomize would change nothing"
}

has_pods() { [ "$(kube get pods --namespace nodewright-system --output name | wc -l)" = "$1" ]; }

# Pods are admitted where `restricted` is enforced, and a container with more rights is not.
test_pod_security() {
	local said
	eventually has_pods 2
	kube get deployment nodewright --namespace nodewright-system --output yaml |
		sed 's/allowPrivilegeEscalation: false/allowPrivilegeEscalation: true/' >"$scratch/privileged.yaml"
	said=$(kube replace --dry-run=server --filename "$scratch/privileged.yaml" 2>&1)
	grep -q 'would violate PodSecurity "restricted' <<<"$said" || die "$name: privileges are not noticed: $said"
	passed "Pod Security restricted: two Pods are admitted; privileges would be noticed"
}

make_machine() {
	kube apply --filename - >/dev/null <<-'END'
		apiVersion: machine.sapcloud.io/v1alpha1
		kind: Machine
		metadata: {name: one, namespace: nodewright-system}
		spec: {class: {kind: MachineClass, name: small}}
	END
	uid=$(value machine one '{.metadata.uid}')
}

machine_stays() { equals "$(value machine one '{.metadata.uid}')" "$uid" "the UID of the machine"; }

# What the manager writes: the label on a CRD that says that it is in use, and the caBundle of a webhook.
write_as_manager() {
	kube label crd "$machine" in-use.nodewright.dev/nodewright-system=true >/dev/null
	kube patch validatingwebhookconfiguration nodewright-nodewright-system --type=json \
		--patch "[{op: add, path: /webhooks/0/clientConfig/caBundle, value: $bundle}]" >/dev/null
}

manager_writes_stay() {
	equals "$(value crd "$machine" '{.metadata.labels.in-use\.nodewright\.dev/nodewright-system}')" true "the label of the CRD"
	equals "$(value validatingwebhookconfiguration nodewright-nodewright-system '{.webhooks[0].clientConfig.caBundle}')" "$bundle" caBundle
}

columns() { value crd "$machine" '{.spec.versions[0].additionalPrinterColumns[*].name}'; }

# Another version of the chart, whose CRD has a column more.
test_upgrade() {
	before=$(columns)
	cp -r "$chart" "$scratch/next"
	sed -i 's/^version: .*/version: 99.0.0/' "$scratch/next/Chart.yaml"
	sed -i '0,/additionalPrinterColumns:/s//&\n    - {name: Added, type: string, jsonPath: .metadata.name}/' \
		"$scratch/next/templates/generated/crd-machines.yaml"
	quiet_helm upgrade nodewright "$scratch/next" --namespace nodewright-system --reuse-values --set replicaCount=3
	equals "$(value deployment nodewright '{.spec.replicas}')" 3 replicas
	grep -q Added <<<"$(columns)" || die "$name: the upgrade does not change the CRD: $(columns)"
	machine_stays
	manager_writes_stay
	passed "upgrade: replicas and the CRD change; the machine and what the manager writes stay"
}

test_rollback() {
	quiet_helm rollback nodewright 1 --namespace nodewright-system
	equals "$(value deployment nodewright '{.spec.replicas}')" 2 replicas
	equals "$(columns)" "$before" "the columns of the CRD"
	machine_stays
	manager_writes_stay
	same_as_kustomize driver-aws
	passed "rollback: replicas and the CRD as before; the machine and what the manager writes stay"
}

is_guarded() {
	! kube delete deployment nodewright --namespace nodewright-system --dry-run=server &&
		! kube create --dry-run=server --filename "$scratch/hook.yaml"
}
is_not_guarded() { kube delete deployment nodewright --namespace nodewright-system --dry-run=server; }

# Helm takes a release for one that is being uninstalled after an attempt, until it is rolled back to its last revision.
roll_back_to_last() {
	local last
	last=$("$helm" history nodewright --namespace nodewright-system | awk 'END { print $1 }')
	quiet_helm rollback nodewright "$last" --namespace nodewright-system
	same_as_kustomize driver-aws
	quiet_helm upgrade nodewright "$chart" --namespace nodewright-system --reuse-values
}

# While there are machines, nothing is deleted, and Helm says why.
test_refused_uninstall() {
	kube label namespace nodewright-system nodewright.dev/in-use=true >/dev/null
	"$helm" get hooks nodewright --namespace nodewright-system >"$scratch/hook.yaml"
	eventually is_guarded
	local said
	! said=$("$helm" uninstall nodewright --namespace nodewright-system 2>&1) || die "$name uninstalls a manager with machines: $said"
	grep -q 'need the installation until they are deleted' <<<"$said" || die "$name uninstall: $said"
	same_as_kustomize driver-aws
	machine_stays
	roll_back_to_last
	passed "uninstall with machines: refused, and nothing is deleted; a rollback makes the release one that can be upgraded"
}

# Without hooks, what machines need most stays, and a rollback restores the rest.
test_uninstall_without_hooks() {
	local said
	! said=$("$helm" uninstall nodewright --namespace nodewright-system --no-hooks 2>&1) || die "$name uninstalls a manager: $said"
	value deployment nodewright '{.metadata.name}' >/dev/null
	value role nodewright '{.metadata.name}' >/dev/null
	machine_stays
	roll_back_to_last
	passed "uninstall with machines and --no-hooks: the manager and its rights stay, and a rollback restores the rest"
}

# CRDs, machines and the policies stay.
test_uninstall() {
	kube label namespace nodewright-system nodewright.dev/in-use- >/dev/null
	eventually is_not_guarded
	quiet_helm uninstall nodewright --namespace nodewright-system
	equals "$(kube get deployments,roles,services --namespace nodewright-system --output name)" '' "what is left"
	equals "$(kube get clusterroles --selector helm.sh/chart --output name)" '' "what is left"
	machine_stays
	equals "$(kube get crds --selector helm.sh/chart --output name | wc -l)" 4 "the number of CRDs"
	equals "$(kube get validatingadmissionpolicies --selector helm.sh/chart --output name | wc -l)" 4 "the number of policies"
	passed "uninstall: CRDs, the machine and the policies stay"
}

test_install_again() {
	quiet_helm install nodewright "$chart" --namespace nodewright-system --values "$root/hack/chart/driver-aws/values.yaml"
	same_as_kustomize driver-aws
	machine_stays
	passed "install after uninstall: the release has its CRDs again"
}

test_another_namespace() {
	make_namespace team-a
	quiet_helm install nodewright "$chart" --namespace team-a --values "$root/hack/chart/another-namespace/values.yaml"
	same_as_kustomize another-namespace
	quiet_helm uninstall nodewright --namespace team-a
	same_as_kustomize driver-aws
	passed "a second release in another namespace comes and goes, and the first stays as it is"
}

has_replica_set() { [ -n "$(kube get replicasets --namespace "$1" --output name)" ]; }

# What kustomize has installed becomes a release. Helm 4 applies on the server, where kubectl owns the fields.
test_take_over() {
	local flags=(--take-ownership) sets
	! "$helm" install --help | grep -q -e --force-conflicts || flags+=(--force-conflicts)
	kube apply --server-side -k "$root/hack/chart/another-namespace" >/dev/null
	eventually has_replica_set team-a
	sets=$(kube get replicasets --namespace team-a --output name)
	quiet_helm install nodewright "$chart" --namespace team-a --values "$root/hack/chart/another-namespace/values.yaml" \
		"${flags[@]}"
	same_as_kustomize another-namespace
	equals "$(kube get replicasets --namespace team-a --output name)" "$sets" "the list of ReplicaSets"
	quiet_helm upgrade nodewright "$chart" --namespace team-a --reuse-values --set replicaCount=1 "${flags[@]:1}"
	equals "$(kube get deployment nodewright --namespace team-a --output 'jsonpath={.spec.replicas}')" 1 replicas
	quiet_helm uninstall nodewright --namespace team-a
	passed "a release takes over what kustomize has installed, and no Pod restarts"
}

# All components at once, in a cluster that has the kinds of cert-manager.
test_all_components() {
	kube apply --server-side --filename "$cert_manager" >/dev/null
	eventually kube get certificates
	kube apply --server-side -k "$root/config/crd/machine-config" >/dev/null
	quiet_helm install nodewright "$chart" --namespace team-a --values "$root/hack/chart/all-components/values.yaml"
	same_as_kustomize all-components
	quiet_helm uninstall nodewright --namespace team-a
	passed "all components: no warning, and kustomize would change nothing"
}

bundle=$(printf 'authority' | base64)
cp -r "$root/config/chart" "$chart"
start_control_plane
test_install
test_pod_security
make_machine
write_as_manager
test_upgrade
test_rollback
test_refused_uninstall
test_uninstall_without_hooks
test_uninstall
test_install_again
test_another_namespace
test_take_over
test_all_components
