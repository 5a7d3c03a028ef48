"""Fuse trainable tokens: rows of the embedding, and of a head that is tied to it, become those of the adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Never

from pyc.compiler.ir import Module
from pyc.compiler.weights import Expression
from pyc.passes.adapters.fuse_adapter import FuseAdapter
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseTrainableTokens(FuseAdapter[Never]):
    """Replaces rows; an adapter of this kind does nothing else."""

    name: ClassVar[str] = "fuse_trainable_tokens"

    def run(self, module: Module) -> Module:
        """Return the module with the rows in place; AdapterError names what does not fit."""
        if self.weight != 1:
            raise AdapterError(
                f"adapter {self.adapter.reference!r}: weight is {self.weight:g}, but trainable tokens are rows that "
                "take the place of others, which PEFT does not do in part; write weight: 1"
            )
        return super(FuseTrainableTokens, self).run(module)  # slots=True makes another class of this one

    def updates(self) -> tuple[Never, ...]:
        """Return none."""
        return ()

    def changed(self, base: Expression, update: Never) -> Expression:
        """Never called."""
        raise AssertionError(update)
