#!/bin/sh
# One node's share of a pod network: its CNI configuration, and the routes to the pods of other nodes.
file=10-kindnet.conflist
configuration() {
	cat <<END
{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {
    "type": "host-local", "dataDir": "/run/cni-ipam-state",
    "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "$1"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
}
columns='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'
while :; do
	if kubectl get nodes -o jsonpath="$columns" >/tmp/nodes; then
		while read -r name cidr address; do
			if [ -z "$cidr" ] || [ -z "$address" ]; then continue; fi
			if [ "$name" != "$NODE_NAME" ]; then
				ip route replace "$cidr" via "$address"
			elif [ ! -e /etc/cni/net.d/$file ]; then
				configuration "$cidr" >/etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/$file
			fi
		done </tmp/nodes
	fi
	sleep 2
done
