"""Pairs the tensors of a checkpoint with those an architecture expects: every one once, none left over."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyc.compiler.codes import Codes
from pyc.compiler.source_values import read_rows, widened
from pyc.compiler.sources import Shape, Source
from pyc.models.checkpoint import Checkpoint
from pyc.models.safetensors_header import FLOAT_DTYPES
from pyc.runtime.errors import IngestError

logger = logging.getLogger(__name__)

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|module|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer"
    r"|base_model\.model)\."
)


@dataclass(frozen=True, slots=True)
class NameRules:
    """How stored names become the canonical ones.

    `strip` is a prefix that some checkpoints have and the canonical names lack, `add` one that some lack;
    `suffixes` are (old, canonical) endings; `harmless` matches canonical names that nothing needs to use. `optional`
    is a tensor without which a checkpoint is whole, and what it is then.
    """

    harmless: re.Pattern[str]
    strip: str = ""
    add: str = ""
    suffixes: tuple[tuple[str, str], ...] = ()
    optional: tuple[str, str] | None = None

    def canonical(self, name: str, expected: Mapping[str, Shape]) -> str:
        """Return the canonical form of a stored tensor's name."""
        name = name.removeprefix(self.strip)
        for old, new in self.suffixes:
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return self.add + name if name not in expected and self.add + name in expected else name


def match_tensors(
    checkpoint: Checkpoint, expected: Mapping[str, Shape], rules: NameRules
) -> dict[str, Source | Codes]:
    """Return the source of each expected tensor, by canonical name, in the order of `expected`.

    Raises IngestError naming the tensor that is missing, stored twice, of another shape or type, or unknown.
    """
    found = dict[str, Source | Codes]()
    unknown, ignored = list[str](), list[str]()
    for stored, source in checkpoint.tensors.items():
        name = rules.canonical(stored, expected)
        if name not in expected:
            is_harmless = rules.harmless.fullmatch(name) is not None or _is_bias_of_zeros(stored, checkpoint)
            (ignored if is_harmless else unknown).append(stored)
        elif name in found:
            raise IngestError(
                f"{checkpoint.label}: tensors {found[name].tensor!r} and {stored!r} are the same weight"
            )
        else:
            found[name] = source
    missing = [name for name in expected if name not in found]
    if rules.optional and missing == [rules.optional[0]]:
        raise IngestError(f"{checkpoint.label}: there is no tensor {missing[0]!r}: {rules.optional[1]}")
    if missing:
        wrapped = next((name for name in unknown if _unwrapped(name, expected, rules) == missing[0]), None)
        why = "the checkpoint does not belong to this config.json or is incomplete"
        within = next((name for name in unknown if name.endswith(f".{missing[0]}")), None)
        if wrapped is not None:
            why = f"{wrapped!r} is there, as a trainer's wrapper names it; save the model that is in the wrapper"
        elif within is not None:
            why = f"{within!r} is there, as where the model is a part of another; save that part by itself"
        raise IngestError(
            f"{checkpoint.label}: tensor {missing[0]!r} of shape {list(expected[missing[0]])} is missing"
            f"{_others(missing)}; {why}"
        )
    if unknown:
        raise IngestError(
            f"{checkpoint.label}: tensor {unknown[0]!r} is not part of the architecture as config.json "
            f"describes it{_others(unknown)}; leaving it out could change the results"
        )
    for name, shape in expected.items():
        _check(checkpoint.label, found[name], shape)
    if ignored:
        logger.info("%s: %d tensors not needed, such as %s", checkpoint.label, len(ignored), ignored[0])
    return {name: found[name] for name in expected}


def _unwrapped(stored: str, expected: Mapping[str, Shape], rules: NameRules) -> str:
    """Return the canonical name without the parts that torch.compile, DDP, FSDP and PEFT put into it."""
    return rules.canonical(_WRAPPERS.sub("", stored), expected)


def _is_bias_of_zeros(name: str, checkpoint: Checkpoint) -> bool:
    """Return whether a tensor adds zeros behind a quantized matrix: AutoGPTQ once gave all of them a bias."""
    bias, matrix = checkpoint.tensors[name], checkpoint.tensors.get(name.removesuffix("bias") + "weight")
    if not name.endswith(".bias") or not isinstance(bias, Source) or not isinstance(matrix, Codes):
        return False
    if bias.shape != matrix.shape[:1] or bias.dtype not in FLOAT_DTYPES:
        return False
    return not widened(bias, read_rows(bias, 0, bias.shape[0], checkpoint.directory.files)).any()


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} others)" if len(names) > 1 else ""


def _check(label: str, source: Source | Codes, shape: Shape) -> None:
    if source.shape != shape:
        raise IngestError(
            f"{label}: tensor {source.tensor!r} has shape {list(source.shape)}, "
            f"expected {list(shape)} by config.json"
        )
    if source.dtype not in FLOAT_DTYPES:
        raise IngestError(
            f"{label}: tensor {source.tensor!r} is stored as {source.dtype}, expected one of "
            f"{', '.join(FLOAT_DTYPES)}; no quantization_config in its config.json says what that means"
        )
