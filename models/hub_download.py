"""Fetches what a build needs of a model on the Hugging Face hub into the local cache, and nothing else.

The only module of pyc that uses the network, and only when a user asks (`--download`). The cache is that of
huggingface_hub, which does the transfer: plain HTTP, files that are whole are not fetched again, a connection that
breaks is taken up where it broke. Pickles are never fetched. Reading is `hub_cache`'s, offline, as for any snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyc.models.adapters import CONFIG as ADAPTER_CONFIG
from pyc.models.adapters import WEIGHTS as ADAPTER_WEIGHTS
from pyc.models.catalog import find_architecture
from pyc.models.checkpoint import INDEX, SINGLE, ShardIndex
from pyc.models.config import HuggingFaceConfig
from pyc.models.generation import FILE as GENERATION
from pyc.models.hub_cache import cache_root, hub_id_of, instead_of_url
from pyc.models.licence_files import is_licence
from pyc.models.quantized.settings_file import FILES as QUANTIZATION_FILES
from pyc.models.sentence import MODULES, PROMPTS, SENTENCE_CONFIG
from pyc.models.strict_json import decode
from pyc.models.tokenizer_files import FILES as TOKENIZER_FILES
from pyc.models.tokenizer_files import SLOW_TOKENIZERS
from pyc.runtime.errors import AdapterError, IngestError, PycError
from pyc.runtime.host.home import write_whole
from pyc.runtime.text.chat.template_files import FOLDER, SUFFIX

if TYPE_CHECKING:
    pass

Report = Callable[[int, int], None]
"""Told the bytes that are there, and of how many."""

CONFIG = "config.json"
_SMALL = {
    *(CONFIG, GENERATION, *TOKENIZER_FILES, *SLOW_TOKENIZERS, MODULES, SENTENCE_CONFIG, PROMPTS),
    *QUANTIZATION_FILES,
}
_POOLING = re.compile(r"\d+_[A-Za-z]+/config\.json")
_TEMPLATE = re.compile(rf"{FOLDER}/[^/]+\{SUFFIX}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0
_SPACE_MARGIN_BYTES = 64 << 20
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


@dataclass(frozen=True, slots=True)
class _Repository:
    """A revision of a model on the hub: its commit, and the size in bytes of each file."""

    reference: str
    hub_id: str
    revision: str
    commit: str
    sizes: dict[str, int]


def download(
    reference: str, kind: Literal["checkpoint", "adapter"] = "checkpoint", report: Report = lambda done, total: None
) -> None:
    """Fetch the checkpoint or adapter "org/name" or "org/name@revision" into the local cache.

    A checkpoint that pyc does not support is refused before its weights are fetched. Raises IngestError (AdapterError
    for an adapter), OSError when the cache cannot be written, ModuleNotFoundError without huggingface_hub.
    """
    error: type[PycError] = IngestError if kind == "checkpoint" else AdapterError
    found = hub_id_of(reference)
    if found is None:
        advice = instead_of_url(reference) or "is not a hub id; expected org/name or org/name@revision"
        raise error(f"{reference}: {advice}")
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError:
        raise
    except Exception as problem:  # it reads the environment as it is imported
        raise error(
            f"{reference}: huggingface_hub cannot be used: {_one_line(str(problem))}; check the environment variables "
            "that begin with HF_"
        ) from problem

    with _plain_and_quiet(huggingface_hub):
        try:
            repository = _look_up(huggingface_hub, reference, *found)
            _fetch(huggingface_hub, repository, kind, report, error)
        except PycError:
            raise
        except Exception as problem:
            raise _explained(problem, reference, found[0], huggingface_hub, error) from problem
    if repository.revision != repository.commit:  # last: a name in the cache stands for files that are all there
        folder = cache_root() / ("models--" + repository.hub_id.replace("/", "--"))
        write_whole(folder / "refs" / repository.revision, repository.commit, 0o644, replace=True)


def _look_up(hub: Any, reference: str, hub_id: str, revision: str) -> _Repository:
    info = hub.HfApi().model_info(hub_id, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    if not _COMMIT.fullmatch(str(info.sha)):
        raise IngestError(f"{reference}: {hub.constants.ENDPOINT} names {str(info.sha)[:60]!r}, expected a commit")
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return _Repository(reference, hub_id, revision, str(info.sha), sizes)


def _fetch(hub: Any, repository: _Repository, kind: str, report: Report, error: type[PycError]) -> None:
    done = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report(done, total)

    def get(names: Sequence[str]) -> list[Path]:
        return [_get(hub, repository, name, advance) for name in names]

    if kind == "adapter":
        names = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if name in repository.sizes]
        if ADAPTER_WEIGHTS not in names:
            raise error(f"{repository.reference}: the hub has no {ADAPTER_WEIGHTS} in it; pickles are not fetched")
        total = _check_space(repository, names, error)
        get(names)
        return
    weights = _weights_or_index(repository)
    small = [name for name in repository.sizes if _is_small(name)]
    if CONFIG not in small:
        raise error(f"{repository.reference}: the hub has no {CONFIG} in it; this is not a checkpoint")
    total = sum(repository.sizes[name] for name in small)
    (config,) = get([CONFIG])
    label = f"{repository.reference}: {CONFIG}"
    find_architecture(decode(config.read_bytes(), HuggingFaceConfig, label), repository.reference)
    if weights == INDEX:
        (index,) = get([INDEX])
        listed = decode(index.read_bytes(), ShardIndex, f"{repository.reference}: {INDEX}").weight_map.values()
        shards = sorted(set(listed))
        for shard in shards:
            if "/" in shard or not shard.endswith(".safetensors"):
                raise error(f"{repository.reference}: {INDEX} lists {shard!r}, which is not the name of a shard")
            if shard not in repository.sizes:
                raise error(f"{repository.reference}: {INDEX} lists {shard!r}, which the hub does not have")
    else:
        shards = [SINGLE]
    rest = [name for name in small if name != CONFIG] + shards
    total = done + _check_space(repository, rest, error)
    get(rest)


def _is_small(name: str) -> bool:
    patterns = (_POOLING, _TEMPLATE)
    return name in _SMALL or is_licence(name) or any(pattern.fullmatch(name) for pattern in patterns)


def _weights_or_index(repository: _Repository) -> str:
    for name in (SINGLE, INDEX):
        if name in repository.sizes:
            return name
    others = [name for name in repository.sizes if name.endswith((".bin", ".pt", ".pth", ".gguf", ".safetensors"))]
    found = f"; it has {', '.join(others[:3])}" if others else ""
    raise IngestError(
        f"{repository.reference}: the hub has neither {SINGLE} nor {INDEX} in it{found}; only safetensors are read"
    )


def _check_space(repository: _Repository, names: Sequence[str], error: type[PycError]) -> int:
    """The bytes of `names`; raises `error` when the cache has no room for those that are not there."""
    root = cache_root()
    snapshot = root / ("models--" + repository.hub_id.replace("/", "--")) / "snapshots" / repository.commit
    needed = sum(repository.sizes[name] for name in names if not (snapshot / name).exists())
    place = next((folder for folder in (root, *root.parents) if folder.is_dir()), Path("/"))
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    if free < needed + _SPACE_MARGIN_BYTES:
        raise error(
            f"{repository.reference}: needs {needed:,} bytes in the cache {root}, {free:,} are free; free some, or set "
            "HF_HOME to another disk"
        )
    return sum(repository.sizes[name] for name in names)


def _get(hub: Any, repository: _Repository, name: str, advance: Callable[[int], None]) -> Path:
    """Fetch a file of the repository unless the cache has it; returns where it is. `advance` is told all its bytes."""
    told = 0

    def count(size_bytes: int) -> None:
        nonlocal told
        told += size_bytes
        advance(size_bytes)

    options: dict[str, Any] = {}
    if "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters:
        options["tqdm_class"] = _counter(hub, count)
    path = hub.hf_hub_download(
        repository.hub_id, name, revision=repository.commit, cache_dir=str(cache_root()), **options
    )
    advance(repository.sizes[name] - told)
    return Path(path)


def _counter(hub: Any, count: Callable[[int], None]) -> type:
    """A progress bar that shows nothing and tells `count` the bytes that arrive."""

    class Counter(hub.utils.tqdm):  # type: ignore[misc]  # the class is known at run time only
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            count(int(n or 0))
            return None

    return Counter


@contextlib.contextmanager
def _plain_and_quiet(hub: Any) -> Iterator[None]:
    """Plain HTTP instead of hf-xet, whose transfers have a cache and errors of their own, and no lines on stderr."""
    logger = logging.getLogger("huggingface_hub")
    level, without_xet = logger.level, hub.constants.HF_HUB_DISABLE_XET
    logger.setLevel(logging.ERROR)
    hub.constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        logger.setLevel(level)
        hub.constants.HF_HUB_DISABLE_XET = without_xet


def _explained(
    problem: BaseException, reference: str, hub_id: str, hub: Any, error: type[PycError]
) -> Exception:
    """The error to raise for one of huggingface_hub: one line, with what to do."""
    chain = list(_causes(problem))
    endpoint = hub.constants.ENDPOINT
    names = {kind.__name__ for cause in chain for kind in type(cause).__mro__}
    refused = next((cause for cause in chain if isinstance(cause, OSError) and cause.errno in _REFUSED), None)
    if refused is not None:
        return OSError(refused.errno, refused.strerror, str(refused.filename or cache_root()))
    log_in = "run `hf auth login` or set HF_TOKEN"
    status = next((code for cause in chain if (code := _status(cause))), None)
    if "OfflineModeIsEnabled" in names:
        return error(f"{reference}: not downloaded, since HF_HUB_OFFLINE is set; unset it")
    if "GatedRepoError" in names:
        return error(f"{reference}: the model is gated; accept its terms at {endpoint}/{hub_id}, then {log_in}")
    if "RevisionNotFoundError" in names:
        return error(f"{reference}: {endpoint} has the model, but not this revision; see {endpoint}/{hub_id}/tree/main")
    if "RepositoryNotFoundError" in names or status in (401, 403):
        return error(f"{reference}: {endpoint} has no model of this name, or not for you; check it, or {log_in}")
    if status is not None:
        return error(f"{reference}: {endpoint} answered with status {status}; try again later")
    reason = _one_line(str(chain[-1])) or type(chain[-1]).__name__
    return error(
        f"{reference}: not downloaded from {endpoint}: {reason}; check the network, HF_ENDPOINT and HTTPS_PROXY, and "
        "try again: files that are whole are not fetched twice"
    )


def _causes(problem: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = problem
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _status(problem: BaseException) -> int | None:
    code = getattr(getattr(problem, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def _one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "".join(letter for letter in line if letter.isprintable())[:200]
