"""backends/torch_tensorrt/module.py: batches, caches and padding; schemes against float64 over what codes stand for."""

import numpy as np
import pytest
import torch
from torch_programs import Decoder, lowered

from pyc.compiler import interpret
from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import QuantizedRows, dequantize_rows
from pyc.compiler.schemes import SCHEMES, Dense

QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)]
NEAR = 1e-4
"""Of logits of a spread of 1.5 whose products are summed in another order; measured: 2e-5."""


@pytest.fixture
def decoder(tiny_checkpoint):
    path = tiny_checkpoint("mistral", tokenizer=False, sliding_window=7)
    _, module, interface = lowered(path)
    return Decoder(module, interface)


def some_ids(count, seed=0):
    return np.random.default_rng(seed).integers(3, 263, count).tolist()


def value_of(expression, files):
    stored = evaluate_stored(expression, 0, expression.shape[0], files)
    return dequantize_rows(stored, stored_scheme(expression)) if isinstance(stored, QuantizedRows) else stored


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_logits_are_those_of_what_the_codes_stand_for(scheme, tiny_checkpoint):
    path = tiny_checkpoint("llama", tokenizer=False, hidden_size=128, intermediate_size=256)
    module, reference, interface = lowered(path, quantize={"scheme": scheme, "embeddings": scheme})
    with SourceFiles() as files:
        weights = {name: value_of(weight, files) for name, weight in module.weights.items()}
    ids = some_ids(30)
    rows = {"token_ids": np.array(ids), "positions": np.arange(30), "sequences": np.zeros(30, np.int64)}
    graph = interpret.Interpreter(module.graph, weights)
    hidden = graph.run("forward", {**rows, "block_table": np.array([[0, 1]])})
    wanted = graph.run("logits", {"hidden": hidden})
    assert wanted.std() > 1
    assert np.abs(Decoder(reference, interface).logits(ids) - wanted).max() < NEAR


def test_padding_before_a_text_does_not_show(decoder):
    """Neither in a step, nor in the cache behind it."""
    texts = [some_ids(9), some_ids(4, 1), some_ids(1, 2)]
    longest = 9
    ids = [[0] * (longest - len(text)) + text for text in texts]
    positions = [[0] * (longest - len(text)) + [*range(len(text))] for text in texts]
    mask = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
    rows, cache = decoder.step(ids, positions, mask, decoder.cache(3))
    assert np.isfinite(rows).all()
    more, _ = decoder.step([[7]] * 3, [[len(text)] for text in texts], [[*row, 1] for row in mask], cache)
    for index, text in enumerate(texts):
        alone = decoder.logits([*text, 7])
        assert np.abs(rows[index, longest - len(text) :] - alone[:-1]).max() < NEAR
        assert np.abs(more[index, 0] - alone[-1]).max() < NEAR


def test_a_cache_may_begin_with_a_position_that_is_masked(decoder):
    """As TensorRT's does, which has no empty tensors."""
    ids = some_ids(12)
    rows, cache = decoder.step([ids[:11]], [range(11)], [[0] + [1] * 11], decoder.cache(1, 1))
    last, _ = decoder.step([ids[11:]], [[11]], [[0] + [1] * 12], cache)
    assert np.abs(np.concatenate([rows[0], last[0]]) - decoder.logits(ids)).max() < NEAR


def test_steps_of_any_number_of_tokens_are_the_whole(decoder):
    ids = some_ids(20)
    whole = decoder.logits(ids)
    for steps in ([1] * 20, [13, 7], [1, 10, 1, 8]):
        assert np.abs(decoder.logits(ids, steps) - whole).max() < NEAR


def test_state_is_called_as_the_checkpoints_tensors_are(tiny_checkpoint):
    _, module, _ = lowered(tiny_checkpoint("qwen2", tokenizer=False, tie_word_embeddings=True))
    names = list(module.state_dict())
    assert sum("embed_tokens" in name for name in names) == 1, "a tied matrix is held once"
    assert any("layers_1_self_attn_q_proj_k_proj_v_proj_weight" in name for name in names)


def test_an_encoder_with_a_text_of_padding_alone(tiny_checkpoint):
    _, module, _ = lowered(tiny_checkpoint("bert", pooling="mean", normalize=True), shapes={"tokens": [64]})
    ids = torch.tensor([some_ids(5), [0] * 5])
    with torch.no_grad():
        states, vectors = module(ids, torch.tensor([[1] * 5, [0] * 5]))
        alone = module(ids[:1], torch.ones(1, 5, dtype=torch.int64))[1]
    assert torch.isfinite(states).all()
    assert not vectors[1].any()
    assert (vectors[0] - alone[0]).abs().max() < 1e-6
