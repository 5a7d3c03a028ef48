"""models/tied_head.py: a tied model has the head that transformers gives it."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pyc.compiler.files import source_files
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def last_differs(embedding):
    head = embedding.clone()
    head[-1, -1] += 1e-3
    return head


HEADS = {
    "the same": lambda embedding: embedding.clone(),
    "all other": lambda embedding: embedding * 2,
    "the last number": last_differs,
    "other type": lambda embedding: embedding.bfloat16(),
}


def with_head(folder, head):
    """Store a head made from the embedding."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[HEAD] = head(tensors[EMBEDDING])
    save_file(tensors, path, {"format": "pt"})


def read(source):
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[source.dtype]
    data = np.fromfile(source.path, np.uint8, source.size_bytes, offset=source.offset)
    return torch.from_numpy(data).view(kind).reshape(source.shape).float()


def check(folder, is_tied, caplog):
    """Both matrices are those of transformers, and whoever builds is told that they are two."""
    module = load_model(ModelSource(str(folder), folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (head,) = (operation.weights[0] for operation in module.graph.function("logits").operations)
    assert head == (EMBEDDING if is_tied else HEAD)
    assert torch.equal(read(module.weights[head]), model.lm_head.weight)
    assert torch.equal(read(module.weights[EMBEDDING]), model.model.embed_tokens.weight)
    warned = [record for record in caplog.records if record.name == "pyc.models.tied_head"]
    assert len(warned) == (not is_tied)


@pytest.mark.parametrize("case", HEADS)
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_stored_head_is_the_head(model_type, case, tiny_copy, caplog):
    folder = tiny_copy(model_type, tie_word_embeddings=True)
    with_head(folder, HEADS[case])
    check(folder, case == "the same", caplog)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_head_alone_is_also_the_embedding(model_type, tiny_copy, caplog):
    folder = tiny_copy(model_type, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] = tensors.pop(EMBEDDING)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    check(folder, is_tied=True, caplog=caplog)


@pytest.mark.parametrize("is_same", [True, False])
def test_in_another_shard(is_same, tiny_copy, caplog):
    """An untied checkpoint of shards whose config.json ties it afterwards."""
    folder = tiny_copy("llama", sharded=True)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    assert '"tie_word_embeddings": true' in config.read_text()
    holders = {name: path for path in folder.glob("model-*.safetensors") for name in load_file(path)}
    assert holders[EMBEDDING] != holders[HEAD]
    if is_same:
        tensors = load_file(holders[HEAD])
        tensors[HEAD] = load_file(holders[EMBEDDING])[EMBEDDING]
        save_file(tensors, holders[HEAD], {"format": "pt"})
    check(folder, is_same, caplog)


@pytest.mark.parametrize("case", ["the same", "all other", "the last number"])
def test_only_what_decides_is_read_and_only_once(case, tiny_copy, monkeypatch):
    folder = tiny_copy("llama", tie_word_embeddings=True)
    with_head(folder, HEADS[case])
    monkeypatch.setattr(source_files, "FIRST_COMPARED_BYTES", 64)
    monkeypatch.setattr(source_files, "READ_BYTES", 1000)
    read_bytes = []
    real = SourceFiles.read_into

    def counted(self, path, buffer, offset):
        read_bytes.append(len(buffer))
        return real(self, path, buffer, offset)

    monkeypatch.setattr(SourceFiles, "read_into", counted)
    with SourceFiles() as files:
        for _ in range(2):
            load_model(ModelSource(str(folder), folder), files=files)
    whole = 263 * 48 * 4
    assert sum(size for size in read_bytes if size in (64, 1000, (whole - 64) % 1000)) == (
        2 * 64 if case == "all other" else 2 * whole
    )
