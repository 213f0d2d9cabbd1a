# `make reproduce` and `make test` work from a fresh clone: each sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
BENCH_READY := $(VENV)/.bench-ready
PACKAGE_READY := $(VENV)/.package-ready

.PHONY: reproduce test slow check format verify docs notebooks bench wheel clean

reproduce: $(READY)
	$(BIN)/hadaflow verify --out out
	$(BIN)/hadaflow reproduce --out out

test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

slow: $(READY)
	$(BIN)/pytest -m slow -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: $(READY)
	$(BIN)/hadaflow verify

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

notebooks: $(READY)
	$(BIN)/python docs/hooks/notebooks.py

bench: $(BENCH_READY)
	mkdir -p out
	$(BIN)/python benchmarks/run.py --json out/benchmarks.json --picture out/cost.png

# Built, looked at, installed into an empty environment and used there.
wheel: $(PACKAGE_READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	HADAFLOW_DIST=dist $(BIN)/pytest -m slow tests/test_package.py

# Reinstalled when the dependencies change; the sources themselves are installed editable.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $(DOCS_READY)

# pyfwht compiles itself; where it cannot, the table says that it is not installed.
$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	-$(BIN)/python -m pip install --quiet pyfwht
	touch $(BENCH_READY)

$(PACKAGE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[package]'
	touch $(PACKAGE_READY)

clean:
	rm -rf $(VENV) out site dist
