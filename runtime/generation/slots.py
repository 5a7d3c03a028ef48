"""The sequences of a session: who uses which, what each has cached, and in which blocks."""

import weakref
from collections.abc import Callable, Sequence

import numpy as np

from pyc.runtime.generation.kv_blocks import BlockPool, BlockTable, blocks_for
from pyc.runtime.host.aligned import aligned_zeros


class SlotOwner:
    """Lives as long as whoever uses a slot or runs, in a variable of it, or until it `has_left`.

    Who is done says so by an assignment in a `finally`. A signal handler may raise before the first line of a function,
    so a call would not always get there; and the exception, as long as somebody keeps it, keeps the variable.
    """

    __slots__ = ("__weakref__", "has_left")

    def __init__(self) -> None:
        self.has_left = False


_FOR_EVER = SlotOwner()
"""That of a slot that was taken without one."""


class Slot:
    """A sequence: its tokens, its cache blocks (a row of the block table), and who uses it, if anybody."""

    __slots__ = ("before", "holder", "table", "tokens")

    def __init__(self, table: BlockTable, before: int = 0) -> None:
        """`before` positions are those of virtual tokens, and none of `tokens`."""
        self.tokens: list[int] = []
        self.table = table
        self.before = before
        self.holder: Callable[[], SlotOwner | None] | None = None

    def is_busy(self) -> bool:
        """Whether somebody uses it."""
        holder = None if self.holder is None else self.holder()
        return holder is not None and not holder.has_left

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, and free the blocks that held no others."""
        del self.tokens[length:]
        self.table.truncate(self.before + length if length else 0)

    @property
    def position(self) -> int:
        """That of the next token."""
        return self.before + len(self.tokens)

    def holds(self, tokens: int) -> bool:
        """Whether so many tokens, and what is before them, have room."""
        return self.table.holds(self.before + tokens)


class Slots:
    """`count` sequences of up to `context` positions over a cache of `kv_blocks` blocks of `block_tokens`.

    The first `before` positions of each are those of virtual tokens.
    """

    def __init__(self, count: int, context: int, *, kv_blocks: int, block_tokens: int, before: int = 0) -> None:
        self.block_table = aligned_zeros((count, blocks_for(context, block_tokens)), np.int32)
        self._pool = BlockPool(kv_blocks)
        self.all = [Slot(BlockTable(self._pool, row, block_tokens), before) for row in self.block_table]

    @property
    def lost_blocks(self) -> int:
        """Blocks that are neither free nor in a table: they were on their way when Ctrl-C struck."""
        return self._pool.block_count - self._pool.free_count - sum(len(slot.table.blocks) for slot in self.all)

    def take(self, prefix: Sequence[int], owner: SlotOwner | None) -> int | None:
        """The number of a slot nobody uses, empty or holding a prefix of `prefix`, the longest that one has cached.

        None when every slot is in use. One that the owner has already, and lost the number of to an interruption, is
        free again.
        """
        if self.lost_blocks:
            self._pool.recount(block for slot in self.all for block in slot.table.blocks)
        if owner is not None:
            for slot in self.all:
                if slot.holder is not None and slot.holder() is owner:
                    slot.holder = None
        idle = [number for number, slot in enumerate(self.all) if not slot.is_busy()]
        if not idle:
            return None
        lengths = {number: len(self.all[number].tokens) for number in idle}
        shared = {number: _common_prefix(self.all[number].tokens, prefix) for number in idle}
        # Without a shared prefix an empty slot comes first, so that other cached prefixes live on.
        chosen = max(idle, key=lambda number: (shared[number], -lengths[number], -number))
        slot = self.all[chosen]
        slot.holder = weakref.ref(_FOR_EVER if owner is None else owner)
        slot.truncate(shared[chosen])
        return chosen

    def reserve(self, number: int, tokens: int) -> None:
        """Take the blocks of slot `number` up to `tokens` tokens in all; cached tokens of slots that nobody uses make
        room. Raises RunError, with no block taken, when there are too few."""
        table, positions = self.all[number].table, self.all[number].before + tokens
        if table.holds(positions):
            return
        for other, slot in enumerate(self.all):
            if blocks_for(positions, table.block_tokens) - len(table.blocks) <= self._pool.free_count:
                break
            if other != number and not slot.is_busy():
                slot.truncate(0)
        table.reserve(positions)


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    for index in range(length):
        if left[index] != right[index]:
            return index
    return length
