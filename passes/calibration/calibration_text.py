"""The text of a calibration as windows of tokens: the recipe's file, or what is packaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from blake3 import blake3

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module, SourcePath
from pyc.compiler.recipe.types import Recipe
from pyc.passes.calibration.imported_importance import calibration_source, importance_source
from pyc.passes.interpretation.generated_text import generated_windows
from pyc.passes.interpretation.interpret_text import Windows
from pyc.runtime.errors import QuantizeError
from pyc.runtime.text.counted import counted
from pyc.runtime.text.tokenizer import Tokenizer

DEFAULT_TEXT = Path(__file__).with_name("calibration.txt")
"""Python's own documentation, English prose with code in it (licence: models/demo/LICENSE.python.txt)."""

MOST_BYTES = 256 << 20
_CHARACTERS_A_TOKEN = 16
"""More of a text than so many for each token that is used is not tokenized."""


def calibration_sources(recipe: Recipe) -> tuple[SourcePath, ...]:
    """Return the files that calibration reads, and what provenance calls them."""
    importance = importance_source(recipe)
    is_read = recipe.quantize.reads_text() and recipe.quantize.calibration.generate is None
    text = (text_source(recipe),) if is_read else ()
    return text if importance is None else (*text, importance)


def text_source(recipe: Recipe) -> SourcePath:
    """Return the file of the text, and what provenance calls it."""
    wanted = recipe.quantize.calibration.text
    if wanted is None:
        return SourcePath("calibration.txt", str(DEFAULT_TEXT))
    return calibration_source(recipe, wanted, "text")


def calibration_windows(
    recipe: Recipe, module: Module, files: SourceFiles, cache: Cache | None = None
) -> Windows:
    """Return the tokens of the recipe's text, or those that the model generates; without a `cache` these are zeros.

    Raises QuantizeError when a text cannot be read, or is too short.
    """
    if recipe.quantize.calibration.generate is not None:
        return generated_windows(recipe, module, files, cache)
    wanted, window = recipe.quantize.calibration, _window(recipe, module)
    if wanted.tokens < window:
        raise QuantizeError(
            f"quantize.calibration.tokens: got {wanted.tokens}, expected at least {window}, one window; raise it, or "
            "lower quantize.calibration.window"
        )
    ids = _ids(recipe, module, files, wanted.tokens)
    count = len(ids) // window
    if not count:
        raise QuantizeError(
            f"{_where(recipe)}: it has {counted(len(ids), 'token')}, expected at least {window}, one window; give a "
            "longer text, or lower quantize.calibration.window"
        )
    return _windows(ids, window)


def held_back_windows(recipe: Recipe, module: Module, files: SourceFiles, tokens: int) -> Windows | None:
    """Return at most so many tokens of the text behind those that calibration uses; None where there is no window."""
    if recipe.quantize.calibration.generate is not None:
        return None
    first, window = recipe.quantize.calibration.tokens, _window(recipe, module)
    ids = _ids(recipe, module, files, first + tokens)[first:]
    return _windows(ids, window) if len(ids) >= window else None


def _window(recipe: Recipe, module: Module) -> int:
    return min(recipe.quantize.calibration.window, module.usable_context)


def _windows(ids: list[int], window: int) -> Windows:
    count = len(ids) // window
    windows = np.array(ids[: count * window], np.int32).reshape(count, window)
    return Windows(windows, blake3(windows.tobytes()).hexdigest())


def _where(recipe: Recipe) -> str:
    return f"quantize.calibration.text: {recipe.quantize.calibration.text or DEFAULT_TEXT.name}"


def _ids(recipe: Recipe, module: Module, files: SourceFiles, tokens: int) -> list[int]:
    """The text's first tokens."""
    text = _text(text_source(recipe).path, _where(recipe), files)[: tokens * _CHARACTERS_A_TOKEN]
    carried = dict(module.files)
    if "tokenizer.json" not in carried:
        raise QuantizeError(
            f"quantize.{_wanted_by(recipe)} reads a text by the model's tokenizer, and the checkpoint has no "
            "tokenizer.json"
        )
    tokenizer = Tokenizer(carried["tokenizer.json"], carried.get("tokenizer_config.json"))
    return tokenizer.encode(text)[:tokens]


def _wanted_by(recipe: Recipe) -> str:
    goal = recipe.quantize.goal()
    algorithm = next((name for name in recipe.quantize.algorithms() if name != "rtn"), "rtn")
    return f"algorithm: {algorithm}" if goal is None else goal[0]


def _text(path: str, where: str, files: SourceFiles) -> str:
    try:
        size = files.size_bytes(path)
        if size > MOST_BYTES:
            raise QuantizeError(f"{where}: it has {size:,} bytes, expected at most {MOST_BYTES:,}; cut it")
        data = files.read(path)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise QuantizeError(f"{where}: cannot be read: {reason}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise QuantizeError(
            f"{where}: not UTF-8 at byte {error.start}; write it again in UTF-8 (iconv -f ENCODING -t UTF-8)"
        ) from error
    return text.removeprefix("\ufeff")
