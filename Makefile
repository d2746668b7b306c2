# `make demo` and `make test` work on a fresh machine with Python 3.11 or newer. Both create the environment in .venv.
# constraints.txt pins the versions for Python 3.11. On a newer Python, use `make test CONSTRAINTS=` for the newest versions.
PYTHON ?= python3
CONSTRAINTS ?= -c constraints.txt
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n auto --dist loadfile

.PHONY: demo test coverage check docs format clean

demo: .venv/installed
	$(BIN)/fastshapley demo --output demo

test: .venv/installed
	$(PYTEST) $(OPTIONS)

# The tests, and the share of the code that they run: at least fail_under in pyproject.toml.
coverage:
	$(MAKE) test OPTIONS="--cov --cov-report=term"

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo site/index.html

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .coverage demo dist site
