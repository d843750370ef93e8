# Each target sets up what it needs: only Python 3.11 and make have to be there.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -q --numprocesses $(JOBS) --dist loadfile
DEMO_STORE := .tokenloom
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo test check ui bench docs soak clean

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

install: $(INSTALLED)  ## make .venv with everything for development

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say make PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED) .dagster/dagster.yaml  ## materialize the quickstart through Dagster, preview it, train 30 steps on it
	@echo "== Materializing tokenloom/pipelines/quickstart.yaml through Dagster"
	@DAGSTER_HOME=$(CURDIR)/.dagster TOKENLOOM_STORE=$(DEMO_STORE) \
	  $(BIN)/dagster job execute -m tokenloom.definitions -j quickstart > .dagster/demo.log 2>&1 || { tail -n 40 .dagster/demo.log; exit 1; }
	@sed -nE 's/.* - (STEP_SUCCESS|RUN_SUCCESS) - (.*)/   \2/p' .dagster/demo.log
	@echo "== What the model is trained on"
	@$(BIN)/tokenloom preview tokenloom/pipelines/quickstart.yaml --store $(DEMO_STORE) --row 3 5 12
	@echo "== Training a tiny model on it"
	@$(BIN)/python examples/train.py quickstart --store $(DEMO_STORE) --steps 30
	@echo "== Next"
	@echo "   make ui                 the assets, checks and schedules in Dagster's UI"
	@echo "   docs/prepare/prepare.md declare your own dataset"
	@echo "   docs/train/train.md     load it in training code"

.dagster/dagster.yaml: dagster.yaml
	@mkdir -p .dagster
	@cp dagster.yaml $@

test: $(INSTALLED)  ## run all tests, in two processes or JOBS=N
	$(PYTEST)

check: $(INSTALLED)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

ui: $(INSTALLED) .dagster/dagster.yaml  ## start Dagster's UI on the pipelines/ folder
	DAGSTER_HOME=$(CURDIR)/.dagster TOKENLOOM_STORE=$(DEMO_STORE) env --default-signal=INT,TERM,QUIT $(BIN)/dagster dev -w workspace.yaml

bench: $(INSTALLED)  ## time a build against datasets.map, then each stage that has a target, each in one run
	$(BIN)/python benchmarks/build.py
	$(BIN)/python benchmarks/prompts.py benchmarks/thinking.jinja
	$(BIN)/python benchmarks/tokens.py
	$(BIN)/python benchmarks/raw.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/incremental.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/collation.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/resume.py

docs: $(INSTALLED)  ## write the reference pages from the code
	$(BIN)/python docs/generate/reference.py
	$(BIN)/python docs/generate/contracts.py
	$(BIN)/python docs/generate/real_files.py
	$(BIN)/python docs/generate/picture.py

soak: $(INSTALLED)  ## the long sweeps
	TOKENLOOM_SOAK=1 $(PYTEST)

clean:  ## remove .venv, the demo's store and Dagster's state
	rm -rf .venv .dagster $(DEMO_STORE) build *.egg-info
