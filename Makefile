# The commands of this repository; `make help` lists them.
SHELL  := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
LOCK   ?= cpu
MINUTES ?= 60
SPEC   ?= dags/refreshes/completejourney.yaml
VENV   := $(CURDIR)/.venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.locked-$(LOCK)

export PYTHONPATH := $(CURDIR):$(CURDIR)/plugins
export ETT_HOME   ?= $(CURDIR)/.ett
PEER   := $(ETT_HOME)/ml-goodput-measurement
TRITON := $(ETT_HOME)/triton

.DEFAULT_GOAL := help
.PHONY: help env refresh up down status test test-fast test-slow test-triton lint format soak chaos bench-metric bench-startup gpu-check bench-airflow images lock clean

help: ## List the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## Make .venv from the lock (LOCK=cpu or gpu)

# Bytecode is compiled once here: where Python may not write it, every process of every task would compile its imports anew.
# The resolver is asked again only for what the lock leaves open: the CUDA libraries of a wheel that this platform adds.
$(READY): requirements/$(LOCK).txt
	@echo "Making the environment from requirements/$(LOCK).txt ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements/$(LOCK).txt)"
	@UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_LINK_MODE=copy $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements/$(LOCK).txt
	@touch $@

refresh: env ## Refresh a model with the next day of its data, by real Airflow, and print its ETT report (SPEC=FILE)
	@$(BIN)/python -m ett_airflow.stack refresh --spec $(SPEC)

up: env ## Start Airflow with the pipeline and name its UI
	@$(BIN)/python -m ett_airflow.stack up

down: ## Stop Airflow and every job that it started
	@test ! -x $(BIN)/python || $(BIN)/python -m ett_airflow.stack down

status: env ## What is running
	@$(BIN)/python -m ett_airflow.stack status

test: lint test-fast test-triton test-slow ## All that CI runs

lint: env ## Style, types, package directions, refresh specs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/python -m trainer.spec check dags/refreshes/*.yaml

format: env ## Rewrite to the house style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

test-fast: env ## The default tier: under three minutes
	@$(BIN)/pytest -n 2

# By file: the tests of one share its fixtures, a trained model or an Airflow. (pytest-xdist 3.8's loadgroup does nothing under pytest 9.2.)
test-slow: env ## Real Airflow, real trainer processes, faults, the browser
	@$(BIN)/pytest -n 2 --dist loadfile -m "(integration or browser or chaos) and not soak" --durations=25

# Triton stays out of the environment: the compiler asks whether the package is there, and writes other code for a CPU then.
test-triton: env ## The GPU's kernels in Triton's interpreter and compiler, without a GPU (fetches Triton)
	@test -d $(TRITON)/triton || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(TRITON) "$$(grep '^triton==' requirements/gpu.txt)"
	@ETT_TRITON=$(TRITON) $(BIN)/pytest -m integration tests/trainer/test_triton_interaction.py

chaos: env ## Every injected fault, the whole matrix included, and the table in docs/recovery.md (two hours)
	@$(BIN)/pytest -m chaos --durations=15
	@$(BIN)/python tests/chaos/table.py

soak: env ## Full counts of the long suites
	@$(BIN)/pytest -m soak

bench-metric: env ## What the metric costs, beside ml-goodput-measurement, which is fetched into a place of its own
	@test -x $(PEER)/bin/python || { $(PYTHON) -m venv $(PEER) && $(PEER)/bin/pip install --quiet ml-goodput-measurement==0.2.3; }
	@$(PEER)/bin/python tests/benchmarks/goodput_side_by_side.py
	@$(PEER)/bin/python tests/benchmarks/recorder_cost.py
	@$(BIN)/python tests/benchmarks/reduce_cost.py

bench-startup: env ## What each startup technique gains, on real attempts, into docs/startup.md (MINUTES=60; again: goes on)
	@mkdir -p $(ETT_HOME)/bench-startup
	@$(BIN)/python -m tests.benchmarks.startup.collectives_at_scale > $(ETT_HOME)/bench-startup/collectives.md
	@$(BIN)/python -m tests.benchmarks.startup.bench run --minutes $(MINUTES)
	@$(BIN)/python -m tests.benchmarks.startup.bench report

gpu-check: env ## Kernels, compilation and staging on one GPU, below eight minutes (LOCK=gpu; says so where there is none)
	@$(BIN)/python tests/gpu/check.py

bench-airflow: env ## 500 specs beside 500 plain DAGs, and the seconds that orchestration adds (needs Debian's postgresql)
	@$(BIN)/python tests/benchmarks/orchestration_scale.py
	@$(BIN)/python tests/benchmarks/orchestration_seconds.py

images: env ## Lint docker/Dockerfile and run its steps in a clean Debian (needs root, debootstrap and a network)
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/python tests/images/chroot_build.py $(ETT_HOME)/images

lock: env ## Resolve the locks again after a change in pyproject.toml
	@requirements/lock.sh $(BIN)/uv

clean: down ## Remove the environment; data and runs in .ett stay
	@rm -rf $(VENV)
