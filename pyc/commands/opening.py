"""How commands that run an artifact start: hashing begins before anything slow is imported."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from pyc.runtime.text.printable import printable

if TYPE_CHECKING:
    from typing import Literal

    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.sources.places import Place
    from pyc.runtime.sources.protocol import Mode


BACKENDS = ("cpu", "onnx", "tensorrt", "cuda")
"""The engines, as `pyc.runtime.executors.registry` has them."""
ARTIFACT_FILE = click.Path(path_type=Path, readable=False)
"""A file that a command opens as an artifact. That it cannot be read is said when it is opened (8): click would call it
wrong usage (2)."""


class _PathText(click.types.StringParamType):
    """Text that names a file or a folder, or something else, such as a model on the hub: a shell completes the path."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """What tells the shell to complete files."""
        return [CompletionItem(incomplete, type="file")]


PATH_TEXT = _PathText()

_STANDARD_INPUTS = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


class ArtifactPlace(click.Path):
    """A file, a URL, or, where the command `reads_stdin`, - for standard input."""

    name = "artifact"

    def __init__(self, *, reads_stdin: bool = False) -> None:
        super().__init__(path_type=Path, readable=False)  # as ARTIFACT_FILE
        self._reads_stdin = reads_stdin

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> "Place":
        """Return the place; fails as click's types do."""
        from pyc.runtime.sources.places import STANDARD_INPUT, Remote, scheme_of

        if scheme_of(value) or (self._reads_stdin and value == STANDARD_INPUT):
            return Remote(str(value))
        path = super().convert(value, param, ctx)  # type: ignore[arg-type]
        assert isinstance(path, Path)
        return path


def require_other_input(artifact: "Place", read: "Path | None", remedy: str) -> None:
    """Raise click.UsageError where an artifact comes from standard input and so would what is `read`; None is standard
    input, too."""
    from pyc.runtime.sources.places import STANDARD_INPUT

    is_standard = read is None or str(read) in (STANDARD_INPUT, *_STANDARD_INPUTS)
    if getattr(artifact, "address", None) == STANDARD_INPUT and is_standard:
        raise click.UsageError(f"-: the artifact comes from standard input, so {remedy}")


mmap_option = click.option(
    "--mmap/--no-mmap",
    default=True,
    show_default=True,
    help="Map the weights, or copy them into huge pages: slower to load, faster where the mapped file is scattered.",
)


trust_option = click.option(
    "--trust",
    default="required",
    metavar="KEY|FILE",
    help="Ask for this public key's signature, or by this policy.  [default: as this machine's policy asks]",
)


backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    help="The engine.  [default: the first of the artifact's that runs here]",
)


def _providers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, dict[str, str]], ...]:
    found = []
    for value in values:
        name, _, options = value.partition(":")
        pairs = [option.partition("=") for option in options.split(",") if option]
        if not name or any(not key or not equals for key, equals, _ in pairs):
            raise click.BadParameter(f"got {printable(value)!r}, expected NAME or NAME:KEY=VALUE,...")
        found.append((name, {key: setting for key, _, setting in pairs}))
    return tuple(found)


provider_option = click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    callback=_providers,
    help="An execution provider of ONNX Runtime, for --backend onnx; several are tried in turn.  [default: its CPU's]",
)


def mode_of(is_mapped: bool) -> "Mode":
    """The reader's name of what `mmap_option` says."""
    return "mmap" if is_mapped else "pread"


def keep_blas_small() -> None:
    """Before numpy is imported: no command that reads an artifact multiplies with it, and a build has its own threads.

    Its BLAS begins threads, which keep the cores busy, and where the system has no more it sends the process a SIGINT.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextmanager
def open_ahead(path: "Place", mode: "Mode" = "mmap") -> Iterator["Artifact"]:
    """Yield the artifact, open, with its tensors being verified in the background: hand it to `load` inside.

    Those of another machine are fetched from `load` on, which looks at the signature first. Raises ArtifactError.
    """
    keep_blas_small()
    # What is made while starting lives as long as the process; looking for garbage in it takes 16 ms.
    collects = gc.isenabled()
    gc.disable()
    try:
        from pyc.runtime.artifact.reader import open_artifact

        with open_artifact(path, mode=mode) as artifact:
            artifact.progress = _show_progress
            artifact.verify_ahead()
            yield artifact
    finally:
        if collects:
            gc.enable()


def _show_progress(done_bytes: int, total_bytes: int) -> None:
    """Say to a terminal how much of a remote artifact is here; nothing once all is."""
    from pyc.commands.status_line import show_status
    from pyc.runtime.host.sizes import human_bytes

    share = f"fetching: {done_bytes / total_bytes:.0%} of {human_bytes(total_bytes)}"
    show_status(share if done_bytes < total_bytes else "")


def require_kind(artifact: "Artifact", kind: "Literal['decoder', 'encoder']") -> None:
    """Raise RunError, before anything waits for input, when a command is not for this kind of model."""
    from pyc.runtime.errors import RunError

    model = artifact.header.model
    if model.kind == kind:
        return
    if model.kind == "encoder":
        raise RunError(
            f"{artifact.path}: {model.architecture} is an encoder: it turns texts into vectors and does not generate; "
            "use pyc embed"
        )
    raise RunError(
        f"{artifact.path}: {model.architecture} is a decoder: it generates text and gives no vectors; use pyc run"
    )
