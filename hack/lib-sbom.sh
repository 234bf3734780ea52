# shellcheck shell=bash
# Sourced by scripts beside it, after lib-go.sh and lib-build.sh. Makes the SBOM of an image, in CycloneDX's JSON: of the list in
# the program itself, so of exactly what is linked. The same bytes for the same program.
# Defines: image_sbom.

audit_info_version=0.5.4

# Sets $audit_info to the program that prints what cargo-auditable has put into another; it is built in a minute if it is missing.
find_audit_info() {
	local root=$cache/tools/rust-audit-info-$audit_info_version
	audit_info=$root/bin/rust-audit-info
	[ ! -x "$audit_info" ] || return 0
	say "rust-audit-info $audit_info_version is missing: building it into $root (1 minute)"
	CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --root "$root" "rust-audit-info@$audit_info_version" >&2
	rm -rf "$root/target"
}

# Prints the path of cyclonedx-gomod, which is built in half a minute if it is missing.
find_gomod() {
	build() { tool_go release/cyclonedx-gomod build -trimpath -ldflags '-s -w' -o "$1/" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod >&2; }
	printf '%s/cyclonedx-gomod\n' "$(build_once "$cache/cyclonedx-gomod" "$(cat "$tools"/release/cyclonedx-gomod/go.{mod,sum} | checksum)")"
}

# Prints the parts of the program $1 in Rust, for sbom.jq.
rust_parts() {
	local repository
	repository=$(cd "$tools/../.." && pwd)
	find_audit_info
	"$audit_info" "$1" | jq -c --slurpfile metadata <(cd "$repository" && cargo metadata --locked --format-version 1) \
		--rawfile lock "$repository/Cargo.lock" --arg rust "$(cd "$repository" && rustc --version | cut -d' ' -f2)" \
		'$metadata[0] as $metadata | '"$(cat "$tools/release/crates.jq")"
}

# Prints the parts of the program $1 in Go, of version $2 and for architecture $3, for sbom.jq.
go_parts() {
	local gomod
	gomod=$(find_gomod)
	find_go pinned
	# It calls go to find out for which architecture.
	PATH=$(dirname "$go"):$PATH GOOS=linux GOARCH=$3 "$gomod" bin -json -noserial -notimestamp -std -version "v$2" "$1" |
		jq -c --arg version "$2" --arg replaced nodewright.dev/controllers/driver/gardener -f "$tools/release/modules.jq"
}

# Prints packages of Debian with the names $@ (NAME or NAME:ARCHITECTURE) as sbom.jq takes them; of others nothing is known.
debian_packages() {
	command -v dpkg-query >/dev/null || { say "no dpkg: the SBOM lacks $*"; echo '[]'; return; }
	local distro
	distro=$(. /etc/os-release && printf '%s-%s' "$ID" "$VERSION_ID")
	dpkg-query --show --showformat '${Package}\t${Version}\t${source:Package}\t${Architecture}\n' "$@" |
		jq -Rnc --arg distro "$distro" '[inputs | split("\t") | {name: .[0], version: .[1], source: .[2], arch: .[3], distro: $distro}]'
}

# Prints the SBOM of image $1 of version $2 for architecture $3, whose program $4 is in the language $5 (rust or go). $6 is the
# directory of its root.
image_sbom() {
	local image=$1 version=$2 arch=$3 program=$4 language=$5 root=$6 parts tool packages=()
	if [ "$language" = rust ]; then
		parts=$(rust_parts "$program")
		tool=$(jq -nc --arg version "$auditable_version" '{name: "cargo-auditable", version: $version}')
		mapfile -t packages < <(linked_packages "$arch")
	else
		parts=$(go_parts "$program" "$version" "$arch")
		tool=$(jq -nc --arg version "$(awk '$1 == "github.com/CycloneDX/cyclonedx-gomod" { print $2 }' "$tools/release/cyclonedx-gomod/go.mod")" \
			'{name: "cyclonedx-gomod", version: $version}')
	fi
	[ ! -e "$root/etc/ssl/certs" ] || packages+=(ca-certificates)
	jq -n --arg image "$image" --arg version "$version" --arg arch "$arch" --argjson epoch "$(source_date_epoch)" \
		--argjson tool "$tool" --slurpfile parts <(printf '%s' "$parts") \
		--slurpfile packages <([ ${#packages[@]} = 0 ] && echo '[]' || debian_packages "${packages[@]}") \
		'$parts[0] as $parts | $packages[0] as $packages | '"$(cat "$tools/release/sbom.jq")"
}
