# shellcheck shell=bash
# Sourced by scripts that make kind clusters, after lib-go.sh.
# Defines: kind_node_image.

# Prints the node image of a new cluster: KIND_NODE_IMAGE, else the one of the kind release that hack/tools/kind pins, else, where no
# registry is in reach, one that hack/kind-node-image.sh makes.
kind_node_image() {
	local image=${KIND_NODE_IMAGE:-}
	if [ -z "$image" ]; then
		find_go
		image=$(sed -n 's/^const Image = "\(.*\)"/\1/p' \
			"$(module_directory kind sigs.k8s.io/kind)/pkg/apis/config/defaults/image.go")
		if ! docker image inspect "$image" >/dev/null 2>&1 && ! docker pull --quiet "$image" >/dev/null 2>&1; then
			say "$image cannot be pulled"
			image=$("$tools/../kind-node-image.sh")
		fi
	fi
	printf '%s\n' "$image"
}
