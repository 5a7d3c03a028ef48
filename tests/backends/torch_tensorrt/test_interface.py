"""backends/torch_tensorrt/interface.py: sizes out of buckets, and the text that says them."""

import pytest

from pyc.backends.torch_tensorrt.interface import (
    Input,
    Range,
    decode_interface,
    encode_interface,
    interface_of,
    without_empty,
)
from pyc.runtime.artifact.format import KvCache, ModelInfo, Pooling
from pyc.runtime.errors import LowerError

CACHE = KvCache(layers=2, heads=3, head_dim=8, dtype="f16", block_tokens=64)


def info(context=100, kind="decoder"):
    is_decoder = kind == "decoder"
    return ModelInfo(
        architecture="x",
        kind=kind,
        vocab_size=50,
        hidden_size=24,
        context=context,
        max_sequences=4,
        kv_cache=CACHE if is_decoder else None,
        pooling=None if is_decoder else Pooling(mode="mean", normalize=True),
    )


def test_a_decoder():
    found = interface_of(info(), (1, 16), (2, 4))
    assert [given.name for given in found.inputs] == [
        "input_ids",
        "position_ids",
        "attention_mask",
        "past_key_values.0.key",
        "past_key_values.0.value",
        "past_key_values.1.key",
        "past_key_values.1.value",
    ]
    assert found.inputs[2] == Input("attention_mask", "i64", ("batch", "total"))
    assert found.inputs[-1] == Input("past_key_values.1.value", "f32", ("batch", 3, "past", 8))
    assert found.outputs == ("logits", "present.0.key", "present.0.value", "present.1.key", "present.1.value")
    assert found.ranges == {
        "batch": Range(1, 2, 4),
        "tokens": Range(1, 1, 16),
        "past": Range(0, 50, 99),
        "total": Range(1, 51, 115),
    }
    assert found.shape(found.inputs[-1], "opt") == (2, 3, 50, 8)
    assert found.shape(found.inputs[2], "max") == (4, 115)


def test_no_step_has_more_tokens_than_the_context():
    ranges = interface_of(info(context=10), (16, 512), (1,)).ranges
    assert (ranges["tokens"], ranges["past"]) == (Range(1, 10, 10), Range(0, 5, 9))
    assert not ranges["batch"].is_dynamic


def test_an_encoder():
    found = interface_of(info(kind="encoder"), (16, 100), (1, 4))
    assert [given.name for given in found.inputs] == ["input_ids", "attention_mask"]
    assert found.outputs == ("last_hidden_state", "sentence_embedding")
    assert found.ranges == {"batch": Range(1, 1, 4), "tokens": Range(1, 50, 100)}


def test_a_context_without_room_for_a_cache_is_refused():
    with pytest.raises(LowerError, match=r"^shapes\.context: got 1, expected at least 2"):
        interface_of(info(context=1), (1,), (1,))


def test_without_empty_tensors_a_sum_is_still_one():
    given = interface_of(info(), (1, 16), (1, 4)).ranges
    found = without_empty(given)
    assert found["past"] == Range(1, 50, 99)
    assert found["total"] == Range(2, 51, 115) == found["past"] + found["tokens"]
    assert {name: found[name] for name in ("batch", "tokens")} == {name: given[name] for name in ("batch", "tokens")}
    assert without_empty({"past": Range(0, 0, 1)}) == {"past": Range(1, 1, 1)}


def test_the_text_is_read_back():
    given = interface_of(info(), (1, 16), (1, 4))
    assert decode_interface(encode_interface(given), "here") == given


@pytest.mark.parametrize("text", ["", "{}", "[", '{"inputs": [], "outputs": [], "ranges": {}, "more": 1}'])
def test_other_text_is_refused_with_the_place(text):
    with pytest.raises(LowerError, match=r"^m\.pt2: its pyc_interface\.json is not what .*; export the model again$"):
        decode_interface(text, "m.pt2")
