# Everything runs in .venv, made on first use and again when the requirements change; nothing needs to be activated.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev

CHECKOV := var/checkov/bin/checkov

# Temporary folders of the tests stay inside the checkout.
TEST_TMP := $(CURDIR)/var/tmp
# Most tests wait for other processes most of the time.
TEST_PROCESSES ?= 4
PYTEST := PYTEST_DEBUG_TEMPROOT=$(TEST_TMP) $(BIN)/python -m pytest

# The extras of the image without torch.
SLIM := flower,accounts,otel,grpc

.DEFAULT_GOAL := help
.PHONY: help native demo up test check lint format chaos shards cluster gpu clients proxies redis flower page bench overload policies lock audit clean chart

help: ## What can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: $(RUNTIME) native ## Start everything, send 200 sentences at once, show what came back
	@$(BIN)/python manage.py demo

up: $(RUNTIME) native ## The whole stack in the foreground, until Ctrl-C; ARGS="--port 9000"
	@$(BIN)/python manage.py up $(ARGS)

test: $(DEV) native | $(TEST_TMP) ## All tests
	@$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

check: lint | $(TEST_TMP) ## Format, lint, types, import contracts and unit tests but the slow ones
	@$(PYTEST) -q -n $(TEST_PROCESSES) --dist loadfile -m "not slow" --hypothesis-profile=quick tests/unit

lint: $(DEV) native
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python .ci/luacheck.py

format: $(DEV) ## Format the code and fix what can be fixed by itself
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

chaos: $(DEV) native | $(TEST_TMP) ## The tests that kill processes; half an hour, prints recovery times; CHAOS_FAULTS=0: the short form
	@CHAOS_FAULTS=$${CHAOS_FAULTS:-50} $(PYTEST) tests/chaos -q -rA --tb=short $(ARGS)

shards: $(DEV) native | $(TEST_TMP) ## The integration tests with four shards on each Redis
	@TEST_SHARDS=$${TEST_SHARDS:-4} $(PYTEST) tests/integration -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

cluster: $(DEV) native | $(TEST_TMP) ## The integration tests with four shards on a real cluster of three primaries
	@TEST_CLUSTER=1 $(PYTEST) tests/integration -n $(TEST_PROCESSES) --dist loadfile -rs $(ARGS)

gpu: $(DEV) native ## What only a real GPU can show, in one table; five minutes. Skipped, loudly, without one; ARGS=--rehearse: on the CPU
	@$(BIN)/python -m tests.gpu $(ARGS)

clients: $(DEV) native | $(TEST_TMP) ## The SDKs of others, each in its own environment; writes the table of docs/clients.md
	@$(PYTEST) tests/clients -q -rA --tb=short $(ARGS)

proxies: $(DEV) native | $(TEST_TMP) ## The recipes of deploy/proxies with real nginx and HAProxy, which apt-get installs as root
	@[ "$$(id -u)" != 0 ] || (apt-get update -q && apt-get install -y -q nginx-light haproxy) >/dev/null || echo 'apt-get could not install them'
	@$(PYTEST) tests/integration/test_proxies.py -q -rs $(ARGS)

redis: $(DEV) native | $(TEST_TMP) ## Redis itself: its own TLS, an upgrade from it to Valkey; apt-get installs redis-server as root
	@[ "$$(id -u)" != 0 ] || (apt-get update -q && RUNLEVEL=1 apt-get install -y -q redis-server) >/dev/null || echo 'apt-get could not install it'
	@$(PYTEST) tests/integration/test_tls_of_redis.py tests/chaos/test_redis_upgrade.py -q -rs $(ARGS)

flower: $(DEV) native | $(TEST_TMP) ## 200,000 requests past a real Flower, compared with another listener; a few minutes
	@FLOWER_REQUESTS=$${FLOWER_REQUESTS:-200000} $(PYTEST) tests/e2e/test_flower.py -q -s --timeout=900 $(ARGS)

page: $(DEV) native | $(TEST_TMP) ## The operations page in headless Chromium; PAGE_PICTURES=docs/images keeps the pictures
	@$(PYTEST) tests/page -q -rA --tb=short $(ARGS)

bench: $(DEV) native ## The benchmark suite, against its rivals
	@$(BIN)/python -m tests.benchmarks

overload: $(DEV) native ## What each tier gets when too much arrives: the picture and the table of docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.overload --docs

policies: $(DEV) ## Every policy on every workload in virtual time: the pictures and the table of docs/policies.md
	@$(BIN)/python -m tools.policy_gallery

chart: $(DEV) ## deploy/manifests from the Helm chart, linted by checkov in an environment of its own
	@$(BIN)/python -m tools.render_chart
	@test -x $(CHECKOV) || { $(BIN)/python -m venv var/checkov && var/checkov/bin/pip --disable-pip-version-check -qq install checkov==3.3.30; }
	@$(CHECKOV) --config-file deploy/checkov.yaml --directory deploy/manifests

lock: $(RUNTIME) ## requirements*.lock: what the images install, by hash; run it where they are built for
	@$(BIN)/python .ci/lock.py > requirements.lock.new && mv requirements.lock.new requirements.lock || { rm -f requirements.lock.new; exit 1; }
	@$(BIN)/python .ci/lock.py --extras=$(SLIM) > requirements.lock.new && mv requirements.lock.new requirements-slim.lock || { rm -f requirements.lock.new; exit 1; }

audit: $(RUNTIME) ## Known vulnerabilities of the pinned packages; skipped, loudly, without an index
	@.ci/audit

clean: ## Remove .venv, caches and what the tests left; var/ of a stack stays
	rm -rf $(VENV) config/native/*.so var/tmp .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(TEST_TMP):
	@mkdir -p $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The hot path in C, where there is a compiler; everything works without it.
native: | $(VENV)/bin/python
	@$(BIN)/python -m config.native.build

$(RUNTIME): requirements.txt constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV); the first time takes a few minutes (torch)"
	@$(PIP) install -r requirements.txt
	@touch $@

$(DEV): requirements-dev.txt requirements-arrow.txt requirements-grpc.txt requirements-ocr.txt requirements.txt constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV); the first time takes a few minutes (torch)"
	@$(PIP) install -r requirements-dev.txt
	@touch $@ $(RUNTIME)
