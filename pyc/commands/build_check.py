"""`pyc build --check`: whether an artifact is what its recipe builds now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pyc.commands.screen import say, say_json, tell

if TYPE_CHECKING:
    from pyc.passes.comparison.check_artifact import UpToDate

EXIT_NOT_UP_TO_DATE = 1


def check(
    source: str, *, output: str | None, overrides: Sequence[str], workers: int | None, download: bool, as_json: bool
) -> None:
    """Print what is different, and exit with 1 where anything is. Raises as `check_artifact`."""
    from pyc.passes.comparison.check_artifact import check_artifact
    from pyc.passes.driver.build_source import read_source
    from pyc.runtime.host.output_file import output_path

    recipe, note = read_source(source, overrides, download=download)
    if note:
        tell(f"pyc: {note}")
    path = output_path(recipe.output() if output is None else output)
    found = check_artifact(recipe, path, workers=workers)
    if as_json:
        say_json(asdict(found))
    else:
        for line in lines_of(found):
            say(line)
    if not found.is_up_to_date:
        click.get_current_context().exit(EXIT_NOT_UP_TO_DATE)


def lines_of(found: UpToDate) -> list[str]:
    """Return a line that says it all, then one for each difference."""
    from pyc.passes.comparison.changes import told

    if found.is_up_to_date:
        return [f"{found.artifact}: up to date"]
    if not found.exists:
        return [f"{found.artifact}: not up to date: it is not there"]
    return [
        f"{found.artifact}: not up to date",
        *(told(group, change) for group, changes in found.groups.items() for change in changes),
    ]
