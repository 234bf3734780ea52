# Everything that a newcomer needs: `make help` says what each target does and how long it takes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One thing after the other: what takes long uses all cores anyway, and tests wait for each other's control planes.
.NOTPARALLEL:

# Where cargo puts what it builds.
target := $(or $(CARGO_TARGET_DIR),target)/debug
devcluster := $(target)/nodewright-devcluster
bench := $(target)/nodewright-bench
release := $(or $(CARGO_TARGET_DIR),target)/release

# The end-to-end tests wait more than they compute: more of them at once than there are cores.
export RUST_TEST_THREADS ?= 4

# More flags for the manager that run, up, manager, writes, steady, soak and bench-fleet start: make up MANAGER_FLAGS=--log-level=debug
MANAGER_FLAGS ?=
# What writes, steady and soak measure.
MACHINES ?=
MINUTES ?= 11
# How many machines bench-fleet creates and deletes.
N ?= 1000

.PHONY: help
help: ## Print this help
	@echo "Usage: make TARGET"
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-15s%s\n", $$1, $$2} \
		/^#  +/ && described {sub(/^#  +/, ""); printf "  %-15s%s\n", "", $$0; next} \
		{described = /## /}' $(MAKEFILE_LIST)
	@echo
	@echo "Times are for two cores. The first of run, up, test, e2e, writes, steady and control-plane builds a Kubernetes"
	@echo "control plane from source (4 minutes, kept in ~/.cache/nodewright) and compiles everything (4 minutes)."
	@echo "Needed: Rust (rustup fetches the pinned release), Go 1.26 (fetched from PyPI if missing), a C compiler, make, bash."

##@ Try it

.PHONY: run
run: build control-plane ## Start control plane, cloud and manager, and show three machines come up; Ctrl-C ends it (10 s)
	@$(devcluster) run -- $(MANAGER_FLAGS)

.PHONY: up
up: build control-plane ## The same in the background; `. .run/env` gives you kubectl and all else (10 s)
	@$(devcluster) up -- $(MANAGER_FLAGS)

.PHONY: down
down: ## End what run or up has started (1 s)
	@[ -x $(devcluster) ] || cargo build --locked --quiet --package nodewright-e2e-devcluster
	@$(devcluster) down

.PHONY: manager
manager: build ## Start the manager of a running set again, after it was killed (2 s)
#  kill -9 $(cat .run/pids/manager); make manager MANAGER_FLAGS=--machine-health-timeout=30s
	@$(devcluster) manager -- $(MANAGER_FLAGS)

##@ Measure it

.PHONY: writes
writes: build-bench control-plane ## Count the API requests that a machine costs, with MACHINES=20 (30 s)
	@$(bench) writes --machines=$(or $(MACHINES),20) -- $(MANAGER_FLAGS)

.PHONY: steady
steady: build-bench control-plane ## Watch that a fleet at rest causes no write, with MACHINES=10 for MINUTES=11 (12 minutes)
	@$(bench) steady --machines=$(or $(MACHINES),10) --minutes=$(MINUTES) -- $(MANAGER_FLAGS)

.PHONY: bench-runtime
bench-runtime: ## The runtime beside kube-runtime: memory, owner look-ups, reconciles per second, latency (3 minutes)
#  Fails when a goal is missed. Wants an idle computer with 9 GiB to spare; at first compiles for 5 minutes more.
	cargo bench --locked --package nodewright-runtime --bench runtime

.PHONY: bench-fleet
bench-fleet: control-plane ## Time, CPU, memory and requests of N=1000 machines, release build (80 s)
#  Fails if a goal is missed. The release build takes 6 minutes more at first; N=10000 takes 13 minutes.
	@cargo build --locked --release --package nodewright --package nodewright-e2e-cloud --package nodewright-e2e-bench
	@$(release)/nodewright-bench fleet --machines=$(N) -- $(MANAGER_FLAGS)

##@ Break it

# Which attacks of hostile, by parts of their names.
ONLY ?=
# Which run to look at alone, by its seed or from a file, and for how many minutes to go on.
SEED ?=
REPLAY ?=
SIMULATED = $(if $(REPLAY),--replay="$(REPLAY)") $(if $(SEED),--seed=$(SEED)) \
	$(if $(filter command line environment,$(origin MINUTES)),--minutes=$(MINUTES))

.PHONY: simulate
simulate: ## Managers in 5,000 simulated clusters in which everything goes wrong; SEED=7 shows one run (5 minutes)
#  Fails when an invariant breaks, and prints a run that breaks it: put into a file, REPLAY=FILE shows it again. MINUTES=60
#  goes on for so long. At first compiles for 5 minutes more.
	@cargo build --locked --quiet --profile simulate --package nodewright-e2e-simulation
	@$(or $(CARGO_TARGET_DIR),target)/simulate/nodewright-simulation $(SIMULATED)

.PHONY: mutants
mutants: ## Change the product in some places for the worse, and see that the simulation notices (1 to 2 minutes for each)
	@hack/mutants

.PHONY: soak
soak: build-bench control-plane ## Default flags, long rests: deadlines kept, counts exact, no write at rest; MINUTES=40 (40 minutes)
#  VMs die, kubelets are silent, the API server restarts and is away, the leader is killed. Fails when a promise is broken,
#  and says which; logs and the audit log stay in .run/soak.
	@$(bench) soak --directory=.run/soak $(if $(filter command line environment,$(origin MINUTES)),--minutes=$(MINUTES)) \
		-- $(MANAGER_FLAGS)

.PHONY: hostile
hostile: build-bench control-plane ## Attack a running set through its ports, its objects and its cloud; ONLY=reviews for one attack (3 minutes)
#  Prints one line for each attack with what was measured, and fails if one does harm.
	@$(bench) hostile $(if $(ONLY),--only=$(ONLY)) -- $(MANAGER_FLAGS)

##@ Change it

.PHONY: build
build: ## Compile the manager, the fake cloud and the devcluster (4 minutes at first, then seconds)
	@cargo build --locked --package nodewright --package nodewright-e2e-cloud --package nodewright-e2e-devcluster

.PHONY: build-bench
build-bench:
	@cargo build --locked --package nodewright --package nodewright-e2e-cloud --package nodewright-e2e-bench

.PHONY: test
test: ## Everything: format, lints, unit and end-to-end tests (17 minutes at first, then 6)
test: fmt-check control-plane clippy unit-test scenario-test deny

.PHONY: unit-test
unit-test: control-plane ## All tests but the end-to-end scenarios with machine-controller-manager's CRDs
	cargo build --locked --workspace --all-targets
	cargo test --locked --workspace

.PHONY: scenario-test
scenario-test: control-plane ## The end-to-end scenarios once more, with machine-controller-manager's CRDs (2 minutes)
	cargo build --locked --workspace --all-targets
	NODEWRIGHT_E2E_CRDS=mcm cargo test --locked --package nodewright-e2e-scenarios --test scenarios

.PHONY: lint
lint: fmt-check clippy deny ## Check format, lints (none may warn), dependencies and advisories (2 minutes at first, then seconds)
#  A missing cargo-deny is built once and kept in ~/.cache/nodewright (4 minutes).

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

.PHONY: crds
crds: ## Write config/crd and config/webhook anew, from the code (1 minute)
	UPDATE_CRDS=1 cargo test --locked --package nodewright-api --test crds
	UPDATE_MANIFESTS=1 cargo test --locked --package nodewright-webhooks --test manifests

.PHONY: control-plane
control-plane: ## Build kube-apiserver, etcd and the rest, if not there yet (4 minutes at first, then 0 s)
	@hack/control-plane.sh >/dev/null

.PHONY: e2e
e2e: control-plane ## The end-to-end scenarios on the cluster of KUBECONFIG, which gets our CRDs (3 minutes)
#  Those that need more than an API server, such as its restart, are left out and say so.
	@[ -n "$${KUBECONFIG:-}" ] || { echo "make e2e needs KUBECONFIG; the scenarios on a local control plane are part of make test"; exit 1; }
	cargo build --locked --workspace --all-targets
	NODEWRIGHT_E2E=external cargo test --locked --package nodewright-e2e-scenarios --test scenarios

.PHONY: e2e-kind
e2e-kind: ## The same on a kind cluster, made for it and deleted again; needs docker and kind (10 minutes)
	@command -v kind >/dev/null || { echo "kind is missing: https://kind.sigs.k8s.io/docs/user/quick-start"; exit 1; }
	@docker info >/dev/null 2>&1 || { echo "docker does not answer: start it, or see whether you may use it"; exit 1; }
	kubeconfig=$$(mktemp); trap 'kind delete cluster --name nodewright-e2e; rm -f "$$kubeconfig"' EXIT; \
	kind create cluster --name nodewright-e2e --kubeconfig "$$kubeconfig" --wait 3m; \
	KUBECONFIG=$$kubeconfig $(MAKE) e2e

.PHONY: clean
clean: down ## End what runs and remove what was built here; the control plane stays in ~/.cache/nodewright (5 s)
	cargo clean
	rm -rf .run
