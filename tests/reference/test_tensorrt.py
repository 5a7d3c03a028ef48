"""What the executor for TensorRT computes, with the double that computes by ONNX Runtime, against transformers and the
CPU's program. The bounds are those of ONNX Runtime's own tests.
"""

import gc
from pathlib import Path

import numpy as np
import pytest
from adapter_cases import with_adapter
from built_models import difference, random_ids, single_steps, target_of
from decoder_cases import VARIANTS, check_greedy
from encoder_cases import CUT, TEXTS, TINY, minilm, sentences, wanted
from long_runs import sample
from scheme_mixes import mixes_of, quantize_of
from tensorrt_double import gpu

from pyc.compiler.schemes import SCHEMES, Dense, Int8Group, LookupGroup
from pyc.passes.driver.build import build
from pyc.runtime.errors import RunError
from pyc.runtime.model import load

__all__ = ["gpu", "minilm", "wanted"]

pytestmark = pytest.mark.usefixtures("gpu")

DEMO = Path(__file__).parents[2] / "models" / "demo" / "checkpoint"
KL_BOUND = 1e-10
MARGIN = 1e-4
TENSORRT = {"backend": "tensorrt"}
EXPRESSIBLE = mixes_of(
    name
    for name, scheme in SCHEMES.items()
    if not isinstance(scheme, Dense | Int8Group | LookupGroup) and name not in ("fp8-e5m2", "fp8-b128")
)
WIDE = {
    "tokenizer": False,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize("variant", sample(VARIANTS))
def test_logits_and_greedy_tokens_are_those_of_transformers(variant, tiny_checkpoint, built, reference):
    import torch

    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, tokenizer=False, **{"max_position_embeddings": 128, **config})
    model, expected = built(path, targets=[TENSORRT]), reference(path)
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = expected(torch.tensor([ids])).logits[0].numpy()
    got = model.logits(ids)
    found = difference(wanted, got)
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found
    assert np.abs(single_steps(model, ids) - got).max() < MARGIN, "a prefill is not the sum of its steps"
    check_greedy(model, expected, ids[:16], MARGIN)


@pytest.mark.parametrize("mix", EXPRESSIBLE)
def test_both_programs_compute_what_the_codes_stand_for(mix, tiny_checkpoint, built):
    path = tiny_checkpoint("llama", **WIDE)
    quantize = {**quantize_of(EXPRESSIBLE[mix]), "activations": "f32", "kv_cache": "f32"}
    both = {"quantize": quantize, "targets": [*target_of(), TENSORRT]}
    cpu, other = built(path, **both), built(path, isa="tensorrt", **both)
    assert (cpu.program.backend, other.program.backend) == ("cpu", "tensorrt")
    ids = random_ids(cpu, 40)
    found = difference(cpu.logits(ids), other.logits(ids))
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found


@pytest.mark.parametrize(
    ("model_type", "config", "scheme"),
    [
        ("llama", {}, "none"),
        ("qwen3", {"tie_word_embeddings": True, **WIDE}, "int4-g32"),
        ("mistral", {"sliding_window": 8}, "none"),
    ],
    ids=["llama", "qwen3-tied-int4", "mistral-window"],
)
def test_greedy_tokens_are_the_cpus(model_type, config, scheme, tiny_checkpoint, built):
    path = tiny_checkpoint(model_type, **{"tokenizer": False, "max_position_embeddings": 64, **config})
    quantize = {"scheme": scheme, "activations": "f32", "kv_cache": "f32"}
    both = {"quantize": quantize, "targets": [*target_of(), TENSORRT]}
    cpu, other = built(path, **both), built(path, isa="tensorrt", **both)
    settings = {"max_tokens": 32, "temperature": 0, "ignore_eos": True}
    for seed in range(3):
        ids = random_ids(cpu, 17, seed) if seed else random_ids(cpu, 1)
        tokens = [[token.id for token in model.generate(ids, **settings)] for model in (cpu, other)]
        assert tokens[0] == tokens[1]


def test_several_requests_have_the_tokens_of_each_alone(tiny_checkpoint, built):
    model = built(tiny_checkpoint("qwen3", tokenizer=False), targets=[TENSORRT])
    prompts = [random_ids(model, length) for length in (3, 9, 1, 17, 5)]
    settings = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [[token.id for token in model.generate(ids, **settings)] for ids in prompts]
    together = model.generate(prompts, **settings)
    assert [[token.id for token in stream] for stream in together] == alone


@pytest.mark.parametrize("kind", ["prompt_tuning", "prefix_tuning"])
def test_virtual_tokens_are_pefts(kind, tiny_checkpoint, tiny_adapter, built, reference):
    import torch

    path = tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=128)
    adapter = tiny_adapter(path, kind, num_virtual_tokens=6, task_type="CAUSAL_LM")
    model = built(path, adapters=[{"path": str(adapter)}], targets=[TENSORRT], shapes={"batch": [2]})
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = with_adapter(reference(path), adapter)(torch.tensor([ids])).logits[0].numpy()[-40:]
    assert difference(wanted, model.logits(ids)).mean_kl <= KL_BOUND
    prompts, settings = [ids[:9], ids[:3]], {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [[token.id for token in model.generate(prompt, **settings)] for prompt in prompts]
    assert [[token.id for token in stream] for stream in model.generate(prompts, **settings)] == alone


@pytest.mark.parametrize("case", TINY)
def test_an_encoder_embeds_as_the_cpu_does(case, tiny_checkpoint, built):
    config, pooling, normalize = TINY[case]
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    shapes = {"tokens": [64], "batch": [8]}
    got, expected = (built(path, shapes=shapes, targets=t).embed(TEXTS) for t in ([TENSORRT], target_of()))
    assert np.abs(got - expected).max() < 4e-5


@pytest.mark.parametrize(("scheme", "least"), sample([("int8", 0.999), ("none", 1 - 1e-6)]))
def test_minilm(scheme, least, built, minilm, wanted):
    shapes = {"tokens": [256], "batch": [16], "context": CUT}
    quantize = {"scheme": scheme}
    got = built(minilm, shapes=shapes, quantize=quantize, targets=[TENSORRT]).embed(sentences()).astype(np.float64)
    assert (got * wanted).sum(1).mean() >= least


@pytest.mark.parametrize("window", [None, 6])
def test_the_cache_grows_while_sequences_do(window, tiny_checkpoint, tmp_path, gpu, monkeypatch, built):
    """From 8 positions to 64: tokens are those of a cache that never moves, and steps are captured anew each time."""
    path = tiny_checkpoint("mistral", tokenizer=False, max_position_embeddings=64, sliding_window=window)
    recipe = {"shapes": {"tokens": [1, 4], "logits": [1, 4], "batch": [2]}, "targets": [TENSORRT]}
    roomy = built(path, **recipe)
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("pyc.backends.tensorrt.profiles.SMALLEST_CAPACITY", 8)
    narrow = load(build({"model": str(path), **recipe}, output=tmp_path / "narrow.pyca").path)
    prompts = [random_ids(roomy, length) for length in (3, 5)]
    settings = {"max_tokens": 50, "temperature": 0, "ignore_eos": True}
    before = gpu.count("cudaStreamBeginCapture")
    found = []
    for model in (narrow, roomy):
        found.append([[token.id for token in stream] for stream in model.generate(prompts, **settings)])
    assert found[0] == found[1]
    captured = gpu.count("cudaStreamBeginCapture") - before
    assert 5 <= captured <= 10, "two sequences through 8, 16, 32 and 64 positions, and through one"
    assert gpu.count("cudaGraphLaunch") > 60
    narrow.close()


def test_a_model_that_is_closed_gives_its_memory_back(tiny_checkpoint, built, gpu):
    model = built(tiny_checkpoint("llama", tokenizer=False), targets=[TENSORRT])
    assert len(list(model.generate([5, 6, 7], max_tokens=4, ignore_eos=True))) == 4
    assert gpu.memory and gpu.graphs
    model.close()
    gc.collect()
    assert (gpu.memory, gpu.streams, gpu.graphs) == ({}, {}, {})


def test_one_artifact_of_the_demo_model_has_three_programs_that_generate_the_same(artifacts):
    """With f32 activations all three round alike, and the first choice of a token is the same."""
    quantize = {"scheme": "int8", "activations": "f32", "kv_cache": "f32"}
    targets = [*target_of(), {"backend": "onnx"}, TENSORRT]
    path = artifacts(DEMO, quantize=quantize, targets=targets, shapes={"tokens": [1, 16], "logits": [1]}).path
    settings = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    texts = []
    for backend in ("cpu", "onnx", "tensorrt"):
        with load(path, backend=backend, threads=1) as model:
            texts.append(model.generate("def main(", **settings).text())
    assert texts[0] == texts[1] == texts[2] != ""


def test_a_child_process_is_told_to_load_the_model_itself(tiny_checkpoint, built, monkeypatch):
    model = built(tiny_checkpoint("llama", tokenizer=False), targets=[TENSORRT])
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(RunError, match="loaded by another process, whose child this is; load it here"):
        model.logits([5, 6, 7])
