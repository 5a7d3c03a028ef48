"""backends/cuda/emit/memory_plan.py: values that live at once share no byte; launches wait for what they touch."""

from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.cuda.emit.memory_plan import ALIGNMENT_BYTES, Order, Range, Workspace


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 8)), max_size=60))
def test_values_that_live_at_once_lie_apart(values):
    """Each value is given back after as many further ones as its second number says."""
    workspace, living = Workspace(), {}
    for index, (size, lives) in enumerate(values):
        for other, (offset, taken, until) in list(living.items()):
            if until < index:
                workspace.give_back(offset, taken)
                del living[other]
        offset = workspace.take(size)
        assert offset % ALIGNMENT_BYTES == 0
        assert offset + size <= workspace.size_bytes
        assert all(offset + size <= start or start + taken <= offset for start, taken, _ in living.values())
        living[index] = offset, size, index + lives


def test_memory_that_was_given_back_is_taken_again():
    workspace = Workspace()
    first, second = workspace.take(1000), workspace.take(1000)
    workspace.give_back(first, 1000)
    assert workspace.take(900) == first
    workspace.give_back(second, 1000)
    assert workspace.take(3000) == second
    assert workspace.size_bytes == 1024 + 3072


RANGES = st.builds(
    lambda memory, start, size: Range(memory, start, start + size),
    st.sampled_from(["workspace.", "cache.0"]),
    st.integers(0, 30),
    st.integers(1, 8),
)


@given(st.lists(st.tuples(st.lists(RANGES, max_size=3), st.lists(RANGES, min_size=1, max_size=2)), max_size=25))
def test_launches_wait_for_all_that_they_conflict_with_and_for_no_one_twice(launches):
    order, waits = Order(), []
    for reads, writes in launches:
        waits.append(order.add(reads, writes))
    before = []
    for number, after in enumerate(waits):
        reached = set(after)
        for other in after:
            reached |= before[other]
        before.append(reached)
        reads, writes = launches[number]
        for other in range(number):
            read, made = launches[other]
            conflicts = [(a, b) for a in [*reads, *writes] for b in made] + [(a, b) for a in writes for b in read]
            if any(a.overlaps(b) for a, b in conflicts):
                assert other in reached
        assert not any(other in before[third] for other in after for third in after)
