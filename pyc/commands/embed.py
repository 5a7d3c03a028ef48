"""`pyc embed`: texts to vectors with an encoder artifact."""

import json
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import mmap_option, mode_of, open_ahead, require_kind
from pyc.commands.reading import check_text, read_text
from pyc.commands.screen import is_terminal

if TYPE_CHECKING:
    from pyc.runtime.executors.protocol import FloatArray
    from pyc.runtime.model import Model

_BATCH_TEXTS = 512
_NPY_MAGIC = b"\x93NUMPY"


@click.command("embed")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file with one text a line; - is standard input.",
)
@click.option(
    "--npy",
    type=click.Path(path_type=Path),
    help="Write float32 [texts, hidden] to this .npy file instead of JSON lines; - is standard output.",
)
@click.option("--force", is_flag=True, help="Let --npy replace a file that is no .npy file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a line a text.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use.  [default: the best this CPU runs]")
@mmap_option
def command(
    artifact: Path,
    texts: tuple[str, ...],
    file: Path | None,
    npy: Path | None,
    force: bool,
    as_json: bool,
    threads: int | None,
    isa: str | None,
    mmap: bool,
) -> None:
    """Turn TEXTS, or the lines of a file or of standard input, into vectors with ARTIFACT.

    Each line is a text, empty ones too, so that vector i is line i + 1. Prints one JSON line a text: {"index",
    "embedding"}; with --json one document: {"embeddings", "texts_cut"}. A text longer than the model's context is cut.
    """
    if texts and file is not None:
        raise click.UsageError("give texts, or --file, and not both")
    if npy is not None and as_json:
        raise click.UsageError("give --npy or --json, not both")
    if force and npy is None:
        raise click.UsageError("--force is for --npy")
    for text in texts:
        check_text(text, "TEXTS")
    if npy is not None:
        npy = _checked_target(npy, force)
    with open_ahead(artifact, mode_of(mmap)) as opened:
        require_kind(opened, "encoder")
        given = list(texts) or _lines(file)
        from pyc.runtime.model import load

        loaded = load(opened, threads=threads, isa=isa)
    with loaded as model:
        limit = model.embed_max_tokens
        batches = _Batches(model, given)
        if npy is not None:
            _write_npy(npy, batches)
        elif as_json:
            rows = [_numbers(vector) for vectors in batches for vector in vectors]
            print(json.dumps({"embeddings": rows, "texts_cut": batches.cut}))
        else:
            index = 0
            for vectors in batches:
                for vector in vectors:
                    print(json.dumps({"index": index, "embedding": _numbers(vector)}))
                    index += 1
    if not given:
        print("pyc: there are no texts", file=sys.stderr)
    if batches.cut:
        print(
            f"pyc: {batches.cut} of {len(given)} texts have more than the {limit} tokens that the model reads, "
            "and were cut",
            file=sys.stderr,
        )


class _Batches:
    """The vectors of texts, float32 [some, hidden] at a time; `cut` counts the texts that were cut so far."""

    def __init__(self, model: "Model", texts: list[str]) -> None:
        self.shape = (len(texts), model.info.hidden_size)
        self.cut = 0
        self._model = model
        self._texts = texts

    def __iter__(self) -> Iterator["FloatArray"]:
        from pyc.runtime.errors import RunError

        for start in range(0, len(self._texts), _BATCH_TEXTS):
            batch = self._texts[start : start + _BATCH_TEXTS]
            try:
                vectors = self._model.embed(batch)
                self.cut += self._model.count_cut(batch)
            except RunError as error:
                if start == 0:
                    raise
                raise RunError(f"from text {start} on: {error}") from error
            yield vectors


def _numbers(vector: "FloatArray") -> list[float]:
    """Nine significant digits, which give every float32 back exactly."""
    return [float(f"{value:.9g}") for value in vector.tolist()]


def _lines(file: Path | None) -> list[str]:
    """The lines of a file or of standard input; what follows the last line end is a line if there is anything."""
    lines = read_text(file, waits_for="one text a line").split("\n")
    return lines if lines[-1] else lines[:-1]


def _checked_target(path: Path, force: bool) -> Path:
    """Where --npy writes, with links followed. Raises click.UsageError for a place that holds something else."""
    if str(path) == "-":
        if is_terminal(sys.stdout) or sys.stdout is None:
            raise click.UsageError("--npy -: standard output takes no binary data here; redirect it, or name a file")
        return path
    path = path.resolve()
    if not path.exists():
        return path
    if not path.is_file():
        raise click.UsageError(f"--npy: {path} is not a regular file; choose another name")
    with path.open("rb") as file:
        start = file.read(len(_NPY_MAGIC))
    if start not in (b"", _NPY_MAGIC) and not force:
        raise click.UsageError(f"--npy: {path} exists and is no .npy file; --force replaces it")
    return path


def _write_npy(path: Path, batches: _Batches) -> None:
    """The file appears whole or not at all. Raises ArtifactError when it cannot be written."""
    import numpy as np

    from pyc.compiler.staging import StagedFile

    front = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": batches.shape}
    np.lib.format.write_array_header_1_0(front, header)
    if str(path) == "-":
        sys.stdout.buffer.write(front.getvalue())
        for vectors in batches:
            sys.stdout.buffer.write(vectors.astype("<f4").tobytes())
        sys.stdout.buffer.flush()
        return
    size_bytes = len(front.getvalue()) + 4 * batches.shape[0] * batches.shape[1]
    with StagedFile(path, expected_bytes=size_bytes) as file:
        file.write(front.getvalue())
        for vectors in batches:
            file.write(vectors.astype("<f4").tobytes())
        file.publish()
