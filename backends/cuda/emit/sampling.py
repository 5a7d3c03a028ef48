"""What chooses tokens behind the logits: functions of the executor's own, that no graph of the model has."""

from __future__ import annotations

from pyc.backends.cuda.emit.kernel_table import KernelTable
from pyc.backends.cuda.emit.memory_plan import Workspace
from pyc.backends.cuda.kernels.kernel import Lowered
from pyc.backends.cuda.kernels.sampling import GreedySpec, SamplingSpec, lower_greedy, lower_sample
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.executors.cuda.program import (
    ZEROED_BYTES,
    Buffer,
    DeviceFunction,
    InputArray,
    Launch,
    TokenSampler,
)
from pyc.runtime.executors.cuda.sampler import COUNT_BYTES, SETTINGS

_VALUE_BYTES = {"f32": 4, "i32": 4, "f64": 8}


def emit_sampler(rows: int, info: ModelInfo, table: KernelTable) -> TokenSampler:
    """Return what chooses a token of each of `rows` rows of logits; kernels go into `table`."""
    inputs = (
        InputArray("settings", "f32", (rows, len(SETTINGS))),
        InputArray("uniforms", "f64", (rows,)),
        InputArray("sequences", "i32", (rows,)),
    )
    likeliest = lower_greedy(GreedySpec(rows, info.vocab_size))
    drawn = lower_sample(SamplingSpec(rows, info.vocab_size))
    return TokenSampler(
        rows,
        _emitted(f"likeliest_{rows}", likeliest, (), rows, info, table),
        _emitted(f"drawn_{rows}", drawn, inputs, rows, info, table),
    )


def _emitted(
    symbol: str, lowered: Lowered, inputs: tuple[InputArray, ...], rows: int, info: ModelInfo, table: KernelTable
) -> DeviceFunction:
    """Return launches that follow each other."""
    workspace, result = Workspace(), InputArray("tokens", "i32", (rows,))
    workspace.take(ZEROED_BYTES)
    places = {
        "logits": Buffer("logits", "", 0, rows * info.vocab_size * _VALUE_BYTES["f32"]),
        "counts": Buffer("counts", "", 0, info.max_sequences * info.vocab_size * COUNT_BYTES),
        "tokens": Buffer("result", "", 0, rows * _VALUE_BYTES["i32"]),
    }
    for given in inputs:
        width = given.shape[1] if len(given.shape) == 2 else 1
        places[given.name] = Buffer("input", given.name, 0, rows * width * _VALUE_BYTES[given.dtype])
    for name, size_bytes in lowered.scratch.items():
        places[name] = Buffer("workspace", "", workspace.take(size_bytes), size_bytes)
    used = tuple(dict.fromkeys(places[name] for step in lowered.steps for name in step.arguments))
    launches = tuple(
        Launch(
            table.number(step.kernel),
            step.kernel.grid,
            tuple(used.index(places[name]) for name in step.arguments),
            (number - 1,) if number else (),
        )
        for number, step in enumerate(lowered.steps)
    )
    return DeviceFunction(symbol, inputs, result, workspace.size_bytes, used, launches)
