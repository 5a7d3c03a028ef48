"""How an artifact is stored, in the figures of an evaluation."""

from __future__ import annotations

from pyc.backends.stored_weights import main_scheme, scheme_bytes, weights_of
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.measure.quality_report import Storage


def storage_of(artifact: Artifact, backend: str | None = None) -> Storage:
    """Return how an artifact stores the weights that programs of `backend` read, its first without one."""
    named = weights_of(artifact.header)
    weights = named.get(backend or "") or next(iter(named.values()))
    weights_bytes = sum(weight.size_bytes for weight in weights)
    values = sum(weight.values for weight in weights)
    return Storage(
        size_bytes=artifact.size_bytes,
        weights_bytes=weights_bytes,
        bits_a_weight=8 * weights_bytes / values if values else 0.0,
        scheme=main_scheme(weights),
        schemes=tuple((name, size_bytes) for name, _, size_bytes in scheme_bytes(weights)),
        header_sha256=artifact.prelude.header_sha256.hex(),
    )
