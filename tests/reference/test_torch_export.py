"""Programs of torch.export that pyc writes against transformers and PEFT in float32.

Both sides round every product and sum to f32 (2^-24), in another order. The bounds are those of the CPU's own tests
with an f32 cache (test_decoders.py, test_adapters.py, test_encoders.py): KL 1e-10 (the reference modules of VARIANTS
measure at most 3e-12), vectors 4e-6.
"""

import numpy as np
import pytest
from adapter_cases import ADAPTED, with_adapter
from built_models import difference
from decoder_cases import DYNAMIC, VARIANTS
from encoder_cases import CUT, TEXTS, TINY, minilm, sentences, wanted
from long_runs import sample
from torch_programs import exported, lowered

from pyc.backends.torch_tensorrt.export import export_program

__all__ = ["exported", "minilm", "wanted"]

pytestmark = pytest.mark.slow

KL_BOUND = 1e-10
IN_CHUNKS = [1, 16, 5, 1, 1, 16]
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
WHOLE = {"tokens": [1, 40], "batch": [1, 3]}


def some_ids(vocabulary, count=40):
    return np.random.default_rng(0).integers(3, vocabulary, count).tolist()


def logits_of(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("variant", sample(VARIANTS, *[*VARIANTS][::4]))
def test_logits_are_those_of_transformers(variant, tiny_checkpoint, exported, reference):
    """Of one pass over all tokens, of chunks behind a cache, and of three sequences at a time."""
    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, **{**CONTEXT, **config})
    program, expected = exported(path, shapes=WHOLE), reference(path)
    ids = some_ids(expected.config.vocab_size)
    wanted = logits_of(expected, ids)
    found = difference(wanted, program.logits(ids))
    assert found.spread > 1
    assert found.mean_kl <= KL_BOUND, found
    in_chunks = difference(wanted, program.logits(ids, IN_CHUNKS))
    assert in_chunks.mean_kl <= KL_BOUND, in_chunks

    others = [ids[::-1], ids[5:] + ids[:5]]
    rows, _ = program.step([ids, *others], [range(40)] * 3, [[1] * 40] * 3, program.cache(3))
    for row, given in zip(rows, [ids, *others], strict=True):
        assert difference(logits_of(expected, given), row).mean_kl <= KL_BOUND


@pytest.mark.parametrize("case", ["lora-all-linear-bf16-base", "lora-embedding-of-a-tied-model", "ia3-with-biases"])
def test_a_fused_adapter_is_pefts_forward(case, tiny_checkpoint, tiny_adapter, exported, reference):
    """Adapters are in the weights before a program is exported: three that change other weights (test_adapters)."""
    model_type, config, kind, options = ADAPTED[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **config)
    adapter = tiny_adapter(path, kind, **options)
    program = exported(path, shapes=WHOLE, adapters=[{"path": str(adapter)}])
    base = reference(path)
    ids = some_ids(base.config.vocab_size)
    unchanged, wanted = logits_of(base, ids), logits_of(with_adapter(reference(path), adapter), ids)
    assert difference(unchanged, wanted).mean_kl > 1e-2
    assert difference(wanted, program.logits(ids)).mean_kl <= KL_BOUND


def test_dynamic_ntk_beyond_its_context_equals_transformers_token_by_token(tiny_checkpoint, exported, reference):
    import torch
    import transformers

    path = tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=16, rope_parameters=DYNAMIC)
    program, expected = exported(path, shapes={"tokens": [1, 50], "batch": [1], "context": 60}), reference(path)
    ids = some_ids(expected.config.vocab_size, 50)
    cache, rows = transformers.DynamicCache(), []
    with torch.no_grad():
        for token in ids:
            rows.append(expected(torch.tensor([[token]]), past_key_values=cache).logits[0, 0].numpy())
    assert difference(np.stack(rows), program.logits(ids)).mean_kl <= KL_BOUND
    assert difference(np.stack(rows), program.logits(ids, [20, 1, 29])).mean_kl <= KL_BOUND
    # and the growth is no rounding: without it the late tokens come out otherwise
    plain = exported(tiny_checkpoint("llama", tokenizer=False, max_position_embeddings=60), shapes=WHOLE)
    assert difference(plain.logits(ids, [40, 10]), program.logits(ids)).mean_kl > 1e-3


def test_the_comparison_notices_a_wrong_window(tiny_checkpoint, exported, reference):
    program = exported(tiny_checkpoint("mistral", sliding_window=7, **CONTEXT), shapes=WHOLE)
    wrong = reference(tiny_checkpoint("mistral", sliding_window=8, **CONTEXT))
    ids = some_ids(wrong.config.vocab_size)
    assert difference(logits_of(wrong, ids), program.logits(ids)).mean_kl > 1e5 * KL_BOUND


def embedded(program, tokenizer, texts, cut=None):
    """States and vectors of texts, in one padded batch."""
    import torch

    given = tokenizer(texts, return_tensors="pt", padding=True, truncation=cut is not None, max_length=cut)
    with torch.no_grad():
        return given, *program(given["input_ids"], given["attention_mask"])


@pytest.mark.parametrize("case", TINY)
def test_a_small_encoder_is_that_of_transformers(case, tiny_checkpoint):
    """Padding beside a text does not show in its vector, nor in its states."""
    import torch
    import transformers

    config, pooling, normalize = TINY[case]
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize, **config)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    _, reference, interface = lowered(path, shapes={"tokens": [64], "batch": [8]})
    program = export_program(reference, interface).module()
    given, states, vectors = embedded(program, tokenizer, TEXTS)
    assert len(set(given["attention_mask"].sum(1).tolist())) > 2
    bound = 4e-6 if normalize else 4e-5
    for index, text in enumerate(TEXTS):
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        pooled = wanted[0] if pooling == "cls" else wanted.mean(0)
        if normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        assert (vectors[index] - pooled).abs().max() < bound
        assert (states[index, : len(wanted)] - wanted).abs().max() < 4e-5


def test_minilm(minilm, wanted):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    _, reference, interface = lowered(minilm, shapes={"tokens": [256], "batch": [1, 50], "context": CUT})
    program = export_program(reference, interface).module()
    texts = sentences()
    found = [embedded(program, tokenizer, texts[start : start + 50], CUT)[2] for start in range(0, len(texts), 50)]
    cosines = (np.concatenate([part.numpy() for part in found]).astype(np.float64) * wanted).sum(1)
    assert 1 - cosines.min() < 1e-6
