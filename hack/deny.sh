#!/usr/bin/env bash
# Checks the dependencies with cargo-deny: versions, licences, sources and known vulnerabilities (deny.toml).
#
# If cargo-deny is missing, the pinned version is built once and kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/tools. Advisories come from the RustSec database on GitHub.
# If it cannot be fetched, they are skipped, and a line says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.20.2
cache=${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/nodewright}
root=$cache/tools/cargo-deny-$version

is_pinned() { [ "$("$1" --version 2>/dev/null)" = "cargo-deny $version" ]; }

deny=$(command -v cargo-deny || true)
if ! is_pinned "${deny:-cargo-deny}"; then
	deny=$root/bin/cargo-deny
	if ! is_pinned "$deny"; then
		echo "cargo-deny $version is missing: building it into $root (2 minutes)" >&2
		# It runs for seconds: its own profile, which optimises the whole program at once, takes twice as long to build.
		export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1
		CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --root "$root" "cargo-deny@$version"
		rm -rf "$root/target"
	fi
fi

"$deny" --locked --workspace check bans licenses sources
if problem=$("$deny" --locked fetch db 2>&1); then
	"$deny" --locked --workspace check --disable-fetch advisories
else
	echo "skipped: advisories, as the RustSec database could not be fetched: ${problem##*$'\n'}" >&2
fi
