"""What an evaluation finds, as one document: `pyc eval --json` prints it, a gate of a build writes it.

docs/eval.md says what the figures mean, and docs/eval.schema.json is the JSON schema.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pyc.runtime.host.machine import Machine
from pyc.runtime.measure.quality import Divergence, Estimate
from pyc.runtime.measure.vector_quality import VectorQuality


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """The text: of a decoder the tokens of all of it (at most those that were asked for), and those that are scored in
    `windows` of `context` tokens; of an encoder the lines that are embedded (`windows` and `context` 0, `scored`
    lines)."""

    name: str
    blake3: str
    tokens: int
    windows: int
    context: int
    scored: int


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """How an artifact is stored: bytes of the file and of weights, bits a weight, bytes by scheme, the most first.

    `header_sha256` says which artifact it is: its header's digest, whatever its signature. None in older documents.
    """

    size_bytes: int
    weights_bytes: int
    bits_a_weight: float
    scheme: str
    schemes: tuple[tuple[str, int], ...]
    header_sha256: str | None = None


class ReportGuess(msgspec.Struct, frozen=True):
    """A token that may follow, as text, and its probability."""

    text: str
    probability: float


class ReportExample(msgspec.Struct, frozen=True, kw_only=True):
    """A bad place: what is `before` it, the token that follows, what the model and the reference take for likely.

    Of an encoder `before` is the text; `score` is nats of KL, of nll without a reference, or the cosine.
    """

    score: float
    window: int
    position: int
    before: str
    token: str = ""
    found: tuple[ReportGuess, ...] = ()
    wanted: tuple[ReportGuess, ...] = ()


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the artifact was here: tokens a second of prompts and of decoding, or texts a second; None: not
    measured."""

    isa: str
    threads: int
    prompt_tokens_s: float | None = None
    decode_tokens_s: float | None = None
    texts_s: float | None = None


class ArtifactQuality(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one artifact. `kl_by_position` are pairs of a position in the window and nats."""

    name: str
    architecture: str
    storage: Storage
    speed: Speed
    mean_nll: Estimate | None = None
    perplexity: Estimate | None = None
    divergence: Divergence | None = None
    vectors: VectorQuality | None = None
    kl_by_position: tuple[tuple[int, float], ...] = ()
    examples: tuple[ReportExample, ...] = ()


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What artifacts are compared with: an artifact, or a checkpoint compiled without rounding."""

    name: str
    what: Literal["artifact", "checkpoint"]
    perplexity: Estimate | None = None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a recipe's gate, what was measured, and whether it is kept."""

    name: str
    limit: float
    measured: float
    is_kept: bool


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `limits` are those of a gate, empty otherwise."""

    pyc: str
    kind: Literal["decoder", "encoder"]
    text: Text
    reference: Reference | None
    artifacts: tuple[ArtifactQuality, ...]
    machine: Machine
    limits: tuple[Limit, ...] = ()


def document_text(report: QualityReport) -> str:
    """Return the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
