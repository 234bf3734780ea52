# shellcheck shell=bash
# Sourced by scripts beside it, after lib-go.sh. Builds static programs for amd64 and arm64: the same bytes from the same sources, in
# whichever directory they are. See docs/decisions/0040-release-builds.md.
# Defines: check_builders, build_rust, linked_packages, source_date_epoch, source_revision.

# A failure in $(…) is one.
shopt -s inherit_errexit

# cargo-auditable puts the list of the crates that are linked into the program, from which its SBOM is made.
auditable_version=0.7.7

# The machine of architecture $1, as GNU calls it.
machine_of() {
	case $1 in
	amd64) echo x86_64 ;;
	arm64) echo aarch64 ;;
	*) die "there are no builds for $1, only for amd64 and arm64" ;;
	esac
}

# The compiler and linker for architecture $1: this computer's own, or Debian's cross compiler.
compiler_of() {
	local machine
	machine=$(machine_of "$1")
	if [ "$machine" = "$(uname -m)" ]; then echo gcc; else echo "$machine-linux-gnu-gcc"; fi
}

# Ends the script unless there is all that builds for the architectures $@ need.
check_builders() {
	local arch program machine missing=()
	for program in jq cargo rustup; do
		command -v "$program" >/dev/null || die "$program is missing"
	done
	for arch; do
		machine=$(machine_of "$arch")
		program=$(compiler_of "$arch")
		if ! command -v "$program" >/dev/null; then
			[ "$program" = gcc ] && missing+=(gcc) || missing+=("gcc-${machine/_/-}-linux-gnu")
			missing+=("libc6-dev:$arch")
		elif [ ! -e "$("$program" -print-file-name=libc.a)" ]; then
			missing+=("libc6-dev:$arch")
		fi
	done
	[ ${#missing[@]} = 0 ] || die "a compiler or a static glibc is missing. On Debian, as root:
  dpkg --add-architecture arm64 && apt-get update
  apt-get install --no-install-recommends ${missing[*]}"
}

# The time of all that is built, in seconds since 1970: SOURCE_DATE_EPOCH, else the time of the commit.
source_date_epoch() {
	[ -z "${SOURCE_DATE_EPOCH:-}" ] || { printf '%s\n' "$SOURCE_DATE_EPOCH"; return; }
	git -C "$tools" log -1 --format=%ct 2>/dev/null ||
		die "this is no clone: set SOURCE_DATE_EPOCH to the seconds since 1970 at which the sources were made"
}

# The commit: SOURCE_REVISION, else that of the clone, else nothing.
source_revision() { printf '%s\n' "${SOURCE_REVISION:-$(git -C "$tools" rev-parse HEAD 2>/dev/null || true)}"; }

# Sets $auditable to cargo-auditable, which is built in a minute if it is missing.
find_auditable() {
	local root=$cache/tools/cargo-auditable-$auditable_version
	auditable=$root/bin/cargo-auditable
	[ ! -x "$auditable" ] || return 0
	say "cargo-auditable $auditable_version is missing: building it into $root (1 minute)"
	CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --root "$root" "cargo-auditable@$auditable_version" >&2
	rm -rf "$root/target"
}

# Builds the crate $2 of the workspace for architecture $1, and prints the path of the program. Settings of the user for compilers must
# not change the result, and neither must paths: each is replaced by a fixed one in what the compilers write.
build_rust() {
	local arch=$1 package=$2 repository target compiler names flags path map=()
	# Without symbolic links: the compilers know their working directory by its real path, and shorten paths below it.
	repository=$(cd "$tools/../.." && pwd -P)
	target=$(machine_of "$arch")-unknown-linux-gnu
	compiler=$(compiler_of "$arch")
	find_auditable
	local directory=${CARGO_TARGET_DIR:-$repository/target} home=${CARGO_HOME:-$HOME/.cargo}
	mkdir -p "$directory"
	directory=$(cd "$directory" && pwd -P)
	home=$(cd "$home" && pwd -P)
	(
		cd "$repository"
		unset "${!CARGO_PROFILE_@}"
		rustup target add "$target" >&2
		export CARGO_HOME=$home
		cargo fetch --quiet --locked --target "$target" >&2
		# The last one that fits counts: the target directory may be in the checkout.
		map=("$repository=/src")
		for path in "$home"/registry/src/*; do map+=("$path=/crates"); done
		map+=("$directory=/target")
		# The variable replaces the flags of .cargo/config.toml, so they are here as well: what is released is what is tested.
		flags=--cfg$'\x1f'tokio_unstable$'\x1f'-Csymbol-mangling-version=v0$'\x1f'-Ctarget-feature=+crt-static
		for path in "${map[@]}"; do flags+=$'\x1f'--remap-path-prefix=$path; done
		names=${target//-/_}
		export CARGO_ENCODED_RUSTFLAGS=$flags "CC_$names=$compiler" "CFLAGS_$names=${map[*]/#/-ffile-prefix-map=}" SOURCE_DATE_EPOCH
		# For this computer rustc has a linker: on x86_64 its own, which the manager wants (controllers/manager/build.rs).
		unset "CARGO_TARGET_${names^^}_LINKER"
		[ "$compiler" = gcc ] || export "CARGO_TARGET_${names^^}_LINKER=$compiler"
		SOURCE_DATE_EPOCH=$(source_date_epoch)
		CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$directory \
			"$auditable" auditable build --release --locked --package "$package" --target "$target" >&2
	)
	printf '%s\n' "$directory/$target/release/$package"
}

# Prints Debian's packages of which a program in Rust for architecture $1 has parts: those of libc.a and of the compiler's own libraries.
linked_packages() {
	local compiler library
	compiler=$(compiler_of "$1")
	command -v dpkg-query >/dev/null || return 0
	for library in libc.a libgcc.a; do
		dpkg-query --search "$(realpath "$("$compiler" -print-file-name=$library)")" | sed 's/: .*//'
	done
}
