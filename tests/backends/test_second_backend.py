"""The seam between compiler and backends: another one builds, has an executor of its own, and agrees with the CPU's.

Both have the same stored weights. The CPU multiplies by dequantized f32 here, as numpy does, and sums in another order:
logits of a few units differ by 1e-4 at most (measured: 2e-5). A wrong operator, weight or position is off by units.
"""

import msgspec
import numpy as np
import pytest
from built_models import random_ids, recipe_for, runnable_isas
from long_runs import sample
from reference_backend import ISA, NAME, ReferenceBackend, reference
from tiny_checkpoints import tiny_checkpoint

from pyc.backends.registry import BACKENDS
from pyc.cli import main
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.driver.plan import plan
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import LowerError, RunError
from pyc.runtime.executors.registry import EXECUTORS
from pyc.runtime.model import load

__all__ = ["reference", "tiny_checkpoint"]

TOLERANCE = 1e-4
GATE = "model.layers.0.mlp.gate_proj+up_proj.weight"
EXACT = {"activations": "f32", "kv_cache": "f32"}
MODELS = {
    "llama-tied-int8": ("llama", {"tie_word_embeddings": True}, {"scheme": "int8"}),
    "mistral-window": ("mistral", {"sliding_window": 5}, {}),
    "qwen2-int4": ("qwen2", {"hidden_size": 64, "intermediate_size": 96}, {"scheme": "int4-g32"}),
    "qwen3-bf16": ("qwen3", {"dtype": "bfloat16"}, {}),
}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """A key and a cache of the test's own."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def recipe_of(checkpoint, backends, quantize, **recipe):
    """A recipe for the CPU of this machine and the reference, in the order of `backends`."""
    parsed = recipe_from(recipe_for(checkpoint, quantize={**EXACT, **quantize}, **recipe))
    cpu = parsed.targets[0]
    other = msgspec.structs.replace(cpu, backend=NAME, isa=(ISA,))
    return msgspec.structs.replace(parsed, targets=tuple({"cpu": cpu, NAME: other}[name] for name in backends))


def built(path, checkpoint, backends, quantize, **recipe):
    return build(recipe_of(checkpoint, backends, quantize, **recipe), output=path).path


def contents(path):
    """Tensors, and the program of each backend, of an artifact."""
    with open_artifact(path) as artifact:
        tensors = {tensor.name: np.array(artifact.tensor(tensor.name)) for tensor in artifact.header.tensors}
        programs = {program.backend: program for program in artifact.header.programs}
        libraries = {name: artifact.blob(program.library) for name, program in programs.items()}
    return tensors, programs, libraries


def greedy(model, ids):
    return [token.id for token in model.generate(ids, max_tokens=12, temperature=0, ignore_eos=True)]


@pytest.mark.slow
@pytest.mark.parametrize("case", sample(MODELS, "mistral-window", "qwen2-int4"))
def test_both_backends_of_an_artifact_agree(case, reference, tiny_checkpoint, tmp_path):
    model_type, config, quantize = MODELS[case]
    checkpoint = tiny_checkpoint(model_type, **config)
    path = built(tmp_path / "model.pyca", checkpoint, ["cpu", NAME], quantize)
    with load(path, threads=1) as cpu, load(path, isa=ISA) as other:
        assert (cpu.executor.isa, other.executor.isa) == (runnable_isas()[0], ISA)
        assert (cpu.program.backend, other.program.backend) == ("cpu", NAME)
        ids = random_ids(cpu, 23)
        wanted, got = cpu.logits(ids), other.logits(ids)
        assert wanted.std() > 1
        assert np.abs(wanted - got).max() < TOLERANCE
        assert greedy(cpu, ids) == greedy(other, ids)
        assert {name for name, _ in other.executor.ran} == {"forward", "logits"}


@pytest.mark.slow
def test_an_encoder_too(reference, tiny_checkpoint, tmp_path):
    checkpoint = tiny_checkpoint("bert", pooling="mean", normalize=True)
    shapes = {"tokens": [16, 64], "batch": [2]}
    path = built(tmp_path / "model.pyca", checkpoint, ["cpu", NAME], {"scheme": "int8"}, shapes=shapes)
    with load(path, threads=1) as cpu, load(path, isa=ISA) as other:
        texts = ["the cat sat on the mat", "a log"]
        assert np.abs(cpu.embed(texts) - other.embed(texts)).max() < 1e-5
        assert np.abs(cpu.embed(texts)[0] - cpu.embed(texts)[1]).max() > 1e-2


@pytest.mark.slow
def test_weights_that_are_stored_alike_are_there_once(reference, tiny_checkpoint, tmp_path):
    path = built(tmp_path / "model.pyca", tiny_checkpoint("qwen3"), ["cpu", NAME], {"scheme": "int8"})
    tensors, programs, _ = contents(path)
    reads = {
        name: {weight for function in program.functions for weight in function.weights}
        for name, program in programs.items()
    }
    assert set(tensors) == reads["cpu"] | reads[NAME]
    shared = reads["cpu"] & reads[NAME]
    assert "model.layers.0.self_attn.q_norm.weight" in shared
    assert all(tensors[name].ndim == 1 for name in shared)
    assert {f"{name}@{NAME}" for name in reads["cpu"] - shared} == reads[NAME] - shared
    assert tensors[GATE].dtype == np.uint8
    assert tensors[f"{GATE}@{NAME}"].dtype == np.float32


def test_a_plan_counts_the_weights_of_both(reference, tiny_checkpoint):
    recipe = recipe_of(tiny_checkpoint("llama"), ["cpu", NAME], {"scheme": "int8"})
    planned, alone = plan(recipe), plan(msgspec.structs.replace(recipe, targets=recipe.targets[:1]))
    assert [program.backend for program in planned.programs] == ["cpu", NAME]
    assert ["prompt" in dict(program.functions) for program in planned.programs] == [True, False]
    sizes = {tensor.name: tensor.stored_bytes for tensor in planned.tensors}
    matrices = [tensor for tensor in alone.tensors if len(tensor.shape) == 2]
    more = sum(4 * tensor.shape[0] * tensor.shape[1] for tensor in matrices)
    assert planned.weights_bytes == sum(sizes.values()) == alone.weights_bytes + more
    assert sizes[f"{GATE}@{NAME}"] == 4 * 160 * 48
    assert planned.passes == (*alone.passes, "lower_rows")


@pytest.mark.slow
def test_what_one_backend_stores_and_compiles_does_not_depend_on_the_other(reference, tiny_checkpoint, tmp_path):
    checkpoint = tiny_checkpoint("llama")
    found = {
        order: contents(built(tmp_path / f"{len(order)}{order[0]}.pyca", checkpoint, list(order), {"scheme": "int8"}))
        for order in [("cpu",), (NAME,), ("cpu", NAME), (NAME, "cpu")]
    }
    alone, other, both, reverse = found.values()
    assert alone[2]["cpu"] == both[2]["cpu"]
    assert all(np.array_equal(array, both[0][name]) for name, array in alone[0].items())
    assert all(np.array_equal(array, reverse[0][name]) for name, array in other[0].items())
    assert np.array_equal(reverse[0][f"{GATE}@cpu"], alone[0][GATE])
    assert np.array_equal(reverse[0][GATE], both[0][f"{GATE}@{NAME}"])
    paths = [tmp_path / "1cpu.pyca", tmp_path / "2cpu.pyca", tmp_path / f"2{NAME}.pyca"]
    isa = runnable_isas()[0]
    models = [load(path, threads=1, isa=isa) for path in paths]
    ids = random_ids(models[0], 9)
    first, *rest = [model.logits(ids) for model in models]
    assert all(np.array_equal(first, logits) for logits in rest)
    for model in models:
        model.close()


def test_an_artifact_without_a_program_for_cpus(reference, tiny_checkpoint, tmp_path, capsys, monkeypatch):
    path = built(tmp_path / "model.pyca", tiny_checkpoint("llama"), [NAME], {"scheme": "int8"})
    with load(path) as model:
        assert (model.executor.isa, model.program.backend) == (ISA, NAME)
        assert len(greedy(model, random_ids(model, 5))) == 12
    assert main(["inspect", str(path)]) == 0
    assert f"yes, as {ISA}" in capsys.readouterr().out
    monkeypatch.delitem(EXECUTORS, NAME)
    assert main(["inspect", str(path)]) == 0
    assert "no: the artifact has programs for reference" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(RunError, match=r"for reference, and this pyc runs those for cpu, .*; .*build the"):
        load(path)


@pytest.mark.slow
def test_a_program_is_found_again_in_the_cache(reference, tiny_checkpoint, tmp_path):
    recipe = recipe_of(tiny_checkpoint("llama"), ["cpu", NAME], {})
    first, second = (build(recipe, output=tmp_path / "model.pyca", force=True) for _ in range(2))
    assert (first.cache_hits, second.cache_misses) == (0, 0)
    assert first.sha256 == second.sha256


def test_backends_that_page_the_cache_differently_are_refused(reference, tiny_checkpoint, monkeypatch):
    monkeypatch.setitem(BACKENDS, NAME, lambda cache: ReferenceBackend(cache, 16))
    checkpoint = tiny_checkpoint("llama")
    with pytest.raises(LowerError, match="of different sizes, in tokens: cpu 64, reference 16; build an artifact for"):
        lower_recipe(recipe_of(checkpoint, ["cpu", NAME], {}))
    assert lower_recipe(recipe_of(checkpoint, [NAME], {})).common.info.kv_cache.block_tokens == 16


def test_an_unknown_backend_is_named(tiny_checkpoint):
    with pytest.raises(LowerError, match="no backend is called 'reference'; there is: cpu"):
        lower_recipe(recipe_of(tiny_checkpoint("llama"), [NAME], {}))
