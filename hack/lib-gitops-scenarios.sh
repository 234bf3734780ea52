# shellcheck shell=bash
# Sourced by test-gitops-flux.sh and test-gitops-argocd.sh after lib-gitops.sh: the scenarios of both. Each prints what it saw, from $saw.
#
# They need of the tool:
#   $tool, $agent, $own          its name, the user agent of its writes, a pattern of its own objects
#   $healthy, $progressing       what its history says of a fleet that is healthy, and the end of that of one that is on the way
#   revision                     how it names the commit $1
#   is_ready, is_refused         whether the application $1 is healthy with the last commit; whether it is not, with a message with $2
#   message                      what it says of the application $1
#   reconciles                   waits until it has compared the fleet with git $1 times
#   size_from_git                makes it enforce `replicas` in git (yes), or not after the object is made (no)
#   stop_pruning, suspend, delete_application

# Reads a history, and prints when the tool said that the fleet is healthy with the commit $1 before there were three running machines
# with the class $2, and no other ones; and in the end, on standard error, what it saw.
check_history() {
	awk -F'|' -v revision="$(revision "$1")" -v class="$2" -v healthy="$healthy" -v progressing="$progressing" '
		$2 == "machine" {
			if ($3 == "DELETED" || $5 != "" || $8 == "Terminating") delete machines[$4]
			else machines[$4] = $6 "/" $8
			new = others = 0
			for (name in machines) if (machines[name] == class "/Running") new++; else others++
			complete = new == 3 && others == 0
			if (complete && !done) done = $1
		}
		$2 == "tool" && $4 == "fleet" && ($6 == revision || $7 == revision) {
			if (!complete && $5 ~ progressing "$") meanwhile++
			if ($5 == healthy && !complete) print "healthy at version " $1 " with " new " of 3 new machines, and " others " others"
			if ($5 == healthy && $6 == revision && complete && !ready) ready = $1
		}
		END {
			if (!ready) print "never healthy"
			if (!meanwhile) print "never " progressing
			printf "%s %d times, then 3 machines at version %s, then %s at %s\n", progressing, meanwhile, done, healthy, ready > "/dev/stderr"
		}'
}

# Checks the history of a rollout to class $1 by the last commit.
check_health() {
	local wrong
	eventually is_ready fleet
	history >"$scratch/history/all"
	wrong=$(check_history "$commit" "$1" <"$scratch/history/all" 2>"$scratch/history/summary")
	equals "$wrong" '' "what is wrong with the health"
	saw=$(cat "$scratch/history/summary")
}

# What the tool says of the application $1, from the first $2 on.
excerpt() { message "$1" | tr '\n' ' ' | grep -o "$2.*" | head -c 130 || true; }

applied() {
	record_history
	start_manager
	eventually has_machines "$pool" 3 3
	check_health demo-small
}

# What the tool has written since line $1 of the audit log, besides its own objects.
wrote_since() { writes_since "$1" "$agent" | grep -v "$own" || true; }

# Neither what webhooks and controllers write, nor time, is drift.
at_rest() {
	local mark before
	mark=$(audit_mark)
	before=$(versions)
	if planted rest; then in_fleet label machinedeployment "$pool" touched=yes >/dev/null; fi
	reconciles 4
	equals "$(versions)" "$before" "the list of resourceVersions"
	equals "$(wrote_since "$mark")" '' "what $tool wrote at rest"
	saw="no write in 4 reconciliations"
}

replicas_are() { [ "$(field mcd "$pool" '{.spec.replicas}')" = "$1" ]; }

# The tool takes back what the autoscaler does, if it is to.
replicas_in_git() {
	size_from_git yes
	in_fleet scale machinedeployment "$pool" --replicas=4 >/dev/null
	eventually replicas_are 3
	eventually has_machines "$pool" 3 3
	saw="4 by kubectl scale became 3"
}

# Gardener's autoscaler reads a MachineDeployment and updates it (PUT); kubectl scale uses the subresource.
as_autoscaler() {
	in_fleet get machinedeployment "$pool" --output json | sed "s/^        \"replicas\": [0-9]*/        \"replicas\": $1/" |
		kube replace --filename - --raw \
			"/apis/machine.sapcloud.io/v1alpha1/namespaces/$namespace/machinedeployments/$pool?fieldManager=cluster-autoscaler"
}

# Scales to $1 by the command that follows, and checks that the tool lets it be.
scale() {
	local to=$1 mark
	shift
	mark=$(audit_mark)
	"$@" >/dev/null
	reconciles 3
	equals "$(field mcd "$pool" '{.spec.replicas}')" "$to" "replicas after $*"
	eventually has_machines "$pool" "$to" "$to"
	equals "$(wrote_since "$mark")" '' "what $tool wrote after $*"
}

# Nobody fights over the size, and a commit that changes something else leaves it alone.
scaled() {
	planted replicas || size_from_git no
	reconciles 1
	scale 5 as_autoscaler 5
	scale 2 in_fleet scale machinedeployment "$pool" --replicas=2
	edit fleet/machine_deployment.yaml 's/maxUnavailable: 0/maxUnavailable: 1/'
	commit "Another bound"
	eventually is_ready fleet
	equals "$(field mcd "$pool" '{.spec.replicas} {.spec.strategy.rollingUpdate.maxUnavailable}')" '2 1' "replicas and maxUnavailable"
	scale 3 as_autoscaler 3
	eventually is_ready fleet
	saw="to 5, 2 and 3, by update and by kubectl scale, without a write of $tool; a commit in between left it alone"
}

# Another class is another template: the machines are replaced.
rolled() {
	write_large_class
	edit fleet/machine_deployment.yaml 's/name: demo-small/name: demo-large/'
	record_history
	commit "Larger machines"
	check_health demo-large
	eventually has_machines "$pool" 3 3
}

write_large_class() {
	sed 's/demo-small/demo-large/; s/size: small/size: large/' "$scratch/work/fleet/machine_class.yaml" >"$scratch/work/fleet/large.yaml"
	write_fleet namespace secret machine_class large machine_deployment
}

revert() {
	git -C "$scratch/work" revert --no-edit HEAD >/dev/null
	push
}

reverted() {
	record_history
	revert
	check_health demo-small
	eventually has_machines "$pool" 3 3
	eventually is_gone machineclass demo-large
}

# An object that git does not have any more goes with its machines, and nothing else does.
pruned() {
	local uids
	sed 's/demo-pool/extra/; s/replicas: 3/replicas: 2/' "$scratch/work/fleet/machine_deployment.yaml" >"$scratch/work/fleet/extra.yaml"
	write_fleet namespace secret machine_class machine_deployment extra
	commit "Another pool"
	eventually is_ready fleet
	has_machines extra 2 5 || die "healthy without two more machines"
	uids=$(machines "$pool")
	rm "$scratch/work/fleet/extra.yaml"
	write_fleet namespace secret machine_class machine_deployment
	if planted prune; then stop_pruning; fi
	commit "One pool is enough"
	eventually is_gone machinedeployment extra
	eventually has_vms 3
	eventually is_ready fleet
	equals "$(machines extra)" '' "the list of machines of the pool that was removed"
	equals "$(machines "$pool")" "$uids" "the list of machines of the other pool"
	saw="2 machines and VMs are gone, 3 stay"
}

# The labels of Nodes in the template. The sample has the first.
labels_are() {
	local labels='{.spec.template.spec.nodeTemplate.metadata.labels'
	[ "$(field mcd "$pool" "$labels.pool}/$labels.more}")" = "$1" ]
}
is_another() {
	local uid
	uid=$(field mcd "$pool" '{.metadata.uid}')
	[ -n "$uid" ] && [ "$uid" != "$1" ]
}

# What somebody changes by hand is taken back before it costs a machine; what somebody deletes is made again.
drift() {
	local uids before
	uids=$(machines "$pool")
	before=$(field mcd "$pool" '{.metadata.uid}')
	if planted drift; then suspend; fi
	in_fleet patch machinedeployment "$pool" --type=merge --patch \
		'{"spec":{"template":{"spec":{"nodeTemplate":{"metadata":{"labels":{"pool":"by-hand"}}}}}}}' >/dev/null
	eventually labels_are "$pool/"
	eventually has_machines "$pool" 3 3
	equals "$(machines "$pool")" "$uids" "the list of machines"
	in_fleet delete machinedeployment "$pool" --wait=false >/dev/null
	eventually is_another "$before"
	eventually has_machines "$pool" 3 3
	eventually is_ready fleet
	saw="a label is taken back without a machine lost; a deleted MachineDeployment is there again, with new machines"
}

surge() { field mcd "$pool" '{.spec.strategy.rollingUpdate.maxSurge}'; }

# While no manager runs, nothing that is at rest changes; a commit waits for its webhooks.
webhooks_down() {
	stop manager
	reconciles 2
	is_ready fleet || die "not healthy at rest without webhooks: $(message fleet)"
	edit fleet/machine_deployment.yaml 's/maxSurge: 1/maxSurge: 2/'
	if planted webhooks; then kube delete validatingwebhookconfigurations,mutatingwebhookconfigurations --all >/dev/null; fi
	commit "Faster"
	eventually is_refused fleet 'failed calling webhook'
	saw=$(excerpt fleet 'failed calling webhook')
	equals "$(surge)" 1 maxSurge
	start_manager
	eventually is_ready fleet
	equals "$(surge)" 2 maxSurge
}

# What is invalid is refused with the name of the field, and the next commit heals it.
invalid() {
	local generation value=x%
	if planted invalid; then value=3; fi
	generation=$(field mcd "$pool" '{.metadata.generation}')
	edit fleet/machine_deployment.yaml "s/maxSurge: 2/maxSurge: $value/"
	commit "A mistake"
	eventually is_refused fleet 'spec.strategy.rollingUpdate.maxSurge'
	saw=$(excerpt fleet 'spec.strategy.rollingUpdate.maxSurge')
	equals "$(field mcd "$pool" '{.metadata.generation}')" "$generation" "the generation"
	edit fleet/machine_deployment.yaml 's/maxSurge: x%/maxSurge: 1/'
	commit "No mistake"
	eventually is_ready fleet
	equals "$(surge)" 1 maxSurge
}

# A second manager of fields, which applies on the server, keeps what it owns.
two_managers() {
	local said
	# kubectl warns that it cannot take over what Argo CD has applied on the client, which it is not meant to.
	said=$(in_fleet apply --server-side --field-manager=team-b --filename - 2>&1 <<-END
		apiVersion: machine.sapcloud.io/v1alpha1
		kind: MachineDeployment
		metadata: {name: $pool, labels: {team: b}, annotations: {example.com/owner: b}}
		spec: {minReadySeconds: 1}
	END
	) || die "$said"
	edit fleet/machine_deployment.yaml 's/maxSurge: 1/maxSurge: 2/'
	if planted managers; then edit fleet/machine_deployment.yaml 's/^  name: demo-pool/&\n  labels: {team: a}/'; fi
	commit "Faster, again"
	eventually is_ready fleet
	reconciles 3
	equals "$(surge)" 2 maxSurge
	equals "$(field mcd "$pool" '{.metadata.labels.team} {.metadata.annotations.example\.com/owner} {.spec.minReadySeconds}')" 'b b 1' \
		"what the other manager owns"
	saw="a label, an annotation and a field stay, over a commit and 3 reconciliations"
}

# The cloud refuses to make VMs, until faults are removed.
refuse_vms() {
	curl --silent --fail --output /dev/null "$cloud/faults" \
		--data '{"operation":"create","for_seconds":600,"effect":{"kind":"error","code":"ResourceExhausted"}}'
}
allow_vms() { curl --silent --fail --output /dev/null --request DELETE "$cloud/faults"; }

# What does not come up is a failure once the deadline of the MachineDeployment is over, and a revert heals it.
stalled() {
	planted stalled || refuse_vms
	write_large_class
	edit fleet/machine_deployment.yaml 's/name: demo-small/name: demo-large/; s/^spec:$/&\n  progressDeadlineSeconds: 8/'
	commit "Machines that the provider does not have"
	eventually has_failed
	allow_vms
	revert
	eventually is_ready fleet
	eventually has_machines "$pool" 3 3
}

# The policies of config/guard keep the CRDs of machines, and so the machines, from a commit that leaves them out.
guarded() {
	local uids
	uids=$(machines "$pool")
	edit cluster/kustomization.yaml '/config\/crd/d'
	if planted guard; then kube annotate crd --all --field-manager=allow nodewright.dev/allow-deletion=true >/dev/null; fi
	commit "No CRDs"
	eventually is_refused cluster 'its objects would be deleted with it'
	saw=$(excerpt cluster 'its objects')
	revert
	eventually is_ready cluster
	eventually is_ready fleet
	equals "$(machines "$pool")" "$uids" "the list of machines"
}

has_no_namespace() { [ -z "$(kube get namespace "$namespace" --ignore-not-found --output name)" ]; }

# The application is deleted: the machines go before their namespace.
deleted() {
	delete_application
	eventually has_vms 0
	eventually has_no_namespace
	saw="no VM, no namespace"
}

# The scenarios of both. The order matters: each begins with what the one before has left.
run_scenarios() {
	scenario late_crds "CRDs and the manager come later than the fleet"
	scenario applied "a fleet in git is applied, and healthy when its machines run"
	scenario at_rest "at rest nothing is written"
	scenario replicas_in_git "replicas in git are restored, if they are enforced"
	scenario scaled "the autoscaler scales without a fight"
	scenario rolled "a commit rolls the fleet, which is not healthy before the last machine"
	scenario reverted "a revert rolls it back, not healthy before the last machine"
	scenario pruned "a pool that leaves git is pruned"
	scenario drift "drift is corrected"
	scenario webhooks_down "a commit waits for webhooks that are down"
	scenario invalid "an invalid commit is refused by field, and the next one heals"
	scenario two_managers "a second field manager keeps its fields"
	scenario stalled "machines that do not come are a failure"
	scenario guarded "what machines need and leaves git stays while there are machines"
}
