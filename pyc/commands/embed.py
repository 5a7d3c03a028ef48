"""`pyc embed`: texts to vectors with an encoder artifact."""

import json
import sys
from pathlib import Path

import click

from pyc.commands.opening import mmap_option, mode_of, open_ahead

_BATCH_TEXTS = 512


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
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write float32 [texts, hidden] to this .npy file instead of JSON lines.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use.  [default: the best this CPU runs]")
@mmap_option
def command(
    artifact: Path,
    texts: tuple[str, ...],
    file: Path | None,
    npy: Path | None,
    threads: int | None,
    isa: str | None,
    mmap: bool,
) -> None:
    """Turn TEXTS, or the lines of a file, into vectors with ARTIFACT.

    Prints one JSON line a text: {"index", "embedding"}.
    """
    if bool(texts) == (file is not None):
        raise click.UsageError("give texts, or --file, and not both")
    with open_ahead(artifact, mode_of(mmap)) as opened:
        given = list(texts) if file is None else _lines(file)
        import numpy as np

        from pyc.runtime.model import load

        loaded = load(opened, threads=threads, isa=isa)
    with loaded as model:
        if npy is not None:
            vectors = model.embed(given)
            with open(npy, "wb") as target:
                np.save(target, vectors, allow_pickle=False)
            return
        for start in range(0, len(given), _BATCH_TEXTS):
            vectors = model.embed(given[start : start + _BATCH_TEXTS])
            for index, vector in enumerate(vectors, start):
                # Nine significant digits give every float32 back exactly.
                numbers = [float(f"{value:.9g}") for value in vector.tolist()]
                print(json.dumps({"index": index, "embedding": numbers}))


def _lines(file: Path) -> list[str]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: not UTF-8 text at byte {error.start}") from error
    return text.splitlines()
