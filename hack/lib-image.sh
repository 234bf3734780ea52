# shellcheck shell=bash
# Sourced by scripts beside it. Makes container images out of directories, with tar, gzip and jq: no docker, no registry. The same
# bytes for the same directories.
# Defines: oci_image, oci_layout, oci_manifest, oci_index, oci_archive, image_architecture, image_settings, image_root.

oci_types=application/vnd.oci.image

# Begins the layout of images in directory $1.
oci_layout() {
	mkdir -p "$1/blobs/sha256"
	printf '{"imageLayoutVersion": "1.0.0"}' >"$1/oci-layout"
}

# Moves standard input to the blobs of layout $1, and prints its digest.
oci_blob() {
	local digest
	cat >"$1/blob"
	digest=$(sha256sum "$1/blob" | cut -d' ' -f1)
	mv "$1/blob" "$1/blobs/sha256/$digest"
	printf 'sha256:%s' "$digest"
}

# Prints the descriptor of the blob of layout $1 with the type $2 and the digest $3.
oci_descriptor() {
	jq -nc --arg type "$oci_types.$2" --arg digest "$3" --argjson size "$(stat -c %s "$1/blobs/sha256/${3#sha256:}")" \
		'{mediaType: $type, digest: $digest, size: $size}'
}

# Adds an image for architecture $2 to layout $1, and prints its descriptor. It has one layer, the directory $3, and was made at $5,
# in seconds since 1970. $4 is a JSON object with fields of its configuration, such as {"User": "1"}; $6 is `gzip` or nothing.
oci_manifest() {
	local layout=$1 arch=$2 directory=$3 settings=$4 epoch=$5 compress=${6:-} content layer config manifest type=layer.v1.tar
	content=$(mktemp "$layout/.layer.XXXXXX")
	tar -C "$directory" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf "$content" .
	config=$(jq -n --arg layer "sha256:$(sha256sum "$content" | cut -d' ' -f1)" --arg arch "$arch" --argjson settings "$settings" \
		--argjson epoch "$epoch" '{
		created: ($epoch | todate), architecture: $arch, os: "linux", config: $settings,
		rootfs: {type: "layers", diff_ids: [$layer]}, history: [{created: ($epoch | todate)}]}' | oci_blob "$layout")
	if [ "$compress" = gzip ]; then
		type+=+gzip
		layer=$(gzip -9 --no-name <"$content" | oci_blob "$layout")
	else
		layer=$(oci_blob "$layout" <"$content")
	fi
	rm "$content"
	manifest=$(jq -n --arg type "$oci_types.manifest.v1+json" \
		--argjson config "$(oci_descriptor "$layout" config.v1+json "$config")" \
		--argjson layer "$(oci_descriptor "$layout" "$type" "$layer")" \
		'{schemaVersion: 2, mediaType: $type, config: $config, layers: [$layer]}' | oci_blob "$layout")
	oci_descriptor "$layout" manifest.v1+json "$manifest" |
		jq -c --arg arch "$arch" '. + {platform: {architecture: $arch, os: "linux"}}'
}

# Adds an index of the images with the descriptors $3… to layout $1, with the annotations in the JSON object $2, and prints its
# descriptor.
oci_index() {
	local layout=$1 annotations=$2 index
	shift 2
	index=$(printf '%s\n' "$@" | jq -s --arg type "$oci_types.index.v1+json" --argjson annotations "$annotations" \
		'{schemaVersion: 2, mediaType: $type, manifests: ., annotations: $annotations}' | oci_blob "$layout")
	oci_descriptor "$layout" index.v1+json "$index"
}

# Packs layout $1 into the archive $2: the image, or index of images, with the name $3 and the descriptor $4. Further arguments are
# files of the layout that belong to the archive, too.
oci_archive() {
	local layout=$1 archive=$2 name=$3 descriptor=$4
	shift 4
	jq -n --arg name "$name" --argjson descriptor "$descriptor" '{
		schemaVersion: 2, manifests: [$descriptor + {
			annotations: {"io.containerd.image.name": $name, "org.opencontainers.image.ref.name": $name}}]}' >"$layout/index.json"
	chmod -R u=rwX,go=rX "$layout"
	tar -C "$layout" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$archive" \
		oci-layout index.json blobs "$@"
}

# Makes the archive $1 of an image for this computer with the name $2 and one layer, the directory $3. $4 is a JSON object with the
# fields of its configuration, such as {"User": "1"}. containerd imports the archive, and `docker load` loads it.
oci_image() {
	local archive=$1 name=$2 directory=$3 settings=$4 work descriptor
	work=$(mktemp -d)
	oci_layout "$work"
	descriptor=$(oci_manifest "$work" "$(image_architecture)" "$directory" "$settings" 0)
	# Docker before 25 reads this file.
	jq --arg name "$name" '[{Config: ("blobs/" + (.config.digest | sub(":"; "/"))), RepoTags: [$name],
		Layers: [.layers[].digest | "blobs/" + sub(":"; "/")]}]' \
		"$work/blobs/sha256/$(jq -r '.digest | ltrimstr("sha256:")' <<<"$descriptor")" >"$work/manifest.json"
	oci_archive "$work" "$archive" "$name" "$descriptor" manifest.json
	rm -rf "$work"
}

# This computer's architecture, as images call it.
image_architecture() {
	case $(uname -m) in
	x86_64) echo amd64 ;;
	aarch64) echo arm64 ;;
	*) uname -m ;;
	esac
}

# Prints instruction $2 of the last stage of the Dockerfile $1.
image_instruction() { sed -n "/^FROM scratch/,\$s/^$2 //p" "$1"; }

# Prints the configuration of the image that the Dockerfile $1 makes, as oci_manifest takes it.
image_settings() {
	jq -nc --arg user "$(image_instruction "$1" USER)" --arg environment "$(image_instruction "$1" ENV)" \
		--argjson entrypoint "$(image_instruction "$1" ENTRYPOINT)" \
		'{User: $user, Entrypoint: $entrypoint} + if $environment == "" then {} else {Env: [$environment]} end'
}

# Fills directory $1 with what the Dockerfile $2 copies into its image: the program $3, and this computer's root certificates if the
# Dockerfile names them.
image_root() {
	local root=$1 dockerfile=$2 program=$3 certificates=/etc/ssl/certs/ca-certificates.crt
	install -m 755 "$program" "$root$(image_instruction "$dockerfile" ENTRYPOINT | jq -r '.[0]')"
	if grep -q "^COPY .* $certificates\$" "$dockerfile"; then
		[ -r "$certificates" ] || { printf '%s is missing: install ca-certificates\n' "$certificates" >&2; return 1; }
		install -D -m 644 "$certificates" "$root$certificates"
	fi
	# Everybody may read it, and the user of the image is nobody's owner.
	chmod -R u=rwX,go=rX "$root"
}
