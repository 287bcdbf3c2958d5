# make demo   train something and watch it            make check  format, lint, types, layers, English
# make test   check everything and run the tests      make bench  the benchmarks        make clean  remove all that was made but runs
# make test-long   the tests that would take the former too long: the rest of those on Ray, and containers; those that measure time one at a time
# make mutants   plant the bugs of tests/mutants, one at a time, and check that the tests catch each; takes an hour
# make audit  known vulnerabilities of the versions in constraints.txt; needs the network
# make bench-codecs   how fast each codec is beside a copy of memory
# make bench-accuracy what each codec costs in accuracy on MNIST, which it downloads unless $CHIMERA_DATA has it
#
# make install   what the tests need: PyTorch, Ray, FastAPI, ... TORCH_INDEX=https://download.pytorch.org/whl/cpu takes PyTorch's CPU build,
#                about 200 MB instead of 2.7 GB with CUDA on Linux
#
# The first python3 (or python3.11 to python3.14) that is new enough makes .venv; choose another with PYTHON=...

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/base
INSTALLED := $(VENV)/installed
TESTABLE := $(VENV)/testable
unexport PYTHONDONTWRITEBYTECODE # tests start many processes: compiling modules anew in each would double their time
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4
UNTIMED := $(addprefix tests/,codecs data embeddings ensembles inference/test_raft.py remote reproductions strategies testing training)
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
TORCH_INDEX ?=
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)

.PHONY: demo test test-long test-long-parallel test-long-serial check audit mutants bench bench-codecs bench-accuracy clean install
.DEFAULT_GOAL := demo

demo: $(BASE)
	$(BIN)/chimera demo

test: check
	$(PYTEST) --durations=15 --durations-min=2

test-long: test-long-parallel test-long-serial

test-long-parallel: $(TESTABLE)
	$(PYTEST) -m "long and not slow" $(UNTIMED)

test-long-serial: $(TESTABLE)
	$(BIN)/python -m pytest -m "long and not slow" $(addprefix --ignore=,$(UNTIMED))

mutants: $(TESTABLE)
	$(BIN)/python tests/mutants/run.py

check: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/english.py

audit: $(INSTALLED) # pip-audit has an environment of its own, apart from what is tested
	test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install -q pip-audit; } || \
		{ echo "audit: skipped, since pip-audit cannot be installed: is the network there?"; exit 0; }; \
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

bench: $(TESTABLE)
	@set -e; for script in $(filter-out benchmarks/codec_accuracy.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-codecs: $(TESTABLE)
	$(BIN)/python benchmarks/codecs.py

bench-accuracy: $(TESTABLE)
	$(BIN)/python benchmarks/codec_accuracy.py

install: $(TESTABLE)

# Modules are compiled when they are imported first: most never are, and all of them take longer than the download.
$(BASE): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Chimera needs Python 3.11 or newer; install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing Chimera, NumPy, SciPy, pandas, scikit-learn, Numba and Matplotlib into $(VENV): a download of about 170 MB, 600 MB on disk"
	$(PIP) --no-compile -e .
	@touch $@

# torch comes first and alone, so that pip takes a build that satisfies the pin from wherever it is told to look.
$(INSTALLED): $(BASE)
	@echo "Installing PyTorch and what REST nodes need: about 200 MB to download for PyTorch's CPU build, 2.7 GB with CUDA" \
		"$(if $(TORCH_INDEX),,(Linux takes that one by default; the CPU build: make TORCH_INDEX=https://download.pytorch.org/whl/cpu ...))"
	$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") "$(TORCH)"
	$(PIP) -e ".[train,nodes]"
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # what came uncompiled with the demo
	@touch $@

$(TESTABLE): $(INSTALLED)
	@echo "Installing what the tests need (Ray, transformers, FastAPI, ...): about 300 MB to download"
	$(PIP) -e ".[train,ray,nodes,inference,dev]"
	@touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
