"""Schemes found out from the header of an artifact for CUDA are those of the build."""

from pathlib import Path

import pytest

from pyc.backends.stored_weights import main_scheme, stored_weights
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.compiler.schemes import SCHEMES, Dense, Float8
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Generation, Header, Provenance, Span, Tensor

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense | Float8)]


def layers_of(**quantize):
    """The weights of the demo model's layers, and all that its header tells of."""
    target = {"backend": "cuda", "arch": ["sm_90a"]}
    recipe = recipe_from({"model": str(DEMO), "quantize": quantize, "targets": [target]})
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files)
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    tensors = tuple(Tensor(name, tensor.dtype, tensor.shape, Span(0, 0)) for name, tensor in stored.items())
    provenance = Provenance(recipe_text(recipe), (), (), ())
    weights = stored_weights(Header(lowered.common.info, tensors, (), (), (), Generation(), provenance))
    return [weight for weight in weights if ".layers." in weight.name and weight.is_matrix], weights


@pytest.mark.parametrize("name", QUANTIZED)
def test_schemes_bytes_and_values(name):
    layers, weights = layers_of(scheme=name)
    assert {weight.scheme for weight in layers} == {name}
    assert main_scheme(weights) == name
    of_down = [weight for weight in layers if "0.mlp.down_proj.weight." in weight.name]
    assert sum(weight.values for weight in of_down) == 256 * 640
    codes = next(weight for weight in of_down if weight.name.endswith(".codes"))
    other = {"lut3": 3, "int3": 3, "lut2": 2, "int2": 2, "ternary": 2, "int8": 8, "lut5": 5}
    bits = other.get(name.partition("-")[0], 4)
    assert codes.size_bytes * 8 == bits * 256 * 640
    if name == "ternary":
        assert sum(weight.size_bytes for weight in of_down) == codes.size_bytes + 4 * 256


def test_schemes_beside_each_other():
    """As many bits a group, or as many scales a row, do not make one scheme of two."""
    named = {"self_attn.o_proj": "nvfp4", "mlp.down_proj": "ternary", "mlp.gate_proj": "lut2-g128"}
    overrides = [{"match": f"re:.*{name}.*", "scheme": scheme} for name, scheme in named.items()]
    overrides += [{"match": "re:.*up_proj.*", "scheme": "lut2-g128"}]
    layers, _ = layers_of(scheme="fp8", overrides=overrides)
    found = {weight.name.partition(".layers.0.")[2].partition(".weight")[0]: weight.scheme for weight in layers}
    assert {scheme for name, scheme in found.items() if "o_proj" in name} == {"nvfp4"}
    assert {scheme for name, scheme in found.items() if "down_proj" in name} == {"ternary"}
    assert {scheme for name, scheme in found.items() if "gate" in name} == {"lut2-g128"}
    assert {scheme for name, scheme in found.items() if "q_proj" in name or "qkv" in name} == {"fp8"}
