"""Checks of what a Python program passes to `build`: a refusal names the argument, what it got and what it expected."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn, SupportsIndex, cast

from pyc.compiler.recipe.types import Recipe
from pyc.runtime.arguments import flag, shown
from pyc.runtime.errors import RecipeError, RunError
from pyc.runtime.host.machine import allowed_cpus

MOST_WORKERS = 1024


def check_source(recipe: object) -> None:
    """Raise RecipeError unless `recipe` is a path, a mapping or a Recipe."""
    if not isinstance(recipe, str | os.PathLike | Mapping | Recipe):
        _refuse("recipe", recipe, "a path, a mapping or a Recipe")
    _check_text(recipe, "recipe")


def check_overrides(overrides: object) -> Sequence[str]:
    """Return the overrides. Raises RecipeError unless they are a list or a tuple of text."""
    if not isinstance(overrides, list | tuple):
        _refuse("overrides", overrides, 'a list of "key=value" texts')
    for index, text in enumerate(overrides):
        if not isinstance(text, str):
            _refuse(f"overrides[{index}]", text, 'a "key=value" text')
    return overrides


def check_path(path: object, name: str, *, may_lack: bool = True) -> None:
    """Raise RecipeError unless `path` is a path that a file can have, or None where it `may_lack`."""
    if path is None and may_lack:
        return
    if not isinstance(path, str | os.PathLike):
        _refuse(name, path, "a path")
    _check_text(path, name)
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        _refuse(name, path, "a path that a file can have, without NUL and lone surrogates")


def check_flags(**flags: object) -> None:
    """Raise RecipeError for the first that is neither True nor False, numpy's included."""
    for name, value in flags.items():
        try:
            flag(value, name)
        except RunError as error:
            raise RecipeError(str(error)) from None


def check_trust(trust: object) -> str:
    """Return a public key, or a path, as text. Raises RecipeError for what is neither."""
    check_path(trust, "trust", may_lack=False)
    return os.fsdecode(cast("str | os.PathLike[str]", trust))


def check_workers(workers: object) -> int:
    """Return how many threads are meant: all CPUs that this process can use for None. Raises RecipeError."""
    if workers is None:
        return allowed_cpus()
    if not isinstance(workers, bool) and isinstance(workers, SupportsIndex):
        with suppress(TypeError):  # an array of several numbers
            count = operator.index(workers)
            if 1 <= count <= MOST_WORKERS:
                return count
    _refuse("workers", workers, f"a whole number from 1 to {MOST_WORKERS}")


def check_progress(progress: Callable[..., None] | None) -> None:
    """Raise RecipeError unless `progress` can be called or is None."""
    if progress is not None and not callable(progress):
        _refuse("progress", progress, "a function")


def _check_text(path: object, name: str) -> None:
    if not isinstance(path, os.PathLike):
        return
    try:
        text = os.fspath(path)
    except TypeError:  # its __fspath__ returns neither text nor bytes
        _refuse(name, path, "a path whose __fspath__ returns text")
    if not isinstance(text, str):
        _refuse(name, text, "a path of text, as os.fsdecode makes it of bytes")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise RecipeError(f"{name}: got {shown(value)}, expected {expected}")
