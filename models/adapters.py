"""Reads a PEFT adapter as what it does to each module's weight; `adapter_kinds` has those beside LoRA and IA3.

LoRA adds scale * B A to a weight, A [rank, in] and B [out, rank]; scale is alpha / rank, or
alpha / sqrt(rank) for rsLoRA (arXiv:2312.03732). On an embedding [vocab, features] the delta is
scale * (B A)^T with lora_embedding_A [rank, vocab] and lora_embedding_B [features, rank].
DoRA (arXiv:2402.09353) has the lengths of the rows beside.
IA3 (arXiv:2205.05638) multiplies a module's output by a vector [out, 1], or its input by [1, in] where
feedforward_modules names it.

Every tensor of the file is consumed exactly once, or the adapter is refused; copies that PEFT does not read are left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import SourcePath
from pyc.compiler.weights import Source, Transposed
from pyc.models.adapter_config import (
    EMBEDDINGS,
    HEAD,
    AdapterConfig,
    check_adapter_config,
    is_feedforward,
    modules_saved,
    reason_left_alone,
    refuse_classifier,
    ties_factors,
)
from pyc.models.adapter_fields import PROMPTS, Kind, check_fields
from pyc.models.adapter_kinds import check_form, rank_of, read_updates, scale_of
from pyc.models.adapter_tying import Tying, read_tying
from pyc.models.adapter_updates import LowRankUpdate, Update, VectorScale
from pyc.models.files import Directory
from pyc.models.hub_cache import find_directory
from pyc.models.messages import quoted, shown
from pyc.models.prompt_adapters import VirtualTokens, check_prompt_config, read_virtual_tokens
from pyc.models.safetensors_header import FLOAT_DTYPES, read_header
from pyc.models.trained_tokens import TrainedTokens, read_trained_tokens
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.errors import AdapterError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MOST_LOOKED_AT = 256
"""Entries of a folder without an adapter in which one is looked for."""
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "pytorch_model.bin")

PREFIX = "base_model.model."
"""What PEFT calls the model in the names of tensors; names without it are read, too."""
_FACTOR = re.compile(r"(?P<module>.+)\.(?P<part>lora_A|lora_B)(\.[^.]+)?\.weight")
_EMBEDDING_FACTOR = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<part>A|B)(\.[^.]+)?")
_MAGNITUDE = re.compile(r"(?P<module>.+)\.lora_magnitude_vector(\.[^.]+)?")
_VECTOR = re.compile(r"(?P<module>.+)\.ia3_l(\.[^.]+)?")
_WHOLE = re.compile(
    r"(?P<module>.+?)(?P<wrapped>(\.token_adapter)?\.base_layer|\.modules_to_save(\.[^.]+)?)?\.(?P<kind>weight|bias)"
)
_WRAPPED = ("original_module", "modules_to_save")
"""What PEFT puts into names while a module is one of modules_to_save; the adapter's name may come behind."""
_EMBEDDING_LAYERS = ("embed_tokens", "lm_head", "word_embeddings")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter, checked for itself; whether it fits a model is for the fuse passes to see.

    `replacements` are whole weights by name (modules_to_save, trained biases); they apply before `low_rank`
    and `scales`. Those that `of_base` names take the place of the base model's own weight, under what other adapters
    add, and in every module that shares it. `updates` are those of kinds other than LoRA, DoRA and IA3; `virtual` are
    tokens in front of the input, of adapters that change no weight; `tokens` are rows of an embedding or head, which
    take their place behind what else the adapter does to it; `tensors` is all that the file has. `name` is the
    directory's name, for provenance, `reference` what the recipe calls it, for messages.
    """

    kind: Kind
    name: str
    reference: str
    path: str
    low_rank: tuple[LowRankUpdate, ...]
    scales: tuple[VectorScale, ...]
    replacements: tuple[tuple[str, Source], ...]
    sources: tuple[SourcePath, ...]
    of_base: frozenset[str] = frozenset()
    updates: tuple[Update, ...] = ()
    tensors: tuple[Source, ...] = ()
    virtual: VirtualTokens | None = None
    tying: Tying | None = None
    tokens: TrainedTokens | None = None


def read_adapter(reference: str, base_dir: Path, files: SourceFiles | None = None) -> Adapter:
    """Return the adapter at a directory (relative to `base_dir`) or hub id in the local cache.

    Only headers are read; the factors are `Source` expressions. What was read stays open in `files`; without them
    nothing does.

    Raises AdapterError naming the tensor or field that is missing, unknown, or does not fit the others.
    """
    if files is None:
        with SourceFiles() as files:
            return read_adapter(reference, base_dir, files)
    directory = find_directory(reference, base_dir, files, AdapterError)
    config = directory.parse(CONFIG, AdapterConfig)
    if config is None:
        raise AdapterError(_no_config(directory, reference))
    check_fields(directory.parse(CONFIG, dict[str, object]) or {}, f"{reference}: {CONFIG}")
    name = directory.root.name if directory.links_within is None else reference.replace("/", "--")
    root = str(directory.root)
    prompt = PROMPTS.get(config.peft_type or "")
    if prompt is not None:
        check_prompt_config(config, f"{reference}: {CONFIG}")
        tensors = _read_tensors(directory)
        virtual = read_virtual_tokens(tensors, config, reference)
        every, files_read = tuple(tensors.values()), _sources(directory, name)
        return Adapter(prompt, name, reference, root, (), (), (), files_read, tensors=every, virtual=virtual)
    kind = check_adapter_config(config, f"{reference}: {CONFIG}")
    tensors = _read_tensors(directory)
    refuse_classifier(config, tensors, f"{reference}: {CONFIG}")
    taken = set[str]()
    low_rank = _low_rank(tensors, config, taken, reference) if kind in ("lora", "dora") else ()
    scales = _scales(tensors, config, taken, reference) if kind == "ia3" else ()
    tokens = read_trained_tokens(tensors, config, taken, reference)
    is_other = kind not in ("lora", "dora", "ia3", "trainable_tokens")
    updates = read_updates(kind, tensors, config, taken, reference) if is_other else ()
    targeted = {update.module for update in (*low_rank, *scales, *updates)}
    if not targeted and (tokens is None or kind != "trainable_tokens"):
        raise AdapterError(f"{reference}: {WEIGHTS} has no {kind} tensors")
    replacements = _replacements(tensors, config, taken, targeted, reference)
    left = [stored.tensor for name, stored in tensors.items() if name not in taken]
    if left:
        raise AdapterError(
            f"{reference}: tensor {left[0]!r} is neither part of {kind} nor in modules_to_save"
        )
    of_base = frozenset(
        weight for weight, _ in replacements if not _is_saved(config.modules_to_save or (), weight)
        and weight.endswith(".weight")
    )  # fmt: skip
    every, files_read = tuple(tensors.values()), _sources(directory, name)
    tying = read_tying(tensors, config, reference)
    return Adapter(
        kind, name, reference, root, low_rank, scales, replacements, files_read, of_base, updates, every,
        tying=tying, tokens=tokens,
    )  # fmt: skip


def _no_config(directory: Directory, reference: str) -> str:
    """Return what is said of a folder that is no adapter: PEFT saves adapters with names into folders of it."""
    folders = directory.names()[:MOST_LOOKED_AT]
    named = [name for name in folders if CONFIG in directory.names_in(name)]
    if not named:
        return f"{reference}: no {CONFIG}; this is not a PEFT adapter"
    base = reference if directory.links_within is None else str(directory.root)
    paths = ", ".join(shown(f"{base.rstrip('/')}/{name}") for name in named[:4])
    rest = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return f"{reference}: no {CONFIG}, but folders in it are adapters: name one of {paths}{rest}"


def _sources(directory: Directory, name: str) -> tuple[SourcePath, ...]:
    """Return the adapter's files, for provenance. Raises AdapterError for a folder that no artifact can name."""
    if not is_plain_name(f"{name}/{WEIGHTS}"):
        raise AdapterError(
            f"{directory.label}: an artifact records the adapter's files by its folder, and {name!a} is no plain name: "
            "no backslash, no control character, at most about 480 bytes; rename the folder itself, or copy it"
        )
    return tuple(SourcePath(f"{name}/{entry.name}", entry.path) for entry in directory.source_paths((CONFIG, WEIGHTS)))


def _read_tensors(directory: Directory) -> dict[str, Source]:
    """Return the adapter's tensors by their name without "base_model.model."."""
    path = directory.locate(WEIGHTS)
    if path is None:
        pickle = next((name for name in _PICKLES if directory.locate(name) is not None), None)
        found = f"found {pickle}, but only safetensors are read (pickle can run code); " if pickle else ""
        raise AdapterError(f"{directory.label}: no {WEIGHTS}; {found}save it with PEFT's save_pretrained")
    tensors = dict[str, Source]()
    file = read_header(directory.files, path, f"{directory.label}: {WEIGHTS}", AdapterError)
    for stored, source in file.tensors.items():
        name = stored.removeprefix(PREFIX)
        if name in tensors:
            raise AdapterError(
                f"{directory.label}: tensors {tensors[name].tensor!r} and {stored!r} are the same"
            )
        if source.dtype not in FLOAT_DTYPES:
            raise AdapterError(
                f"{directory.label}: tensor {stored!r} is stored as {source.dtype}, "
                f"expected one of {', '.join(FLOAT_DTYPES)}"
            )
        tensors[name] = source
    return tensors


def _low_rank(
    tensors: Mapping[str, Source], config: AdapterConfig, taken: set[str], where: str
) -> tuple[LowRankUpdate, ...]:
    factors = dict[tuple[str, bool], dict[str, Source]]()
    for name, source in tensors.items():
        embedding = _EMBEDDING_FACTOR.fullmatch(name)
        match = embedding or _FACTOR.fullmatch(name)
        if match is None:
            continue
        part = match["part"][-1]
        halves = factors.setdefault((match["module"], embedding is not None), {})
        if part in halves:
            raise AdapterError(
                f"{where}: tensors {halves[part].tensor!r} and {source.tensor!r} are the same half"
            )
        halves[part] = source
        taken.add(name)
    magnitudes = _magnitudes(tensors, taken, where) if config.use_dora else {}
    shared = {HEAD, *(module for module, _ in factors if ties_factors(config, where) and _is_tied(module))}
    updates = tuple(
        _update(module, halves, is_embedding, config, shared, where)
        for (module, is_embedding), halves in sorted(factors.items())
    )
    if not config.use_dora:
        return updates
    alone = [source.tensor for module, source in magnitudes.items() if module not in {u.module for u in updates}]
    if alone:
        raise AdapterError(f"{where}: tensor {alone[0]!r} is a magnitude of a module without lora_A and lora_B")
    return tuple(_with_magnitude(update, magnitudes, where) for update in updates)


def _magnitudes(tensors: Mapping[str, Source], taken: set[str], where: str) -> dict[str, Source]:
    found = dict[str, Source]()
    for name, source in tensors.items():
        match = _MAGNITUDE.fullmatch(name)
        if match is None:
            continue
        if match["module"] in found:
            raise AdapterError(f"{where}: {shown(match['module'])} has two lora_magnitude_vector tensors")
        found[match["module"]] = source
        taken.add(name)
    return found


def _with_magnitude(update: LowRankUpdate, magnitudes: Mapping[str, Source], where: str) -> LowRankUpdate:
    """Return a low-rank update as DoRA's."""
    magnitude = magnitudes.get(update.module)
    if magnitude is None:
        raise AdapterError(f"{where}: use_dora is set, but {shown(update.module)} has no lora_magnitude_vector tensor")
    if isinstance(update.a, Transposed):
        raise AdapterError(
            f"{where}: tensor {magnitude.tensor!r} is DoRA on an embedding, whose columns PEFT scales; merge with PEFT "
            "first"
        )
    check_form(magnitude, (update.b.shape[0],), f"[{update.b.shape[0]}], one length for each row of lora_B,", where)
    return replace(update, magnitude=magnitude)


def _update(
    module: str,
    halves: Mapping[str, Source],
    is_embedding: bool,
    config: AdapterConfig,
    shared: Collection[str],
    where: str,
) -> LowRankUpdate:
    for part, other in (("A", "B"), ("B", "A")):
        if part not in halves:
            raise AdapterError(f"{where}: {shown(module)} has {halves[other].tensor!r} but no lora_{part} tensor")
    a, b = halves["A"], halves["B"]
    _check_target(config, module, a, where)
    if is_embedding != (module.rpartition(".")[2] in EMBEDDINGS):
        kind, other = ("a linear layer", "lora_A") if is_embedding else ("an embedding", "lora_embedding_A")
        raise AdapterError(f"{where}: tensor {a.tensor!r} belongs to {shown(module)}, {kind}: expected {other}")
    rank = rank_of(config, module, where)
    if module in shared and a.shape and a.shape[0] in (rank_of(config, other, where) for other in shared):
        rank = a.shape[0]  # one of them has the other's factors
    for source, wanted, form in ((a, (rank, None), "[rank, in]"), (b, (None, rank), "[out, rank]")):
        check_form(source, wanted, f"{form} with rank {rank}", where)
    scale = scale_of(config, module, where)
    if is_embedding:
        return LowRankUpdate(module, Transposed(b), Transposed(a), scale)
    return LowRankUpdate(module, a, b, scale)


def _is_tied(module: str) -> bool:
    return module == HEAD or module.rpartition(".")[2] == EMBEDDINGS[0]


def _scales(
    tensors: Mapping[str, Source], config: AdapterConfig, taken: set[str], where: str
) -> tuple[VectorScale, ...]:
    scales = dict[str, VectorScale]()
    for name, source in sorted(tensors.items()):
        match = _VECTOR.fullmatch(name)
        if match is None:
            continue
        module = match["module"]
        if module in scales:
            raise AdapterError(f"{where}: {shown(module)} has two ia3_l tensors")
        _check_target(config, module, source, where)
        is_input = is_feedforward(config, module, where)
        form, axis = ("[1, in]", 0) if is_input else ("[out, 1]", 1)
        if len(source.shape) != 2 or source.shape[axis] != 1:
            raise AdapterError(
                f"{where}: tensor {source.tensor!r} has shape {list(source.shape)}, expected {form}, as "
                f"feedforward_modules {'names' if is_input else 'does not name'} {shown(module)}"
            )
        vector = replace(source, shape=(source.shape[0] * source.shape[1],))
        scales[module] = VectorScale(module, vector, "input" if is_input else "output")
        taken.add(name)
    return tuple(scales.values())


def _check_target(config: AdapterConfig, module: str, source: Source, where: str) -> None:
    """Refuse a tensor of a module that PEFT would leave alone."""
    reason = reason_left_alone(config, module, where)
    if reason is not None:
        raise AdapterError(f"{where}: tensor {source.tensor!r} belongs to {shown(module)}, {reason}")


def _replacements(
    tensors: Mapping[str, Source], config: AdapterConfig, taken: set[str], targeted: set[str], where: str
) -> tuple[tuple[str, Source], ...]:
    """Return whole weights: modules_to_save, trained biases, embeddings that PEFT saves with an update."""
    saved = config.modules_to_save or ()
    found = dict[str, Source]()
    taken |= _second_copies(tensors, saved)
    for name, source in tensors.items():
        match = _WHOLE.fullmatch(name) if name not in taken else None
        if match is None:
            continue
        module, kind = match["module"], match["kind"]
        weight = f"{module}.{kind}"
        is_bias = kind == "bias" and (
            config.bias == "all" or (config.bias.endswith("_only") and module in targeted)
        )
        if not (is_bias or _is_whole(weight, saved)):
            continue
        if weight in found:
            raise AdapterError(
                f"{where}: tensors {found[weight].tensor!r} and {source.tensor!r} are the same weight"
            )
        found[weight] = source
        taken.add(name)
    for entry in modules_saved(config):
        if not any(_is_saved((entry,), weight) for weight in found):
            raise AdapterError(
                f"{where}: modules_to_save names {quoted(entry)}, but {WEIGHTS} has no such tensor; if the model has "
                f"no such module, take the name out of modules_to_save in {CONFIG}, else save the adapter again"
            )
    return tuple(sorted(found.items()))


def _second_copies(tensors: Mapping[str, Source], saved: tuple[str, ...]) -> set[str]:
    """Return the whole weights and biases that PEFT stores and does not read.

    Of what modules_to_save wraps it reads the plain name alone. Beside it are the trained weight again and
    `original_module`, the base model's, where the vocabulary was resized or bias: all is set. `ensure_weight_tying`
    wraps a head that modules_to_save does not name.
    """
    found = set[str]()
    for name in tensors:
        is_former = "original_module" in name.split(".")
        if any(_is_whole(plain, saved) and (is_former or plain in tensors) for plain in _plain(name)):
            found.add(name)
    return found


def _plain(name: str) -> Iterator[str]:
    """Yield what a tensor's name may be without what PEFT wraps a module in."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part in _WRAPPED:
            yield ".".join((*parts[:index], *parts[index + 1 :]))
            yield ".".join((*parts[:index], *parts[index + 2 :]))


def _is_whole(weight: str, saved: tuple[str, ...]) -> bool:
    """Return whether an adapter may have `weight` whole: of modules_to_save, an embedding or a head."""
    return weight.rpartition(".")[0].rpartition(".")[2] in _EMBEDDING_LAYERS or _is_saved(saved, weight)


def _is_saved(saved: tuple[str, ...], weight: str) -> bool:
    """Return whether `weight` is in a module whose path ends as modules_to_save says, or below one."""
    return any(f"{entry}." in weight for entry in saved)
