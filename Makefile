# Two commands to start: `make demo` (see it work) and `make test` (everything that must hold).
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := fast,flower,tsne,tensorboard,privacy,bench,dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo venv test test-all check lint soak clean

demo: .venv/.runtime        ## train on the embedded digits, calibrate, print what happened
	$(BIN)/ccvr run

venv: .venv/.dev            ## the project with all extras and developer tools

test: venv lint             ## what must hold before a change lands
	$(BIN)/pytest -n 3 -m "not slow and not flower_slow" -o faulthandler_timeout=600

test-all: venv lint         ## the same with the slow tests
	$(BIN)/pytest -n 2

check: venv lint            ## the quick one for daily use
	$(BIN)/pytest -n 2 -m "not slow and not flower and not flower_slow" -x --ignore=tests/end_to_end

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }

.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) ".[$(EXTRAS)]"
	@touch .venv/.runtime $@

soak: .venv/.dev            ## runs killed, starved and cut off at random moments; an hour, or MINUTES=5
	PYTHONPATH=. $(BIN)/python -m tests.adversary.soak --minutes $(or $(MINUTES),60)

clean:
	rm -rf .venv
