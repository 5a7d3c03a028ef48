"""Finds a checkpoint: a directory, or a hub id in the local Hugging Face cache. The network is not asked here.

The cache's layout (huggingface_hub, "Understand caching"):

    models--ORG--NAME/refs/REVISION             text: a commit
    models--ORG--NAME/snapshots/COMMIT/FILE     link to ../../blobs/DIGEST

A reference is "path", "org/name" or "org/name@revision".
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.files import Directory
from pyc.models.messages import shown
from pyc.runtime.artifact.kinds import instead_of_checkpoint
from pyc.runtime.errors import IngestError, PycError

_HUB_ID = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w][\w./-]*))?", re.ASCII
)
_HUB_URL = re.compile(
    r"(?:https?:/{1,2})?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<written>[\w][\w.-]*)|/(?:tree|blob|resolve)/(?P<shown>[\w][\w.-]*)(?:/.*)?|/)?(?:[?#].*)?",
    re.ASCII | re.IGNORECASE,
)
"""A page of a model on the hub, with or without its scheme; one that became a path has lost a slash."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://", re.ASCII)
_OTHER_PAGES = {"api", "blog", "collections", "datasets", "docs", "join", "models", "papers", "spaces", "tasks"}
"""What stands in a URL of the hub where a model's owner would."""
MAX_LABEL = 4096
_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_root() -> Path:
    """Return the cache's folder, as huggingface_hub finds it: HF_HUB_CACHE, HF_HOME/hub, or ~/.cache.

    Without a home directory `~` stands for itself, as it does there.
    """
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expanduser(folder))
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expanduser(home)) / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "huggingface" / "hub"


def model_folder(hub_id: str) -> Path:
    """Return the folder that the cache has, or would have, of the model with this id."""
    return cache_root() / ("models--" + hub_id.replace("/", "--"))


def hub_id_of(reference: str) -> tuple[str, str] | None:
    """Return (id, revision) of "org/name@revision", the revision "main" without one; None when it is no hub id."""
    match = _HUB_ID.fullmatch(reference)
    return None if match is None or ".." in reference else (match["id"], match["revision"] or "main")


def is_cached(reference: str) -> bool:
    """Return whether the cache has something of the model that a hub id names, of whatever revision."""
    found = hub_id_of(reference)
    if found is None:
        return False
    try:
        return model_folder(found[0]).is_dir()
    except OSError:  # a name too long
        return False


def instead_of_url(reference: str) -> str:
    """Return what to write in place of a URL of the hub; nothing where `reference` is none."""
    match = _HUB_URL.fullmatch(reference)
    if match is None or ".." in reference:
        return ""
    if match["id"].partition("/")[0].lower() in _OTHER_PAGES:
        return "this is a URL, and not a model's; write org/name of a model, or a directory"
    revision = match["written"] or match["shown"] or "main"
    name = match["id"] if revision == "main" else f"{match['id']}@{revision}"
    if match["id"].lower().endswith("-gguf"):
        return "this is a URL of GGUF files, which are not read; write org/name of the model that they were made of"
    return f"this is a URL; write {name} --download (of pyc init, build and attach)"


def _other_url(reference: str) -> str:
    """Return what to write in place of a URL of any other kind; nothing where `reference` is none."""
    return "this is a URL; give a checkpoint's folder, or org/name of a model" if _URL.match(reference) else ""


def hub_name(reference: str) -> str:
    """Return NAME of "org/NAME@revision"."""
    return reference.partition("@")[0].rpartition("/")[2]


def find_directory(
    reference: str, base_dir: Path, files: SourceFiles, error: type[PycError] = IngestError
) -> Directory:
    """Return the directory that `reference` names, read through `files`; a relative path counts from `base_dir`.

    Raises `error` when there is neither such a directory nor such a model in the cache.
    """
    if "\0" in reference or not reference:
        raise error(f"{reference!r} is not a path or hub id")
    try:
        return _find(reference, base_dir, files, error)
    except OSError as problem:  # a name that is too long, a folder that may not be searched
        raise error(f"{reference}: cannot be opened: {problem.strerror or problem}") from problem


def _find(reference: str, base_dir: Path, files: SourceFiles, error: type[PycError]) -> Directory:
    path = base_dir / os.path.expanduser(reference)
    if path.is_dir():
        real = files.resolved(path)
        return Directory(real, shown(reference, MAX_LABEL), files, _cache_folder(real), error)
    if path.exists():
        if advice := instead_of_checkpoint(path):
            raise error(f"{reference}: {advice}")
        raise error(
            f"{reference}: this is a file; give the directory with config.json and model.safetensors "
            "(GGUF and pickle files are not read)"
        )
    found = hub_id_of(reference)
    if found is None:
        raise error(f"{reference}: {instead_of_url(reference) or _other_url(reference) or 'no such directory'}")
    return _snapshot(*found, reference, files, error)


def _cache_folder(path: Path) -> Path | None:
    """Return models--ORG--NAME when `path` is one of its snapshots: links may lead into it."""
    folder = path.parent.parent
    in_cache = path.parent.name == "snapshots" and folder.name.startswith("models--")
    return folder if in_cache else None


def _snapshot(
    hub_id: str, revision: str, reference: str, files: SourceFiles, error: type[PycError]
) -> Directory:
    root, folder = cache_root(), model_folder(hub_id)
    remedy = "pyc init, build and attach fetch it with --download"  # said by commands that have no such option, too
    if not folder.is_dir():
        raise error(
            f"{reference}: no such directory, and no model of this name in the cache {root}; {remedy}"
        )
    commit = revision
    if not _COMMIT.fullmatch(revision):
        ref = Directory(folder.resolve() / "refs", f"{reference}: refs", files, None, error).read(revision)
        if ref is None:
            raise error(f"{reference}: the cache {root} has no revision {revision!r} of this model; {remedy}")
        commit = ref.decode("ascii", "replace").strip()
        if not _COMMIT.fullmatch(commit):
            raise error(f"{reference}: refs/{revision} in the cache holds {commit[:60]!r}, expected a commit")
    snapshot = folder / "snapshots" / commit
    if not snapshot.is_dir():
        raise error(f"{reference}: the cache has no snapshot {commit} of this model; {remedy}")
    return Directory(snapshot.resolve(), shown(reference, MAX_LABEL), files, folder.resolve(), error)
