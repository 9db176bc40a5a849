# Everything here works on a machine that has python3 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= auto
TORCH ?= torch==2.13.0
PURELIB := import sysconfig; print(sysconfig.get_path('purelib'))

.PHONY: help demo test test-torch check results bench docs format clean

help:
	@echo "make demo        learn which parts of a small network are task-specific (a minute)"
	@echo "make test        run the tests"
	@echo "make test-torch  run the tests that need PyTorch, in an environment of their own"
	@echo "make check       linter, formatter, type checker; do the tables say what the runs say?"
	@echo "make results     write results/summary.json and the tables of README and docs from the runs"
	@echo "make bench       measure shrinx beside other libraries (an hour; installs PyTorch, into .venv-bench)"
	@echo "make docs        build the documentation into site/"
	@echo "make format      let ruff rewrite what it can"

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[tests,dev]"
	@touch $@

demo: .venv/installed
	$(BIN)/shrinx run sinusoid --preset quick --out runs/demo --resume

test: .venv/installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# PyTorch alone, on top of what .venv has.
.venv-torch/installed: .venv/installed
	$(BIN)/python -m venv --without-pip .venv-torch
	$(BIN)/python -c "$(PURELIB)" > "$$(.venv-torch/bin/python -c "$(PURELIB)")/venv.pth"
	$(BIN)/python -m pip --python .venv-torch install --quiet $(TORCH)
	@touch $@

test-torch: .venv-torch/installed
	.venv-torch/bin/python -m pytest -n $(WORKERS) --dist worksteal -k torch tests/test_torch*.py tests/test_examples.py shrinx/bridges/torch

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
	rm -rf .venv .venv-torch .venv-bench .pytest_cache .ruff_cache
