# shellcheck shell=bash
# Sourced by test-gitops-flux.sh and test-gitops-argocd.sh after lib-go.sh. Starts a control plane, a cloud, a manager and a git server,
# each on free ports of the loopback, and ends them with the script.
# Defines: what lib-fleet.sh does, and $binaries, start_manager, start_git, commit, edit, record_history, and what scenarios ask.

# shellcheck source-path=SCRIPTDIR source=lib-fleet.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-fleet.sh"

binaries=$("$root/hack/gitops.sh")
# shellcheck disable=SC2034 # Used by the scripts that source this.
pool=demo-pool
# git may not read what the user has.
export GIT_CONFIG_GLOBAL=$scratch/gitconfig GIT_CONFIG_NOSYSTEM=1
mkdir -p "$scratch"/{git,work,home,history,artifacts}
evidence+=("$scratch/history")

show_state() {
	kube get machinedeployments,machinesets,machines,machineclasses --all-namespaces --output wide
	show_tool
	kube get machinedeployments --all-namespaces --output yaml --show-managed-fields
}

# Starts the manager, with webhooks, and waits until it is ready. The namespace has to exist.
start_manager() {
	local port webhook_port
	{ read -r port && read -r webhook_port; } < <(ports 2)
	NODEWRIGHT_CLOUD_URL=$cloud MALLOC_ARENA_MAX=1 start manager "$products/nodewright" manager \
		"--control-kubeconfig=$KUBECONFIG" "--target-kubeconfig=$KUBECONFIG" "--namespace=$namespace" --address=127.0.0.1 \
		"--port=$port" "--driver=$products/nodewright-driver-simulated" --webhooks --webhook-address=127.0.0.1 \
		--webhook-host=127.0.0.1 "--webhook-port=$webhook_port"
	eventually curl --silent --fail --output /dev/null "http://127.0.0.1:$port/readyz"
	eventually webhooks_answer
}

# Whether the API server asks the webhooks: what it stores has defaults.
webhooks_answer() {
	kube create --dry-run=server --output 'jsonpath={.spec.strategy.type}' --filename - 2>/dev/null <<-END | grep -q Rolling
		{apiVersion: machine.sapcloud.io/v1alpha1, kind: MachineDeployment, metadata: {name: probe, namespace: $namespace},
		spec: {replicas: 0, selector: {matchLabels: {name: probe}}, template: {metadata: {labels: {name: probe}},
		spec: {class: {kind: MachineClass, name: probe}}}}}
	END
}

# A repository with what a cluster has once in cluster/, and a fleet in fleet/.
start_git() {
	git config --global user.name test
	git config --global user.email test@example.com
	git init --quiet --bare --initial-branch=main "$scratch/git/fleet.git"
	git clone --quiet "$scratch/git/fleet.git" "$scratch/work" 2>/dev/null
	start git "$binaries/helper" git-server "$scratch/git" "$scratch/git-url"
	eventually test -s "$scratch/git-url"
	# shellcheck disable=SC2034 # Used by the scripts that source this.
	repository=$(cat "$scratch/git-url")/fleet.git
	mkdir "$scratch/work"/{config,cluster,fleet}
	cp -r "$root"/config/{crd,guard} "$scratch/work/config/"
	cp "$root/config/cluster/kustomization.yaml" "$scratch/work/cluster/"
	sed -i 's|\.\./|../config/|' "$scratch/work/cluster/kustomization.yaml"
	cp "$root"/config/samples/{secret,machine_class,machine_deployment}.yaml "$scratch/work/fleet/"
	cat >"$scratch/work/fleet/namespace.yaml" <<-END
		apiVersion: v1
		kind: Namespace
		metadata: {name: $namespace}
	END
	write_fleet namespace secret machine_class machine_deployment
	commit "A fleet"
}

# Makes fleet/ consist of the files $@.
write_fleet() {
	printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: %s\nresources:\n' "$namespace"
	printf -- '- %s.yaml\n' "$@"
} >"$scratch/work/fleet/kustomization.yaml"

# Changes the file $1 of the repository by the sed script $2.
edit() {
	cp "$scratch/work/$1" "$scratch/before"
	sed -i "$2" "$scratch/work/$1"
	! cmp -s "$scratch/work/$1" "$scratch/before" || die "'$2' does not change $1"
}

# Commits and pushes the repository with the subject $1, and sets $commit.
commit() {
	git -C "$scratch/work" add --all
	git -C "$scratch/work" commit --quiet --message "$1"
	push
}

push() {
	git -C "$scratch/work" push --quiet origin main
	# shellcheck disable=SC2034 # Used by the scripts that source this.
	commit=$(git -C "$scratch/work" rev-parse HEAD)
}

# Whether the pool $1 has $2 machines, all available, and $3 VMs exist.
has_machines() {
	has_replicas "$1" "$2" && has_vms "$3"
}

has_vms() { [ "$(vms)" = "$1" ]; }

has_pool() { [ -n "$(in_fleet get machinedeployment "$pool" --ignore-not-found --output name 2>/dev/null)" ]; }

# The versions of all that git has and of what Nodewright makes of it.
versions() {
	in_fleet get machinedeployments,machinesets,machines,machineclasses,secrets,namespaces --output \
		'jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}'
}

# How often the user agent $2 has compared the object with the URI $3 after line $1 of the audit log, by dry runs.
comparisons_since() {
	tail -n "+$(($1 + 1))" "$audit_log" | grep '"stage":"ResponseComplete"' | grep "\"userAgent\":\"$2" | grep "$3?.*dryRun=All" |
		wc -l
}

# Runs a watch for each of the lines of the function `watches` and for Machines, into files. Such a line has a resource, its namespace,
# a name and a JSONPath. Each line of a file begins with the resourceVersion, which orders the writes of all kinds.
record_history() {
	local resource where name path
	rm -f "$scratch/history"/*
	while IFS='|' read -r resource where name path; do
		start "watch-$name" bash -c 'exec "$@" >"$0"' "$scratch/history/$name" "$kubectl" get "$resource" --namespace "$where" --watch \
			--output-watch-events --output "jsonpath={.object.metadata.resourceVersion}|$name|{.type}|$path{'\n'}"
		eventually test -e "$scratch/history/$name"
	done < <(watches; watch_of_machines)
}

watch_of_machines() {
	printf '%s|' machines "$namespace" machine '{.object.metadata.name}' '{.object.metadata.deletionTimestamp}' '{.object.spec.class.name}' \
		'{.object.spec.nodeTemplate.metadata.labels.pool}'
	printf '%s\n' '{.object.status.currentStatus.phase}'
}

# Ends the watches, and prints what they saw in its order.
history() {
	# A watch is some milliseconds behind.
	sleep 1
	stop watch-machine
	stop watch-tool
	sort -n "$scratch"/history/machine "$scratch"/history/tool
}
