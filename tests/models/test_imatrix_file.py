"""models/imatrix_file.py: both forms of llama.cpp's importance matrices, written by hand, and files that are none."""

import struct

import numpy as np
import pytest

from pyc.models.gguf_names import checkpoint_name
from pyc.models.imatrix_file import read_imatrix

SQUARES = {"blk.0.attn_q.weight": np.array([1, 2.5, 0, 4], "<f4"), "blk.0.ffn_down.weight": np.arange(6, dtype="<f4")}


def legacy(entries=SQUARES, calls=3, tail=True):
    """As `llama-imatrix --output-format dat` writes it: means times calls."""
    data = struct.pack("<i", len(entries))
    for name, values in entries.items():
        scaled = (np.asarray(values, "<f4") * np.float32(calls)).astype("<f4")
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values)) + scaled.tobytes()
    return data + (struct.pack("<ii", 7, 5) + b"a.txt" if tail else b"")


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(entries=SQUARES, count=8.0, kind="imatrix", version=3, counts=True, drop=0, dtype=0):
    """As llama-imatrix writes it by default: sums of squares and counts, in the order of names."""
    fields = text("general.type") + struct.pack("<I", 8) + text(kind)
    fields += text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 1) + text("a.txt")
    fields += text("imatrix.chunk_count") + struct.pack("<II", 4, 7)
    tensors = {}
    for name, values in entries.items():
        tensors[f"{name}.in_sum2"] = np.asarray(values, "<f4") * np.float32(count)
        if counts:
            tensors[f"{name}.counts"] = np.array([count], "<f4")
        tensors[f"{name}.in_sum"] = np.full(len(values), np.nan, "<f4")
    described, data = b"", b""
    for name, values in tensors.items():
        described += text(name) + struct.pack("<IQQIQ", 2, len(values), 1, dtype, len(data))
        data += values.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 3) + fields + described
    whole = head + bytes(-len(head) % 32) + data
    return whole[: len(whole) - drop]


@pytest.mark.parametrize("data", [legacy(), legacy(tail=False), gguf(), gguf(version=2)], ids=range(4))
def test_means(data):
    found = read_imatrix(data)
    assert list(found) == list(SQUARES)
    for name, values in SQUARES.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], values, rtol=2e-7)


ONE = "blk.0.attn_q.weight"
MALFORMED = {
    "nothing": (b"", "it ends within number of entries, at byte 0 of 0"),
    "cut": (legacy(tail=False)[:-1], "it ends within blk.0.ffn_down.weight, at byte 84 of 107"),
    "more behind": (legacy() + b"x", "1 bytes are behind its end"),
    "no entries": (struct.pack("<i", 0), "number of entries: got 0, expected 1 to 65536"),
    "a text": (b"the cat sat on the mat", "it begins neither as a GGUF nor as a .dat of llama-imatrix"),
    "a length that lies": (struct.pack("<ii", 1, 1 << 30), "length of name of entry 0: got 1073741824, expected 0 to"),
    "twice": (legacy(SQUARES)[:4] + 2 * legacy({ONE: [1]}, tail=False)[4:], f"{ONE}: the name is there twice"),
    "no calls": (legacy({ONE: [1.0]}, calls=0), f"{ONE}: calls: got 0, expected 1 to"),
    "not a number": (legacy({ONE: [1.0, np.nan]}), f"{ONE}: it has numbers that are negative, infinite or NaN"),
    "negative": (legacy({ONE: [-1.0]}), "negative, infinite or NaN"),
    "a control character": (legacy({"blk\n": [1.0]}), r"name of entry 0: got 'blk\\n'"),
    "gguf of a model": (gguf(kind="model"), "a GGUF of type 'model', expected 'imatrix'"),
    "gguf of another version": (gguf(version=4), "version: got 4, expected 2 to 3"),
    "gguf without counts": (gguf(counts=False), f"{ONE}.counts: missing beside {ONE}.in_sum2"),
    "gguf that was cut": (gguf(drop=200), "end behind the file's"),
    "gguf of f16": (gguf(dtype=1), f"{ONE}.in_sum2: its type is 1, expected 0, f32"),
    "gguf never reached": (gguf(count=0.0), "its count is 0: the text never reached it"),
    "gguf cut in its head": (gguf()[:40], "it ends within"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case):
    data, said = MALFORMED[case]
    with pytest.raises(ValueError, match=said):
        read_imatrix(data)


@pytest.mark.parametrize("data", [legacy(), gguf()], ids=["dat", "gguf"])
def test_every_cut_is_found(data):
    for end in range(len(data) - 1):
        try:
            found = read_imatrix(data[:end])
        except ValueError:
            continue
        assert list(found) == list(SQUARES), end  # padding, or what the oldest form does not have


def test_any_byte_may_be_anything():
    """What is refused is said in a line; what is read is a row of finite numbers, none negative, for each name."""
    rng = np.random.default_rng(0)
    for data in (legacy(), gguf()):
        refused = []
        for _ in range(2000):
            changed = bytearray(data)
            for at in rng.integers(0, len(data), 3):
                changed[at] = rng.integers(256)
            try:
                found = read_imatrix(bytes(changed))
            except ValueError as error:
                refused.append(str(error))
            else:
                for name, importance in found.items():
                    assert name
                    assert importance.ndim == 1
                    assert np.isfinite(importance).all()
                    assert (importance >= 0).all()
        assert 200 < len(refused) < 2000
        assert all(message.isprintable() for message in refused)


def test_names():
    layer = "model.layers.3"
    decoder = {f"{layer}.self_attn.o_proj.weight", f"{layer}.mlp.gate_proj.weight", "model.embed_tokens.weight"}
    assert checkpoint_name("blk.3.attn_output.weight", decoder) == "model.layers.3.self_attn.o_proj.weight"
    assert checkpoint_name("blk.3.ffn_gate.weight", decoder) == "model.layers.3.mlp.gate_proj.weight"
    assert checkpoint_name("output.weight", decoder) == "model.embed_tokens.weight"
    assert checkpoint_name("output.weight", decoder | {"lm_head.weight"}) == "lm_head.weight"
    for name in ("blk.4.ffn_gate.weight", "blk.03.ffn_gate.weight", "blk.3.ffn_gate", "blk.3.ffn_gate_exps.weight", ""):
        assert checkpoint_name(name, decoder) is None
    encoder = {"encoder.layer.0.intermediate.dense.weight", "encoder.layer.0.output.dense.weight"}
    assert checkpoint_name("blk.0.ffn_up.weight", encoder) == "encoder.layer.0.intermediate.dense.weight"
