"""Which cache block holds which tokens of which sequence.

The key/value cache is an array of blocks, each with room for `block_tokens` positions of one sequence.
`BlockPool` counts the owners of every block, so that sequences may later share the blocks of a common
prefix; `BlockTable` is one sequence's list of blocks, mirrored in its row of the array that kernels read:
position p lies in block `row[p // block_tokens]` at slot `p % block_tokens`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import IntArray
from pyc.runtime.host.rounding import ceil_div


class BlockPool:
    """The blocks of one cache. A block is free, or owned by one or more tables."""

    def __init__(self, block_count: int) -> None:
        self._owners = [0] * block_count
        self._free = list(range(block_count - 1, -1, -1))

    @property
    def block_count(self) -> int:
        """Blocks in all."""
        return len(self._owners)

    @property
    def free_count(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    def take(self) -> int:
        """A free block, now with one owner. Raises RunError when there is none."""
        if not self._free:
            raise RunError(
                f"key/value cache: all {len(self._owners)} blocks are in use; end another generation first, "
                "or load the model with a larger context"
            )
        block = self._free.pop()
        self._owners[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds an owner to a block that is in use."""
        assert self._owners[block] > 0, f"block {block} is free"
        self._owners[block] += 1

    def give_back(self, block: int) -> None:
        """Takes one owner away; the block is free when none is left."""
        assert self._owners[block] > 0, f"block {block} is free already"
        self._owners[block] -= 1
        if self._owners[block] == 0:
            self._free.append(block)

    def recount(self, owned: Iterable[int]) -> None:
        """Starts again from a list of blocks in use, one item for each owner; every other block is free."""
        owners = [0] * self.block_count
        for block in owned:
            owners[block] += 1
        self._free = [block for block in reversed(range(self.block_count)) if not owners[block]]
        self._owners = owners


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that `tokens` positions take."""
    return ceil_div(tokens, block_tokens)


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence in order of position; `row` i32[blocks] is what the kernels see."""

    pool: BlockPool
    row: IntArray
    block_tokens: int
    blocks: list[int] = field(default_factory=list)

    def holds(self, tokens: int) -> bool:
        """Whether positions `[0, tokens)` have room."""
        return tokens <= len(self.blocks) * self.block_tokens

    def reserve(self, tokens: int) -> None:
        """Makes room for positions `[0, tokens)`. Raises RunError, with nothing taken, when blocks are
        short."""
        missing = blocks_for(tokens, self.block_tokens) - len(self.blocks)
        if missing > self.pool.free_count:
            raise RunError(
                f"key/value cache: {missing} more blocks of {self.block_tokens} tokens are needed for "
                f"{tokens} tokens, {self.pool.free_count} of {self.pool.block_count} are free; "
                "end another generation first, or load the model with a larger context"
            )
        for _ in range(missing):
            block = self.pool.take()
            self.row[len(self.blocks)] = block
            self.blocks.append(block)

    def truncate(self, tokens: int) -> None:
        """Gives back the blocks that hold no position below `tokens`."""
        keep = blocks_for(tokens, self.block_tokens)
        while len(self.blocks) > keep:
            self.pool.give_back(self.blocks.pop())
            self.row[len(self.blocks)] = 0
