"""`pyc eval`: how well artifacts predict a text, and how far they are from a reference."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import (
    ArtifactPlace,
    backend_option,
    keep_blas_small,
    mmap_option,
    mode_of,
    open_ahead,
    provider_option,
    trust_option,
)
from pyc.commands.pages import page_file, write_page
from pyc.commands.reading import check_text, read_text
from pyc.commands.reference_files import reference_files
from pyc.commands.screen import say, tell
from pyc.commands.status_line import is_quiet, show_status
from pyc.runtime.host.sizes import human_duration

if TYPE_CHECKING:
    from pyc.compiler.recipe.types import Recipe
    from pyc.runtime.measure.evaluation import Baseline, Candidate, Progress
    from pyc.runtime.sources.places import Place
    from pyc.runtime.sources.protocol import Mode

TELL_EVERY_S = 10.0
"""How often a log hears of the progress."""


@click.command("eval")
@click.argument("artifacts", metavar="ARTIFACT...", nargs=-1, required=True, type=ArtifactPlace())
@click.option(
    "--text",
    "text_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file of UTF-8 text that the model was not trained on; for encoders one text a line. - is standard input.",
)
@click.option(
    "--reference",
    metavar="SOURCE",
    help="What to compare with: an artifact, or a checkpoint or recipe, which is compiled without rounding.",
)
@click.option("--context", type=click.IntRange(min=4), help="Tokens of a window.  [default: 512, or the model's]")
@click.option("--tokens", type=click.IntRange(min=1), help="Use the first of the text only; of encoders, lines.")
@click.option("--speed/--no-speed", default=True, help="Time decoding, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with charts and the worst examples, too.")
@click.option("--force", is_flag=True, help="Let --html replace a file that is no such page.")
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use; `pyc inspect` lists them.  [default: the best this CPU runs]")
@backend_option
@provider_option
@trust_option
@mmap_option
def command(
    artifacts: tuple[Place, ...],
    text_file: Path,
    reference: str | None,
    context: int | None,
    tokens: int | None,
    speed: bool,
    as_json: bool,
    html: Path | None,
    force: bool,
    threads: int | None,
    isa: str | None,
    backend: str | None,
    providers: tuple[tuple[str, dict[str, str]], ...],
    trust: str,
    mmap: bool,
) -> None:
    """Measure how well each ARTIFACT predicts a text: its perplexity, and with --reference how far it is from that.

    \b
    pyc eval model.pyca --text heldout.txt
    pyc eval int8.pyca int4.pyca --text heldout.txt --reference ./checkpoint

    The text is scored as llama.cpp's perplexity tool does: in windows of --context tokens, each a text of its own, of
    which the second half counts. KL is of the reference's predictions to the artifact's, in nats a token. Behind each
    figure is its standard error. Encoders need a reference: the cosine of their vectors, and whether texts keep their
    order by likeness.

    A checkpoint or recipe as the reference is compiled for this CPU into a temporary artifact, as large as the
    checkpoint. An artifact may be a URL, as of pyc run. Exit codes and what the figures mean: docs/eval.md.
    """
    keep_blas_small()
    from pyc import __version__
    from pyc.commands.eval_text import text_lines
    from pyc.commands.tables import terminal_width
    from pyc.runtime.artifact.kinds import ARTIFACT, kind_of
    from pyc.runtime.artifact.trust.policy import asked_file, check_read_often
    from pyc.runtime.measure.evaluation import Passage, evaluate
    from pyc.runtime.measure.quality_report import document_text
    from pyc.runtime.measure.scoring import names_of
    from pyc.runtime.sources.places import place_of
    from pyc.runtime.text.printable import printable

    if force and html is None:
        raise click.UsageError("--force is for --html")
    for path in artifacts:
        check_text(str(path), "ARTIFACT")
    if kind_of(text_file) == ARTIFACT:
        raise click.UsageError(f"--text {printable(str(text_file))}: this is an artifact; name it without --text")
    check_read_often(trust, "--trust")
    recipe = None if reference is None else _recipe(reference)
    inputs = (path for path in (*artifacts, asked_file(trust)) if isinstance(path, Path))
    read = (*inputs, text_file, *([] if reference is None else reference_files(reference, recipe)))
    page = None if html is None else page_file(html, read, "a file of this evaluation", force=force)
    text = read_text(text_file, waits_for="the text to score")
    how = _How(threads, isa, backend, providers, trust, mode_of(mmap))
    with contextlib.ExitStack() as stack:
        window = _window(artifacts, context, reference)
        shown = [] if reference is None else [str(place_of(reference))]
        names = names_of([*map(str, artifacts), *shown])
        candidates = [
            stack.enter_context(_loaded(path, name, window, how)) for path, name in zip(artifacts, names, strict=False)
        ]
        baseline = None
        if reference is not None:
            baseline = stack.enter_context(_baseline(reference, recipe, names[-1], candidates[0], window, how))
        passage = Passage(_text_name(text_file), text, window, tokens)
        with _progress() as progress:
            report = evaluate(
                candidates, baseline, passage, version=__version__, with_speed=speed, progress=progress
            )
    if page is not None:
        from pyc.commands.eval_page import html_page

        write_page(page, html_page(report))
    if as_json:
        click.echo(document_text(report), nl=False)
        return
    for line in text_lines(report, terminal_width()):
        say(line)


class _How:
    """How artifacts are loaded."""

    def __init__(
        self,
        threads: int | None,
        isa: str | None,
        backend: str | None,
        providers: tuple[tuple[str, dict[str, str]], ...],
        trust: str,
        mode: Mode,
    ) -> None:
        self.threads, self.isa, self.backend, self.providers = threads, isa, backend, providers
        self.trust, self.mode = trust, mode


def _window(artifacts: tuple[Place, ...], context: int | None, reference: str | None) -> int:
    """Tokens of a window that all artifacts hold. Raises RunError, before anything is loaded, for one that does not,
    and for an encoder without a reference."""
    from pyc.runtime.artifact.prefix import usable_context
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.errors import RunError
    from pyc.runtime.measure.evaluation import DEFAULT_CONTEXT

    least = context or DEFAULT_CONTEXT
    for path in artifacts:
        with open_artifact(path) as opened:
            info, most = opened.header.model, usable_context(opened.header)
        if info.kind == "encoder":
            if reference is None:
                raise RunError(
                    f"{path}: {info.architecture} is an encoder, whose vectors say nothing alone; compare them with "
                    "--reference CHECKPOINT"
                )
        elif context is not None and context > most:
            raise RunError(
                f"{path}: --context {context} exceeds the {most} tokens that it was compiled for; ask for "
                "fewer, or build with a larger shapes.context"
            )
        else:
            least = min(least, most)
    return least


@contextlib.contextmanager
def _loaded(path: Place, name: str, window: int, how: _How) -> Iterator[Candidate]:
    """An artifact, loaded."""
    from pyc.backends.artifact_storage import storage_of
    from pyc.runtime.errors import RunError
    from pyc.runtime.measure.evaluation import Candidate

    with open_ahead(path, how.mode) as opened:
        from pyc.runtime.model import load

        info = opened.header.model
        try:
            model = load(
                opened,
                threads=how.threads,
                isa=how.isa,
                backend=how.backend,
                providers=how.providers,
                trust=how.trust,
                context=window if info.kind == "decoder" else None,
            )
            if info.kind == "decoder":
                model.tokenizer  # noqa: B018 -- it is made at first use
        except RunError as error:
            if " artifact" not in str(error):
                raise
            raise RunError(f"{path}: {error}") from error  # of several, which
        used = model.program.backend if model.program is not None else None
        storage = storage_of(opened, used)
    with model:
        yield Candidate(name, model, storage)


@contextlib.contextmanager
def _baseline(
    source: str, recipe: Recipe | None, name: str, first: Candidate, window: int, how: _How
) -> Iterator[Baseline]:
    """The reference: an artifact that is loaded, a recipe is compiled without rounding."""
    from pyc.runtime.errors import RunError
    from pyc.runtime.measure.evaluation import Baseline

    if recipe is None:
        from pyc.runtime.sources.places import place_of

        place = place_of(source)
        with open_ahead(place, how.mode) as opened:
            from pyc.runtime.artifact.prefix import usable_context
            from pyc.runtime.model import load

            info, most = opened.header.model, usable_context(opened.header)
            if info.kind == "decoder" and most < window:
                raise RunError(
                    f"{place}: its context is {most}, and windows have {window} tokens; give a smaller "
                    "--context, or build the reference with a larger shapes.context"
                )
            model = load(
                opened,
                threads=how.threads,
                trust=how.trust,
                context=window if info.kind == "decoder" else None,
            )
        with model:
            yield Baseline(name, model, "artifact")
        return
    from pyc.commands.progress import report_progress
    from pyc.passes.driver.build import build
    from pyc.passes.driver.quality_reference import reference_model
    from pyc.runtime.host.extras import naming_missing_extras

    assert first.model.program is not None
    with contextlib.ExitStack() as stack:
        with naming_missing_extras(), report_progress() as report:

            def build_to(exact: Recipe, output: Path, key: Path) -> None:
                build(exact, output=output, key=key, progress=report)

            made = reference_model(
                recipe, first.model.program, first.model, window, build=build_to, threads=how.threads
            )
            model = stack.enter_context(made)
        yield Baseline(name, model, "checkpoint")


def _recipe(source: str) -> Recipe | None:
    """The recipe of a reference that is compiled; None for an artifact. Raises what `parse` does, and MissingExtraError
    without compilers."""
    from pyc.runtime.artifact.kinds import ARTIFACT, kind_of
    from pyc.runtime.host.extras import naming_missing_extras
    from pyc.runtime.sources.places import scheme_of

    check_text(source, "--reference")
    if scheme_of(source) or kind_of(source) == ARTIFACT:
        return None
    with naming_missing_extras():
        from pyc.passes.driver.build import parse
        from pyc.passes.driver.emit_programs import require_compilers

        recipe = parse(source)
    require_compilers(f"--reference {source}: it is compiled to be compared with", "give an artifact of it")
    return recipe


def _text_name(path: Path) -> str:
    from pyc.runtime.text.printable import printable

    return "standard input" if str(path) == "-" else printable(path.name)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Yield what shows how far an evaluation is: a line that a terminal replaces, one now and then in a log."""
    started_s = told_s = time.monotonic()
    doing = ""

    def report(what: str, done: int, total: int) -> None:
        nonlocal started_s, told_s, doing
        now_s = time.monotonic()
        if what != doing:
            doing, started_s = what, now_s
        left = ""
        if 0 < done < total:
            left = f", {human_duration((now_s - started_s) * (total - done) / done)} left"
        line = f"{what}: {done} of {total}{left}"
        show_status(line)
        if now_s - told_s >= TELL_EVERY_S and not (_is_shown() or is_quiet()):
            told_s = now_s
            tell(f"pyc: {line}")

    try:
        yield report
    finally:
        show_status("")


def _is_shown() -> bool:
    import sys

    return sys.stderr is not None and sys.stderr.isatty()
