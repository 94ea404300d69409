# `make help` lists the targets. They need only Python 3.11+ and make; uv is used if it is installed.
PYTHON ?= python3
# Tests wait more than they compute: five processes keep two cores busy.
PYTEST_WORKERS ?= 5
# Tests with a server one by one, browser tests in two processes (tests/support/scheduler.py).
PYTEST_SPREAD := -n $(PYTEST_WORKERS) --dist loadscope --no-loadscope-reorder
UV ?= uv
BIN := .venv/bin
# Stamp files: .venv has the packages of the tests, or only those of the demo, which are a subset.
READY := .venv/.installed
DEMO_READY := .venv/.installed-demo

.DEFAULT_GOAL := help
.PHONY: help demo test check format lint types fast clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 18

demo: $(DEMO_READY) ## Run an agent for 60 steps, kill its worker, resume it, and print the figures
	@PYTHONDONTWRITEBYTECODE= $(BIN)/everlong demo

# PYTHONDONTWRITEBYTECODE is cleared: the tests start some 200 processes, and without byte code on disk each of them
# would compile all modules again.
# The processes share the cores, so a test may fail because it was slow. Failed tests are run once more, one at a time,
# and have to pass then; both runs are in the output. Exit codes other than 1 (failed tests) are final.
test: $(READY) ## Run all tests, against a real Temporal server
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest $(PYTEST_SPREAD) || { \
		test $$? -eq 1 && echo "Once more, alone, what failed:" && \
		PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 1; }

# Tests that `make test` leaves out (marked `full`) or runs at a smaller size (`scaled`): benches, fewer examples of a
# property, fewer steps, fewer kills.
FULL_TESTS = $(shell grep -lrE '\bscaled\b|mark\.full' tests --include='test_*.py')
.PHONY: test-full
test-full: $(READY) ## Run the tests that make test leaves out or shortens, at their full size
	PYTHONDONTWRITEBYTECODE= EVERLONG_FULL_TESTS=1 $(BIN)/pytest $(PYTEST_SPREAD) $(FULL_TESTS)

# Tests that depend on the SDK, those of its private APIs first. Packages are compiled on installation: the workflow
# sandbox imports modules again, and from source that takes longer than some tests wait.
SDK ?=
SDK_VENV = .venv-sdk-$(SDK)
SDK_TESTS := \
	$(addprefix tests/unit/test_,sdk_internals.py plugin.py codec.py codec_server_access.py activities.py golden.py \
		search_attributes.py core_metrics.py config.py spans.py keys.py doctor.py codec_composition.py activation.py \
		drain.py worker_options.py) \
	tests/replay \
	$(addprefix tests/server/test_,sdk_internals.py plugin.py converters.py codec_order.py codec_server.py \
		replay.py cold_queries.py resume.py workflow_code_change.py rollout.py drain.py drain_report.py replay_size.py \
		thread.py approvals.py nexus.py worker_versioning.py size_policy.py)
.PHONY: test-sdk
test-sdk: ## Run the tests that depend on the Temporal SDK with another version of it; SDK=1.33.0
	@test -n "$(SDK)" || { echo "error: name a version of temporalio, as in: make test-sdk SDK=1.33.0"; exit 1; }
	@if command -v $(UV) >/dev/null; then \
		$(UV) venv -q --seed --allow-existing --python $(PYTHON) $(SDK_VENV); \
	else \
		$(PYTHON) -m venv $(SDK_VENV); \
	fi
	@grep -v '^temporalio==' constraints.txt > $(SDK_VENV)/constraints.txt
	@if command -v $(UV) >/dev/null; then \
		$(UV) pip install -q --compile-bytecode --python $(SDK_VENV)/bin/python -c $(SDK_VENV)/constraints.txt \
			-e '.[dev]' temporalio==$(SDK); \
	else \
		$(SDK_VENV)/bin/python -m pip install -q --disable-pip-version-check -c $(SDK_VENV)/constraints.txt \
			-e '.[dev]' temporalio==$(SDK); \
	fi
	$(SDK_VENV)/bin/python -m pytest $(PYTEST_SPREAD) $(SDK_TESTS)

# Tests that depend on other packages: all tests without a server, and those of stores, threads and admin with one.
LOWEST_TESTS := \
	tests/contract tests/replay \
	$(addprefix tests/server/test_,plugin.py replay.py resume.py codec_server.py thread.py approvals.py keys.py \
		thread_requests.py admin_api.py admin_archives.py archive.py query.py metrics.py spans.py providers.py \
		stack.py)
# Old versions of one package may use deprecated APIs of another: such warnings are not failures.
LOWEST_PYTEST = .venv-lowest/bin/python -m pytest -W default::DeprecationWarning $(PYTEST_SPREAD)
.PHONY: test-lowest
test-lowest: ## Run tests with the lowest version of each dependency that pyproject.toml allows; needs uv
	@UV="$(UV)" $(PYTHON) -m tools.lowest
	$(LOWEST_PYTEST) -m "not server" tests/unit
	$(LOWEST_PYTEST) $(LOWEST_TESTS)

.PHONY: matrix package
MATRIX ?=
matrix: ## Install Everlong together with other Temporal plugins, each in its own environment; needs uv
	@UV="$(UV)" $(PYTHON) -m tools.matrix $(MATRIX)

package: ## Build sdist and wheel, check them, and run a new project and the demo from the wheel
	@UV="$(UV)" $(PYTHON) -m tools.release

check: format lint types fast ## Format, lint, check types, and run the tests that need no server

format: $(READY)
	$(BIN)/ruff format .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

fast: $(READY)
	$(BIN)/pytest -q -m "not server"

.PHONY: stored
stored: $(READY) ## Write the golden files and stored histories again; only before the first tag
	$(BIN)/python -m tests.golden.generate
	$(BIN)/python -m tests.replay.generate --replace

.PHONY: guarantees
guarantees: $(READY) ## Generate docs/reference/guarantee-tests.md from the markers of the tests
	@$(BIN)/python -m tools.guarantees

.PHONY: docs docs-serve
# -W: a broken link or anchor, or a page that no index lists, fails the build.
docs: $(READY) ## Build the documentation site in build/docs; it needs no network
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html, or run: make docs-serve"

DOCS_PORT ?= 8000
docs-serve: docs ## Serve the documentation site on this machine; DOCS_PORT=8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs $(DOCS_PORT)

clean: ## Remove the virtual environment and the data of the demo and dev stack
	rm -rf .venv .venv-* build dist .everlong .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(DEMO_READY): pyproject.toml constraints.txt
	$(call install,embedded)
	@touch $@

$(READY): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(DEMO_READY) $@

# Install this checkout with an extra into .venv. uv and pip show their progress.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Everlong needs Python 3.11 or newer. Name one: make PYTHON=python3.12"; exit 1; }
	@echo "Installing everlong[$(1)] into .venv (once) ..."
	@if command -v $(UV) >/dev/null; then \
		$(UV) venv -q --seed --allow-existing --python $(PYTHON) .venv && \
		$(UV) pip install --python $(BIN)/python -c constraints.txt -e '.[$(1)]'; \
	else \
		$(PYTHON) -m venv .venv && \
		$(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt -e '.[$(1)]'; \
	fi
endef

.PHONY: bench-codec
BENCH ?=
TRANSCRIPTS ?=
bench-codec: $(READY) ## Measure the codec alone and through a server; BENCH=--long, or TRANSCRIPTS=dir
	@$(BIN)/python -m bench $(BENCH) $(if $(TRANSCRIPTS),--transcripts "$(TRANSCRIPTS)")

.PHONY: bench-thread bench-telemetry bench-compaction soak
bench-thread: $(READY) ## Measure threads: 2,000 steps, cold resumes, kills; BENCH=--quick for a short run
	@$(BIN)/python -m bench.thread $(BENCH)

bench-telemetry: $(READY) ## Compare resume spans with an external clock, and measure the overhead of telemetry
	@$(BIN)/python -m bench.telemetry $(BENCH)

.PHONY: bench-cost
bench-cost: $(READY) ## Count billed actions and history events, against a plain loop; BENCH=--quick for a short run
	@$(BIN)/python -m bench.cost $(BENCH)

.PHONY: bench-load
bench-load: $(READY) ## Run 200 threads at once, against a plain loop, then a storm of resumes; BENCH="--threads 1000"
	@$(BIN)/python -m bench.load $(BENCH)

.PHONY: bench-sticky
bench-sticky: $(READY) ## Measure both sides of the sticky timeout: kills and bursts; BENCH=--quick for a short run
	@$(BIN)/python -m bench.sticky $(BENCH)

.PHONY: bench-admin fuzz-api
bench-admin: $(READY) ## Measure the dashboard's lists with 10,000 and 100,000 threads; BENCH=--quick for a short run
	@$(BIN)/python -m bench.admin $(BENCH)

.PHONY: bench-live
bench-live: $(READY) ## Measure live output: delay to a page, 200 threads at once, requests; BENCH=--quick for a short run
	@$(BIN)/python -m bench.live $(BENCH)

FUZZ ?= 100
fuzz-api: $(READY) ## Send valid and invalid requests to every API route; FUZZ=100 requests a route
	EVERLONG_FUZZ_EXAMPLES=$(FUZZ) $(BIN)/pytest -q tests/server/test_api_schema.py

FUZZ_QUERIES ?= --count 1000
.PHONY: fuzz-queries
fuzz-queries: $(READY) ## Run 1,000 random SQL statements; FUZZ_QUERIES="--count 50 --seed 7"
	@$(BIN)/python -m tests.support.query_fuzzer $(FUZZ_QUERIES)

EVIDENCE ?=
bench-compaction: $(READY) ## Measure what compaction keeps: on 40 transcripts, or TRANSCRIPTS=dir of recorded sessions
	@$(BIN)/python -m $(if $(TRANSCRIPTS),bench.survival "$(TRANSCRIPTS)",bench.evidence) $(EVIDENCE)

.PHONY: bench-archive
bench-archive: $(READY) ## Measure an archive of 2,000 steps against gzip'd JSON; BENCH="--steps 200" for a short run
	@$(BIN)/python -m bench.archive $(BENCH)

.PHONY: bench-notifications
bench-notifications: $(READY) ## Deliver 1,000 approvals to a receiver that fails and hangs; BENCH="--approvals 20" for a short run
	@$(BIN)/python -m bench.notifications $(BENCH)

SOAK ?= --count 1000
.PHONY: bench-sweep
bench-sweep: $(READY) ## List a million synthetic objects, whole and interrupted; BENCH="--s3 --objects 20000" for a real S3 server
	@$(BIN)/python -m bench.sweep_scale $(BENCH)

.PHONY: soak-sweep
SWEEP_SOAK ?= --minutes 10
soak-sweep: $(READY) ## Sweep for 10 minutes under 50 threads, with kills; SWEEP_SOAK="--minutes 1" for less
	@$(BIN)/python -m tests.support.sweep_soak $(SWEEP_SOAK)

soak: $(READY) ## Run 1,000 random threads with kills; SOAK="--count 50" for fewer
	@$(BIN)/python -m tests.support.thread_soak $(SOAK)

.PHONY: screenshots
screenshots: $(READY) ## Take the pictures of the README and docs/how-to/dashboard.md again
	EVERLONG_FULL_TESTS=1 EVERLONG_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/browser/test_screenshots.py
