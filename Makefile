# Every target sets up what it needs: only Python 3.11 or newer and make are required.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
BIN := .venv/bin
PIPELINE := .venv/.pipeline
DEVELOPMENT := .venv/.development
LOWEST := .venv-lowest/.installed
# What pip installs. In variables: a comma in $(call …) would end its argument.
DEMO := .[pipeline,train]
EVERY := .[jax,pipeline,ray,s3,train,vision]
LOWEST_TESTS := tests/golden tests/config $(addprefix tests/assets/,raw schema columns prompts tokenizer sequences) \
  $(addprefix tests/loaders/,collation datasets on_the_fly order reading)
# Cases that start machines wait more than they compute; the others keep a core busy.
JOBS ?= $(or $(shell getconf _NPROCESSORS_ONLN 2>/dev/null),2)
MACHINE_JOBS ?= 4
SHUFFLE ?=
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest -q --disable-warnings --maxprocesses 8 --dist loadfile --shuffle '$(SHUFFLE)'
DEMO_STORE := .tokenloom
# A background job starts with SIGINT ignored, and Dagster's processes would inherit that; only GNU env can reset it.
RESET_SIGNALS = $(shell env --default-signal=INT true 2>/dev/null && echo env --default-signal=INT,TERM,QUIT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# MkDocs Material prints a notice of its plans otherwise.
export NO_MKDOCS_2_WARNING := 1

# $(call install,ENVIRONMENT,WHAT): pip install, with its output in a file; the end of it is shown if pip fails.
define install
@$(1)/bin/pip install --quiet --retries 2 $(2) > $(1)/install.log 2>&1 || { \
  tail -n 8 $(1)/install.log; \
  echo "make: pip could not install the libraries. The end of its output is above, all of it in $(1)/install.log."; \
  echo "make: Without network, set PIP_INDEX_URL or PIP_FIND_LINKS to a package index or a folder of wheels."; \
  exit 1; }
endef

.PHONY: help install demo test test-machines test-real test-times check ui bench docs site site-serve soak mutants words test-install test-lowest clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

install: $(DEVELOPMENT)  ## install tokenloom and all development tools into .venv

$(PIPELINE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokenloom needs Python 3.11 or newer, not %d.%d; run make PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@echo "== Installing PyTorch into .venv (1 to 10 minutes; its CUDA build is a download of several GB)"
	@$(PYTHON) -m venv .venv
	$(call install,.venv,--constraint constraints.txt torch==2.13.0)
	@echo "== Installing tokenloom with Dagster and the libraries that read, tokenize and train (1 to 3 minutes)"
	$(call install,.venv,--constraint constraints.txt --editable '$(DEMO)')
	@touch $@

$(DEVELOPMENT): $(PIPELINE)
	@echo "== Installing what only the tests need: trainers, JAX, test servers, linters (1 to 3 minutes)"
	$(call install,.venv,--constraint constraints.txt --editable '.[dev]')
	@touch $@

demo: $(PIPELINE) .dagster/dagster.yaml  ## build the quickstart with Dagster, preview it, and train a small model on it
	@echo "== Building tokenloom/pipelines/quickstart.yaml with Dagster (about 20 seconds)"
	@DAGSTER_HOME=$(CURDIR)/.dagster TOKENLOOM_STORE=$(DEMO_STORE) \
	  $(BIN)/dagster asset materialize -m tokenloom.definitions --select group:quickstart > .dagster/demo.log 2>&1 || { tail -n 40 .dagster/demo.log; exit 1; }
	@sed -nE 's/.* - (ASSET_MATERIALIZATION|STEP_SUCCESS) - (.*)/   \2/p' .dagster/demo.log
	@echo "== Three rows, with the trained tokens marked"
	@$(BIN)/tokenloom preview tokenloom/pipelines/quickstart.yaml --store $(DEMO_STORE) --row 3 5 12
	@echo "== Training a small model for 200 steps (about a minute), with its answer to a question before and after"
	@rm -rf .dagster/model
	@HF_HUB_OFFLINE=1 $(BIN)/tokenloom train examples/train_quickstart.yaml --store $(DEMO_STORE)
	@echo "== Next"
	@echo "   make ui                 see the assets, checks and schedules in Dagster's UI"
	@echo "   docs/prepare/prepare.md declare your own dataset"
	@echo "   docs/train/train.md     load it in training code"
	@echo "   docs/train/trainer.md   train models with tokenloom"

.dagster/dagster.yaml: dagster.yaml
	@mkdir -p .dagster
	@cp dagster.yaml $@

test: $(DEVELOPMENT)  ## run the tests, one process per core or JOBS=N (under 10 minutes on two cores)
	@echo "== Running the tests, $(JOBS) at a time (under 10 minutes on two cores)"
	@$(PYTEST) --numprocesses $(JOBS) -m 'not sweep and (smoke or not machine)'

test-machines: $(DEVELOPMENT)  ## run the tests that start clusters, ranks, servers, browsers and trainers
	@echo "== Running the tests that start clusters, ranks, servers, browsers and trainers (about 10 minutes on two cores)"
	@$(PYTEST) --numprocesses $(MACHINE_JOBS) -m 'not sweep and machine and not smoke'

test-real: $(DEVELOPMENT)  ## run a few of the tests on the real data in TOKENLOOM_REAL_DATA=DIR
	@echo "== Running a few of the tests on real data (2 minutes on two cores)"
	@$(PYTEST) --numprocesses $(JOBS) -m 'sweep and smoke'

check: $(DEVELOPMENT)  ## run ruff, codespell and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright

ui: $(PIPELINE) .dagster/dagster.yaml  ## open Dagster's UI on the YAML files in pipelines/, or on the quickstart
	DAGSTER_HOME=$(CURDIR)/.dagster TOKENLOOM_STORE=$(DEMO_STORE) $(RESET_SIGNALS) $(BIN)/dagster dev -w workspace.yaml

bench: $(DEVELOPMENT)  ## run all benchmarks
	$(BIN)/python benchmarks/build.py
	$(BIN)/python benchmarks/prompts.py benchmarks/thinking.jinja
	$(BIN)/python benchmarks/tokens.py
	$(BIN)/python benchmarks/raw.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/incremental.py
	$(BIN)/python benchmarks/far_store.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/far_reading.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/collation.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/tree_training.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/scale.py --simulated
	$(BIN)/python benchmarks/scale.py --plan

docs: $(DEVELOPMENT)  ## generate the reference pages from the code
	$(BIN)/python docs/generate/reference.py
	$(BIN)/python docs/generate/contracts.py
	$(BIN)/python docs/generate/rejects.py
	$(BIN)/python docs/generate/real_files.py
	$(BIN)/python docs/generate/first_rows.py
	$(BIN)/python docs/generate/conformance.py
	$(BIN)/python docs/generate/picture.py
	$(BIN)/python docs/generate/dagster_pictures.py

# Not --quiet: --strict counts only the warnings that are printed.
site: $(DEVELOPMENT)  ## write the pages of docs/ as a website to build/site; a broken link is an error
	$(BIN)/mkdocs build --strict

site-serve: $(DEVELOPMENT)  ## show the website at http://localhost:8000, again after every change
	$(BIN)/mkdocs serve

soak: $(DEVELOPMENT)  ## run all tests with every case and many more draws, nightly or before a release (hours)
	TOKENLOOM_SOAK=1 $(PYTEST) --numprocesses $(MACHINE_JOBS) -m ''

test-times: $(DEVELOPMENT)  ## run the tests of make test and print what takes their time
	$(BIN)/python scripts/test_times.py -m 'not sweep and (smoke or not machine)'

mutants: $(DEVELOPMENT)  ## plant faults in the code, and check that tests notice each (15 minutes or so)
	$(BIN)/python scripts/mutants.py

words:  ## count the words and phrases that the docs and messages should avoid
	@$(PYTHON) scripts/sample_text.py --dialect

test-install:  ## install tokenloom with each extra into an empty environment and use it (15 minutes or more)
	$(PYTHON) scripts/try_extras.py

test-lowest: $(LOWEST)  ## run tests with the lowest version of every library that pyproject.toml allows
	PYTHONHASHSEED=0 .venv-lowest/bin/python -m pytest -q --numprocesses $(JOBS) --dist loadfile $(LOWEST_TESTS)

$(LOWEST): pyproject.toml constraints-lowest.txt
	@$(PYTHON) -m venv .venv-lowest
	@echo "== Installing the lowest versions into .venv-lowest (3 to 15 minutes)"
	$(call install,.venv-lowest,--constraint constraints-lowest.txt torch)
	$(call install,.venv-lowest,--constraint constraints-lowest.txt --editable '$(EVERY)' \
	  pytest pytest-xdist hypothesis 'moto[server]' zstandard)
	@touch $@

clean:  ## remove .venv, the demo's store, Dagster's state and build files
	rm -rf .venv .venv-lowest .dagster $(DEMO_STORE) build dist *.egg-info
