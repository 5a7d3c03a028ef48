"""GPTQ on the demo model, beside rounding to nearest of the same scheme and bytes, on text that is held back."""

from pathlib import Path

import numpy as np
import pytest
from built_models import log_probabilities
from long_runs import sample

DEMO = Path(__file__).parents[2] / "models" / "demo"
SHAPES = {"context": 512, "tokens": [128], "logits": [64], "batch": [1]}
WINDOWS = 6


def kl(built, reference, ids, **quantize):
    """The mean KL a token against the unquantized build."""
    model = built(DEMO / "checkpoint", shapes=SHAPES, quantize={"kv_cache": "f32", **quantize})
    found = []
    for wanted, window in zip(reference, ids, strict=True):
        got = log_probabilities(model.logits(window))
        found.append((np.exp(wanted) * (wanted - got)).sum(-1))
    return float(np.mean(found))


CASES = [("int4-g32", 0.7), ("int4-g128-asym", 0.7), ("fp8", 0.75)]


@pytest.mark.parametrize(("scheme", "bound"), sample(CASES, CASES[0]))
def test_it_loses_less_than_rounding_to_nearest(scheme, bound, built):
    """Measured with 4,096 tokens of the packaged text: 0.55, 0.55 and 0.58."""
    exact = built(DEMO / "checkpoint", shapes=SHAPES, quantize={"kv_cache": "f32"})
    tokens = exact.tokenizer.encode((DEMO / "heldout.txt").read_text())
    ids = [tokens[512 * number : 512 * number + 512] for number in range(WINDOWS)]
    reference = [log_probabilities(exact.logits(window)) for window in ids]
    nearest = kl(built, reference, ids, scheme=scheme)
    calibrated = kl(built, reference, ids, scheme=scheme, algorithm="gptq", calibration={"tokens": 4096})
    print(f"{scheme}: {nearest:.5f} {calibrated:.5f}")
    assert calibrated < bound * nearest
    assert scheme != "fp8" or nearest < 0.2 * kl(built, reference, ids, scheme="int4-g32")  # measured: 0.1
