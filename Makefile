# Everything a contributor or CI runs. Each target brings .venv up to date first, which costs nothing when it is.
# Another Python: make PYTHON=python3.12. Another build of PyTorch: make TORCH_BACKEND=cu130.

PYTHON ?= python3
TORCH_BACKEND ?=
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/lock.txt
PIP := $(BIN)/uv pip
INTO := --quiet --python $(BIN)/python
COMPILE := $(PIP) compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-header \
	--generate-hashes --annotation-style line
COMPILE_LOCK := --all-extras --group dev --output-file $(LOCK) pyproject.toml
# Programs that only a release needs, in an environment of their own, and what locks them.
TOOLS := build/tools
TOOLS_LOCK := requirements/tools.txt
COMPILE_TOOLS := --group release --output-file $(TOOLS_LOCK)
SHIPPED := steps workflows datasets
TESTS := tests/steps tests/workflows tests/package
# Workers that start together would each compile the libraries, and take a minute longer than one process and they.
COLLECT := env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/pytest --collect-only --quiet $(TESTS)
# What a release would lack or have too much: where files ship, also those that git ignores.
UNCOMMITTED := git status --short; git ls-files --others --ignored --exclude-standard $(SHIPPED) | grep -v '[.]pyc$$'

# Console scripts hold the path of the environment, so that a copied checkout would run the original's code.
ifneq ($(shell cat $(VENV)/home 2>/dev/null),$(CURDIR))
$(VENV)/home: FORCE
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-slow test-cluster test-cluster-scale compare golden pipeline-calls pipeline-table bench bench-run bench-hidden bench-gpu \
	bench-plan bench-aggregate bench-scores bench-scale bench-tail lint types docs format install lock upgrade licenses audit wheel \
	sbom release clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/generate build/linked ## Make the bundled dataset on this machine
	@$(BIN)/imagekiln demo

# Types and reference are checked beside the tests; what they print comes after. Processes that tests start
# import the libraries again and again: their bytecode is kept. Idle workers take over what others have to do.
# $(1): what is checked beside the tests, $(2): options of pytest.
define run_tests
	@$(MAKE) --no-print-directory $(1) >build/checks.txt 2>&1 & checks=$$!; \
	test build/bytecode -nt $(VENV)/dev || $(COLLECT) >build/bytecode 2>&1; \
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --maxprocesses 4 \
		--dist worksteal $(2); \
	tests=$$?; wait $$checks; checks=$$?; cat build/checks.txt; \
	test $$tests -eq 0 && test $$checks -eq 0
endef

check: lint ## Lint, types and the tests that need no torch: what to run while working
	$(call run_tests,types,--light -rfE --ignore tests/steps/generate $(TESTS))

test: lint ## Lint, types, API reference and every test but the slow ones: what CI runs
	$(call run_tests,types docs,$(TESTS))

test-slow: $(VENV)/dev build/linked ## Tests that take minutes
	@$(BIN)/pytest -o faulthandler_timeout=3600 -m slow $(TESTS); further=$$?; \
	$(BIN)/pytest -o faulthandler_timeout=3600 tests/slow && test $$further -eq 0

test-cluster: $(VENV)/dev build/linked ## Tests on the cluster that KUBECONFIG names, with the images loaded
	@$(BIN)/pytest -o faulthandler_timeout=1800 tests/cluster

test-cluster-scale: $(VENV)/dev build/linked ## A workflow of 500 pods there, or SHARDS=2000, with a stub in place of the GPU image
	@$(BIN)/pytest -o faulthandler_timeout=7200 -s tests/cluster/scale.py

compare: $(VENV)/dev build/linked ## Run the checkout in BASE=... and this one on the same jobs, and compare
	@test -n "$(BASE)" || { echo >&2 "Name the other checkout: make compare BASE=../imagekiln-before"; exit 1; }
	@$(BIN)/python -m tests.compare "$(BASE)" $(OPTIONS)

golden: $(VENV)/dev build/linked ## Write the YAML that render is compared with, after a change that was meant
	@$(BIN)/python -m tests.workflows.goldens

pipeline-calls: $(VENV)/dev build/linked ## Write what planning knows of diffusers' pipelines, after an update of diffusers
	@$(BIN)/python -m tests.pipeline_calls

pipeline-table: $(VENV)/dev build/linked ## Write docs/pipelines.md, by drawing with each small pipeline, then too
	@$(BIN)/python -W ignore -m tests.pipeline_table

bench: ## List the benchmarks
	@awk -F ':.*## ' '/^bench-[a-z]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

bench-run: $(VENV)/dev build/linked ## Benchmark: a whole job, images per second, beside bare loops
	@$(BIN)/python tests/bench/run.py

bench-hidden: $(VENV)/dev build/linked ## Benchmark: what of encoding and writing is hidden behind the device
	@$(BIN)/python -m tests.bench.hidden

bench-gpu: $(VENV)/dev build/linked ## Benchmark: a call on a GPU: CALL=1 nine minutes, CALL=2 four, CALL=faults nine
	@$(BIN)/python -m tests.bench.gpu $(if $(CALL),--call $(CALL)) --models build/models --json build/gpu.jsonl

bench-plan: $(VENV)/dev build/linked ## Benchmark: planning, rows per second and memory
	@$(BIN)/python tests/bench/plan.py

bench-aggregate: $(VENV)/dev build/linked ## Benchmark: aggregation, images per second and memory
	@$(BIN)/python tests/bench/aggregate.py

bench-scores: $(VENV)/dev build/linked ## Benchmark: images per second without scores, with them, and with the best of four
	@$(BIN)/python -m tests.bench.scores

bench-export: $(VENV)/dev build/linked ## Benchmark: exporting, images per second and memory, beside pyarrow's copy
	@$(BIN)/python -m tests.bench.export

bench-scale: $(VENV)/dev build/linked ## Benchmark: 1 to 100 million images played through, hours, cost and first limits
	@$(BIN)/python -m tests.bench.scale

bench-tail: $(VENV)/dev build/linked ## Benchmark: the end of a run with one slow process, with help by the others and without
	@$(BIN)/python -m tests.bench.tail

lint: $(VENV)/dev build/linked ## Check style, formatting and layers
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/hadolint images/*.Dockerfile
	@$(BIN)/lint-imports --no-cache >build/layers.txt || { cat build/layers.txt; exit 1; }

types: $(VENV)/dev build/linked ## Check types, strictly, through the installed package
	@bash -o pipefail -c "$(BIN)/mypy -p imagekiln -p tests | sed 's|^build/[^/]*/imagekiln/||'"

docs: $(VENV)/dev build/linked ## Build the API reference into build/reference, warnings being errors
	@$(BIN)/python -W error -m pdoc --docformat google --no-show-source --output-directory build/reference \
		imagekiln '!imagekiln[.](steps|workflows|local)'

format: $(VENV)/dev ## Format the code and mend what ruff can
	@$(BIN)/ruff check --quiet --fix --exit-zero
	@$(BIN)/ruff format --quiet

install: $(VENV)/dev build/linked ## Bring .venv up to date, after adding or removing a file too

lock: $(VENV)/uv ## Lock what pyproject.toml asks for, keeping versions that still do
	@$(COMPILE) $(COMPILE_LOCK)
	@$(COMPILE) $(COMPILE_TOOLS)

upgrade: $(VENV)/uv ## Lock the newest versions
	@$(COMPILE) --upgrade $(COMPILE_LOCK)
	@$(COMPILE) --upgrade $(COMPILE_TOOLS)

licenses: $(VENV)/dev ## List the license of each locked package, from those that are installed
	@$(BIN)/python -m tests.package.licenses

# Strict: otherwise it calls packages sound that nobody answers about.
audit: $(TOOLS)/bin ## Look for known vulnerabilities in the locked versions, by the network
	@for lock in $(LOCK) $(TOOLS_LOCK); do \
		$(TOOLS)/bin/pip-audit --strict --require-hashes --disable-pip --requirement $$lock || exit 1; \
	done

# By way of the source distribution: setuptools would put leftovers of an earlier build/ into the wheel.
wheel: $(VENV)/uv ## Build the source distribution and the wheel into dist/
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(BIN)/uv build --quiet --python $(BIN)/python --require-hashes --build-constraints $(LOCK)

# What the GPU image holds of Python, from packages that are installed: requirements name no licences.
sbom: wheel $(TOOLS)/bin ## List the packages that a full installation has, with licences, in dist/ as CycloneDX
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/sbom
	@$(BIN)/uv pip install --quiet --python build/sbom --require-hashes --constraints $(LOCK) \
		--requirements pyproject.toml --extra generate --extra fp8 --extra gguf --extra c2pa
	@$(BIN)/uv pip install --quiet --python build/sbom --no-deps dist/*.whl
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(TOOLS)/bin/cyclonedx-py environment \
		--output-reproducible --pyproject pyproject.toml --output-file "$$(ls dist/*.whl | sed 's/-py3.*//').cdx.json" build/sbom

release: ## Build, check and hash what a release publishes, from a commit: CONTRIBUTING.md
	@test -z "$$($(UNCOMMITTED))" || { echo >&2 "Commit or remove these first:"; { $(UNCOMMITTED); } >&2; exit 1; }
	@rm -rf dist
	@$(MAKE) --no-print-directory sbom
	@$(TOOLS)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	@cd dist && sha256sum *.whl *.tar.gz *.json >SHA256SUMS && cat SHA256SUMS

clean: ## Remove what was built and installed
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(SHIPPED) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The package's dependencies, $(1) saying which, at the locked versions.
# On Linux, PyTorch's own index is tried first: it has a build without CUDA, gigabytes smaller, and one for each CUDA,
# which bring CUDA libraries of their own versions. Where it does not answer, the default registry's build will do.
define dependencies
	@backend="$(TORCH_BACKEND)"; \
	if [ -z "$$backend" ]; then if nvidia-smi -L >/dev/null 2>&1; then backend=auto; else backend=cpu; fi; fi; \
	awk -f requirements/own-torch.awk $(LOCK) >$(VENV)/own-torch.txt; \
	own="--torch-backend $$backend --constraints $(VENV)/own-torch.txt"; \
	wanted="--requirements pyproject.toml $(1)"; \
	if [ "$$(uname -s)" = Linux ] && echo torch | UV_HTTP_TIMEOUT=5 UV_HTTP_RETRIES=0 \
		$(PIP) compile --quiet --no-deps $$own --output-file $(VENV)/torch.txt - 2>/dev/null && \
		echo "PyTorch: its own build for '$$backend'" && $(PIP) install $(INTO) $$own $$wanted; then :; \
	else \
		echo "PyTorch: the default registry's build" && \
		$(PIP) install $(INTO) --require-hashes --constraints $(LOCK) $$wanted; \
	fi
endef

$(VENV)/home:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo >&2 \
		"Imagekiln needs Python 3.11 or newer with its venv module (Debian: python3-venv); $(PYTHON) is not that," \
		"so name one that is: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@echo '$(CURDIR)' >$@

$(VENV)/uv: $(VENV)/home
	@awk '/^[^ ]/ { is_uv = /^uv==/ } is_uv' $(LOCK) >$(VENV)/uv.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
	@touch $@

$(TOOLS)/bin: $(TOOLS_LOCK) | $(VENV)/uv
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(TOOLS)
	@$(PIP) install --quiet --python $(TOOLS) --require-hashes --requirement $(TOOLS_LOCK)
	@touch $@

$(VENV)/generate: pyproject.toml $(LOCK) | $(VENV)/uv
	$(call dependencies,--extra generate)
	@touch $@

$(VENV)/dev: pyproject.toml $(LOCK) | $(VENV)/uv
	$(call dependencies,--all-extras --group dev)
	@touch $(VENV)/generate $@

# Strict mode links each file into build/ under the package's real name, where type checkers find it too. Changes to a
# file need nothing; a file added or removed needs new links.
build/linked: pyproject.toml $(VENV)/files $(VENV)/uv
	@$(PIP) install $(INTO) --no-deps --reinstall --build-constraints $(LOCK) --editable . \
		--config-settings editable_mode=strict
	@touch $@

$(VENV)/files: FORCE | $(VENV)/uv
	@find $(SHIPPED) -type f ! -name '.*' ! -name '*.pyc' | LC_ALL=C sort >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
