"""A program for aarch64, built and run here: what it computes is what this machine's own does.

Kernels of NEON have tests of their own (tests/backends/cpu/kernels/test_linear.py); this is all of a model, norms
and activations compiled by LLVM and the lists of calls among it. The bounds are those of test_isas.py. The suite runs
each model on one of both instruction sets, `make test-long` (PYC_CASES=all) all of them.
"""

import os
import platform

import numpy as np
import pytest
from built_models import difference, random_ids, runnable_isas, target_of
from emulated_programs import EmulatedProgram

from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.emit_programs import buckets_of
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.generation.kv_blocks import blocks_for
from pyc.runtime.host.aligned import aligned_zeros

ROWS = 16
SHAPES = {"tokens": [ROWS], "logits": [ROWS], "context": 64}
IS_LONG = os.environ.get("PYC_CASES") == "all"
SECOND = [(case, "armv8-dotprod") for case in (("int8", "int4") if IS_LONG else ("int8",))]
WIDTHS = {"hidden_size": 64, "intermediate_size": 96}
MODELS = {
    "bf16": ("qwen3", {"dtype": "bfloat16"}, {}, 1e-6),
    "int8": ("qwen2", WIDTHS, {"scheme": "int8", "kv_cache": "int8"}, 1e-5),
    "fp8": ("llama", WIDTHS, {"scheme": "fp8", "embeddings": "fp8-e5m2", "kv_cache": "f32"}, 1e-10),
    "fp8-cache": ("llama", WIDTHS, {"kv_cache": "fp8"}, 1e-5),
    "int4": ("llama", WIDTHS, {"scheme": "int4-g32", "kv_cache": "f32"}, 1e-5),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine needs no emulation")
@pytest.mark.parametrize(
    ("case", "isa"),
    [*((case, "armv8") for case in MODELS if IS_LONG or case in ("bf16", "fp8-cache", "int4")), *SECOND],
)
def test_a_program_of_aarch64_computes_what_ours_does(case, isa, tiny_checkpoint, artifacts, built, tmp_path):
    model_type, config, quantize, bound = MODELS[case]
    checkpoint = tiny_checkpoint(model_type, tokenizer=False, **config)
    host = runnable_isas()[-1]
    recipe = {"quantize": quantize, "shapes": SHAPES, "targets": target_of(host)}
    parsed = recipe_from({"model": str(checkpoint), **recipe})
    module = lower_recipe(parsed).part("cpu").module
    program = EmulatedProgram(module, buckets_of(parsed, module.info), isa, tmp_path)
    model = built(checkpoint, isa=host, **recipe)
    ids = random_ids(model, ROWS)
    wanted = model.logits(ids)
    inputs = {name: aligned_zeros((ROWS,), np.int32) for name in ("token_ids", "positions", "sequences")}
    inputs["token_ids"][:], inputs["positions"][:] = ids, np.arange(ROWS)
    inputs["block_table"] = aligned_zeros((module.info.max_sequences, blocks_for(64, 64)), np.int32)
    with open_artifact(artifacts(checkpoint, **recipe).path) as artifact:
        weights = artifact.tensors([tensor.name for tensor in artifact.header.tensors])
        hidden = program.run("forward", ROWS, inputs, weights)
        got = program.run("logits", ROWS, {"hidden": hidden}, weights)
    assert wanted.std() > 1
    assert difference(wanted, got).mean_kl <= bound


def test_one_artifact_has_programs_for_both_architectures(tiny_checkpoint, built, artifacts):
    """What builds is x86-64 or aarch64; what it builds for is either, or both."""
    checkpoint = tiny_checkpoint("llama", tokenizer=False, **WIDTHS)
    host = runnable_isas()[-1]
    other = {"x86_64": ("aarch64", "armv8-dotprod"), "aarch64": ("x86_64", "x86-64-v3")}[platform.machine()]
    recipe = {"quantize": {"scheme": "int8"}, "targets": [{"arch": other[0], "isa": [other[1]]}, *target_of(host)]}
    with open_artifact(artifacts(checkpoint, **recipe).path) as artifact:
        programs = {(program.arch, program.isa): program.functions for program in artifact.header.programs}
    assert list(programs) == [other, (platform.machine(), host)]
    assert len(set(programs.values())) == 1
    model = built(checkpoint, **recipe)
    assert model.executor.isa == host
    assert np.array_equal(
        model.logits([1, 2, 3]), built(checkpoint, **recipe | {"targets": target_of(host)}).logits([1, 2, 3])
    )
