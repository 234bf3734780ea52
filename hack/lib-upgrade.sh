# shellcheck shell=bash
# Sourced by test-upgrade-previous.sh and test-upgrade-mcm.sh after lib-go.sh. Makes a fleet that is in the middle of something, starts
# managers, and compares what objects and VMs were before with what they are after.
#
# They need of the script:
#   $tool         what is upgraded from, for the lines of scenarios
#   $adds         what the upgrade may add to objects at rest, or change: a pattern of lines of hack/tools/objects, with > or < for after
#                 and before
#   start_first   starts what makes the fleet, with its CRDs; the namespace is there
#   stop_first    ends it
# Defines: what lib-fleet.sh does, and what follows.

# shellcheck source-path=SCRIPTDIR source=lib-fleet.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-fleet.sh"

: "${adds:?}"
objects=$scratch/objects
tool_go objects build -o "$objects" .
states=$scratch/states
mkdir "$states"
evidence+=("$states")
kinds=machinedeployments,machinesets,machines,machineclasses
# A Node is not Ready before, so that the stages of a rollout can be seen.
# shellcheck disable=SC2034 # Used by lib-fleet.sh.
cloud_flags=(--ready-seconds=3 --delete-seconds=0.3)
preserved='' first='' held=''
# back- from the downgrade on.
phase=''

show_state() {
	in_fleet get "$kinds,pods,poddisruptionbudgets" --output wide
	in_fleet get "$kinds" --output yaml
	curl --silent "$cloud/vms?limit=1000"
	curl --silent "$cloud/events?limit=1000"
}

# Whether PLANT names the violation $1 in this phase.
violated() { planted "$phase$1"; }

# Applies the CRDs of the kustomization $1.
apply_crds() {
	kube apply --server-side --force-conflicts --kustomize "$1" >/dev/null
	eventually kube wait --for=condition=Established --timeout=10s crds --all >/dev/null
}

# Starts the manager $1 with the executables in $2. Further arguments are flags.
start_manager() {
	local name=$1 executables=$2 port
	shift 2
	port=$(ports 1)
	NODEWRIGHT_CLOUD_URL=$cloud MALLOC_ARENA_MAX=1 start "$name" "$executables/nodewright" manager "--control-kubeconfig=$KUBECONFIG" \
		"--target-kubeconfig=$KUBECONFIG" "--namespace=$namespace" --address=127.0.0.1 "--port=$port" \
		"--driver=$executables/nodewright-driver-simulated" "$@"
	eventually curl --silent --fail --output /dev/null "http://127.0.0.1:$port/readyz"
}

# The same with webhooks, for a manager that is alone.
start_alone() {
	began=$SECONDS
	rm -f "$scratch/logs/$1.log"
	start_manager "$@" --webhooks --webhook-address=127.0.0.1 --webhook-host=127.0.0.1 "--webhook-port=$(ports 1)"
	eventually leads "$1"
	eventually webhooks_answer
}
leads() { grep -q ' leading$' "$scratch/logs/$1.log"; }

# Whether the API server asks the webhooks: what it stores has defaults.
webhooks_answer() {
	deployment probe 0 probe | sed '/strategy:/d' |
		in_fleet create --dry-run=server --output 'jsonpath={.spec.strategy.type}' --filename - 2>/dev/null | grep -q Rolling
}
remove_webhooks() { kube delete mutatingwebhookconfigurations,validatingwebhookconfigurations --all >/dev/null; }

# Ends the program $1 as a computer does that fails.
kill_hard() {
	kill -KILL "${pids[$1]}"
	wait "${pids[$1]}" 2>/dev/null || true
	unset "pids[$1]"
}

# Whether the pool $1 has $2 machines, and no others: available, and of its present template.
has_machines() {
	has_replicas "$1" "$2" && [ "$(machines "$1" | wc -w)" = "$2" ]
}
# Machines in deletion do not count.
has_available() { [ "$(field machinedeployment "$1" '{.status.availableReplicas}')" = "$2" ]; }
# Whether the pool $1 has $2 machines of the class $3, or more.
has_of_class() {
	[ "$(in_fleet get machines --selector "name=$1" --output 'jsonpath={range .items[*]}{.spec.class.name}{"\n"}{end}' | grep -cx "$3")" -ge "$2" ]
}
roll() { patch machinedeployment "$1" "{\"spec\":{\"template\":{\"spec\":{\"class\":{\"name\":\"$2\"}}}}}"; }
resize() { patch machinedeployment "$1" "{\"spec\":{\"replicas\":$2}}"; }
pause() { patch machinedeployment "$1" "{\"spec\":{\"paused\":$2}}"; }

pool() { deployment "$1" 3 small | sed "s|^    spec: {|&nodeTemplate: {metadata: {labels: {example.com/pool: $1}}}, |"; }

# Three pools of three machines: `rest`, which has one in deletion besides, as a budget holds its drain, one preserved, and one that is to
# go first; `paused`, in the middle of a rollout; `moving`, which is rolled later.
make_fleet() {
	local names
	kube create namespace "$namespace" >/dev/null
	in_fleet create secret generic user-data --from-literal=userData=test >/dev/null
	start_first
	{
		class small small user-data
		class large large user-data
		pool rest
		pool paused
		pool moving
	} | apply
	eventually has_machines rest 3
	eventually has_machines paused 3
	eventually has_machines moving 3
	roll paused large
	eventually has_of_class paused 1 large
	pause paused true
	mapfile -t names < <(machines rest | tr ' ' '\n' | sed 's/=.*//')
	preserved=${names[0]} first=${names[1]}
	in_fleet annotate machine "$preserved" node.machine.sapcloud.io/preserve=now >/dev/null
	in_fleet annotate --overwrite machine "$first" machinepriority.machine.sapcloud.io=1 example.com/owner=test >/dev/null
	eventually is_preserved
	hold_drain
	eventually has_available rest 3
	eventually has_available paused 4
	saw="$(vms) VMs; one pool at rest, one paused, one that moves"
}
is_preserved() { [ -n "$(field machine "$preserved" '{.status.currentStatus.preserveExpiryTime}')" ]; }

# Deletes a machine of the pool `rest`, sets $held to its name, and has a Pod on its Node that may not be evicted.
hold_drain() {
	local node
	held=$(another)
	node=$(field machine "$held" '{.metadata.labels.node}')
	eventually in_fleet get serviceaccount default >/dev/null 2>&1
	apply <<-END
		apiVersion: policy/v1
		kind: PodDisruptionBudget
		metadata: {name: held}
		spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
		---
		apiVersion: v1
		kind: Pod
		metadata: {name: held, labels: {app: held}}
		spec: {nodeName: $node, terminationGracePeriodSeconds: 1, containers: [{name: a, image: example.com/a}]}
	END
	eventually is_protected
	in_fleet delete machine "$held" --wait=false >/dev/null
}
# A machine of the pool `rest` that nobody has marked.
another() { machines rest | tr ' ' '\n' | sed "/^$preserved=/d; /^$first=/d; s/=.*//" | head -n 1; }
is_protected() { [ "$(field poddisruptionbudget held '{.status.currentHealthy}/{.status.disruptionsAllowed}')" = 1/0 ]; }

# The drain ends once it may, and the machine with it.
release_drain() {
	[ -n "$(field machine "$held" '{.metadata.deletionTimestamp}')" ] || die "machine $held is gone before its drain may end"
	violated held || in_fleet delete poddisruptionbudget held >/dev/null
	eventually is_gone machine "$held"
	eventually has_machines rest 3
	one_vm_each
	saw="the machine is gone, 3 others stay"
}

# Rolls the pool `moving` to the class $1 until it is halfway, ends what runs by the command $2, and has the manager go on that the rest
# of the arguments start: each object at rest is as before, and the rollout ends with no machine too many.
hand_over() {
	local class=$1 stop=$2 names mark event
	shift 2
	mark=$(audit_mark) event=$(event_mark)
	roll moving "$class"
	eventually has_of_class moving 2 "$class"
	$stop
	! has_machines moving 3 || die "the rollout has ended before the hand-over"
	before_record
	record before
	after_record
	start_alone "$@"
	eventually has_machines moving 3
	# What comes with a delay comes until then.
	sleep 5
	record after
	unchanged
	equals "$(created_since "$mark" "$event")" '3 machines, 3 VMs' "what the rollout made"
	names=$(in_fleet get machines --selector name=moving --output 'jsonpath={.items[*].spec.class.name}')
	equals "$names" "$class $class $class" "the list of classes"
	saw="$(grep -vcE "^($(progress))" "$states/before") fields at rest are the same; the rollout made 3 machines"
}

# The violations of a hand-over: before the state is recorded, and after.
before_record() {
	if violated rolled; then
		remove_webhooks
		patch machinedeployment rest '{"spec":{"template":{"metadata":{"labels":{"planted":"yes"}}}}}'
	fi
}
after_record() {
	if violated lost; then in_fleet annotate machine "$first" example.com/owner- >/dev/null; fi
	if violated vm; then delete_of_cloud "/vms/$(field machine "$preserved" '{.spec.providerID}' | sed 's|.*/||')"; fi
	if violated drain; then in_fleet delete poddisruptionbudget held >/dev/null; fi
	if violated more; then
		apply <<-END
			{apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {name: moving-more, labels: {name: more}},
			spec: {class: {kind: MachineClass, name: small}}}
		END
	fi
}

# Writes all objects and VMs, field by field, as the state $1.
record() {
	in_fleet get "$kinds,secrets,nodes" --output json | "$objects" fields >"$states/$1"
	curl --silent --fail "$cloud/vms?limit=1000" | "$objects" fields >>"$states/$1"
	LC_ALL=C sort --output="$states/$1" "$states/$1"
}

# What a rollout of the pool `moving`, and the drain of the machine $held, change as they go on. Messages of `Reconciling` say what is waited
# for at the moment.
progress() {
	printf '%s' '(Machine|MachineSet|Node|VM)/moving-[^ ]* |MachineDeployment/moving \.status\.' \
		'|MachineDeployment/moving \.metadata\.annotations\.\[deployment\.kubernetes\.io/revision\]=' \
		'|MachineClass/[^ ]* \.status\.(machines|conditions\[InUse\]\.(message|lastTransitionTime))=' \
		'|MachineDeployment/[^ ]* \.status\.conditions\[Reconciling\]\.message=' \
		"|Machine/$held \.status\.(lastOperation\.|conditions\[Drained\]\.message=)" \
		"|(MachineDeployment|MachineSet)/rest[^ ]* \.status\.failedMachines(\[$held\]|=)"
}

# Fails if the state `after` differs from the state `before`, apart from that progress and from $adds.
unchanged() {
	local changes
	changes=$(diff "$states/before" "$states/after" | grep '^[<>]' | grep -vE "^([<>] ($(progress))|$adds)" || true)
	[ -z "$changes" ] || die "objects have changed (< before, > after): $(head -n 20 <<<"$changes")"
}

# Fails unless each machine has one VM, each VM one machine, and no machine has ever had a second VM.
one_vm_each() {
	local twice
	equals "$(names_of "$cloud/vms?limit=1000" '"providerID"' | sort)" \
		"$(in_fleet get machines --output 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | sort)" "the list of VMs"
	twice=$(names_of "$cloud/events?limit=1000" '"kind":"create-accepted"' | sort | uniq --repeated)
	equals "$twice" '' "the list of machines that had a second VM"
}

# The names in what the cloud answers at $1, of elements with $2.
names_of() { curl --silent --fail "$1" | sed 's/{"number":\|{"id":/\n&/g' | grep -F "$2" | sed 's/.*"name":"\([^"]*\)".*/\1/' || true; }

# How many machines and VMs were made since line $1 of the audit log and event $2 of the cloud.
created_since() {
	printf '%s machines, %s VMs' "$(tail -n "+$(($1 + 1))" "$audit_log" | grep '"stage":"ResponseComplete"' |
		grep '"resource":"machines"' | grep '"code":201' | grep -vc 'dryRun=All' || true)" \
		"$(names_of "$cloud/events?limit=1000&after=$2" '"kind":"create-accepted"' | wc -l)"
}
event_mark() { curl --silent --fail "$cloud/events?limit=1000" | grep -o '"number":[0-9]*' | tail -n 1 | tr -dc 0-9; }

# The CRDs of $1 come while what was there runs, as they come first in an upgrade. They accept each stored object as a new one, with its
# status: the API server lets values pass that an update leaves as they are.
accepted() {
	apply_crds "$1/crd"
	if planted "$2"; then plant_strict_crds; fi
	kube create namespace copies >/dev/null
	in_fleet get "$kinds" --output json | "$objects" copy copies >"$scratch/copies.json"
	saw="$(kube create --validate=strict --filename "$scratch/copies.json" | wc -l) objects"
	kube replace --validate=strict --subresource=status --filename "$scratch/copies.json" >/dev/null
	kube delete namespace copies >/dev/null
}
new_crds() { accepted "$root/config" crds; }

# The webhooks accept each stored object as a new one: they are not asked about an update that changes nothing.
serves_webhooks() {
	if planted webhooks; then stop this; fi
	in_fleet get "$kinds" --output json | "$objects" copy "$namespace" >"$scratch/copies.json"
	saw="$(kube create --dry-run=server --validate=strict --filename "$scratch/copies.json" 2>"$scratch/refused" | wc -l) objects" ||
		die "refused: $(head -n 5 "$scratch/refused")"
}

# CRDs that refuse what is stored.
plant_strict_crds() {
	kube patch crd machinedeployments.machine.sapcloud.io --type=json --patch '[{"op": "add", "path":
		"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum", "value": 2}]' >/dev/null
	sleep 2
}

# Fails if anything is written at rest, from a minute after the start of the manager on.
rests() {
	local mark versions
	while [ "$SECONDS" -lt "$((began + 60))" ]; do sleep 1; done
	mark=$(audit_mark)
	versions=$(resource_versions)
	if violated rest; then resize rest 4; fi
	sleep 20
	equals "$(writes_since "$mark" nodewright)" '' "what was written at rest"
	equals "$(resource_versions)" "$versions" "the list of resourceVersions"
	saw="no write in 20 s"
}
resource_versions() {
	in_fleet get "$kinds" --output 'jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}'
}
