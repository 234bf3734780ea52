#!/usr/bin/env bash
# Tests hack/publish.sh without signatures: pushes the release DIRECTORY, which hack/release.sh has made, to a registry on this computer.
# Its images have the digests there that the release names, for both architectures; a release that names another digest is refused.
#
#   hack/test-publish.sh DIRECTORY
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"

[ $# = 1 ] && [ -r "$1/images.txt" ] || die "needs a folder that hack/release.sh has made"
crane=$("$here/crane.sh")
"$here/chart-tools.sh" >/dev/null
work=$(mktemp -d)
"$crane" registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
server=$!
end() { kill "$server" && rm -rf "$work"; }
trap end EXIT

# Prints the registry, once it serves: crane names the port that it has taken.
address() {
	local found= tries
	for ((tries = 0; tries < 100; tries++)); do
		found=$(sed -n 's/.*serving on port \([0-9]*\).*/localhost:\1/p' "$work/registry")
		[ -z "$found" ] || break
		sleep 0.1
	done
	[ -n "$found" ] || die "the registry does not start: $(cat "$work/registry")"
	printf '%s\n' "$found"
}

publish() { "$here/publish.sh" --plain-http "$work/release" 2>"$work/log" || { cat "$work/log" >&2; return 1; }; }

registry=$(address)
cp -R "$1" "$work/release"
sed -i "s#^[^/]*/#$registry/#" "$work/release/images.txt"
published=$(publish)
while read -r image digest _; do
	[ "$("$crane" digest "$image")" = "$digest" ] || die "$image has another digest in the registry than $digest"
	for arch in amd64 arm64; do
		config=$("$crane" config --platform "linux/$arch" "$image")
		grep -q "\"architecture\": *\"$arch\"" <<<"$config" || die "$image is not for $arch"
	done
done <"$work/release/images.txt"
grep -q '/charts/nodewright:' <<<"$published" || die "no chart was pushed: $published"
sed -i '1s/sha256:[0-9a-f]\{8\}/sha256:00000000/' "$work/release/images.txt"
! publish >/dev/null 2>&1 || die "a release that names another digest is pushed"
say "$(wc -l <"$work/release/images.txt") images and the chart are pushed as the release names them"
