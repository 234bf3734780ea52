#!/bin/bash
# A kubelet sets these, and they belong to the whole computer: it gets files of this container to write to instead.
set -euo pipefail
mkdir -p /run/tunables
while read -r path value; do
	own=/run/tunables/${path//\//_}
	if [ ! -e "/proc/sys/$path" ] || mountpoint -q "/proc/sys/$path"; then continue; fi
	echo "$value" >"$own"
	mount --bind "$own" "/proc/sys/$path"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
