"""`pyc eval` of the demo model beside transformers in float32 on the same tokens, cut into windows here once more."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from built_models import log_probabilities, target_of

from pyc import cli
from pyc.passes.driver.build import build

DEMO = Path(__file__).parents[2] / "models" / "demo"
CONTEXT, WINDOWS = 512, 8
SHAPES = {"context": CONTEXT, "tokens": [1, 128], "logits": [64], "batch": [1]}


@pytest.fixture
def measured(tmp_path, monkeypatch, capfd):
    """The document of int8 weights, and of none, beside the checkpoint."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    for name, quantize in (("int8", {"scheme": "int8"}), ("none", {"kv_cache": "f32"})):
        recipe = {"model": str(DEMO / "checkpoint"), "quantize": quantize, "shapes": SHAPES, "targets": target_of()}
        build(recipe, output=tmp_path / f"{name}.pyca")
    capfd.readouterr()
    paths = [str(tmp_path / f"{name}.pyca") for name in ("int8", "none")]
    options = ["--reference", str(DEMO / "checkpoint"), "--tokens", str(WINDOWS * CONTEXT + 5), "--no-speed", "--json"]
    assert cli.main(["eval", *paths, "--text", str(DEMO / "heldout.txt"), *options]) == 0
    return json.loads(capfd.readouterr().out)


def test_it_agrees_with_transformers(measured, reference, built):
    """Both compute in f32 over the same weights; logits of about 20 differ in their seventh digit, so a nll of a token
    does by 1e-5 at most, and their mean by less. The KL of int8 weights, 7e-4, is one of predictions that are compared
    with those of transformers here, and with pyc's own there: their KL to each other is below 1e-9."""
    import tokenizers
    import torch

    model = reference(DEMO / "checkpoint")
    text = (DEMO / "heldout.txt").read_text("utf-8")
    ids = tokenizers.Tokenizer.from_file(str(DEMO / "checkpoint" / "tokenizer.json")).encode(text).ids
    rounded = built(DEMO / "checkpoint", shapes=SHAPES, quantize={"scheme": "int8"})
    nll, kl, same = [], [], []
    for number in range(WINDOWS):
        window = ids[CONTEXT * number : CONTEXT * (number + 1)]
        with torch.no_grad():
            logits = model(torch.tensor([window])).logits[0].numpy()
        scored = range(CONTEXT // 2, CONTEXT - 1)
        p, q = log_probabilities(logits), log_probabilities(rounded.logits(window))
        nll += [-float(p[position, window[position + 1]]) for position in scored]
        kl += [float((np.exp(p[position]) * (p[position] - q[position])).sum()) for position in scored]
        same += [bool(p[position].argmax() == q[position].argmax()) for position in scored]

    int8, none = measured["artifacts"]
    expected = math.exp(math.fsum(nll) / len(nll))
    assert measured["text"]["scored"] == len(nll) == WINDOWS * 255
    assert measured["reference"]["perplexity"]["value"] == pytest.approx(expected, rel=1e-5)
    assert none["perplexity"]["value"] == pytest.approx(expected, rel=1e-5)
    assert 0 <= none["divergence"]["kl"]["value"] < 1e-9
    error = expected * float(np.std(nll)) / math.sqrt(len(nll) - 1)
    assert none["perplexity"]["error"] == pytest.approx(error, rel=1e-4)

    divergence = int8["divergence"]
    assert divergence["kl"]["value"] == pytest.approx(math.fsum(kl) / len(kl), rel=1e-3)
    assert divergence["kl"]["error"] == pytest.approx(float(np.std(kl)) / math.sqrt(len(kl) - 1), rel=1e-3)
    assert dict(divergence["kl_percentiles"])[99.0] == pytest.approx(float(np.percentile(kl, 99)), rel=1e-2)
    assert divergence["same_top"]["value"] == pytest.approx(np.mean(same), abs=2.1 / len(same)), "two near ties"
