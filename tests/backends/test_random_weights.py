"""Random weights: numbers of a model's magnitude in every layout, of which a model computes no NaN."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from built_models import target_of
from emulated_cuda import CUDA, emulated
from long_runs import sample
from tiny_checkpoints import tiny_checkpoint

from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import unpack_rows
from pyc.backends.random_weights import random_weights
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp8 import TYPES
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.compiler.schemes import SCHEMES, Dense
from pyc.passes.driver.build_programs import build_programs
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Generation, Header, Provenance, Span, Tensor
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.loading import LoadOptions, load_executor
from pyc.runtime.model import load, model_of

__all__ = ["tiny_checkpoint"]
DEMO = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
NAMES = [name for name, scheme in SCHEMES.items() if scheme != Dense()]
NOWHERE = Span(0, 0)


def header_of(**quantize):
    """The header of the demo model stored so, without what does not matter."""
    recipe = recipe_from({"model": str(DEMO), "quantize": quantize})
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files)
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    tensors = tuple(Tensor(name, tensor.dtype, tensor.shape, NOWHERE) for name, tensor in stored.items())
    provenance = Provenance(recipe_text(recipe), (), (), ())
    return Header(lowered.common.info, tensors, (), (), (), Generation(), provenance)


def fill_of(header):
    return random_weights(SimpleNamespace(header=header))


@pytest.mark.parametrize("name", NAMES)
def test_panels_are_rounded_numbers_of_a_models_magnitude(name):
    header = header_of(scheme=name, embeddings="f32")
    fill = fill_of(header)
    tensor = next(tensor for tensor in header.tensors if tensor.name.endswith("0.self_attn.o_proj.weight"))
    layout = panel_layout(SCHEMES[name], header.model.hidden_size)
    pattern = fill(tensor).reshape(-1, layout.panel_bytes)
    values = unpack_rows(pattern, layout, 16 * len(pattern)).astype(np.float64)
    assert tensor.shape[1] == layout.panel_bytes
    assert np.isfinite(values).all() and np.unique(values).size > 2
    if name != "f16":  # whose panels look like those of bf16
        assert 0.01 < values.std() < 0.04
    assert fill(tensor) is fill(tensor)


def test_parts_and_other_tensors_are_numbers():
    fill = fill_of(header_of(scheme="int8"))

    def of(part, dtype):
        return fill(Tensor(f"model.layers.0.q_proj.weight.{part}@cuda", dtype, (4, 8), NOWHERE))

    codes = of("codes", "u8")
    assert len(np.unique(codes)) == 128
    assert all(np.isfinite(TYPES[name].values[codes]).all() for name in ("e4m3", "e5m2"))
    for dtype, kind in (("f32", np.float32), ("f16", np.float16)):
        assert (of("scales", dtype).view(kind) == 2.0**-12).all()
    scales = of("scales", "bf16").view(np.uint16)
    assert not (scales & 1).any()  # no group is shifted
    assert ((scales.astype(np.uint32) << 16).view(np.float32) == 2.0**-12).all()
    assert (of("factors", "f32").view(np.float32) == 1).all()
    assert (of("zero_points", "u8") == 0x88).all()
    assert (fill(Tensor("model.norm.weight", "f32", (64,), NOWHERE)).view(np.float32) == 1).all()
    table = fill(Tensor("embeddings.position", "f32", (64, 8), NOWHERE)).view(np.float32)
    assert 0.019 < table.std() < 0.021


def test_panels_of_no_scheme_are_refused():
    header = header_of(scheme="int8")
    name = "model.layers.0.mlp.down_proj.weight"
    other = tuple(Tensor(t.name, "u8", (4, 99), NOWHERE) if t.name == name else t for t in header.tensors)
    fill = fill_of(msgspec.structs.replace(header, tensors=other))
    with pytest.raises(ArtifactError, match=r"down_proj\.weight': the artifact does not tell its scheme"):
        fill(next(tensor for tensor in other if tensor.name == name))


SHAPES = {"context": 64, "tokens": [1, 8], "batch": [1], "logits": [1, 8]}
MIXTURES = {
    "tables": {"q_proj": "int4-g32", "k_proj": "int4-g32", "v_proj": "int4-g32", "o_proj": "lut3-g32"}
    | {"gate_proj": "int2-g32", "up_proj": "int2-g32", "down_proj": "ternary"},
    "floats": {"q_proj": "mxfp4", "k_proj": "mxfp4", "v_proj": "mxfp4", "o_proj": "nvfp4"}
    | {"gate_proj": "fp8", "up_proj": "fp8", "down_proj": "int4-g32-asym"},
}


@pytest.mark.slow
@pytest.mark.parametrize("mixture", sample(MIXTURES, "floats"))
def test_a_model_computes_numbers_of_them_on_cpus_and_gpus(mixture, tiny_checkpoint, tmp_path):
    pytest.importorskip("torch")
    checkpoint = tiny_checkpoint("llama", tokenizer=False, hidden_size=64, intermediate_size=128)
    overrides = [{"match": f"re:.*{name}.*", "scheme": scheme} for name, scheme in MIXTURES[mixture].items()]
    quantize = {"scheme": "int8", "overrides": overrides}
    recipe = {"model": str(checkpoint), "quantize": quantize, "shapes": SHAPES, "targets": [*target_of(), CUDA]}
    path = tmp_path / "programs.pyca"
    with emulated():
        build_programs(recipe, output=path)
        with open_artifact(path) as artifact:
            weights = random_weights(artifact)
            for backend in ("cpu", "cuda"):
                loaded = load_executor(artifact, LoadOptions(backend=backend, random_weights=weights))
                with model_of(loaded) as model:
                    logits = model.logits([1, 2, 3, 4])
                assert np.isfinite(logits).all(), backend
                assert logits.std() > 0, backend
        with pytest.raises(ArtifactError, match="has programs and no weights; add those of a checkpoint: pyc attach"):
            load(path)


def test_engines_that_take_none_say_so():
    from pyc.runtime.executors.protocol import ExecutorOptions
    from pyc.runtime.executors.registry import EXECUTORS

    options = ExecutorOptions(random_weights=fill_of(header_of()))
    for name in ("onnx", "tensorrt"):
        with pytest.raises(RunError, match=r"take the artifact's own; .* \(--backend cpu or cuda\)"):
            EXECUTORS[name].create(None, options)
