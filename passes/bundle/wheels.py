"""The wheels of the runtime, pinned to what this installation runs with, and their licences.

pip makes and fetches them: pyc's own out of the checkout or of the wheel that is installed here, or of the index; the
rest for the machine and Python that are asked for. With a folder of wheels given, nothing is fetched.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import unquote, urlsplit

from pyc.compiler.files.work_folder import work_folder
from pyc.compiler.processes import Processes
from pyc.passes.bundle.files import BundleFile
from pyc.passes.bundle.markers import environment, holds
from pyc.passes.bundle.pip_settings import pip_environment
from pyc.passes.bundle.wheel_tags import fits
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.errors import ArtifactError
from pyc.runtime.text.printable import printable

DISTRIBUTION = "pyc-compiler"
MACHINES = ("x86_64", "aarch64")
MAX_LICENCE_BYTES = 1 << 20
MOST_NAMED = 3
_EPOCH = "315532800"
"""The first second of 1980, where the times of zip files begin."""
_OWN = "pyc's own, which `pip wheel --no-deps -w DIR .` makes in a checkout"
_GLIBC = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28, 31, 34)))
_exception = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .")
_requirement = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?[^;]*(?:;(.*))?")
_licence = re.compile(r"[^/]+\.dist-info/(?:licen[cs]es/.+|(?:LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a bundle runs: a machine as `uname -m` calls it, and a version of Python such as "3.11"."""

    machine: str
    python: str

    @property
    def is_here(self) -> bool:
        """Whether that is this machine and this Python."""
        return self == Target.here()

    @staticmethod
    def here() -> Target:
        """Return this machine and this Python."""
        import platform

        return Target(platform.machine(), f"{sys.version_info[0]}.{sys.version_info[1]}")


def oldest_python() -> tuple[int, int]:
    """Return the oldest version of Python that pyc runs with, as its package says."""
    wanted = re.search(r">=\s*(\d+)\.(\d+)", importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"])
    assert wanted is not None, "pyproject.toml has requires-python"
    return int(wanted[1]), int(wanted[2])


def pins(target: Target, extras: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the versions of all that the runtime needs on `target`, without pyc itself, by name: those that are
    installed here. What else is installed here has no say.

    Raises ArtifactError for a package that is not.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(DISTRIBUTION, extras)]
    while waiting:
        name, wanted = waiting.pop()
        for required in importlib.metadata.requires(name) or ():
            needed = _needed(required, target, wanted)
            if needed is None or needed.name in found:
                continue
            try:
                found[needed.name] = importlib.metadata.version(needed.name)
            except importlib.metadata.PackageNotFoundError:
                raise ArtifactError(
                    f"{needed.name}: is not installed here, so its version is not known; pip install {needed.name}"
                ) from None
            waiting.append((needed.name, needed.extras))
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class _Needed:
    name: str
    extras: tuple[str, ...]


def _needed(required: str, target: Target, extras: tuple[str, ...]) -> _Needed | None:
    """What a requirement asks for; None for one of another place than `target`, or of an extra that nobody wants."""
    match = _requirement.fullmatch(required.strip())
    if match is None:
        return None
    if marker := match[3]:
        values = environment(target.machine, target.python)
        try:
            if not any(holds(marker, {**values, "extra": extra}) for extra in ("", *extras)):
                return None
        except ValueError as error:
            raise ArtifactError(f"{required}: {error}; pip install --upgrade what requires it") from error
    names = tuple(part.strip() for part in (match[2] or "[]")[1:-1].split(",") if part.strip())
    return _Needed(re.sub(r"[-_.]+", "-", match[1]).lower(), names)


def fetch_wheels(folder: Path, target: Target, versions: dict[str, str]) -> None:
    """Put pyc's wheel and those of `versions` into the folder. Raises ArtifactError with what pip says, and how to
    gather them by hand."""
    try:
        _fetch_own(folder)
        _pip(*_download(folder, target, versions))
    except (ArtifactError, OSError) as error:
        if "No space left on device" in str(error):
            raise ArtifactError(f"{error}; free some in {gettempdir()}, or set TMPDIR to another folder") from error
        raise ArtifactError(
            f"{error}; give them with --wheels DIR: {_OWN}, the others by `"
            f"{_command(Path('DIR'), target, versions)}`; or leave them out with --no-wheels"
        ) from error


def _fetch_own(folder: Path) -> None:
    source = _origin()
    if source is None:
        own = [f"{DISTRIBUTION}=={importlib.metadata.version(DISTRIBUTION)}"]
        _pip("download", "--no-deps", "--dest", str(folder), *own)
    elif source.is_file():
        shutil.copyfile(source, folder / source.name)
    else:
        # What setuptools leaves of an earlier build would be in the wheel; and a checkout is not ours to write to.
        settings = folder / "setuptools.cfg"
        settings.write_text(f"[build]\nbuild_base = {folder / 'build'}\n[egg_info]\negg_base = {folder}\n", "utf-8")
        # Times of files are those of the checkout, of which a job makes a new one each time.
        about = {"SOURCE_DATE_EPOCH": _EPOCH, "DIST_EXTRA_CONFIG": str(settings)}
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source), **about)


def _download(folder: Path, target: Target, versions: dict[str, str]) -> list[str]:
    """Return the arguments with which pip puts wheels of `versions` for `target` into the folder."""
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    if not target.is_here:
        options += [f"--platform={glibc}_{target.machine}" for glibc in _GLIBC]
        options += ["--python-version", target.python, "--implementation", "cp"]
    return ["download", *options, *(f"{name}=={version}" for name, version in versions.items())]


def _command(folder: Path, target: Target, versions: dict[str, str]) -> str:
    """Return that for a person to type."""
    return shlex.join(["pip", *_download(folder, target, versions)])


def wheel_files(folder: Path, target: Target, versions: dict[str, str]) -> list[BundleFile]:
    """Return the wheels of a folder that the bundle needs, by name in it: those that install on `target`.

    Raises ArtifactError where one is missing, or is there for other machines or Pythons alone.
    """
    own = importlib.metadata.version(DISTRIBUTION)
    found: list[BundleFile] = []
    missing: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, version in {DISTRIBUTION: own, **versions}.items():
        start = f"{name.replace('-', '_')}-{version}-".lower()
        there = [p for p in sorted(folder.glob("*.whl")) if _normal(p.name).startswith(start) and p.is_file()]
        if not there:
            missing[name] = version
            continue
        fitting = [path for path in there if fits(path.name, target.machine, target.python)]
        found.extend(BundleFile(f"wheels/{path.name}", path) for path in fitting)
        if not fitting:
            others[name] = " or ".join(path.name for path in there)
    if missing:
        named = _first(f"{name} {version}" for name, version in missing.items())
        raise ArtifactError(f"{folder}: has no wheel of {named}; add {_remedy(folder, target, versions, missing)}")
    if others:
        raise ArtifactError(
            f"{folder}: got {_first(others.values())}, expected wheels for Python {target.python} and "
            f"glibc on {target.machine}; add {_remedy(folder, target, versions, others)}"
        )
    return found


def _first(names: Iterable[str]) -> str:
    given = list(names)
    more = f" and {len(given) - MOST_NAMED} more" if len(given) > MOST_NAMED else ""
    return ", ".join(given[:MOST_NAMED]) + more


def _remedy(folder: Path, target: Target, versions: dict[str, str], lacking: Iterable[str]) -> str:
    """How those that are lacking get into the folder."""
    names = set(lacking)
    rest = {name: version for name, version in versions.items() if name in names}
    own = [_OWN.replace("DIR", shlex.quote(str(folder)))] if DISTRIBUTION in names else []
    return ", and ".join([*own, *([f"what `{_command(folder, target, rest)}` fetches"] if rest else [])])


def _normal(file_name: str) -> str:
    name, _, rest = file_name.partition("-")
    return f"{re.sub(r'[-_.]+', '_', name)}-{rest}".lower()


def requirements(wheels: list[BundleFile], versions: dict[str, str]) -> BundleFile:
    """A requirements file with the SHA-256 of each wheel, for pip's --require-hashes."""
    own = importlib.metadata.version(DISTRIBUTION)
    lines = []
    for name, version in {DISTRIBUTION: own, **versions}.items():
        start = f"{name.replace('-', '_')}-{version}-".lower()
        hashes = [file.sha256() for file in wheels if _normal(Path(file.name).name).startswith(start)]
        lines.append(f"{name}=={version} " + " ".join(f"--hash=sha256:{each}" for each in hashes))
    return BundleFile("requirements.txt", "".join(f"{line}\n" for line in lines).encode())


def licences(wheels: list[BundleFile]) -> Iterator[BundleFile]:
    """Yield the licence texts of the wheels. Raises ArtifactError for a damaged one, or names that lead out."""
    for wheel in wheels:
        assert isinstance(wheel.content, Path)
        try:
            with zipfile.ZipFile(wheel.content) as archive:
                yield from _licences_of(wheel.name, wheel.content, archive)
        except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError, EOFError) as error:
            raise ArtifactError(f"{wheel.content}: is no whole wheel: {error}; fetch it again") from error


def _licences_of(name: str, wheel: Path, archive: zipfile.ZipFile) -> Iterator[BundleFile]:
    folder = "licences/" + "-".join(Path(name).name.split("-")[:2])
    taken: set[str] = set()
    for entry in archive.infolist():
        if not _licence.fullmatch(entry.filename) or entry.is_dir() or entry.file_size > MAX_LICENCE_BYTES:
            continue
        if not is_plain_name(entry.filename):
            raise ArtifactError(f"{wheel}: has the file {entry.filename[:200]!a}, which no wheel has")
        within = entry.filename.partition("/")[2]
        place = within.removeprefix("licenses/")
        place = within if place in taken else place
        if place not in taken:
            taken.add(place)
            yield BundleFile(f"{folder}/{place}", archive.read(entry))


def _origin() -> Path | None:
    """The checkout or the wheel that pyc is installed from; None when it came from an index, or that is there no more.

    A wheel counts when its bytes are those that the installer has noted, or, where it noted none, its files are those
    that are installed.
    """
    text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    noted = json.loads(text) if text else {}
    url = urlsplit(noted.get("url", ""))
    if url.scheme != "file":
        return None
    path = Path(unquote(url.path))
    if path.suffix == ".whl" and path.is_file():
        archive = noted.get("archive_info") or {}
        wanted = (archive.get("hashes") or {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
        try:
            is_same = wanted == BundleFile(path.name, path).sha256() if wanted else _is_installed(path)
        except (OSError, zipfile.BadZipFile):
            return None
        return path if is_same else None
    return path if (path / "pyproject.toml").is_file() else None


def _is_installed(wheel: Path) -> bool:
    """Whether each module of a wheel is installed as the wheel's own list of digests has it."""
    installed = set((importlib.metadata.distribution(DISTRIBUTION).read_text("RECORD") or "").splitlines())
    with zipfile.ZipFile(wheel) as archive:
        name = next((each for each in archive.namelist() if each.endswith(".dist-info/RECORD")), None)
        listed = archive.read(name).decode().splitlines() if name else []
    modules = [line for line in listed if ".dist-info/" not in line]
    return bool(modules) and installed.issuperset(modules)


def _pip(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    with work_folder("pip") as folder:  # for what pip and the programs that it starts leave when they are ended
        try:
            variables = {**pip_environment(arguments[0]), **environment, "TMPDIR": str(folder)}
            done = Processes().run(command, Path(), variables)
        except OSError as error:
            raise ArtifactError(f"pip cannot be run: {error.strerror}") from error
    if done.returncode:
        reason = _cause(done.stderr) or f"exit code {done.returncode}"
        raise ArtifactError(f"pip {arguments[0]}: {reason}")


def _cause(stderr: str) -> str:
    """What pip's messages say was the matter: the last exception of what it ran, else its own first error.

    Of its files of settings it says so in several lines, the file among them.
    """
    lines = [line.strip() for line in stderr.splitlines()]
    if stderr.startswith("Configuration file"):
        return printable(" ".join(lines))[:300]
    raised = [line for line in lines if _exception.match(line)]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    others = [line for line in lines if line and not line.startswith(("note:", "hint:", "["))]
    return printable((raised[-1:] or errors[:1] or others[-1:] or [""])[0])[:300]
