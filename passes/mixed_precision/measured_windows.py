"""Which tokens schemes are measured by, and which they are rounded by: others, where the recipe calibrates."""

from __future__ import annotations

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.passes.calibration.calibration_text import held_back_windows
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.mixed_precision.scheme_problem import Problem

TOKENS = 4096
"""Of the calibration text, at most; windows are taken evenly from it."""

LARGE_WEIGHTS = 1 << 28
LARGE_TOKENS = 2048
"""For models of so many weights."""

INPUT_TOKENS = 8192
"""Whose values GPTQ rounds groups for, where the recipe calibrates."""


def windows_to_measure(
    found: Problem, module: Module, windows: Windows, files: SourceFiles
) -> tuple[Windows, Windows, Windows | None]:
    """Return the windows to measure by, those that a build calibrates by, and those that groups are rounded by, if any.

    `windows` are the calibration's, of `module`.
    """
    is_large = sum(group.weights for group in found.groups) >= LARGE_WEIGHTS
    tokens = LARGE_TOKENS if is_large else TOKENS
    if not found.quantize.calibrates():
        return _fewer(windows, tokens), windows, None
    behind = held_back_windows(found.ingested.recipe, module, files, tokens)
    measured, windows = _apart(windows, behind, tokens)
    return measured, windows, _fewer(windows, INPUT_TOKENS)


def _apart(windows: Windows, behind: Windows | None, tokens: int) -> tuple[Windows, Windows]:
    """Return windows to measure by and others to calibrate by: those that a text has behind the calibration's, or else,
    of two windows or more, up to a quarter of the calibration's own."""
    count, length = windows.ids.shape
    if behind is not None or count < 2:
        return behind or windows, windows
    taken = max(1, min(count // 4, tokens // length))
    first = windows.ids[:-taken]
    return Windows(windows.ids[-taken:], windows.digest), Windows(first, f"{windows.digest} without {taken}")


def _fewer(windows: Windows, tokens: int) -> Windows:
    """Return at most so many tokens of the text, in windows that are taken evenly, and at least one."""
    count, length = windows.ids.shape
    wanted = max(1, min(count, tokens // length))
    return Windows(windows.ids[[index * count // wanted for index in range(wanted)]], windows.digest)
