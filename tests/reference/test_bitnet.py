"""BitNet checkpoints against transformers, which loads their codes itself and rounds activations to int8."""

import numpy as np
import pytest
from built_models import difference, random_ids
from quantized_checkpoints import quantized_copy

SHAPE = {"tokenizer": False, "hidden_size": 128, "intermediate_size": 192}
LARGEST = 0.004
"""KL. Measured: 0.0016 to 0.0017, what rounding activations to int8 costs, theirs by one a token and ours one for 32
inputs. What the codes stand for is exact: test_quantized_checkpoints."""


@pytest.fixture
def uncompiled():
    """transformers compiles its layers for BitNet, which needs a compiler of the system."""
    import torch

    with torch._dynamo.config.patch(disable=True):
        yield


@pytest.mark.parametrize("case", ["bitnet", "bitnet-auto", "bitnet-online"])
def test_logits_are_those_of_transformers_own_layers(case, uncompiled, tiny_checkpoint, built, tmp_path):
    import torch
    import transformers

    quantized_copy(tiny_checkpoint("bitnet", **SHAPE), case, tmp_path / "coded")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "coded", dtype=torch.float32).eval()
    layer = type(reference.model.layers[0].mlp.down_proj).__name__
    assert layer == ("BitLinear" if case == "bitnet" else "AutoBitLinear")
    model = built(tmp_path / "coded", quantize={"scheme": "none", "kv_cache": "f32"})
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = reference(torch.tensor([ids])).logits[0].double().numpy()
    found = difference(wanted, model.logits(ids))
    assert found.spread > 0.5
    assert found.mean_kl <= LARGEST, found
    assert np.isfinite(found.largest)
