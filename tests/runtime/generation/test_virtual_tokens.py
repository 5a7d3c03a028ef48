"""Sessions behind virtual tokens, over the fake decoder: what they compute is that of the tokens written out."""

from types import ModuleType

import numpy as np
import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.generation.session import Session

TOLERANCE = 1e-5
VIRTUAL = tuple(range(3, 23))  # more than a block of 16


def make(fake: ModuleType, *, kv_blocks: int = 12, context: int | None = None) -> tuple[object, Session]:
    info = fake.decoder_info()
    executor = fake.FakeDecoder(info, kv_blocks=kv_blocks, prompt=(4, 16), virtual=VIRTUAL)
    return info, Session(executor, info, kv_blocks=kv_blocks, context=context, virtual_tokens=len(VIRTUAL))


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, count).tolist()


def expected(fake: ModuleType, info: object, ids: list[int]) -> np.ndarray:
    return fake.reference_logits(info, [*VIRTUAL, *ids])[len(VIRTUAL) :]


@pytest.mark.parametrize("count", [1, 5, 12, 13, 44])
def test_a_prompt_comes_behind_them(fake: ModuleType, count: int) -> None:
    info, session = make(fake)
    logits = session.logits(session.prefill(tokens(count), keep="all"))
    np.testing.assert_allclose(logits, expected(fake, info, tokens(count)), atol=TOLERANCE)
    assert session.length() == count
    assert session.tokens() == tuple(tokens(count))


def test_steps_of_several_sequences(fake: ModuleType) -> None:
    info, session = make(fake)
    texts = [tokens(9, seed) for seed in range(3)]
    slots = [session.acquire() for _ in texts]
    for step in range(9):
        logits = session.decode([text[step] for text in texts], slots)
        for text, row in zip(texts, logits, strict=True):
            np.testing.assert_allclose(row, expected(fake, info, text[: step + 1])[-1], atol=TOLERANCE)


@pytest.mark.parametrize("back", [1, 7, 13])
def test_rewinding_keeps_them(fake: ModuleType, back: int) -> None:
    """Back to the beginning, too, where all blocks of the sequence are free and may be another's meanwhile."""
    info, session = make(fake)
    first, other = session.acquire(), session.acquire()
    session.prefill(tokens(13), first)
    session.rewind(back, first)
    session.prefill(tokens(20, 5), other)
    session.prefill(tokens(6, 8), first)
    kept = [*tokens(13)[: 13 - back], *tokens(6, 8)]
    hidden = session.prefill([7], first)
    np.testing.assert_allclose(
        session.logits(hidden)[0], expected(fake, info, [*kept, 7])[-1], atol=TOLERANCE
    )


def test_a_slot_that_is_used_again(fake: ModuleType) -> None:
    info, session = make(fake, kv_blocks=4)  # one sequence's
    for seed in range(4):
        slot = session.acquire(tokens(30, seed))
        logits = session.logits(session.prefill(tokens(30, seed), slot))
        session.release(slot)
        np.testing.assert_allclose(logits[0], expected(fake, info, tokens(30, seed))[-1], atol=TOLERANCE)


def test_a_prefix_that_a_slot_has_cached(fake: ModuleType) -> None:
    info, session = make(fake)
    slot = session.acquire()
    session.prefill(tokens(11), slot)
    session.release(slot)
    assert session.acquire(tokens(8)) == slot
    assert session.length(slot) == 8
    logits = session.logits(session.prefill([4], slot))
    np.testing.assert_allclose(logits[0], expected(fake, info, [*tokens(8), 4])[-1], atol=TOLERANCE)


def test_the_context_is_what_is_left(fake: ModuleType) -> None:
    info, session = make(fake)
    assert session.context == info.context - len(VIRTUAL) == 44
    with pytest.raises(RunError, match="0 tokens and 45 more exceed this model's context of 44"):
        session.prefill(tokens(45))
    assert make(fake, context=10)[1].context == 10
    session.prefill(tokens(44))
    with pytest.raises(RunError, match="44 tokens and 1 more exceed this model's context of 44"):
        session.step([1])
