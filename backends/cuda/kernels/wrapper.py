"""A kernel as C++ that calls one function of a header with constants in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pyc.backends.cuda.kernels.kernel import WARP, Kernel, Step

DEPENDENT_LAUNCH = "dependent_launch.cuh"
"""The header that all kernels include."""
SHARED_ARRAY = "IN_TURN"
"""What that header has in place of `__restrict__` for arrays that other launches write."""
LET_OTHERS_BEGIN, WAIT = "pyc::let_later_launches_begin();", "pyc::wait_for_earlier_launches();"
"""What a short kernel does first, and what each does before it touches arrays that other launches touch."""


def launch(
    name: str,
    header: str,
    function: str,
    arrays: Mapping[str, str | None],
    *,
    constants: tuple[float, ...] = (),
    doubles: tuple[float, ...] = (),
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int = 0,
    blocks: int | None = None,
    is_short: bool = True,
    waits: bool = False,
) -> Step:
    """Return the launch of `function` of `header`, with its template arguments, over `arrays`: C types by name, in the
    order of its parameters; None for one that is null. `constants` f32 and `doubles` f64 come behind them.

    Where it `is_short`, launches that wait for it begin at once. The kernel waits for those before it, unless the
    function does (`waits`).

    `blocks` of a multiprocessor are left registers for; without it the compiler chooses, and may spill a few.

    The kernel's name is `name` and a digest of all that it depends on; the grid is a launch's matter.
    """
    given = [name for name, kind in arrays.items() if kind is not None]
    listed = [f"{arrays[name]}* {SHARED_ARRAY} {name}" for name in given]
    parameters = ", ".join(listed)
    passed = [name if arrays[name] is not None else "nullptr" for name in arrays]
    passed += [f"{float32_literal(value)}" for value in constants] + [repr(float(value)) for value in doubles]
    statements = (*((LET_OTHERS_BEGIN,) if is_short else ()), *(() if waits else (WAIT,)))
    first = "".join(f"    {statement}\n" for statement in statements)
    body = f"({parameters}) {{\n{first}    pyc::{function}({', '.join(passed)});\n}}\n"
    kernel_bounds = f"__launch_bounds__({threads}{f', {blocks}' if blocks else ''})"
    digest = hashlib.blake2b(f"{header}{kernel_bounds}{body}{shared_bytes}".encode(), digest_size=6).hexdigest()
    symbol = f"{name}_{digest}"
    includes = "".join(f'#include "{name}"\n' for name in (DEPENDENT_LAUNCH, header))
    source = f'{includes}extern "C" __global__ void {kernel_bounds} {symbol}{body}'
    return Step(Kernel(symbol, source, grid, threads, shared_bytes), tuple(given))


def float32_literal(value: float) -> str:
    """Return C's text of a number as f32."""
    return f"{float(value)!r}f" if value == value and abs(value) != float("inf") else "__int_as_float(0x7f800000)"


def threads_for(count: int, most: int = 1024) -> int:
    """Return the threads of a block of which each has one of `count` things: whole warps, at most `most`."""
    return min(most, -(-count // WARP) * WARP)
