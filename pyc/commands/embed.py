"""`pyc embed`: texts to vectors with an encoder artifact."""

import os
import sys
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.count_progress import CountProgress
from pyc.commands.json_lines import JsonLine, is_json_lines, read_texts
from pyc.commands.opening import (
    ArtifactPlace,
    backend_option,
    mmap_option,
    mode_of,
    open_ahead,
    provider_option,
    require_kind,
    require_other_input,
    trust_option,
)
from pyc.commands.reading import check_text, read_lines
from pyc.commands.screen import is_terminal, say_json, tell
from pyc.runtime.text.json_text import json_text

if TYPE_CHECKING:
    from pyc.runtime.errors import RunError
    from pyc.runtime.executors.protocol import FloatArray
    from pyc.runtime.host.output_file import OutputFile
    from pyc.runtime.model import Model
    from pyc.runtime.sources.places import Place

_BATCH_TEXTS = 512
_NPY_MAGIC = b"\x93NUMPY"


@click.command("embed")
@click.argument("artifact", type=ArtifactPlace(reads_stdin=True))
@click.argument("texts", nargs=-1)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file with one text a line (JSON in *.jsonl, *.ndjson); - is standard input.",
)
@click.option(
    "--npy",
    type=click.Path(path_type=Path),
    help="Write float32 [texts, hidden] to this .npy file instead of JSON lines; - is standard output.",
)
@click.option("--force", is_flag=True, help="Let --npy replace a file that is no .npy file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a line a text.")
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use; `pyc inspect` lists them.  [default: the best this CPU runs]")
@trust_option
@backend_option
@provider_option
@mmap_option
def command(
    artifact: "Place",
    texts: tuple[str, ...],
    file: Path | None,
    npy: Path | None,
    force: bool,
    as_json: bool,
    threads: int | None,
    isa: str | None,
    trust: str,
    backend: str | None,
    providers: tuple[tuple[str, dict[str, str]], ...],
    mmap: bool,
) -> None:
    """Turn TEXTS, or the lines of a file or of standard input, into vectors with ARTIFACT.

    Each line is a text, empty ones too, so that vector i is line i + 1; in a file *.jsonl or *.ndjson it is a JSON
    string or {"text": "..."}, where an "id" may stand too. Prints one JSON line a text: {"index", "embedding"}, and its
    "id"; with --json one document: {"embeddings", "texts_cut"}. A text that is too long is cut.
    """
    if texts and file is not None:
        raise click.UsageError("give texts, or --file, and not both")
    if npy is not None and as_json:
        raise click.UsageError("give --npy or --json, not both")
    if force and npy is None:
        raise click.UsageError("--force is for --npy")
    for text in texts:
        check_text(text, "TEXTS")
    if not texts:
        require_other_input(artifact, file, "give texts, or a file of them with --file")
    target = _npy_target(npy, artifact, file, force) if npy is not None else None
    with open_ahead(artifact, mode_of(mmap)) as opened:
        require_kind(opened, "encoder")
        from pyc.runtime.model import load

        loaded = load(opened, threads=threads, isa=isa, trust=trust, backend=backend, providers=providers)
    with loaded as model:
        vectors = _Vectors(
            model, _given(texts, file), has_lines=not texts, appear=npy is None and not as_json
        )
        if npy is not None:
            _write_npy(target, vectors)
        elif as_json:
            rows = [_numbers(vector) for batch in vectors for vector in batch]
            say_json({"embeddings": rows, "texts_cut": vectors.cut}, indent=None)
        else:
            for batch in vectors:
                first = vectors.count - len(batch)
                for index, (vector, name) in enumerate(zip(batch, vectors.ids, strict=True), first):
                    own = {} if name is None else {"id": name}
                    print(json_text({"index": index, **own, "embedding": _numbers(vector)}))
                sys.stdout.flush()
        limit = model.embed_max_tokens
    if len(texts) == 1 and os.path.isfile(texts[0]):
        tell(f"pyc: {texts[0]!r} was embedded as a text, and is a file; --file embeds its lines")
    if not vectors.count:
        tell("pyc: there are no texts")
    if vectors.cut:
        tell(
            f"pyc: {vectors.cut} of {vectors.count} texts have more than the {limit} tokens that the model reads, "
            "and were cut"
        )


def _given(texts: tuple[str, ...], file: Path | None) -> Iterator[JsonLine]:
    """The texts, each as the `value`, with their "id"."""
    if file is not None and is_json_lines(file):
        return read_texts(file)
    return map(JsonLine, texts or read_lines(file, waits_for="one text a line"))


class _Vectors:
    """The vectors of texts, float32 [some, hidden] at a time, so that texts may be as many as there are.

    `has_lines`: each is a line of a file or of standard input. `appear`: they are printed as they come. `count` and
    `cut` count the texts so far, and those of them that were cut; `ids` are those of the last ones.
    """

    def __init__(self, model: "Model", texts: Iterator[JsonLine], *, has_lines: bool, appear: bool) -> None:
        self.hidden_size = model.info.hidden_size
        self.count = 0
        self.cut = 0
        self.ids: list[str | int | None] = []
        self._model = model
        self._texts = texts
        self._has_lines, self._appear = has_lines, appear

    def __iter__(self) -> Iterator["FloatArray"]:
        from pyc.runtime.errors import RunError

        with CountProgress("texts", appears=self._appear) as progress:
            while given := list(islice(self._texts, _BATCH_TEXTS)):
                batch = [str(each.value) for each in given]
                self.ids = [each.id for each in given]
                try:
                    vectors = self._model.embed(batch)
                    self.cut += self._model.count_cut(batch)
                except RunError as error:
                    raise RunError(self._placed(error)) from error
                self.count += len(batch)
                yield vectors
                progress.reach(self.count)

    def _placed(self, error: "RunError") -> str:
        """What is wrong with a batch, and where in all texts."""
        if error.prompt is None:
            return f"from text {self.count} on: {error}" if self.count else str(error)
        number = self.count + error.prompt
        line = f" (line {number + 1})" if self._has_lines else ""
        return f"embed: text {number}{line}{str(error).removeprefix(f'embed: text {error.prompt}')}"


def _numbers(vector: "FloatArray") -> list[float]:
    """Nine significant digits, which give every float32 back exactly."""
    return [float(f"{value:.9g}") for value in vector.tolist()]


def _npy_target(path: Path, artifact: "Place", file: Path | None, force: bool) -> "OutputFile | None":
    """Where --npy writes, with links followed; None is standard output.

    Raises click.UsageError for a terminal, and ArtifactError for a place that holds something else or is read here.
    """
    from pyc.runtime.host.output_file import OutputFile, output_path

    if str(path) == "-":
        if is_terminal(sys.stdout) or sys.stdout is None:
            raise click.UsageError("--npy -: standard output takes no binary data here; redirect it, or name a file")
        return None
    sources = [(str(artifact), "the artifact")]
    if file is not None:
        sources.append((str(file), "the file of texts"))
    target = OutputFile(
        output_path(path).resolve(), tuple(sources), _NPY_MAGIC, what="a .npy file", force=force, option="--npy"
    )
    target.check()
    return target


def _write_npy(target: "OutputFile | None", vectors: _Vectors) -> None:
    """The file appears whole or not at all. Raises OSError when it cannot be written."""
    from pyc.compiler.files.staging import StagedFile

    if target is None:
        rows = list(vectors)
        sys.stdout.buffer.write(_npy_front(vectors))
        for batch in rows:
            sys.stdout.buffer.write(batch.astype("<f4").tobytes())
        sys.stdout.buffer.flush()
        return
    with StagedFile(target.path, allowed=target.check) as file:
        for batch in vectors:
            file.write(batch.astype("<f4").tobytes())
        file.insert_front(_npy_front(vectors))
        file.publish()


def _npy_front(vectors: _Vectors) -> bytes:
    """The header of a file of all vectors so far."""
    import numpy as np

    front = BytesIO()
    shape = (vectors.count, vectors.hidden_size)
    np.lib.format.write_array_header_1_0(front, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return front.getvalue()
