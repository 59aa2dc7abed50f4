# The project's commands. Each of them sets the project up first, from a bare clone too: `make demo` may be the only command typed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The system's Python where it will do: distributions build it with profile-guided optimization, version managers mostly do not, and that is a fifth of
# the appends a second (docs/reference/performance.md). make PYTHON=... takes another.
SYSTEM_PYTHON := /usr/bin/python3
PYTHON ?= $(shell $(SYSTEM_PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && echo $(SYSTEM_PYTHON) || echo python3)
# Test modules run at once: each of them may start a cluster of processes and a Spark of 1 GB. Three on two cores, because tests of real processes spend
# half of their time waiting.
JOBS ?= 3
QUICK := "not slow and not long and not install and not image"
# A module's tests share its clusters, so they stay on one worker. The order of modules is that of tests/conftest.py.
SPREAD := -n $(JOBS) --dist loadfile --no-loadscope-reorder --first-modules
BIN := .venv/bin
SYSTEM_PATH := $(PATH)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# By its name: a path with a space is not found (waltz_log.child_environment).
export PYSPARK_PYTHON := python3
# A Spark, a Python path or certificates of the caller would be mixed with ours; waltz_log.child_environment does the same for each program of Spark.
unexport SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME VIRTUAL_ENV WALTZ_TLS_CERTIFICATE WALTZ_TLS_KEY WALTZ_TLS_AUTHORITIES
# Without byte code on disk, each of the hundreds of processes that tests start compiles the platform again.
unexport PYTHONDONTWRITEBYTECODE

PEERS := .venv/peers
SSLYZE := .venv/tls-scan/bin/sslyze

NEXT_STEP := setup: done. Next: make demo, or a cluster of your own: source .venv/bin/activate && waltz dev --directory var/dev

.PHONY: help setup machines test-versions check lint typecheck ratchets coverage format test test-unit test-sim test-long test-slow test-install explore sim new-seeds mutants mutation smoke outbox-kills postgresql alerts strangers hostile flood tls-scan rotations spark-access console-replay handed-files request-costs crash demo chaos-spark soak-spark lake audit dist image image-test upgrade-test bench bench-kafka bench-costs bench-umadb bench-scale screenshots reference docs doctor clean distclean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## environment, packages, Delta's jars; brings Java 21 where there is no Java 17 or 21
	@command -v $(PYTHON) > /dev/null || { echo "setup: no $(PYTHON); install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; }
	@PATH="$(SYSTEM_PATH)" PYTHONPATH=.:platform/log:platform/sink $(PYTHON) -S -m tools.set_up --python $(PYTHON) $(if $(filter file,$(origin PYTHON)),,--chosen)
	@$(if $(filter setup,$(MAKECMDGOALS)),echo "$(NEXT_STEP)",true)

check: lint typecheck ratchets ## lint, typecheck and ratchets: what must pass before a change is reviewed

lint: setup ## style, format, and imports that cross a boundary
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

typecheck: setup ## types, with mypy
	$(BIN)/mypy

ratchets: setup ## counts that may only fall, in .ci/ratchets.json: what pyright finds in the product
	$(BIN)/python tools/ratchets.py

coverage: setup ## the unit tests with branch coverage, whose share in each package may only rise; RAISE=1 records it in .ci/ratchets.json
	$(BIN)/python -m tools.coverage_ratchet $(if $(filter-out 0,$(RAISE)),--raise) -m $(QUICK) -n $(JOBS) --dist worksteal tests/unit

format: setup ## let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: setup ## all tests but those marked long, slow, install or image; ALL=1 leaves out the slow ones alone, as CI; SHARE=1 all of tests/drawn_modules.txt
	@echo "test: 12,000 tests, about 30 minutes on two cores; make test-unit takes 6"
	$(BIN)/pytest -q -m $(if $(filter-out 0,$(ALL)),"not slow",$(QUICK)) --share $(or $(SHARE),0.1) $(SPREAD) $(if $(SKIPS_LISTED),--skips-listed) --durations=30 --durations-min=5

test-unit: setup ## the unit tests alone
	$(BIN)/pytest -q -m $(QUICK) -n 4 --dist worksteal tests/unit # few of them share anything, and some wait

test-versions: setup ## the unit tests under each other Python from 3.11 on that is installed, in environments of their own; VERSIONS='python3.13'
	$(BIN)/python -m tools.versions $(VERSIONS)

test-sim: setup ## clusters under faults, disks that crash, planted bugs, checkers: all on simulated machines
	$(BIN)/pytest -q -m $(QUICK) $(SPREAD) tests/sim

test-long: setup ## the tests marked long: drivers killed at each gap, a standalone Spark cluster, more seeds of the simulator
	$(BIN)/pytest -q -m "long and not slow" $(SPREAD) $(if $(SKIPS_LISTED),--skips-listed) --durations=30 --durations-min=5

test-slow: setup ## the tests marked slow
	$(BIN)/pytest -q -m slow

# The modules with this mark, so that no other one is collected.
INSTALL := tests/integration/log/test_base_install.py tests/integration/project/test_other_python.py tests/integration/sink/test_lake_stores.py tests/e2e/test_cloud_stores.py

test-install: setup ## the tests marked install: the built wheel alone in an empty environment, unit tests under Python 3.13, tables on emulators of Azure and Google; needs package indexes
	$(BIN)/pytest -q -m install $(INSTALL)

explore: setup ## property tests with new random examples, failing ones saved in var/explore; SECONDS=600, ONLY=tests/.../test_x.py one file
	$(BIN)/python tools/explore.py --seconds $(or $(SECONDS),600) $(ONLY)

sim: setup ## clusters under faults in virtual time; SEED=7 replays one with its trace, SEEDS=1000 FIRST_SEED=500 runs a range
	$(BIN)/python -m verification.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST_SEED),--first $(FIRST_SEED))

new-seeds: setup ## what no run has tried: new seeds of the simulator and new examples of property tests, each printed for a replay; SEEDS=50 SECONDS=60
	$(BIN)/python -m verification.simulation --new --seeds $(or $(SEEDS),50)
	$(BIN)/python tools/explore.py --seconds $(or $(SECONDS),60)

mutants: setup ## bugs planted in the cluster, each of which the simulator must catch; ONLY=no_fence plants one
	$(BIN)/python -m verification.mutants.mutants $(if $(SEEDS),--seeds $(SEEDS)) $(ONLY)

mutation: setup ## one token of the product changed at a time, which a test must notice; CHANGES=100, SEED=7 repeats a run, ONLY=platform/log/waltz_log/core/locks
	$(BIN)/python -m tools.mutation $(if $(CHANGES),--changes $(CHANGES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

smoke: setup ## real processes killed all the time under 16 clients: 2,000,000 transactions; TRANSACTIONS=100000 SECONDS=120 SEED=7 a shorter run
	$(BIN)/python -m verification.smoke $(if $(TRANSACTIONS),--transactions $(TRANSACTIONS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(PACE),--pace $(PACE))

strangers: setup ## 10,000 connections of strangers to every port of a secure cluster, under a client that appends; CONNECTIONS=300 SECONDS=12 a shorter run
	$(BIN)/python -m verification.strangers $(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(SECONDS),--seconds $(SECONDS))

hostile: setup ## a million appends beside a client with a certificate and every right except the honest one's, fourteen minutes; APPENDS=20000 SECONDS=33 WORKERS=2
	$(BIN)/python -m verification.hostile $(if $(APPENDS),--appends $(APPENDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WORKERS),--workers $(WORKERS))

flood: setup ## three principals without rights call for ten minutes, and the audit trail of earlier denied calls is read; SECONDS=25 RATE=50 WORKERS=2
	$(BIN)/python -m verification.flood $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RATE),--rate $(RATE)) $(if $(WORKERS),--workers $(WORKERS))

tls-scan: setup $(SSLYZE) ## sslyze and testssl.sh against each port of a secure cluster, some minutes; PLANT=tls-1.2 or no-client-certificate: a weak port
	@.ci/install-packages verification/tls_scan/packages
	$(BIN)/python -m verification.tls_scan $(if $(PLANT),--plant $(PLANT)) $(if $(ONLY),--only $(ONLY))

machines: setup ## the first minutes on machines that are not empty, 48 conditions, twenty minutes; SHORT=1 as CI, ONLY='a colon' a part of a name, COMMAND='make demo' instead of the session; as root
	$(BIN)/python -m verification.machines $(if $(filter-out 0,$(SHORT)),--short) $(if $(COMMAND),--command '$(COMMAND)') $(if $(ONLY),'$(ONLY)')

rotations: setup ## a hundred rotations of all certificates and keys of a cluster, under appends and a feed
	$(BIN)/pytest -q -m slow tests/integration/log/test_rotations.py

spark-access: setup ## Spark over mutual TLS with rules of access: what its principal may read, what it may not, and a revocation under a query
	$(BIN)/pytest -q -m slow tests/e2e/test_source_access.py

handed-files: setup ## each kind of file that a person hands over, in every form that it should not have: 1,300 cases, of which CI runs a quarter
	$(BIN)/pytest -q $(SPREAD) tests/integration/log/files

request-costs: setup ## memory and time of each procedure and stream of a node, with one process and with workers; CI runs those with workers
	$(BIN)/pytest -q tests/integration/log/test_request_costs.py tests/integration/log/test_stream_costs.py

console-replay: setup ## dead letters of a real Spark job, replayed from the console by another one
	$(BIN)/pytest -q -m slow tests/e2e/test_console_replay.py

alerts: setup ## faults in a real cluster under a real Prometheus: each alert within 60 s; QUIET=300 seconds in which none may fire
	$(BIN)/python -m verification.alerts $(if $(QUIET),--quiet $(QUIET))

crash: setup ## storage crashed in every way, each file rotten; ONLY=roll one scenario or crash, SHORT=1 as the tests do it
	$(BIN)/python -m verification.crashes.storage_crashes $(if $(filter-out 0,$(SHORT)),--short) $(ONLY)
	$(if $(ONLY),,$(BIN)/python -m verification.crashes.storage_corruption --count $(if $(filter-out 0,$(SHORT)),500,10000))

outbox-kills: setup ## kill a forwarding service a hundred times while the log fails too
	$(BIN)/pytest -q -m slow tests/integration/log/test_outbox_kills.py

postgresql: setup ## applications on a real PostgreSQL: one of its own, or the one that WALTZ_TEST_POSTGRESQL names
	$(BIN)/pytest -q tests/integration/log/postgresql_client.py

fuzz: setup ## the parsers under a coverage-guided fuzzer; SECONDS=600 altogether instead of 60, ONLY=direct_frames one of them, ONLY=ports what peers send
	$(BIN)/python -m verification.fuzz.fuzz --seconds $(or $(SECONDS),60) $(ONLY)

demo: setup ## the airline, end to end; FAULTS=1 kills processes in the middle, KEEP=1 keeps it running with the web console, SECURE=1 uses mutual TLS
	$(BIN)/python -m demo $(if $(filter-out 0,$(FAULTS)),--faults) $(if $(filter-out 0,$(KEEP)),--keep) $(if $(filter-out 0,$(SECURE)),--secure)

chaos-spark: setup ## Spark drivers, workers, nodes and servers killed, every row compared; KILLS=100 of drivers, SEED=7 chooses what happens, ACTIONS="empty-key optimize" what is done to the table
	$(BIN)/python -m tests.e2e.chaos $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(ACTIONS),--actions $(ACTIONS))

lake: setup ## 200 races of two drivers on one table, for appends and upserts, at local paths and on S3, half of them with one killed or paused; S3=s3://bucket/empty a real bucket, EMULATORS="azure google" these too, RACES=20, SEED=7, MINUTES=120 at most
	$(BIN)/python -m verification.lake.races --races $(or $(RACES),200) --seed $(or $(SEED),1) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(S3),--s3 $(S3)) $(if $(EMULATORS),--emulators $(EMULATORS))

soak-spark: setup ## a driver's memory over micro-batches; BATCHES=10000, MINUTES=120 at most
	$(BIN)/python -m benchmarks.soak $(if $(BATCHES),--batches $(BATCHES)) $(if $(MINUTES),--minutes $(MINUTES))

hashes: ## SHA-256 of every file of each pinned package, into package-hashes.txt: after a change of constraints.txt, before make setup
	PYTHONPATH=.:platform/log:platform/sink $(PYTHON) -m tools.package_hashes

audit: setup ## known vulnerabilities of the pinned packages; OFFLINE_OK=1 passes where the package index has no database of them
	$(BIN)/python -m tools.audit $(if $(filter-out 0,$(OFFLINE_OK)),--offline-ok)

dist: setup ## what spark-submit needs on a cluster, into dist/: wheel, environment, Delta's jars, jobs
	$(BIN)/python -m tools.dist

image: setup ## the container image of the nodes, with podman or docker; TARGET=jobs the one of the Spark jobs
	$(BIN)/python -m tools.image $(if $(TARGET),--target $(TARGET))

image-test: setup ## builds the image and runs the cluster of compose.yaml from it; as root, with podman and mmdebstrap (.ci/packages)
	$(BIN)/pytest -q -m image tests/integration/project/test_image.py

upgrade-test: setup ## nodes of the last release replaced by this version and back under 500 appends/s; needs the whole history of the repository
	$(BIN)/pytest -q -s -m "long or slow" tests/integration/upgrade

bench: setup ## measurements into benchmarks/latest.json, charts into report.html; begins with the minutes of the last run; ONLY=append runs one
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-kafka: setup $(PEERS) ## beside three Kafka brokers that sync, in turns; ONLY=throughput, single, offered or sizes; ROUNDS=5
	@$(BIN)/python -m tools.fetch_jars kafka
	$(BIN)/python -m benchmarks.peers.kafka $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only $(ONLY))

bench-umadb: setup $(PEERS) ## conditional appends beside UmaDB, an event store in Rust, in turns; ROUNDS=5
	$(BIN)/python -m benchmarks.peers.umadb $(if $(ROUNDS),--rounds $(ROUNDS))

bench-scale: setup ## 1,000 partitions and 200 clients on one log server: memory, processor time, opening, handover
	$(BIN)/python -m benchmarks.scaling.partitions

bench-costs: setup ## what a transaction costs by role, and the models of cost and latency checked against runs
	$(BIN)/python -m benchmarks.scaling.cost_runs

$(PEERS): pyproject.toml | setup
	@echo "setup: installing confluent-kafka and umadb, for comparisons alone"
	@$(BIN)/python -m tools.clean_pip .cache/install.log $(BIN)/python install --constraint constraints.txt --editable '.[bench]'
	@touch $@

$(SSLYZE): | setup
	@echo "setup: installing sslyze, for scans alone"
	@$(BIN)/python -m venv .venv/tls-scan
	@$(BIN)/python -m tools.clean_pip .cache/install.log .venv/tls-scan/bin/python install 'sslyze==6.3.1'
	@touch $@

screenshots: setup ## the pictures of the console in its guide, from its tests; needs Chromium
	WALTZ_SCREENSHOTS=docs/guides/images/console $(BIN)/pytest -q tests/integration/log/console

reference: setup ## writes the generated pages of docs/reference
	$(BIN)/python -m tools.reference

docs: setup ## the documentation as a searchable site, in build/site; nothing in it is loaded from other hosts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

doctor: setup ## what this machine offers
	$(BIN)/waltz doctor

clean: ## what runs left behind
	rm -rf var build dist spark-warehouse metastore_db derby.log .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## the environment and the jars too
	rm -rf .venv .cache
