"""What a build sends to a worker on another machine, and what comes back: a verdict, never the result itself."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

import msgspec

from pyc import __version__
from pyc.compiler.digest import EVALUATION_VERSION
from pyc.compiler.files.blocks import Run
from pyc.passes.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Site:
    """What every job of a build has in common.

    `place` is where results go, `probe` a key that has to be there; relative paths of sources start at `folder`.
    `versions` are those that decide bytes.
    """

    build: str
    place: str
    probe: str
    folder: str
    versions: str


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A source file, and the digests of the blocks that a job reads."""

    path: str
    size_bytes: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job for one worker: its result is to be in the shared cache under the job's key."""

    site: Site
    job: Job
    known: tuple[KnownFile, ...]


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a job went: on which machine and process, how much memory that has had, and the error if there was one.

    `error` names a class of `pyc.runtime.errors`. `size_bytes`, `digest` and `blocks` are those of a file that was to
    be hashed.
    """

    machine: str
    process: int
    peak_rss_bytes: int
    elapsed_s: float
    error: str = ""
    message: str = ""
    size_bytes: int = 0
    digest: str = ""
    blocks: bytes = b""


def versions() -> str:
    """Return what has to be the same on every machine, for results to be."""
    return f"pyc {__version__}, evaluation {EVALUATION_VERSION}, numpy {importlib.metadata.version('numpy')}"
