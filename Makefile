# Two commands: `make fit` trains the main experiment, `make test` checks everything. Both set up .venv first.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

.PHONY: fit test lint

fit: $(READY)
	$(BIN)/python -m zoo fit --config experiments/lsfa_eurlex.yaml $(ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Installs anew only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
