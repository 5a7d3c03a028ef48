"""What ONNX Runtime makes of an artifact against transformers, PEFT and the CPU's program.

The key-value cache is f32 there, and both sides round every product and sum to f32 (2^-24) in another order. The bounds
are those of the CPU's own tests with an f32 cache: KL 1e-10 (measured: at most 3e-12).
"""

import subprocess
import sys

import numpy as np
import pytest
from adapter_cases import ADAPTED, with_adapter
from built_models import difference, random_ids, single_steps, target_of
from decoder_cases import VARIANTS, check_greedy
from encoder_cases import CUT, TEXTS, TINY, minilm, sentences, wanted
from long_runs import sample
from scheme_mixes import mixes_of, quantize_of

__all__ = ["minilm", "wanted"]

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

KL_BOUND = 1e-10
MARGIN = 1e-4
ONNX = {"backend": "onnx"}
MIXES = mixes_of()
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
    model, expected = built(path, targets=[ONNX]), reference(path)
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = expected(torch.tensor([ids])).logits[0].numpy()
    got = model.logits(ids)
    found = difference(wanted, got)
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found
    assert np.abs(single_steps(model, ids) - got).max() < MARGIN, "a prefill is not the sum of its steps"
    check_greedy(model, expected, ids[:16], MARGIN)


@pytest.mark.parametrize("mix", sample(MIXES))
def test_both_programs_compute_what_the_codes_stand_for(mix, tiny_checkpoint, built):
    path = tiny_checkpoint("llama", **WIDE)
    quantize = {**quantize_of(MIXES[mix]), "activations": "f32", "kv_cache": "f32"}
    both = {"quantize": quantize, "targets": [*target_of(), ONNX]}
    cpu, other = built(path, **both), built(path, isa="onnxruntime", **both)
    assert (cpu.program.backend, other.program.backend) == ("cpu", "onnx")
    ids = random_ids(cpu, 40)
    found = difference(cpu.logits(ids), other.logits(ids))
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found


@pytest.mark.parametrize("case", ADAPTED)
def test_a_fused_adapter_is_pefts_forward(case, tiny_checkpoint, tiny_adapter, built, reference):
    import torch

    model_type, config, kind, options = ADAPTED[case]
    path = tiny_checkpoint(model_type, tokenizer=False, max_position_embeddings=128, **config)
    adapter = tiny_adapter(path, kind, **options)
    model = built(path, adapters=[{"path": str(adapter)}], targets=[ONNX])
    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = with_adapter(reference(path), adapter)(torch.tensor([ids])).logits[0].numpy()
    assert difference(wanted, model.logits(ids)).mean_kl <= 1e-9


def test_several_requests_have_the_tokens_of_each_alone(tiny_checkpoint, built):
    model = built(tiny_checkpoint("qwen3", tokenizer=False), targets=[ONNX])
    prompts = [random_ids(model, length) for length in (3, 9, 1, 17, 5)]
    settings = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [[token.id for token in model.generate(ids, **settings)] for ids in prompts]
    together = model.generate(prompts, **settings)
    assert [[token.id for token in stream] for stream in together] == alone


@pytest.mark.parametrize("case", TINY)
def test_an_encoder_embeds_as_the_cpu_does(case, tiny_checkpoint, built):
    config, pooling, normalize = TINY[case]
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    shapes = {"tokens": [64], "batch": [8]}
    got, expected = (built(path, shapes=shapes, targets=t).embed(TEXTS) for t in ([ONNX], target_of()))
    assert np.abs(got - expected).max() < 4e-5


def test_minilm_unquantized(built, minilm, wanted):
    shapes = {"tokens": [256], "batch": [16], "context": CUT}
    got = built(minilm, shapes=shapes, targets=[ONNX]).embed(sentences()).astype(np.float64)
    assert 1 - (got * wanted).sum(1).min() < 1e-6


def test_minilm_int8(built, minilm, wanted):
    shapes = {"tokens": [256], "batch": [16], "context": CUT}
    got = built(minilm, shapes=shapes, quantize={"scheme": "int8"}, targets=[ONNX]).embed(sentences())
    found = (got.astype(np.float64) * wanted).sum(1)
    assert found.mean() >= 0.999
    assert found.min() >= 0.997


FORK = """
import os, sys
from pyc.runtime.errors import RunError
from pyc.runtime.model import load
model = load(sys.argv[1], backend="onnx", threads=2)
ids = [5, 6, 7]
model.logits(ids)
child = os.fork()
if not child:
    try:
        model.logits(ids)
    except RunError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
model.logits(ids)
"""


def test_a_child_process_is_told_to_load_the_model_itself(tiny_checkpoint, artifacts):
    """ONNX Runtime's threads are the parent's: a child would wait for them for ever."""
    path = artifacts(tiny_checkpoint("llama", tokenizer=False), targets=[ONNX]).path
    command = [sys.executable, "-c", FORK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said, code = done.stdout.splitlines()
    assert code == "3"
    assert said == "onnxruntime: this model was loaded by another process, whose child this is; load it here"
