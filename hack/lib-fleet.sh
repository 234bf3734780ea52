# shellcheck shell=bash
# Sourced by scripts that run a fleet, after lib-go.sh: a control plane and a cloud, each on free ports of the loopback. What is started
# ends with the script.
#
# They need of the script:
#   show_state   prints what the cluster has, for a scenario that fails
#   $tool        what is tested, for the lines of scenarios
# Defines: $scratch, $products, $kubectl, $loopback, $namespace, $cloud, $audit_log, ports, start, stop, start_plane, kube, in_fleet, field, eventually,
# never, equals, contains, scenario, planted, class, deployment, apply, patch, order, delete_of_cloud, is_gone, vms, nodes_of, vms_of, machines,
# audit_mark, writes_since, has_replicas. The files in $evidence are kept when a scenario fails.

root=$(cd "$tools/../.." && pwd)
products=${CARGO_TARGET_DIR:-$root/target}/debug
control_plane=$("$root/hack/control-plane.sh")
kubectl=$control_plane/kubectl
scratch=$(mktemp -d)
# The manager serves it.
namespace=fleet
export KUBECONFIG=$scratch/plane/kubeconfig
mkdir -p "$scratch/logs"
# See hack/tools/loopback.
loopback=$scratch/loopback
find_go
tool_go loopback build -o "$loopback" .
evidence=("$scratch/logs")
plane_flags=()
cloud_flags=()

declare -A pids=()
started=()
running_scenario=

# Starts the program $2… as $1, with a log.
start() {
	local name=$1
	shift
	"$@" >>"$scratch/logs/$name.log" 2>&1 </dev/null &
	pids[$name]=$!
	started=("$name" "${started[@]}")
}

# Ends the program $1, and waits until it has.
stop() {
	local name=$1 deadline=$((SECONDS + 20))
	[ -n "${pids[$name]:-}" ] || return 0
	kill "${pids[$name]}" 2>/dev/null || true
	while kill -0 "${pids[$name]}" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
	kill -KILL "${pids[$name]}" 2>/dev/null || true
	wait "${pids[$name]}" 2>/dev/null || true
	unset "pids[$name]"
}

# What a scenario that fails leaves behind: its logs. Everything else goes.
finish() {
	local result=$? name kept
	if [ "$result" != 0 ]; then
		[ -z "$running_scenario" ] || printf 'FAIL  %s\n' "$running_scenario"
		kept=$(mktemp -d)
		show_state >"$kept/state.txt" 2>&1 || true
		cp -r "${evidence[@]}" "$kept/"
		say "logs, and what the cluster had, are in $kept"
	fi
	for name in "${started[@]}"; do stop "$name"; done
	rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

ports() { "$loopback" ports "$1"; }
kube() { "$kubectl" "$@"; }
in_fleet() { kube --namespace "$namespace" "$@"; }
# Prints the JSONPath $3 of the object $1 $2; nothing without the object.
field() { in_fleet get "$1" "$2" --ignore-not-found --output "jsonpath=$3"; }

# Runs a command until it succeeds, for at most $TIMEOUT seconds.
eventually() {
	local deadline=$((SECONDS + ${TIMEOUT:-180}))
	until "$@"; do
		all_run
		[ "$SECONDS" -lt "$deadline" ] || die "not within ${TIMEOUT:-180} s: $*"
		sleep 0.3
	done
}

# Fails if a command succeeds within $1 seconds.
never() {
	local deadline=$((SECONDS + $1))
	shift
	while [ "$SECONDS" -lt "$deadline" ]; do
		! "$@" || die "too early: $*"
		sleep 0.3
	done
}

# Fails if a program that was started has ended by itself.
all_run() {
	local name
	for name in "${!pids[@]}"; do
		kill -0 "${pids[$name]}" 2>/dev/null || die "$name has ended: $(tail -n 3 "$scratch/logs/$name.log")"
	done
}

equals() { [ "$1" = "$2" ] || die "$3 is '$1', not '$2'"; }
contains() { grep -qF -- "$2" <<<"$1" || die "$3 does not have '$2': $1"; }

# Runs the scenario $1, a function, which has the title $2.
scenario() {
	local since=$SECONDS
	running_scenario="$tool: $2"
	saw=
	"$1"
	printf 'PASS  %s%s (%s s)\n' "$running_scenario" "${saw:+: $saw}" "$((SECONDS - since))"
	running_scenario=
}

# Whether PLANT names the violation $1: then the script makes it, and has to fail.
planted() { [ "${PLANT:-}" = "$1" ]; }

# Starts a control plane and a cloud whose VMs join it, with the flags in $plane_flags and $cloud_flags.
start_plane() {
	start plane "$products/nodewright-control-plane" --dir "$scratch/plane" --ready-file "$scratch/ready" --without-scheduler \
		"${plane_flags[@]}"
	eventually test -e "$scratch/ready"
	# shellcheck disable=SC2034 # Used by the scripts that source this.
	audit_log=$(sed -n 's/^ *"auditLog": "\(.*\)",*$/\1/p' "$scratch/ready")
	local port
	port=$(ports 1)
	cloud=http://127.0.0.1:$port
	start cloud "$products/nodewright-cloud" "--listen=127.0.0.1:$port" "--kubeconfig=$KUBECONFIG" --boot-seconds=0.5 "${cloud_flags[@]}"
	eventually cloud_answers
}

cloud_answers() { curl --silent --fail --output /dev/null "$cloud/vms"; }

# The class $1 of VMs of the size $2, with the user data of the Secret $3. More of its providerSpec is in $4.
class() {
	cat <<-END
		---
		apiVersion: machine.sapcloud.io/v1alpha1
		kind: MachineClass
		metadata: {name: $1}
		provider: simulated
		providerSpec: {cluster: fleet, size: $2${4:+, $4}}
		secretRef: {name: $3, namespace: $namespace}
		nodeTemplate: {capacity: {cpu: "2", memory: 4Gi, gpu: "0"}, instanceType: $2, region: local, zone: local-a}
	END
}

# The deployment $1 of $2 machines of the class $3. Rollouts have $4 seconds.
deployment() {
	cat <<-END
		---
		apiVersion: machine.sapcloud.io/v1alpha1
		kind: MachineDeployment
		metadata: {name: $1}
		spec:
		  replicas: $2
		  progressDeadlineSeconds: ${4:-600}
		  selector: {matchLabels: {name: $1}}
		  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
		  template:
		    metadata: {labels: {name: $1}}
		    spec: {class: {apiGroup: machine.sapcloud.io, kind: MachineClass, name: $3}}
	END
}

apply() { in_fleet apply --filename - >/dev/null; }
patch() { in_fleet patch "$1" "$2" --type=merge --patch "$3" >/dev/null; }
# Orders something of the cloud: path and body.
order() { curl --silent --fail --output /dev/null --data "$2" "$cloud$1"; }
delete_of_cloud() { curl --silent --fail --output /dev/null --request DELETE "$cloud$1"; }

is_gone() { [ -z "$(in_fleet get "$1" "$2" --ignore-not-found --output name)" ]; }

vms() { curl --silent --fail "$cloud/vms" | grep -o '"id"' | wc -l; }

nodes_of() { in_fleet get machines --selector "name=$1" --sort-by=.metadata.name --output 'jsonpath={range .items[*]}{.metadata.labels.node}{"\n"}{end}'; }
# The ids of the VMs of the machines of the deployment $1.
vms_of() { in_fleet get machines --selector "name=$1" --sort-by=.metadata.name --output 'jsonpath={range .items[*]}{.spec.providerID}{"\n"}{end}' | sed 's|.*/||'; }

# The machines of the pool $1, with UIDs.
machines() {
	in_fleet get machines --selector "name=$1" --sort-by=.metadata.name \
		--output 'jsonpath={range .items[*]}{.metadata.name}={.metadata.uid} {end}'
}

# How many lines the audit log has.
audit_mark() { wc -l <"$audit_log"; }

# The writes of user agent $2, after line $1 of the audit log, that were no dry runs. Leases, events, accesses and reviews aside.
writes_since() {
	tail -n "+$(($1 + 1))" "$audit_log" | grep '"stage":"ResponseComplete"' | grep "\"userAgent\":\"$2" |
		grep -E '"verb":"(create|update|patch|delete)"' | grep -v 'dryRun=All\|"resource":"leases"\|"resource":"events"\|accessreviews' |
		sed 's/.*"requestURI":"\([^"?]*\).*"verb":"\([a-z]*\)".*/\2 \1/' || true
}

# Whether the status of the pool $1 has $2 replicas, and no others: available, and of its present template.
has_replicas() {
	[ "$(field machinedeployment "$1" '{.status.replicas}/{.status.availableReplicas}/{.status.updatedReplicas}')" = "$2/$2/$2" ]
}
