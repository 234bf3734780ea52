#!/usr/bin/env bash
# Runs a command that needs docker: hack/with-docker.sh COMMAND...
#
# If a docker daemon answers, this only runs the command. Otherwise it starts a daemon for the time of the command, if it may:
# as root, where dockerd is installed. That daemon has a network namespace of its own, so that the addresses, routes and
# iptables of the computer stay as they are. The command gets DOCKER_HOST, and in DOCKER_NETWORK the file of that namespace: it
# reaches the ports of containers with `nsenter --net="$DOCKER_NETWORK"`. Images are kept in
# ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/docker.
#
# Exits with 75 and one line that says what is missing if there is no docker.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$here/lib-go.sh"

case ${1:-} in
'' | -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac

missing() { say "$*"; exit 75; }

command -v docker >/dev/null || missing "docker is missing: install docker's client and a daemon"
if docker info >/dev/null 2>&1; then exec "$@"; fi
[ "$(id -u)" = 0 ] || missing "docker does not answer; start it, or check whether you may use its socket"
for program in dockerd ip nsenter runc setpriv jq; do
	command -v "$program" >/dev/null || missing "docker does not answer, and $program is missing to start it; \
install it (Debian: docker.io iproute2 util-linux runc jq), or start docker"
done

state=/run/nodewright-docker
netns=nodewright-docker
export DOCKER_HOST=unix://$state/docker.sock DOCKER_NETWORK=/run/netns/$netns

# Ends the daemon, what it left of its containers' cgroups, and the namespace.
end() {
	local pid group
	if pid=$(cat "$state/docker.pid" 2>/dev/null) && grep -qs dockerd "/proc/$pid/cmdline"; then
		kill "$pid"
		while [ -e "/proc/$pid" ]; do sleep 0.1; done
	fi
	ip netns delete $netns 2>/dev/null || true
	for group in /sys/fs/cgroup/nodewright-docker /sys/fs/cgroup/*/nodewright-docker; do
		[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
	rm -rf "$state"
}

start() {
	mkdir -p "$state" "$cache/docker"
	jq -n --arg runc "$here/kind/runc" '{runtimes: {limited: {path: $runc}}, "default-runtime": "limited"}' >"$state/daemon.json"
	ip netns add $netns
	nsenter --net="$DOCKER_NETWORK" ip link set lo up
	# Not by a function, whose subshell would outlive this script, and hold its lock, after a kill -9.
	nsenter --net="$DOCKER_NETWORK" dockerd --config-file "$state/daemon.json" --data-root "$cache/docker" --exec-root "$state/exec" \
		--pidfile "$state/docker.pid" --cgroup-parent nodewright-docker --host "$DOCKER_HOST" >"$state/dockerd.log" 2>&1 </dev/null &
	local daemon=$!
	until docker info >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || { tail -n 5 "$state/dockerd.log" >&2; die "failed to start dockerd: see above"; }
		sleep 0.2
	done
}

# One daemon at a time; one that an earlier run left when it was killed is ended.
mkdir -p "$cache"
exec 9>"$cache/docker.lock"
flock --nonblock 9 || { say "another run has the daemon, waiting for it"; flock 9; }
end
trap end EXIT
trap 'exit 130' INT TERM
start 9>&-
say "dockerd runs in the network namespace $netns"
"$@" 9>&-
