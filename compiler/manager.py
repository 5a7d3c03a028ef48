"""Runs passes in order, checking what each requires and that the module stays legal."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pyc.compiler.ir import Module
from pyc.compiler.operators import OPERATORS, Operator
from pyc.compiler.verify import verify
from pyc.runtime.artifact.format import PassRecord

logger = logging.getLogger(__name__)


class Pass(Protocol):
    """A rewrite of a module; implementations are frozen dataclasses whose fields are its options.

    `requires` and `provides` are names of properties of the module ("fused", "stored", "packed", ...).
    `version` changes when the same input would give another output.
    """

    @property
    def name(self) -> str:
        """Name in the log and in provenance: the file's name."""
        ...

    @property
    def version(self) -> int:
        """Version of the rewrite."""
        ...

    @property
    def requires(self) -> tuple[str, ...]:
        """Properties that must hold before."""
        ...

    @property
    def provides(self) -> tuple[str, ...]:
        """Properties that hold after."""
        ...

    def options(self) -> dict[str, str]:
        """Options as text, for provenance; no path of this machine."""
        ...

    def run(self, module: Module) -> Module:
        """Return the rewritten module."""
        ...


Observer = Callable[[str, Module], None]
"""Is told the name of a pass and the module that it has made."""


def check_order(passes: Sequence[Pass], holds: Collection[str] = ()) -> None:
    """Raise AssertionError when a pass requires what none before it provides, and what does not hold already."""
    have = set(holds)
    for step in passes:
        missing = set(step.requires) - have
        assert not missing, f"{step.name} requires {sorted(missing)}, which no pass before it provides"
        have |= set(step.provides)


def record_of(step: Pass) -> PassRecord:
    """Return what provenance says of a pass that ran."""
    return PassRecord(name=step.name, version=step.version, options=json.dumps(step.options(), sort_keys=True))


def run_passes(
    module: Module,
    passes: Sequence[Pass],
    *,
    operators: Mapping[str, Operator] = OPERATORS,
    holds: Collection[str] = (),
    observe: Observer = lambda name, module: None,
) -> Module:
    """Return `module` after all `passes`, with one record each in its log.

    `operators` are those that it may consist of, before and after each; `holds`, properties that it has. `observe` is
    called with the name of each pass and the module behind it.
    """
    check_order(passes, holds)
    verify(module, "ingest", operators)
    for step in passes:
        started_s = time.perf_counter()
        module = step.run(module)
        verify(module, step.name, operators)
        module = replace(module, passes=(*module.passes, record_of(step)))
        observe(step.name, module)
        operations = sum(len(function.operations) for function in module.graph.functions)
        logger.info("%s: %d operations, elapsed_s=%.3f", step.name, operations, time.perf_counter() - started_s)
    return module
