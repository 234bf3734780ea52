#!/usr/bin/env bash
# Builds what nodewright-kind needs, and runs it: Nodewright in a kind cluster, checked. Then the end-to-end scenarios run on that
# cluster. See docs/tasks/kind.md.
#
# The cluster is that of KUBECONFIG if it is set, else a new one. Its node image is KIND_NODE_IMAGE, else the one of the kind
# release that hack/tools/kind pins, else, where no registry is in reach, one that hack/kind-node-image.sh makes.
# Arguments are those of nodewright-kind.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
cd "$here/.."

# Without docker this is skipped, by name.
if [ -z "${NODEWRIGHT_HAS_DOCKER:-}" ]; then
	NODEWRIGHT_HAS_DOCKER=1 "$here/with-docker.sh" "$0" "$@" && exit
	status=$?
	[ $status != 75 ] || { printf 'skipped e2e-kind: see above\n' >&2; exit 0; }
	exit $status
fi

kind=$("$here/kind.sh")
arguments=(--kind "$kind" --image "$("$here/image.sh")" --image "$("$here/image.sh" --driver-local)")
if [ -z "${KUBECONFIG:-}" ]; then
	image=${KIND_NODE_IMAGE:-}
	if [ -z "$image" ]; then
		find_go
		image=$(sed -n 's/^const Image = "\(.*\)"/\1/p' \
			"$(tool_go kind list -m -f '{{.Dir}}' sigs.k8s.io/kind)/pkg/apis/config/defaults/image.go")
		if ! docker image inspect "$image" >/dev/null 2>&1 && ! docker pull --quiet "$image" >/dev/null 2>&1; then
			say "$image cannot be pulled"
			image=$("$here/kind-node-image.sh")
		fi
	fi
	arguments+=(--node-image "$image")
fi
cargo build --locked --workspace --all-targets
exec ${DOCKER_NETWORK:+nsenter --net="$DOCKER_NETWORK"} "${CARGO_TARGET_DIR:-target}/debug/nodewright-kind" "${arguments[@]}" "$@" \
	-- cargo test --locked --workspace --test scenarios
