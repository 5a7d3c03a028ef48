"""Fetches what a build needs of a model on the Hugging Face hub into the local cache, and nothing else.

The only module of pyc that uses the network, and only when a user asks (`--download`). The cache is that of
huggingface_hub, which does the transfer: plain HTTP, files that are whole are not fetched again, a connection that
breaks is taken up where it broke. Pickles are never fetched. Reading is `hub_cache`'s, offline, as for any snapshot.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyc.models.adapters import CONFIG as ADAPTER_CONFIG
from pyc.models.adapters import WEIGHTS as ADAPTER_WEIGHTS
from pyc.models.catalog import find_architecture
from pyc.models.checkpoint import INDEX, SINGLE, ShardIndex
from pyc.models.companions import AdapterBase, both_on_the_hub
from pyc.models.config import HuggingFaceConfig
from pyc.models.generation import FILE as GENERATION
from pyc.models.hub_cache import cache_root, hub_id_of, instead_of_url, model_folder
from pyc.models.hub_failures import explained, one_line
from pyc.models.licence_files import is_licence
from pyc.models.quantized.settings_file import FILES as QUANTIZATION_FILES
from pyc.models.sentence import MODULES, PROMPTS, SENTENCE_CONFIGS
from pyc.models.strict_json import decode
from pyc.models.tokenizer_files import FILES as TOKENIZER_FILES
from pyc.models.tokenizer_files import SLOW_TOKENIZERS
from pyc.runtime.errors import AdapterError, IngestError, PycError
from pyc.runtime.host.home import write_whole
from pyc.runtime.text.chat.template_files import FOLDER, SUFFIX
from pyc.runtime.text.special_tokens import TOKENIZER

logger = logging.getLogger(__name__)

Kind = Literal["checkpoint", "tokenizer", "adapter"]
Report = Callable[[int, int], None]
"""Told the bytes that are there, and of how many."""

CONFIG = "config.json"
_OF_TEXTS = {*TOKENIZER_FILES, *SLOW_TOKENIZERS, MODULES, *SENTENCE_CONFIGS, PROMPTS}
"""Files on texts, which may lie beside an adapter as beside a model."""
_SMALL = {
    *(CONFIG, GENERATION, *_OF_TEXTS),
    *QUANTIZATION_FILES,
    ADAPTER_CONFIG,  # an adapter beside the weights is refused
}
_POOLING = re.compile(r"\d+_[A-Za-z]+/config\.json")
_TEMPLATE = re.compile(rf"{FOLDER}/[^/]+\{SUFFIX}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0
_SPACE_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Repository:
    """A revision of a model on the hub: its commit, and the size in bytes of each file."""

    reference: str
    hub_id: str
    revision: str
    commit: str
    sizes: dict[str, int]


def download(
    reference: str,
    kind: Kind = "checkpoint",
    report: Report = lambda done, total: None,
    *,
    with_adapter: bool = False,
) -> None:
    """Fetch the checkpoint, tokenizer or adapter "org/name" or "org/name@revision" into the local cache.

    A checkpoint that pyc does not support is refused before its weights are fetched, and so is one with an adapter
    beside it, but `with_adapter`: the recipe names both. Raises IngestError (AdapterError
    for an adapter), OSError when the cache cannot be written, ModuleNotFoundError without huggingface_hub.
    """
    error: type[PycError] = AdapterError if kind == "adapter" else IngestError
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
            f"{reference}: huggingface_hub cannot be used: {one_line(str(problem))}; check the environment variables "
            "that begin with HF_"
        ) from problem

    repository = None
    with _plain_and_quiet(huggingface_hub):
        try:
            repository = _look_up(huggingface_hub, reference, *found)
            _fetch(huggingface_hub, repository, kind, report, error, with_adapter)
        except PycError:
            raise
        except Exception as problem:
            endpoint, is_known = huggingface_hub.constants.ENDPOINT, repository is not None
            raise explained(problem, reference, found[0], endpoint, error, is_known=is_known) from problem
    if repository.revision != repository.commit:  # last: a name in the cache stands for files that are all there
        _name(repository, kind)


def _name(repository: _Repository, kind: Kind) -> None:
    """Have the revision stand for the commit in the cache, unless it stands for a whole model there, and a part of
    another commit was fetched."""
    folder = model_folder(repository.hub_id)
    place = folder / "refs" / repository.revision
    if kind != "checkpoint":
        commit = place.read_bytes().decode("ascii", "replace").strip() if place.is_file() else ""
        needed = (CONFIG, ADAPTER_WEIGHTS if kind == "adapter" else TOKENIZER)
        snapshot = folder / "snapshots" / commit
        is_whole = _COMMIT.fullmatch(commit) is not None and all((snapshot / name).is_file() for name in needed)
        if is_whole and commit != repository.commit:
            logger.warning(
                "%s: the cache has a whole model of this name, of commit %s, whose %s is taken; the hub has %s now: "
                "for that, fetch the model, with pyc init %s --download, or name the commit",
                repository.reference, commit, kind, repository.commit, repository.reference,
            )  # fmt: skip
            return
    write_whole(place, repository.commit, 0o644, replace=True)


def _look_up(hub: Any, reference: str, hub_id: str, revision: str) -> _Repository:
    info = hub.HfApi().model_info(hub_id, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    if not _COMMIT.fullmatch(str(info.sha)):
        raise IngestError(f"{reference}: {hub.constants.ENDPOINT} names {str(info.sha)[:60]!r}, expected a commit")
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 0:
            raise IngestError(f"{reference}: {hub.constants.ENDPOINT} names {size!r:.40} bytes for {name!r:.100}")
    return _Repository(reference, hub_id, revision, str(info.sha), sizes)


def _fetch(
    hub: Any, repository: _Repository, kind: str, report: Report, error: type[PycError], with_adapter: bool
) -> None:
    done = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report(done, total)

    def get(names: Sequence[str]) -> list[Path]:
        return [_get(hub, repository, name, advance) for name in names]

    if kind == "tokenizer":
        names = [name for name in repository.sizes if name in TOKENIZER_FILES or _TEMPLATE.fullmatch(name)]
        if TOKENIZER not in names:
            raise error(f"{repository.reference}: the hub has no {TOKENIZER} in it")
        total = _check_space(repository, names, error)
        get(names)
        return
    if kind == "adapter":
        names = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if name in repository.sizes]
        if ADAPTER_WEIGHTS not in names:
            raise error(f"{repository.reference}: the hub has no {ADAPTER_WEIGHTS} in it; pickles are not fetched")
        names += [name for name in repository.sizes if _is_of_texts(name)]
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
    if ADAPTER_CONFIG in small and not with_adapter:
        (adapter,) = get([ADAPTER_CONFIG])
        label = f"{repository.reference}: {ADAPTER_CONFIG}"
        raise both_on_the_hub(repository.reference, decode(adapter.read_bytes(), AdapterBase, label))
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
    return name in _SMALL or is_licence(name) or _is_of_texts(name)


def _is_of_texts(name: str) -> bool:
    return name in _OF_TEXTS or any(pattern.fullmatch(name) for pattern in (_POOLING, _TEMPLATE))


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
    needed = sum(repository.sizes[name] for name in names if not _is_whole(repository, name))
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
    there = _snapshot(repository) / name
    options["force_download"] = there.exists() and not _is_whole(repository, name)  # which is not looked at there
    path = Path(
        hub.hf_hub_download(
            repository.hub_id, name, revision=repository.commit, cache_dir=str(cache_root()), **options
        )
    )
    if path != there:
        raise IngestError(
            f"{repository.reference}: {hub.constants.ENDPOINT} names the commit {repository.commit} for the model and "
            f"another one for {name!r:.100}; try again, or set HF_ENDPOINT to another mirror"
        )
    advance(repository.sizes[name] - told)
    return path


def _snapshot(repository: _Repository) -> Path:
    return model_folder(repository.hub_id) / "snapshots" / repository.commit


def _is_whole(repository: _Repository, name: str) -> bool:
    """Whether the cache has a file, of as many bytes as the hub says, if it says."""
    path = _snapshot(repository) / name
    return path.exists() and repository.sizes[name] in (0, path.stat().st_size)


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
    """Plain HTTP instead of hf-xet, whose transfers have a cache and errors of their own, and no lines on stderr, which
    hold the signed addresses of files."""
    hub.utils.logging  # noqa: B018 -- its import sets the level of the library's logger, and is lazy
    logger = logging.getLogger("huggingface_hub")
    level, without_xet = logger.level, hub.constants.HF_HUB_DISABLE_XET
    logger.setLevel(logging.CRITICAL + 1)
    hub.constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        logger.setLevel(level)
        hub.constants.HF_HUB_DISABLE_XET = without_xet
