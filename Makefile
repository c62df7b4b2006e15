# Every target makes what it needs first: the virtual environment, then the servers.
# Nothing is installed outside .venv and the cache folder ($XDG_CACHE_HOME/penstock).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

CHECKED := framework connectors services compose
FAST    := $(wildcard tests/unit tests/simulation tests/laws tests/docs tests/test_tidy.py)
SUITE   := $(wildcard tests)

.PHONY: setup demo demo-ab test check format bench images clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.project

# The environment is remade when the lock changes, and only then.
$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Penstock needs Python 3.11 or newer as '$(PYTHON)'; found: $$($(PYTHON) --version 2>&1 || echo none)." >&2; \
	  echo "Install it (Debian: apt-get install python3 python3-venv) or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
ifdef UV
	@echo "setup: $(VENV) with uv (the first time downloads about 700 MB, most of it PySpark)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	@$(UV) pip sync --python $(BIN)/python --require-hashes requirements.lock
else
	@echo "setup: $(VENV) with venv and pip (the first time downloads about 700 MB, most of it PySpark)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "python3 has no venv module. Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --disable-pip-version-check --require-hashes -r requirements.lock
endif
	@touch $@

# Editable and without build isolation: hatchling is in the lock, so this needs no network.
$(VENV)/.project: $(VENV)/.locked pyproject.toml
ifdef UV
	@$(UV) pip install --quiet --offline --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-index --no-deps --no-build-isolation --editable .
endif
	@touch $@

demo: setup
	@$(BIN)/python services/demo.py $(DEMO_ARGS)

# The ledger and its variant with a fee replay the same transfers; the report is checked.
demo-ab: setup
	@$(BIN)/python services/demo_ab.py $(DEMO_ARGS)

test: setup
	@$(BIN)/python -m penstock_stack fetch
	@$(BIN)/python -m pytest $(SUITE) $(TEST_ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(FAST),$(BIN)/python -m pytest -q $(FAST),@echo "check: no fast tests yet")

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	@$(BIN)/python tests/bench/run.py $(BENCH_ARGS)

# The images of the stack on Docker; needs an engine, and no image registry where mmdebstrap is.
images: setup
	@$(BIN)/python -m penstock_stack images

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
