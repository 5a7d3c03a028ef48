"""Schemes found out from the header of an artifact for CUDA are those of the build."""

from pathlib import Path

import pytest

from pyc.backends.stored_weights import main_scheme, stored_weights
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.compiler.schemes import SCHEMES, Dense, Float8
from pyc.passes.build import lower_recipe
from pyc.runtime.artifact.format import Generation, Header, Provenance, Span, Tensor

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense | Float8)]


@pytest.mark.parametrize("name", QUANTIZED)
def test_schemes_bytes_and_values(name):
    target = {"backend": "cuda", "arch": ["sm_90a"]}
    recipe = recipe_from({"model": str(DEMO), "quantize": {"scheme": name}, "targets": [target]})
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files)
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    tensors = tuple(Tensor(name, tensor.dtype, tensor.shape, Span(0, 0)) for name, tensor in stored.items())
    provenance = Provenance(recipe_text(recipe), (), (), ())
    header = Header(lowered.common.info, tensors, (), (), (), Generation(), provenance)
    weights = [weight for weight in stored_weights(header) if ".layers." in weight.name and weight.is_matrix]
    of_down = [weight for weight in weights if "0.mlp.down_proj.weight." in weight.name]
    assert {weight.scheme for weight in weights} == {name}
    assert sum(weight.values for weight in of_down) == 256 * 640
    assert main_scheme(stored_weights(header)) == name
    codes = next(weight for weight in of_down if weight.name.endswith(".codes"))
    bits = {"lut3": 3, "int3": 3, "lut2": 2, "int2": 2, "ternary": 2, "int8": 8}.get(name.partition("-")[0], 4)
    assert codes.size_bytes * 8 == bits * 256 * 640
