"""What a session asks of whatever executes an artifact's programs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import KvDtype, Tensor

STEP_CONVENTION = ("pyc-step", "7")
"""Name and version of what compiled functions expect: their inputs, how the cache lies in memory, and what a library
exports. A program records it among its `abi`; one that does not is of version 1."""

OWN_CACHES: Mapping[str, KvDtype] = {"onnx": "f32", "tensorrt": "f32"}
"""What backends store keys and values in whose graphs have a type of their own, whatever the header says."""

CACHE_VALUES = "pyc-kv-cache"
"""The component whose version, among the `abi` of a program with virtual tokens, says what its key/value cache holds:
where the header says f16, some libraries have bf16."""

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
InputArray = NDArray[np.float32] | NDArray[np.int32]

Provider = tuple[str, Mapping[str, str]]
"""An execution provider of ONNX Runtime: its name and its options."""


RandomWeights = Callable[[Tensor], NDArray[np.uint8]]
"""Returns bytes that fill a tensor when they are repeated: random numbers by which a model computes no NaN."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """What an executor may be told: the variant of the program `isa` (None: the best here), `threads` (None: one a
    core), `kv_blocks` blocks of positions for the cache, `providers` of ONNX Runtime (none: its CPU's), and
    `random_weights` in the place of the artifact's, which are then not read."""

    isa: str | None = None
    threads: int | None = None
    kv_blocks: int = 0
    providers: tuple[Provider, ...] = ()
    random_weights: RandomWeights | None = None


class TokenCounts(Protocol):
    """What penalties know of a sequence's tokens. It changes when another token is counted, and only then."""

    @property
    def tokens(self) -> int:
        """Tokens of the output that are counted."""
        ...

    def array(self) -> IntArray:
        """Return i32 [vocab]: how often the output has each token, and IN_PROMPT more where the prompt has it."""
        ...


IN_PROMPT = 1 << 30
"""Added to the count of a token that is in the prompt."""


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How the next token of a row is chosen from its logits, by the formulas of `generation.sampling`.

    `sequence` is the row of the block table whose tokens they are; `uniform` of [0, 1) is what a draw takes, and
    `counts` is None where there are no penalties.
    """

    sequence: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition: float
    frequency: float
    presence: float
    uniform: float
    counts: TokenCounts | None

    @property
    def is_likeliest(self) -> bool:
        """Whether it is the largest logit's token."""
        return self.temperature == 0.0 and self.counts is None


class DeviceSampler(Protocol):
    """Chooses tokens where logits are, so that logits stay there."""

    def buckets(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes at which `run` takes the function `name`; empty for none."""
        ...

    def run(
        self, name: str, bucket: int, inputs: Mapping[str, InputArray], rows: Sequence[RowSampling | None]
    ) -> list[int | FloatArray]:
        """Execute `name`, "logits" of its result, and choose a token for each of `rows`, the first rows of that.

        Return the tokens, and logits f32 [vocab], which are the caller's, in the place of one where a row is None or
        its largest logit is not finite. Raises as `Executor.run` does; tokens are counted by the caller, in
        `RowSampling.counts`, and a run may be repeated before they are.
        """
        ...


class Executor(Protocol):
    """Runs one artifact's compiled functions, each compiled for a few numbers of rows (buckets).

    The executor owns the weights and the key/value cache. Its caller owns the input arrays: C-contiguous,
    64-byte aligned, of exactly the bucket's shape. Inputs by name:

        forward  token_ids i32[T], positions i32[T] (-1: padding row), sequences i32[T] (row of block_table),
                 block_table i32[max_sequences, blocks]         -> hidden f32[T, hidden]
        prompt   as forward, and row i32[1]                     -> hidden f32[1, hidden], of that row
        logits   hidden f32[R, hidden]                          -> f32[R, vocab]
        embed    token_ids i32[T], positions i32[T], span_start i32[T], span_end i32[T],
                 seq_start i32[max_sequences], seq_end i32[max_sequences] -> f32[max_sequences, hidden]
    """

    isa: str
    """The compiled variant in use, as the header names it."""
    threads: int
    """Threads the kernels use."""

    @property
    def sampler(self) -> DeviceSampler | None:
        """What chooses tokens without handing logits over; None: callers choose by what `run` returns."""
        ...

    @property
    def is_arriving(self) -> bool:
        """Whether weights are on their way from another machine, and will be for a while: a run waits for each where
        it reads it first."""
        ...

    def functions(self, name: str) -> tuple[int, ...]:
        """Ascending bucket sizes of `name`; empty when the artifact has no such function."""
        ...

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        """Put the artifact's virtual tokens at the first positions of a sequence, whose row of the block table is
        `blocks`. Sessions ask for it where the artifact has some."""
        ...

    def check_file(self) -> None:
        """Raise ArtifactError when the file that weights are mapped from has been written to since it was opened."""
        ...

    def wait(self) -> None:
        """Return when every weight is here. Raises ArtifactError, and FetchError for those of another machine."""
        ...

    def stop_arriving(self) -> None:
        """Fetch nothing more: what waits for weights raises ArtifactError, on whatever thread."""
        ...

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute `name` at `bucket` rows. Raises RunError, and ArtifactError when weights have been lost.

        The result lies as inputs do and may be one of another function; it is valid until the next run of its own.
        """
        ...
