"""What a warm build cache gives a calibration is what an empty one does, whatever other recipes have left there."""

import json

import numpy as np
import pytest

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.calibrate import calibrate
from pyc.passes.calibration.calibration_text import calibration_windows
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.pipeline import pipeline

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def importance(seed):
    """Of the matrices of both feed-forward networks."""
    rng = np.random.default_rng(seed)

    def drawn(width, count):
        return tuple(rng.exponential(size=width).astype(np.float32) for _ in range(count))

    made = {}
    for layer in range(2):
        made[f"model.layers.{layer}.mlp.gate_proj+up_proj.weight"] = drawn(64, 2)
        made[f"model.layers.{layer}.mlp.down_proj.weight"] = drawn(96, 1)
    return made


def override(pattern, algorithm):
    return {"match": f"re:.*{pattern}", "scheme": "int4-g32", "algorithm": algorithm}


BY_TEXT = [
    ("gptq", [], None),
    ("gptq", [override("down_proj", "rtn")], None),
    ("gptq", [override("o_proj|.*mlp", "rtn")], None),
    ("gptq", [override("o_proj", "awq")], None),
    ("gptq", [override("mlp", "imatrix")], 1),
    ("gptq", [override("mlp", "imatrix")], 2),
    ("awq", [], None),
    ("awq", [override("down_proj", "rtn")], None),
    ("awq-gptq", [], None),
    ("awq-gptq", [override("mlp", "imatrix")], 1),
    ("awq-gptq", [override("mlp", "imatrix")], 2),
    ("imatrix", [], None),
    ("imatrix", [override("embed_tokens", "imatrix")], None),
    ("yaqa", [], None),
    ("yaqa", [override("embed_tokens", "imatrix")], None),
    ("yaqa", [override("down_proj", "rtn")], None),
]
"""An algorithm, overrides, and the seed of imported importance."""


def codes(path, folder, cache, algorithm, overrides, seed):
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32", "overrides": overrides}})
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    windows = Windows(np.random.default_rng(0).integers(3, 90, (4, 16)).astype(np.int32), "digest")
    imported = None if seed is None else importance(seed)
    with SourceFiles() as files:
        calibrate(module, windows, files, cache, folder, lambda count: None, algorithm, 0.5, imported)
    return [(folder / name).read_bytes() for name in ("codes", "scales") if (folder / name).exists()]


@pytest.mark.parametrize("forwards", [True, False])
def test_one_recipe_after_another(forwards, tiny_checkpoint, tmp_path):
    path, warm = tiny_checkpoint("llama", tie_word_embeddings=True, **SIZES), Cache(tmp_path / "warm")
    found = set()
    for case in BY_TEXT if forwards else reversed(BY_TEXT):
        made = codes(path, tmp_path, warm, *case)
        assert made == codes(path, tmp_path, Cache(None), *case), case
        found.add(b"".join(made))
    assert len(found) == len(BY_TEXT)


def test_other_tokens_that_come_from_the_same_place(tiny_checkpoint, tmp_path):
    path, warm = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "warm")
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32"}})
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    made = []
    for seed in (0, 1):
        windows = Windows(np.random.default_rng(seed).integers(3, 90, (4, 16)).astype(np.int32), "the same")
        with SourceFiles() as files:
            calibrate(module, windows, files, warm, tmp_path, lambda count: None)
        made.append((tmp_path / "codes").read_bytes())
    assert made[0] != made[1]


def test_tokens_are_generated_again_for_others_that_begin_and_end_texts(tiny_copy, tmp_path):
    path, warm = tiny_copy("llama", **SIZES), Cache(tmp_path / "warm")
    calibration = {"generate": 256, "window": 32}
    quantize = {"scheme": "int4-g32", "algorithm": "gptq", "calibration": calibration}
    recipe, found = recipe_from({"model": str(path), "quantize": quantize}), []
    for start, end in ((5, 6), (7, 6), (7, list(range(8, 40)))):
        (path / "generation_config.json").write_text(json.dumps({"bos_token_id": start, "eos_token_id": end}))
        module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
        with SourceFiles() as files:
            windows = calibration_windows(recipe, module, files, warm)
            cold = calibration_windows(recipe, module, files, Cache(None))
        np.testing.assert_array_equal(windows.ids, cold.ids)
        assert (windows.ids[:, 0] == start).all()
        found.append(windows)
    assert len({windows.key for windows in found}) == len({windows.digest for windows in found}) == 3
