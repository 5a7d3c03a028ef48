"""passes/calibration/rounding.py on the demo model: what algorithms lose beside rounding to nearest, on held-back text.

Predictions are interpreted, with weights as they are stored; a calibration takes 2,048 tokens of the packaged text.
"""

from pathlib import Path

import numpy as np
import pytest

from pyc.compiler.evaluate import unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import Dense
from pyc.compiler.weights import Stored
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.calibrate import calibrate
from pyc.passes.calibration.calibration_text import calibration_windows
from pyc.passes.interpretation.interpret_text import Windows, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.passes.pipeline import pipeline
from pyc.runtime.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "models" / "demo"
CHECKPOINT = str(DEMO / "checkpoint")


def module_of(scheme):
    recipe = recipe_from({"model": CHECKPOINT, "quantize": {"scheme": scheme, "calibration": {"tokens": 2048}}})
    return recipe, run_passes(load_model(ModelSource(CHECKPOINT, DEMO)), pipeline(recipe, ()))


@pytest.fixture(scope="module")
def held_back():
    tokens = Tokenizer((DEMO / "checkpoint" / "tokenizer.json").read_bytes(), None).encode(
        (DEMO / "heldout.txt").read_text()[:12000]
    )
    return Windows(np.array(tokens[:1024], np.int32).reshape(2, 512), "held back")


def log_probabilities(module, windows, files):
    model = Predictor(module, windows)

    def rows_of(name, start, stop):
        return stored_rows(name, module.weights[name], start, stop, files)

    logits = model.predictions(model.inputs(), 0, rows_of, model.positions(1 << 30)).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def kl(held_back, tmp_path_factory):
    """`kl(scheme, algorithm)`: the mean KL a token to the model of the same graph with exact weights."""
    found = {}

    def measured(scheme, algorithm):
        if (scheme, algorithm) not in found:
            recipe, module = module_of(scheme)
            with SourceFiles() as files:
                exact = {name: Stored(unstored(weight), Dense("f32")) for name, weight in module.weights.items()}
                if "exact" not in found:
                    found["exact"] = log_probabilities(module.with_graph(module.graph, exact), held_back, files)
                if algorithm != "rtn":
                    text = calibration_windows(recipe, module, files)
                    folder = tmp_path_factory.mktemp("codes")
                    module = calibrate(module, text, files, Cache(None), folder, lambda count: None, algorithm)
                got, wanted = log_probabilities(module, held_back, files), found["exact"]
            found[scheme, algorithm] = float((np.exp(wanted) * (wanted - got)).sum(-1).mean())
        return found[scheme, algorithm]

    return measured


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "algorithm", "bound"),
    [("int4-g128", "imatrix", 0.97), ("int4-g128", "awq", 0.88), ("int4-g128", "yaqa", 0.65)],
)
def test_it_loses_less_than_rounding_to_nearest(scheme, algorithm, bound, kl):
    nearest, calibrated = kl(scheme, "rtn"), kl(scheme, algorithm)
    print(f"{scheme} {algorithm}: {nearest:.5f} {calibrated:.5f} {calibrated / nearest:.3f}")
    assert calibrated < bound * nearest
