"""`pyc diff`: what is different in a second artifact."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ARTIFACT_FILE, keep_blas_small
from pyc.commands.pages import page_file, write_page
from pyc.commands.reading import check_text
from pyc.commands.screen import say, say_json
from pyc.commands.status_line import show_status

if TYPE_CHECKING:
    from pyc.passes.comparison.compare_artifacts import Comparison

EXIT_DIFFERENT = 1


@click.command("diff")
@click.argument("before", type=ARTIFACT_FILE)
@click.argument("after", type=ARTIFACT_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--markdown", is_flag=True, help="Print tables as a comment of a pull request takes them.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page, too.")
@click.option("--force", is_flag=True, help="Let --html replace a file that is no such page.")
@click.option("--quick", is_flag=True, help="Read headers alone: no distances.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where the two are different.")
def command(
    before: Path,
    after: Path,
    as_json: bool,
    markdown: bool,
    html: Path | None,
    force: bool,
    quick: bool,
    exit_code: bool,
) -> None:
    """Show what is different in the artifact AFTER: recipe, sources, tools, programs, files, and each tensor.

    \b
    pyc diff last-release.pyca model.pyca --markdown

    Of a matrix that changed: how far it has moved, as the root of the squared differences over the squared values, or
    why that cannot be said.
    Nothing is executed, and no key is needed; what is read is verified.
    """
    keep_blas_small()
    from pyc import __version__
    from pyc.commands.diff_text import lines_of, page_of
    from pyc.passes.comparison.compare_artifacts import compare_artifacts
    from pyc.runtime.artifact.reader import open_artifact

    if as_json and markdown:
        raise click.UsageError("give --json or --markdown, not both")
    if force and html is None:
        raise click.UsageError("--force is for --html")
    for path in (before, after):
        check_text(str(path), "an artifact")
    page = None
    if html is not None:
        page = page_file(html, (before, after), "an artifact that is compared", force=force)
    try:
        with open_artifact(before, mode="pread") as first, open_artifact(after, mode="pread") as second:
            found = compare_artifacts(first, second, _tell, measures=not quick)
    finally:
        show_status("")
    names = str(before), str(after)
    if page is not None:
        write_page(page, page_of(names, found, __version__))
    if as_json:
        say_json(_document(names, found))
    else:
        for line in lines_of(names, found, markdown=markdown):
            say(line)
    if exit_code and not found.is_same:
        click.get_current_context().exit(EXIT_DIFFERENT)


def _tell(done: int, total: int) -> None:
    show_status(f"comparing: {100 * done // max(total, 1)} %")


def _document(names: tuple[str, str], found: Comparison) -> dict[str, object]:
    """All changes; a distance that is not finite is null."""
    document = {"before": names[0], "after": names[1], **asdict(found)}
    for tensor in document["tensors"]:
        if tensor["distance"] is not None and not math.isfinite(tensor["distance"]):
            tensor["distance"] = None
    return document
