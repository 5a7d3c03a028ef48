"""An executor that chooses tokens itself: they are those of the host's sampler, whatever runs beside or interrupts."""

import itertools
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest
from interruptions import InterruptedAt
from numpy.typing import NDArray

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer

KV_BLOCKS, CONTEXT = 24, 128
PROMPTS = [[5, 6, 7], [8], [*range(10, 50)], [60, 61]]
SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.3, "seed": 1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 2},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"seed": 4, "temperature": 1.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.3},
]
Make = Callable[..., Model]


@pytest.fixture
def make(fake: ModuleType, tokenizers: dict[str, Tokenizer]) -> Make:
    """A model of three sequences, whose executor chooses tokens if asked to."""

    def build(*, samples: bool = True, logits: tuple[int, ...] = (1, 4)) -> Model:
        tokenizer = tokenizers["byte_level_bpe"]
        info = fake.decoder_info(vocab_size=tokenizer.vocab_size, context=CONTEXT)
        executor = fake.FakeDecoder(info, kv_blocks=KV_BLOCKS, prompt=(4, 16), logits=logits)
        executor.sampler = fake.FakeSampler(executor) if samples else None
        return Model(info, Generation(), executor, tokenizer, kv_blocks=KV_BLOCKS)

    return build


def ids(model: Model, prompt: list[int], **settings: object) -> list[int]:
    return [token.id for token in model.generate(prompt, **{"max_tokens": 20, **settings})]


@pytest.mark.parametrize("settings", SETTINGS)
def test_tokens_are_those_of_the_host(make: Make, settings: dict[str, float]) -> None:
    model = make()
    found = ids(model, PROMPTS[0], **settings)
    assert found == ids(make(samples=False), PROMPTS[0], **settings)
    assert model.executor.sampler.chosen == found


def test_requests_of_different_settings_run_together(make: Make) -> None:
    """Those that report log-probabilities get their logits from the same runs."""
    model, host = make(), make(samples=False)
    asked = [*SETTINGS, {"logprobs": 2, "seed": 5, "temperature": 1.0}, {"logprobs": 0, "temperature": 0.0}]
    streams = [model.generate(PROMPTS[n % 4], max_tokens=20, **settings) for n, settings in enumerate(asked)]
    model.scheduler.submit([stream._request for stream in streams])
    found = [list(stream) for stream in streams]
    expected = [list(host.generate(PROMPTS[n % 4], max_tokens=20, **settings)) for n, settings in enumerate(asked)]
    for tokens, wanted in zip(found, expected, strict=True):
        assert [(token.id, token.text) for token in tokens] == [(token.id, token.text) for token in wanted]
    for token, wanted in zip(found[-2] + found[-1], expected[-2] + expected[-1], strict=True):
        assert abs(token.logprob - wanted.logprob) < 1e-4
        assert [other.id for other in token.top_logprobs] == [other.id for other in wanted.top_logprobs]
    assert len(model.executor.sampler.chosen) == 20 * len(SETTINGS)


def test_where_the_executor_does_not_choose_logits_are_read(make: Make) -> None:
    model = make(logits=(3,))  # steps have one row or four, prompts one
    assert ids(model, PROMPTS[2], temperature=0.0) == ids(make(samples=False), PROMPTS[2], temperature=0.0)
    assert model.executor.sampler.chosen == []


def test_a_broken_request_ends_alone(make: Make) -> None:
    model = make()
    run, broken_rows = model.executor.run, []
    streams = [model.generate(prompt, max_tokens=20, temperature=0.0) for prompt in PROMPTS[:3]]
    for stream in streams:
        next(stream)

    def broken(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        result = run(name, bucket, inputs)
        if name == "logits" and bucket == 4 and not broken_rows:
            broken_rows.append(1)
            result = result.copy()
            result[1] = np.nan
        return result

    model.executor.run = broken  # type: ignore[method-assign]
    assert [token.id for token in streams[0]] == ids(make(), PROMPTS[0], temperature=0.0)[1:]
    with pytest.raises(RunError, match="sampling: the largest logit is nan"):
        list(streams[1])
    assert [token.id for token in streams[2]] == ids(make(), PROMPTS[2], temperature=0.0)[1:]


STEP = ("_advance", "_step", "_prefill", "_decode", "next_tokens", "row_sampling", "choose", "run", "row")


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_a_step_does_not_change_what_follows(make: Make) -> None:
    """Every second moment: the step is repeated with the same random number, and what the device counted is forgotten.
    Where the token was being chosen the request ends and says so."""
    settings = SETTINGS[-1]
    expected = ids(make(), PROMPTS[0], **{**settings, "max_tokens": 6})
    tracer, ended = sys.gettrace(), 0
    for moment in itertools.count(1, 2):
        model = make()
        stream = model.generate(PROMPTS[0], max_tokens=6, **settings)
        next(stream)
        other = model.generate(PROMPTS[1], max_tokens=6, **settings)
        next(other)
        stream.take_ready(), other.take_ready()
        request = stream._request
        interrupted = InterruptedAt(moment, STEP, "")
        sys.settrace(interrupted)
        try:
            next(other)  # runs a step of both
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        with suppress(RunError):
            list(stream)
        if request.error is None:
            assert request.output == expected, moment
        else:
            assert "an interruption struck while this request's token was chosen" in str(request.error)
            ended += 1
        if interrupted.countdown > 0:
            break
    assert moment > 300
    assert ended
