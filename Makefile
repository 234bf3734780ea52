# `make help` lists the targets, what they do and how long they take.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One target at a time: long targets use all cores, and tests share control planes.
.NOTPARALLEL:

# Where cargo puts executables.
target := $(or $(CARGO_TARGET_DIR),target)/debug
devcluster := $(target)/nodewright-devcluster
bench := $(target)/nodewright-bench
release := $(or $(CARGO_TARGET_DIR),target)/release

# The end-to-end tests mostly wait: run more of them at once than there are cores.
export RUST_TEST_THREADS ?= 4

# Additional flags for the manager of run, up, manager, writes, steady, soak, bench-drain, bench-fleet, bench-collector and bench-floor: make up MANAGER_FLAGS=--log-level=debug
MANAGER_FLAGS ?=
# What runs in the VMs of run and up: stand-ins, or real kubelets that run pods (as root): make run NODES=real
NODES ?= stand-ins
# The controllers of run and up: nodewright, or mcm for the real machine-controller-manager.
CONTROLLERS ?= nodewright
# What makes the VMs of run and up: the simulated cloud, or the AWS driver with moto's EC2: make run PROVIDER=aws
PROVIDER ?= simulated
# Size and length of writes, steady, bench-drain and soak.
MACHINES ?=
MINUTES ?= 11
# How many machines bench-fleet and bench-floor create and delete; a peer that does the same before, and its requests per second.
N ?= 1000
PEER ?=
PEER_QPS ?= 1000
# A commit that bench-fleet is compared with, and how many times both run; how often bench-collector runs.
BASE ?=
TURNS ?= 3

# In front of a command that uses moto's EC2.
moto = $(if $(filter aws,$(PROVIDER)),NODEWRIGHT_MOTO_SERVER=$$(hack/moto.sh) )

.PHONY: help
help: ## Print this help
	@echo "Usage: make TARGET"
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-20s%s\n", $$1, $$2} \
		/^#  +/ && described {sub(/^#  +/, ""); printf "  %-20s%s\n", "", $$0; next} \
		{described = /## /}' $(MAKEFILE_LIST)
	@echo
	@echo "Times are for two cores. The first of run, up, test, e2e, writes, steady and control-plane builds a Kubernetes"
	@echo "control plane from source (4 minutes, kept in ~/.cache/nodewright) and compiles everything (4 minutes)."
	@echo "Needed: Rust (rustup fetches the pinned release), Go 1.26 (fetched from PyPI if missing), a C compiler, make, bash."

##@ Try it

.PHONY: run
run: build control-plane $(if $(filter mcm,$(CONTROLLERS)),mcm) ## Start a control plane, a cloud and the manager, and show three machines; Ctrl-C ends all (10 s)
#  NODES=real: the machines are VMs with real kubelets that run pods. Needs root and packages, and says which.
#  CONTROLLERS=mcm runs the real machine-controller-manager in Nodewright's place (2 minutes more at first).
#  PROVIDER=aws makes the machines with the AWS driver, of moto's EC2 (2 minutes more at first).
	@$(moto)$(devcluster) run --nodes=$(NODES) --controllers=$(CONTROLLERS) --provider=$(PROVIDER) -- $(MANAGER_FLAGS)

.PHONY: up
up: build control-plane $(if $(filter mcm,$(CONTROLLERS)),mcm) ## The same in the background; `. .run/env` sets KUBECONFIG and PATH (10 s)
	@$(moto)$(devcluster) up --nodes=$(NODES) --controllers=$(CONTROLLERS) --provider=$(PROVIDER) -- $(MANAGER_FLAGS)

.PHONY: down
down: ## End what run or up started (1 s)
	@[ -x $(devcluster) ] || cargo build --locked --quiet --package nodewright-e2e-lab
	@$(devcluster) down

.PHONY: manager
manager: build ## Start the manager again, after it was killed (2 s)
#  kill -9 $(cat .run/pids/manager); make manager MANAGER_FLAGS=--machine-health-timeout=30s
	@$(devcluster) manager -- $(MANAGER_FLAGS)

##@ Measure it

.PHONY: writes
writes: build-bench control-plane ## Count the API requests that a machine costs, with MACHINES=20, and compare status writes for 10, 100, 400 machines (6 minutes)
	@$(bench) writes --machines=$(or $(MACHINES),20) -- $(MANAGER_FLAGS)

.PHONY: steady
steady: build-bench control-plane ## Check that a fleet at rest causes no write, with MACHINES=10 for MINUTES=11 (12 minutes)
	@$(bench) steady --machines=$(or $(MACHINES),10) --minutes=$(MINUTES) -- $(MANAGER_FLAGS)

.PHONY: bench-drain
bench-drain: build-bench control-plane ## Drain MACHINES=20 nodes with 200 pods at once: time against what budgets and volumes force (2 minutes)
#  Fails when it takes more than 1.5 times as long, when a disruption budget is broken, or with too many evictions at once.
	@$(bench) drain --nodes=$(or $(MACHINES),20) -- $(MANAGER_FLAGS)

.PHONY: bench-pools
bench-pools: build-bench control-plane ## Compare what a node of a large and of a small pool costs, and count what pools at rest do (12 minutes)
#  First 100 and 1,000 nodes are moved to another configuration: fails if a node of many costs over 1.2 times as much, in counts of a
#  simulation, and in the manager's CPU on a real control plane. Then as quiet-pools, on a real control plane for MINUTES=5: 50 pools,
#  2,000 MachineConfigs, 1,000 Nodes. Fails unless nothing is rendered or written until a MachineConfig changes.
	@cargo test --locked --package nodewright-e2e-simulation --test budget -- --ignored --nocapture a_node_of_a_large_pool
	@$(bench) pool-rollout -- $(MANAGER_FLAGS)
	@$(bench) pools $(if $(filter command line environment,$(origin MINUTES)),--minutes=$(MINUTES)) -- $(MANAGER_FLAGS)

.PHONY: bench-runtime
bench-runtime: ## Compare the runtime with kube-runtime: memory, look-ups by owner, reconciles per second, latency (3 minutes)
#  Fails when a goal is missed. Needs an idle computer with 9 GiB of free memory; compiles for 5 minutes at first.
	cargo bench --locked --package nodewright-runtime --bench runtime

# The programs of the benches that run a manager of a release build. Each takes a minute and more to link.
build_release_bench := cargo build --locked --release --package nodewright --package nodewright-driver-simulated \
	--package nodewright-e2e-lab --package nodewright-e2e-bench \
	--bin nodewright --bin nodewright-driver-simulated --bin nodewright-cloud --bin nodewright-bench

.PHONY: bench-fleet
bench-fleet: control-plane $(if $(filter mcm,$(PEER)),mcm) ## Time, CPU, memory and requests of N=1000 machines, release build (80 s)
#  Fails when a goal is missed. The release build takes 15 minutes at first; N=10000 takes 13 minutes. PEER=mcm compares with
#  machine-controller-manager in the same run (5 minutes); it may send PEER_QPS=1000 requests per second, by default 20.
#  BASE=COMMIT builds that commit, runs both in TURNS=3 turns, and prints medians and ratios (45 minutes at first, then 6).
ifneq ($(BASE),)
	@hack/bench-base "$(BASE)" "$(N)" "$(TURNS)"
else
	@$(build_release_bench)
	@$(release)/nodewright-bench fleet --machines=$(N) $(if $(PEER),--peer=$(PEER) --peer-qps=$(PEER_QPS)) -- $(MANAGER_FLAGS)
endif

.PHONY: bench-collector
bench-collector: control-plane ## Compare a manager without traces, with a collector, and with one that is away, slow or hangs, N=500, in TURNS=3, release build (25 minutes)
#  Fails when a goal is missed. The release build takes 15 minutes at first.
	@$(build_release_bench)
	@$(release)/nodewright-bench collector --machines=$(if $(filter command line environment,$(origin N)),$(N),500) --turns=$(TURNS) -- $(MANAGER_FLAGS)

.PHONY: bench-restart
bench-restart: control-plane ## Kill the manager of N=10000 machines and start it again: time until it decides, writes, memory, release build (10 minutes)
#  Fails when a goal is missed. The release build takes 15 minutes at first.
	@$(build_release_bench)
	@$(release)/nodewright-bench restart --machines=$(if $(filter command line environment,$(origin N)),$(N),10000) -- $(MANAGER_FLAGS)

.PHONY: bench-floor
bench-floor: control-plane ## Replay the requests of N=1000 machines without the manager: the time that none can beat (5 minutes)
#  Fails when the manager takes more than 1.3 times as long up, or 1.5 times down. Prints the API server's CPU for each kind of
#  request. The release build takes 15 minutes at first.
	@$(build_release_bench)
	@$(release)/nodewright-bench floor --machines=$(N) -- $(MANAGER_FLAGS)

.PHONY: bench-scrape
bench-scrape: ## Render a scrape of 10,000 machines: time, bytes, allocations, release build (1 s)
#  Fails when a goal is missed. The release build takes 15 minutes at first.
	@cargo test --locked --release --package nodewright-e2e-simulation --test scrape -- --ignored --nocapture bench

.PHONY: bench-instructions
bench-instructions: ## Count the instructions of a manager at work by crate and controller, with valgrind
#  The work of `make budget` for 100 machines, in a release build, which takes 10 minutes and more at first.
	@command -v valgrind >/dev/null || { echo "bench-instructions needs valgrind; install valgrind, for example by: apt-get install valgrind"; exit 1; }
	@cargo build --locked --release --package nodewright-e2e-bench
	@$(release)/nodewright-bench instructions

.PHONY: hot-functions
hot-functions: control-plane ## Write which functions a manager runs, which the linker puts side by side, with valgrind (2 minutes)
#  Into controllers/manager/hot-functions.txt. The release build takes 15 minutes at first.
	@$(build_release_bench)
	@hack/hot-functions

##@ Break it

# Parts of the names of the attacks of hostile.
ONLY ?=
# A single run of simulate, by its seed or from a file; or how many minutes to run.
SEED ?=
REPLAY ?=
SIMULATED = $(if $(REPLAY),--replay="$(REPLAY)") $(if $(SEED),--seed=$(SEED)) \
	$(if $(filter command line environment,$(origin MINUTES)),--minutes=$(MINUTES))

.PHONY: simulate
simulate: ## Run managers in 6,000 simulated clusters with all kinds of faults; SEED=7 shows one run (10 minutes)
#  Fails when an invariant is broken, and prints a run that breaks it. REPLAY=FILE repeats a run from a file, MINUTES=60
#  runs for an hour. Compiles for 5 minutes at first.
	@cargo build --locked --quiet --profile simulate --package nodewright-e2e-simulation
	@$(or $(CARGO_TARGET_DIR),target)/simulate/nodewright-simulation $(SIMULATED)

.PHONY: mutants
mutants: ## Check that the simulation notices changes for the worse in the product (20 minutes)
	@hack/mutants

.PHONY: rises
rises: ## Check that each line of the budget of counts fails on a rise in the product (20 minutes)
#  Fails unless each patch of e2e/rises raises its counts, and each line of docs/reference/budget.tsv rises with one of them.
	@hack/rises

# How many sequences of configs render-oracle compares. A seed repeats its sequence; without one they are new each time.
SEQUENCES ?= 20000

.PHONY: render-oracle
render-oracle: ## Merge and evaluate SEQUENCES=20000 generated Ignition configs, and compare with Ignition's own code (1 minute)
#  Fails at the first difference, which it makes as small as it can be, and prints its seed: SEED=7 SEQUENCES=1 repeats it.
	@SEQUENCES=$(SEQUENCES) SEED=$(SEED) cargo test --locked --package nodewright-render --test oracle -- --nocapture

# How many clusters templates-oracle draws, besides one of each kind.
CLUSTERS ?= 300

.PHONY: templates-oracle
templates-oracle: ## Render machine-config-operator's templates for CLUSTERS=300 generated clusters, and compare with its own code (5 minutes)
#  Byte for byte; fails at the first difference, and prints its seed: SEED=7 CLUSTERS=1 repeats it. NODEWRIGHT_MCO_SOURCE=DIR takes
#  machine-config-operator's source from there, else a clone (250 MB) is kept in ~/.cache/nodewright. Skipped if it cannot be cloned.
	@source=$$(hack/mco.sh source) || source=; NODEWRIGHT_MCO_SOURCE=$$source CLUSTERS=$(CLUSTERS) SEED=$(SEED) \
		cargo test --locked --package nodewright-render --test mco_templates -- --nocapture

.PHONY: quiet-pools
quiet-pools: ## Count renderings and writes of 50 pools at rest, 2,000 MachineConfigs and 1,000 Nodes that beat (1 minute)
#  Five minutes of simulated time. Fails unless both counts are 0.
	@cargo test --locked --package nodewright-e2e-simulation --test quiet_pools -- --ignored --nocapture

.PHONY: budget
budget: ## Write docs/reference/budget.tsv, the counts of a manager at work that a test compares (5 minutes)
#  Without it, `make test` fails when a manager does more than the table says, or less.
	UPDATE_BUDGET=1 cargo test --locked --workspace --test budget -- --include-ignored --test-threads=1 nothing_costs

.PHONY: soak
soak: build-bench control-plane ## Check deadlines, counts and quiet with default flags over a long time; MINUTES=40 (40 minutes)
#  VMs die, kubelets are silent, the API server restarts and is away, the leader is killed. Fails when a guarantee is
#  broken, and says which. Logs and the audit log stay in .run/soak.
	@$(bench) soak --directory=.run/soak $(if $(filter command line environment,$(origin MINUTES)),--minutes=$(MINUTES)) \
		-- $(MANAGER_FLAGS)

.PHONY: hostile
hostile: build-bench control-plane ## Attack devclusters by clocks, neighbours, restores, uninstalls, ports and objects; ONLY=reviews for one (9 minutes)
#  Prints one line for each attack with what was measured. Fails if one does harm.
	@$(bench) hostile $(if $(ONLY),--only=$(ONLY)) -- $(MANAGER_FLAGS)

##@ Change it

.PHONY: build
build: ## Compile the manager, its driver, the plugin, the fake cloud and the devcluster (4 minutes at first, then seconds)
	@cargo build --locked --package nodewright --package nodewright-driver-simulated --package kubectl-nodewright --package nodewright-e2e-lab \
		$(if $(filter aws,$(PROVIDER)),--package nodewright-driver-aws)

.PHONY: build-bench
build-bench:
	@cargo build --locked --package nodewright --package nodewright-driver-simulated --package nodewright-e2e-lab --package nodewright-e2e-bench

# With machine-controller-manager's CRDs, test runs what they change most: what an API server checks, fills in and prunes.
other_crds := creation errors sets undecodable

.PHONY: test
test: prepare-test ## Check everything: format, pages, workflows, lints, unit and end-to-end tests (45 minutes at first, then 25)
	@$(MAKE) --no-print-directory forget-times unit-test
	@$(MAKE) --no-print-directory scenario-test with_other_crds='$(other_crds)'
	@hack/test-times --slowest

# Builds and checks with Go, and with cargo at the same time: each leaves a core idle for a part of its time.
.PHONY: prepare-test
prepare-test:
	@$(MAKE) --no-print-directory control-plane docs-check workflows chart-check & \
		$(MAKE) --no-print-directory fmt-check clippy deny build-tests || { kill $$!; exit 1; }; wait $$!

.PHONY: build-tests
build-tests:
	cargo build --locked --workspace --all-targets

# Records how long each test takes.
timed := --config "target.'cfg(all())'.runner='hack/test-times'"

.PHONY: forget-times
forget-times:
	@hack/test-times --forget

.PHONY: test-fast
test-fast: ## Run unit tests, tables and the checks of the tree: what needs no control plane (2 minutes, once compiled)
#  Prints the ten slowest.
	@hack/test-times --forget
	cargo test --locked --workspace --lib --bins $(timed)
	cargo test --locked --workspace $(timed) --test tree --test mutants --test mcm_defects --test reasons --test crds --test fields --test names --test rights \
		--test stored --test tables --test manifests
	@hack/test-times --slowest

.PHONY: test-mutants
test-mutants: ## Change FILE for the worse in each way, and check that its unit tests notice (5 to 20 minutes for a file)
#  FILE=controllers/src/machine_deployment/rollout.rs; docs/reference/mutants.md explains the changes that no test can notice.
	@hack/mutants-of $(FILE)

.PHONY: unit-test
unit-test: control-plane build-tests ## Run all tests, except the scenarios with machine-controller-manager's CRDs
	cargo test --locked --workspace $(timed)

.PHONY: scenario-test
scenario-test: control-plane build-tests ## Run the end-to-end scenarios again, with machine-controller-manager's CRDs (25 minutes)
	@scenarios=$$(hack/test-binary scenarios) && cd e2e/scenarios && \
		NODEWRIGHT_E2E_CRDS=mcm CARGO_MANIFEST_DIR=$$PWD ../../hack/test-times "$$scenarios" $(patsubst %,%::,$(with_other_crds))

.PHONY: test-rbac
test-rbac: control-plane build-tests ## Run scenarios and installations under the roles of config, and find rights that are missing or that none uses (30 minutes, once compiled)
#  All scenarios run under these roles in test as well. This also compares what they have used with what is granted. It has to fail with
#  PLANT=missing, without a right on events, in a minute; and with PLANT=unused, with a right that nothing needs.
	@used=$$(mktemp -d) && trap 'rm -rf "$$used"' EXIT && export NODEWRIGHT_USED_RIGHTS="$$used" && cd e2e/scenarios && \
		for test in scenarios installations used_rights; do \
			binary=$$(../../hack/test-binary $$test) && \
				CARGO_MANIFEST_DIR=$$PWD PLANT=$(PLANT) "$$binary" $$([ $$test != used_rights ] || echo --ignored) \
				$(if $(filter missing,$(PLANT)),creation::) || exit; \
		done

.PHONY: test-real
test-real: scenario-test test-slow test-real-nodes test-mcm test-ccm test-mcd e2e-kind ## Check on real parts what the stand-ins of test only claim (2 hours)

.PHONY: test-slow
test-slow: control-plane build-tests ## Run the tests that mostly wait for minutes, as CONTRIBUTING lists them (40 minutes)
	cargo test --locked --workspace --test scenarios --test conformance -- --ignored
	cargo test --locked --workspace --test budget --test previews -- --ignored nothing_costs five_hundred

.PHONY: test-real-nodes
test-real-nodes: control-plane build-tests ## Run the scenarios with real kubelets; needs root and packages, and says which (12 minutes)
#  Without them, each scenario prints `skipped` and the reason.
	cargo test --locked --workspace --test real_nodes -- --include-ignored

.PHONY: test-aws
test-aws: control-plane ## Test the AWS driver with moto's EC2: the contract suite, and a fleet on a control plane (6 minutes; installs moto at first)
#  NODEWRIGHT_E2E_SEED=7 repeats the moments at which the processes of the fleet are killed, and what is lost.
	cargo build --locked --package nodewright --package nodewright-e2e-lab --package nodewright-driver-aws
	NODEWRIGHT_MOTO_SERVER=$$(hack/moto.sh) cargo test --locked --package nodewright-driver-aws
	NODEWRIGHT_MOTO_SERVER=$$(hack/moto.sh) \
		cargo test --locked --package nodewright-e2e-scenarios --test aws -- --include-ignored --nocapture

.PHONY: test-traces
test-traces: control-plane build-tests ## Test the traces of machines with Jaeger, while manager and driver are killed (1 minute; builds Jaeger at first, 7 minutes)
#  NODEWRIGHT_TRACE_PICTURE=FILE writes the trace of one of them, as kubectl nodewright prints it.
	jaeger=$$(hack/jaeger.sh)/jaeger && traces=$$(hack/test-binary traces) && cd e2e/scenarios && CARGO_MANIFEST_DIR=$$PWD NODEWRIGHT_JAEGER=$$jaeger "$$traces" --include-ignored

# The source of machine-controller-manager's provider for AWS: the absolute path of a clone, of an unpacked archive, or of an archive.
MCM_PROVIDER_AWS ?=

.PHONY: test-aws-compare
test-aws-compare: ## Compare MCM_PROVIDER_AWS=SOURCE, machine-controller-manager's provider, with the AWS driver, both with moto (10 minutes at first)
#  SOURCE is the absolute path of a clone, or of an archive. Fails if a VM differs without a reason in hack/tools/compare-aws, if
#  docs/reference/aws-comparison.md says something else (UPDATE=1 writes it), or if the provider breaks another rule of the contract
#  than the test declares.
	@[ -n "$(MCM_PROVIDER_AWS)" ] || { echo "test-aws-compare needs MCM_PROVIDER_AWS=SOURCE, see make help"; exit 1; }
	cargo build --locked --package nodewright-driver-aws
	hack/compare-aws.sh "$(MCM_PROVIDER_AWS)" $(target)/nodewright-driver-aws $(if $(UPDATE),--update)
	NODEWRIGHT_DRIVER_AWS_OF_MCM=$$(hack/mcm-provider.sh aws "$(MCM_PROVIDER_AWS)") NODEWRIGHT_MOTO_SERVER=$$(hack/moto.sh) \
		cargo test --locked --package nodewright-driver-aws --lib -- --ignored --nocapture of_machine_controller_manager_keeps

# The same of those for GCP and OpenStack.
MCM_PROVIDER_GCP ?=
MCM_PROVIDER_OPENSTACK ?=

.PHONY: test-mcm-providers
test-mcm-providers: ## Build MCM_PROVIDER_GCP=SOURCE and MCM_PROVIDER_OPENSTACK=SOURCE as drivers, and test what needs no cloud (5 minutes at first)
	@[ -n "$(MCM_PROVIDER_GCP)$(MCM_PROVIDER_OPENSTACK)" ] || { echo "test-mcm-providers needs MCM_PROVIDER_GCP=SOURCE or MCM_PROVIDER_OPENSTACK=SOURCE, see make help"; exit 1; }
	$(if $(MCM_PROVIDER_GCP),hack/mcm-provider.sh gcp "$(MCM_PROVIDER_GCP)" test)
	$(if $(MCM_PROVIDER_OPENSTACK),hack/mcm-provider.sh openstack "$(MCM_PROVIDER_OPENSTACK)" test)

.PHONY: test-mcm
test-mcm: control-plane mcm build-tests ## Run the scenarios with the real machine-controller-manager, and its own integration tests (10 minutes)
#  NODEWRIGHT_MCM_SOURCE=DIR takes another version of it than the pinned release: the absolute path of its source tree.
	RUST_TEST_THREADS=8 cargo test --locked --workspace --test mcm -- --ignored

.PHONY: test-ccm
test-ccm: control-plane build-tests ## Run --cloud-node=auto beside a cloud controller manager of Kubernetes' library (4 minutes; builds it in 10 at first)
	@hack/ccm.sh >/dev/null
	cargo test --locked --workspace --test ccm -- --ignored

# Where the drivers in Go are built.
gardener := $(abspath $(target)/gardener)

.PHONY: gardener
gardener: ## Build machine-controller-manager's providers as drivers, into target/debug/gardener (5 minutes at first, then seconds)
	@mkdir -p $(gardener)
	@hack/gardener.sh $(gardener)

.PHONY: test-gardener
test-gardener: ## Test machine-controller-manager's providers as drivers, also with the contract suite over the wire (8 minutes at first, then 2)
	@mkdir -p $(gardener)
	@hack/gardener.sh $(gardener) test
	NODEWRIGHT_DRIVER_FILES=$(gardener)/nodewright-driver-files NODEWRIGHT_DRIVER_AZURE_FAKES=$(gardener)/nodewright-driver-azure-fakes \
		cargo test --locked --package nodewright-driver-remote --test gardener --test azure -- --ignored

.PHONY: test-mcd
test-mcd: control-plane build-tests ## Run the scenarios with machine-config-operator's daemon in VMs with systemd; needs root, packages and its sources (13 minutes)
#  NODEWRIGHT_MCO_SOURCE=DIR is the absolute path of a clone of machine-config-operator; else its pinned commit is fetched.
#  Where something is missing, each scenario prints `skipped` and the reason.
	NODEWRIGHT_E2E_TIMEOUT=600 cargo test --locked --workspace --test mcd -- --ignored --test-threads=1

.PHONY: test-chart
test-chart: control-plane ## Test the Helm chart with Helm 3 and 4: values, objects, and releases on a control plane (4 minutes, once compiled)
#  Its objects are those of kustomize, and valid for Kubernetes 1.34 to 1.36. Builds Helm and kubeconform at first (4 minutes).
	cargo build --locked --package nodewright-e2e-lab --bin nodewright-control-plane
	@hack/test-chart.sh

# The violation that test-rbac, test-gitops, test-monitoring or test-upgrade makes, to see it fail.
PLANT ?=

.PHONY: test-gitops
test-gitops: build control-plane ## Test fleets in git with Flux and Argo CD: applied, scaled, rolled, reverted, pruned, drift (9 minutes, once compiled)
#  Builds both at first (10 minutes). TOOL=flux or argocd for one; PLANT=… makes a violation, by which it has to fail:
#  hack/test-gitops.sh --help lists them. Needs git and curl.
	@PLANT=$(PLANT) hack/test-gitops.sh $(TOOL)

.PHONY: test-monitoring
test-monitoring: build control-plane ## Test alerts and dashboards with Prometheus: promtool, and a fleet in which each has data and fires (10 minutes, once compiled)
#  Builds Prometheus at first (7 minutes). PLANT=… makes a violation, by which it has to fail: hack/test-monitoring.sh --help lists
#  them. Needs curl.
	@PLANT=$(PLANT) hack/test-monitoring.sh

.PHONY: dashboard-plots
dashboard-plots: build control-plane ## Run test-monitoring, and draw docs/reference/dashboards/*.svg from what its panels have shown (10 minutes, once compiled)
	@PLOTS=docs/reference/dashboards hack/test-monitoring.sh

.PHONY: test-upgrade
test-upgrade: build control-plane ## Test upgrades from the previous version and from machine-controller-manager, and the way back (8 minutes, once compiled)
#  No machine is rolled, no field is lost, nothing is written at rest; both versions at once. Builds both at first (15 minutes).
#  FROM=previous or mcm for one; PLANT=… makes a violation, by which it has to fail: hack/test-upgrade.sh --help lists them. Needs git and
#  curl, and the commit that hack/previous-version names in the history.
	@PLANT=$(PLANT) hack/test-upgrade.sh $(FROM)

.PHONY: lint
lint: fmt-check clippy deny workflows docs-check ## Check format, lints (warnings are errors), dependencies, advisories, workflows and pages (2 minutes at first, then seconds)
#  Builds cargo-deny once if it is missing, and keeps it in ~/.cache/nodewright (4 minutes).

.PHONY: fmt
fmt: ## Format all code (1 s)
	cargo fmt --all

.PHONY: fmt-check
fmt-check:
	cargo fmt --all --check

.PHONY: clippy
clippy:
	cargo clippy --locked --workspace --all-targets -- --deny warnings

.PHONY: deny
deny:
	@hack/deny.sh

.PHONY: workflows
workflows:
	@hack/workflows.sh

.PHONY: driver-protocol
driver-protocol: ## Generate the messages of the drivers' protocol from controllers/driver/protocol/proto (1 minute)
	UPDATE_GENERATED=1 cargo test --locked --package nodewright-driver-protocol --features generate --test generated
	hack/gardener.sh generate

.PHONY: crds
crds: ## Generate config/crd, config/webhook, and the pages of fields, names and flags from the code, and the table of rights from config/rbac (2 minutes)
	UPDATE_CRDS=1 cargo test --locked --package nodewright-api --test crds
	UPDATE_RIGHTS=1 UPDATE_FIELDS=1 UPDATE_NAMES=1 cargo test --locked --package nodewright-api --test rights --test fields --test names
	UPDATE_FLAGS=1 cargo test --locked --package nodewright --bins reference
	UPDATE_MANIFESTS=1 cargo test --locked --package nodewright-webhooks --test manifests

.PHONY: chart
chart: control-plane ## Make the templates of config/chart, the Helm chart, from the kustomize folders (5 s)
	@hack/chart.sh

.PHONY: chart-check
chart-check: control-plane
	@hack/chart.sh --check

.PHONY: monitoring
monitoring: ## Make config/components/monitoring and docs/tasks/alerts.md from hack/tools/monitoring (5 s, at first 1 minute)
	@hack/monitoring.sh

.PHONY: docs
docs: ## Check docs and build them as a site, with mdBook, into target/book (4 minutes at first, then seconds)
	@hack/docs.sh

.PHONY: docs-check
docs-check:
	@hack/docs.sh --check

.PHONY: control-plane
control-plane: ## Build kube-apiserver, etcd and so on, unless they exist (4 minutes at first, then 0 s)
	@hack/control-plane.sh >/dev/null

.PHONY: mcm
mcm: ## Build machine-controller-manager, unless it exists (2 minutes at first, then 0 s)
	@hack/mcm.sh >/dev/null

.PHONY: e2e
e2e: control-plane ## Run the end-to-end scenarios on the cluster of KUBECONFIG, and install our CRDs there (3 minutes)
#  Skips scenarios that need more than an API server, such as its restart, and says so.
	@[ -n "$${KUBECONFIG:-}" ] || { echo "make e2e needs KUBECONFIG; the scenarios on a local control plane are part of make test"; exit 1; }
	cargo build --locked --workspace --all-targets
	NODEWRIGHT_E2E=external cargo test --locked --workspace --test scenarios

.PHONY: e2e-kind
e2e-kind: ## Install it in a kind cluster, make nodes and break them, run the scenarios, uninstall (30 minutes, once it is compiled)
#  On the cluster of KUBECONFIG, or a new one. Compiles for 15 minutes at first, and for as long if no registry is in reach: then
#  it makes the node image. KIND_NODE_IMAGE=IMAGE chooses one, IMAGES=target/images the images that images made. Fails without
#  docker, or is skipped with SKIP_WITHOUT_DOCKER=1. See docs/tasks/kind.md.
	@hack/e2e-kind.sh

.PHONY: image
image: ## Build the container image as an archive, without docker (8 minutes at first)
	@hack/image.sh

# All, to build each image twice in test-images; PROGRAMS="nodewright-driver-local" for these alone.
ALL ?=
PROGRAMS ?=

.PHONY: images
images: ## Make the images of manager, drivers and plugin for amd64 and arm64, with SBOMs, into target/images (90 minutes at first)
#  Without docker and registry; the same sources give the same digests. Needs Debian's compiler and glibc for the other
#  architecture, and names what is missing. PROGRAMS="nodewright kubectl-nodewright" makes these alone.
	@hack/images.sh $(PROGRAMS)

.PHONY: test-images
test-images: ## Make the images and test them: static, no root, no shell, started read-only, valid SBOMs, the same when built twice (90 minutes at first)
#  The second build is of the smallest driver in Rust and the one in Go; ALL=1 builds all a second time. Runs arm64 with
#  qemu-user-static, and prints `skipped` where it is missing.
	@ALL=$(ALL) PROGRAMS="$(PROGRAMS)" hack/test-images.sh

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in target/images and its SBOMs, with grype (2 minutes; builds it at first, 10 minutes)
#  Skipped if grype's database is out of reach.
	@hack/vulnerabilities.sh

.PHONY: release
release: ## Make all files of a release, in target/release-VERSION: images, SBOMs, chart, objects, plugin, checksums (1 minute, after images)
	@hack/release.sh

.PHONY: test-release
test-release: ## Try RELEASE, by default what release makes of target/images, in kind, with its files alone: install, nodes, upgrade, uninstall (3 minutes, after release)
#  FROM=DIRECTORY has the release that is upgraded. Needs docker, or what e2e-kind needs to run one.
	@hack/test-release.sh $(if $(FROM),--from "$(FROM)") $(RELEASE)

.PHONY: test-publish
test-publish: ## Push the release RELEASE, by default target/release-VERSION, to a registry on this computer, without signatures (5 s, after release)
	@hack/test-publish.sh $(or $(RELEASE),$(firstword $(wildcard $(or $(CARGO_TARGET_DIR),target)/release-*)))

.PHONY: clean
clean: down ## End the devcluster and remove what was built; the control plane stays in ~/.cache/nodewright (5 s)
	cargo clean
	rm -rf .run
