#!/usr/bin/env bash
# Tries a release in kind as its user would, with its files alone and no clone: checksums, images, the chart, a class and a deployment
# whose nodes run a Pod, an upgrade, the death of the leader, and an uninstall that leaves nothing. Prints a line for each step with its
# time, and fails at the first step that fails, or at the end if all took more than WITHIN seconds (600).
#
#   hack/test-release.sh [--from DIRECTORY] [DIRECTORY]
#
# DIRECTORY has the files of a release; by default it is what hack/release.sh makes of target/images, if need be after making the images.
# With --from, the release in that directory is installed first, and upgraded to the other. Without it, the upgrade is to the same images
# under another tag.
#
# The node image is KIND_NODE_IMAGE, else kind's, else, without a registry, one that hack/kind-node-image.sh makes. Builds come before the clock starts. KEEP=1 leaves the
# files and the cluster. Needs docker, or what hack/with-docker.sh needs to run one.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-image.sh
. "$here/lib-image.sh"
# shellcheck source-path=SCRIPTDIR source=lib-kind.sh
. "$here/lib-kind.sh"

from='' release=''
arguments=("$@")
while [ $# != 0 ]; do
	case $1 in
	--from) from=$(cd "${2:?}" && pwd) && shift 2 ;;
	-*) takes_no_arguments "$1" ;;
	*) release=$(cd "$1" && pwd) && shift ;;
	esac
done
if [ -z "${NODEWRIGHT_HAS_DOCKER:-}" ]; then
	NODEWRIGHT_HAS_DOCKER=1 exec "$here/with-docker.sh" "$0" "${arguments[@]}"
fi
KIND_NODE_IMAGE=$(kind_node_image)
export KIND_NODE_IMAGE
if [ -n "${DOCKER_NETWORK:-}" ] && [ -z "${NODEWRIGHT_IN_NETWORK:-}" ]; then
	NODEWRIGHT_IN_NETWORK=1 exec nsenter --net="$DOCKER_NETWORK" "$0" "${arguments[@]}"
fi

namespace=nodewright-system
machines=machinedeployments,machinesets,machines,machineclasses
selector=app.kubernetes.io/name=nodewright

# Runs a command until it succeeds, for at most $1 seconds. The command is then run once more for what it prints.
within() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || { "$@" >&2 || true; die "in vain: $*"; }
		sleep 0.5
	done
}

# Not in a condition: there a failure in the middle of a function would not end it.
step() {
	local since=$SECONDS
	current=$1
	shift
	"$@"
	printf 'ok  %4d s  %s\n' $((SECONDS - since)) "$current"
	current=''
}

kube() { kubectl --namespace "$namespace" "$@"; }
version_of() { basename "$1"/nodewright-[0-9]*.tgz .tgz | sed 's/^nodewright-//'; }

check_files() { (cd "$1" && sha256sum --check --quiet SHA256SUMS); }

install_plugin() {
	mkdir "$work/bin"
	tar -xzf "$first/kubectl-nodewright-linux-$(image_architecture).tar.gz" -C "$work/bin"
	[ -x "$work/bin/kubectl-nodewright" ]
}

# Where docker's socket is not the usual one, the file of the release needs its path.
create_cluster() {
	local socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
	[ -z "$(kind get clusters 2>/dev/null | grep -x kind)" ] || die "a cluster named kind exists: delete it first"
	sed -i "s#hostPath: /var/run/docker.sock#hostPath: ${socket#unix://}#" "$first/kind-cluster.yaml"
	kind create cluster --quiet --config "$first/kind-cluster.yaml" --image "$KIND_NODE_IMAGE" --wait 3m
	has_cluster=1
}

load_images() {
	local image
	for image in nodewright nodewright-driver-local; do kind load image-archive "$1/$image.tar"; done
}

helm_install() {
	helm install nodewright "$first/nodewright-$(version_of "$first").tgz" --namespace "$namespace" --create-namespace \
		--values "$first/kind-values.yaml" --wait --timeout 3m >/dev/null
}

# What is applied without Helm: the API server accepts each object, and each image is one of the release.
check_objects() {
	local file image
	for file in "$first"/nodewright-{cluster,aws,azure,kind,plugin}.yaml; do
		kubectl apply --server-side --dry-run=server --force-conflicts --validate=strict --filename "$file" \
			2> >(grep -v '^Warning: ' >&2) >/dev/null
		while read -r image; do
			grep -q "^$image " "$first/images.txt" || die "${file##*/} has the image $image, which is not in the release"
		done < <(sed -n 's/^ *image: //p' "$file")
	done
	! sed 's/^  replicas:/  replica:/' "$first/nodewright-aws.yaml" |
		kubectl apply --server-side --dry-run=server --force-conflicts --validate=strict --filename - >/dev/null 2>&1 ||
		die "a field that there is not is accepted"
}

# The same images under another tag, where there is no other release.
retag() {
	local image
	for image in nodewright nodewright-driver-local; do
		image=$(sed -n "s#^\([^ ]*/$image\):[^ ]* .*#\1#p" "$first/images.txt")
		docker exec kind-control-plane ctr --namespace=k8s.io images tag "$image:$(version_of "$first")" "$image:next" >/dev/null
	done
}

pods() { kube get pods --selector "$selector" --output jsonpath='{.items[*].metadata.name}'; }
# What an upgrade must not touch: machines and nodes, by their UIDs.
fleet() {
	kube get machines --output jsonpath='{.items[*].metadata.uid}' && echo
	kubectl get nodes --selector pool=kind-pool --output jsonpath='{.items[*].metadata.uid}'
}

make_machines() {
	local samples=$work/nodewright-config-$(version_of "$first")/samples/kind
	tar -xzf "$first/nodewright-config-$(version_of "$first").tar.gz" -C "$work"
	sed -i "s#^  image: .*#  image: $(docker inspect --format='{{.Config.Image}}' kind-control-plane)#" "$samples/machine_class.yaml"
	kube apply -k "$samples" >/dev/null
	kubectl nodewright rollout status kind-pool --namespace "$namespace" --timeout=5m >/dev/null
	has_nodes 2
}

# Whether the fleet has $1 nodes, which are ready.
has_nodes() {
	local ready
	ready=$(kubectl get nodes --selector pool=kind-pool --output \
		jsonpath='{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' | grep -c True || true)
	[ "$ready" = "$1" ] || { printf '%s nodes are ready, and not %s\n' "$ready" "$1"; return 1; }
}

# A Pod runs on a node of the fleet.
run_pod() {
	kube create --filename - >/dev/null <<-END
		apiVersion: v1
		kind: Pod
		metadata: {name: on-a-machine}
		spec:
		  nodeSelector: {pool: kind-pool}
		  terminationGracePeriodSeconds: 0
		  containers: [{name: pause, image: $pause}]
	END
	kube wait pod on-a-machine --for=condition=Ready --timeout=2m >/dev/null
	kube delete pod on-a-machine >/dev/null
}

upgrade() {
	local before old values
	before=$(fleet) old=$(pods)
	if [ -n "$from" ]; then
		load_images "$last"
		values=(--values "$last/kind-values.yaml")
	else
		retag
		values=(--set image.tag=next --set driver.image.tag=next)
	fi
	helm upgrade nodewright "$last/nodewright-$(version_of "$last").tgz" --namespace "$namespace" --reset-then-reuse-values \
		"${values[@]}" --wait --timeout 3m >/dev/null
	within 60 only_new_pods "$old"
	within 60 has_leader
	[ "$(fleet)" = "$before" ] || { fleet >&2; die "the upgrade has changed machines or nodes, which were $before"; }
}

# Whether none of the Pods $1 is left, and two are ready.
only_new_pods() {
	local pod
	for pod in $(pods); do [[ " $1 " != *" $pod "* ]] || return; done
	[ "$(kube get deployment nodewright --output jsonpath='{.status.readyReplicas}')" = 2 ]
}

leader() { kube get lease machine-controller --output jsonpath='{.spec.holderIdentity}'; }
# Whether a Pod that exists is the leader, and not $1.
has_leader() {
	local holder pod
	holder=$(leader)
	for pod in $(pods); do
		[[ $holder != "$pod"* || $pod = "${1:-}" ]] || return 0
	done
	printf 'the leader is %s; Pods: %s\n' "$holder" "$(pods)"
	return 1
}

# The leader dies without notice; the other one scales the fleet.
fail_over() {
	local holder pod dead=
	holder=$(leader)
	for pod in $(pods); do [[ $holder != "$pod"* ]] || dead=$pod; done
	[ -n "$dead" ] || die "no Pod is the leader $holder"
	kube delete pod "$dead" --force --grace-period=0 >/dev/null 2>&1
	kube scale machinedeployment kind-pool --replicas=3 >/dev/null
	within 60 has_leader "$dead"
	kubectl nodewright rollout status kind-pool --namespace "$namespace" --timeout=5m >/dev/null
	within 60 has_nodes 3
}

# As docs/tasks/uninstall.md and the README of the release have it.
uninstall() {
	! nothing_is_left 2>/dev/null || die "an installation is not noticed"
	kube delete "$machines" --all --timeout=4m >/dev/null
	within 60 nothing_is_in_use
	helm uninstall nodewright --namespace "$namespace" --wait >/dev/null
	kubectl delete namespace "$namespace" --timeout=2m >/dev/null
	local config=$work/nodewright-config-$(version_of "$first")
	kubectl delete -k "$config/crd" >/dev/null
	kubectl patch -k "$config/guard" --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null
	kubectl delete -k "$config/guard" >/dev/null
	nothing_is_left
}

nothing_is_in_use() { [ -z "$(kubectl get namespaces --selector nodewright.dev/in-use --output name)" ]; }

# No object of any kind has our name or group, no Node is the fleet's, and docker has no container of a machine.
nothing_is_left() {
	local kinds all left
	kinds=$(kubectl api-resources --verbs=list --output=name | grep -v '^events' | paste -sd,)
	# Of its own, so that a failure is no empty list.
	all=$(kubectl get "$kinds" --all-namespaces --output=name) || return
	left=$(grep -E 'nodewright|machine\.sapcloud\.io|kind-pool' <<<"$all" || true)
	left+=$(docker ps --all --quiet --filter label=nodewright.dev/cluster)
	[ -z "$left" ] || { printf 'left:\n%s\n' "$left" >&2; return 1; }
}

# What was there, for a failure; and nothing stays.
end() {
	local status=$?
	[ -z "$current" ] || printf 'FAILED: %s\n' "$current" >&2
	if [ $status != 0 ] && [ -n "$has_cluster" ]; then
		kubectl get nodes,pods --all-namespaces --output wide >&2 || true
		kube get "$machines" >&2 || true
		kube logs --selector "$selector" --prefix --all-containers --tail=15 >&2 || true
	fi
	if [ -n "${KEEP:-}" ]; then
		say "the files are in $work, KUBECONFIG=$KUBECONFIG"
		return
	fi
	if [ -n "$has_cluster" ]; then
		kind delete cluster --quiet || true
		docker ps --all --quiet --filter label=nodewright.dev/cluster=kind | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
	fi
	rm -rf "$work"
}

images=${CARGO_TARGET_DIR:-$here/../target}/images
if [ -z "$release" ] && [ -e "$images/images.txt" ]; then release=$("$here/release.sh" --images "$images"); fi
[ -n "$release" ] || release=$("$here/release.sh")
helm=$("$here/chart-tools.sh")/helm-4
tools_of_users=$(mktemp -d)
ln -s "$("$here/kind.sh")" "$tools_of_users/kind"
ln -s "$helm" "$tools_of_users/helm"
ln -s "$("$here/control-plane.sh")/kubectl" "$tools_of_users/kubectl"

# From here on there is no clone.
work=$(mktemp -d) has_cluster='' current=''
trap end EXIT
mv "$tools_of_users" "$work/tools"
cp -R "$release" "$work/last"
last=$work/last first=$work/last
if [ -n "$from" ]; then cp -R "$from" "$work/first" && first=$work/first; fi
export PATH=$work/bin:$work/tools:$PATH KUBECONFIG=$work/kubeconfig HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm \
	HELM_DATA_HOME=$work/helm
cd "$work"
started=$SECONDS

step "the checksums of the files" check_files "$last"
step "the plugin of kubectl" install_plugin
step "a cluster of kind" create_cluster
step "the images of $(version_of "$first")" load_images "$first"
pause=$(docker exec kind-control-plane ctr --namespace=k8s.io images list --quiet | awk '/\/pause:/ && !found++')
step "the chart: two Pods are ready" helm_install
step "what is applied without Helm: valid, with images of the release" check_objects
step "a class and a deployment: two nodes are ready" make_machines
step "a Pod runs on one of them" run_pod
step "an upgrade${from:+ to $(version_of "$last")}: other Pods, the same machines and nodes" upgrade
step "the leader is killed: the other one makes a third node" fail_over
step "an uninstall that leaves nothing" uninstall
took=$((SECONDS - started))
printf 'ok  %4d s  in all\n' "$took"
((took <= ${WITHIN:-600})) || die "this took more than ${WITHIN:-600} s: WITHIN=SECONDS is for a slow computer"
