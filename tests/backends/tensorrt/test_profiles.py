"""backends/tensorrt/profiles.py: every step that an executor runs lies in its profile, whatever the shapes are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.protocol import Buckets
from pyc.backends.tensorrt.profiles import SMALLEST_CAPACITY, capacities, profiles_of
from pyc.runtime.artifact.format import KvCache, ModelInfo, Pooling


def info_of(context, sequences, block_tokens=64, layers=2):
    cache = KvCache(layers, 3, 8, "f32", block_tokens)
    return ModelInfo("llama", "decoder", 100, 32, context, sequences, cache, None)


rows = st.lists(st.integers(1, 2048), min_size=1, max_size=6, unique=True).map(lambda sizes: tuple(sorted(sizes)))


def shapes_of(info, batch, tokens, capacity):
    cache = info.kv_cache
    past = (batch, cache.heads, capacity, cache.head_dim)
    names = [f"past_key_values.{layer}.{kind}" for layer in range(cache.layers) for kind in ("key", "value")]
    return {"input_ids": (batch, tokens), "position_ids": (batch, tokens), **dict.fromkeys(names, past)}


@given(st.integers(1, 5000), st.integers(1, 64), rows, rows, st.integers(1, 200))
def test_every_step_of_a_decoder_has_a_profile(context, sequences, tokens, logits, block_tokens):
    """One row of so many sequences as run together, and as many rows of one as the largest bucket and the context."""
    info, buckets = info_of(context, sequences, block_tokens), Buckets(tokens, logits)
    profiles = {profile.name: profile for profile in profiles_of("forward", info, buckets)}
    together, longest = min(sequences, tokens[-1]), min(tokens[-1], context)
    steps = {"decode": [(1, 1), (together, 1)], "prompt": [(1, 2), (1, longest)] if longest > 1 else []}
    assert set(profiles) == {name for name, wanted in steps.items() if wanted}
    for name, profile in profiles.items():
        extents = {extent.input: extent for extent in profile.extents}
        for batch, length in steps[name]:
            for capacity in capacities(info):
                shapes = shapes_of(info, batch, length, capacity)
                assert set(extents) == set(shapes)
                assert all(extents[given].holds(shape) for given, shape in shapes.items())
        for extent in profile.extents:
            assert all(a <= b <= c for a, b, c in zip(extent.least, extent.likely, extent.largest, strict=True))
    if longest > 1:
        assert not any(extent.holds((1, 1)) for extent in profiles["prompt"].extents if extent.input == "input_ids")


@given(st.integers(1, 1 << 20), st.integers(1, 200))
def test_capacities_reach_the_context_and_double(context, block_tokens):
    found = capacities(info_of(context, 1, block_tokens))
    assert context <= found[-1] < context + block_tokens
    assert found[0] == min(SMALLEST_CAPACITY, found[-1])
    assert all(before < after <= 2 * before for before, after in pairwise(found))


@given(rows)
def test_every_bucket_of_the_head(logits):
    (profile,) = profiles_of("logits", info_of(64, 1), Buckets((1,), logits))
    assert all(profile.extents[0].holds((size, 32)) for size in range(1, logits[-1] + 1, max(logits[-1] // 7, 1)))


@given(rows, st.integers(1, 4096), st.integers(1, 64))
def test_every_batch_of_an_encoder(tokens, context, sequences):
    info = ModelInfo("bert", "encoder", 100, 32, context, sequences, None, Pooling("mean", True))
    (profile,) = profiles_of("embed", info, Buckets(tokens, (1,)))
    longest, most = min(tokens[-1], context), min(sequences, tokens[-1])
    assert [extent.input for extent in profile.extents] == ["input_ids", "attention_mask"]
    for extent in profile.extents:
        assert all(extent.holds(shape) for shape in ((1, 1), (most, 1), (1, longest), (most, longest)))
        assert all(a <= b <= c for a, b, c in zip(extent.least, extent.likely, extent.largest, strict=True))


@pytest.mark.parametrize(("context", "expected"), [(100, (128,)), (256, (256,)), (1000, (256, 512, 1024))])
def test_capacities_of_contexts(context, expected):
    assert capacities(info_of(context, 1)) == expected
