# Every target makes .venv and installs gfss into it on first use, and again when the versions below change.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help quickstart test lint format results docs package

help:  ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1	/' | expand -t 18

quickstart: $(INSTALLED)  ## train, teach and compare on the embedded scenes
	$(BIN)/gfss quickstart

test: $(INSTALLED)  ## run every test on all cores
	$(BIN)/pytest -q -n auto

lint: $(INSTALLED)  ## check style, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED)  ## fix style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: $(INSTALLED)  ## write the tables of README and docs from the records
	$(BIN)/python docs/results.py

docs: $(INSTALLED)  ## build the site into site/, strictly and without internet
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(INSTALLED)  ## build wheel and sdist into dist/
	$(BIN)/python -m build --no-isolation

# On Linux the usual torch brings several GB of CUDA packages along. TORCH_INDEX=URL takes a build from another index
# first; pytorch.org names that of its CPU builds.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gfss needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --constraint constraints.txt --editable '.[dev,lite]'
	@touch $@
