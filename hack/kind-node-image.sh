#!/usr/bin/env bash
# Makes a node image for kind out of Debian packages and Go modules, for where no registry of images is in reach, loads it
# into docker, and prints its name. The Kubernetes release is that of the local control plane (hack/tools/kubernetes).
#
#   kind create cluster --image "$(hack/kind-node-image.sh)"
#
# It follows images/base/Dockerfile and `kind build node-image` of the kind release that hack/tools/kind pins. containerd, runc
# and the CNI plugins are Debian's. What is in no Go module is replaced: kindnetd by hack/kind/pod-network, the storage
# provisioner by none. Besides, nodes do not change settings of the computer (hack/kind/node), and run without
# CAP_SYS_RESOURCE.
#
# Needs root, docker, debootstrap, gcc, busybox-static and jq. Parts are kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/kind-node: packages (500 MB, 2 minutes) and binaries (6
# minutes on two cores). The node image has 1 GB and is made in half a minute.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-image.sh
. "$here/lib-image.sh"

case ${1:-} in
'') ;;
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
*) die "unknown argument $1, see --help" ;;
esac

# Increase this when the build changes, so that older parts are not used.
recipe=1
root=$cache/kind-node
suite=bookworm
packages=systemd,systemd-sysv,dbus,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,pigz
packages+=,e2fsprogs,ca-certificates,curl,jq,procps,hostname,containerd,runc,containernetworking-plugins
reg=registry.k8s.io

needs() {
	[ "$(id -u)" = 0 ] || die "must be root, to unpack packages with their owners"
	local program
	for program in docker debootstrap gcc busybox jq; do
		command -v "$program" >/dev/null || die "$program is missing: install it (Debian: apt-get install --no-install-recommends \
docker.io debootstrap gcc libc6-dev busybox-static jq)"
	done
	docker info >/dev/null 2>&1 || die "docker does not answer: start it, or set DOCKER_HOST"
}

# What parts depend on.
pins() {
	cat "$tools"/{kubernetes,kind,coredns}/go.{mod,sum}
	printf '%s %s\n' "$recipe" "$(uname -sm)"
}

unpack_packages() {
	say "unpacking packages of Debian $suite"
	debootstrap --variant=minbase --include="$packages" "$suite" "$1/rootfs" >&2 ||
		die "debootstrap failed: see above, and $1/rootfs/debootstrap/debootstrap.log"
	rm -rf "$1"/rootfs/var/{cache/apt,lib/apt/lists}/* "$1"/rootfs/usr/share/{doc,man,locale} "$1"/rootfs/{dev,proc,sys}/*
}

# go_build MODULE LINKER_FLAGS PACKAGE...
go_build() {
	local module=$1 flags=$2
	shift 2
	say "building $*"
	tool_go "$module" build -trimpath -ldflags "-s -w $flags" -o "$into/" "$@" >&2
}

build_binaries() {
	local into=$1 source
	go_build kubernetes "$(kubernetes_flags)" k8s.io/kubernetes/cmd/{kubelet,kubeadm,kube-proxy} || return 1
	go_build coredns '' github.com/coredns/coredns || return 1
	source=$(module_directory kubernetes k8s.io/kubernetes)/build/pause/linux/pause.c
	gcc -Os -Wall -static -DVERSION=3.10 -o "$into/pause" "$source"
}

# image NAME ENTRYPOINT FILE...: an image of some files, for the node's containerd. Files are SOURCE:TARGET.
image() {
	local name=$1 entrypoint=$2 file target directory
	shift 2
	directory=$(mktemp -d)
	mkdir -p "$directory/tmp"
	chmod 1777 "$directory/tmp"
	for file; do
		target=${file##*:}
		mkdir -p "$directory${target%/*}"
		cp -aL "${file%%:*}" "$directory$target"
	done
	oci_image "$images/$(tr /: -- <<<"$name").tar" "$name" "$directory" "$(settings "$entrypoint")"
	rm -rf "$directory"
}

settings() {
	jq -n --arg entrypoint "$1" '{Entrypoint: ($entrypoint | split(" ")), Env: [
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}'
}

# A root directory with busybox.
busybox_root() {
	local applet
	mkdir -p "$1"/{bin,tmp,etc,proc,sys,dev,run}
	cp "$(command -v busybox)" "$1/bin/busybox"
	for applet in $("$1/bin/busybox" --list); do
		[ "$applet" = busybox ] || ln -sf busybox "$1/bin/$applet"
	done
}

# kube-proxy calls nft, iptables and conntrack, so it gets them with their libraries.
kube_proxy_image() {
	local directory file library
	directory=$(mktemp -d)
	busybox_root "$directory"
	mkdir -p "$directory"/usr/{sbin,local/bin} "$directory/lib64"
	cp "$binaries/kube-proxy" "$directory/usr/local/bin/"
	for file in /usr/sbin/nft /usr/sbin/xtables-nft-multi /usr/sbin/conntrack; do
		for library in "$file" $(chroot "$rootfs" ldd "$file" | grep -o '/[^ ]*'); do
			mkdir -p "$directory${library%/*}"
			cp -L "$rootfs$library" "$directory$library"
		done
	done
	for library in "$rootfs"/usr/lib/*/xtables; do
		mkdir -p "$directory${library#"$rootfs"}"
		cp -L "$library"/* "$directory${library#"$rootfs"}/"
	done
	for file in iptables ip6tables iptables-save ip6tables-save iptables-restore ip6tables-restore; do
		ln -sf xtables-nft-multi "$directory/usr/sbin/$file"
	done
	oci_image "$images/kube-proxy.tar" "$reg/kube-proxy:$version" "$directory" "$(settings /usr/local/bin/kube-proxy)"
	rm -rf "$directory"
}

pod_network_image() {
	local directory applet
	directory=$(mktemp -d)
	busybox_root "$directory"
	for applet in ip sort mv; do ln -sf busybox "$directory/bin/$applet"; done
	cp "$control_plane/kubectl" "$here/kind/pod-network/pod-network.sh" "$directory/bin/"
	oci_image "$images/kindnetd.tar" docker.io/kindest/kindnetd:nodewright "$directory" "$(settings /bin/pod-network.sh)"
	rm -rf "$directory"
}

# The images that kubeadm asks for, by the names that it knows.
control_plane_images() {
	local name
	"$binaries/kubeadm" config images list --kubernetes-version="$version" | while read -r name; do
		case $name in
		*/pause:*) image "$name" /pause "$binaries/pause:/pause" ;;
		*/coredns:*) image "$name" /coredns "$binaries/coredns:/coredns" ;;
		*/etcd:*) image "$name" /usr/local/bin/etcd "$control_plane/etcd:/usr/local/bin/etcd" ;;
		*/kube-proxy:*) kube_proxy_image ;;
		*)
			local component=${name##*/}
			component=${component%:*}
			image "$name" "/usr/local/bin/$component" "$control_plane/$component:/usr/local/bin/$component"
			;;
		esac
	done
	# containerd's own configuration in the image of kind names it.
	image "$reg/pause:3.10" /pause "$binaries/pause:/pause"
	pod_network_image
}

# images/base/Dockerfile of kind, in directory $1.
base() {
	local node=$1 kind
	kind=$(module_directory kind sigs.k8s.io/kind)/images/base/files
	cp -r --no-preserve=mode "$kind"/{etc,kind,usr} "$node/"
	chmod 755 "$node"/usr/local/bin/* "$node"/kind "$node"/kind/bin "$node"/kind/bin/*
	find "$node/lib/systemd/system/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
	rm -f "$node"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* "$node"/etc/systemd/system/*.wants/* \
		"$node"/lib/systemd/system/sockets.target.wants/*{udev,initctl}*
	# They would set kernel.* of the computer. kind's own, in /etc/sysctl.d, are all of the network namespace.
	rm -f "$node"/usr/lib/sysctl.d/*
	echo ReadKMsg=no >>"$node/etc/systemd/journald.conf"
	ln -sf /usr/lib/systemd/systemd "$node/sbin/init"
	mkdir -p "$node"/etc/{kubernetes/manifests,systemd/system/multi-user.target.wants} "$node"/opt/cni/bin
	local unit
	for unit in kubelet containerd undo-mount-hacks; do
		ln -sf "../$unit.service" "$node/etc/systemd/system/multi-user.target.wants/$unit.service"
	done
	ln -sf /dev/null "$node/etc/systemd/system/systemd-binfmt.service"
	# kind's paths of what Debian has elsewhere.
	ln -sf /usr/bin/{containerd,containerd-shim-runc-v2,ctr} "$node/usr/local/bin/"
	ln -sf /usr/lib/cni/{ptp,host-local,loopback,portmap} "$node/opt/cni/bin/"
	chroot "$node" ctr oci spec | jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] |
		del(.process.rlimits)' >"$node/etc/containerd/cri-base.json"
	# Without CAP_SYS_RESOURCE the kernel refuses what kubelets ask for.
	sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$node/etc/containerd/config.toml"
}

# Fills a directory with the file system of a node.
make_node() {
	local node=$1 images=$1/kind/images
	find_go
	cp -a "$rootfs/." "$node"
	base "$node"
	cp -r "$here/kind/node/." "$node/"
	cp "$binaries"/{kubelet,kubeadm} "$control_plane/kubectl" "$node/usr/bin/"
	echo "$version" >"$node/kind/version"
	mkdir -p "$images"
	control_plane_images
}

needs
version=$(sed -n 's|^\tk8s.io/kubernetes \(v[^ ]*\).*|\1|p' "$tools/kubernetes/go.mod")
name=nodewright.dev/kind-node:$version-$({
	pins
	cat "${BASH_SOURCE[0]}" "$here/lib-image.sh"
	find "$here"/kind/{node,pod-network} -type f -exec cat {} +
} | checksum)
if ! docker image inspect "$name" >/dev/null 2>&1; then
	control_plane=$("$here/control-plane.sh")
	build() { unpack_packages "$1"; }
	rootfs=$(build_once "$root/packages" "$(echo "$recipe $suite $packages" | checksum)")/rootfs
	build() { build_binaries "$1"; }
	binaries=$(build_once "$root/binaries" "$(pins | checksum)")
	staging=$(mktemp -d "$root/.image.XXXXXX")
	trap 'rm -rf "$staging"' EXIT
	say "making $name"
	mkdir "$staging/node"
	make_node "$staging/node"
	oci_image "$staging/image.tar" "$name" "$staging/node" '{
		"Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"], "Env": ["container=docker"], "StopSignal": "SIGRTMIN+3"}'
	docker load --quiet --input "$staging/image.tar" >&2
fi
printf '%s\n' "$name"
