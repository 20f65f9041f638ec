# `make help` lists the targets. Two need nothing but Python 3.11: `make demo` and `make test`.

VENV   ?= .venv
TORCH  ?= torch==2.13.0   # installed before the project, so that you choose the build
JOBS   ?= 2               # processes of the unit tests; integration tests fill the cores by themselves
WHAT   ?= transfer        # which benchmark `make bench` runs
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
    "$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    && { echo "$$p"; break; }; done)

BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
UNIT   := $(PYTEST) -n $(strip $(JOBS)) tests/unit src/headrace tools

.DEFAULT_GOAL := help
.PHONY: help setup demo fix check test test-all test-gpu test-multi bench size clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## create the virtual environment: torch, then the project with its dev tools

# Renewed when what is to be installed changes. The stamp is written last: a broken install is redone.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer with its venv module (on Debian:" \
	    "python3-venv); found none. Name one with PYTHON=/path/to/python3"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## serve the embedded model with prefill and decode apart, ask it once, show the ledger
	$(BIN)/headrace demo

fix: $(READY)  ## format, and repair what the linter can repair
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

check: $(READY)  ## format, lint, types, import contracts, size limits, links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.check_limits
	$(BIN)/python -m tools.check_links

test: $(READY)  ## unit tests, doctests and the quick integration tests
	$(UNIT) -m "not slow"
	$(PYTEST) -m "not slow" tests/integration

test-all: $(READY)  ## everything that needs no device: the whole exactness matrix, long property tests
	$(UNIT) --hypothesis-profile=long --timeout=900
	$(PYTEST) --timeout=900 tests/integration

test-gpu: $(READY)  ## tests that need one device; says why each skipped one was skipped
	$(PYTEST) -rs tests/gpu

test-multi: $(READY)  ## tests that need several devices
	$(PYTEST) -rs tests/multi

bench: $(READY)  ## run one benchmark: make bench WHAT=transfer
	$(BIN)/headrace bench $(WHAT)

size: $(READY)  ## lines per package against its ceiling
	@$(BIN)/python -m tools.size

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
