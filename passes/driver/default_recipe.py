"""The recipe that pyc proposes for a checkpoint, from its headers alone: what `pyc init` writes down with comments, and
what a build takes for a checkpoint that comes without a recipe."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyc.backends.registry import backend_for
from pyc.compiler.codes import Codes
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.quantize_rules import GOALS
from pyc.compiler.recipe.types import (
    DEFAULT_BATCH,
    DEFAULT_CONTEXT_LIMIT,
    ISAS,
    Algorithm,
    Quantize,
    Recipe,
    Target,
)
from pyc.models.adapter_tokenizers import own_tokenizers
from pyc.models.catalog import load_model
from pyc.models.companions import adapter_folder
from pyc.models.hub_cache import hub_name
from pyc.models.model_source import ModelSource
from pyc.models.tokenizer_files import read_tokenizer_files
from pyc.passes.assign_schemes import AssignSchemes
from pyc.runtime.errors import QuantizeError, RecipeError

_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

LARGE_PARAMETERS = 100_000_000
"""From this many parameters on, int4 is the scheme that is proposed; smaller models lose too much by it."""

SHOWN_SCHEMES = ("none", "int8", "int8-g32", "int4-g32", "lut4-g32", "lut3-g32")
"""Schemes whose sizes a recipe's comments list."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A scheme for decoders, the algorithm that rounds to it, and why one would want it."""

    scheme: str
    algorithm: Algorithm
    reason: str


PRESETS: Mapping[str, Preset] = {
    "quality": Preset("int8", "rtn", "half the bytes of 16 bits, and a loss that hardly shows"),
    "balanced": Preset(
        "lut4-g32", "gptq", "the bytes of int4 and nearly its speed, with half of its loss; calibrated by a text"
    ),
    "small": Preset(
        "lut3-g32", "gptq", "three quarters of the bytes of int4, with about twice its loss; calibrated by a text"
    ),
}
"""What `pyc init --preset` offers; docs/which-scheme.md has the measurements."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a recipe should say of a model, and why its `scheme` is that.

    `scheme_bytes` gives what all weights take under each of SHOWN_SCHEMES; None: its groups do not divide a matrix.
    """

    module: Module
    parameters: int
    scheme_bytes: Mapping[str, int | None]
    scheme: str
    algorithm: Algorithm
    reason: str
    context: int
    tokens: tuple[int, ...]
    batch: tuple[int, ...]
    targets: tuple[tuple[str, tuple[str, ...]], ...]

    def document(
        self, model: str, adapters: Sequence[str] = (), tokenizer: str | None = None
    ) -> dict[str, object]:
        """Return the recipe as plain values, for a checkpoint called `model`, adapters in their order and, where it is
        not the checkpoint's, a tokenizer."""
        written: dict[str, object] = {"model": model}
        if tokenizer is not None:
            written["tokenizer"] = tokenizer
        if adapters:
            written["adapters"] = [{"path": path} for path in adapters]
        calibrated = {} if self.algorithm == "rtn" else {"algorithm": self.algorithm}
        written["quantize"] = {"scheme": self.scheme, **calibrated}
        written["shapes"] = {"context": self.context, "tokens": list(self.tokens), "batch": list(self.batch)}
        written["targets"] = [{"arch": arch, "isa": list(isas)} for arch, isas in self.targets]
        return written

    def behind(self, virtual_tokens: int) -> Proposal:
        """Return the proposal for sequences behind virtual tokens, for which the model's positions have to do, too."""
        return replace(self, context=max(1, min(self.context, self.module.info.context - virtual_tokens)))


def propose(
    checkpoint: str,
    base_dir: Path,
    scheme: str | None = None,
    preset: str | None = None,
    adapters: Sequence[str] = (),
) -> Proposal:
    """Return the proposal for a checkpoint's folder (relative to `base_dir`) or hub id, with adapters; reads headers.

    `preset` is a name in PRESETS; without it and `scheme`, the model's size decides. Raises IngestError, RecipeError
    for an unknown `scheme` or a preset that does not fit, QuantizeError for groups that do not divide a matrix.
    """
    with SourceFiles(is_quiet=True) as files:  # the recipe is built or checked behind this, which has warnings to say
        module = load_model(ModelSource(checkpoint, base_dir, tuple(adapters)), files=files)
    info = module.info
    sizes = {name: _size_bytes_or_none(module, name) for name in SHOWN_SCHEMES}
    parameters = sum(math.prod(weight.shape) for weight in module.weights.values())
    algorithm: Algorithm = "rtn"
    if preset is not None:
        chosen = _preset(preset, sizes, info.kind)
        scheme, algorithm, reason = chosen.scheme, chosen.algorithm, chosen.reason
    elif scheme is None and any(isinstance(weight, Codes) for weight in module.weights.values()):
        scheme, reason = "none", "the checkpoint is quantized already; its codes are kept where a kernel takes them"
    elif scheme is None:
        scheme, reason = _choose(sizes, parameters, info.kind)
    else:
        reason = "as --scheme asks"
        stored_size_bytes(module, recipe_from({"model": "m", "quantize": {"scheme": scheme}}).quantize)
    context = min(info.context, DEFAULT_CONTEXT_LIMIT)
    tokens = tuple(rows for rows in (1, 16, 128, 512) if rows < 2 * context)
    if info.kind == "encoder":  # a text is read at once, and several texts in one step
        tokens = tuple(sorted({16, 128, 512, context}))
    return Proposal(
        module=module,
        parameters=parameters,
        scheme_bytes=sizes,
        scheme=scheme,
        algorithm=algorithm,
        reason=reason,
        context=context,
        tokens=tokens,
        batch=DEFAULT_BATCH if info.kind == "decoder" else (1, 16),
        targets=(("x86_64", ISAS["x86_64"]),),
    )


def tokenizer_for(module: Module, adapters: Sequence[str], base_dir: Path) -> str | None:
    """Return the adapter (relative to `base_dir`, or a hub id) whose folder has the tokenizer that a recipe should name
    for a model, if one does.

    None, too, where adapters have several, or one that does not fit the model: a build warns of these.
    """
    rows, carried = module.info.vocab_size, dict(module.files)
    with SourceFiles(is_quiet=True) as files:
        folders = [(path, adapter_folder(path, base_dir, files)) for path in adapters]
        own = [(path, found[0]) for path, folder in folders if (found := own_tokenizers([folder], carried, rows))]
        if not own or not all(found.is_whole and found.fits for _, found in own):
            return None
        path, first = own[0]
        others = own_tokenizers(
            (found.folder for _, found in own[1:]), {**carried, **dict(read_tokenizer_files(first.folder, rows))}, rows
        )
    return None if others else path


def default_recipe(checkpoint: str, overrides: Sequence[str] = ()) -> tuple[Recipe, Proposal]:
    """Return the recipe that `pyc init` would write for a checkpoint, its artifact going to the working directory.

    The artifact is named after the checkpoint's folder or its hub id. Where `overrides` have a goal by which schemes
    are chosen, the recipe names none. Raises IngestError and RecipeError.
    """
    proposal = propose(checkpoint, Path())
    document, name = proposal.document(reference_from(checkpoint, Path())), name_of(checkpoint)
    try:
        without_scheme = recipe_from({**document, "quantize": {}}, overrides, name=name)
    except RecipeError:  # of an algorithm, which may be for the scheme that is proposed
        keys = {text.partition("=")[0].strip() for text in overrides}
        if "quantize" in keys or keys & {f"quantize.{goal}" for goal in GOALS}:
            raise
    else:
        if without_scheme.quantize.goal() is not None:
            return without_scheme, proposal
    return recipe_from(document, overrides, name=name), proposal


def reference_from(path: str, folder: Path) -> str:
    """Return how a recipe in `folder` names what the user called `path`: a folder relative to it, or a hub id.

    Raises RecipeError for a path that no recipe can name.
    """
    if not path.startswith("~") and Path(path).is_dir() and not Path(path).is_absolute():
        here = folder.resolve() == Path.cwd() and ".." not in Path(path).parts
        path = os.path.normpath(path) if here else os.path.relpath(Path(path).resolve(), folder.resolve())
        path = path if path in (".", "..") or path.startswith("../") else f"./{path}"
    if _UNWRITABLE.search(path):
        raise RecipeError(
            f"{path!a}: a recipe cannot name a path with control characters or undecodable bytes; rename the "
            "folder, or make a link to it"
        )
    return path


def stored_size_bytes(module: Module, quantize: Quantize) -> int:
    """Return the bytes that the weights take as `quantize` stores them; QuantizeError when it cannot."""
    backend = backend_for(Target().backend, Cache(None))
    pack = next(step for step in backend.passes() if "packed" in step.provides)
    packed = pack.run(AssignSchemes(quantize).run(module))
    return sum(backend.stored(weight).size_bytes for weight in packed.weights.values())


def _size_bytes_or_none(module: Module, scheme: str) -> int | None:
    try:
        return stored_size_bytes(module, Quantize(scheme=scheme))
    except QuantizeError:
        return None


def _preset(name: str, sizes: Mapping[str, int | None], kind: str) -> Preset:
    preset = PRESETS[name]
    if kind != "decoder" and preset.algorithm != "rtn":
        raise RecipeError(f"preset {name!r} is for decoders: an encoder takes int8; use --preset quality or --scheme")
    if sizes[preset.scheme] is None:
        raise RecipeError(
            f"preset {name!r} is {preset.scheme}, whose groups do not divide a matrix of this model; "
            "use --preset quality, or --scheme"
        )
    return preset


def _choose(sizes: Mapping[str, int | None], parameters: int, kind: str) -> tuple[str, str]:
    """The scheme for a model, and why: docs/quality.md has the measurements."""
    if kind != "decoder":
        return "int8", "half the bytes of 16 bits, for next to nothing; what int4 costs was measured for decoders only"
    if parameters < LARGE_PARAMETERS:
        return "int8", (
            "half the bytes of 16 bits, for next to nothing; int4 loses too much below 100 million parameters: "
            "with the demo model 50 times the KL of int8 (docs/quality.md)"
        )
    if sizes["int4-g32"] is None:
        return "int8", "groups of 32, for int4, do not divide a matrix of this model"
    return "int4-g32", "about a third of the bytes of 16 bits, and decoding reads them all; int8 is more exact"


def name_of(checkpoint: str) -> str:
    """Return what the artifact of a checkpoint's folder or hub id is called: after a link to a folder by the link."""
    place = Path(os.path.expanduser(checkpoint))
    if not place.is_dir():
        return hub_name(checkpoint)
    if place.is_symlink():
        return place.name
    folder = place.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or "model"

