"""Warns of numbers of a checkpoint that what stores them does not hold."""

from __future__ import annotations

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Observer
from pyc.passes.interpretation.check_amplitudes import warn_of_small_weights
from pyc.passes.interpretation.check_cache_range import warn_of_cache_range


def range_warnings(files: SourceFiles, observe: Observer = lambda name, module: None) -> Observer:
    """Return an observer of passes that looks at the module before matrices are stacked, and tells `observe`."""

    def observed(name: str, module: Module) -> None:
        if name == "fold_norm":
            warn_of_small_weights(module, files)
            warn_of_cache_range(module, files)
        observe(name, module)

    return observed
