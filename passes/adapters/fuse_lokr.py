"""Fuse LoKr (arXiv:2212.10650): W + weight * alpha / r * kron(W1, W2), either of them a product of low rank or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.operands import sources
from pyc.compiler.weights import Added, Expression, Kronecker, MatMul
from pyc.models.adapter_updates import KroneckerUpdate
from pyc.passes.adapters.adapter_targets import check_shape
from pyc.passes.adapters.fuse_adapter import FuseAdapter
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseLokr(FuseAdapter[KroneckerUpdate]):
    """Adds Kronecker products to the weights they name."""

    name: ClassVar[str] = "fuse_lokr"

    def updates(self) -> tuple[KroneckerUpdate, ...]:
        """Return the updates of the adapter."""
        return tuple(update for update in self.adapter.updates if isinstance(update, KroneckerUpdate))

    def changed(self, base: Expression, update: KroneckerUpdate) -> Expression:
        """Return base + weight * scale * kron(first, second); the factors have the shapes that PEFT gives them."""
        product = Kronecker(update.first, update.second)
        check_shape(update.module, product.shape, base.shape, self.adapter.reference, product)
        out, inputs = (factorization(size, update.factor) for size in base.shape)
        is_first_whole = not (update.decompose_both and update.rank < max(out[0], inputs[0]) / 2)
        is_second_whole = update.rank >= max(out[1], inputs[1]) / 2
        for factor, place, is_whole in ((update.first, 0, is_first_whole), (update.second, 1, is_second_whole)):
            wanted = (out[place], inputs[place])
            if factor.shape != wanted or isinstance(factor, MatMul) == is_whole:
                form = "one matrix" if is_whole else f"a product of rank {update.rank}"
                raise AdapterError(
                    f"adapter {self.adapter.reference!r}: tensor {sources(factor)[0].tensor!r}: lokr_w{place + 1} is "
                    f"{list(factor.shape)}, expected {form} {list(wanted)} for the weight {list(base.shape)} with "
                    f"decompose_factor {update.factor}; was the adapter trained on another model?"
                )
        return Added(base, product, update.scale * self.weight)


def factorization(size: int, factor: int) -> tuple[int, int]:
    """Return two factors of a size, the first no greater than `factor` (-1: any), as near to each other as PEFT's."""
    if factor > 0 and size % factor == 0:
        return factor, size // factor
    most = size if factor == -1 else factor
    low, high = 1, size
    while low < high:
        nearer = next(number for number in range(low + 1, size + 1) if size % number == 0)
        if nearer + size // nearer > low + high or nearer > most:
            break
        low, high = nearer, size // nearer
    return min(low, high), max(low, high)
