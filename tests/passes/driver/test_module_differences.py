"""passes/driver/module_differences.py: what `pyc attach` says of a program that does not fit, and its remedy."""

import platform
from pathlib import Path

import pytest
from built_models import recipe_for

from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.protocol import CompiledProgram
from pyc.passes.driver import build_calibration
from pyc.passes.driver.attach import attach
from pyc.passes.driver.build import build
from pyc.passes.driver.build_programs import build_programs
from pyc.runtime.errors import LowerError

pytestmark = pytest.mark.usefixtures("compiled_once")

SHAPE = {"hidden_size": 64, "intermediate_size": 96}
TIED = {**SHAPE, "tie_word_embeddings": True}
ALL = {"r": 2, "target_modules": "all-linear"}
HEAD = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
INT8 = {"scheme": "int8"}
NONE = {"scheme": "none"}
AWQ = {**INT8, "algorithm": "awq", "calibration": {"tokens": 256, "window": 32}}


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """Programs are compared, not run, and kept in a cache of their own."""
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))

    def compile_nothing(self, module, buckets, isas):
        yield from (CompiledProgram(isa, platform.machine(), (), b"library", ()) for isa in isas)

    monkeypatch.setattr(CpuBackend, "compile", compile_nothing)


def recipe(checkpoint: Path, quantize, *adapters: Path, **more):
    shapes = {"tokens": [1, 4], "logits": [1], "context": 48}
    listed = [{"path": str(path)} for path in adapters]
    return recipe_for(checkpoint, quantize=quantize, shapes=shapes, adapters=listed, **more)


@pytest.fixture
def models(tiny_checkpoint, tiny_adapter):
    """A model of 16 bits and an adapter of all its layers; a tied one, and an adapter that replaces its head."""
    short, tied = tiny_checkpoint("llama", dtype="bfloat16", **SHAPE), tiny_checkpoint("llama", **TIED)
    return short, tiny_adapter(short, **ALL), tied, tiny_adapter(tied, **HEAD)


def cases_of(short, every, tied, head):
    """Recipes of a program and of what is attached to it, of which one has an adapter, and what is said."""
    widened = r"\d+ matrices \(model.layers.0.self_attn.q_proj\+k_proj\+v_proj.weight first\) are f32"
    plain, adapted = recipe(short, NONE), recipe(short, NONE, every)
    of_tied, of_head = recipe(tied, INT8), recipe(tied, INT8, head)
    own = "the logits have a matrix of their own"
    such = "build the program from a recipe with such an adapter$"
    without = "build the program from a recipe without such an adapter$"
    in_both = "write `scheme: bf16` in both recipes and build the program again, or "
    return (
        (plain, adapted, f"{widened} here alone: an adapter of this recipe, .* {in_both}{such}"),
        (of_tied, of_head, rf"{own} here \(lm_head.weight\), and in the program the token embedding .*{such}"),
        (adapted, plain, f"{widened} in the program alone: an adapter of its recipe, .* {in_both}{without}"),
        (of_head, of_tied, rf"{own} in the program \(lm_head.weight\), and here the token embedding .*{without}"),
    )


def require_refusals(make, cases, folder: Path) -> None:
    for program, wanted, message in cases:
        made = make(program, output=folder / "program.pyca").path
        with pytest.raises(LowerError, match=f"program.pyca: the code of this program does not fit: {message}"):
            attach(made, wanted, output=folder / "out.pyca")
        assert not (folder / "out.pyca").exists()


def test_what_an_adapter_changes_is_named(models, tmp_path, no_compiler):
    require_refusals(build_programs, cases_of(*models), tmp_path)


def test_so_it_is_where_the_program_has_weights(models, tmp_path):
    """Its header has names, types and shapes of tensors, and no graph."""
    require_refusals(build, cases_of(*models)[1:3], tmp_path)


@pytest.mark.slow
def test_a_tied_head_is_none_of_its_own(tiny_checkpoint, tiny_adapter, tmp_path):
    """The function of the logits reads more than its head: it prefetches the next step's first matrix."""
    tied = tiny_checkpoint("llama", dtype="bfloat16", **TIED)
    adapter = tiny_adapter(tied, target_modules=["q_proj", "v_proj"])
    made = build(recipe(tied, NONE), output=tmp_path / "program.pyca").path
    with pytest.raises(LowerError) as caught:
        attach(made, recipe(tied, NONE, adapter), output=tmp_path / "out.pyca")
    assert "the logits have a matrix of their own" not in str(caught.value)


def test_the_remedies_hold(models, tiny_adapter, tmp_path, no_compiler):
    short, every, tied, head = models
    cases = (
        (recipe(short, {"scheme": "bf16"}), recipe(short, {"scheme": "bf16"}, every)),
        (recipe(short, NONE, tiny_adapter(short, seed=7, **ALL)), recipe(short, NONE, every)),
        (recipe(tied, INT8, tiny_adapter(tied, seed=7, **HEAD)), recipe(tied, INT8, head)),
    )
    for program, wanted in cases:
        made = build_programs(program, output=tmp_path / "program.pyca").path
        assert attach(made, wanted, output=tmp_path / "out.pyca", force=True).tensors


def test_checkpoints_of_other_types(tiny_checkpoint, tmp_path, no_compiler):
    program = build_programs(
        recipe(tiny_checkpoint("llama", dtype="bfloat16", **SHAPE), NONE), output=tmp_path / "program.pyca"
    )
    said = r"\(model.embed_tokens.weight first\) are f32 here and bf16 in the program, .* `scheme: bf16` in both"
    with pytest.raises(LowerError, match=said):
        attach(program.path, recipe(tiny_checkpoint("llama", **SHAPE), NONE), output=tmp_path / "out.pyca")


def test_scaled_channels_are_refused_before_a_calibration(tiny_checkpoint, tmp_path, no_compiler, monkeypatch):
    checkpoint = tiny_checkpoint("llama", **SHAPE)
    program = build_programs(recipe(checkpoint, INT8), output=tmp_path / "program.pyca").path
    whole = build(recipe(checkpoint, AWQ), output=tmp_path / "whole.pyca").path
    assert attach(whole, recipe(checkpoint, AWQ), output=tmp_path / "out.pyca").tensors  # the remedy
    with pytest.raises(LowerError, match=r"awq of the program's recipe alone scales .* or write it in neither"):
        attach(whole, recipe(checkpoint, INT8), output=tmp_path / "other.pyca")
    monkeypatch.setattr(build_calibration, "calibrate", lambda *arguments: pytest.fail("work began"))
    with pytest.raises(LowerError, match=r"algorithm: awq scales channels .* the artifact of a whole build by awq"):
        attach(program, recipe(checkpoint, AWQ), output=tmp_path / "other.pyca")
    assert not (tmp_path / "other.pyca").exists()
