#!/usr/bin/env bash
# Tests the upgrade from the previous version, the way back, and both at once: see hack/test-upgrade.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"

takes_no_arguments "$@"

# First, because it may take minutes.
previous=$("$(dirname "${BASH_SOURCE[0]}")/previous.sh")

# shellcheck disable=SC2034 # Used by what is sourced.
tool=previous
# This version has load balancers leave a Node before its drain.
adds='> Node/rest-[^ ]* \.metadata\.labels\.\[node\.kubernetes\.io/exclude-from-external-load-balancers\]='

# shellcheck source-path=SCRIPTDIR source=lib-upgrade.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-upgrade.sh"

start_first() {
	apply_crds "$previous/config/crd"
	start_alone previous "$previous"
}

upgraded() { hand_over large 'stop previous' this "$products"; }

# The CRDs stay, as docs/reference/versions.md says.
downgraded() {
	phase=back-
	hold_drain
	eventually has_available rest 3
	hand_over small 'stop this' previous "$previous"
}

# The previous version scales, and ends a rollout that was paused all the time.
works() {
	local mark event
	if planted first; then
		in_fleet annotate --overwrite machine "$first" machinepriority.machine.sapcloud.io=3 >/dev/null
		in_fleet annotate --overwrite machine "$(another)" machinepriority.machine.sapcloud.io=1 >/dev/null
	fi
	mark=$(audit_mark) event=$(event_mark)
	resize rest 2
	eventually has_machines rest 2
	is_gone machine "$first" || die "machine $first, which was to go first, is still there"
	resize rest 4
	pause paused false
	eventually has_machines rest 4
	eventually has_machines paused 3
	equals "$(created_since "$mark" "$event")" '4 machines, 4 VMs' "what was made"
	one_vm_each
	saw="$first went first; 2 machines made by a scale-up, 2 by the rollout"
}

# For those who go back with the CRDs as well.
old_crds() {
	accepted "$previous/config" old-crds
	apply_crds "$root/config/crd"
}

# While the manager $1 leads and $2 waits, a pool is scaled to $3 and another one rolled to $4; the leader is killed, and the other goes on.
fails_over() {
	local leader=$1 other=$2 mark event size before
	size=$(field machinedeployment rest '{.spec.replicas}')
	before=$(machines paused)
	mark=$(audit_mark) event=$(event_mark)
	leads "$leader" || die "$leader does not lead"
	! leads "$other" || die "$other leads, too"
	resize rest "$3"
	roll moving "$4"
	eventually has_of_class moving 2 "$4"
	if ! violated leader; then kill_hard "$leader"; fi
	TIMEOUT=60 eventually leads "$other"
	if violated second; then make_second "${before%%=*}"; fi
	if violated gone; then remove_machine "${before%%=*}"; fi
	eventually has_machines moving 3
	eventually has_machines rest "$3"
	one_vm_each
	equals "$(created_since "$mark" "$event")" "$((3 + $3 - size)) machines, $((3 + $3 - size)) VMs" "what was made"
	equals "$(machines paused)" "$before" "the list of machines of another pool"
	saw="$((3 + $3 - size)) machines made, as many as were wanted"
}

# Makes a second VM for the machine $1, for a moment.
make_second() {
	local vm
	vm=$(curl --silent --fail --data "{\"name\":\"$1\",\"token\":\"second\",\"tags\":{}}" "$cloud/vms" | sed 's/.*"id":"\([^"]*\)".*/\1/')
	delete_of_cloud "/vms/$vm"
}

# Removes a machine without its VM.
remove_machine() {
	in_fleet patch machine "$1" --type=merge --patch '{"metadata":{"finalizers":null}}' >/dev/null
	in_fleet delete machine "$1" >/dev/null
}

# The previous version leads, and this one waits.
this_takes_over() {
	phase=
	stop previous
	remove_webhooks
	start_manager old-1 "$previous"
	eventually leads old-1
	start_manager new-1 "$products"
	fails_over old-1 new-1 6 large
}

# This one leads, and the previous one waits.
previous_takes_over() {
	phase=back-
	start_manager old-2 "$previous"
	fails_over new-1 old-2 8 small
}

start_plane
scenario make_fleet "the previous version makes a fleet"
scenario new_crds "the CRDs of this version accept what is stored"
scenario upgraded "an upgrade rolls no machine and loses no field; this version ends a rollout"
scenario release_drain "this version ends a drain that was held meanwhile"
scenario rests "at rest this version writes nothing"
scenario serves_webhooks "this version's webhooks accept what is stored"
scenario downgraded "a downgrade rolls no machine and loses no field; the previous version ends a rollout"
scenario release_drain "the previous version ends a drain that was held meanwhile"
scenario rests "at rest the previous version writes nothing"
scenario works "the previous version scales, and ends a rollout"
scenario old_crds "the CRDs of the previous version accept what is stored"
scenario this_takes_over "both at once: this version goes on when the previous one is killed"
scenario previous_takes_over "both at once: the previous version goes on when this one is killed"
