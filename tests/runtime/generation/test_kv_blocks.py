"""How many bytes a head's keys take in a block, and which blocks are free."""

import pytest

from pyc.runtime.artifact.format import KvCache
from pyc.runtime.executors.cpu.kv_cache import head_bytes
from pyc.runtime.generation.kv_blocks import BlockPool


@pytest.mark.parametrize(
    ("dtype", "head_dim", "size"),
    [
        ("f32", 128, 64 * 128 * 4),
        ("f16", 128, 64 * 128 * 2),
        ("f16", 20, 64 * 32 * 2),  # whole vectors of 16
        ("int8", 128, 64 * (128 + 4)),  # a scale a position
        ("int8", 5, 64 * (16 + 4)),
    ],
)
def test_head_bytes(dtype, head_dim, size):
    found = head_bytes(KvCache(layers=1, heads=1, head_dim=head_dim, dtype=dtype, block_tokens=64))
    assert found == size
    assert found % 64 == 0, "the values after it are not aligned"


def test_recount_frees_what_no_table_has() -> None:
    pool = BlockPool(5)
    lost, first, second = pool.take(), pool.take(), pool.take()
    pool.recount([first, second])
    assert pool.free_count == 3
    assert [pool.take() for _ in range(3)] == [lost, 3, 4]
    pool.give_back(first)
    pool.give_back(second)
    assert pool.free_count == 2
    with pytest.raises(AssertionError, match="is free already"):
        pool.give_back(second)
