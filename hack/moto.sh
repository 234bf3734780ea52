#!/usr/bin/env bash
# Installs moto's server, an EC2 for tests, in the versions that hack/tools/moto pins, and prints the path of the executable. It is
# kept in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/moto, in a virtual environment of Python 3.10 or newer; the
# installation takes a minute.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

requirements=$tools/moto/requirements.txt
python=$(command -v python3 || true)
[ -n "$python" ] || die "python3 is missing: install Python 3.10 or newer with its module venv"
# An environment belongs to the Python that has made it.
target=$cache/moto/$({ "$python" --version; echo "$python"; cat "$requirements"; } | checksum)

# An environment cannot be moved, so it is made in its place: it counts once the mark is there.
if [ ! -e "$target/installed" ]; then
	mkdir -p "$target"
	if command -v flock >/dev/null; then
		exec 9>"$target/.lock"
		flock 9
	fi
	if [ ! -e "$target/installed" ]; then
		say "installing moto into $target"
		"$python" -m venv --clear "$target/venv" >&2 || die "failed to make a virtual environment; Debian has it in python3-venv"
		"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--requirement "$requirements" >&2 || die "failed to install moto: check the network"
		touch "$target/installed"
	fi
fi
printf '%s\n' "$target/venv/bin/moto_server"
