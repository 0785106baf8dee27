# make run   : set up, train ALI-DPFL to a finished report        make test  : set up, run the tests
# make check : lint, types, layers                                make bench : measure against the peers
# make docs  : build the site of docs/ into site/
# make package : wheel and sdist in dist/, tried in a clean environment
# make sbom  : that, and in dist/ a CycloneDX list of what it needs, and SHA256SUMS
# make nightly : the long searches, such as 100 000 sensitivity cases, and 200 mutants
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PACKAGES := $(wildcard packages/*)
export OMP_NUM_THREADS ?= 1

.PHONY: venv run test nightly check docs package sbom bench clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(PACKAGES:%=%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,check]' \
	  $(PACKAGES:%=--editable %)
	touch $@

run: venv
	@if $(BIN)/sordino data find fashion-mnist 2>/dev/null; then \
	  $(BIN)/sordino run examples/ali-dpfl-fashion-mnist.toml --json; \
	else \
	  echo "Fashion-MNIST was not found: training on the embedded digits instead." >&2; \
	  $(BIN)/sordino run examples/ali-dpfl-digits.toml --json; \
	fi

test: venv
	$(BIN)/python -m pytest -n auto

nightly: venv
	$(BIN)/python -m pytest -m nightly -n auto --junitxml nightly.xml
	$(BIN)/python tests/mutation.py

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

package: venv
	.ci/package $(abspath $(BIN)/python)

sbom: package
	.ci/sbom $(abspath $(BIN)/python)

bench: venv bench/pfl/.venv
	$(BIN)/python -m bench

# A peer that needs packages of its own; where they cannot be had, its figure is left out.
bench/pfl/.venv: bench/pfl/requirements.txt
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check --requirement $< || rm -rf $@

# The referee of the audits' bounds (tests/audit/test_jax_privacy.py), likewise.
bench/jax_privacy/.venv: bench/jax_privacy/requirements.txt
	rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check --requirement $< || rm -rf $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .hypothesis .import_linter_cache
