"""passes/mixed_precision/mix_schemes.py: what is measured of matrices and wholes, against transformers."""

import ml_dtypes
import numpy as np
import pytest
from long_runs import sample
from mixed_recipes import EMBEDDING, SIZES, ingested, mixture_of, windows
from safetensors.numpy import load_file, save_file

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import SCHEMES
from pyc.compiler.weights import Stored
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.calibration import calibrate as calibration
from pyc.passes.calibration import rounding
from pyc.passes.calibration.calibration_text import calibration_windows, held_back_windows
from pyc.passes.driver.build import build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.interpretation.interpret_text import stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.passes.mixed_precision import measured_windows
from pyc.passes.mixed_precision import mix_schemes as mixing
from pyc.passes.mixed_precision.measure_schemes import SchemeMeter
from pyc.passes.mixed_precision.mix_schemes import Ingested, problem
from pyc.runtime.errors import QuantizeError
from pyc.runtime.text.tokenizer import Tokenizer

DOWN, OUT = "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.weight"


def meter_of(document, files, given):
    """A meter of the checkpoint's matrices, no gain in them, and what it is to measure of groups under schemes."""
    quantize = {"scheme": "f32", "embeddings": "f32"}
    recipe = recipe_from({**document, "quantize": quantize})
    taken = Ingested(recipe, ingest_recipe(recipe, files, None, {}).module, ())
    module = run_passes(taken.module, (AssignSchemes(recipe.quantize),))

    def distances(groups, schemes):
        stored = {
            names: [{name: Stored(taken.module.weights[name], scheme) for name in names} for scheme in schemes]
            for names in groups
        }
        return meter.distances(stored)

    meter = SchemeMeter(module, module, given, files, Cache(None), 2, lambda runs: None)
    return meter, distances


@pytest.mark.parametrize("goal", [{"bits_per_weight": 6}, {"bits_per_weight": 6, "algorithm": "gptq"}])
def test_gains_are_rounded_with_their_matrices_whatever_a_checkpoint_is_stored_as(goal, tiny_copy, document):
    """The same numbers in bf16 and in f32: a build multiplies a norm's gain into a matrix before it rounds it."""
    path = tiny_copy("llama", dtype="bfloat16", **SIZES)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor *= 2.0 ** (np.arange(len(tensor)) % 4)
    save_file({name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}, path / "model.safetensors")
    short, _ = mixture_of(document(path, **goal))
    exact = {name: tensor.astype(ml_dtypes.bfloat16).astype(np.float32) for name, tensor in tensors.items()}
    save_file(exact, path / "model.safetensors")
    long, _ = mixture_of(document(path, **goal))
    assert short.measured == pytest.approx(long.measured, rel=1e-3)
    assert short.recipe.quantize.overrides == long.recipe.quantize.overrides


@pytest.mark.parametrize("name", [DOWN, OUT, EMBEDDING])
def test_a_distance_is_that_of_transformers(name, tiny_checkpoint, document):
    """KL of next tokens, in float32, with one matrix replaced by what its codes stand for."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, given = tiny_checkpoint("qwen3", tie_word_embeddings=True, **SIZES), windows()
    schemes = [SCHEMES[each] for each in ("int4-g32", "int8", "int4-g32-asym")]
    with SourceFiles() as files:
        _, distances = meter_of(document(path), files, given)
        measured = [distances([(name,)], [scheme])[name,][0] for scheme in schemes]
        predicted = distances([(name,)], schemes)[name,]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    matrix, ids = model.eval().get_parameter(name), torch.tensor(given.ids.astype(np.int64))
    exact = matrix.detach().numpy().copy()
    with torch.no_grad():
        wanted = torch.log_softmax(model(ids).logits.double(), -1)
        for position, scheme in enumerate(schemes):
            matrix.copy_(torch.tensor(dequantize_rows(quantize_rows(exact, scheme), scheme)))
            found = torch.log_softmax(model(ids).logits.double(), -1)
            kl = float((wanted.exp() * (wanted - found)).sum(-1).mean())
            assert measured[position] == pytest.approx(kl, rel=2e-3), scheme.name
            assert predicted[position] == pytest.approx(kl, rel=0.35), scheme.name
    assert predicted[0] == measured[0], "the first scheme is measured"


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_distances_of_groups_add_up(model_type, tiny_checkpoint, document):
    path = tiny_checkpoint(model_type, **SIZES)
    with SourceFiles() as files:
        found = problem(ingested(document(path, bits_per_weight=8), files))
        meter, distances = meter_of(document(path), files, windows(8, 32))
        groups = [group.names for group in found.groups]
        for name in ("int4-g64", "int8"):
            scheme = SCHEMES[name]
            alone = distances(groups, [scheme])
            together = distances([sum(groups, ())], [scheme])[sum(groups, ())][0]
            assert sum(distance for (distance,) in alone.values()) == pytest.approx(together, rel=0.25), name
            assert distances([groups[0]], [SCHEMES["f32"]]) == {groups[0]: [0]}
        assert meter.metric == ("KL" if model_type == "llama" else "1 - cosine")


def test_groups_are_the_stacks_of_a_build(tiny_checkpoint, document):
    """And a matrix that the recipe has a scheme for is on its own."""
    path = tiny_checkpoint("qwen2", **SIZES)
    with SourceFiles() as files:
        found = problem(ingested(document(path, bits_per_weight=6), files))
        assert [tuple(name.split(".")[-2] for name in group.names) for group in found.groups] == [
            ("embed_tokens",),
            *[("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)] * 2,
            ("lm_head",),
        ]
        fixed = {"match": "model.layers.0.self_attn.q_proj", "scheme": "int8"}
        found = problem(ingested(document(path, bits_per_weight=6, overrides=[fixed], embeddings="none"), files))
        kinds = {group.names[0].split(".")[-2]: group for group in found.groups[:3]}
        assert [(group.candidates, group.is_fixed) for name, group in kinds.items() if name != "k_proj"] == [
            (("none",), True),
            (("int8",), True),
        ]
        assert [name.split(".")[-2] for name in kinds["k_proj"].names] == ["k_proj", "v_proj"]


def test_what_is_calibrated_is_measured_as_it_is_built(tiny_checkpoint, document, tmp_path, monkeypatch):
    """The codes that measuring chose are those of the build, from its cache."""
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    nearest, _ = mixture_of(document(path, bits_per_weight=4.6), cache)
    given = document(path, bits_per_weight=4.6, algorithm="gptq")
    found, _ = mixture_of(given, cache)
    assert found.measured < nearest.measured
    assert found.uniform is None or found.measured <= found.uniform.measured
    chosen = []
    monkeypatch.setattr(rounding, "descend", lambda *arguments: chosen.append(arguments))
    with SourceFiles() as files:
        module = ingested(given, files).stored(found.recipe.quantize)
        windows = calibration_windows(found.recipe, module, files)
        calibration.calibrate(module, windows, files, cache, tmp_path, lambda weights: None)
    assert not chosen


@pytest.mark.parametrize("algorithm", sample(["imatrix", "awq", "smoothquant-gptq", "yaqa"], "awq", "yaqa"))
def test_a_mix_is_measured_by_the_algorithm_that_builds_it(algorithm, tiny_checkpoint, document, tmp_path):
    """Beside transformers, with the weights that a build of what was chosen has."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tiny_checkpoint("llama", **SIZES)
    given = document(path, bits_per_weight=4.6, algorithm=algorithm)
    (tmp_path / "text.txt").write_text(" ".join(f"the cat {number} sat on {number * 7}" for number in range(2000)))
    found, _ = mixture_of(given)
    assert found.uniform is None or found.measured <= found.uniform.measured
    with SourceFiles() as files:
        taken = ingested(given, files)
        module = taken.stored(found.recipe.quantize)
        text = calibration_windows(found.recipe, module, files)
        made = calibration.calibrate(module, text, files, Cache(None), tmp_path, lambda weights: None, algorithm, 0.5)
        behind = held_back_windows(found.recipe, module, files, measured_windows.TOKENS)
        model = Predictor(made, behind)

        def rows_of(name, start, stop):
            return stored_rows(name, made.weights[name], start, stop, files)

        got = model.predictions(model.inputs(), 0, rows_of, model.positions(1 << 30))
    exact = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        wanted = torch.log_softmax(exact(torch.tensor(behind.ids.astype(np.int64))).logits.double(), -1)
    rounded = torch.log_softmax(torch.from_numpy(got).double(), -1).reshape(wanted.shape)
    kl = float((wanted.exp() * (wanted - rounded)).sum(-1).mean())
    assert found.measured == pytest.approx(kl, rel=5e-3)


def test_a_calibrated_mix_that_is_worse_gives_way_to_a_uniform_scheme(tiny_checkpoint, document, monkeypatch):
    monkeypatch.setattr(mixing, "choose", lambda items, budget: mixing.smallest(items))
    found, _ = mixture_of(document(tiny_checkpoint("llama", **SIZES), bits_per_weight=9, algorithm="imatrix"))
    assert found.is_uniform
    assert found.measured == found.uniform.measured


def test_what_measures_does_not_calibrate(tiny_checkpoint, document, tmp_path):
    """Tokens behind the calibration's where the text goes on, else some of its own."""
    given = document(tiny_checkpoint("llama", **SIZES), bits_per_weight=6, algorithm="gptq")
    words = " ".join(f"cat {number}" for number in range(2000))
    (tmp_path / "text.txt").write_text(words)
    with SourceFiles() as files:
        taken = ingested(given, files)
        own = calibration_windows(taken.recipe, taken.module, files)
        behind = held_back_windows(taken.recipe, taken.module, files, 256)
        assert (own.ids.size, behind.ids.size) == (512, 256)
        tokenizer = Tokenizer(dict(taken.module.files)["tokenizer.json"], None)
        assert [*own.ids.reshape(-1), *behind.ids.reshape(-1)] == tokenizer.encode(words)[:768]
        assert measured_windows._apart(own, behind, 256) == (behind, own)
        measured, kept = measured_windows._apart(own, None, 256)
        assert np.array_equal(np.concatenate([kept.ids, measured.ids]), own.ids)
        assert measured.ids.size == 128
        assert kept.digest != own.digest
    (tmp_path / "text.txt").write_text(words[:400])
    with SourceFiles() as files:
        assert held_back_windows(taken.recipe, taken.module, files, 256) is None


def test_wholes_are_measured_behind_virtual_tokens(tiny_checkpoint, tiny_adapter, document):
    """In eight bits they are near the exact model, which has them too; without them in one of the two KL is 0.8."""
    path = tiny_checkpoint("llama", **{**SIZES, "num_hidden_layers": 1})
    adapter = tiny_adapter(path, "prefix_tuning", num_virtual_tokens=6, task_type="CAUSAL_LM")
    given = {**document(path, bits_per_weight=8, algorithm="gptq"), "adapters": [{"path": str(adapter)}]}
    with build_context(Cache(None), 1) as context:
        found = problem(ingested(given, context.files))
        mixer = mixing._Mixer(found, context, lambda *what: None)
        assert mixer._measured(found.uniform("int8", "int8")) < 0.01


@pytest.mark.parametrize("goal", [{"bits_per_weight": 14}, {"max_kl": 1.0, "embeddings": "int8"}])
def test_smoothquant_scales_nothing_where_no_norm_is_read_by_quantized_matrices_alone(goal, tiny_checkpoint, document):
    """Of mixes that are compared some are such; what is chosen may be, and is built."""
    given = document(tiny_checkpoint("llama", **SIZES), algorithm="smoothquant", **goal)
    found, _ = mixture_of(given)
    assert found.measured <= goal.get("max_kl", found.measured)
    with SourceFiles() as files:
        module = ingested(given, files).stored(found.recipe.quantize)
    assert all(name in module.weights for name in (DOWN, OUT))


@pytest.mark.parametrize("quantize", [{}, {"algorithm": "gptq"}, {"algorithm": "imatrix"}])
def test_a_matrix_that_no_scale_holds_is_named(quantize, tiny_copy, document):
    """Its groups need scales beyond f16, which is found while schemes are measured."""
    from safetensors.torch import load_file, save_file

    path = tiny_copy("llama", **SIZES)
    tensors = load_file(path / "model.safetensors")
    tensors[OUT] *= 1e7
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(QuantizeError, match=rf"quantize: {OUT}: a group needs a scale of .*, beyond f16"):
        mixture_of(document(path, bits_per_weight=6, **quantize))
