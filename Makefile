# `make demo` and `make test` set up what is missing: a virtual environment in .venv, with the pinned requirements and
# this package. They need Python >= 3.11 and a package index.
#   PYTHON           the interpreter that .venv is made with
#   TORCH_INDEX_URL  an index that torch comes from (its CPU or CUDA builds); empty: pip's own
#   DEMO_FLAGS       flags of code/run_demo.py, such as --quick
#   PYTEST_FLAGS     flags of pytest
#   LOCK_FLAGS       flags of `uv pip compile`, such as --upgrade
#   FAULTS_FLAGS     flags of tests/faults.py, such as "--seed 7 --only predict"
#   DOCS_FLAGS       flags of sphinx-build, such as --fresh-env
#   PACKAGE_FLAGS    flags of tests/package/check.py, such as --build_only

PYTHON ?= python3
TORCH_INDEX_URL ?=
DEMO_FLAGS ?=
PYTEST_FLAGS ?= -n 2 --dist worksteal
LOCK_FLAGS ?=
FAULTS_FLAGS ?=
PACKAGE_FLAGS ?=
DOCS_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# Named after the index, so that another one installs torch anew.
RUNTIME := $(VENV)/.runtime-installed-$(shell printf '%s' '$(TORCH_INDEX_URL)' | cksum | cut -d ' ' -f 1)
DEV := $(VENV)/.dev-installed
# Its own environment: what makes the lock file is no part of what it locks.
LOCKER := $(VENV)/lock
UV_VERSION := 0.13.9
BUILDER := $(VENV)/package

.DEFAULT_GOAL := help
.PHONY: help demo test test-all containers cluster ray faults package docs lint format lock clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUNTIME) ## docstrings of this machine -> four trained encoders and a report (about 6 minutes)
	$(BIN)/python code/run_demo.py $(DEMO_FLAGS)

test: $(DEV) ## the tests, without the slow ones
	$(BIN)/python -m pytest -m 'not engine and not slow' $(PYTEST_FLAGS)

test-all: $(DEV) ## all tests but those of containers
	$(BIN)/python -m pytest -m 'not engine' $(PYTEST_FLAGS)

containers: $(DEV) ## the tests that start containers, with Podman, as root (.ci/engine installs it)
	$(BIN)/python -m pytest -m engine $(PYTEST_FLAGS)

cluster: $(DEV) ## the scripts of slurm/ on a Slurm of two nodes that it starts, as root, with Debian's slurm-wlm and munge
	PYTHONPATH=code:tests/support $(BIN)/python tests/cluster/check.py

ray: $(DEV) ## predictions by Ray clusters that it starts: with workers, nodes and commands that are killed (4 minutes)
	$(BIN)/python -m pip install --quiet 'ray[data]==2.60.0'
	$(BIN)/python -m pytest tests/prediction/test_on_ray.py tests/docs/test_scale.py $(PYTEST_FLAGS)

faults: $(DEV) ## commands killed, on full disks, with damaged files, two at once: a table of what they promise (2 minutes)
	PYTHONPATH=code:tests/support $(BIN)/python tests/faults.py $(FAULTS_FLAGS)

package: $(RUNTIME) ## wheel and sdist in dist/, checked, and installed with each extra into an empty environment (8 minutes)
	@$(BUILDER)/bin/python -c 'import build, twine' 2> /dev/null || \
		{ $(PYTHON) -m venv --clear $(BUILDER) && $(BUILDER)/bin/python -m pip install --quiet build==1.6.1 twine==7.0.0; }
	$(BUILDER)/bin/python tests/package/check.py --torch_index_url '$(TORCH_INDEX_URL)' $(PACKAGE_FLAGS)

docs: $(DEV) ## the documentation site in site/html/; a dead link or an unknown name is an error (2 minutes)
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going -c docs -d site/doctrees . site/html $(DOCS_FLAGS)

lint: $(DEV) ## ruff, mypy and hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

format: $(DEV) ## format the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Versions that the file has already are kept where they fit; LOCK_FLAGS=--upgrade takes the newest.
lock: ## requirements.lock anew from requirements.txt: every version in the image, with the hashes of its files
	@$(LOCKER)/bin/uv --version 2> /dev/null | grep -q '^uv $(UV_VERSION) ' || \
		{ $(PYTHON) -m venv --clear $(LOCKER) && $(LOCKER)/bin/python -m pip install --quiet uv==$(UV_VERSION); }
	$(LOCKER)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command 'make lock' $(LOCK_FLAGS) --output-file requirements.lock requirements.txt

clean: ## remove what demo, test and lint left, but not .venv
	rm -rf demo demo-quick site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find code tests data-preprocessing -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV) code/*.egg-info

# Most modules are never imported: compiling all of them takes more than a minute.
$(RUNTIME): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 2; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(if $(TORCH_INDEX_URL),$(BIN)/python -m pip install --quiet --force-reinstall --no-deps \
		--index-url $(TORCH_INDEX_URL) $$(grep '^torch==' requirements.txt))
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	rm -f $(VENV)/.runtime-installed-*
	touch $@

$(DEV): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	touch $@
