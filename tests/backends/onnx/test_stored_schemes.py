"""backends/onnx/stored_schemes.py: schemes found out from a header are those that the build chose."""

from pathlib import Path

import pytest

from pyc.backends.stored_weights import scheme_bytes, stored_weights
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Generation, Header, Provenance, Span, Tensor

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
DOWN = {"match": "re:.*down_proj", "scheme": "fp8-e5m2"}


def header_of(quantize):
    recipe = recipe_from({"model": str(DEMO), "quantize": quantize, "targets": [{"backend": "onnx"}]})
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files)
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    return Header(
        model=lowered.common.info,
        tensors=tuple(Tensor(name, tensor.dtype, tensor.shape, Span(0, 1)) for name, tensor in stored.items()),
        blobs=(),
        programs=(),
        chunks=(),
        generation=Generation(),
        provenance=Provenance(recipe_text(recipe), (), (), ()),
    )


@pytest.mark.parametrize(
    ("quantize", "expected"),
    [
        ({"scheme": "fp8"}, ["f32", "fp8", "int8"]),
        ({"scheme": "fp8", "embeddings": "fp8-e5m2"}, ["f32", "fp8", "fp8-e5m2"]),
        ({"scheme": "fp8-b128", "embeddings": "fp8-tensor"}, ["f32", "fp8-b128", "fp8-tensor"]),
        ({"scheme": "int4-g32", "embeddings": "int4-g32", "overrides": [DOWN]}, ["f32", "fp8-e5m2", "int4-g32"]),
        ({"scheme": "nvfp4", "embeddings": "mxfp4"}, ["f32", "mxfp4", "nvfp4"]),
        ({"scheme": "fp8", "overrides": [DOWN]}, ["f32", "fp8", "fp8-e5m2", "int8"]),
        ({"scheme": "lut4-g32"}, ["f32", "int8", "lut4-g32"]),
        ({"scheme": "mxfp4", "overrides": [{**DOWN, "scheme": "int8-g32"}]}, ["f32", "int8", "int8-g32", "mxfp4"]),
    ],
    ids=str,
)
def test_schemes_of_the_demo_model(quantize, expected):
    assert sorted({name for name, _, _ in scheme_bytes(stored_weights(header_of(quantize)))}) == expected
