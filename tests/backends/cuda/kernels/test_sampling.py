"""Tokens that kernels choose are those of `pyc.runtime.generation.sampling`, from the same uniform numbers."""

import numpy as np
import pytest
from cuda_emulation import preload, run_kernel

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.kernels.sampling import (
    AdvanceSpec,
    GreedySpec,
    SamplingSpec,
    lower_advance,
    lower_greedy,
    lower_sample,
)
from pyc.backends.cuda.toolchain.cubin import kernels_of
from pyc.backends.cuda.toolchain.nvrtc import compile_kernels
from pyc.runtime.executors.protocol import IN_PROMPT
from pyc.runtime.generation.sampling import Sampler, SamplingParams

VOCABULARY = 3001
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=40),
    SamplingParams(temperature=1.3, top_p=0.9),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(top_k=20, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=-0.2),
    SamplingParams(top_p=1e-6),
    SamplingParams(temperature=0.01, top_p=0.5),
    SamplingParams(temperature=5.0, top_p=0.999),
    SamplingParams(top_k=1),
]
GREEDY = lower_greedy(GreedySpec(3, 9000))
ADVANCE = lower_advance(AdvanceSpec(4, 2))
SAMPLE = lower_sample(SamplingSpec(len(PARAMS), VOCABULARY))


@pytest.fixture(scope="module", autouse=True)
def compiled():
    preload([GREEDY, SAMPLE, ADVANCE])


def settings_of(params):
    inverse = 0.0 if params.temperature == 0 else min(1 / params.temperature, 1e30)
    penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    return [inverse, params.top_k, params.top_p, params.min_p, *penalties, 0]


def uniform_of(params, seed):
    return 0.0 if params.temperature == 0 else np.random.Generator(np.random.PCG64(seed)).random()


def draw(logits, counts, seeds, order=0):
    """The tokens of a step of PARAMS, and the counts after it."""
    arrays = {
        "logits": logits,
        "settings": np.array([settings_of(params) for params in PARAMS], np.float32),
        "uniforms": np.array([uniform_of(params, seed) for params, seed in zip(PARAMS, seeds, strict=True)]),
        "sequences": np.arange(len(PARAMS), dtype=np.int32)[::-1].copy(),
        "counts": counts,
    }
    made = run_kernel(SAMPLE, arrays, {"tokens": ((len(PARAMS),), np.int32), "counts": None}, order)
    return made["tokens"], made["counts"]


def logits_of(kind, random):
    logits = random.standard_normal((len(PARAMS), VOCABULARY), np.float32) * 3
    if kind == "ties":
        logits = np.round(logits)
    if kind == "masked":
        logits[:, random.permutation(VOCABULARY)[: VOCABULARY // 2]] = -np.inf
    if kind == "equal":
        logits[:] = 1.5
    return logits


@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "equal"])
def test_tokens_are_those_of_the_host(kind):
    random = np.random.default_rng(3)
    logits = logits_of(kind, random)
    prompt = random.integers(0, VOCABULARY, 50)
    counts = np.zeros((len(PARAMS), VOCABULARY), np.int32)
    counts[:, prompt] = IN_PROMPT
    for step in range(2):  # the second with what the first has counted
        seeds = random.integers(0, 2**31, len(PARAMS))
        tokens, after = draw(logits, counts, seeds, order=step)
        for row, (params, seed) in enumerate(zip(PARAMS, seeds, strict=True)):
            chosen = Sampler(SamplingParams(**{**fields(params), "seed": int(seed)}), VOCABULARY, prompt.tolist())
            mine = counts[len(PARAMS) - 1 - row]
            for token in np.flatnonzero(mine & (IN_PROMPT - 1)) if chosen._counts else ():
                chosen._counts.add(token)
            assert tokens[row] == chosen.sample(logits[row]).id, (params, step)
        counted = np.zeros_like(counts)
        for row, params in enumerate(PARAMS):
            if settings_of(params)[4:7] != [1, 0, 0]:
                counted[len(PARAMS) - 1 - row, tokens[row]] = 1
        np.testing.assert_array_equal(after, counts + counted)
        counts = after


def fields(params):
    return {name: getattr(params, name) for name in type(params).__slots__}


def test_rows_without_a_sequence_and_without_finite_logits_have_no_token():
    logits = np.zeros((len(PARAMS), VOCABULARY), np.float32)
    logits[0, 7], logits[1, 9], logits[2, :] = np.nan, np.inf, -np.inf
    counts = np.zeros((len(PARAMS), VOCABULARY), np.int32)
    tokens, _ = draw(logits, counts, range(len(PARAMS)))
    assert tokens[:3].tolist() == [-1, -1, -1]
    assert (tokens[3:] >= 0).all()


@pytest.mark.parametrize("order", range(2))
def test_the_first_of_the_largest_is_the_likeliest(order):
    logits = np.random.default_rng(0).standard_normal((3, 9000), np.float32)
    logits[0, [8000, 4000, 3999, 8999]] = 9
    logits[2, 5] = np.nan
    tokens = run_kernel(GREEDY, {"logits": logits}, {"tokens": ((3,), np.int32)}, order)["tokens"]
    assert tokens.tolist() == [3999, int(logits[1].argmax()), -1]


def test_tokens_become_the_next_step():
    def array(*values):
        return np.array(values, np.int32)

    state = {"ids": array(9, 9, 9, 9), "positions": array(0, 41, -1, 7), "step": array(0), "history": array(*[-9] * 8)}
    for tokens in (array(5, 6, 7, -1), array(1, 2, 3, 4), array(8, 8, 8, 8)):  # the last has no room in history
        state = run_kernel(ADVANCE, {**state, "tokens": tokens}, dict.fromkeys(state))
    assert state["ids"].tolist() == [8, 8, 0, 0]
    assert state["positions"].tolist() == [3, 44, -1, -1]
    assert state["history"].tolist() == [5, 6, -1, -1, 1, 2, -1, -1]
    assert state["step"].tolist() == [3]


def test_nvrtc_compiles_them_without_spills():
    lowered = lower_greedy(GreedySpec(1, 128256)), lower_sample(SamplingSpec(1, 128256)), ADVANCE
    sources = {step.kernel.symbol: step.kernel.source for one in lowered for step in one.steps}
    usage = kernels_of(compile_kernels(list(sources.values()), find_arch("sm_90a")))
    assert usage.keys() == sources.keys()
    assert not {name: kernel for name, kernel in usage.items() if kernel.local_bytes}
