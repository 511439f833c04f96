# Two commands on a bare machine with Python 3.11+ and make:  make demo   make test
# Everything is installed into $(VENV); stamp files below it remember what is done, so a second call installs nothing.

VENV ?= .venv
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
EXPLORE_ARGS ?=
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

BIN := $(VENV)/bin
DONE := $(VENV)/.hopyard
PINS := requirements/constraints.txt
WEB_FILES = $(shell find web -name node_modules -prune -o -type f ! -name schema.ts -print)
WEB_TESTED := web/node_modules/.hopyard-tested
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(PINS)

# uv reads none of pip's settings; a machine that names its packages to pip means uv as well.
empty :=
comma := ,
space := $(empty) $(empty)
ifneq ($(PIP_FIND_LINKS),)
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
endif
ifneq ($(PIP_INDEX_URL),)
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifneq ($(PIP_EXTRA_INDEX_URL),)
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
endif
ifneq ($(PIP_CERT),)
export SSL_CERT_FILE ?= $(PIP_CERT)
endif

# Without .pyc files each of the thousand processes of the tests would compile what it imports: PyTorch alone costs 5 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test explore lint types contracts reference docs web build-web wheel constraints clean

help:  ## what there is
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(DONE)/demo $(DONE)/torch  ## install, then train on MNIST through Hopyard and show what came of it
	@scripts/demo.sh $(VENV)

# One worker runs all tests of a file, so its fixtures (servers, runs, Spark) start once and not once per worker. The long files
# come early: without the order of the folders they would be last, with idle workers beside them.
test: $(DONE)/test $(DONE)/frameworks  ## the test suite, with the web UI's where Node is there (SLOW=1: with its slow tests; PYTEST_ARGS="-k name": a part)
	@$(if $(PYTEST_ARGS),,if scripts/web_tools.sh; then $(MAKE) --no-print-directory $(WEB_TESTED); else echo "note: the tests of web/ are skipped" >&2; fi)
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(if $(SLOW)$(PYTEST_ARGS),,-m "not slow") $(PYTEST_ARGS)

explore: $(DONE)/test $(DONE)/frameworks  ## the laws with random seeds and growing sizes (EXPLORE_ARGS="--minutes 60 tests/scheduler")
	$(BIN)/python scripts/explore.py $(EXPLORE_ARGS)

lint: $(DONE)/test  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DONE)/test  ## mypy, strict, over all of hopyard and its benchmarks
	$(BIN)/mypy

contracts: $(DONE)/test  ## which room may import which
	$(BIN)/lint-imports

reference: $(DONE)/test  ## write docs/cli.md, docs/openapi.json and the typed client from the program
	$(BIN)/python scripts/reference.py

docs: $(DONE)/docs  ## build the documentation site in build/site; check the changelog fragments
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/towncrier build --draft --version next >/dev/null

web: $(WEB_TESTED) build-web  ## check, test and build the web UI into src/hopyard/web_ui (needs Node 20.19 or later)

# An interrupted build leaves the built files as they were.
build-web: web/node_modules
	cd web && npm run --silent build -- --outDir ../build/web_ui --emptyOutDir
	rm -rf src/hopyard/web_ui && mv build/web_ui src/hopyard/web_ui
	python3 scripts/web_sources.py

# Nothing is tested twice: the stamp is older than whatever has changed.
$(WEB_TESTED): docs/openapi.json $(WEB_FILES) | web/node_modules
	cd web && npm run --silent api && npm run --silent check && npm run --silent test
	@touch $@

web/node_modules: web/package.json web/package-lock.json
	cd web && npm ci --silent
	touch $@

wheel: $(DONE)/test  ## build dist/hopyard-*.whl, with the web UI
	@$(BIN)/python scripts/web_sources.py --check || $(MAKE) web
	$(BIN)/uv build --quiet --wheel

constraints: $(DONE)/venv  ## resolve the pinned versions anew (with hashes, without addresses)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	  --override requirements/overrides.txt --extra demo --extra docs --extra frameworks --extra plot --extra postgres --extra test pyproject.toml \
	  --output-file $(PINS)

clean:  ## remove what the above made, but not your runs
	rm -rf $(VENV) .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache web/node_modules web/src/api/schema.ts

$(DONE)/venv:
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11 or newer is needed" >&2; echo "hint: install it, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "hint: Debian and Ubuntu have venv in a package of its own: python3-venv" >&2; exit 1; }
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { exit }' $(PINS) > $(VENV)/uv.txt
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
	@mkdir -p $(DONE) && touch $@

$(DONE)/demo: pyproject.toml $(PINS) | $(DONE)/venv
	@$(INSTALL) --compile-bytecode --editable '.[demo]'
	@$(BIN)/python -m compileall -q src
	@touch $@

$(DONE)/test: pyproject.toml $(PINS) | $(DONE)/venv
	@$(INSTALL) --compile-bytecode --editable '.[demo,postgres,test]'
	@$(BIN)/python -m compileall -q src
	@touch $@

$(DONE)/frameworks: pyproject.toml $(PINS) | $(DONE)/torch $(DONE)/test
	@$(INSTALL) --editable '.[frameworks]'
	@touch $@

# Not in `frameworks`: the build of Visdom needs an older setuptools, and no other one does.
$(DONE)/visdom: | $(DONE)/test
	@echo 'setuptools<81' > $(VENV)/visdom-build.txt
	@$(INSTALL) --build-constraints $(VENV)/visdom-build.txt --editable '.[visdom]'
	@touch $@

$(DONE)/docs: pyproject.toml $(PINS) | $(DONE)/venv
	@$(INSTALL) --editable '.[docs]'
	@touch $@

# PyTorch is not pinned with the rest: which build is right depends on the machine. Where the packages come from a folder, that
# folder decides; else uv looks for a GPU driver and takes the matching build, the CPU's where there is none (UV_TORCH_BACKEND=cpu
# decides it by hand), and the plain one where PyTorch's own index is out of reach.
$(DONE)/torch: | $(DONE)/venv
	@echo "installing PyTorch …"
ifneq ($(UV_FIND_LINKS)$(UV_TORCH_BACKEND),)
	@$(INSTALL) '$(TORCH)'
else
	@$(INSTALL) --torch-backend auto '$(TORCH)' || $(INSTALL) '$(TORCH)'
endif
	@touch $@
