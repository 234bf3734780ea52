#!/usr/bin/env bash
# Makes the images of a release, without docker and without a registry: of the manager, of the drivers that users run, and of the plugin
# of kubectl, each for amd64 and arm64, static, with no root and no shell. The same sources give the same digests, in whichever directory
# they are (docs/decisions/0040-release-builds.md).
#
#   hack/images.sh [--into DIRECTORY] [--arch ARCH]… [PROGRAM…]
#
# Writes into DIRECTORY, by default the folder images of the target directory:
#   PROGRAM.tar             an archive with an OCI layout: an index of both architectures. For skopeo, crane, podman, ctr and kind
#   PROGRAM-ARCH.cdx.json   what is in the image, in CycloneDX's JSON
#   bin/ARCH/PROGRAM        the programs
#   images.txt              a line for each image: its name and tag, the digest of its index, its archive
#
# PROGRAMs are nodewright, nodewright-driver-aws, nodewright-driver-azure, nodewright-driver-local (for kind) and kubectl-nodewright;
# by default all. The simulated driver has no image: its cloud, nodewright-cloud, runs from a clone alone. The version is that of
# Cargo.toml. NODEWRIGHT_REGISTRY is where the images will be, by default that of config/default; SOURCE_REPOSITORY is the address of the
# sources, for a label; SOURCE_DATE_EPOCH and SOURCE_REVISION are the time and id of the commit, where there is no clone.
#
# Needs Rust, jq, ca-certificates, and for the other architecture Debian's cross compiler and libc6-dev, which it names when they are
# missing. All that is built takes an hour to an hour and a half on two cores.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-image.sh
. "$here/lib-image.sh"
# shellcheck source-path=SCRIPTDIR source=lib-build.sh
. "$here/lib-build.sh"
# shellcheck source-path=SCRIPTDIR source=lib-sbom.sh
. "$here/lib-sbom.sh"

repository=$(cd "$here/.." && pwd)
into=${CARGO_TARGET_DIR:-$repository/target}/images
architectures=() programs=()
while [ $# != 0 ]; do
	case $1 in
	--into) into=${2:?} && shift 2 ;;
	--arch) architectures+=("${2:?}") && shift 2 ;;
	nodewright | nodewright-driver-aws | nodewright-driver-azure | nodewright-driver-local | kubectl-nodewright) programs+=("$1") && shift ;;
	*) takes_no_arguments "$1" ;;
	esac
done
[ ${#architectures[@]} != 0 ] || architectures=(amd64 arm64)
[ ${#programs[@]} != 0 ] ||
	programs=(nodewright nodewright-driver-aws nodewright-driver-azure nodewright-driver-local kubectl-nodewright)

dockerfile_of() {
	case $1 in
	nodewright) echo Dockerfile ;;
	kubectl-nodewright) echo controllers/plugin/Dockerfile ;;
	*) echo controllers/driver/Dockerfile ;;
	esac
}
language_of() { if [ "$1" = nodewright-driver-azure ]; then echo go; else echo rust; fi; }

# Builds program $1 for architecture $2, and prints its path.
build_program() {
	local built
	if [ "$(language_of "$1")" = go ]; then
		mkdir -p "$into/bin/$2"
		"$here/gardener.sh" "$into/bin/$2" "$2" >&2
	else
		built=$(build_rust "$2" "$1")
		install -D -m 755 "$built" "$into/bin/$2/$1"
	fi
	printf '%s\n' "$into/bin/$2/$1"
}

# What describes the image of program $1, as labels and annotations.
annotations() {
	jq -nc --arg title "$1" --arg version "$version" --arg revision "$(source_revision)" --arg source "${SOURCE_REPOSITORY:-}" \
		--argjson epoch "$epoch" '{
		title: $title, version: $version, revision: $revision, source: $source, licenses: "Apache-2.0", created: ($epoch | todate)
	} | with_entries(select(.value != "") | .key = "org.opencontainers.image." + .key)'
}

# Makes the image of program $1 and what belongs to it.
make_image() {
	local program=$1 image=$registry/$1 dockerfile layout root arch built settings index descriptors=()
	dockerfile=$repository/$(dockerfile_of "$program")
	settings=$(jq -c --argjson labels "$(annotations "$program")" '. + {Labels: $labels}' <<<"$(image_settings "$dockerfile")")
	layout=$(mktemp -d "$work/layout.XXXXXX")
	oci_layout "$layout"
	for arch in "${architectures[@]}"; do
		say "making $program for $arch"
		built=$(build_program "$program" "$arch")
		root=$(mktemp -d "$work/root.XXXXXX")
		image_root "$root" "$dockerfile" "$built"
		image_sbom "$image" "$version" "$arch" "$built" "$(language_of "$program")" "$root" >"$work/sbom"
		install -m 644 "$work/sbom" "$into/$program-$arch.cdx.json"
		descriptors+=("$(oci_manifest "$layout" "$arch" "$root" "$settings" "$epoch" gzip)")
	done
	index=$(oci_index "$layout" "$(annotations "$program")" "${descriptors[@]}")
	oci_archive "$layout" "$into/$program.tar" "$image:$version" "$index"
	rm -rf "$layout"
	printf '%s:%s %s %s.tar\n' "$image" "$version" "$(jq -r .digest <<<"$index")" "$program" | tee -a "$work/images.txt"
}

check_builders "${architectures[@]}"
cd "$repository"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
registry=${NODEWRIGHT_REGISTRY:-$(sed -n 's#^  newName: \(.*\)/[^/]*#\1#p' config/default/kustomization.yaml)}
# Names in registries have no capitals.
registry=${registry,,}
epoch=$(source_date_epoch)
mkdir -p "$into"
into=$(cd "$into" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in "${programs[@]}"; do make_image "$program"; done
install -m 644 "$work/images.txt" "$into/images.txt"
