"""The HTML pages that `--html` writes: where one may stand, and how it comes there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.runtime.host.output_file import OutputFile

PAGE_START = b"<!DOCTYPE html>\n<!-- Written by pyc"
"""How every page begins, by which pyc knows its own: one replaces another without --force."""


def page_file(path: Path, sources: Iterable[Path | None], role: str, *, force: bool) -> OutputFile:
    """Where `--html` writes; `sources` are read as `role`. Raises ArtifactError for a place with something else."""
    from pyc.runtime.host.output_file import OutputFile, output_path

    read = tuple((str(place), role) for place in sources if place is not None and str(place) != "-")
    page = OutputFile(output_path(path), read, PAGE_START, what="a page of pyc", force=force, option="--html")
    page.check()
    return page


def write_page(page: OutputFile, text: str) -> None:
    """The page appears whole or not at all. Raises OSError when it cannot be written, and ArtifactError when it may
    not any more."""
    from pyc.compiler.files.staging import StagedFile

    with StagedFile(page.path, allowed=page.check) as file:
        file.write(text.encode())
        file.publish()
