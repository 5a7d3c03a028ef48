"""The documents that commands print with --json, where no class of the package has their form: for `result_schemas`.

Durations in seconds, sizes in bytes, unless a name says otherwise. Each document has every field.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pyc.runtime.artifact.format import Header
from pyc.runtime.measure.quality_report import Limit

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Digest = Annotated[str, Meta(pattern="^header:[0-9a-f]{64}$")]
"""What `pyc trust revoke` takes: the SHA-256 of an artifact's header."""
Fingerprint = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
Range = tuple[float, float]
"""The least and the most."""


class Codec(Struct, frozen=True, kw_only=True):
    """The chunks of a codec; `gain` is a share of the raw bytes."""

    codec: str
    chunks: int
    raw_bytes: int
    stored_bytes: int
    gain: float


class MixtureSpeed(Struct, frozen=True, kw_only=True):
    """Tokens a second that a choice of schemes decodes on the machine of the build, and what was predicted."""

    measured: float
    predicted: float


class MixtureUniform(Struct, frozen=True, kw_only=True):
    """The best of one scheme for all matrices, with its measured distance."""

    scheme: str
    embeddings: str
    size_bytes: int
    measured: float


class MixtureGroup(Struct, frozen=True, kw_only=True):
    """Matrices that take one scheme, and the distance that rounding them alone is predicted to cost."""

    names: list[str]
    scheme: str
    size_bytes: int
    weights: int
    predicted: float
    is_fixed: bool


class MixtureOverride(Struct, frozen=True, kw_only=True):
    """An override of the recipe that builds the same artifact without measuring."""

    match: str
    scheme: str


class Mixture(Struct, frozen=True, kw_only=True):
    """The schemes that a build chose by a goal; distances are in `metric`, over `positions` of the calibration text."""

    goal: Literal["size_bytes", "bits_per_weight", "max_kl", "min_tok_s"]
    wanted: float
    size_bytes: int
    matrix_bytes: int
    bits_per_weight: float
    metric: str
    positions: int
    predicted: float
    measured: float
    is_uniform: bool
    tokens_per_second: MixtureSpeed | None
    uniform: MixtureUniform | None
    groups: list[MixtureGroup]
    overrides: list[MixtureOverride]


class Build(Struct, frozen=True, kw_only=True):
    """A finished build: the artifact and its file's SHA-256, the digest by which it can be revoked, bytes of weights by
    scheme, the fingerprint of the key, and what the recipe's gate measured (null without one)."""

    path: str
    sha256: Sha256
    digest: Digest
    size_bytes: int
    elapsed_s: float
    peak_rss_bytes: int
    tensors: int
    scheme_bytes: dict[str, int]
    codecs: list[Codec]
    cache_hits: int
    cache_misses: int
    fingerprint: Fingerprint | None
    quality: list[Limit] | None
    mixture: Mixture | None


class PlannedProgram(Struct, frozen=True, kw_only=True):
    """A library that would be compiled: the buckets of each function, in tokens."""

    backend: str
    device: str
    arch: str
    isa: str
    functions: dict[str, list[int]]


class Signed(Struct, frozen=True, kw_only=True):
    """Who signed the header, and whether that key is trusted on this machine; `refusal` is why it does not count, as
    that it was revoked, null where it does."""

    fingerprint: Fingerprint
    public_key: str
    trusted: bool
    refusal: str | None


class Inspection(Struct, frozen=True, kw_only=True):
    """An artifact's header (docs/artifact-format.md), and its digest, by which it can be revoked."""

    path: str
    digest: Digest
    size_bytes: int
    format_version: str
    signature: Signed | None
    header: Header


class ReportedMatrix(Struct, frozen=True, kw_only=True):
    """What rounding cost a matrix [out, in]; an error that is not finite is null."""

    name: str
    layer: int | None
    kind: str
    shape: tuple[int, int]
    scheme: str
    algorithm: str
    bits: float
    relative_error: float | None
    largest_error: float | None


class WeightReport(Struct, frozen=True, kw_only=True):
    """What rounding cost each matrix of an artifact."""

    relative_error: float | None
    matrices: list[ReportedMatrix]


class BenchModel(Struct, frozen=True, kw_only=True):
    """What was measured: `scheme` is that of most parameters; `size_bytes` are the file's, or random weights'."""

    architecture: str
    kind: Literal["decoder", "encoder"]
    size_bytes: int
    parameters: int
    scheme: str
    weights: Literal["own", "random"]


class BenchMachine(Struct, frozen=True, kw_only=True):
    """Where it was measured, and by which variant of the kernels."""

    cpu: str
    arch: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    threads: int
    isa: str
    features: list[str]


class DecoderFigures(Struct, frozen=True, kw_only=True):
    """Standard deviations of a decoder's figures."""

    load_s: float
    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float


class DecoderRanges(Struct, frozen=True, kw_only=True):
    """The least and the most of a decoder's figures."""

    load_s: Range
    ttft_s: Range
    prefill_tok_s: Range
    decode_tok_s: Range


class EncoderFigures(Struct, frozen=True, kw_only=True):
    """Standard deviations of an encoder's figures."""

    load_s: float
    sentences_s: float
    latency_s: float


class EncoderRanges(Struct, frozen=True, kw_only=True):
    """The least and the most of an encoder's figures."""

    load_s: Range
    sentences_s: Range
    latency_s: Range


class StepPercentiles(Struct, frozen=True, kw_only=True):
    """Milliseconds of a step."""

    p50: float
    p90: float
    p99: float


class DecoderBench(Struct, frozen=True, kw_only=True):
    """Medians of a decoder; bins of `decode_histogram` are pairs of an upper edge in milliseconds and a number."""

    artifact: str
    prompt_tokens: int
    decode_tokens: int
    depth_tokens: int
    load_s: float
    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float
    decode_ms: StepPercentiles
    decode_histogram: list[tuple[float, int]]
    spread: DecoderRanges
    deviation: DecoderFigures
    repeat: int
    peak_rss_bytes: int
    model: BenchModel
    machine: BenchMachine


class EncoderBench(Struct, frozen=True, kw_only=True):
    """Medians of an encoder: `sentences` texts together a second, and the seconds of one alone."""

    artifact: str
    sentences: int
    load_s: float
    sentences_s: float
    latency_s: float
    spread: EncoderRanges
    deviation: EncoderFigures
    repeat: int
    peak_rss_bytes: int
    model: BenchModel
    machine: BenchMachine
