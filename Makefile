# Everything a contributor needs. `make help` lists it. Needs Python 3.11+, Java 17+ and make; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests wait for a pipeline some of the time, so two files of them share the cores; a third would only make them late.
WORKERS ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Behaviour suites run over the in-memory twins only (SQLite for the state store): no Spark, no Postgres server.
TWINS := memory or sqlite or scoped

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-full lint bench bench-quick lock docs clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY) ## .venv with the penstock command in it, and the jars

$(READY): requirements.lock pyproject.toml src/penstock/runtime/spark/jars.py src/penstock/destinations/iceberg/declaration.py $(wildcard src/penstock/destinations/iceberg/*.java)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 install")'
	@command -v java >/dev/null || { echo "penstock needs Java 17 or newer: install a JRE, or set JAVA_HOME and PATH" >&2; exit 3; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(BIN)/penstock jars fetch
	@touch $@

demo: $(READY) ## a shop with live traffic, the pipeline, and the proof that lake equals source (about a minute)
	@$(BIN)/penstock demo

lint: $(READY) ## style, types, import rules
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-fast: lint ## the inner loop: lint, types, unit tests, behaviour suites over the twins (3 minutes)
	$(BIN)/python -m pytest $(WORKERS) tests/unit
	$(BIN)/python -m pytest $(WORKERS) tests/behaviour -k '$(TWINS)'

test: lint ## lint and the whole suite, in the sizes that CI runs
	$(BIN)/python -m pytest $(WORKERS) --durations=15

test-full: lint ## the same with the sizes that the issues state (about four hours)
	$(BIN)/python -m pytest $(WORKERS) --full --durations=25

# The long ones last.
CASE ?= drain capture copy_table copy_read modes destinations delta postgres outage history upsert decode render key_index mysql_drain mysql_copy streams freshness server growth memory
bench: $(READY) ## the benchmarks, each against a peer or a limit in the same run; CASE=name for one
	@for case in $(CASE); do echo "== $$case"; $(BIN)/python benchmarks/$$case.py || failed="$$failed $$case"; done; \
	  test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

QUICK ?= decode drain commits
bench-quick: $(READY) ## whether decode, drain or small commits are slower than they were (a minute)
	$(BIN)/python benchmarks/quick.py $(QUICK)

# An environment of its own: mkdocs-material brings 20 packages that nobody needs to work on penstock.
DOCS := build/docs-environment
$(DOCS)/.ready: requirements-docs.lock
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(DOCS)/.ready ## the documentation as a site, build/site/index.html; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

lock: $(READY) ## resolve requirements.lock again from pyproject.toml
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --extra dev --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --output-file requirements-docs.lock requirements-docs.in

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info src/*.egg-info
