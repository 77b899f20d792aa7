# The verbs of this repository. The first one sets up .venv; `make demo` installs requirements/base.lock only.

PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.dev
# -q: the list of what is installed is the lock file.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps

.PHONY: demo test test-all check bench bench-loops docs site package lock clean
.DEFAULT_GOAL := test

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 is needed; name one: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): requirements/base.lock pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV) (once)"
	$(PIP) -r requirements/base.lock
	$(PIP) --no-build-isolation -e .
	@touch $@

$(DEV): $(INSTALLED) requirements/live.lock requirements/dev.lock
	@echo "Adding what tests and checks need, torch among it (once)"
	$(PIP) -r requirements/dev.lock
	@# Which libraries torch needs depends on its build (NVIDIA's, with PyPI's own for Linux): pip adds them.
	$(BIN)/python -m pip install -q --disable-pip-version-check `grep '^torch==' requirements/dev.lock`
	@touch $@

$(VENV)/.peers: $(DEV) requirements/peers.lock
	$(PIP) -r requirements/peers.lock
	@touch $@

$(VENV)/.ray: $(DEV) requirements/ray.lock
	$(PIP) -r requirements/ray.lock
	@touch $@

$(VENV)/.site: $(DEV) requirements/site.lock
	$(PIP) -r requirements/site.lock
	@touch $@

$(VENV)/.package: requirements/package.lock | $(BIN)/python
	@echo "Adding what builds the package (once)"
	$(PIP) -r requirements/package.lock
	@touch $@

$(VENV)/.wandb: $(DEV) requirements/wandb.lock
	$(PIP) -r requirements/wandb.lock
	@touch $@

demo: $(INSTALLED)  ## train agents on real prices and write an honest report (2 minutes, set-up included)
	$(BIN)/slipstream demo

test: $(DEV)  ## everything but long learning and long fault tests (6 minutes on 2 cores, a fourth of them compiling)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=30 --durations-min=4 $(ARGS)

test-all: $(VENV)/.ray $(VENV)/.peers $(VENV)/.wandb $(VENV)/.site $(VENV)/.package  ## everything, with Ray, the peers and the tracker; benchmarks/results/test-all.json says when it last passed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "" --all-packages $(ARGS)
	$(BIN)/python -m benchmarks.record_test_run benchmarks/results/test-all.json "make test-all"

check: $(DEV)  ## format, lint, types, import contracts, spelling, writing
	$(BIN)/ruff format --check src benchmarks tests examples requirements
	$(BIN)/ruff check src benchmarks tests examples requirements
	$(BIN)/ruff check --preview --select PLW1514 src  # text files are UTF-8 in every locale
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --config importlinter.toml
	$(BIN)/codespell src docs tests benchmarks examples requirements .github *.md *.yml Makefile pyproject.toml
	$(BIN)/python -m pytest -q -n0 tests/test_writing.py

bench: $(VENV)/.peers  ## measure beside the peers (three suites, at most 10 minutes each)
	$(BIN)/python -m benchmarks env --json benchmarks/results/env.json
	$(BIN)/python -m benchmarks train --json benchmarks/results/train.json
	$(BIN)/python -m benchmarks study --json benchmarks/results/study.json
	$(MAKE) docs

# A virtual environment of its own: an MKL or a TBB beside ours would change how we run.
.venv-loops/.done: requirements/loops.lock
	test -x .venv-loops/bin/python || $(PYTHON) -m venv .venv-loops
	.venv-loops/bin/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/loops.lock
	@touch $@

bench-loops: $(VENV)/.peers .venv-loops/.done  ## beside jax and RLtools, whose loops are compiled whole (needs g++)
	$(BIN)/python -m benchmarks loops --json benchmarks/results/loops.json
	$(MAKE) docs

docs: $(INSTALLED)  ## write docs/reference (performance.md from benchmarks/results/*.json, config.md, cli.md) and the README's chart
	$(BIN)/python -m benchmarks.page docs/reference/performance.md benchmarks/results
	$(BIN)/python docs/site/generated_pages.py docs/reference

site: $(VENV)/.site  ## build the pages of docs/ and the reference into build/site; a broken link or an undocumented name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(VENV)/.package  ## build the wheel and the source distribution into dist/, and check them; installs nothing else
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

lock: $(DEV)  ## renew every file of requirements/ from the ranges of pyproject.toml (2 minutes; installs nothing)
	$(BIN)/python requirements/lock.py

clean:  ## remove what make made, but not runs/
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src benchmarks tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
