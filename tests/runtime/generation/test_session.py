"""Sessions over the fake decoder: chunking, cache blocks, several sequences, rewinding, refusals."""

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.errors import RunError
from pyc.runtime.generation.buckets import CALL_ROWS, plan_chunks
from pyc.runtime.generation.kv_blocks import BlockPool, BlockTable
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.slots import SlotOwner
from pyc.runtime.host.aligned import aligned_zeros, is_aligned

# The fake adds at most 64 float32 products in an order that does not depend on the chunking.
TOLERANCE = 1e-5


def make(
    fake: ModuleType,
    *,
    kv_blocks: int = 12,
    context: int | None = None,
    forward: tuple[int, ...] = (1, 4, 16),
    prompt: tuple[int, ...] = (),
):
    info = fake.decoder_info()
    executor = fake.FakeDecoder(info, kv_blocks=kv_blocks, forward=forward, prompt=prompt)
    return info, executor, Session(executor, info, kv_blocks=kv_blocks, context=context)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, count).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 40, 64])
@pytest.mark.parametrize("forward", [(1,), (1, 4, 16), (4, 16), (16,), (3, 7)])
def test_prefill_gives_every_row_whatever_the_buckets(fake: ModuleType, count: int, forward: tuple[int, ...]) -> None:
    info, _, session = make(fake, forward=forward)
    hidden = session.prefill(tokens(count), keep="all")
    logits = session.logits(hidden)
    assert logits.shape == (count, info.vocab_size)
    np.testing.assert_allclose(logits, fake.reference_logits(info, tokens(count)), atol=TOLERANCE)


def test_prefill_keeps_the_last_row_by_default(fake: ModuleType) -> None:
    info, _, session = make(fake)
    hidden = session.prefill(tokens(21))
    assert hidden.shape == (1, info.hidden_size)
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, tokens(21)), atol=TOLERANCE)


@pytest.mark.parametrize("count", [1, 4, 5, 16, 21, 64])
def test_prefill_computes_one_row_where_it_can(fake: ModuleType, count: int) -> None:
    info, executor, session = make(fake, prompt=(4, 16))
    hidden = session.prefill(tokens(count))
    np.testing.assert_allclose(hidden, [fake.context_hidden(info, tokens(count))], atol=TOLERANCE)
    assert executor.calls == [("prompt" if bucket > 1 else "forward", bucket) for _, bucket in executor.calls]


def test_prefill_of_all_rows_uses_forward(fake: ModuleType) -> None:
    info, executor, session = make(fake, prompt=(4, 16))
    assert session.prefill(tokens(21), keep="all").shape == (21, info.hidden_size)
    assert {name for name, _ in executor.calls} == {"forward"}


def test_prefill_equals_single_steps(fake: ModuleType) -> None:
    _info, _, stepped = make(fake)
    rows = [stepped.step((token,))[0].copy() for token in tokens(20)]
    _, _, filled = make(fake)
    np.testing.assert_allclose(np.stack(rows), filled.prefill(tokens(20), keep="all"), atol=TOLERANCE)
    assert stepped.tokens() == filled.tokens() == tuple(tokens(20))


def test_several_sequences_in_one_step_do_not_see_each_other(fake: ModuleType) -> None:
    info, executor, session = make(fake)
    prompts = [tokens(5, 1), tokens(18, 2), tokens(9, 3)]
    slots = [session.acquire() for _ in prompts]
    for slot, prompt in zip(slots, prompts, strict=True):
        session.prefill(prompt, slot)
    executor.calls.clear()
    hidden = session.step([7, 8, 9], slots)
    assert executor.calls == [("forward", 4)]
    for row, prompt in enumerate(prompts):
        np.testing.assert_allclose(hidden[row], fake.context_hidden(info, [*prompt, 7 + row]), atol=TOLERANCE)


def test_rewind_forgets_the_last_tokens(fake: ModuleType) -> None:
    info, _, session = make(fake)
    session.prefill(tokens(40))
    session.rewind(25)
    assert session.tokens() == tuple(tokens(40)[:15])
    hidden = session.prefill([3, 4])
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, [*tokens(40)[:15], 3, 4]), atol=TOLERANCE)
    with pytest.raises(RunError, match="cannot take back 18"):
        session.rewind(18)


def test_rewind_gives_blocks_back(fake: ModuleType) -> None:
    _, _, session = make(fake, kv_blocks=4)
    for _ in range(20):
        session.prefill(tokens(64))
        session.rewind(64)
    assert session.length() == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "at least one token"),
        ([[1, 2]], "one dimension"),
        ([1, 50], "id 50 at position 1 is outside the vocabulary of 50"),
        ([-1], "id -1 at position 0"),
        ([1.5], r"token ids\[0\]: got 1.5, expected an integer"),
        ([2**70], "id an integer of more than 64 bits at position 0 is outside"),
        (["a"], r"token ids\[0\]: got 'a', expected an integer"),
        (tokens(65), "exceed this model's context of 64"),
    ],
)
def test_prefill_refuses_and_stays_as_it_was(fake: ModuleType, ids: list[int], message: str) -> None:
    info, executor, session = make(fake)
    with pytest.raises(RunError, match=message):
        session.prefill(ids)
    assert executor.calls == []
    assert session.length() == 0
    np.testing.assert_allclose(session.prefill([5])[0], fake.context_hidden(info, [5]), atol=TOLERANCE)


@pytest.mark.parametrize("ids", [[50], [-1], [1.5], ["a"], [True], [2**70], [[1]], []])
def test_step_refuses_ids_as_prefill_does(fake: ModuleType, ids: list[int]) -> None:
    _, executor, session = make(fake)
    with pytest.raises(RunError, match=r"token ids|step: got 0"):
        session.step(ids, (0,) * len(ids))
    assert executor.calls == []
    assert session.length() == 0


@pytest.mark.parametrize("ids", [(7,), [7], np.array([7], np.int32), (np.int64(7),)], ids=repr)
def test_step_takes_integers_of_any_kind(fake: ModuleType, ids: list[int]) -> None:
    info, _, session = make(fake)
    np.testing.assert_allclose(session.step(ids)[0], fake.context_hidden(info, [7]), atol=TOLERANCE)
    assert session.tokens() == (7,)
    assert type(session.tokens()[0]) is int


@pytest.mark.parametrize("count", [1, 2, 3])
def test_logits_of_a_step_are_those_of_a_copy(fake: ModuleType, count: int) -> None:
    _, _, session = make(fake)
    slots = [session.acquire() for _ in range(count)]
    hidden = session.step(tokens(count), slots)
    copied = hidden.copy()
    taken = session.logits(hidden).copy()
    assert taken.shape == (count, session.vocab_size)
    np.testing.assert_array_equal(taken, session.logits(copied))


def test_step_refuses_beyond_the_context_and_a_slot_twice(fake: ModuleType) -> None:
    _, _, session = make(fake, context=20)
    session.prefill(tokens(20))
    with pytest.raises(RunError, match="exceed this model's context of 20"):
        session.step([1])
    with pytest.raises(RunError, match="one token a slot"):
        session.step([1, 2], [0, 0])
    with pytest.raises(RunError, match="one token a slot"):
        session.step([1, 2], [0])


def test_step_refuses_more_sequences_than_rows(fake: ModuleType) -> None:
    _, _, session = make(fake, forward=(1,))
    with pytest.raises(RunError, match="exceed the largest bucket, 1 rows"):
        session.step([1, 2], [0, 1])


def test_a_failed_run_leaves_only_whole_chunks(fake: ModuleType) -> None:
    info, executor, session = make(fake)
    executor.fail_after = 1
    with pytest.raises(RunError, match="told to fail"):
        session.prefill(tokens(40))
    assert session.tokens() == tuple(tokens(40)[:16])
    executor.fail_after = None
    hidden = session.prefill(tokens(40)[16:])
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, tokens(40)), atol=TOLERANCE)


def test_acquire_prefers_the_longest_cached_prefix(fake: ModuleType) -> None:
    info, _executor, session = make(fake)
    first, second = session.acquire(), session.acquire()
    session.prefill(tokens(20, 1), first)
    session.prefill(tokens(30, 2), second)
    session.release(first)
    session.release(second)
    prompt = [*tokens(30, 2)[:25], 1, 2, 3]
    slot = session.acquire(prompt[:-1])
    assert slot == second
    assert session.tokens(slot) == tuple(prompt[:25])
    hidden = session.prefill(prompt[25:], slot)
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, prompt), atol=TOLERANCE)
    other = session.acquire()
    assert session.length(other) == 0
    assert session.tokens(first) == tuple(tokens(20, 1)), "an empty slot comes before one with a cached prefix"


def test_acquire_refuses_when_all_slots_are_busy(fake: ModuleType) -> None:
    _, _, session = make(fake)
    slots = [session.acquire() for _ in range(3)]
    with pytest.raises(RunError, match="all 3 sequences"):
        session.acquire()
    session.release(slots[1])
    assert session.acquire() == slots[1]


def test_an_owner_that_lost_the_number_of_its_slot_has_one_slot(fake: ModuleType) -> None:
    _, _, session = make(fake)
    owner = SlotOwner()
    session.acquire(owner=owner)
    slots = {session.acquire(owner=owner), session.acquire(), session.acquire()}
    assert slots == {0, 1, 2}


def test_idle_cached_tokens_make_room(fake: ModuleType) -> None:
    info, _, session = make(fake, kv_blocks=5)
    first = session.acquire()
    session.prefill(tokens(64), first)
    second = session.acquire()
    with pytest.raises(RunError, match="2 more blocks"):
        session.prefill(tokens(30), second)
    session.release(first)
    hidden = session.prefill(tokens(30), second)
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, tokens(30)), atol=TOLERANCE)
    assert session.length(first) == 0


@given(
    st.integers(1, 700),
    st.lists(st.integers(1, 128), min_size=1, max_size=4, unique=True).map(sorted).map(tuple),
)
def test_plans_cover_the_rows_and_only_the_last_call_is_padded(rows: int, buckets: tuple[int, ...]) -> None:
    plan = plan_chunks(rows, buckets)
    assert set(plan) <= set(buckets)
    assert sum(plan) >= rows
    assert sum(plan[:-1]) < rows
    # Never dearer than the largest bucket all the way.
    largest = buckets[-1]
    calls = -(-rows // largest)
    assert sum(bucket + CALL_ROWS for bucket in plan) <= calls * (largest + CALL_ROWS)


def test_plans_for_usual_buckets() -> None:
    buckets = (1, 16, 128, 512)
    assert plan_chunks(1, buckets) == (1,)
    assert plan_chunks(2, buckets) == (1, 1)
    assert plan_chunks(12, buckets) == (16,)
    assert plan_chunks(17, buckets) == (16, 1)
    assert plan_chunks(100, buckets) == (128,)
    assert plan_chunks(513, buckets) == (512, 1)


def test_a_prompt_runs_at_once_while_weights_arrive(fake: ModuleType) -> None:
    info, executor, session = make(fake, forward=(1, 16, 128))
    executor.is_arriving = True
    assert [session.plan(count) for count in (1, 9, 65, 128)] == [(1,), (16,), (128,), (128,)]
    assert session.plan(20) == plan_chunks(20, (1, 16, 128)), "not where most of it would be padding"
    assert session.plan(200) == plan_chunks(200, (1, 16, 128))
    slot = session.acquire()
    hidden = session.prefill(tokens(9), slot)
    np.testing.assert_allclose(hidden[0], fake.context_hidden(info, tokens(9)), atol=TOLERANCE)


def test_a_pool_has_each_block_once() -> None:
    pool = BlockPool(2)
    pool.give_back(pool.take())
    assert pool.free_count == 2
    assert {pool.take(), pool.take()} == {0, 1}
    with pytest.raises(RunError, match="all 2 blocks are in use"):
        pool.take()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30))
def test_tables_reserve_and_truncate(actions: list[tuple[bool, int]]) -> None:
    pool = BlockPool(5)
    table = BlockTable(pool, aligned_zeros((8,), np.int32), 16)
    other = BlockTable(pool, aligned_zeros((8,), np.int32), 16)
    other.reserve(20)
    for grow, count in actions:
        before = list(table.blocks)
        if not grow:
            table.truncate(count)
        elif -(-count // 16) <= 3:
            table.reserve(count)
            assert len(table.blocks) >= -(-count // 16)
        else:
            with pytest.raises(RunError, match="more blocks"):
                table.reserve(count)
            assert table.blocks == before
        assert len(set(table.blocks + other.blocks)) == len(table.blocks) + len(other.blocks)
        assert table.row[: len(table.blocks)].tolist() == table.blocks
        assert not table.row[len(table.blocks) :].any()
        assert pool.free_count == 5 - 2 - len(table.blocks)


@given(st.lists(st.integers(1, 9), max_size=3), st.sampled_from([np.int32, np.float32, np.float64]))
def test_aligned_arrays(shape: list[int], dtype: type[np.generic]) -> None:
    array = aligned_zeros(shape, dtype)
    assert array.shape == tuple(shape)
    assert array.dtype == dtype
    assert is_aligned(array)
    assert not array.any()


def test_an_offset_view_is_not_aligned() -> None:
    assert not is_aligned(aligned_zeros((8,), np.int32)[1:])
    assert not is_aligned(aligned_zeros((8, 32), np.int32)[:, :16])
