"""What a path that was given in place of another holds, told by its first bytes, and what to do with it.

    if advice := instead_of_artifact(path):
        raise ArtifactError(f"{path}: {advice}")

Called when reading has failed, or before: nothing here opens a file that is not regular, reads more than its start, or
raises.
"""

import os
import re
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.artifact.format import MAGIC
from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.places import STANDARD_INPUT, Place, Remote
from pyc.runtime.sources.protocol import LINK_REMEDY, Source

START_BYTES = 4096
MOST_NAME = 80
"""Characters of a name that are shown."""
SHORT_BYTES = 128
"""Enough for `instead_of_file`."""
_NO_FILE = "no such file; pyc run, embed, verify and pull alone read standard input as `-`: save it in a file first"
_url = re.compile(r"(https?|s3|gs|az):/[^/]", re.ASCII)
"""A URL that has become a path, which has no two slashes in a row."""
_hub_link = re.compile(r"(?:hf\.co|huggingface\.co)/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)", re.ASCII)
_hub_id = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is at a path: `name` completes "this is ...", `remedy` is what to do, with {path} and {folder}."""

    name: str
    remedy: str


ARTIFACT = Kind("a pyc artifact", "run it with: pyc run {path}")
RECIPE = Kind("a recipe, not yet compiled", "compile it first: pyc build {path}")
CHECKPOINT = Kind("a folder with a checkpoint", "compile it first: pyc build {path}")
ADAPTER = Kind("a folder with a PEFT adapter", "list it in a recipe: pyc init CHECKPOINT --adapter {path}")
FOLDER = Kind("a folder", "give the file in it")
_WEIGHTS = Kind(
    "a file of weights (safetensors)", "compile the folder that it is in, with its config.json: pyc build {folder}"
)
_ADAPTER_FILES = Kind(
    "a file of a PEFT adapter", "list the folder that it is in in a recipe: pyc init CHECKPOINT --adapter {folder}"
)
_ADAPTER_NAMES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_SAVE_AGAIN = "take the model's safetensors: pyc build CHECKPOINT-FOLDER"
GGUF = Kind("a GGUF file, which pyc does not read", _SAVE_AGAIN)
_PICKLE = Kind("a pickle of PyTorch, which pyc does not read since it can run code", _SAVE_AGAIN)
_POINTER = Kind("a Git LFS pointer in place of the file", "fetch the file itself: git lfs pull, or download it again")
_WEB_PAGE = Kind("a web page in place of the file", LINK_REMEDY)
_EMPTY = Kind("an empty file", "make or download it again")
_JSON = Kind("a JSON file", "give the folder that it is in: pyc build {folder}")
_CONFIG = Kind("the config.json of a checkpoint", "give the folder that it is in: pyc build {folder}")
_COMPRESSED = Kind("a compressed file", "unpack it first")
_ZIP = Kind("a zip file or a pickle of PyTorch", _SAVE_AGAIN)

_OTHER_LAYOUT = Kind(
    "weights as Meta and Mistral lay them out",
    "take the model in the layout of Hugging Face, which has a config.json, or convert it with transformers",
)
_GRAPH = Kind("a graph that was made of a checkpoint", "give the folder of the checkpoint, with its config.json")
_FOUND = (
    (re.compile(r".*\.gguf", re.IGNORECASE), GGUF),
    (re.compile(r"consolidated.*\.(pth|safetensors)"), _OTHER_LAYOUT),
    (re.compile(r"(model.*\.onnx|onnx|openvino_.*model.*\.xml)"), _GRAPH),
)
"""What names in a folder without config.json tell."""

_STARTS = (
    (MAGIC, ARTIFACT),
    (b"GGUF", GGUF),
    (b"PK\x03\x04", _ZIP),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"version https://git-lfs", _POINTER),
    (b"\x1f\x8b", _COMPRESSED),
    (b"\x28\xb5\x2f\xfd", _COMPRESSED),
)


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """Return what is at `path`, or None when it is nothing that pyc can name."""
    place = Path(path)
    try:
        mode = place.stat().st_mode
        if stat.S_ISDIR(mode):
            return _kind_of_folder(place)
        if not stat.S_ISREG(mode):
            return None
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            return kind_of_bytes(os.read(descriptor, START_BYTES), place.name)
        finally:
            os.close(descriptor)
    except unless_signalled(OSError, ValueError):
        return None


def kind_of_bytes(start: bytes, name: str = "") -> Kind | None:
    """Return what a file is that begins with `start`; `name` decides between kinds of text."""
    if not start:
        return _EMPTY
    if name in _ADAPTER_NAMES:
        return _ADAPTER_FILES
    found = _WEB_PAGE if _is_page(start) else next((kind for magic, kind in _STARTS if start.startswith(magic)), None)
    if found is not None:
        return found
    if len(start) > 8 and start[8:9] == b"{" and start[5:8] == bytes(3):  # the header's size, of less than 1 TB
        return _WEIGHTS
    if name == "config.json" and (b'"model_type"' in start or b'"architectures"' in start):
        return _CONFIG
    if name.lower().endswith(".onnx"):
        return _GRAPH
    lines = start.splitlines()
    if name.endswith((".yaml", ".yml")) or any(line.startswith(b"model:") for line in lines):
        return RECIPE
    return _JSON if start.lstrip().startswith(b"{") else None


def instead_of_artifact(path: str | os.PathLike[str]) -> str:
    """Return "not a pyc artifact: this is ...; do ..." for what stands at `path`, or nothing when it is unknown."""
    return _sentence(path, "a pyc artifact", (ARTIFACT, _EMPTY))


def instead_of_recipe(path: str | os.PathLike[str]) -> str:
    """Return the sentence for what stands where a recipe should, or nothing."""
    return _sentence(path, "a recipe", (RECIPE, _EMPTY, _JSON))


def instead_of_checkpoint(path: str | os.PathLike[str]) -> str:
    """Return the sentence for a file that stands where a checkpoint's folder should, or nothing."""
    return _sentence(path, "a folder with a checkpoint", (CHECKPOINT, ADAPTER, FOLDER, _EMPTY))


def explained(error: ArtifactError, place: Place, source: Source | None) -> ArtifactError:
    """The error of `place`, naming it, and what it is when it is something else than an artifact; `source`: its bytes,
    if it was opened."""
    if isinstance(error, MissingArtifactError) and str(place) == STANDARD_INPUT:
        return MissingArtifactError(f"{place}: {_NO_FILE}")
    if not isinstance(place, Remote) and (advice := instead_of_artifact(place)):
        return ArtifactError(f"{written(place)}: {advice}")
    if isinstance(error, MissingArtifactError) and not isinstance(place, Remote):
        return MissingArtifactError(f"{error}; {_where_from(place)}")
    if isinstance(error, FetchError | MissingArtifactError):
        return error
    if source is not None and isinstance(place, Remote) and (advice := instead_of_file(_start(source))):
        return ArtifactError(f"{place}: not a pyc artifact: {advice}")
    return error if str(error).startswith((str(place), repr(str(place)))) else ArtifactError(f"{place}: {error}")


def _where_from(place: str | os.PathLike[str]) -> str:
    """What to do about an artifact that is not there, which may be a model of the hub by its name."""
    path = Path(place)
    if link := _hub_link.match(str(path)):
        return f"this reads artifacts; make one of a model of the hub first: pyc build {link[1]} --download"
    if path.parts[:1] and path.parts[0].startswith("~"):
        return "a shell makes a folder of ~, outside of one os.path.expanduser(path) does"
    if _hub_id.fullmatch(str(path)) and path.suffix != ".pyca" and not path.parent.exists():
        return f"this reads artifacts; if it is a model of the hub, make one first: pyc build {path} --download"
    return "give the path of an artifact; `pyc build` makes one"


def instead_of_config(names: Sequence[str]) -> str:
    """Return "found ..., ...; do ..." for a folder without config.json in which are files of these names, when one of
    them tells what it is; else nothing."""
    for pattern, kind in _FOUND:
        if name := next((name for name in sorted(names) if pattern.fullmatch(name)), None):
            return f"found {name[:MOST_NAME]}, {kind.name}; {kind.remedy}"
    return ""


def _start(source: Source) -> bytes:
    start = bytearray(SHORT_BYTES if source.size_bytes is None else min(SHORT_BYTES, source.size_bytes))
    try:
        source.read_into(0, memoryview(start))
    except ArtifactError:
        return b""
    return bytes(start)


def instead_of_file(start: bytes) -> str:
    """Return "this is ...; do ..." for a file that begins with `start` when it is one that came in place of another: a
    Git LFS pointer or a web page; else nothing."""
    kind = kind_of_bytes(start)
    return f"this is {kind.name}; {kind.remedy}" if kind in (_POINTER, _WEB_PAGE) else ""


def written(path: str | os.PathLike[str]) -> str:
    """Return a path as it was written: of a URL that became a path one stroke is gone."""
    text = str(path)
    return text.replace(":/", "://", 1) if _url.match(text) else text


def _sentence(path: str | os.PathLike[str], expected: str, right: tuple[Kind, ...]) -> str:
    if _url.match(str(path)):
        return (
            "a URL, taken for a path; give it as text and with both slashes, or, to what reads files alone, fetch it "
            f"first: pyc pull {shlex.quote(written(path))}"
        )
    kind = kind_of(path)
    if kind is None or kind in right:
        return ""
    place = Path(path)
    remedy = kind.remedy.format(path=shlex.quote(str(place)), folder=shlex.quote(str(place.parent)))
    return f"not {expected}: this is {kind.name}; {remedy}"


def _is_page(start: bytes) -> bool:
    return start[:SHORT_BYTES].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _kind_of_folder(folder: Path) -> Kind:
    if (folder / "adapter_config.json").is_file():
        return ADAPTER
    return CHECKPOINT if (folder / "config.json").is_file() else FOLDER
