"""Fuse several LoRA adapters as one, which a merge makes of them first: PEFT's add_weighted_adapter, and SLERP.

The methods without svd work on the factors A and B, each scaled by the root of weight * scale (its sign goes to A);
those with svd on the products B A, whose sum is brought back to a rank. SLERP takes the point between two products at
the share that the second adapter's weight has of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from blake3 import blake3

from pyc.compiler.ir import Module
from pyc.compiler.operands import sources
from pyc.compiler.recipe.types import Merge
from pyc.compiler.weights import Added, Between, Expression, LowRank, MatMul, Mixed, Stacked, Transposed, Truncated
from pyc.models.adapter_updates import LowRankUpdate
from pyc.models.adapters import Adapter
from pyc.passes.adapters.adapter_targets import (
    check_shape,
    is_left_out,
    named_weight,
    touched_by,
    untie_head,
    with_replacements,
)
from pyc.passes.adapters.tie_adapter import tied_adapter
from pyc.runtime.errors import AdapterError

MAX_DENSE_VALUES = 1 << 26
"""Values of a matrix whose singular values are found: those of a vocabulary would take hours."""


@dataclass(frozen=True, slots=True)
class _Share:
    """One adapter's part of a weight: its place in the recipe, its update and its weight."""

    place: int
    update: LowRankUpdate
    weight: float


@dataclass(frozen=True, slots=True)
class FuseMerged:
    """Makes one update of those that adapters have for a weight, and adds it."""

    adapters: tuple[tuple[Adapter, float], ...]
    merge: Merge
    name: ClassVar[str] = "fuse_merged"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("fused",)

    def options(self) -> dict[str, str]:
        """Names, weights, and what the merge is."""
        merge = self.merge
        chosen = {name: getattr(merge, name) for name in ("density", "majority_sign", "seed", "rank")}
        return {
            "adapter": ", ".join(adapter.name for adapter, _ in self.adapters),
            "weight": ", ".join(repr(weight) for _, weight in self.adapters),
            "method": merge.method,
            **{name: str(value) for name, value in chosen.items() if value is not None},
        }

    def run(self, module: Module) -> Module:
        """Return the module with merged updates; AdapterError names what does not fit."""
        self._check_kinds()
        adapters = tuple((tied_adapter(adapter, module), weight) for adapter, weight in self.adapters)
        if any(adapter.tying for adapter, _ in self.adapters):
            return replace(self, adapters=adapters).run(module)
        touched = [
            name
            for adapter, _ in self.adapters
            for name in touched_by(adapter, (update.module for update in adapter.low_rank))
        ]
        module = untie_head(module, touched)
        weights: dict[str, Expression] = dict(module.weights)
        for adapter, _ in self.adapters:
            with_replacements(weights, adapter)
        shares = dict[str, list[_Share]]()
        for place, (adapter, weight) in enumerate(self.adapters):
            for update in adapter.low_rank:
                if is_left_out(weights, update.module):
                    continue
                name = named_weight(weights, update.module + ".weight", adapter.reference)
                shape = (update.b.shape[0], update.a.shape[1])
                check_shape(update.module, shape, weights[name].shape, adapter.reference, update.a, update.b)
                shares.setdefault(name, []).append(_Share(place, update, weight))
        rank = max(update.a.shape[0] for adapter, _ in self.adapters for update in adapter.low_rank)
        for name, found in shares.items():
            weights[name] = self._merged(name, weights[name], found, self.merge.rank or rank)
        read = [source for adapter, _ in self.adapters for source in adapter.sources]
        return replace(module.with_graph(module.graph, weights), sources=(*module.sources, *read))

    def _check_kinds(self) -> None:
        saved = dict[str, str]()
        for adapter, _ in self.adapters:
            if adapter.kind != "lora":
                raise AdapterError(
                    f"merge: adapter {adapter.reference!r} is {adapter.kind}, expected lora: PEFT merges no other "
                    "kind; leave `merge` out to fuse the adapters in turn"
                )
            if adapter.tokens is not None:
                raise AdapterError(
                    f"merge: adapter {adapter.reference!r} has trainable tokens, which PEFT's merge leaves out; leave "
                    "`merge` out to fuse the adapters in turn"
                )
            for name, source in adapter.replacements:
                if name in adapter.of_base:
                    continue
                if name in saved:
                    raise AdapterError(
                        f"merge: adapters {saved[name]!r} and {adapter.reference!r} both replace {name!r} (tensor "
                        f"{source.tensor!r}), which cannot be merged; leave `merge` out to let the last one win"
                    )
                saved[name] = adapter.reference

    def _merged(self, name: str, base: Expression, shares: Sequence[_Share], rank: int) -> Expression:
        method = self.merge.method
        if method == "cat":
            for share in shares:
                base = LowRank(base, share.update.a, share.update.b, share.update.scale * share.weight)
            return base
        if method == "slerp":
            return self._between(base, shares)
        if method.endswith("svd"):
            return Added(base, Truncated(self._dense(name, base, shares), rank), 1.0)
        return self._factors(name, base, shares)

    def _factors(self, name: str, base: Expression, shares: Sequence[_Share]) -> Expression:
        """Return the base with merged factors multiplied."""
        first = shares[0].update
        for share in shares:
            if share.update.a.shape != first.a.shape:
                tensor, other = sources(share.update.a)[0].tensor, self.adapters[shares[0].place][0].reference
                raise AdapterError(
                    f"merge: tensor {tensor!r} of adapter {self.adapters[share.place][0].reference!r} has rank "
                    f"{share.update.a.shape[0]}, and that of {other!r} {first.a.shape[0]}; {self.merge.method} needs "
                    "one rank: choose cat, or a method with svd"
                )
        strengths = [share.update.scale * share.weight for share in shares]
        roots = tuple(math.sqrt(abs(strength)) for strength in strengths)
        signed = tuple(math.copysign(root, strength) for root, strength in zip(roots, strengths, strict=True))
        # PEFT calls the half that reads its input A; of an embedding, a weight transposed, it is our b.
        is_embedding = isinstance(first.a, Transposed)
        a = self._mixed(f"{name} A", shares, "a", roots if is_embedding else signed)
        b = self._mixed(f"{name} B", shares, "b", signed if is_embedding else roots)
        return LowRank(base, a, b, 1.0)

    def _mixed(self, name: str, shares: Sequence[_Share], half: Literal["a", "b"], factors: tuple[float, ...]) -> Mixed:
        parts = tuple(share.update.a if half == "a" else share.update.b for share in shares)
        return self._mix(name, shares, parts, factors)

    def _mix(
        self, name: str, shares: Sequence[_Share], parts: tuple[Expression, ...], factors: tuple[float, ...]
    ) -> Mixed:
        merge = self.merge
        seeds = tuple(self._seeds(name, shares)) if merge.seed is not None else ()
        return Mixed(parts, factors, merge.density or 1.0, seeds, merge.majority_sign or "")

    def _seeds(self, name: str, shares: Sequence[_Share]) -> Iterator[int]:
        """Yield what each part's draw is keyed by, of the recipe's seed, the weight and the adapter's place."""
        for share in shares:
            text = f"{self.merge.seed} {share.place} {name}".encode()
            yield int.from_bytes(blake3(text).digest(length=8), "little")

    def _dense(self, name: str, base: Expression, shares: Sequence[_Share]) -> Expression:
        """Return the merged products, as a product where they are only added."""
        scaled = [_scaled(share.update, share.update.scale) for share in shares]
        weights = tuple(share.weight for share in shares)
        if self.merge.method == "svd":
            beside = Transposed(Stacked(tuple(Transposed(product.first) for product in scaled)))
            below = [Mixed((product.second,), (weight,)) for product, weight in zip(scaled, weights, strict=True)]
            return MatMul(beside, Stacked(tuple(below)))
        if math.prod(base.shape) > MAX_DENSE_VALUES:
            raise AdapterError(
                f"merge: {name} {list(base.shape)} is too large for {self.merge.method}, which needs the singular "
                f"values of the whole matrix; choose {self.merge.method.removesuffix('_svd')} or svd"
            )
        return self._mix(name, shares, tuple(scaled), weights)

    def _between(self, base: Expression, shares: Sequence[_Share]) -> Expression:
        total = sum(weight for _, weight in self.adapters)
        if len(shares) == 1:
            (share,) = shares
            return LowRank(base, share.update.a, share.update.b, share.update.scale * share.weight / total)
        first, second = (_scaled(share.update, share.update.scale) for share in shares)
        return Added(base, Between(first, second, shares[1].weight / total), 1.0)


def _scaled(update: LowRankUpdate, scale: float) -> MatMul:
    """Return an update as the product that it adds."""
    return MatMul(update.b, Mixed((update.a,), (scale,)))
