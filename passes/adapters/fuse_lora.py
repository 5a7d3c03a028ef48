"""Fuse LoRA: W becomes W + weight * scale * B A for every module that the adapter targets.

LoRA (arXiv:2106.09685) scales by alpha / r, rsLoRA (arXiv:2312.03732) by alpha / sqrt(r); the adapter reader
has already chosen. Full replacements (PEFT's modules_to_save) take the place of the weight they name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Expression, LowRank
from pyc.models.adapter_updates import LowRankUpdate
from pyc.passes.adapters.adapter_targets import check_shape
from pyc.passes.adapters.fuse_adapter import FuseAdapter


@dataclass(frozen=True, slots=True)
class FuseLora(FuseAdapter[LowRankUpdate]):
    """Adds an adapter's low-rank updates to the weights they name."""

    name: ClassVar[str] = "fuse_lora"

    def updates(self) -> tuple[LowRankUpdate, ...]:
        """Return the low-rank updates."""
        return self.adapter.low_rank

    def changed(self, base: Expression, update: LowRankUpdate) -> Expression:
        """Return base + weight * scale * B A."""
        shape = (update.b.shape[0], update.a.shape[1])
        check_shape(update.module, shape, base.shape, self.adapter.reference, update.a, update.b)
        return LowRank(base, update.a, update.b, update.scale * self.weight)
