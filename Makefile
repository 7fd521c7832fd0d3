# `make fit` trains the main experiment, `make test` checks everything. All targets set up .venv first.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: fit test quick coverage lint docs

fit: $(READY)
	$(BIN)/python -m zoo fit --config experiments/lsfa_eurlex.yaml $(ARGS)

test: lint
	$(PYTEST) $(ARGS)

# Everything but several processes, killed runs, whole experiments and what takes minutes.
quick: $(READY)
	$(PYTEST) -m 'not (ddp or kill or experiment or slow)' $(ARGS)

# Measures all processes that the tests start; those killed with SIGKILL report nothing.
coverage: $(READY)
	$(PYTEST) --cov --cov-report= $(ARGS)
	$(BIN)/coverage report

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.venv/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Reinstalls when the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
