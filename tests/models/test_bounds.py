"""Files of a checkpoint that are huge, deep or no files: refused in a moment and in little memory."""

import json
import os
import struct
import time
import tracemalloc

import pytest

from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.models.strict_json import MAX_VALUES, decode
from pyc.runtime.errors import AdapterError, IngestError
from pyc.runtime.text.json_text import MAX_DEPTH

MIB = 1 << 20


def sized(size):
    """A file with a hole: its bytes are there, but take no room."""

    def make(path):
        path.unlink(missing_ok=True)
        with open(path, "wb") as file:
            file.truncate(size)

    return make


def text(data):
    return lambda path: (path.unlink(missing_ok=True), path.write_bytes(data))


def header(data):
    """A safetensors file of that header."""
    return lambda path: path.write_bytes(struct.pack("<Q", len(data)) + data)


def fifo(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


MANY = b"[" + b"{}," * (1 << 20) + b"1]"
DEEP = b"[" * 900 + b"]" * 900
BOMBS = {
    "config.json of 126 MiB": ("config.json", sized(126 * MIB), "config.json has 132120576 bytes, expected at most"),
    "config.json of many values": ("config.json", text(b'{"a":' + MANY + b"}"), "values, expected at most 131072"),
    "config.json is deep": ("config.json", text(b'{"rope_scaling":' + DEEP + b"}"), "nested deeper than 32 levels"),
    "config.json is deeper": ("config.json", text(b"[" * 100_000), "not valid JSON"),
    "config.json has half a pair": ("config.json", text(b'{"model_type":"\\ud800"}'), "surrogates not allowed"),
    "config.json has a long number": ("config.json", text(b'{"rope_theta":' + b"1" * MIB + b"}"), "4300 digits"),
    "generation_config.json": ("generation_config.json", sized(5 * MIB), "expected at most 4194304"),
    "tokenizer.json": ("tokenizer.json", sized(65 * MIB), "tokenizer.json has 68157440 bytes, expected"),
    "tokenizer_config.json": ("tokenizer_config.json", sized(17 * MIB), "expected at most 16777216"),
    "chat_template.jinja": ("chat_template.jinja", sized(1 << 40), "expected at most 4194304"),
    "header of many values": ("model.safetensors", header(b'{"a":' + MANY + b"}"), "header: has about 2097154 values"),
    "header is deep": ("model.safetensors", header(b'{"a":' + DEEP + b"}"), "nested deeper than 32 levels"),
    "header is long": (
        "model.safetensors",
        lambda path: path.write_bytes(struct.pack("<Q", 90 * MIB) + b"{" + bytes(90 * MIB)),
        "header length 94371840 is above the limit of 33554432",
    ),
    "shape of huge sizes": (
        "model.safetensors",
        header(b'{"a":{"dtype":"F64","shape":' + json.dumps([1 << 60] * 8).encode() + b',"data_offsets":[0,8]}}'),
        "tensor 'a' has data offsets [0, 8)",
    ),
    **{
        f"{name} is a {make.__name__}": (name, make, "is not a regular file" if make is not device else "symbolic link")
        for name in ("config.json", "tokenizer.json", "model.safetensors")
        for make in (fifo, device, folder)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BOMBS)
def test_checkpoints(case, tiny_copy):
    path = tiny_copy("llama")
    name, make, message = BOMBS[case]
    make(path / name)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(IngestError) as caught:
            load_model(ModelSource(str(path), path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 1
    assert peak < (64 + 2 * 64) * MIB
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_index(tiny_copy):
    path = tiny_copy("llama", sharded=True)
    sized(33 * MIB)(path / "model.safetensors.index.json")
    with pytest.raises(IngestError, match="expected at most 33554432"):
        load_model(ModelSource(str(path), path))
    text(b'{"weight_map":' + MANY + b"}")(path / "model.safetensors.index.json")
    with pytest.raises(IngestError, match=r"has about \d+ values, expected at most 524288"):
        load_model(ModelSource(str(path), path))


@pytest.mark.parametrize("make", [sized(5 * MIB), fifo, device, folder, text(b'{"rank_pattern":' + DEEP + b"}")])
def test_an_adapter(make, tmp_path):
    make(tmp_path / "adapter_config.json")
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        read_adapter(str(tmp_path), tmp_path)


def test_what_is_within_the_bounds_is_read():
    depth = MAX_DEPTH - 1
    assert decode(b"[" * depth + b"]" * depth, list, "x")
    assert len(decode(b"[" + b"1," * (MAX_VALUES - 2) + b"1]", list, "x")) == MAX_VALUES - 1
    with pytest.raises(IngestError, match="nested deeper than 32 levels"):
        decode(b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), list, "x")
    assert decode(b'["\\ud83d\\ude00"]', list, "x") == ["\U0001f600"]
