"""The choice of tokens against naive references and against transformers' logits processors."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.generation.candidates import draw, largest
from pyc.runtime.generation.sampling import (
    Sampler,
    SamplingParams,
    apply_penalties,
    token_logprobs,
    weigh_candidates,
)

FloatArray = NDArray[np.float32]


def logits_of(size: int, seed: int, scale: float = 3.0) -> FloatArray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def candidates(scores: FloatArray, params: SamplingParams) -> tuple[NDArray[np.int64], FloatArray]:
    """Ids that survive, ascending, and their weights."""
    kept, weights = weigh_candidates(scores, params)
    ids = np.arange(scores.size) if kept is None else kept
    if params.top_p == 1 and params.min_p == 0:
        return ids, weights  # a weight may have become 0 by rounding
    return ids[weights > 0], weights[weights > 0]


def naive_candidates(scores: FloatArray, params: SamplingParams) -> dict[int, float]:
    """Ids that survive and their normalised probabilities, by the definition, in float64 and sorted lists."""
    z = scores.astype(np.float64) / params.temperature
    kept = sorted(range(z.size), key=lambda i: (-scores[i], i))
    if params.top_k:
        kept = [i for i in kept if scores[i] >= scores[kept[min(params.top_k, z.size) - 1]]]
    weights = {i: math.exp(z[i] - z.max()) for i in kept}
    if params.top_p < 1:
        total, before, nucleus = sum(weights.values()), 0.0, []
        for i in kept:
            if before >= params.top_p * total and nucleus:
                break
            nucleus.append(i)
            before += weights[i]
        kept = nucleus
    kept = [i for i in kept if weights[i] >= params.min_p * max(weights.values())]
    total = sum(weights[i] for i in kept)
    return {i: weights[i] / total for i in kept}


@pytest.mark.slow
@given(
    size=st.sampled_from([1, 2, 7, 100, 2500]),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    scale=st.sampled_from([0.1, 3.0]),
)
def test_candidates_equal_the_definition(
    size: int, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, scale: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = logits_of(size, seed, scale)
    ids, weights = candidates(scores, params)
    expected = naive_candidates(scores, params)
    assert (np.diff(ids) > 0).all()
    total = float(weights.sum(dtype=np.float64))
    got = {int(i): float(w) / total for i, w in zip(ids, weights, strict=True)}
    # A token whose mass lies within float32 rounding of a threshold may fall on either side of it.
    for token in got.keys() ^ expected.keys():
        assert max(got.get(token, 0.0), expected.get(token, 0.0)) < 1e-3
    assert abs(len(got) - len(expected)) <= max(1, 1e-3 * len(expected))
    for token in got.keys() & expected.keys():
        assert got[token] == pytest.approx(expected[token], rel=2e-3)


@pytest.mark.parametrize("top_p", [0.999, 0.9, 0.5, 0.1])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 5.0])
def test_the_nucleus_of_a_large_vocabulary(top_p: float, scale: float) -> None:
    scores = logits_of(151_936, 11, scale)
    kept, weights = candidates(scores, SamplingParams(top_p=top_p))
    everything = np.exp(scores - scores.max())
    order = np.argsort(-everything, kind="stable")
    total = float(everything.sum(dtype=np.float64))
    mass = np.cumsum(everything[order], dtype=np.float64)
    expected = int(np.count_nonzero(mass - everything[order] < top_p * total))
    assert abs(kept.size - expected) <= 1  # sums of 512 are float32
    np.testing.assert_array_equal(np.sort(order[: kept.size]), kept)
    np.testing.assert_array_equal(weights, everything[kept])


def layouts(kind: str, size: int) -> FloatArray:
    """Logits that mislead a sample: it sees every 37th of 151,936."""
    values = logits_of(size, 3)
    match kind:
        case "rising":
            return np.sort(values)
        case "falling":
            return -np.sort(values)
        case "hidden peaks":
            values[1::37] += 4
            values[::37] -= 8
            return values
        case "two values":
            return (values > 0).astype(np.float32)
        case "one in a thousand":
            return np.where(np.arange(size) % 1000 == 999, np.float32(0), np.float32(-12))
        case "mostly impossible":
            return np.where(values > 2, values, np.float32(-np.inf))
    raise AssertionError(kind)


@pytest.mark.parametrize("top_p", [0.999, 0.9, 0.5])
@pytest.mark.parametrize(
    "kind", ["rising", "falling", "hidden peaks", "two values", "one in a thousand", "mostly impossible"]
)
def test_the_nucleus_of_what_misleads_the_sample(kind: str, top_p: float) -> None:
    scores = layouts(kind, 151_936)
    kept, weights = candidates(scores, SamplingParams(top_p=top_p))
    everything = np.exp(scores - scores.max())
    order = np.argsort(-everything, kind="stable")
    mass = np.cumsum(everything[order], dtype=np.float64)
    count = int(np.count_nonzero(mass - everything[order] < top_p * mass[-1]))
    # Sums of 512 are float32: a border that lies within 2e-6 of the whole may move.
    slack = 2e-6 * mass[-1] / everything[order[count - 1]] + 1
    assert abs(kept.size - count) <= slack
    np.testing.assert_array_equal(np.sort(order[: kept.size]), kept)
    np.testing.assert_array_equal(weights, everything[kept])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 10, 1.0, 0.0), (0.6, 20, 0.95, 0.0), (1.5, 0, 0.8, 0.0), (0.8, 0, 1.0, 0.1), (0.7, 50, 0.9, 0.02)],
)
def test_candidates_equal_transformers(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LogitsProcessorList
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    scores = logits_of(1000, seed)
    warped = warpers(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(scores)[None])
    expected = torch.softmax(warped, dim=-1)[0].numpy()
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    kept, weights = candidates(scores, params)
    got = np.zeros(1000)
    got[kept] = weights / weights.sum()
    np.testing.assert_array_equal(got > 0, expected > 0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_repetition_penalty_equals_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    scores = logits_of(200, seed)
    seen = np.random.default_rng(seed).integers(0, 200, 30)
    expected = RepetitionPenaltyLogitsProcessor(1.3)(
        torch.from_numpy(seen)[None], torch.from_numpy(scores.copy())[None]
    )
    none = np.zeros(0, dtype=np.int64)
    got = apply_penalties(scores, np.unique(seen), none, none.astype(np.int32), 1.3, 0.0, 0.0)
    np.testing.assert_allclose(got, expected[0].numpy(), rtol=1e-6)


@given(
    st.lists(st.integers(0, 19), max_size=8),
    st.floats(0.5, 2.0),
    st.floats(-2.0, 2.0),
    st.floats(-2.0, 2.0),
    st.integers(0, 100),
)
def test_greedy_with_penalties_equals_the_definition(
    prompt: list[int], repetition: float, frequency: float, presence: float, seed: int
) -> None:
    params = SamplingParams(
        temperature=0.0, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence
    )
    sampler = Sampler(params, 20, prompt)
    output: list[int] = []
    for step in range(12):
        logits = logits_of(20, seed * 100 + step, 1.0)
        scores = logits.astype(np.float64)
        for token in set(prompt) | set(output):
            scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
        for token in set(output):
            scores[token] -= frequency * output.count(token) + presence
        ordered = np.sort(scores)
        choice = sampler.sample(logits)
        if ordered[-1] - ordered[-2] > 1e-5:  # else float32 and float64 may disagree
            assert choice.id == int(scores.argmax())
        output.append(choice.id)


@pytest.mark.slow
def test_draws_follow_the_distribution() -> None:
    scores = np.log(np.array([0.5, 0.25, 0.15, 0.1], dtype=np.float32))
    sampler = Sampler(SamplingParams(seed=5), 4)
    counts = np.bincount([sampler.sample(scores).id for _ in range(20_000)], minlength=4) / 20_000
    # Four standard deviations of a share near one half over 20,000 draws.
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.15, 0.1], atol=4 * math.sqrt(0.25 / 20_000))


@given(st.integers(1, 5000), st.floats(0, 1, exclude_max=True), st.integers(0, 100), st.booleans())
def test_draw_is_the_inverse_of_the_running_sum(size: int, uniform: float, seed: int, sparse: bool) -> None:
    weights = np.random.default_rng(seed).random(size).astype(np.float32)
    if sparse:
        weights[np.random.default_rng(seed + 1).random(size) < 0.9] = 0
        weights[size // 2] = 1
    position = draw(weights, uniform)
    exact = np.cumsum(weights, dtype=np.float64)
    target = uniform * exact[-1]
    assert weights[position] > 0
    assert exact[position] >= target * (1 - 1e-5)
    assert exact[position] - weights[position] <= target * (1 + 1e-5) + 1e-9


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=300), st.integers(1, 300), st.integers(1, 20))
def test_largest_keeps_ties(values: list[int], count: int, repeats: int) -> None:
    array = np.array(values * repeats, dtype=np.float32)
    threshold = sorted(array.tolist(), reverse=True)[min(count, array.size) - 1]
    assert largest(array, count).tolist() == [i for i, value in enumerate(array) if value >= threshold]


def test_seeds_repeat_and_differ() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, top_p=0.95), 500)
        return [sampler.sample(logits_of(500, step)).id for step in range(20)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(None) != run(None)


def test_the_seed_gives_these_tokens_forever() -> None:
    sampler = Sampler(SamplingParams(seed=1234, temperature=0.8, top_k=50), 100)
    expected = np.random.Generator(np.random.PCG64(1234))
    for step in range(10):
        logits = logits_of(100, step)
        probabilities = naive_candidates(logits, SamplingParams(temperature=0.8, top_k=50))
        uniform, mass = expected.random(), 0.0
        for token in sorted(probabilities):
            mass += probabilities[token]
            if mass > uniform:
                break
        assert sampler.sample(logits).id == token


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 5e-324])
def test_the_smallest_temperatures_are_greedy_without_a_warning(temperature: float) -> None:
    logits = np.array([-3e4, 1.0, 9.0, 8.999, -7.5, 0.0], dtype=np.float32)
    for top_p, min_p in ((1.0, 0.0), (0.5, 0.1)):
        params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p, seed=1)
        sampler = Sampler(params, logits.size)
        assert [sampler.sample(logits).id for _ in range(20)] == [2] * 20


def test_greedy_takes_the_lowest_of_equals_and_leaves_logits_alone() -> None:
    logits = np.array([1, 3, 3, 2], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0.0, presence_penalty=5.0), 4, [1])
    assert [sampler.sample(logits).id for _ in range(4)] == [1, 2, 3, 0]
    assert logits.tolist() == [1, 3, 3, 2]


def test_logprobs_are_of_the_model_not_of_the_sampler() -> None:
    torch = pytest.importorskip("torch")
    logits = logits_of(300, 3)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1)
    params = SamplingParams(temperature=0.1, top_k=3, repetition_penalty=2.0, seed=0, logprobs=5)
    choice = Sampler(params, 300, [1, 2, 3]).sample(logits)
    assert choice.logprob == pytest.approx(float(expected[choice.id]), abs=1e-5)
    top = torch.topk(expected, 5)
    assert [alternative.id for alternative in choice.alternatives] == top.indices.tolist()
    np.testing.assert_allclose([a.logprob for a in choice.alternatives], top.values.numpy(), atol=1e-5)


def test_logprobs_of_ties_are_in_order_of_id() -> None:
    _, alternatives = token_logprobs(np.zeros(10, dtype=np.float32), 3, 4)
    assert [alternative.id for alternative in alternatives] == [0, 1, 2, 3]
    assert alternatives[0].logprob == pytest.approx(-math.log(10))


def test_no_logprobs_unless_asked() -> None:
    choice = Sampler(SamplingParams(seed=0), 10).sample(logits_of(10, 0))
    assert (choice.logprob, choice.alternatives) == (None, ())
    own = Sampler(SamplingParams(seed=0, logprobs=0), 10).sample(logits_of(10, 0))
    assert own.logprob is not None
    assert own.alternatives == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error(bad: float) -> None:
    logits = logits_of(10, 0)
    logits[4] = bad
    with pytest.raises(RunError, match="largest logit"):
        Sampler(SamplingParams(), 10).sample(logits)


def test_minus_infinity_is_never_chosen() -> None:
    logits = np.full(2000, -np.inf, dtype=np.float32)
    logits[[3, 1700]] = 0.0
    sampler = Sampler(SamplingParams(seed=0, top_p=0.9), 2000)
    assert {sampler.sample(logits).id for _ in range(100)} == {3, 1700}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "1"),
        ("top_k", -1), ("top_k", 1.5), ("top_k", True), ("top_p", 0.0), ("top_p", 1.1), ("top_p", -0.1),
        ("min_p", -0.1), ("min_p", 1.5), ("repetition_penalty", 0.0), ("repetition_penalty", -1.0),
        ("frequency_penalty", math.nan), ("presence_penalty", math.inf), ("seed", -1), ("seed", 1 << 64),
        ("seed", 1.0), ("logprobs", -1), ("logprobs", 10**6), ("logprobs", True),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RunError, match=rf"^{name}: got"):
        SamplingParams(**{name: value})
