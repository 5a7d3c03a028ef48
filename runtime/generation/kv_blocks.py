"""Which cache block holds which tokens of which sequence.

The key/value cache is an array of blocks, each with room for `block_tokens` positions of one sequence.
`BlockPool` knows which blocks are free; `BlockTable` is one sequence's list of blocks, mirrored in its row of the array
that kernels read: position p lies in block `row[p // block_tokens]` at slot `p % block_tokens`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import IntArray
from pyc.runtime.host.rounding import ceil_div


class BlockPool:
    """The blocks of one cache. A block is free, or one table's."""

    def __init__(self, block_count: int) -> None:
        self.block_count = block_count
        self._used: set[int] = set()
        self._free = list(range(block_count - 1, -1, -1))

    @property
    def free_count(self) -> int:
        """Blocks that no table has."""
        return len(self._free)

    def take(self) -> int:
        """A block that was free. Raises RunError when there is none."""
        if not self._free:
            raise RunError(
                f"key/value cache: all {self.block_count} blocks are in use; end another generation first, "
                "or load the model with a larger context"
            )
        block = self._free.pop()
        self._used.add(block)
        return block

    def give_back(self, block: int) -> None:
        """Free a block."""
        assert block in self._used, f"block {block} is free already"
        self._used.remove(block)
        self._free.append(block)

    def recount(self, used: Iterable[int]) -> None:
        """Start again from the blocks that tables have; every other one is free."""
        self._used = set(used)
        self._free = [block for block in reversed(range(self.block_count)) if block not in self._used]


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
        """Make room for positions `[0, tokens)`. Raises RunError, with nothing taken, when blocks are
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
        """Give back the blocks that hold no position below `tokens`."""
        keep = blocks_for(tokens, self.block_tokens)
        while len(self.blocks) > keep:
            self.pool.give_back(self.blocks.pop())
            self.row[len(self.blocks)] = 0
