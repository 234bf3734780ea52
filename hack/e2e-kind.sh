#!/usr/bin/env bash
# Builds what nodewright-kind needs, and runs it: Nodewright in a kind cluster, checked. Then the end-to-end scenarios run on that
# cluster. See docs/tasks/kind.md.
#
# The cluster is that of KUBECONFIG if it is set, else a new one. Its node image is KIND_NODE_IMAGE, else the one of the kind
# release that hack/tools/kind pins, else, where no registry is in reach, one that hack/kind-node-image.sh makes.
# IMAGES is a folder with the images of a release, as hack/images.sh makes them; without it, hack/image.sh makes images for this computer.
# Arguments are those of nodewright-kind.
#
# Without docker it fails, or with SKIP_WITHOUT_DOCKER=1 is skipped. What is missing is named before anything is compiled.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-kind.sh
. "$here/lib-kind.sh"
cd "$here/.."
images=()
if [ -n "${IMAGES:-}" ]; then
	images=("$IMAGES/nodewright.tar" "$IMAGES/nodewright-driver-local.tar")
	for image in "${images[@]}"; do [ -r "$image" ] || die "IMAGES=$IMAGES has no image ${image##*/}: make images makes it"; done
fi

if [ -z "${NODEWRIGHT_HAS_DOCKER:-}" ]; then
	NODEWRIGHT_HAS_DOCKER=1 "$here/with-docker.sh" "$0" "$@" && exit
	status=$?
	[ $status = 75 ] || exit $status
	[ -z "${SKIP_WITHOUT_DOCKER:-}" ] || { printf 'skipped e2e-kind: see above\n' >&2; exit 0; }
	die "needs docker: see above; SKIP_WITHOUT_DOCKER=1 skips this"
fi

kind=$("$here/kind.sh")
node_image=()
if [ -z "${KUBECONFIG:-}" ]; then
	image=$(kind_node_image)
	node_image=(--node-image "$image")
fi
# Behind the user's own kubectl.
PATH=$PATH:$("$here/control-plane.sh")
if [ ${#images[@]} = 0 ]; then
	images=("$("$here/image.sh")" "$("$here/image.sh" --driver-local)")
fi
arguments=(--kind "$kind" --image "${images[0]}" --image "${images[1]}" "${node_image[@]}")
cargo build --locked --workspace --all-targets
exec ${DOCKER_NETWORK:+nsenter --net="$DOCKER_NETWORK"} "${CARGO_TARGET_DIR:-target}/debug/nodewright-kind" "${arguments[@]}" "$@" \
	-- cargo test --locked --workspace --test scenarios
