"""What the passes that fuse one adapter have in common; each kind says what becomes of a weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from pyc.compiler.ir import Module
from pyc.compiler.weights import Expression, Source
from pyc.models.adapter_updates import Update
from pyc.models.adapters import Adapter
from pyc.passes.adapters.adapter_targets import (
    has_tied_head,
    is_left_out,
    named_weight,
    touched_by,
    untie_head,
    with_replacements,
)
from pyc.passes.adapters.replace_tokens import replace_tokens
from pyc.passes.adapters.tie_adapter import tied_adapter
from pyc.runtime.errors import AdapterError

U = TypeVar("U", bound=Update)


@dataclass(frozen=True, slots=True)
class FuseAdapter(ABC, Generic[U]):
    """Fuses an adapter's updates into the weights they name, at `weight` of their strength."""

    adapter: Adapter
    weight: float
    name: ClassVar[str]
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("fused",)

    def options(self) -> dict[str, str]:
        """Adapter name and weight."""
        return {"adapter": self.adapter.name, "weight": repr(self.weight)}

    def run(self, module: Module) -> Module:
        """Return the module with the updates in its weight expressions; AdapterError names what does not fit."""
        tied = tied_adapter(self.adapter, module)
        if tied is not self.adapter:
            return replace(self, adapter=tied).run(module)
        updates = self.updates()
        is_tied = has_tied_head(module)
        module = untie_head(module, touched_by(self.adapter, (update.module for update in updates)))
        weights: dict[str, Expression] = dict(module.weights)
        with_replacements(weights, self.adapter)
        replace_tokens(weights, self.adapter, is_tied)
        for update in updates:
            if is_left_out(weights, update.module):
                continue
            name = named_weight(weights, update.module + ".weight", self.adapter.reference)
            weights[name] = self.changed(weights[name], update)
            self.change_others(weights, name, update)
        return replace(module.with_graph(module.graph, weights), sources=(*module.sources, *self.adapter.sources))

    @abstractmethod
    def updates(self) -> tuple[U, ...]:
        """Return the adapter's updates of this pass's kind."""

    @abstractmethod
    def changed(self, base: Expression, update: U) -> Expression:
        """Return a weight with an update; AdapterError when it does not fit."""

    def change_others(self, weights: dict[str, Expression], name: str, update: U) -> None:
        """Put in place what the update of the weight `name` does to others: nothing, for most kinds."""

    def refuse_part(self) -> None:
        """Raise AdapterError unless the adapter is applied whole, where PEFT defines nothing else."""
        if self.weight != 1:
            raise AdapterError(
                f"adapter {self.adapter.reference!r}: weight is {self.weight:g}, but {self.adapter.kind} multiplies "
                "weights, which PEFT does not do in part; write weight: 1"
            )

    def check_sizes(self, source: Source, wanted: tuple[int, ...], module: str, base: Expression) -> None:
        """Raise AdapterError, naming the tensor, unless it has the shape that the weight `base` asks for."""
        if source.shape != wanted:
            raise AdapterError(
                f"adapter {self.adapter.reference!r}: tensor {source.tensor!r} has shape {list(source.shape)}, "
                f"expected {list(wanted)} for the weight {list(base.shape)} of {module}; was the adapter trained on "
                "another model?"
            )
