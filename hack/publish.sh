#!/usr/bin/env bash
# Pushes the images and the chart of a release to the registry that its files name, and signs them:
#
#   hack/publish.sh [--sign] [--plain-http] DIRECTORY
#
# DIRECTORY is what hack/release.sh has made. With --sign, cosign signs each image and attaches the SBOMs as attestations, without a key:
# with the identity of the workflow that runs this. Prints a line for each image and for the chart: its name, and its digest in the
# registry, which has to be the one that the release names. Log in before: crane, Helm and cosign read docker's configuration.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"

sign='' helm_flags=()
while [[ ${1:-} = --* ]]; do
	case $1 in
	--sign) sign=1 ;;
	--plain-http) helm_flags+=(--plain-http) ;;
	*) takes_no_arguments "$1" ;;
	esac
	shift
done
[ $# = 1 ] && [ -r "$1/images.txt" ] || die "needs a folder that hack/release.sh has made, see --help"
[ -z "$sign" ] || command -v cosign >/dev/null || die "cosign is missing, which signs"
release=$1
crane=$("$here/crane.sh")
helm=$("$here/chart-tools.sh")/helm-4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Signs the index of images $1 with the digest $2, and each image in it, and attaches their SBOMs, those of program $3.
sign_image() {
	local name=${1%:*} digest=$2 program=$3 arch
	cosign sign --yes --recursive "$name@$digest" >&2
	for arch in amd64 arm64; do
		cosign attest --yes --type cyclonedx --predicate "$release/$program-$arch.cdx.json" \
			"$name@$("$crane" digest --platform "linux/$arch" "$name@$digest")" >&2
	done
}

while read -r reference digest archive; do
	layout=$work/${archive%.tar}
	mkdir "$layout"
	tar -C "$layout" -xf "$release/$archive"
	"$crane" push "$layout" "$reference" >&2
	rm -rf "$layout"
	pushed=$("$crane" digest "$reference")
	[ "$pushed" = "$digest" ] || die "$reference has the digest $pushed in the registry, and $digest in the release"
	[ -z "$sign" ] || sign_image "$reference" "$digest" "${archive%.tar}"
	printf '%s %s\n' "$reference" "$digest"
done <"$release/images.txt"

registry=$(head -n 1 "$release/images.txt" | cut -d' ' -f1)
registry=${registry%/*}/charts
chart=$(find "$release" -name 'nodewright-[0-9]*.tgz')
HELM_REGISTRY_CONFIG=${DOCKER_CONFIG:-$HOME/.docker}/config.json \
	"$helm" push "$chart" "oci://$registry" ${helm_flags[@]+"${helm_flags[@]}"} >&2
chart=${chart##*/nodewright-}
reference=$registry/nodewright:${chart%.tgz}
digest=$("$crane" digest "$reference")
[ -z "$sign" ] || cosign sign --yes "${reference%:*}@$digest" >&2
printf '%s %s\n' "$reference" "$digest"
