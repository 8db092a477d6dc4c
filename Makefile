# Two commands for users: `make quickstart` and `make test`. Each sets up what it needs on a machine that has only
# Python 3.11 to 3.13, pip and make; a second run installs nothing. Versions come from requirements.lock alone.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,\
	$(shell $(name) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $(name))))
VENV := .venv
PY := $(VENV)/bin/python
# pip comes from the machine's Python, so that this works where ensurepip is missing (Debian without python3-venv).
INSTALL = $(PYTHON) -m pip --python $(PY) --disable-pip-version-check install --quiet --constraint requirements.lock

.DEFAULT_GOAL := help
.PHONY: help quickstart setup test lint types unit test-gpu soak bench-executor bench-tokenize bench-loader bench-train lock clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

quickstart: $(VENV)/.train  ## set up, then train a small model on Shakespeare as a graph of steps
	@$(PY) experiments/tutorials/first_model.py

setup: $(VENV)/.dev  ## set up everything (tokenizing, training, hub, tests) and run nothing
	@echo "Ready: source $(VENV)/bin/activate, or call $(VENV)/bin/ponente"

test: lint types unit  ## set up, then lint, types and every test but soak

lint: $(VENV)/.dev  ## ruff, rules and format
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet .

types: $(VENV)/.dev  ## mypy, strict
	@$(VENV)/bin/mypy --no-error-summary

unit: $(VENV)/.dev  ## every test but soak
	@$(PY) -m pytest -n 3 --dist worksteal  # on two cores: tests of faults wait more than they compute

test-gpu: $(VENV)/.dev  ## what needs a GPU: kernels against plain formulas, deterministic resume, short trainings
	@JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false $(PY) -m pytest -n 8 tests/gpu  # compiling takes longest

soak: $(VENV)/.soak  ## long fault runs; rewrites docs/soak.md
	@$(PY) tests/faults/soak.py

bench-executor: $(VENV)/.core  ## the executor against snakemake, luigi and redun (own environment for the peers)
	@$(PY) benchmarks/executor.py

bench-tokenize: $(VENV)/.dev  ## the build of token caches against tokenizers, fastokens and Levanter (its own environment)
	@$(PY) benchmarks/tokenize.py --levanter

bench-loader: $(VENV)/.dev  ## batches from token caches, against Levanter's loader (its own environment)
	@$(PY) benchmarks/loader.py --levanter

bench-train: $(VENV)/.dev  ## training on the CPU against PyTorch and Levanter (its own environment); install torch first
	@$(PY) benchmarks/train_cpu.py --levanter

lock: $(VENV)/.lock  ## renew requirements.lock: the newest versions that resolve together, for Python 3.11 to 3.13
	@$(VENV)/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade --quiet \
		--custom-compile-command "make lock" --output-file requirements.lock

clean:  ## remove the environment
	rm -rf $(VENV)

$(PY):
	@test -n "$(PYTHON)" || { echo "make: found no Python 3.11, 3.12 or 3.13 on PATH; install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { echo "make: $(PYTHON) has no pip; install it (Debian: apt-get install python3-pip)" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/.core: requirements.lock pyproject.toml | $(PY)
	@echo "Installing ponente (locked versions; once)"
	@$(INSTALL) pip --editable .
	@touch $@

$(VENV)/.train: requirements.lock pyproject.toml | $(PY)
	@echo "Installing ponente[train] (locked versions; once)"
	@$(INSTALL) pip --editable '.[train]'
	@touch $@ $(VENV)/.core

$(VENV)/.dev: requirements.lock pyproject.toml | $(PY)
	@echo "Installing ponente[train,hub,dev] (locked versions; once)"
	@$(INSTALL) pip --editable '.[train,hub,dev]'
	@touch $@ $(VENV)/.train $(VENV)/.core

$(VENV)/.soak: $(VENV)/.dev
	@$(INSTALL) --editable '.[soak]'
	@touch $@

$(VENV)/.lock: | $(PY)
	@$(PYTHON) -m pip --python $(PY) --disable-pip-version-check install --quiet uv
	@touch $@
