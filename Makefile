# Every target works on a fresh clone: `.venv` is made when it is missing and renewed when a pyproject.toml changes.
# `.ci/run` calls the same targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
# Where Debian keeps programs of administrators (mkfs, nft); an ordinary user's PATH lacks them.
export PATH := $(PATH):/usr/sbin:/sbin
# Images of build machines set it. Without bytecode each of the hundreds of processes of a test run compiles the tree.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# What is installed, each from the projects' own files: a target asks for what it uses. Spark and its Java are large.
BROKER := $(VENV)/.installed-broker
TOOLS := $(VENV)/.installed-tools
SPARK := $(VENV)/.installed-spark
DIST := $(VENV)/.installed-dist
LOCK := $(VENV)/.installed-lock
# Versions come from the locks alone, and every file is compared with its hashes there. Our own packages are installed
# without asking an index for anything: what builds them (build.txt), and PySyncObj, which has no wheel, is installed first.
LOCKS := deploy/locks
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --no-build-isolation
LOCKED := $(INSTALL) --require-hashes
# mypy takes packages, ruff the whole tree.
TYPED := cluster raft store client/keelmq spark/keelmq_spark deploy examples tests

# Variables that targets take on the command line or from the environment.
export PYTHON
export CLUSTER_NODES CLUSTER_HTTP_PORT CLUSTER_PEER_PORT CLUSTER_DATA
SEEDS ?= 50
SEED ?=
FIRST_SEED ?=
PYTEST_ARGS ?=
# End-to-end tests wait for much of their time: with four workers two cores are nine tenths busy.
TEST_WORKERS ?= 4
SIM_ARGS ?=
MUTANT ?=
NEMESIS ?= all
CHAOS_ARGS ?=
CYCLES ?= 20
FILESYSTEM ?= both
ATTEMPTS ?= 10000
MINUTES ?= 10
DEMO_ARGS ?=
LINEAGE_ARGS ?=
LINEAGE_BENCH_ARGS ?=
BENCH_ARGS ?=
PEERS_ARGS ?=
DIST_ARGS ?=
BUNDLE_ARGS ?=
DEB_ARGS ?=
IMAGE_ARGS ?=
BASE ?=
LOCK_ARGS ?=
AUDIT_ARGS ?=
POWERLOSS_ARGS ?=
FUZZ_ARGS ?=
SOAK_ARGS ?=
MONITORING_ARGS ?=
DEPLOY_TEST_ARGS ?=

.PHONY: help setup check lint test demo lineage sim mutants chaos strangers powerloss fuzz soak monitoring-test deploy-test bench bench-lineage bench-peers cluster cluster-add cluster-stop lock audit dist bundle deb image format clean

help: ## list the targets
	@echo 'KeelMQ: make <target>'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(TOOLS) $(SPARK) ## make .venv with the broker, the SDK, the Spark package and the tools
	@echo 'ready: $(BIN)/keelmqd (broker), $(BIN)/keelmq (command line)'

$(BROKER): pyproject.toml client/pyproject.toml $(LOCKS)/build.txt $(LOCKS)/broker.txt $(LOCKS)/sdk.txt $(LOCKS)/deploy.txt
	@if ! $(BIN)/python -m pip --version > /dev/null 2>&1; then \
	    python=$$(deploy/find_python.sh); echo "setup: making $(VENV) with $$($$python --version)"; \
	    rm -rf $(VENV); $$python -m venv $(VENV); \
	fi
	@echo 'setup: installing the broker and the SDK into $(VENV) (a few seconds)'
	@$(LOCKED) -r $(LOCKS)/build.txt
	@$(LOCKED) -r $(LOCKS)/broker.txt -r $(LOCKS)/sdk.txt -r $(LOCKS)/deploy.txt
	@$(INSTALL) --no-deps -e . -e client
	@touch $@

$(TOOLS): $(BROKER) $(LOCKS)/dev.txt
	@echo 'setup: installing what tests and tools need (half a minute when nothing is cached)'
	@$(LOCKED) -r $(LOCKS)/dev.txt
	@touch $@

$(SPARK): $(BROKER) spark/pyproject.toml $(LOCKS)/spark.txt
	@echo 'setup: installing Spark and a Java for it (a minute or two when nothing is cached)'
	@$(LOCKED) -r $(LOCKS)/spark.txt
	@$(INSTALL) --no-deps -e spark
	@touch $@

$(DIST): $(BROKER) $(LOCKS)/dist.txt
	@$(LOCKED) -r $(LOCKS)/dist.txt
	@touch $@

$(LOCK): $(BROKER) $(LOCKS)/lock.txt
	@$(LOCKED) -r $(LOCKS)/lock.txt
	@touch $@

check: lint ## format, lint, types, import contract and the unit tests
	@echo 'check: unit tests'; $(BIN)/python -m pytest tests/unit -n 2 --dist loadfile $(PYTEST_ARGS)

lint: $(TOOLS) $(SPARK) ## what `check` says of the code without running it
	@echo 'check: ruff format'; $(BIN)/ruff format --quiet --check .
	@echo 'check: ruff'; $(BIN)/ruff check --quiet .
	@echo 'check: mypy'; $(BIN)/mypy --no-error-summary $(TYPED)
	@echo 'check: locks'; $(BIN)/python -m deploy.lock_files
	@echo 'check: import contract'; $(BIN)/lint-imports > $(VENV)/lint-imports.log 2>&1 \
	    || { cat $(VENV)/lint-imports.log; exit 1; }

test: $(TOOLS) $(SPARK) ## the whole test suite, with real broker processes
	@tests/prepare.sh
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

demo: $(BROKER) ## the shop: two services, three nodes, kill -9 in every bad moment, nothing lost (a minute)
	@$(BIN)/python -m examples.shop.demo $(DEMO_ARGS)

lineage: $(SPARK) ## a workload tailed by the lineage job while both are killed, then compared with the truth (three minutes)
	@$(BIN)/python -m examples.lineage.demo $(LINEAGE_ARGS)

sim: $(TOOLS) ## deterministic simulation of 1, 3 and 5 nodes: SEEDS=200 fresh ones, FIRST_SEED=n to repeat them, or SEED=17
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(if $(FIRST_SEED),--first-seed $(FIRST_SEED)) $(if $(SEED),--seed $(SEED)) $(SIM_ARGS)

mutants: $(TOOLS) ## broken nodes that the simulation must catch: SEEDS=500 each at most, MUTANT=votes-twice for one
	@$(BIN)/python -m tests.sim.mutants $(if $(filter command environment,$(origin SEEDS)),--seeds $(SEEDS)) $(if $(MUTANT),--mutant $(MUTANT)) $(SIM_ARGS)

powerloss: $(TOOLS) ## real power loss on ext4 and xfs, as root: CYCLES=20, SEED=7 to repeat, FILESYSTEM=ext4|xfs|both
	@$(BIN)/python -m tests.powerloss --cycles $(CYCLES) --filesystem $(FILESYSTEM) $(if $(SEED),--seed $(SEED)) $(POWERLOSS_ARGS)

chaos: $(TOOLS) ## faults on real nodes under load: MINUTES=60 NEMESIS=network,disk SEED=7 CHAOS_ARGS='--nodes 5'
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --nemesis '$(NEMESIS)' $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

strangers: $(TOOLS) ## attempts with false, foreign and withdrawn credentials at every port of a closed cluster: ATTEMPTS=10000, SEED=7 to repeat
	@$(BIN)/python -m tests.strangers --attempts $(ATTEMPTS) $(if $(SEED),--seed $(SEED))

fuzz: $(TOOLS) $(SPARK) ## bytes nobody should send, to everything that parses: MINUTES=10, or SEED=7 to repeat a round
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(FUZZ_ARGS)

soak: $(TOOLS) ## a steady load with short retention; disk and memory of each node must be flat: MINUTES=30
	@$(BIN)/python -m tests.soak --minutes $(if $(filter command environment,$(origin MINUTES)),$(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(SOAK_ARGS)

monitoring-test: $(TOOLS) ## alerts and dashboards with a real Prometheus: faults of real nodes raise them, and the doctor finds them (ten minutes): MONITORING_ARGS='--fault lag'
	@tests/prepare.sh
	@$(BIN)/python -m tests.monitoring $(MONITORING_ARGS)

deploy-test: $(TOOLS) $(DIST) ## deployment over ssh to hosts as network namespaces: verbs under load, killed tools, two versions, ways back, much data (half an hour): DEPLOY_TEST_ARGS='--trial killed'
	@tests/prepare.sh
	@$(BIN)/python -m tests.deploy $(DEPLOY_TEST_ARGS)

bench: $(TOOLS) ## throughput, latency and memory beside the floor of this machine
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

bench-lineage: $(SPARK) ## events into lineage tables, look-ups, a group far behind: LINEAGE_BENCH_ARGS='--events 100_000_000 --directory DIR'
	@$(BIN)/python -m tests.bench.lineage_tables $(LINEAGE_BENCH_ARGS)

bench-peers: $(TOOLS) ## KeelMQ beside NATS, RabbitMQ, Kafka and RocketMQ: PEERS_ARGS='--peers nats,rabbitmq --rounds 3 --seconds 4 --rows one,senders'
	@$(BIN)/python -m tests.bench.peers $(PEERS_ARGS)

cluster: $(BROKER) ## start three nodes on 127.0.0.1:7081-7083 and return when they are ready
	@$(BIN)/python -m deploy.local_cluster start

cluster-add: $(BROKER) ## add one more node to the running `make cluster`, and make it a voter
	@$(BIN)/python -m deploy.local_cluster add

cluster-stop: $(BROKER) ## stop the nodes of `make cluster`; their data stays
	@$(BIN)/python -m deploy.local_cluster stop

lock: $(LOCK) ## write deploy/locks anew with the newest versions that the pyproject files allow: LOCK_ARGS=--keep only what must change
	@$(BIN)/python -m deploy.refresh_locks $(LOCK_ARGS)

audit: $(BROKER) ## known vulnerabilities of the locked versions, and secrets in the tree and in its history since the last tag
	@$(BIN)/python -m deploy.audit $(AUDIT_ARGS)

dist: $(DIST) ## wheels, source distributions and SBOMs of the three packages in dist/, identical bytes each time: DIST_ARGS='--package keelmq'
	@$(BIN)/python -m deploy.dist $(DIST_ARGS)

bundle: $(DIST) ## one tarball with everything to install the broker and the keelmq command without a network: docs/deploy.md
	@$(BIN)/python -m deploy.bundle $(BUNDLE_ARGS)

deb: $(DIST) ## a Debian package of the broker and the keelmq command, with all that they need: DEB_ARGS='--bundle dist/keelmq-….tar.gz'
	@$(BIN)/python -m deploy.deb $(DEB_ARGS)

image: $(DIST) ## a container image, built without a network: BASE=NAME@sha256:DIGEST IMAGE_ARGS='--engine docker' (docs/containers.md)
	@$(BIN)/python -m deploy.image --base '$(BASE)' $(IMAGE_ARGS)

format: $(TOOLS) ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv and caches; data under .data stays
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache ./*.egg-info client/*.egg-info spark/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
