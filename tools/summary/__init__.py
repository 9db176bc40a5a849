"""The numbers that README and docs show, made from the run folders in `results/`: `make results`.

runs.py      a run folder as it is read
paper.py     what the paper reports and what is to be reached (`results/paper.toml`)
rows.py      the numbers of a run, one row each, beside the paper's
tables.py    Markdown tables of rows (`results/tables.toml`)
documents.py tables put between their markers in README.md and docs/*.md
"""
