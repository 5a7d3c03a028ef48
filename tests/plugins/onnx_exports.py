"""Exports for ONNX Runtime and transformers, made of a recipe, and how a decoder of them is run."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from built_models import recipe_for

from pyc.passes.export.checkpoint import export_checkpoint
from pyc.passes.export.onnx import export_onnx
from pyc.passes.export.source import exportable

CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
IDS = [int(number) for number in np.random.Generator(np.random.PCG64(7)).integers(3, 90, 40)]


@pytest.fixture
def exported(tmp_path):
    """`exported(checkpoint, form, **recipe)`: the folder that an export of a recipe for ONNX makes."""

    def make(checkpoint, form, *, flavour="fused", **recipe):
        target = tmp_path / f"{form}-{flavour}"
        with exportable(write_recipe(tmp_path, checkpoint, recipe)) as source:
            if form == "onnx":
                return export_onnx(source, target, flavour=flavour)
            return export_checkpoint(source, target)

    return make


def write_recipe(folder, checkpoint, recipe):
    """A recipe file: JSON is YAML."""
    path = folder / "model.yaml"
    path.write_text(json.dumps(recipe_for(checkpoint, **recipe)))
    return path


class Loop:
    """A decoder as whoever loads model.onnx runs it: the cache of one step goes into the next."""

    def __init__(self, folder):
        onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
        model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        inputs = [value for value in self.session.get_inputs() if value.name.startswith("past")]
        self.cache = {value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for value in inputs}
        self.length = 0

    def feed(self, ids):
        """Logits [tokens, vocab] of `ids` behind those before."""
        positions = np.arange(self.length, self.length + len(ids), dtype=np.int64)[None]
        self.length += len(ids)
        given = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": positions,
            "attention_mask": np.ones((1, self.length), np.int64),
        }
        logits, *present = self.session.run(None, {**given, **self.cache})
        self.cache = dict(zip(self.cache, present, strict=True))
        return logits[0]
