"""models/catalog.py: every architecture loads, and every weight is the tensor that transformers saved."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pyc.compiler.weights import Source
from pyc.models.catalog import ARCHITECTURES, load_model
from pyc.models.model_source import ModelShapes, ModelSource

NUMPY = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16}
DECODERS = tuple(name for name, entry in ARCHITECTURES.items() if entry.decoder)


def read(source: Source) -> np.ndarray:
    data = Path(source.path).read_bytes()[source.offset : source.offset + source.size_bytes]
    return np.frombuffer(data, NUMPY[source.dtype]).reshape(source.shape)


def load(path: Path, **options):
    return load_model(ModelSource(path.name, path.parent), ModelShapes(**options))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_source_has_the_bytes_of_its_tensor(tiny_checkpoint, model_type, dtype, sharded):
    import torch
    import transformers

    path = tiny_checkpoint(model_type, dtype=dtype, sharded=sharded)
    module = load(path)
    auto = transformers.AutoModel if model_type == "bert" else transformers.AutoModelForCausalLM
    state = auto.from_pretrained(path, dtype=getattr(torch, dtype)).state_dict()
    sources = {name: item for name, item in module.weights.items() if isinstance(item, Source)}
    unused = {name for name in state if name not in sources}
    assert unused == ({"pooler.dense.weight", "pooler.dense.bias"} if model_type == "bert" else set())
    for name, source in sources.items():
        assert np.array_equal(read(source).astype(np.float64), state[name].to(torch.float64).numpy()), name
    shards = [entry for entry in module.sources if entry.name.endswith(".safetensors")]
    assert len(shards) > 3 if sharded else len(shards) == 1
