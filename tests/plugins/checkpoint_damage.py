"""Changes to files of a checkpoint, and what the reader says of them."""

import json
import struct

import pytest

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelShapes, ModelSource
from pyc.runtime.errors import IngestError

INDEX = "model.safetensors.index.json"


def refusal(path, **options):
    with pytest.raises(IngestError) as caught:
        load_model(ModelSource(path.name, path.parent), ModelShapes(**options))
    assert str(caught.value).startswith("checkpoint: ")
    return str(caught.value)


def edit_json(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def edit_tensors(path, change):
    tensors = read_tensors(path)
    change(tensors)
    write_tensors(path, tensors)
