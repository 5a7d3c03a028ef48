"""backends/torch_tensorrt/operators.py: each operator against its meaning in `compiler.interpret`, in float64 there.

Values are of magnitude 1 to 10, so f32 rounding (2^-24) of a few operations leaves 1e-5.
"""

import math

import numpy as np
import pytest
import torch

from pyc.backends.torch_tensorrt.operators import MEANINGS, Step, activated
from pyc.backends.torch_tensorrt.weights import DenseWeight
from pyc.compiler import interpret
from pyc.compiler.ir import Operation, TensorType, Value
from pyc.compiler.operators import ACTIVATIONS, OPERATORS

BOUND = 1e-5
TOKENS = 6


def operation(kind, **attributes):
    return Operation(kind, Value("r", TensorType("f32", ())), attributes=tuple(sorted(attributes.items())))


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def check(made, operands, weights=(), bound=BOUND):
    """Compare an operator's result for a batch of one text with the interpreter's."""
    wanted = interpret.LOGICAL_MEANINGS[made.kind](made, operands, list(weights))
    given = [torch.from_numpy(np.asarray(x)[None]) for x in operands]
    given = [x.float() if x.is_floating_point() else x for x in given]
    held = [None if w is None else DenseWeight(torch.from_numpy(np.asarray(w)).float()) for w in weights]
    step = Step(torch.ones(1, TOKENS, dtype=torch.int64), TOKENS)
    found = MEANINGS[made.kind](made, given, held, step)[0].numpy()
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() < bound
    return found


def test_every_logical_operator_has_a_meaning():
    assert MEANINGS.keys() == OPERATORS.keys()


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations(function):
    x = drawn(TOKENS, 16) * 3
    check(operation("activation", function=function), [x])
    check(operation("gated", function=function), [x, drawn(TOKENS, 16, seed=1)])


def test_an_activation_that_does_not_exist():
    with pytest.raises(AssertionError, match="swish"):
        activated("swish", torch.zeros(1))


def test_rows():
    x, y = drawn(TOKENS, 12), drawn(TOKENS, 12, seed=1)
    check(operation("add"), [x, y])
    check(operation("add_row", index=2), [x], [drawn(3, 12)])
    check(operation("concat"), [x, drawn(TOKENS, 5)])
    check(operation("slice", start=3, stop=7), [x])
    check(operation("embedding"), [np.array([4, 0, 4, 1, 2, 3])], [drawn(5, 8)])


@pytest.mark.parametrize("bias", [None, drawn(7)])
def test_linear(bias):
    check(operation("linear"), [drawn(TOKENS, 12)], [drawn(7, 12), bias])


def test_norms():
    x = drawn(TOKENS, 12) * 3 + 1
    check(operation("rms_norm", epsilon=0.1), [x], [drawn(12)])
    check(operation("rms_norm", epsilon=0.1), [x], [None])
    check(operation("layer_norm", epsilon=0.1), [x], [drawn(12), drawn(12, seed=1)])
    check(operation("head_norm", epsilon=0.1, head_dim=4), [x], [drawn(4)])


ANGLES = {"scale": 1.25, "base": 100.0, "factor": 3.0, "original_context": 8.0, "dynamic": 0}
FREQUENCIES = np.float32(100.0 ** (-np.arange(0, 8, 2) / 8))
POSITIONS = np.array([0, 1, 7, 8, 9, 30])


@pytest.mark.parametrize("dynamic", [0, 1])
def test_angles_grow_from_the_position_behind_the_context_on(dynamic):
    found = check(operation("rope_angles", **{**ANGLES, "dynamic": dynamic}), [POSITIONS], [FREQUENCIES])
    plain = check(operation("rope_angles", **ANGLES), [POSITIONS], [FREQUENCIES])
    assert np.array_equal(found[:3], plain[:3])
    assert dynamic == (np.abs(found[3:] - plain[3:]).max() > 0.1)


@pytest.mark.parametrize("head_dim", [8, 12])
def test_rope_leaves_the_features_behind_the_turned_ones(head_dim):
    x, angles = drawn(TOKENS, 3 * head_dim), drawn(TOKENS, 8)
    found = check(operation("rope", head_dim=head_dim), [x, angles])
    assert np.array_equal(found[:, 8:head_dim], np.float32(x[:, 8:head_dim]))


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_pool_leaves_padding_out_and_an_empty_text_is_zeros(mode, normalize, is_before):
    texts, x = (6, 2, 0), drawn(3, TOKENS, 8).astype(np.float32)
    mask = torch.tensor([[1] * count + [0] * (TOKENS - count) for count in texts])
    mask = mask.flip(1) if is_before else mask
    made = operation("pool", mode=mode, normalize=normalize)
    found = MEANINGS["pool"](made, [torch.from_numpy(x)], [], Step(mask, TOKENS)).numpy()
    starts = np.arange(3) * TOKENS + (TOKENS - np.array(texts) if is_before else 0)
    wanted = interpret.LOGICAL_MEANINGS["pool"](made, [x.reshape(-1, 8).astype(float), starts, starts + texts], [])
    assert np.abs(found - wanted).max() < BOUND
    assert not found[2].any()


# --- attention

HEADS, KV_HEADS, DIM = 6, 2, 4
ATTENTION = {"layer": 0, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "scale": 0.6}


def attended(q, k, v, window):
    """Softmax attention [tokens, heads * d] of the last rows of q to keys [positions, kv_heads * d], head by head."""
    result = np.zeros(q.shape)
    for row, head in np.ndindex(len(q), HEADS):
        last = len(k) - len(q) + row
        seen = slice(max(0, last - window + 1) if window else 0, last + 1)
        mine, theirs = slice(head * DIM, (head + 1) * DIM), slice(head // 3 * DIM, (head // 3 + 1) * DIM)
        powers = np.exp(0.6 * k[seen, theirs] @ q[row, mine])
        result[row, mine] = powers / powers.sum() @ v[seen, theirs]
    return result


def by_head(x):
    return torch.from_numpy(x.reshape(len(x), KV_HEADS, DIM).transpose(1, 0, 2)[None]).float()


@pytest.mark.parametrize("window", [0, 1, 3, 20])
@pytest.mark.parametrize("cached", [0, 9])
def test_attention_over_the_cache_and_the_step(window, cached):
    q = drawn(TOKENS, HEADS * DIM)
    k, v = drawn(cached + TOKENS, KV_HEADS * DIM), drawn(cached + TOKENS, KV_HEADS * DIM, seed=1)
    past = [by_head(x[:cached]) for x in (k, v)]
    step = Step(torch.ones(1, cached + TOKENS, dtype=torch.int64), TOKENS, past)
    new = [torch.from_numpy(x[None]).float() for x in (q, k[cached:], v[cached:])]
    found = MEANINGS["attention"](operation("attention", window=window, **ATTENTION), new, [], step)
    assert np.abs(found[0].numpy() - attended(q, k, v, window)).max() < BOUND
    for present, whole in zip(step.present[0], (k, v), strict=True):
        assert torch.equal(present, by_head(whole))


def test_what_a_row_sees():
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    step = Step(mask, 2)
    shown = {window: step.seen(window)[:, 0].int().tolist() for window in (0, 2, None)}
    assert shown[0] == [[[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
    assert shown[2] == [[[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]] * 2
    assert shown[None] == [[[0, 1, 1, 1, 1]] * 2, [[1] * 5] * 2]


def test_a_row_of_padding_sees_itself_so_that_nothing_is_infinite():
    seen = Step(torch.zeros(1, 3, dtype=torch.int64), 3).seen(0)
    assert seen[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_span_attention_is_to_all_tokens_of_the_text():
    q, k, v = (drawn(TOKENS, 8, seed=seed) for seed in range(3))
    made = operation("span_attention", heads=2, head_dim=4, scale=1 / math.sqrt(4))
    starts, ends = np.zeros(TOKENS, np.int64), np.full(TOKENS, 4)
    wanted = interpret.LOGICAL_MEANINGS["span_attention"](made, [q, k, v, starts, ends], [])
    step = Step(torch.tensor([[1, 1, 1, 1, 0, 0]]), TOKENS)
    found = MEANINGS["span_attention"](made, [torch.from_numpy(x[None]).float() for x in (q, k, v)], [], step)
    assert np.abs(found[0, :4].numpy() - wanted[:4]).max() < BOUND
    assert torch.isfinite(found).all()
