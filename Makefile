# Everything here works on a machine that has python3 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= auto

.PHONY: help demo test check results bench docs format clean

help:
	@echo "make demo    learn which parts of a small network are task-specific (a minute)"
	@echo "make test    run the tests"
	@echo "make check   linter, formatter, type checker; do the tables say what the runs say?"
	@echo "make results write results/summary.json and the tables of README and docs from the runs"
	@echo "make bench   measure shrinx beside other libraries (half an hour; installs PyTorch, into .venv-bench)"
	@echo "make docs    build the documentation into site/"
	@echo "make format  let ruff rewrite what it can"

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[tests,dev]"
	@touch $@

demo: .venv/installed
	$(BIN)/shrinx run sinusoid --preset quick --out runs/demo --resume

test: .venv/installed
	$(BIN)/python -m pytest -n $(WORKERS)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/python -m tools.summary --check

results: .venv/installed
	$(BIN)/python -m tools.summary

bench: .venv/installed
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.memory

docs: .venv/installed
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	$(BIN)/mkdocs build --strict --quiet

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-bench .pytest_cache .ruff_cache
