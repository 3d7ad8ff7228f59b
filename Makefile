# `make demo` and `make test` need Python 3.11 and nothing else: the first run creates .venv, later runs reuse it.
# The demo installs what it needs; Ray, ONNX, the viewer and the tools of the tests come with `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
BENCH_READY := $(VENV)/.ready-bench
DOCS_READY := $(VENV)/.ready-docs
BENCHES := inference audit_memory losses models remix_speed data engine wsi viewer

.PHONY: view demo test test-slow coverage check bench docs pages format clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(DEMO_READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) for the demo (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch -e .
	@touch $@

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch -e '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

$(DOCS_READY): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(DEMO_READY)  ## the demonstration, with a report in demo-report/
	@OMP_NUM_THREADS=1 $(BIN)/pams demo --out demo-report

view: $(READY)  ## the viewer on synthetic slides, in your browser
	@$(BIN)/pams view --demo

test: $(READY)  ## tests, and the doctests of src and Markdown
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test-slow: $(READY)  ## the fault suite and simulations: minutes, with counts at the end
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not gpu" tests

coverage: $(READY)  ## the tests again, measured line by line and branch by branch; fails below the floor in pyproject.toml
	@$(BIN)/coverage erase
	@OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

check: $(READY)  ## format, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --config-file benchmarks/mypy.ini

format: $(READY)  ## let ruff rewrite the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

pages: $(READY)  ## write the generated pages of docs/
	@$(BIN)/python docs/generate_methods.py
	@$(BIN)/python docs/generate_numbers.py
	@$(BIN)/python docs/generate_cli.py
	@$(BIN)/python docs/generate_schemas.py

docs: $(DOCS_READY)  ## the documentation as a site in site/, built strictly by Material and by Zensical
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site-material
	@$(BIN)/zensical build --strict --clean
	@$(BIN)/python docs/check_site.py site build/site-material

bench: $(BENCH_READY)  ## speed and memory beside the peers, as ratios
	@failed=""; log=$$(mktemp); for name in $(BENCHES); do \
	  echo; echo "== $$name"; \
	  { $(BIN)/python benchmarks/$$name.py && echo ok > $$log.$$name; } 2>&1 | tee -a $$log; \
	  test -e $$log.$$name && rm $$log.$$name || failed="$$failed $$name"; \
	done; echo; grep '^Missed goal:' $$log; rm -f $$log; \
	test -z "$$failed" || { echo "Failed, or below a goal:$$failed"; exit 1; }; echo "All goals reached."

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache demo-report demo-view site .cache
