"""Which compiled buckets a prompt is fed through.

A call at bucket T computes T rows, padding included, and reads every weight once. Reading the weights costs
about as much as `CALL_ROWS` rows, so the plan minimises sum(T + CALL_ROWS) over its calls.
"""

from functools import lru_cache

CALL_ROWS = 8


def smallest_bucket(rows: int, buckets: tuple[int, ...]) -> int:
    """The smallest of the ascending `buckets` that holds `rows`; `rows` must not exceed the largest."""
    for bucket in buckets:
        if bucket >= rows:
            return bucket
    raise AssertionError(f"{rows} rows do not fit into buckets {buckets}")


@lru_cache(maxsize=1024)
def plan_chunks(rows: int, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """The buckets to call in turn for `rows` rows; only the last call may have padding rows.

    `buckets` ascend. The largest is used while it fits; the rest is split for the least cost.
    """
    largest = buckets[-1]
    whole, rest = divmod(rows, largest)
    return (largest,) * whole + _plan_rest(rest, buckets)


def _plan_rest(rest: int, buckets: tuple[int, ...]) -> tuple[int, ...]:
    costs = [0]
    choices = [0]
    for rows in range(1, rest + 1):
        options = [(bucket + CALL_ROWS + costs[max(rows - bucket, 0)], -bucket) for bucket in buckets]
        cost, negative_bucket = min(options)
        costs.append(cost)
        choices.append(-negative_bucket)
    plan: list[int] = []
    while rest > 0:
        plan.append(choices[rest])
        rest -= choices[rest]
    return tuple(sorted(plan, reverse=True))
