# Every target does its own set-up on a machine that has only Python 3.11+, git and make. Nothing is installed outside
# .venv, but Debian packages that tests and benchmarks run or compare with, and those only when run as root.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2
PURE := $(wildcard $(addprefix src/exaserve/,domain models scheduling health perfmodel planning preflight report serving control workload))

.PHONY: help setup demo test test-compiled check format bench-path bench-gateway bench-simulate bench-bringup bench-telemetry bench-loss bench-fidelity bench-guard clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

$(VENV)/.runtime: pyproject.toml requirements.lock scripts/setup
	@scripts/setup runtime

$(VENV)/.dev: pyproject.toml requirements.lock scripts/setup
	@scripts/setup dev

# The package with its request path compiled, where there is a C compiler; otherwise empty, and the sources serve.
$(VENV)/compiled/.done: scripts/setup scripts/hatch_build.py $(shell find src -name '*.py')
	@[ -x $(BIN)/python ] || scripts/setup runtime
	@scripts/setup compiled

setup: $(VENV)/.dev ## virtual environment with everything for development

demo: $(VENV)/.runtime ## a cluster of 48 emulated replicas: round robin against entropy, about two minutes
	@$(BIN)/exaserve demo

test: $(VENV)/.dev ## all tests
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup $(PYTEST_ARGS)

check: $(VENV)/.dev ## format, lint, types, import rules; all of them, also after one has failed
	@status=0; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff check --config ruff-pure.toml $(PURE) || status=1; \
	$(BIN)/lint-imports --no-cache || status=1; \
	$(BIN)/mypy src tests $(wildcard benchmarks) || status=1; \
	exit $$status

format: $(VENV)/.dev ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

test-compiled: $(VENV)/.dev $(VENV)/compiled/.done ## tests of the request path in its compiled form
	@[ -d $(VENV)/compiled/exaserve ] || { echo "no C compiler: the compiled form is NOT tested on this machine"; exit 0; }; \
	PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup $(PYTEST_ARGS) \
		tests/house/test_compiled.py tests/gateway tests/serving/test_fleet.py tests/serving/test_same_life.py tests/health tests/scheduling \
		tests/perfmodel tests/simulate tests/observe tests/e2e/test_clients.py

bench-path: $(VENV)/.dev $(VENV)/compiled/.done ## CPU of the data plane alone; AGAINST=FOLDER compares with another build
	@PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m benchmarks.bench_path $(if $(AGAINST),--against "$(AGAINST)")

bench-gateway: $(VENV)/.dev $(VENV)/compiled/.done ## gateway against HAProxy and vllm-router on the same core
	@PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m benchmarks.bench_gateway

bench-simulate: $(VENV)/.dev $(VENV)/compiled/.done ## simulated seconds per second: 3,072 replicas, 28,000 requests/s
	@PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m benchmarks.bench_simulate

bench-bringup: $(VENV)/.dev ## null engines on 16 to 512 nodes, from exaserve up to all ready
	@$(BIN)/python -m benchmarks.bench_bringup

bench-telemetry: $(VENV)/.dev $(VENV)/compiled/.done ## what 3,072 pushed and 48 polled replicas cost one gateway
	@PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m benchmarks.bench_telemetry

bench-loss: $(VENV)/.dev ## how soon losses and returns of agents, nodes, engines, peers and clients are noticed
	@$(BIN)/python -m benchmarks.bench_loss

bench-fidelity: $(VENV)/.dev ## predicted speed against public measurements, cross-validated; ROWS="FILE ..." judges others
	@PYTHONPATH="$(CURDIR)/src" $(BIN)/python -m benchmarks.bench_fidelity $(if $(ROWS),--rows $(ROWS))

bench-guard: $(VENV)/.dev $(VENV)/compiled/.done ## what keys and limits cost a request, and one limit over four gateways
	@PYTHONPATH="$(CURDIR)/$(VENV)/compiled" $(BIN)/python -m benchmarks.bench_guard

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
