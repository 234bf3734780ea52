#!/usr/bin/env bash
# Prints the manifest by which krew installs kubectl nodewright:
#
#   hack/krew.sh VERSION URL ARCHIVE...
#
# VERSION is a tag such as v0.1.0, URL the folder where the archives will be, and each ARCHIVE a file named
# kubectl-nodewright-OS-ARCH.tar.gz (linux or darwin; amd64 or arm64) with the binary kubectl-nodewright and LICENSE in it.
# hack/krew.sh --pack OS-ARCH BINARY makes one in the current folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() {
	sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

if [ "${1:-}" = --pack ]; then
	[ $# = 3 ] || usage
	# The same bytes for the same binary: a checksum is published.
	tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX --transform='s|.*/||' \
		"$3" "$here/../LICENSE" | gzip --no-name > "kubectl-nodewright-$2.tar.gz"
	exit
fi
[ $# -ge 3 ] || usage
version=$1 url=${2%/}
shift 2
case $version in v[0-9]*.[0-9]*.[0-9]*) ;; *) echo "error: $version is no version such as v0.1.0" >&2; exit 2 ;; esac

cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: nodewright
spec:
  version: $version
  shortDescription: Explain and change fleets of machines
  description: |
    Shows what a fleet of machines waits for, from the MachineDeployment to the
    Node, and why: with the cause, and the field or flag that changes it.
    Follows rollouts, takes them back, and collects reports for bugs.
  caveats: |
    Reading needs the ClusterRole nodewright-view. Secrets are never read.
  platforms:
END
for archive in "$@"; do
	name=${archive##*/}
	if ! [[ $name =~ ^kubectl-nodewright-(linux|darwin)-(amd64|arm64)\.tar\.gz$ ]]; then
		echo "error: $name is not named kubectl-nodewright-OS-ARCH.tar.gz" >&2
		exit 2
	fi
	os=${BASH_REMATCH[1]} arch=${BASH_REMATCH[2]}
	sum=$(sha256sum "$archive" | cut -d' ' -f1)
	cat <<END
  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: $url/$name
    sha256: $sum
    bin: kubectl-nodewright
END
done
