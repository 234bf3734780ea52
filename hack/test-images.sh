#!/usr/bin/env bash
# Tests the images of hack/images.sh, which it makes first:
#   - each has an index of amd64 and arm64, whose blobs are what their digests name
#   - each has the user 65532 and one layer: the program, and root certificates where it needs them. So there is no shell
#   - each program is for its architecture, and linked statically
#   - each program runs with its image's root, read-only, as user 65532; that for arm64 with qemu-aarch64-static, if there is one
#   - each SBOM is valid by CycloneDX's schema, and has what the program was made of
#   - a second build in another directory, with another target directory and other homes of cargo and Go, gives the same digests and
#     SBOMs
# Before that, it makes images that break these rules, and fails unless each is found out.
#
# The second build is of nodewright-driver-local and nodewright-driver-azure, one in Rust and one in Go, for both architectures; ALL=1
# builds all programs a second time. PROGRAMS="…" tests these alone. IMAGES=DIRECTORY has images that are tested instead of new ones.
# hack/images.sh names what is needed; the run on a read-only root needs root or user namespaces, else it is skipped with the reason.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-image.sh
. "$here/lib-image.sh"
# shellcheck source-path=SCRIPTDIR source=lib-python.sh
. "$here/lib-python.sh"
# shellcheck source-path=SCRIPTDIR source=lib-build.sh
. "$here/lib-build.sh"

takes_no_arguments "$@"

repository=$(cd "$here/.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}
images=${IMAGES:-$target/images}
repeated="nodewright-driver-local nodewright-driver-azure"
failures=0

# Notes that a check has failed, with the reason $*.
failed() { say "FAILED: $*"; failures=$((failures + 1)); }

# Prints the blob of layout $1 with the digest $2.
blob() { cat "$1/blobs/sha256/${2#sha256:}"; }

# Prints what is wrong with the blobs of layout $1.
check_blobs() {
	local file
	for file in "$1"/blobs/sha256/*; do
		[ "$(sha256sum <"$file" | cut -d' ' -f1)" = "${file##*/}" ] || echo "the blob ${file##*/} is something else"
	done
}

# Prints what is wrong with the program $1 for architecture $2.
check_program() {
	local header
	header=$(readelf --file-header --program-headers --dynamic --wide "$1" 2>&1 || true)
	case $2 in
	amd64) grep -q 'Machine:.*X86-64' <<<"$header" || echo "the program is not for amd64" ;;
	arm64) grep -q 'Machine:.*AArch64' <<<"$header" || echo "the program is not for arm64" ;;
	esac
	! grep -q -e INTERP -e NEEDED <<<"$header" || echo "the program is not static"
}

# Prints what is wrong with the image of layout $1 whose manifest has the digest $2, for architecture $3. Unpacks it into directory $4.
check_image() {
	local layout=$1 manifest config arch=$3 root=$4 program expected found
	manifest=$(blob "$layout" "$2")
	config=$(blob "$layout" "$(jq -r .config.digest <<<"$manifest")")
	[ "$(jq -r .config.User <<<"$config")" = 65532:65532 ] || echo "the user is $(jq -r .config.User <<<"$config")"
	[ "$(jq -r .architecture <<<"$config")" = "$arch" ] || echo "the image is for $(jq -r .architecture <<<"$config")"
	[ "$(jq '.layers | length' <<<"$manifest")" = 1 ] || echo "it has more than one layer"
	program=$(jq -r '.config.Entrypoint[0]' <<<"$config")
	blob "$layout" "$(jq -r '.layers[0].digest' <<<"$manifest")" | gzip -d >"$root.layer"
	[ "sha256:$(sha256sum <"$root.layer" | cut -d' ' -f1)" = "$(jq -r '.rootfs.diff_ids[0]' <<<"$config")" ] ||
		echo "the layer is not the one of the configuration"
	# Exactly these files with these rights, of root: nothing that a shell, a package manager or an attacker could use.
	expected="-rwxr-xr-x 0/0 .$program"
	found=$(tar --numeric-owner -tvf "$root.layer" | awk '$1 !~ /^d/ {print $1, $2, $6}')
	found=$(grep -vx -e '-rw-r--r-- 0/0 ./etc/ssl/certs/ca-certificates.crt' <<<"$found" || true)
	[ "$found" = "$expected" ] || echo "it has the files $found, and not only $expected and certificates"
	[ "$(tar --numeric-owner -tvf "$root.layer" | awk '/^d/ {print $1, $2}' | sort -u)" = "drwxr-xr-x 0/0" ] ||
		echo "a directory has other rights than drwxr-xr-x, or another owner than root"
	mkdir -p "$root"
	tar -C "$root" --no-same-owner -xpf "$root.layer"
	rm "$root.layer"
	[ ! -e "$root$program" ] || check_program "$root$program" "$arch"
}

# Runs $@ with mounts of its own, in a user namespace unless this is root.
with_mounts() {
	if [ "$(id -u)" = 0 ]; then unshare --mount "$@"; else unshare --user --map-root-user --mount "$@"; fi
}

# Runs program $2 as user 65532 with the read-only root $1.
run_confined() {
	# shellcheck disable=SC2016 # The inner shell expands it.
	with_mounts bash -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 125
		! touch "$1/written" 2>/dev/null || { echo "the root can be written"; exit 125; }
		if [ "$0" = 0 ]; then exec chroot --userspec=65532:65532 "$@"; fi
		exec unshare --user --map-user=65532 --map-group=65532 --root="$@"' "$(id -u)" "$@"
}

# Runs the program of the image for architecture $2 that is unpacked in directory $1, and prints what is wrong.
check_run() {
	local root=$1 arch=$2 program status=0 output
	program=$(basename "$(find "$root" -maxdepth 1 -type f)")
	if [ "$arch" = "$(image_architecture)" ]; then
		with_mounts true 2>/dev/null || { say "skipped: $program on a read-only root: this needs root or user namespaces"; return; }
		output=$(run_confined "$root" "/$program" --help 2>&1) || status=$?
	elif [ "$arch" = arm64 ] && command -v qemu-aarch64-static >/dev/null; then
		output=$(qemu-aarch64-static "$root/$program" --help 2>&1) || status=$?
	else
		say "skipped: $program for $arch: this computer does not run it without qemu-user-static"
		return
	fi
	# Go's flags end --help with 2.
	[ "$status" = 0 ] || [ "$status" = 2 ] || echo "$program --help ends with $status: $output"
	grep -qi usage <<<"$output" || echo "$program --help prints no help, but: $output"
}

# Prints what is wrong with the archive $1 of an index for the architectures $2…, unpacking it into directory $work/NAME.
check_archive() {
	local archive=$1 layout index arch digest root
	shift
	layout=$(mktemp -d "$work/layout.XXXXXX")
	tar -C "$layout" -xf "$archive"
	check_blobs "$layout"
	index=$(blob "$layout" "$(jq -r '.manifests[0].digest' "$layout/index.json")")
	[ "$(jq -r '[.manifests[].platform.architecture] | sort | join(" ")' <<<"$index")" = "$*" ] || echo "the index is not of $*"
	for arch; do
		digest=$(jq -r --arg arch "$arch" '.manifests[] | select(.platform.architecture == $arch).digest' <<<"$index")
		root=$(mktemp -d "$work/root.XXXXXX")
		# Its own mode is that of the layer's, for another user.
		check_image "$layout" "$digest" "$arch" "$root" | sed "s/^/$arch: /"
		check_run "$root" "$arch" | sed "s/^/$arch: /"
		rm -rf "$root"
	done
	rm -rf "$layout"
}

# Makes an archive $1 of an image with the directory $2 and the user $3.
make_bad() {
	local layout
	layout=$(mktemp -d "$work/layout.XXXXXX")
	oci_layout "$layout"
	oci_archive "$layout" "$1" bad:1 "$(oci_index "$layout" '{}' "$(oci_manifest "$layout" "$(image_architecture)" "$2" \
		"{\"User\": \"$3\", \"Entrypoint\": [\"/program\"]}" 0 gzip)")"
	rm -rf "$layout"
}

# Checks that an image of directory $2 and user $3 is found out: that what is wrong with it has the words $1.
must_find() {
	local found
	make_bad "$work/bad.tar" "$2" "$3"
	found=$(check_archive "$work/bad.tar" "$(image_architecture)")
	grep -q "$1" <<<"$found" || failed "an image that is wrong by '$1' was not found out, but: ${found:-nothing}"
}

# Makes images that break a rule each.
check_checks() {
	local bad=$work/bad
	mkdir -m 755 "$bad"
	install -m 755 "$(type -P true)" "$bad/program"
	must_find 'not static' "$bad" 65532:65532
	must_find 'the user is 0' "$bad" 0
	install -D -m 755 /bin/sh "$bad/bin/sh"
	must_find 'it has the files.*bin/sh' "$bad" 65532:65532
	rm -r "$bad/bin"
	chmod 700 "$bad"
	must_find 'a directory has other rights' "$bad" 65532:65532
	chmod 755 "$bad"
	chmod u+s "$bad/program"
	must_find 'it has the files -rws' "$bad" 65532:65532
	printf 'text' >"$bad/program"
	must_find 'the program is not for' "$bad" 65532:65532
	must_find 'no help' "$bad" 65532:65532
}

# Checks the images and SBOMs of the programs $@.
check_all() {
	local program problem files=()
	for program; do
		say "checking $program"
		while read -r problem; do failed "$program: $problem"; done < <(check_archive "$images/$program.tar" amd64 arm64)
	done
	for program; do files+=("$images/$program"-{amd64,arm64}.cdx.json); done
	"$(python_environment cyclonedx)/bin/python" "$tools/cyclonedx/validate.py" "${files[@]}" || failed "an SBOM is not valid"
}

# Builds the programs $@ a second time, from a copy of the sources, and compares.
check_second_build() {
	local copy=$work/elsewhere/sources home=$work/elsewhere/cargo program line file
	mkdir -p "$copy" "$home"
	git -C "$repository" ls-files -z --cached --others --exclude-standard |
		(cd "$repository" && xargs -0 ls -d 2>/dev/null | tar -T - -c) | tar -C "$copy" -x
	cp -R --link "${CARGO_HOME:-$HOME/.cargo}/registry" "$home/" 2>/dev/null || cp -R "${CARGO_HOME:-$HOME/.cargo}/registry" "$home/"
	say "building $* a second time, in $copy"
	(
		umask 027
		SOURCE_DATE_EPOCH=$(source_date_epoch) SOURCE_REVISION=$(source_revision) CARGO_HOME=$home GOCACHE=$work/elsewhere/go \
			CARGO_TARGET_DIR=$work/elsewhere/built TZ=Pacific/Kiritimati LC_ALL=C \
			"$copy/hack/images.sh" --into "$work/elsewhere/images" "$@" >&2
	)
	for program; do
		line=$(grep "/$program:" "$work/elsewhere/images/images.txt")
		grep -qxF "$line" "$images/images.txt" || failed "$program: the second build made another image: $line"
		for file in "$program.tar" "$program"-{amd64,arm64}.cdx.json bin/{amd64,arm64}/"$program"; do
			cmp -s "$images/$file" "$work/elsewhere/images/$file" || failed "$file differs in the second build"
		done
		[ $failures != 0 ] || say "the second build of $line is the same"
	done
}

all="nodewright nodewright-driver-aws nodewright-driver-azure nodewright-driver-local kubectl-nodewright"
programs=${PROGRAMS:-$all}
again=()
[ -z "${ALL:-}" ] || repeated=$programs
mkdir -p "$target"
work=$(mktemp -d "$target/test-images.XXXXXX")
trap 'rm -rf "$work"' EXIT
check_checks
# shellcheck disable=SC2086 # They are words.
[ -n "${IMAGES:-}" ] || "$here/images.sh" --into "$images" $programs
# shellcheck disable=SC2086
check_all $programs
for program in $repeated; do
	[[ " $programs " != *" $program "* ]] || again+=("$program")
done
[ ${#again[@]} = 0 ] || check_second_build "${again[@]}"
[ $failures = 0 ] || die "$failures checks have failed, see above"
say "all checks have passed"
