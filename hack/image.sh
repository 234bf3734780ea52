#!/usr/bin/env bash
# Makes the container image of Nodewright, or with --driver-NAME that of the driver NAME, without docker and without a registry:
# the binary with cargo, the rest as the Dockerfile says. Writes an archive into the target directory, and prints its path. Needs
# cargo, jq and a static glibc (on Debian part of libc6-dev).
#
#   kind load image-archive "$(hack/image.sh)"
#   docker load --input "$(hack/image.sh)"
#
# The image has the name and tag of config/default, the driver's its own name beside that, or those of the last argument.
# NODEWRIGHT_BINARY is a static binary to use instead of building one. The driver's image has the root certificates of this computer.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-image.sh
. "$here/lib-image.sh"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

program=nodewright
dockerfile=Dockerfile
case ${1:-} in
--driver-*)
	program=nodewright-${1#--}
	dockerfile=controllers/driver/Dockerfile
	shift
	;;
-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac

command -v jq >/dev/null || die "jq is missing"
cd "$here/.."
target=$(uname -m)-unknown-linux-gnu
binary=${NODEWRIGHT_BINARY:-}
if [ -z "$binary" ]; then
	say "building $program"
	cargo build --release --locked --package "$program" --target "$target" \
		--config 'build.rustflags = ["-C", "target-feature=+crt-static"]' >&2
	binary=${CARGO_TARGET_DIR:-target}/$target/release/$program
fi

# The name and tag that config/default gives the image.
configured() { sed -n "s/^  $1: //p" config/default/kustomization.yaml; }

name=$(configured newName)
image=${1:-${name%/*}/$program:$(configured newTag)}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
image_root "$directory" "$dockerfile" "$binary"
archive=${CARGO_TARGET_DIR:-target}/$program-image.tar
oci_image "$archive" "$image" "$directory" "$(image_settings "$dockerfile")"
printf '%s\n' "$archive"
