# shellcheck shell=bash
# Sourced by scripts beside it. Makes container images out of directories, with tar and jq: no docker, no registry.
# Defines: oci_image.

# Makes the archive $1 of an image with the name $2 and one layer, the directory $3. $4 is a JSON object with the fields of
# its configuration, such as {"User": "1"}. containerd imports the archive, and `docker load` loads it.
oci_image() {
	local archive=$1 name=$2 directory=$3 settings=$4 work layer config manifest
	work=$(mktemp -d)
	mkdir -p "$work/blobs/sha256"
	blob() { # moves standard input to the blobs, and prints its digest
		cat >"$work/blob"
		local digest
		digest=$(sha256sum "$work/blob" | cut -d' ' -f1)
		mv "$work/blob" "$work/blobs/sha256/$digest"
		printf '%s' "$digest"
	}
	size() { stat -c %s "$work/blobs/sha256/$1"; }
	layer=$(tar -C "$directory" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c . | blob)
	config=$(jq -n --arg layer "$layer" --arg arch "$(image_architecture)" --argjson settings "$settings" '{
		architecture: $arch, os: "linux", config: $settings,
		rootfs: {type: "layers", diff_ids: ["sha256:" + $layer]}}' | blob)
	manifest=$(jq -n --arg layer "$layer" --arg config "$config" \
		--argjson layer_size "$(size "$layer")" --argjson config_size "$(size "$config")" '{
		schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json",
		config: {mediaType: "application/vnd.oci.image.config.v1+json", digest: "sha256:\($config)", size: $config_size},
		layers: [{mediaType: "application/vnd.oci.image.layer.v1.tar", digest: "sha256:\($layer)", size: $layer_size}]}' | blob)
	printf '{"imageLayoutVersion": "1.0.0"}' >"$work/oci-layout"
	jq -n --arg name "$name" --arg manifest "$manifest" --argjson size "$(size "$manifest")" '{
		schemaVersion: 2, manifests: [{
			mediaType: "application/vnd.oci.image.manifest.v1+json", digest: "sha256:\($manifest)", size: $size,
			annotations: {"io.containerd.image.name": $name, "org.opencontainers.image.ref.name": $name}}]}' >"$work/index.json"
	# Docker before 25 reads this file.
	jq -n --arg name "$name" --arg layer "$layer" --arg config "$config" \
		'[{Config: "blobs/sha256/\($config)", RepoTags: [$name], Layers: ["blobs/sha256/\($layer)"]}]' >"$work/manifest.json"
	tar -C "$work" -cf "$archive" oci-layout index.json manifest.json blobs
	rm -rf "$work"
}

image_architecture() {
	case $(uname -m) in
	x86_64) echo amd64 ;;
	aarch64) echo arm64 ;;
	*) uname -m ;;
	esac
}
