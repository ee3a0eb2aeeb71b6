# Penstock. `make help` lists what there is. Works with GNU make 3.81 and newer.

VENV    := .venv
BIN     := $(VENV)/bin
STAMPS  := $(VENV)/stamps
ARGS    :=

# Where tools/setup found or installed Java, for systems that do not put it on the PATH.
export JAVA_HOME := $(or $(shell cat $(VENV)/java_home 2>/dev/null),$(JAVA_HOME))

# What is compiled once need not be compiled by every process of the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-lowest coverage oracle prove tap tap-page faults bench bench-quick bench-hour bench-slots bench-tables bench-memory bench-large bench-verify bench-proof lint format clean

help:
	@echo 'make demo        set up and show the whole way: PostgreSQL, live traffic, a crash, Delta'
	@echo '                 SOURCE=postgresql://... PUBLICATION=name: with your own database'
	@echo 'make test        set up and run all tests       (ARGS="tests/sql -k name" for some)'
	@echo 'make test-fast   those that need neither Spark nor a server of PostgreSQL'
	@echo 'make test-lowest  a part of them with the lowest versions that pyproject.toml allows'
	@echo 'make coverage    what tests without Spark and PostgreSQL reach of floors 0 and 1'
	@echo 'make oracle      row filters and queries beside PostgreSQL 18, a million pairs (PAIRS=1000000)'
	@echo 'make prove       functions, operators and casts beside PostgreSQL 18 (ARGS="--only json")'
	@echo 'make tap         PostgreSQL'"'"'s own subscription tests with a node at one end'
	@echo '                 (ROLE=subscriber or publisher, FILES="001 028", TAP_SOURCE=archive)'
	@echo 'make tap-page    write the tables of docs/fidelity.md from tests/tap/expected.toml'
	@echo 'make faults      kill, restart and cut, again and again (CYCLES=30, SEED=1, FUZZ=300)'
	@echo 'make bench       beside PostgreSQL 18 at the other end, as ratios, half an hour; adds them to'
	@echo '                 bench/history.md (ARGS="--only copy,updates" for some, ARGS=--help)'
	@echo 'make bench-quick  the same with small sizes, four minutes; prints and adds nothing'
	@echo 'make bench-hour  an hour of pgbench against a node: lag, memory, files (ARGS="--seconds 600")'
	@echo 'make bench-slots  changes read from a slot by SQL, beside PostgreSQL (ARGS=--help)'
	@echo 'make bench-tables  start, status, scrape, memory with 100 to 10,000 tables (ARGS=--help)'
	@echo 'make bench-memory  peaks of memory with wide rows and many files (ARGS=--help)'
	@echo 'make bench-large  one transaction of 20 million rows, from COMMIT to readable (ARGS=--help)'
	@echo 'make bench-verify  penstock verify of 5 million rows while pgbench writes (ARGS=--help)'
	@echo 'make bench-proof  what comparing in the background costs, while transactions commit (for 20'
	@echo '                 tables and two hours: ARGS="--tables 20 --rows 1000000 --seconds 3600")'
	@echo 'make lint        ruff, mypy --strict, import-linter, tables and repetitions of docs'
	@echo 'make format      let ruff format and fix what it can'
	@echo 'make setup       only set up: .venv, wheels, Delta jars, PostgreSQL servers'
	@echo 'make clean       remove .venv and caches of tools; what was fetched stays'

setup: $(STAMPS)/python $(STAMPS)/jars $(STAMPS)/servers $(STAMPS)/kernels

# Python and Java are looked at first, since nothing works without them.
$(STAMPS)/machine: tools/setup
	@sh tools/setup $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/python: pyproject.toml $(STAMPS)/machine
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(STAMPS)/jars: src/penstock/lakehouse/delta.toml $(STAMPS)/python
	@$(BIN)/python -m penstock.lakehouse.jars > /dev/null
	@touch $@

# Compiled once here, not by each process that needs one first.
$(STAMPS)/kernels: src/penstock/kernel.py $(STAMPS)/python
	@$(BIN)/python -m penstock.pipeline.worker_daemon --compile
	@touch $@

# A platform without a server of some version skips the tests that need it.
$(STAMPS)/servers: src/penstock/embedded/servers.toml $(STAMPS)/python
	@$(BIN)/python -m penstock.embedded || true
	@touch $@

# SOURCE and PUBLICATION reach the demo in the environment, where no process list shows them.
export SOURCE PUBLICATION
demo: $(STAMPS)/jars $(STAMPS)/kernels
	@$(BIN)/python -m penstock.demo $(ARGS)

# Tests start many JVMs; without the archive they take longer.
$(STAMPS)/classes: tests/class_archive.py src/penstock/lakehouse/delta.toml $(STAMPS)/jars
	@$(BIN)/python tests/class_archive.py > /dev/null 2>&1 || echo 'no archive of Spark'"'"'s classes'
	@touch $@

# Three processes, since tests wait more than they compute; each has Spark and servers of its own.
# They take files as tests/fix_order.py puts them.
ALL_TESTS := --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=20

test: setup $(STAMPS)/classes
	$(BIN)/python -m pytest $(or $(ARGS),$(ALL_TESTS))

test-fast: $(STAMPS)/python
	$(BIN)/python -m pytest --numprocesses=3 --dist=worksteal -m "not spark and not postgres and not slow" $(ARGS)

# In an environment of its own; uv resolves, with its own configuration of the index.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/end_to_end/test_refresh.py
$(LOWEST)/made: pyproject.toml $(STAMPS)/python
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--editable '.[dev]'
	@touch $@

test-lowest: $(LOWEST)/made setup $(STAMPS)/classes
	$(LOWEST)/bin/python -m pytest --numprocesses=2 \
		-m "not spark and not postgres and not slow" $(ARGS)
	$(LOWEST)/bin/python -m pytest $(LOWEST_TESTS)

# Floors 0 and 1: what works without a server, a session or a clock.
LOW_FLOORS := errors.py sqlstate.py identifiers.py failpoint.py lsn.py relation.py cells.py \
	civil.py kernel.py enum_type.py wire_rows.py guc/** protocol/** pgoutput/** pgtypes/** sql/**
comma := ,
coverage: $(STAMPS)/python
	$(BIN)/python -m coverage run --source=src/penstock -m pytest --quiet \
		-m "not spark and not postgres and not slow" $(ARGS)
	$(BIN)/python -m coverage report --skip-covered --show-missing \
		--include="$(subst $() ,$(comma),$(addprefix src/penstock/,$(strip $(LOW_FLOORS))))"

oracle: setup $(STAMPS)/classes
	PENSTOCK_FILTER_PAIRS=$(or $(PAIRS),1000000) \
		$(BIN)/python -m pytest tests/publication/test_row_filter_oracle.py -s $(ARGS)
	PENSTOCK_ORACLE_SHARE=1 PENSTOCK_ORACLE_QUERIES=5000 \
		$(BIN)/python -m pytest tests/executor -s $(ARGS)

prove: $(STAMPS)/python $(STAMPS)/servers
	$(BIN)/python tools/prove_functions.py $(ARGS)

# Which assertions pass is tests/tap/expected.toml's; TAP_SOURCE: PostgreSQL's source, where apt has none.
export TAP_SOURCE
tap: setup $(STAMPS)/classes
	PYTHONPATH=tests $(BIN)/python -m tap $(ROLE) $(FILES)

tap-page: $(STAMPS)/python
	PYTHONPATH=tests $(BIN)/python -m tap.page

# What sessions write by files as a rule, written by Spark.
BY_SPARK := tests/publishing/test_updates.py tests/publishing/test_generated_columns.py \
	tests/publishing/test_sql_partitions.py tests/publishing/test_truncate.py
# What `make test` leaves out, being long (tests/faults/heavy.py), is here too.
faults: setup $(STAMPS)/classes
	PENSTOCK_FAULT_CYCLES=$(or $(CYCLES),32) PENSTOCK_FAULT_SEED=$(or $(SEED),1) \
		PENSTOCK_FUZZ_SECONDS=$(or $(FUZZ),300) \
		$(BIN)/python -m pytest -m "faults or heavy" $(ARGS)
	PENSTOCK_TESTS_WRITE_BY=spark $(BIN)/python -m pytest $(BY_SPARK) $(ARGS)

bench: $(STAMPS)/jars
	PYTHONPATH=tests $(BIN)/python bench/run.py --history bench/history.md $(ARGS)

bench-quick: $(STAMPS)/jars
	PYTHONPATH=tests $(BIN)/python bench/run.py --quick $(ARGS)

bench-hour: $(STAMPS)/jars
	$(BIN)/python bench/hour.py $(ARGS)

bench-slots: $(STAMPS)/jars
	$(BIN)/python bench/slot_changes.py $(ARGS)

bench-tables: $(STAMPS)/jars
	$(BIN)/python bench/tables.py $(ARGS)

bench-memory: $(STAMPS)/jars
	$(BIN)/python bench/memory.py $(ARGS)

bench-large: $(STAMPS)/jars
	$(BIN)/python bench/large_transaction.py $(ARGS)

bench-verify: $(STAMPS)/jars
	$(BIN)/python bench/verify.py $(ARGS)

bench-proof: $(STAMPS)/jars
	$(BIN)/python bench/proof.py $(ARGS)

lint: $(STAMPS)/python
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/write_tables.py --check
	$(BIN)/python tools/check_docs.py

format: $(STAMPS)/python
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(LOWEST) .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
