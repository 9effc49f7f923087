# make setup | serve | test | check | format | bench | clean | distclean
#
#   PYTHON       interpreter that creates .venv (3.11 or newer)
#   TORCH        requirement for torch (default: the pin in requirements/torch.txt)
#   TRITON       requirement for triton (default: likewise)
#   TORCH_INDEX  another package index, for torch alone: without a GPU, the index of torch's CPU builds saves several GB
#   SERVE_ARGS   arguments of `faultbook serve` (default: 127.0.0.1:8000; FAULTBOOK_* variables count too)
#   JOBS         processes of pytest (default: 2); a file's tests stay in one
#   PYTEST_ARGS  further arguments of pytest
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH ?= $(shell grep '^torch==' requirements/torch.txt)
TRITON ?= $(shell grep '^triton==' requirements/torch.txt)
TORCH_INDEX ?=
SERVE_ARGS ?=
JOBS ?= 2
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet
SOURCES := app catalog kernels tests benchmarks

.PHONY: help setup serve test check format bench clean distclean

help:
	@sed -n '1,/^SHELL/{/^#/s/^# \{0,1\}//p}' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml requirements/constraints.txt requirements/torch.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Faultbook needs Python 3.11 or newer; set PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) -c requirements/constraints.txt '$(TORCH)'
	$(PIP) -c requirements/constraints.txt '$(TRITON)' -e '.[cluster,worker,dev]'
	@$(BIN)/python requirements/verify.py
	@touch $@

serve: $(STAMP)
	$(BIN)/faultbook serve --index torch --index triton $(SERVE_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -rs -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml deploy/compose/remote.yml

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
