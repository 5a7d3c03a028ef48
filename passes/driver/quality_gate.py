"""The gate of a recipe (`quality:`): the artifact is run over a text before it gets its name, and refused when it
exceeds a limit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from pyc import __version__
from pyc.backends.artifact_storage import storage_of
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.files.staging import StagedFile
from pyc.compiler.ir import Module
from pyc.compiler.recipe.types import Quality, Recipe
from pyc.passes.build_context import BuildContext
from pyc.passes.driver.quality_reference import reference_model
from pyc.passes.host_targets import require_target_here
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import QualityError, RecipeError, RunError
from pyc.runtime.executors.registry import choose_program
from pyc.runtime.host.output_file import OutputFile
from pyc.runtime.measure.evaluation import DEFAULT_CONTEXT, Baseline, Candidate, Passage, evaluate
from pyc.runtime.measure.quality_report import ArtifactQuality, Limit, QualityReport, document_text
from pyc.runtime.measure.scoring import encode_text, text_windows, texts_of
from pyc.runtime.measure.vector_quality import LEAST_TEXTS
from pyc.runtime.model import load
from pyc.runtime.text.counted import counted
from pyc.runtime.text.lines import plain_line_ends
from pyc.runtime.text.tokenizer import Tokenizer

MOST_BYTES = 64 << 20
REPORT_START = b'{\n  "pyc": '
"""How a report begins: what is there and begins so may be replaced."""

OF_DECODERS = ("max_kl", "max_ppl", "min_same_top")
OF_ENCODERS = ("min_cosine",)

Progress = Callable[[Literal["reference", "evaluate"], int, int], None]
"""Is told the stage of the build, and bytes that are done of all."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that is ready: its text is read. `name` is that of the artifact's file, `report` the file that gets the
    report, whatever the verdict."""

    name: str
    recipe: Recipe
    wanted: Quality
    passage: Passage
    report: OutputFile

    def require(self, path: Path, key: PublicKey, context: BuildContext, progress: Progress) -> QualityReport:
        """Return the report of the artifact at `path`, signed by `key`, which keeps all limits; it is written, too.
        `context` is that of the artifact's build.

        Raises QualityError for one that does not, RunError for one that does not run here, IngestError where a file
        that the build has read changed by the end, and the errors of a build of the reference.
        """
        report = self._measure(path, key, context, progress)
        context.files.check()
        text = document_text(report)
        with StagedFile(self.report.path, allowed=self.report.check) as file:
            file.write(text.encode())
            file.publish()
        exceeded = [limit for limit in report.limits if not limit.is_kept]
        if exceeded:
            told = ", ".join(f"{limit.name} {limit.limit:g}: got {limit.measured:.4g}" for limit in exceeded)
            raise QualityError(
                f"quality: {told}; no artifact is written. Take a scheme of more bits or another algorithm, or change "
                f"the limit; {self.report.path} has the report",
                report=text,
            )
        return report

    def _measure(self, path: Path, key: PublicKey, context: BuildContext, progress: Progress) -> QualityReport:
        with ExitStack() as stack:
            with open_artifact(path) as artifact:
                storage = storage_of(artifact)
                is_decoder = artifact.header.model.kind == "decoder"
                window = self.passage.context if is_decoder else None
                try:
                    program = choose_program(artifact.header.programs, None)
                    model = stack.enter_context(load(artifact, trust=key.text(), context=window))
                except RunError as error:
                    raise RunError(f"quality: the gate runs the artifact where it is built: {error}") from error
            baseline = None
            if self.wanted.reference == "checkpoint":
                reference = reference_model(
                    self.recipe,
                    program,
                    model,
                    self.passage.context,
                    build=partial(
                        context.build,
                        progress=lambda event: progress("reference", event.done_bytes, event.total_bytes),
                    ),
                )
                checkpoint = Path(self.recipe.model).name or self.recipe.model
                baseline = Baseline(checkpoint, stack.enter_context(reference), "checkpoint")
            size = len(self.passage.text)
            report = evaluate(
                [Candidate(self.name, model, storage)],
                baseline,
                self.passage,
                version=__version__,
                with_speed=False,
                progress=lambda what, done, total: progress("evaluate", size * done // max(total, 1), size),
            )
        return msgspec.structs.replace(report, limits=self.limits(report.artifacts[0]))

    def limits(self, found: ArtifactQuality) -> tuple[Limit, ...]:
        """Return each limit beside what was measured."""
        measured: dict[str, float] = {}
        if found.perplexity is not None:
            measured["max_ppl"] = found.perplexity.value
        if found.divergence is not None:
            measured |= {"max_kl": found.divergence.kl.value, "min_same_top": found.divergence.same_top.value}
        if found.vectors is not None:
            measured["min_cosine"] = found.vectors.cosine.value
        return tuple(
            Limit(name=name, limit=limit, measured=measured[name], is_kept=_keeps(name, measured[name], limit))
            for name, limit in self.wanted.limits()
        )


def read_gate(recipe: Recipe, module: Module, files: SourceFiles, artifact: OutputFile) -> Gate | None:
    """Return the gate of a recipe, None where it has none. `artifact` is where the build writes.

    Raises RecipeError for a text that cannot be read or is too short, a limit that this kind of model does not have,
    and targets of which none can run on this machine.
    """
    wanted, info = recipe.quality, module.info
    if wanted is None:
        return None
    allowed = OF_DECODERS if info.kind == "decoder" else OF_ENCODERS
    for name, _ in wanted.limits():
        if name not in allowed:
            raise RecipeError(
                f"quality.{name}: {info.architecture} is {'a decoder' if info.kind == 'decoder' else 'an encoder'}, "
                f"expected {', '.join(allowed)}; take {name} out"
            )
    most = module.usable_context
    if info.kind == "decoder" and (wanted.context or 0) > most:
        raise RecipeError(
            f"quality.context: got {wanted.context}, expected at most {most}, the model's context; lower it, "
            "or raise shapes.context"
        )
    purpose = "quality: the gate runs the artifact where it is built"
    require_target_here(recipe.targets, purpose, "take the gate out and run `pyc eval` where the artifact runs")
    context = min(wanted.context or DEFAULT_CONTEXT, most)
    text = _text(recipe, wanted, files)
    _check_length(text, wanted, module, context)
    name = artifact.path.name.removesuffix(".pyca")
    report = OutputFile(
        artifact.path.with_name(f"{name}.quality.json"),
        artifact.sources,
        REPORT_START,
        what="a quality report",
        force=artifact.force,
    )
    passage = Passage(Path(wanted.text).name, text, context, wanted.tokens)
    return Gate(artifact.path.name, recipe, wanted, passage, report)


def _check_length(text: str, wanted: Quality, module: Module, context: int) -> None:
    """Raise RecipeError for a text that the evaluation would find too short."""
    if module.info.kind == "encoder":
        count = len(texts_of(text)[: wanted.tokens])
        if count < LEAST_TEXTS:
            raise RecipeError(
                f"quality.text: {wanted.text}: it has {counted(count, 'line')} with text, expected at least "
                f"{LEAST_TEXTS}; give more"
            )
        return
    carried = dict(module.files)
    if "tokenizer.json" not in carried:
        raise RecipeError("quality: a text is read by the model's tokenizer, and the checkpoint has no tokenizer.json")
    tokenizer = Tokenizer(carried["tokenizer.json"], carried.get("tokenizer_config.json"))
    ids, _ = encode_text(tokenizer, text, wanted.tokens)
    try:
        text_windows(ids, context, limit=wanted.tokens)
    except RunError as error:
        raise RecipeError(f"quality.text: {wanted.text}: {error}".replace("--context", "quality.context")) from error


def _keeps(name: str, measured: float, limit: float) -> bool:
    return measured <= limit if name.startswith("max_") else measured >= limit


def _text(recipe: Recipe, wanted: Quality, files: SourceFiles) -> str:
    where, path = f"quality.text: {wanted.text}", str(recipe.locate(wanted.text))
    try:
        size = files.size_bytes(path)
        if size > MOST_BYTES:
            raise RecipeError(f"{where}: it has {size:,} bytes, expected at most {MOST_BYTES:,}; cut it")
        data = files.read(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipeError(f"{where}: cannot be read: {reason}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{where}: not UTF-8 at byte {error.start}; write it again in UTF-8 (iconv -f ENCODING -t UTF-8)"
        ) from error
    text = plain_line_ends(text.removeprefix("\ufeff"))
    if not text.strip():
        raise RecipeError(f"{where}: it is empty; give a text like what the model is for")
    return text
