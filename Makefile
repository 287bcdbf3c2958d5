# make demo            train a classifier on the digits with four workers, and write a report
# make test            run all checks and the default tests
# make test-long       run the tests that would make the default run too long: the rest of those on Ray, those with containers, and those that
#                      measure time (one at a time)
# make check           check format, lint, types, layers and English
# make bench           run the benchmarks
# make bench-codecs    measure the speed of each codec, compared with a copy of memory
# make bench-accuracy  measure the accuracy of each codec on MNIST, which is downloaded unless $CHIMERA_DATA has it
# make mutants         plant each bug of tests/mutants in turn, and check that the tests detect it; takes 5 to 10 minutes
# make docs            build the site of the documents into docs/_build/html, with the outputs of its notebooks
# make wheel           build the source distribution and the wheel into dist, and check them by twine
# make audit           check the versions in constraints.txt for known vulnerabilities; needs the network
# make clean           remove all generated files except runs
#
# make install         install all packages that the tests need: PyTorch, Ray, FastAPI, ...
#                      TORCH_INDEX=https://download.pytorch.org/whl/cpu takes PyTorch's CPU build, about 200 MB instead of 2.7 GB with
#                      CUDA on Linux
#
# The first python3 (or python3.11 to python3.14) that is new enough creates .venv; select another with PYTHON=...

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/base
INSTALLED := $(VENV)/installed
TESTABLE := $(VENV)/testable
DOCUMENTABLE := $(VENV)/documentable
unexport PYTHONDONTWRITEBYTECODE # tests start many processes; compiling modules again in each would double their time
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4
UNTIMED := $(addprefix tests/,codecs data docs embeddings ensembles inference/test_raft.py test_distribution.py remote reproductions strategies testing training)
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
TORCH_INDEX ?=
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)

.PHONY: demo test test-long test-long-parallel test-long-serial check types format layers english audit mutants docs wheel bench \
	bench-codecs bench-accuracy clean install
.DEFAULT_GOAL := demo

demo: $(BASE)
	$(BIN)/chimera demo

test: check
	$(PYTEST) --durations=15 --durations-min=2

test-long: test-long-parallel test-long-serial

test-long-parallel: $(DOCUMENTABLE)
	$(PYTEST) -m "long and not slow" $(UNTIMED)

test-long-serial: $(DOCUMENTABLE)
	$(BIN)/python -m pytest -m "long and not slow" $(addprefix --ignore=,$(UNTIMED))

mutants: $(TESTABLE)
	$(BIN)/python tests/mutants/run.py

check: $(TESTABLE)
	@$(MAKE) --no-print-directory --jobs 2 types format layers english

types: $(TESTABLE)
	$(BIN)/mypy

format: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

layers: $(TESTABLE)
	$(BIN)/lint-imports

english: $(TESTABLE)
	$(BIN)/python tests/english.py

docs: $(DOCUMENTABLE)
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs docs/_build/html
	@echo "The site is built; its first page is docs/_build/html/index.html"

wheel: $(TESTABLE) # twine has its own environment, as it needs twenty packages
	$(BIN)/python -m hatchling build --clean
	test -x $(VENV)/twine/bin/twine || { $(BIN)/python -m venv $(VENV)/twine && $(VENV)/twine/bin/pip install -q twine; }
	$(VENV)/twine/bin/twine check --strict dist/*

audit: $(INSTALLED) # pip-audit has its own environment, separate from the tested packages
	test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install -q pip-audit; } || \
		{ echo "audit: skipped, because pip-audit cannot be installed; check the network"; exit 0; }; \
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

bench: $(TESTABLE)
	@set -e; for script in $(filter-out benchmarks/codec_accuracy.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-codecs: $(TESTABLE)
	$(BIN)/python benchmarks/codecs.py

bench-accuracy: $(TESTABLE)
	$(BIN)/python benchmarks/codec_accuracy.py

install: $(TESTABLE)

# --no-compile: modules are compiled at their first import. Most are never imported, and compiling all takes longer than the download.
$(BASE): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Chimera needs Python 3.11 or newer; install it, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing Chimera, NumPy, SciPy, pandas, scikit-learn, Numba and Matplotlib into $(VENV): a download of about 170 MB, 600 MB on disk"
	$(PIP) --no-compile -e .
	@touch $@

# torch is installed first and alone, so that pip takes a build from TORCH_INDEX that satisfies the pin.
$(INSTALLED): $(BASE)
	@echo "Installing PyTorch and the packages of REST nodes: about 200 MB to download for PyTorch's CPU build, 2.7 GB with CUDA" \
		"$(if $(TORCH_INDEX),,(Linux takes that one by default; the CPU build: make TORCH_INDEX=https://download.pytorch.org/whl/cpu ...))"
	$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") "$(TORCH)"
	$(PIP) -e ".[train,nodes]"
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # modules that --no-compile left uncompiled
	@touch $@

$(TESTABLE): $(INSTALLED)
	@echo "Installing the packages of the tests (Ray, transformers, FastAPI, ...): about 300 MB to download"
	$(PIP) -e ".[train,ray,nodes,inference,dev]"
	@touch $@

# In the same environment: notebooks run Chimera on each of its engines, and constraints.txt pins the versions for both.
$(DOCUMENTABLE): $(TESTABLE)
	@echo "Installing Sphinx, its theme and its reader of notebooks: about 20 MB to download"
	$(PIP) -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) dist build docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
