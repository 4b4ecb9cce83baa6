# SPDX-License-Identifier: Apache-2.0
# Everything a checkout needs is made below .venv/, .cache/ and build/; nothing outside the checkout is touched.

PYTHON ?= python3
VENV := .venv
PY := $(CURDIR)/$(VENV)/bin/python
CACHE := $(CURDIR)/.cache
JAVA := $(CACHE)/java
RUN := JAVA_HOME=$(JAVA) PYSPARK_PYTHON=$(PY) $(PY)

export PIP_CACHE_DIR ?= $(CACHE)/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests and the demo start many processes, each of which would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := $(wildcard src/kcodec/_fast.pyx src/kcodec/_fast/*/*.pxi src/kcodec/_fast/*/*.c src/kcodec/_fast/*/*.h)
RELEASE := $(VENV)/.built-release
DEBUG := $(VENV)/.built-debug

.DEFAULT_GOAL := help
.PHONY: help demo quick test prove venv build extension debug java jars broker-jars postgres lint types mypy pyright checks bench bench-peers docs check-messages fuzz edits wheel lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "make %-14s %s\n", $$1, $$2}'

demo:  ## transactions on an embedded broker, read by Python, Arrow and Spark, and copies while processes are killed; ARGS=--quick: no Spark, ARGS=--kafka: on Apache Kafka
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or newer with venv" >&2; exit 1; }
	@$(PYTHON) tools/demo.py $(ARGS)

quick: build lint types  ## lint, types and the tests that need no Java, no Spark and no idle machine, in about two minutes
	@KCODEC_QUICK=1 KCODEC_TESTS=parallel KCODEC_PROFILE=short $(RUN) -m pytest -q -n 2 --dist loadgroup $(ARGS)

test: build checks java jars postgres  ## everything a change must pass: lint, types, then all tests with short seeds
	@KCODEC_PROFILE=short $(RUN) tools/run_tests.py $(ARGS)

prove: build java jars postgres $(VENV)/.docs  ## the long forms: many edits, big files, sanitizers, older Sparks
	@KCODEC_PROFILE=long $(RUN) tools/prove.py $(ARGS)

venv: $(VENV)/.dev  ## the virtual environment with everything development needs

# pip downloads while the extension is compiled; both are done with two processors.
build: $(VENV)/.build-tools  ## the compiled core, in place, and everything development needs
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/.dev $(RELEASE)
	@$(MAKE) --silent --no-print-directory $(VENV)/.installed

extension: $(RELEASE)

debug: $(VENV)/.dev $(DEBUG) $(VENV)/.installed  ## the core without optimisation, with symbols and assertions

java: $(VENV)/.pip  ## a Java that Spark runs on, in .cache/java
	@$(PY) tools/java_home.py $(JAVA) --pip requirements/java.txt

postgres: $(VENV)/.dev  ## a PostgreSQL for the tests of the outbox, where the machine has none
	@$(PY) tools/postgres_home.py requirements/postgres.txt

jars: build java  ## Kafka's own classes, the judge of the tests
	@$(RUN) tools/fetch_kafka_jars.py

broker-jars: $(VENV)/.demo-spark java
	@$(RUN) tools/fetch_kafka_jars.py --broker

check-messages: build jars  ## the tables of messages against the definitions in Kafka's jars
	@$(RUN) tools/check_messages.py

lint: build  ## ruff, cython-lint, generated files, language, and how the source is divided (tools/structure.py)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "run: $(VENV)/bin/ruff format"; exit 1; }
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint src/kcodec
	@$(PY) tools/async_to_sync.py --check
	@$(PY) tools/draw_options.py --check
	@$(PY) tools/draw_stub.py --check
	@$(PY) tools/draw_errors.py --check
	@$(PY) tools/migration_table.py --check
	@$(PY) tools/draw_pictures.py --check
	@$(PY) tools/structure.py --check
	@$(PY) tools/check_language.py

types: mypy pyright  ## mypy --strict, basedpyright, and the stub of the core against the core

mypy: build
	@$(PY) -m mypy --strict src tools $(wildcard tests/typing/*.py)
	@$(PY) -m mypy --strict examples
	@$(PY) -m mypy tests
	@$(PY) -m mypy.stubtest kcodec._fast --mypy-config-file pyproject.toml --concise --ignore-disjoint-bases \
		--allowlist tests/lint/stubtest_allowlist.txt --ignore-unused-allowlist

pyright: build
	@$(PY) -m basedpyright

# lint and types with two processors.
checks: build
	@$(MAKE) --silent --no-print-directory pyright lint & others=$$!; \
		$(MAKE) --silent --no-print-directory mypy; status=$$?; wait $$others && exit $$status

docs: build $(VENV)/.docs  ## the documentation site in build/docs: open build/docs/index.html
	@$(PY) tools/build_docs.py $(ARGS)

# The quick set, without ARGS, needs neither Java nor a broker.
bench: build $(if $(filter-out --list,$(ARGS)),java jars)  ## measure a quick set and generate the Performance page; ARGS=--list: all benchmarks, ARGS="--part send": one
	@$(RUN) benchmarks/bench.py $(ARGS)

bench-peers: build java jars  ## compare with Java, and with Go and Rust if they are installed
	@$(RUN) benchmarks/peers/run.py $(ARGS)

fuzz: build  ## coverage-guided, under sanitizers, a minute a target or as ARGS says
	@$(RUN) tests/fuzz/hunt.py $(ARGS)

edits: build  ## compare random edits with the slow oracle, for the duration in ARGS
	@$(RUN) tests/fuzz/run.py $(ARGS)

wheel: $(VENV)/.pip  ## sdist and wheel into dist/, tried where there is no compiler; ARGS="--python PATH ..." for others
	@$(PY) tools/build_wheel.py $(ARGS)

lock:  ## pin requirements/*.txt again from pyproject.toml
	@$(PYTHON) tools/lock_requirements.py $(ARGS)

clean:  ## remove what make made, but the downloads in .cache
	rm -rf $(VENV) build dist src/*.egg-info src/kcodec/*.so $(CACHE)/java $(CACHE)/mypy $(CACHE)/ruff $(CACHE)/pytest
	find $(wildcard src tests tools benchmarks examples) -name __pycache__ -prune -exec rm -rf {} +

# The machine's Python makes the venv, after one look at what it may lack; pip itself is brought up to date first.
$(VENV)/.pip: requirements/pip.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or newer with venv" >&2; exit 1; }
	@$(PYTHON) tools/preflight.py
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --require-hashes --upgrade -r requirements/pip.txt
	@touch $@

# What compiling the extension takes; versions as in dev.txt.
$(VENV)/.build-tools: requirements/build.txt $(VENV)/.pip
	@$(PY) -m pip install --quiet --require-hashes -r requirements/build.txt
	@touch $@

$(VENV)/.demo: requirements/demo.txt $(VENV)/.build-tools
	@$(PY) -m pip install --quiet --require-hashes -r requirements/demo.txt
	@touch $@

$(VENV)/.demo-spark: requirements/demo-spark.txt $(VENV)/.demo
	@$(PY) -m pip install --quiet --require-hashes -r requirements/demo-spark.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	@$(PY) -m pip install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.build-tools
	@echo "installing requirements/dev.txt into $(VENV) (some minutes the first time)"
	@$(PY) -m pip install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

# The metadata and the command `kcodec`; the extension is built in place, once, by the rules below.
$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.build-tools
	@KCODEC_EXTENSION=0 $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# The two variants share one place: each removes the other's stamp, and starts afresh where the other was.
$(RELEASE): $(SOURCES) setup.py $(VENV)/.build-tools
	@$(PY) setup.py --quiet build_ext --inplace $(if $(wildcard $(DEBUG)),--force)
	@rm -f $(DEBUG) && touch $@

$(DEBUG): $(SOURCES) setup.py $(VENV)/.build-tools
	@KCODEC_DEBUG=1 $(PY) setup.py --quiet build_ext --inplace --force
	@rm -f $(RELEASE) && touch $@
