"""Opens a Hugging Face checkpoint: its tensors (headers only) and its configuration files.

Tensors come from `model.safetensors`, or from the shards that `model.safetensors.index.json` lists. Pickle
formats are refused. `auto_map` (remote code) is not a field that anything here reads.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pyc.compiler.codes import Codes
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import SourcePath
from pyc.compiler.weights import Source
from pyc.models.config import HuggingFaceConfig
from pyc.models.files import Directory
from pyc.models.hub_cache import find_directory
from pyc.models.messages import quoted, shown
from pyc.models.safetensors_header import SafetensorsFile, read_header
from pyc.models.sentence import MODULES, own_folder
from pyc.runtime.artifact.kinds import GGUF, instead_of_config
from pyc.runtime.errors import IngestError

logger = logging.getLogger(__name__)

SINGLE = "model.safetensors"
_ADAPTER = "this is a PEFT adapter; name its base model, and the adapter under `adapters` (pyc init --adapter)"
INDEX = "model.safetensors.index.json"
_OTHER_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
"""The pickles that transformers reads, and so can write as safetensors."""
_TRAINING = re.compile(r"pytorch_model_fsdp.*|.*\.distcp|global_step\d+|mp_rank_.*|zero_to_fp32\.py")
"""The state of a trainer that has parts of the model in each of several files."""
_RUN = re.compile(r"checkpoint-\d+")
_CONFIGS = {"config.json", "adapter_config.json"}
_AGAIN = "download the checkpoint again, or write it with transformers' save_pretrained"
_SAVED = ".from_pretrained(path).save_pretrained(new_path)"


class _IndexMetadata(Struct, frozen=True):
    """What an index says of itself. Tools write wrong sums, and readers go by the headers: it is worth a warning."""

    total_size: object = None


class ShardIndex(Struct, frozen=True):
    """model.safetensors.index.json: the shard of each tensor."""

    weight_map: dict[str, str]
    metadata: _IndexMetadata | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose headers were checked. `tensors` has every stored tensor by its name in the file, or the weight
    that several of them stand for (`models.quantized`). `weight_files` are those that say what weights are."""

    directory: Directory
    config: HuggingFaceConfig
    tensors: Mapping[str, Source | Codes]
    weight_files: tuple[str, ...]

    @property
    def stored(self) -> dict[str, Source]:
        """The tensors that are stored as numbers."""
        return {name: tensor for name, tensor in self.tensors.items() if isinstance(tensor, Source)}

    @property
    def label(self) -> str:
        """What messages call the checkpoint: the reference as the user wrote it."""
        return self.directory.label

    def source_paths(self, names: tuple[str, ...]) -> tuple[SourcePath, ...]:
        """Return config.json, the weight files and those of `names` that exist, for provenance."""
        return self.directory.source_paths(("config.json", *self.weight_files, *names))


def open_checkpoint(reference: str, base_dir: Path, files: SourceFiles) -> Checkpoint:
    """Return the checkpoint at a directory (relative to `base_dir`) or hub id; reads headers only, through `files`.

    Raises IngestError naming the file or tensor that is missing, malformed, duplicated or left over.
    """
    directory = find_directory(reference, base_dir, files)
    config = directory.parse("config.json", HuggingFaceConfig)
    names = directory.names()
    if config is None:
        what = "this is not a Hugging Face checkpoint"
        if "adapter_config.json" in names:
            what = _ADAPTER
        elif MODULES in names:
            what = f"sentence-transformers has it in a folder of its own: {own_folder()}"
        elif runs := [name for name in names if _RUN.fullmatch(name) and _CONFIGS & {*directory.names_in(name)}]:
            last = max(runs, key=lambda name: (len(name), name))
            whose = "a trainer's checkpoints are in folders of it"
            what = f"{whose}; name one: {shown(last)}"
            if "config.json" not in directory.names_in(last):
                what = f"{whose}, and are adapters; name their base model, and one as its adapter: {shown(last)}"
        elif found := instead_of_config(tuple(map(shown, names))):
            what = found
        elif directory.links_within is not None:
            what = "the cache has only a part of the model; pyc init, build and attach fetch the rest with --download"
        raise IngestError(f"{directory.label}: no config.json; {what}")
    if INDEX in names and SINGLE in names:
        raise IngestError(
            f"{directory.label}: both {SINGLE} and {INDEX} are there; remove the one that is not meant"
        )
    if INDEX in names:
        tensors, shards = _read_shards(directory)
        return Checkpoint(directory, config, tensors, (INDEX, *shards))
    path = directory.locate(SINGLE)
    if path is None:
        raise IngestError(_missing_weights(directory.label, config, names))
    single = read_header(files, path, f"{directory.label}: {SINGLE}")
    return Checkpoint(directory, config, single.tensors, (SINGLE,))


def _missing_weights(reference: str, config: HuggingFaceConfig, names: tuple[str, ...]) -> str:
    refused = "but only safetensors are read (pickle can run code)"
    if pickled := [name for name in names if _PICKLED.fullmatch(name)]:
        remedy = f"if you trust it, convert it in Python: {_conversion(config, names)}"
        return f"{reference}: found {shown(pickled[0])}, {refused}; {remedy}"
    if found := _found_gguf(names):
        return f"{reference}: {found}"
    if unread := [name for name in names if name.endswith(_OTHER_SUFFIXES) and not _TRAINING.fullmatch(name)]:
        own = f"or, if it is yours, load it in Python and call save_pretrained, which writes {SINGLE}"
        return f"{reference}: found {shown(unread[0])}, {refused}; download the model's {SINGLE}, {own}"
    if "adapter_config.json" in names:  # some trainers write the base's config.json beside it
        return f"{reference}: neither {SINGLE} nor {INDEX} is there; {_ADAPTER}"
    others = [name for name in names if name.endswith(".safetensors")]
    if any("-of-" in name for name in others):
        found = f"; found parts, {', '.join(map(shown, others[:4]))}, without the index that lists them"
        return f"{reference}: neither {SINGLE} nor {INDEX} is there{found}; download the checkpoint again, with {INDEX}"
    if not others and (state := next((name for name in names if _TRAINING.fullmatch(name)), None)):
        return (
            f"{reference}: found {shown(state)}, the state of a trainer, and no {SINGLE}; `accelerate merge-weights` "
            "(FSDP) or zero_to_fp32.py in the folder, with --safe_serialization (DeepSpeed), write the model out of it"
        )
    found = f"; found {', '.join(map(shown, others[:4]))}" if others else ""
    remedy = _AGAIN
    if len(others) == 1 and "consolidated" not in others[0]:
        remedy = f"if these are all weights of the model, rename the file to {SINGLE}"
    return f"{reference}: neither {SINGLE} nor {INDEX} is there{found}; {remedy}"


def _found_gguf(names: tuple[str, ...]) -> str:
    """What to say of a folder with a GGUF file in it; nothing without one."""
    name = next((name for name in names if name.lower().endswith(".gguf")), None)
    return "" if name is None else f"found {shown(name)}, {GGUF.name}; {GGUF.remedy}"


def _conversion(config: HuggingFaceConfig, names: tuple[str, ...]) -> str:
    """The Python that writes a pickled checkpoint as safetensors, with all that a build reads.

    AutoModel alone has no head, which a decoder needs, and knows nothing of modules.json, which says how to pool.
    """
    classes = config.architectures or ()
    is_decoder = any(name.endswith("ForCausalLM") for name in classes) or (not classes and config.model_type != "bert")
    if MODULES in names and not is_decoder:
        return "SentenceTransformer(path).save_pretrained(new_path), from the package sentence_transformers"
    model = "AutoModelForCausalLM" if is_decoder else "AutoModel"
    return f"{model}{_SAVED} and AutoTokenizer{_SAVED}, from the package transformers"


def _read_shards(directory: Directory) -> tuple[dict[str, Source], tuple[str, ...]]:
    """Return the tensors of a sharded checkpoint, in the order of the shards, and the shards' names."""
    label = f"{directory.label}: {INDEX}"
    index = directory.parse(INDEX, ShardIndex)
    if index is None or not index.weight_map:
        raise IngestError(f"{label}: the weight map is empty")
    shards = tuple(sorted(set(index.weight_map.values())))
    for shard in shards:
        if "/" in shard or not shard.endswith(".safetensors"):
            raise IngestError(f"{label}: shard {quoted(shard)} is not the base name of a safetensors file; {_AGAIN}")
    _refuse_extra_shards(directory, shards)
    files = tuple(_open_shard(directory, shard, len(shards)) for shard in shards)
    tensors = dict[str, Source]()
    for shard, file in zip(shards, files, strict=True):
        for tensor, source in file.tensors.items():
            mapped = index.weight_map.get(tensor)
            if mapped != shard:
                place = "does not list it" if mapped is None else f"places it in {shown(mapped)}"
                raise IngestError(f"{file.name}: holds tensor {quoted(tensor)}, but {INDEX} {place}; {_AGAIN}")
            tensors[tensor] = source
    for tensor, shard in index.weight_map.items():
        if tensor not in tensors:
            raise IngestError(f"{label}: tensor {quoted(tensor)} is not in {shown(shard)}; {_AGAIN}")
    _warn_of_total(index, files, directory.files, label)
    return tensors, shards


def _open_shard(directory: Directory, shard: str, count: int) -> SafetensorsFile:
    path = directory.locate(shard)
    if path is None:
        raise IngestError(
            f"{directory.label}: shard {shown(shard)} is missing ({INDEX} lists {count}); "
            "download the checkpoint again"
        )
    return read_header(directory.files, path, f"{directory.label}: {shard}")


def _refuse_extra_shards(directory: Directory, shards: tuple[str, ...]) -> None:
    for name in directory.names():
        is_shard = name.startswith("model-") and "-of-" in name and name.endswith(".safetensors")
        if is_shard and name not in shards:
            raise IngestError(f"{directory.label}: shard {shown(name)} is there, but {INDEX} does not list it")


def _warn_of_total(index: ShardIndex, files: tuple[SafetensorsFile, ...], opened: SourceFiles, label: str) -> None:
    total = index.metadata.total_size if index.metadata else None
    held = sum(file.tensor_bytes for file in files)
    if total is not None and total != held:
        opened.warn(
            logger,
            "%s: total_size is %s, the shards hold %d bytes, which are read; the files may be of different revisions",
            label, shown(str(total), 40), held,
        )  # fmt: skip
