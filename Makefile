# The commands of the project. `make` alone lists them.
#
# Everything lives in this folder: Python in .venv, the SQS-compatible server in .venv-ministack (its
# dependencies contradict Airflow's), data in var/. A second call of a target does only what is new.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

UV_VERSION := 0.13.8
PORT ?= 8080
MINUTES ?= 60
# Tests wait for servers half of the time, so that two of them share a core.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? 2 * $(CORES) : 8)))
BIN := .venv/bin
AIRFLOWS := $(sort $(basename $(notdir $(wildcard tests/installed/airflows/*.in))))
# A shell that forbids compiled files would make each of the hundreds of Pythons that tests start compile Airflow.
unexport PYTHONDONTWRITEBYTECODE
# The pins were made for 3.11, so it is preferred where several are installed.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
export REDRIVE_MINISTACK ?= $(CURDIR)/.venv-ministack/bin/ministack

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.uv-$(UV_VERSION):
	@PYTHON='$(PYTHON)' ./.ci/prerequisites
	'$(PYTHON)' -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

.venv/.requirements: requirements.txt requirements-test.txt .venv/.uv-$(UV_VERSION)
	@echo "Installing requirements.txt and requirements-test.txt into .venv (about 2.5 GB, once)"
	VIRTUAL_ENV='$(CURDIR)/.venv' $(BIN)/uv pip install --quiet --require-hashes -r requirements.txt -r requirements-test.txt
	@touch $@

.venv/.project: pyproject.toml .venv/.requirements
	VIRTUAL_ENV='$(CURDIR)/.venv' $(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

.venv-ministack/.requirements: requirements-ministack.txt .venv/.uv-$(UV_VERSION)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-ministack
	VIRTUAL_ENV='$(CURDIR)/.venv-ministack' $(BIN)/uv pip install --quiet --require-hashes -r requirements-ministack.txt
	@touch $@

.PHONY: setup
setup: .venv/.project .venv-ministack/.requirements ## Make the environment in .venv, with the redrive command
	@$(BIN)/python -m redrive.dev.class_archive
	@echo "Ready: $(BIN)/redrive --help"

.PHONY: run
run: setup ## Run the whole loop on a demo queue and show what happened
	$(BIN)/redrive demo

.PHONY: up
up: setup ## Start Airflow on 127.0.0.1:$PORT (8080) with the demo scheduled
	PORT='$(PORT)' $(BIN)/redrive up

SERVERS := $(patsubst tests/install_%.sh,%,$(wildcard tests/install_*.sh))
.PHONY: $(SERVERS)
$(SERVERS): .venv/.uv-$(UV_VERSION)
	./tests/install_$@.sh

.PHONY: brokers
brokers: setup $(SERVERS) ## Prepare the servers that tests use

# Airflows of other teams, each with the libraries of its time: tests install the wheel into them.
.venv-airflow-%/.requirements: tests/installed/airflows/%.txt .venv/.uv-$(UV_VERSION)
	@echo "Installing Airflow $* into .venv-airflow-$* (about 400 MB, once)"
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-airflow-$*
	VIRTUAL_ENV='$(CURDIR)/.venv-airflow-$*' $(BIN)/uv pip install --quiet --no-deps -r $<
	@touch $@

.PHONY: matrix
matrix: brokers $(AIRFLOWS:%=.venv-airflow-%/.requirements) ## Check what takes long: every Airflow of others, the image and its services, workers of Spark that fail
	REDRIVE_MATRIX=1 REDRIVE_REQUIRE_BROKERS=all $(BIN)/pytest --durations=10 -m matrix

.PHONY: test
test: ## Check everything
	@# Side by side, because one waits for a download while another compiles.
	@$(MAKE) --no-print-directory --jobs=$(WORKERS) brokers lint collected
	$(BIN)/pytest -n $(WORKERS) --durations=15

# Compiles all tests and what they import, which each of the workers would do for itself where they begin at once.
.PHONY: collected
collected: .venv/.project
	@told=$$($(BIN)/pytest --collect-only -qq 2>&1) || { echo "$$told"; exit 1; }

.PHONY: check
check: setup lint ## Check what is quick and needs no server: for every change
	$(BIN)/pytest -n $(CORES) --durations=10 -m "not (server or airflow or spark or slow)"

.PHONY: lint
lint: .venv/.project ## Check form, types and layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: setup ## Bring the code into form
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Drain3, which the classification is measured against, wants older versions of what Airflow needs.
.venv-bench/.requirements: requirements-bench.txt .venv/.uv-$(UV_VERSION)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-bench
	VIRTUAL_ENV='$(CURDIR)/.venv-bench' $(BIN)/uv pip install --quiet --require-hashes -r requirements-bench.txt
	@touch $@

.PHONY: bench
bench: setup .venv-bench/.requirements ## Measure what our own code costs
	$(BIN)/python -m benchmarks

.PHONY: soak
soak: setup ## Simulate new seeds for $MINUTES (60) and print the account
	$(BIN)/python -m tests.simulation soak --minutes '$(MINUTES)'

.PHONY: release
release: brokers ## Build sdist, wheel and bill of materials into dist/ and check them
	rm -rf dist
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) REDRIVE_DIST='$(CURDIR)/dist'; \
		$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist && \
		$(BIN)/python -m redrive.dev.parts dist/redrive-*.whl requirements.txt && $(BIN)/pytest tests/installed
	@cd dist && sha256sum redrive-*

.PHONY: docs
docs: setup ## Write docs/configuration.md and docs/causes.md from the code
	$(BIN)/python -m redrive.settings > docs/configuration.md
	$(BIN)/python -m redrive.classification.rules > docs/causes.md

SPARK := pyspark pyspark-client py4j  # 500 MB, which tests lend
LOCK = $(BIN)/uv pip compile --quiet --no-header --python-version 3.11
HASHED = $(LOCK) --generate-hashes
.PHONY: lock
lock: setup ## Resolve requirements*.in anew
	$(HASHED) --upgrade requirements-test.in -o requirements-test.txt
	cp requirements-test.txt requirements.txt  # what both need, in the same versions
	$(HASHED) requirements.in -o requirements.txt
	cp requirements.txt requirements-image.txt
	$(HASHED) requirements-image.in pyproject.toml -o requirements-image.txt
	$(HASHED) --upgrade requirements-ministack.in -o requirements-ministack.txt
	$(HASHED) --upgrade requirements-bench.in -o requirements-bench.txt
	for one in $(AIRFLOWS); do \
		day=$$(grep -o -m 1 -E '[0-9]{4}-[0-9]{2}-[0-9]{2}' tests/installed/airflows/$$one.in); \
		$(LOCK) --no-annotate --upgrade --exclude-newer $$day $(SPARK:%=--no-emit-package %) \
			--extra rabbitmq --extra sqs --extra spark --extra postgres \
			pyproject.toml tests/installed/airflows/$$one.in -o tests/installed/airflows/$$one.txt; \
	done

.PHONY: env
env: ## Write .env with fresh secrets for docker-compose.yml
	@./docker/make_env

.PHONY: clean
clean: ## Remove the environments and caches; var/ with the ledger stays
	rm -rf .venv .venv-ministack .venv-bench .venv-airflow-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		spark-warehouse metastore_db derby.log plugins/*.egg-info
	find dags plugins spark_jobs sql tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
