#!/usr/bin/env bash
# Tests the Helm chart of config/chart with Helm 3 and 4, in the versions that hack/tools pins:
#   - the templates are what hack/chart.sh makes of the kustomize folders
#   - each folder of hack/chart has a kustomization and values that say the same: both render the same objects, which are valid for
#     Kubernetes 1.34 to 1.36; `helm lint --strict` accepts the values. An older kustomize, that of kubectl 1.34 and 1.35, renders the same
#   - wrong values are refused, with the name of the value
#   - the samples and the roles of the plugin, which are not in the chart, are valid, too
#   - it works on a real control plane: see hack/test-chart-releases.sh
#
# It needs nodewright-control-plane, which `make test-chart` builds. The rest is built and kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}, which takes about eight minutes at first.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

root=$(cd "$tools/../.." && pwd)
chart=$root/config/chart
pairs=$root/hack/chart
binaries=$("$root/hack/chart-tools.sh")
schemas=$("$root/hack/kube-schemas.sh")
kubectl=$("$root/hack/control-plane.sh")/kubectl
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
find_go
# Helm must not read or write what the user has.
export HELM_CACHE_HOME=$scratch/cache HELM_CONFIG_HOME=$scratch/config HELM_DATA_HOME=$scratch/data
# A Helm that is built from its module takes itself for one of Kubernetes 1.20.
capabilities=(--kube-version 1.36.0)

passed() { printf 'ok    %s\n' "$*"; }

# Renders folder $2 of hack/chart with Helm $1.
render() {
	local namespace
	namespace=$(sed -n 's/^namespace: //p' "$pairs/$2/kustomization.yaml")
	"$binaries/$1" template nodewright "$chart" --namespace "${namespace:-nodewright-system}" "${capabilities[@]}" \
		--values "$pairs/$2/values.yaml"
}

# Validates the objects of the files against the schemas of each release. Nothing is skipped: a kind without a schema is an error.
validate() {
	local release
	for release in "$schemas"/v*; do
		"$binaries/kubeconform" -strict -schema-location "$release/{{.ResourceKind}}{{.KindSuffix}}.json" \
			-schema-location "$schemas/cert-manager/{{.ResourceKind}}{{.KindSuffix}}.json" \
			-schema-location "$scratch/own/{{.ResourceKind}}{{.KindSuffix}}.json" "$@" >&2 ||
			die "not valid for Kubernetes ${release##*/}: see above"
	done
}

# Compares kustomize and Helm $1 for folder $2 of hack/chart.
test_pair() {
	local helm=$1 pair=$2 equal
	"$binaries/$helm" lint --strict --quiet "$chart" "${capabilities[@]}" --values "$pairs/$pair/values.yaml" >&2 ||
		die "$helm lint refuses $pair: see above"
	"$kubectl" kustomize "$pairs/$pair" >"$scratch/kustomize.yaml"
	render "$helm" "$pair" >"$scratch/$helm.yaml"
	equal=$("$scratch/chart" compare "$scratch/kustomize.yaml" "$scratch/$helm.yaml") || {
		printf '%s\n' "$equal" >&2
		die "$helm renders $pair differently: see above"
	}
	validate "$scratch/kustomize.yaml" "$scratch/$helm.yaml"
	passed "$helm $pair: $equal, and valid for$(printf ' %s' "$schemas"/v* | sed "s|$schemas/||g")"
}

# Builds an older kustomize into directory $1.
build() { tool_go kustomize build -trimpath -ldflags '-s -w' -o "$1/kustomize" sigs.k8s.io/kustomize/kustomize/v5 >&2; }

# Compares what kubectl and the kustomize $1 make of folder $2 of hack/chart.
test_older_kustomize() {
	"$kubectl" kustomize "$pairs/$2" >"$scratch/kustomize.yaml"
	"$1" build "$pairs/$2" >"$scratch/older.yaml"
	diff -u "$scratch/kustomize.yaml" "$scratch/older.yaml" >&2 || die "an older kustomize renders $2 differently: see above"
}

# Validates the objects of config that are in no pair, by the CRDs of config.
test_samples() {
	local folder samples=("$root"/config/samples/machine-config/*.yaml)
	for folder in bases machine-config/bases; do tool_go chart run . schemas "$root/config/crd/$folder" "$scratch/own"; done
	for folder in plugin samples samples/kind; do
		samples+=("$scratch/${folder//\//-}.yaml")
		"$kubectl" kustomize "$root/config/$folder" >"${samples[-1]}"
	done
	validate "${samples[@]}"
	sed 's/replicas:/replica:/' "$scratch/samples.yaml" >"$scratch/misspelled.yaml"
	! (validate "$scratch/misspelled.yaml") 2>/dev/null || die "a field that there is not is valid"
	passed "samples, and roles of the plugin: valid, and one with a field that there is not is none"
}

# Checks that Helm $1 refuses the values $2, and says $3.
test_refused() {
	local helm=$1 values=$2 expected=$3 said
	! said=$("$binaries/$helm" template nodewright "$chart" "${capabilities[@]}" --set "$values" 2>&1 >/dev/null) ||
		die "$helm accepts $values"
	grep -qF "$expected" <<<"$said" || die "$helm refuses $values without '$expected': $said"
	passed "$helm refuses $values: $expected"
}

# Wrong values, and what is said of them.
test_all_refused() {
	local helm=$1 values expected
	while read -r values expected; do
		test_refused "$helm" "$values" "$expected"
	done <<-'END'
		replicacount=3 additional properties 'replicacount' not allowed
		driver.image.repo=x at '/driver/image': additional properties 'repo' not allowed
		replicaCount=two at '/replicaCount': got string, want integer
		image.repository= at '/image/repository': minLength
		image.digest=v1 at '/image/digest': 'v1' does not match pattern
		extraArgs[0]=log-level=debug at '/extraArgs/0': 'log-level=debug' does not match pattern
		deploymentName=manager at '/deploymentName': value must be one of
		certManager.enabled=true,webhooks.enabled=false at '/webhooks/enabled': value must be true
		nodeConfiguration.webhooks=true,webhooks.enabled=false at '/webhooks/enabled': value must be true
		podSecurityContext=null missing property 'podSecurityContext'
		driver=null missing property 'driver'
		webhooks.enabled=null at '/webhooks': missing property 'enabled'
		networkPolicy.enabled=true,networkPolicy.metricsFrom=null at '/networkPolicy': missing property 'metricsFrom'
		driver.volumeMounts[0].mountPath=/x at '/driver/volumeMounts/0': missing property 'name'
		crds.keep=maybe at '/crds/keep': got string, want boolean
	END
}

# Checks that Helm $1 refuses the namespace in which a release cannot work.
test_namespace() {
	local said
	! said=$("$binaries/$1" template nodewright "$chart" --namespace kube-system "${capabilities[@]}" 2>&1 >/dev/null) ||
		die "$1 accepts the namespace kube-system"
	grep -qF 'it needs another namespace' <<<"$said" || die "$1 refuses kube-system without the reason: $said"
	passed "$1 refuses the namespace kube-system"
}

# Checks that the comparison finds a Role that lacks one verb.
test_comparison() {
	cp -r "$chart" "$scratch/broken"
	sed -i '0,/^  - patch$/{/^  - patch$/d}' "$scratch/broken/templates/generated/role.yaml"
	"$binaries/helm-3" template nodewright "$scratch/broken" --namespace nodewright-system "${capabilities[@]}" >"$scratch/broken.yaml"
	"$kubectl" kustomize "$pairs/default" >"$scratch/kustomize.yaml"
	! "$scratch/chart" compare "$scratch/kustomize.yaml" "$scratch/broken.yaml" >"$scratch/found" 2>&1 ||
		die "the comparison does not find a Role that lacks a verb"
	passed "a Role that lacks a verb is found: $(head -n 1 "$scratch/found" | cut -c1-90)…"
}

started=$SECONDS
"$root/hack/chart.sh" --check
passed "config/chart/templates/generated is what kustomize renders"
tool_go chart vet . >&2
tool_go chart build -o "$scratch/chart" .
test_samples
for helm in helm-3 helm-4; do
	test_all_refused "$helm"
	test_namespace "$helm"
	for pair in "$pairs"/*/; do
		test_pair "$helm" "$(basename "$pair")"
	done
done
older=$(build_once "$cache/kustomize" "$(cat "$tools"/kustomize/go.{mod,sum} | checksum)")/kustomize
for pair in "$pairs"/*/; do test_older_kustomize "$older" "$(basename "$pair")"; done
passed "an older kustomize renders the same: $("$older" version)"
test_comparison
for helm in helm-3 helm-4; do
	"$root/hack/test-chart-releases.sh" "$binaries/$helm"
done
passed "the chart, in $((SECONDS - started)) s"
