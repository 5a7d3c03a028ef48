"""runtime/generation/slots.py: who gets which sequence, and whose blocks make room."""

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.generation.slots import SlotOwner, Slots

BLOCK = 4


def slots_of(*lengths: int, kv_blocks: int = 12, context: int = 40) -> Slots:
    """Slots that nobody uses, with tokens 0, 1, 2, ... in each."""
    slots = Slots(len(lengths), context, kv_blocks=kv_blocks, block_tokens=BLOCK)
    for number, length in enumerate(lengths):
        slots.reserve(number, length)
        slots.all[number].tokens = list(range(length))
    return slots


def test_the_longest_prefix_is_chosen_and_the_rest_of_it_forgotten() -> None:
    slots = slots_of(3, 9, 5)
    slots.all[2].tokens = [0, 1, 7, 8, 9]
    assert slots.take([0, 1, 2, 3, 4, 5, 9], None) == 1
    assert slots.all[1].tokens == [0, 1, 2, 3, 4, 5]
    assert len(slots.all[1].table.blocks) == 2
    assert slots.take([0, 1, 2, 3], None) == 0


def test_without_a_prefix_the_emptiest_slot_comes_first() -> None:
    slots = slots_of(3, 0, 5)
    assert [slots.take([], None) for _ in range(4)] == [1, 0, 2, None]


def test_a_slot_is_in_use_as_long_as_its_owner_lives() -> None:
    slots, owner = slots_of(0), SlotOwner()
    assert slots.take([], owner) == 0
    assert slots.take([], SlotOwner()) is None
    assert slots.take([], owner) == 0, "it lost the number"
    del owner
    assert slots.take([], None) == 0
    assert slots.take([], None) is None


def test_cached_tokens_of_idle_slots_make_room() -> None:
    slots = slots_of(16, 16, 16)
    busy = [slots.take(list(range(16)), None) for _ in range(2)]
    assert busy == [0, 1]
    slots.reserve(0, 24)
    assert (slots.all[2].tokens, slots.lost_blocks) == ([], 0)
    slots.reserve(0, 32)
    with pytest.raises(RunError, match=r"1 more blocks of 4 tokens are needed for 36 tokens, 0 of 12 are free"):
        slots.reserve(0, 36)
    assert len(slots.all[0].table.blocks) == 8


def test_blocks_that_were_lost_on_their_way_are_found() -> None:
    slots = slots_of(16, 4)
    slots.all[0].table.blocks.pop()
    assert slots.lost_blocks == 1
    slots.take([], None)
    assert slots.lost_blocks == 0
