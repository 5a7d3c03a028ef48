"""How far ahead compiled code asks for weights: as `pyc tune` found it on this kind of CPU, or by the CPU's maker.

It is a matter of caches and of what the hardware fetches by itself, which instruction sets do not tell: a token takes
1.2 times as long with another CPU's distances (docs/lab/experiments.md). No result depends on it.

    <home>/tuned.json    {"<kind of CPU>": {"<instruction set>": {"codes": {"few": 0, ...}, ...}}}
"""

import ctypes
import logging
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import msgspec

from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.features import cpu_kind
from pyc.runtime.host.home import find_home_directory, open_regular, write_whole
from pyc.runtime.host.signal_handlers import unless_signalled

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 20

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


class Distance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes ahead into the first-level cache (0: nothing is asked for): `few`, where one or two tokens are multiplied,
    and `many`, where more are. `panel`: whether the next panel is asked for then, into the second-level cache."""

    few: Bytes
    many: Bytes
    panel: bool


class Distances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By what panels hold: `codes`, `floats`, or `pairs` of bf16 that are multiplied as such
    (`struct pyc_prefetch_distances`, templates/cpu/include/pyc_prefetch_distances.h)."""

    codes: Distance
    floats: Distance
    pairs: Distance

    def as_c(self) -> ctypes.Array[ctypes.c_int32]:
        """The values as compiled code takes them."""
        kinds = (self.codes, self.floats, self.pairs)
        values = [value for kind in kinds for value in (kind.few, kind.many, int(kind.panel))]
        return (ctypes.c_int32 * len(values))(*values)


@runtime_checkable
class PrefetchesWeights(Protocol):
    """An executor whose compiled code asks for weights before it reads them."""

    def set_distances(self, distances: Distances) -> None:
        """Say how far ahead weights are asked for from the next run on. No result depends on it."""
        ...


ZEN4 = Distances(Distance(0, 3072, True), Distance(0, 0, True), Distance(0, 0, True))
SAPPHIRE_RAPIDS = Distances(Distance(2048, 2048, False), Distance(2048, 2048, False), Distance(1536, 1536, False))

_BY_MAKER = {"GenuineIntel": SAPPHIRE_RAPIDS}
"""What was measured on one CPU of a maker is taken for all; for the others, Zen 4's."""

_File = dict[str, dict[str, Distances]]


def distances_for(isa: str, home: Path | None = None) -> Distances:
    """Return what code for the instruction set `isa` is to use on this CPU.

    A file that cannot be read is no reason not to run: it is logged, and the maker's distances are returned.
    """
    folder = home or find_home_directory()
    try:
        tuned = _read(_path(folder)) if folder else {}
    except RunError as error:
        logger.warning("%s", error)
        tuned = {}
    return tuned.get(cpu_kind(), {}).get(isa) or usual_distances()


def usual_distances() -> Distances:
    """Return what CPUs of this one's maker get unless they are tuned."""
    return _BY_MAKER.get(cpu_kind().partition(" ")[0], ZEN4)


def keep_distances(isa: str, distances: Distances, home: Path | None = None) -> Path:
    """Make `distances` those of `isa` on this kind of CPU; returns the file. Raises RunError when it cannot be read or
    written."""
    tuned = _read(_path(home))
    kind = cpu_kind()
    return _write(home, {**tuned, kind: {**tuned.get(kind, {}), isa: distances}})


def require_keeping(home: Path | None = None) -> None:
    """Raise RunError where `keep_distances` would, as without a home directory, before anything is measured. Nothing is
    left behind."""
    import tempfile

    path = _path(home)
    _read(path)
    folder = next(folder for folder in path.parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # modes show neither a read-only mount nor root
            file.write(b"\0")
    except unless_signalled(OSError) as error:
        raise _unwritable(path, error) from error


def forget_distances(home: Path | None = None) -> int:
    """Forget what was kept for this kind of CPU; returns for how many instruction sets. Raises RunError."""
    tuned = _read(_path(home))
    forgotten = tuned.pop(cpu_kind(), {})
    if forgotten:
        _write(home, tuned)
    return len(forgotten)


def _path(home: Path | None) -> Path:
    folder = home or find_home_directory()
    if folder is None:
        raise RunError(
            "tune: what is found is kept in $PYC_HOME/tuned.json for later runs, and there is no such folder: PYC_HOME "
            "and XDG_CONFIG_HOME are not set, and this user has no home directory that it may enter; set PYC_HOME, for "
            "later runs, too, to a folder that can be written"
        )
    return folder / "tuned.json"


def _read(path: Path) -> _File:
    try:
        with open_regular(path) as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_File)
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        parent = next(folder for folder in path.parents if folder.exists())
        raise RunError(
            f"{path}: cannot be read: {parent} is a file, expected a folder; set PYC_HOME to a folder"
        ) from error
    except unless_signalled(OSError) as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError, too
        raise RunError(f"{path}: not what `pyc tune` writes: {error}; delete it and tune again") from error


def _write(home: Path | None, tuned: _File) -> Path:
    path = _path(home)
    text = msgspec.json.format(msgspec.json.encode(tuned, order="sorted"), indent=2).decode()
    try:
        write_whole(path, text + "\n", 0o644, replace=True)
    except unless_signalled(OSError) as error:
        raise _unwritable(path, error) from error
    return path


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written: {error.strerror}, and what `pyc tune` finds is kept there for later runs; tune as "
        "a user who may write there, or set PYC_HOME, for later runs, too, to a copy of that folder that can be written"
    )
