"""Every instruction set and every bucket within the bounds that the best one is held to, against float64.

The reference is transformers in float64 over the artifact's own weights, as in test_quantized, whose bounds these are:
f32 arithmetic for unquantized models; the rounding of activations for int8 and int4. A greedy token may differ from
the reference's where the reference's lead is within twice the error of a logit: 1e-4 in f32. With activations of int8
the largest error was 0.24 for int8 and 0.4 for int4 (measured), and nine of ten tokens agree whatever their lead.
"""

import numpy as np
import pytest
from built_models import difference, margins, random_ids, runnable_isas, target_of
from dequantized_reference import dequantized, reference_logits, shapes_of
from long_runs import sample

from pyc.backends.cpu.isa import find_isa
from pyc.compiler.schemes import SCHEMES

ISAS = sample(runnable_isas())
WIDE = {
    "tokenizer": False,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
}
BOUNDS = {"f32": (1e-10, 1e-4, 1.0), "int8": (1.5e-3, 0.5, 0.9), "int4-g32": (3e-3, 0.8, 0.9)}
"""Mean KL, the lead that decides a token, and the share of tokens that agree whatever the lead."""
PIECES = (1, 3, 4, 9, 16)
"""Rows of a call; the buckets are 1, 4 and 16, so two of these are padded."""


def in_pieces(model, ids, rows):
    """Logits [tokens, vocab] of `ids`, so many at a time."""
    session = model.session
    slot = session.acquire()
    try:
        parts = [ids[start : start + rows] for start in range(0, len(ids), rows)]
        return np.concatenate(
            [np.array(session.logits(session.prefill(part, slot, keep="all"))) for part in parts], axis=0
        )
    finally:
        session.release(slot)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", BOUNDS)
def test_every_instruction_set_and_bucket_is_near_float64(scheme, isa, tiny_checkpoint, built, artifacts):
    largest_kl, margin, agreement = BOUNDS[scheme]
    path = tiny_checkpoint("llama", **WIDE)
    quantize = {"scheme": scheme, "embeddings": scheme, "kv_cache": "f32"}
    recipe = {"quantize": quantize, "targets": target_of(*reversed(ISAS))}
    model = built(path, isa=isa, **recipe)
    assert model.executor.isa == isa
    assert model.executor.functions("forward") == (1, 4, 16)
    ids = random_ids(model, 60)
    values = dequantized(artifacts(path, **recipe).path, shapes_of(path), lambda name: SCHEMES[scheme])
    wanted, _ = reference_logits(path, values, ids)
    got = model.logits(ids)
    found = difference(wanted, got)
    assert found.spread > 1
    assert found.mean_kl <= largest_kl, found
    assert found.top1_agreement >= agreement, found
    decided = margins(wanted) >= margin
    assert decided.sum() >= 10
    assert np.array_equal(got.argmax(-1)[decided], wanted.argmax(-1)[decided])
    for rows in PIECES:
        assert np.array_equal(in_pieces(model, ids, rows), got), f"{rows} rows at a time give other numbers"
    assert np.array_equal(built(path, isa=isa, threads=2, **recipe).logits(ids), got), "threads change the numbers"


LAYERS = {
    "qwen3": {},
    "qwen2": {},  # with biases
    "llama": {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 1, "head_dim": 48},
}
APPENDED = [("qwen3", "f16"), ("qwen3", "int8"), ("qwen3", "fp8"), ("qwen2", "int8"), ("llama", "fp8")]
"""Every cache, and every family: what a cache stores is rounded behind what a family computes."""

VECTORS = [isa for isa in ISAS if not find_isa(isa).has_amx]


MANY_ROWS = [(*appended, isa) for isa in VECTORS for appended in APPENDED]
ALTERNATELY = [(*APPENDED[(2 * index) % len(APPENDED)], isa) for index, isa in enumerate(VECTORS)]


@pytest.mark.parametrize(("family", "cache", "isa"), sample(MANY_ROWS, *ALTERNATELY))
def test_a_prompt_of_many_rows_is_the_sum_of_its_steps(family, cache, isa, tiny_checkpoint, built):
    """Where scales are folded, many rows are gated and appended in N tiles: in one bucket all of them are
    interleaved, in the other four are left."""
    path = tiny_checkpoint(family, **{**WIDE, **LAYERS[family], "max_position_embeddings": 256})
    quantize = {"scheme": "int4-g32", "embeddings": "int4-g32", "kv_cache": cache}
    recipe = {"quantize": quantize, "shapes": {"tokens": [1, 104, 132], "logits": [1, 16]}}
    model = built(path, isa=isa, **recipe, targets=target_of(*reversed(VECTORS)))
    assert model.executor.isa == isa
    ids = random_ids(model, 132)
    steps = in_pieces(model, ids, 1)
    assert np.isfinite(steps).all()
    for rows in (104, 132):
        assert np.array_equal(in_pieces(model, ids, rows), steps), f"{rows} rows at a time give other numbers"
