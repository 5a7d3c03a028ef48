"""Kernels that choose the next token, as `pyc.runtime.generation.sampling` does with the same uniform numbers.

Results differ from the CPU's only where rounding decides: a weight's last bits at the border of top-p, or a uniform
number that falls on the border between two tokens. The uniform numbers are handed in, so the stream of a seed is the
host's generator.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.kernel import WARP, Lowered
from pyc.backends.cuda.kernels.rows import INTEGERS, READ, WRITTEN
from pyc.backends.cuda.kernels.wrapper import launch, threads_for

HEADER = "sampling.cuh"
CHUNK = 4096
"""Logits of a block of threads that looks for the largest."""
MOST_CHUNKS = 64
GREEDY_THREADS = 256
THREADS = 512


@dataclass(frozen=True, slots=True)
class GreedySpec:
    """The likeliest of `vocabulary` tokens of each row."""

    rows: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """A token of `vocabulary` for each row, drawn by the row's settings."""

    rows: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class AdvanceSpec:
    """From one step of `rows` sequences to the next, up to `steps` without the host."""

    rows: int
    steps: int


def lower_greedy(spec: GreedySpec) -> Lowered:
    """Find the largest of "logits" [rows, vocabulary], the first of equal ones: "tokens" i32 [rows], -1 where it is not
    finite.
    """
    chunks = max(1, min(MOST_CHUNKS, spec.vocabulary // CHUNK))
    find = launch(
        f"greedy_chunks_{spec.vocabulary}",
        HEADER,
        f"greedy_chunks<{spec.vocabulary}, {chunks}, {GREEDY_THREADS}>",
        {"logits": READ, "best": WRITTEN, "best_ids": "int"},
        grid=(chunks, spec.rows, 1),
        threads=GREEDY_THREADS,
    )
    combine = launch(
        f"greedy_rows_{spec.vocabulary}",
        HEADER,
        f"greedy_rows<{spec.vocabulary}, {chunks}>",
        {"best": READ, "best_ids": INTEGERS, "tokens": "int"},
        grid=(spec.rows, 1, 1),
        threads=WARP,
    )
    return Lowered((find, combine), {"best": 4 * spec.rows * chunks, "best_ids": 4 * spec.rows * chunks})


def lower_sample(spec: SamplingSpec) -> Lowered:
    """Draw from "logits" [rows, vocabulary] by "settings" f32 [rows, 8] (`runtime.executors.cuda.sampler`) with
    "uniforms" f64 [rows] of [0, 1): "tokens" i32 [rows], -1 where the largest logit is not finite or "sequences" i32
    [rows] is negative.

    "counts" i32 [sequences, vocabulary] says how often the output has a token, and IN_PROMPT more where the prompt
    has it; with penalties the chosen one is counted.
    """
    step = launch(
        f"sample_{spec.vocabulary}",
        HEADER,
        f"sample<{spec.vocabulary}, {THREADS}>",
        {
            "logits": READ,
            "settings": READ,
            "uniforms": "const double",
            "sequences": INTEGERS,
            "counts": "int",
            "tokens": "int",
            "values": WRITTEN,
            "ids": "int",
        },
        grid=(spec.rows, 1, 1),
        threads=THREADS,
    )
    return Lowered((step,), {"values": 4 * spec.rows * spec.vocabulary, "ids": 4 * spec.rows * spec.vocabulary})


def lower_advance(spec: AdvanceSpec) -> Lowered:
    """Make the next step's input of this one's "tokens" i32 [rows]: "ids" and "positions" i32 [rows]. They change, as
    "step" i32 [1] does, whose row of "history" i32 [steps, rows] gets the tokens.

    A row whose token is negative is padding from then on: its tokens are -1.
    """
    threads = threads_for(spec.rows)
    step = launch(
        f"advance_{spec.rows}",
        HEADER,
        f"advance<{spec.rows}, {spec.steps}, {threads}>",
        {"tokens": INTEGERS, "ids": "int", "positions": "int", "step": "int", "history": "int"},
        grid=(1, 1, 1),
        threads=threads,
    )
    return Lowered((step,))
