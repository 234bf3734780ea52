# shellcheck shell=bash
# Sourced by scripts beside it, after lib-go.sh. Installs packages of PyPI in the versions that hack/tools pins.
# Defines: python_environment.

# Prints the path of a virtual environment with what hack/tools/$1/requirements.txt names. It is kept in the cache, and installed
# within a minute if it is missing. Python 3.10 or newer has to be there.
python_environment() {
	local name=$1 requirements=$tools/$1/requirements.txt python target
	python=$(command -v python3 || true)
	[ -n "$python" ] || die "python3 is missing: install Python 3.10 or newer with its module venv"
	# An environment belongs to the Python that has made it.
	target=$cache/$name/$({ "$python" --version; echo "$python"; cat "$requirements"; } | checksum)
	# An environment cannot be moved, so it is made in its place: it counts once the mark is there.
	if [ ! -e "$target/installed" ]; then
		mkdir -p "$target"
		if command -v flock >/dev/null; then
			exec 9>"$target/.lock"
			flock 9
		fi
		if [ ! -e "$target/installed" ]; then
			say "installing $name into $target"
			"$python" -m venv --clear "$target/venv" >&2 || die "failed to make a virtual environment; Debian has it in python3-venv"
			"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
				--requirement "$requirements" >&2 || die "failed to install $name: check the network"
			touch "$target/installed"
		fi
	fi
	printf '%s\n' "$target/venv"
}
