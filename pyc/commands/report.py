"""`pyc report`: what rounding has cost each matrix of an artifact."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ARTIFACT_FILE, PATH_TEXT, keep_blas_small
from pyc.commands.pages import page_file, write_page
from pyc.commands.reading import check_text
from pyc.commands.reference_files import reference_files
from pyc.commands.screen import say, say_json
from pyc.commands.status_line import show_status
from pyc.runtime.host.sizes import human_bytes

if TYPE_CHECKING:
    from pyc.passes.comparison.weight_errors import MatrixError
    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.measure.quality_report import QualityReport

_MOST_BYTES = 64 << 20
WORST = 5
"""Matrices that a terminal sees."""


@click.command("report")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.argument("source", type=PATH_TEXT)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with a heat map of layers and kinds, too.")
@click.option(
    "--eval",
    "evaluation",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Of --html: put in what `pyc eval --json`, or the gate of a build, has written of the artifact.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--force", is_flag=True, help="Let --html replace a file that is no such page.")
def command(
    artifact: Path, source: str, html: Path | None, evaluation: Path | None, as_json: bool, force: bool
) -> None:
    """Compare the matrices of ARTIFACT with SOURCE, the recipe or checkpoint that it was built from.

    \b
    pyc report model.pyca model.yaml --html report.html
    pyc report model.pyca ./checkpoint

    For each matrix: its scheme, how it was rounded, bits a weight, and the relative error, of the bytes in the file.
    Sources are checked by their digests, and nothing of the artifact is executed. docs/eval.md has the formula.
    """
    keep_blas_small()
    from pyc import __version__
    from pyc.commands.report_page import report_page
    from pyc.compiler.files.cache import Cache
    from pyc.compiler.files.source_files import SourceFiles
    from pyc.passes.comparison.weight_errors import read_source, weight_errors
    from pyc.runtime.artifact.kinds import ARTIFACT, kind_of
    from pyc.runtime.artifact.program_only import require_weights
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.host.cache_folder import cache_directory
    from pyc.runtime.text.printable import printable

    if html is None and (force or evaluation is not None):
        raise click.UsageError("--force and --eval are for --html")
    check_text(str(artifact), "ARTIFACT")
    check_text(source, "SOURCE")
    if kind_of(source) == ARTIFACT and artifact.exists() and kind_of(artifact) != ARTIFACT:
        raise click.UsageError(f"the artifact comes first: pyc report {printable(source)} {printable(str(artifact))}")
    quality = None if evaluation is None else _evaluation(evaluation)
    recipe = read_source(source)
    page = None
    if html is not None:
        read = (artifact, evaluation, *reference_files(source, recipe))
        page = page_file(html, read, "a file of this report", force=force)
    try:
        with open_artifact(artifact) as opened, SourceFiles() as files:
            require_weights(opened.header, opened.path)
            if quality is not None:
                _require_measured(quality, opened, evaluation)
            heading = [
                f"{opened.header.model.architecture}, {human_bytes(opened.size_bytes)}",
                f"beside {source}, the sources that it was built from",
            ]
            errors = weight_errors(opened, recipe, files, Cache(cache_directory()), _tell)
    finally:
        show_status("")
    if page is not None:
        write_page(page, report_page(artifact.name, heading, errors, quality, __version__))
    if as_json:
        say_json(_document(errors))
        return
    for line in _lines(errors):
        say(line)


def _tell(done: int, total: int) -> None:
    show_status(f"comparing: {100 * done // max(total, 1)} %")


def _lines(errors: tuple[MatrixError, ...]) -> list[str]:
    """Kinds, then the worst matrices."""
    from pyc.commands.report_page import HEADER, KIND_HEADER, kind_rows, matrix_rows
    from pyc.commands.tables import plain_table, terminal_width

    width = terminal_width()
    worst = sorted(errors, key=lambda each: -each.relative)[:WORST]
    lines = plain_table("", KIND_HEADER, kind_rows(errors), right=(1, 3, 4), width=width)
    return [*lines, *plain_table("", HEADER, matrix_rows(worst), right=(4, 5, 6), width=width)[:-1]]


def _document(errors: tuple[MatrixError, ...]) -> dict[str, object]:
    """All figures; one that is not finite is null."""
    from pyc.passes.comparison.weight_errors import relative_error

    total = relative_error(sum(each.error_square for each in errors), sum(each.square for each in errors))
    return {
        "relative_error": _finite(total),
        "matrices": [
            {
                "name": each.name,
                "layer": each.layer,
                "kind": each.kind,
                "shape": [each.rows, each.columns],
                "scheme": each.scheme,
                "algorithm": each.algorithm,
                "bits": each.bits,
                "relative_error": _finite(each.relative),
                "largest_error": _finite(each.largest),
            }
            for each in errors
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _evaluation(path: Path) -> QualityReport:
    """The document of an evaluation. Raises RunError for a file that is none."""
    import msgspec

    from pyc.runtime.errors import RunError
    from pyc.runtime.measure.quality_report import QualityReport

    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise RunError(f"--eval {path}: it has more than {_MOST_BYTES:,} bytes; give what `pyc eval --json` prints")
        return msgspec.json.decode(data, type=QualityReport)
    except (ValueError, RecursionError) as error:
        raise RunError(f"--eval {path}: not a document of `pyc eval --json`: {error}") from error


def _require_measured(quality: QualityReport, opened: Artifact, evaluation: Path | None) -> None:
    """Raise ArtifactError for an evaluation of other artifacts alone; an older one does not say of which it is."""
    from pyc.runtime.errors import ArtifactError

    measured = {each.storage.header_sha256 for each in quality.artifacts}
    if None in measured or opened.prelude.header_sha256.hex() in measured:
        return
    names = ", ".join(each.name for each in quality.artifacts)
    raise ArtifactError(
        f"--eval {evaluation}: it is of {names}, and not of {opened.path} as it is now; evaluate it: pyc eval "
        f"{opened.path} --json"
    )
