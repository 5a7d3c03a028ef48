# make demo   compile the demo model, generate Python with it, verify it
# make test   the test suite
# make test-long  the faults of which the suite has a sample, in full: minutes
# make check  its quick tests, lint, types and import rules: some minutes
# make release-demo  from a build to production and back, each failure tried once (docs/ci/release_demo.sh)
# make fuzz   parsers of others' bytes, by coverage, for SECONDS=600 (tests/fuzz)
# make bench  pyc beside the peers that are installed (docs/performance.md); BENCH='--rounds 1' passes options
# make cuda-check  every CUDA kernel compiled for every GPU, and what it takes; needs none (CUDA_CHECK='--model demo')
# make gpu-prepare  build/gpu, what a machine with a GPU needs for the next four (GPU_PREPARE='--arch sm_80')
# make gpu-test | gpu-bench | gpu-kernels | gpu-disk  there, with Python and the driver alone: is it right, how fast,
#   where the time goes, and when a file's first token is there; JSON in $OUT or build/gpu
# make docs   the documentation as a site, build/site
# make lint | types | imports | wheel   the other checks of .ci/run
# Everything comes from PyPI into $(VENV); no system compiler is used.

SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE  # some images set it, and then each process would compile all that it imports
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

# An environment is up to date when the file named after these inputs is there.
INPUTS := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)
COMPILER := $(VENV)/.compiler-$(INPUTS)
TEST := $(VENV)/.test-$(INPUTS)
DOCS := $(VENV)/.docs-$(INPUTS)
FUZZ := $(VENV)/.fuzz-$(INPUTS)
SECONDS ?= 600
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: gpu-prepare gpu-test gpu-bench gpu-kernels gpu-disk demo test test-long check release-demo fuzz bench cuda-check docs lint types imports wheel links environment clean

demo: $(COMPILER)
	mkdir -p build
	$(BIN)/pyc build models/demo/model.yaml -o build/demo.pyca
	$(BIN)/pyc run build/demo.pyca --prompt $$'import os\n\ndef read_' --echo --max-tokens 34 --seed 1
	$(BIN)/pyc verify build/demo.pyca

test: $(TEST)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -q

LONG := tests/anomaly tests/backends/cpu/kernels/test_amx.py tests/backends/cpu/kernels/test_attention.py \
	tests/backends/cpu/kernels/test_linear.py tests/backends/cpu/kernels/test_span_attention.py \
	tests/backends/cpu/kernels/test_translation_units.py tests/backends/cuda/kernels/test_gemm_gate.py \
	tests/backends/cuda/kernels/test_gemv_epilogue.py tests/backends/cuda/kernels/test_gemv_integers.py \
	tests/backends/cuda/kernels/test_linear.py tests/backends/cuda/kernels/test_linear_warpgroup.py \
	tests/backends/tensorrt/test_backend.py tests/backends/test_random_weights.py tests/backends/test_second_backend.py \
	tests/backends/torch_tensorrt/test_compile.py tests/combinations tests/gpu \
	tests/passes/comparison/test_compare_artifacts.py tests/passes/driver/test_changing_sources.py \
	tests/passes/driver/test_estimate.py tests/passes/export/test_logical.py tests/passes/export/test_torch.py \
	tests/passes/mixed_precision/test_built_distances.py tests/passes/mixed_precision/test_goals_beside_adapters.py \
	tests/passes/mixed_precision/test_mix_distances.py tests/passes/mixed_precision/test_mix_schemes.py \
	tests/pyc/commands/test_memory_limits.py tests/pyc/commands/test_system_faults.py tests/reference/test_aarch64.py \
	tests/reference/test_bf16_activations.py tests/reference/test_compressed_tensors.py tests/reference/test_cuda.py \
	tests/reference/test_decoders.py tests/reference/test_exports.py tests/reference/test_gptq.py \
	tests/reference/test_isa_references.py tests/reference/test_isas.py tests/reference/test_onnx.py \
	tests/reference/test_quantized_checkpoints.py tests/reference/test_tensorrt.py tests/reference/test_torch_export.py \
	tests/runtime/executors/cuda/test_sampler.py tests/runtime/generation/test_interruptions.py \
	tests/runtime/text/chat/test_sandbox.py

test-long: $(TEST)
	PYC_CUDA=all PYC_CASES=all PYC_HTTP_SEEDS=50 PYC_FUZZ=100000 PYC_FAULTS=1000000 PYC_LIMITS=40 PYC_DRAWN=100 \
		$(BIN)/pytest -n $(JOBS) -q $(LONG)
	PYC_LOST_WORKERS=12 $(BIN)/pytest -q tests/passes/jobs/test_ray_cluster.py

# Where most mistakes show; `make test` runs all.
check: $(TEST) lint types imports
	$(BIN)/pytest -n $(JOBS) -q -m 'not slow' tests/compiler tests/models tests/passes tests/runtime tests/pyc

release-demo: $(TEST)
	rm -rf build/release-demo
	PYC=$(abspath $(BIN))/pyc docs/ci/release_demo.sh build/release-demo

fuzz: $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz.py $(SECONDS)

bench: $(TEST)
	mkdir -p build/bench
	$(BIN)/python tests/bench/peers.py --work build/bench --out build/bench/results.json --markdown build/bench/table.md $(BENCH)

cuda-check: $(TEST)
	$(BIN)/python tests/bench/cuda_check.py $(CUDA_CHECK)

docs: $(DOCS)
	$(BIN)/python .ci/link_tree.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet -f .ci/mkdocs.yml

lint: $(TEST)
	$(BIN)/ruff check .

types: links
	$(BIN)/mypy

imports: links
	cd .links && $(abspath $(BIN))/lint-imports --config ../pyproject.toml --no-cache

gpu-prepare: $(TEST)
	$(BIN)/python tests/gpu/prepare.py $(GPU_PREPARE)

GPU := build/gpu
RESULTS := $(if $(OUT),$(OUT),$(GPU))

gpu-test: $(GPU)/site/ready
	PYTHONPATH=$(GPU)/site python3 tests/gpu/check.py --work $(GPU) --out $(RESULTS)/gpu-test.json

gpu-bench: $(GPU)/site/ready
	PYTHONPATH=$(GPU)/site python3 tests/gpu/bench.py --work $(GPU) --out $(RESULTS)/gpu-bench.json

gpu-kernels: $(GPU)/site/ready
	PYTHONPATH=$(GPU)/site python3 tests/gpu/kernel_times.py --work $(GPU) --out $(RESULTS)/gpu-kernels.json

gpu-disk: $(GPU)/site/ready
	PYTHONPATH=$(GPU)/site python3 tests/gpu/from_disk.py --work $(GPU) --out $(RESULTS)/gpu-disk.json

# Of wheels alone, for the python3 there, whose torch and transformers are the baselines.
$(GPU)/site/ready:
	python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target $(GPU)/site $(GPU)/wheels/*.whl
	touch $@

wheel: $(TEST)
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	rm -rf build/lib build/bdist.*

links: $(TEST)
	$(BIN)/python .ci/link_tree.py

environment: links $(DOCS)

clean:
	rm -rf build dist .links

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("pyc takes Python 3.11 or later, and this is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(COMPILER): | $(BIN)/python
	$(INSTALL) -e '.[compiler]'
	rm -f $(VENV)/.compiler-*
	touch $@

$(TEST): | $(BIN)/python
	$(INSTALL) -e '.[compiler,test]'
	rm -f $(VENV)/.compiler-* $(VENV)/.test-*
	touch $(COMPILER) $@

$(FUZZ): $(TEST)
	$(INSTALL) -e '.[fuzz]'
	rm -f $(VENV)/.fuzz-*
	touch $@

$(DOCS): | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	rm -f $(VENV)/.docs-*
	touch $@
