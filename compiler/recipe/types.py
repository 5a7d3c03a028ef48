"""The recipe as frozen data: the classes that the parser and the JSON schema are derived from.

Annotations are the rules: `decode` reads limits and choices out of them, `schema` publishes
them, so a key is described once. Rules that join several keys stand in `decode`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from pyc.compiler.name_patterns import PatternError, name_pattern
from pyc.compiler.recipe.adapter_types import AdapterRef as AdapterRef
from pyc.compiler.recipe.adapter_types import Merge as Merge
from pyc.compiler.recipe.calibration_types import CalibrationText as CalibrationText
from pyc.compiler.recipe.calibration_types import Text as Text
from pyc.compiler.schemes import ALIASES, SCHEMES, Activations, Scheme, parse_scheme
from pyc.compiler.schemes import Algorithm as Algorithm
from pyc.runtime.errors import RecipeError

SCHEME_NAMES = (*SCHEMES, *ALIASES)
"""Every name that a scheme may be given: canonical names, then aliases."""

UNCODED = frozenset(["none", "f32", "f16", "bf16"])
"""Schemes that store numbers, not codes."""

ISAS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86-64", "x86-64-v3", "avx-vnni", "avx512-vnni", "avx512-bf16", "amx-bf16"),
    "aarch64": ("armv8", "armv8-dotprod"),
    "any": ("onnxruntime", "tensorrt", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120", "compute_100"),
}
"""Instruction sets that a build compiles for when its recipe names none, the most portable first."""

BACKEND_ALIASES: Mapping[str, str] = {"tvm": "cpu"}
"""What backends were called before."""

PORTABLE_BACKENDS: Mapping[str, tuple[Literal["cpu", "cuda"], tuple[str, ...]]] = {
    "onnx": ("cpu", ("onnxruntime",)),
    "tensorrt": ("cuda", ("tensorrt",)),
    "cuda": ("cuda", ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120", "compute_100")),
}
"""Those whose programs run on every architecture of a host, `arch` "any": the kind of device, and the variants."""

MAX_CONTEXT = 1 << 20
DEFAULT_CONTEXT_LIMIT = 4096
"""Context of a build whose recipe gives none: the model's own maximum, but at most this many tokens."""

DEFAULT_BATCH = (1, 4)
"""Sequences at a time of a build whose recipe gives none; those that `tokens` has no rows for are left out."""

SchemeName = Annotated[str, Meta(extra_json_schema={"enum": list(SCHEME_NAMES)})]
_ISA_NAMES = [isa for arch, row in ISAS.items() for isa in row]
IsaName = Annotated[str, Meta(extra_json_schema={"enum": _ISA_NAMES})]
Rows = Annotated[int, Meta(ge=1, le=1 << 16)]


class Override(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheme for the tensors that `match` names; the first override that matches a tensor decides."""

    match: Annotated[
        Text,
        Meta(description="Name of a tensor or of its module, or re:REGEX matched from the start of the name"),
    ]
    scheme: Annotated[SchemeName, Meta(description="Scheme of these tensors")]
    algorithm: Annotated[
        Algorithm | None, Meta(description="How they are rounded to it; null: as the recipe says for all")
    ] = None

    def matches(self, tensor: str) -> bool:
        """Whether this override is about the tensor of that source name, such as `lm_head.weight`.

        A name matches exactly, with or without its last part (`.weight`, `.bias`). A regular expression is
        matched as compressed-tensors does it, with `re.match`: anchored at the start of the name, open at its
        end; the module name is tried first, then the tensor name. Raises RecipeError when it takes too long.
        """
        names = (tensor.rpartition(".")[0], tensor)
        if self.match.startswith("re:"):
            try:
                pattern = name_pattern(self.match[3:])
                return any(pattern.matches(name) for name in names if name)
            except PatternError as error:
                raise RecipeError(f"quantize.overrides: {self.match!r}: {error}") from error
        return self.match in names


class Quantize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights, activations and the KV cache are stored."""

    scheme: Annotated[SchemeName, Meta(description="Scheme of the linear layers")] = "none"
    algorithm: Annotated[
        Algorithm,
        Meta(
            description="rtn: round to nearest; the others read the calibration text. imatrix: scales by squared "
            "inputs; gptq: to what loses least; awq: scale channels first; smoothquant: the same, for int8 "
            "activations; yaqa: as gptq, towards the predictions of the whole model"
        ),
    ] = "rtn"
    migration: Annotated[
        float, Meta(ge=0, le=1, description="How much of the outliers of activations smoothquant moves into weights")
    ] = 0.5
    calibration: CalibrationText = CalibrationText()
    overrides: Annotated[
        tuple[Override, ...], Meta(max_length=1024, description="Exceptions; the first that matches decides")
    ] = ()
    embeddings: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["auto", *SCHEME_NAMES]},
            description="Scheme of the token embedding and output head; auto: int8 when scheme quantizes",
        ),
    ] = "auto"
    kv_cache: Annotated[
        Literal["f16", "f32", "int8", "fp8"], Meta(description="Storage type of keys and values")
    ] = "f16"
    activations: Annotated[
        Literal["int8", "f32", "bf16", "fp8", "mxfp8"],
        Meta(
            description="int8, f32, mxfp8 (e4m3, a power of two for 32 inputs): what quantized products multiply with; "
            "bf16: int8, and bf16 by bf16 and fp8; fp8: int8, and by fp8 e4m3 with a power of two for each token"
        ),
    ] = "int8"
    size_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 50)] | None,
        Meta(description="Choose each matrix's scheme for the least loss, all tensors taking at most so many bytes"),
    ] = None
    bits_per_weight: Annotated[
        Annotated[float, Meta(ge=1, le=32)] | None,
        Meta(description="The same, matrices taking at most so many bits a weight, scales included"),
    ] = None
    max_kl: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Meta(description="Choose the fewest bytes whose KL on the calibration text is at most this, nats a token"),
    ] = None
    min_tok_s: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e6)] | None,
        Meta(description="Choose the least loss at which one sequence decodes so many tokens a second on this machine"),
    ] = None

    def __post_init__(self) -> None:
        if self.embeddings == "auto" and self.goal() is None:
            quantizes = self.scheme not in UNCODED
            msgspec.structs.force_setattr(self, "embeddings", "int8" if quantizes else self.scheme)

    def goal(self) -> tuple[str, float] | None:
        """Return the key by which schemes are chosen, and its value; None where the recipe names them."""
        goals = (
            ("size_bytes", self.size_bytes),
            ("bits_per_weight", self.bits_per_weight),
            ("max_kl", self.max_kl),
            ("min_tok_s", self.min_tok_s),
        )
        return next(((name, value) for name, value in goals if value is not None), None)

    def algorithms(self) -> tuple[Algorithm, ...]:
        """Return the algorithms that the recipe names, `rtn` among them."""
        named = (override.algorithm for override in self.overrides)
        return tuple(dict.fromkeys((self.algorithm, *(name for name in named if name is not None))))

    def calibrates(self) -> bool:
        """Whether an algorithm reads a text, or importance."""
        return self.algorithms() != ("rtn",)

    def reads_text(self) -> bool:
        """Whether a build reads the calibration text."""
        without = ("rtn", "imatrix") if self.calibration.imatrix is not None else ("rtn",)
        return self.goal() is not None or any(name not in without for name in self.algorithms())

    def algorithm_of(self, tensor: str) -> Algorithm | None:
        """Return the algorithm that an override names for that source tensor; None where none does."""
        return next((override.algorithm for override in self.overrides if override.matches(tensor)), None)

    def scheme_of(self, tensor: str, *, embedding: bool = False) -> Scheme:
        """Return the scheme of that source tensor; `embedding`: it is the token embedding or output head."""
        default = self.embeddings if embedding and self.embeddings != "auto" else self.scheme
        name = next((override.scheme for override in self.overrides if override.matches(tensor)), default)
        activations: Activations = self.activations
        return parse_scheme(name, activations)


class Shapes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes that programs are compiled for; a smaller input takes the next larger one, padded."""

    context: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CONTEXT)] | None,
        Meta(
            description=f"Most tokens of a sequence; null: the model's own maximum, but at most {DEFAULT_CONTEXT_LIMIT}"
        ),
    ] = None
    text_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CONTEXT)] | None,
        Meta(description="Tokens that an encoder reads of a text, at most context; null: context"),
    ] = None
    tokens: Annotated[
        tuple[Rows, ...],
        Meta(min_length=1, max_length=16, description="Rows of a step: prompt chunks and decoding sequences"),
    ] = (1, 16, 128, 512)
    batch: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1024)], ...],
        Meta(min_length=1, max_length=16, description="Sequences at a time; the largest is the limit"),
    ] = DEFAULT_BATCH
    logits: Annotated[
        tuple[Rows, ...],
        Meta(min_length=1, max_length=16, description="Rows of the output head in one call"),
    ] = (1, 16)

    @property
    def max_sequences(self) -> int:
        """The most sequences that run at a time."""
        return max(self.batch)


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine to compile for: one library for each instruction set, or kind of GPU."""

    backend: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["cpu", "onnx", "tensorrt", "cuda"]},
            extra={"aliases": BACKEND_ALIASES},
            description="Compiler backend",
        ),
    ] = "cpu"
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Kind of device; `cuda` for tensorrt and cuda")] = "cpu"
    arch: Annotated[
        Literal["x86_64", "aarch64", "any"],
        Meta(description="Architecture; `any` for onnx, tensorrt and cuda, whose GPUs may stand here as a list, too"),
    ] = "x86_64"
    isa: Annotated[
        tuple[IsaName, ...],
        Meta(
            max_length=16,
            description="Instruction sets, or GPUs of cuda; the runtime takes the best there is. Empty: all",
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.backend in BACKEND_ALIASES:
            msgspec.structs.force_setattr(self, "backend", BACKEND_ALIASES[self.backend])
        if self.backend in PORTABLE_BACKENDS:
            device, variants = PORTABLE_BACKENDS[self.backend]
            msgspec.structs.force_setattr(self, "device", device)
            msgspec.structs.force_setattr(self, "arch", "any")
            msgspec.structs.force_setattr(self, "isa", self.isa or variants)
        if not self.isa:
            msgspec.structs.force_setattr(self, "isa", ISAS[self.arch])


class Quality(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model has to keep on a text: a build that finds a limit exceeded leaves no artifact."""

    text: Annotated[
        Text,
        Meta(description="A file of UTF-8 text, relative to the recipe's folder; for encoders one text a line"),
    ]
    max_kl: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Meta(description="Mean KL of the reference's predictions to the model's, nats a token"),
    ] = None
    max_ppl: Annotated[Annotated[float, Meta(ge=1, le=1e9)] | None, Meta(description="Perplexity")] = None
    min_same_top: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of tokens whose most likely successor is the reference's"),
    ] = None
    min_cosine: Annotated[
        Annotated[float, Meta(ge=-1, le=1)] | None,
        Meta(description="Mean cosine of an encoder's vectors to the reference's"),
    ] = None
    reference: Annotated[
        Literal["checkpoint", "none"],
        Meta(description="checkpoint: the model without rounding; none: max_ppl needs no reference"),
    ] = "checkpoint"
    context: Annotated[
        Annotated[int, Meta(ge=4, le=MAX_CONTEXT)] | None,
        Meta(description="Tokens of a window; null: 512, or the model's context"),
    ] = None
    tokens: Annotated[
        Annotated[int, Meta(ge=4, le=1 << 32)] | None,
        Meta(description="Tokens of the text that are used, from its start (of encoders, lines); null: all"),
    ] = None

    def limits(self) -> tuple[tuple[str, float], ...]:
        """Return the limits that are set, by name."""
        named = (
            ("max_kl", self.max_kl),
            ("max_ppl", self.max_ppl),
            ("min_same_top", self.min_same_top),
            ("min_cosine", self.min_cosine),
        )
        return tuple((name, value) for name, value in named if value is not None)


class ArtifactOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file to write."""

    path: Annotated[
        Text | None,
        Meta(description="Output, relative to the recipe's folder; null: the recipe's name with .pyca"),
    ] = None
    codec: Annotated[
        Literal["auto", "none", "lz4", "zstd"],
        Meta(description="Compression of chunks; auto: none unless lz4 or zstd gains enough"),
    ] = "auto"
    key: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            description="Name of the signing key in the key store",
        ),
    ] = "default"


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe file can say."""

    model: Annotated[Text, Meta(description="Checkpoint folder, relative to the recipe's folder, or hub id")]
    tokenizer: Annotated[
        Text | None,
        Meta(
            description="Folder, or hub id, of the tokenizer and chat template in place of the checkpoint's; null: the "
            "checkpoint's"
        ),
    ] = None
    adapters: Annotated[
        tuple[AdapterRef, ...], Meta(max_length=64, description="PEFT adapters, fused in this order")
    ] = ()
    merge: Annotated[
        Merge | None, Meta(description="Make one of all adapters, which are LoRA, first; null: fuse each in turn")
    ] = None
    quantize: Quantize = Quantize()
    shapes: Shapes = Shapes()
    targets: Annotated[tuple[Target, ...], Meta(min_length=1, max_length=16, description="Machines to compile for")] = (
        Target(),
    )
    artifact: ArtifactOptions = ArtifactOptions()
    quality: Annotated[Quality | None, Meta(description="A gate that the model has to pass; null: none")] = None


class Recipe(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recipe and where it was read: `folder` anchors its relative paths, `name` is that of the file.

    `file` is the file itself, empty for a recipe that was not read from one. `override_places` says of each override
    where its `match` was written, for messages about what only the model shows.
    """

    folder: str = "."
    name: str = "model"
    file: str = ""
    override_places: tuple[str, ...] = ()

    def adapter_paths(self) -> tuple[str, ...]:
        """Return the folders and hub ids of the adapters, as written."""
        return tuple(adapter.path for adapter in self.adapters)

    def references(self) -> tuple[str, ...]:
        """Return every folder or hub id that the recipe names: of the model, its tokenizer and the adapters."""
        return (self.model, *(() if self.tokenizer is None else (self.tokenizer,)), *self.adapter_paths())

    def locate(self, path: str) -> Path:
        """Return `path` of this recipe as a path of this machine: relative to the folder, `~` expanded."""
        return Path(self.folder) / os.path.expanduser(path)  # not Path.expanduser: for that ./~ is ~

    def output(self) -> Path:
        """Return where the artifact goes when the command line does not say."""
        return self.locate(self.artifact.path) if self.artifact.path else Path(self.folder) / f"{self.name}.pyca"
