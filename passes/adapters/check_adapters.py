"""Looks at the values of adapters before a build: damaged tensors, and adapters that would change nothing.

Only their own tensors are read, and of the model the first rows of weights that they change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence, Set

import numpy as np

from pyc.compiler.evaluate import Floats, evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Observer
from pyc.compiler.operands import sources
from pyc.compiler.source_values import NotFiniteError
from pyc.compiler.weights import Expression, Source
from pyc.models.adapters import PREFIX, Adapter
from pyc.passes.adapters.adapter_targets import EMBEDDING_ENDING, HEAD, touched_by
from pyc.passes.adapters.tie_adapter import tied_adapter
from pyc.runtime.errors import AdapterError, QuantizeError

logger = logging.getLogger(__name__)

BYTES_AT_A_TIME = 8 << 20
ROWS_AT_A_TIME = 256

_STRENGTHS = re.compile(
    r"\.(lora_B|lora_embedding_B|hada_w2_b|lokr_w1|lokr_w1_a|vera_lambda_b|oft_R|boft_R|ia3_l)(\.[^.]+)?(\.weight)?$"
)
"""The tensors that training starts from 0, or 1 for ia3_l: until it moves them, an adapter changes nothing."""


def check_values(adapter: Adapter, files: SourceFiles) -> None:
    """Raise AdapterError, naming the tensor, when an adapter has NaN, infinity, or a value that f32 has not."""
    for source in adapter.tensors:
        for _ in _pieces(source, adapter.reference, files):
            pass


def warn_of_losses(adapters: Sequence[Adapter], files: SourceFiles, *, is_tied: bool = False) -> None:
    """Log a warning for each adapter that replaces a weight whole that one before it has changed.

    What the earlier one did is lost, as where PEFT merges one after the other. It is meant where the later one was
    trained over the earlier. `is_tied`: the model's head is its embedding, so that it has the rows of trained tokens.
    """
    rows = dict[str, str]()
    for adapter, others in _in_turn(adapters):
        changed = rows | others
        lost = [name for name, _ in adapter.replacements if name in changed and name not in adapter.of_base]
        if lost:
            more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
            files.warn(
                logger,
                "adapter %s: it has %s%s whole, so that what %s did to it is lost; if both are meant, put %s first",
                adapter.reference, lost[0], more, changed[lost[0]], adapter.reference,
            )  # fmt: skip
        if adapter.tokens is not None:
            names = {f"{each.module}.weight" for each in adapter.tokens.every}
            shared = {HEAD} if is_tied and adapter.tokens.embedding is not None else set[str]()
            rows |= dict.fromkeys(names | shared, adapter.reference)


def warn_of_zeros(adapters: Sequence[tuple[Adapter, float]], files: SourceFiles) -> None:
    """Log a warning for each adapter of a merge that has no part in it."""
    for place, (adapter, weight) in enumerate(adapters):
        if weight == 0:
            files.warn(
                logger,
                "adapter %s: adapters[%d].weight is 0, so it has no part in the merge; leave it out or raise it",
                adapter.reference, place,
            )  # fmt: skip


def warn_of_names(adapters: Sequence[Adapter], module: Module, files: SourceFiles) -> None:
    """Log a warning for each adapter with tensors of the model's modules under names that PEFT does not load.

    PEFT leaves such a tensor out without an error, so that its model is the base; a build takes it by the end of its
    name. Names of the model without its head (AutoModel) are right, too.
    """
    modules = {*(name.rpartition(".")[0] for name in module.weights), HEAD.rpartition(".")[0]}
    for adapter in adapters:
        named = [(source.tensor, _name_in_peft(source.tensor, modules, module.info.kind)) for source in adapter.tensors]
        foreign = [(tensor, name) for tensor, name in named if name not in (None, tensor)]
        if foreign:
            files.warn(
                logger,
                "adapter %s: PEFT does not load %d of its %d tensors, such as %r, which PEFT calls %r; they are fused "
                "here, where PeftModel.from_pretrained leaves them out and warns of missing keys",
                adapter.reference, len(foreign), len(adapter.tensors), *foreign[0],
            )  # fmt: skip


def _name_in_peft(tensor: str, modules: Set[str], kind: str) -> str | None:
    """Return what PEFT calls a tensor of one of a model's modules, None where it is of none of them."""
    rest = tensor.removeprefix(PREFIX)
    parts = rest.split(".")
    starts = {".".join(parts[:end]) for end in range(1, len(parts))}
    if kind == "decoder":  # AutoModel has no "model."
        starts |= {f"model.{name}" for name in starts}
    else:  # models with a head have a name for the encoder, such as "bert."
        starts |= {name.partition(".")[2] for name in starts}
    if rest != tensor and starts & modules:
        return tensor
    inner = (".".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts)))
    found = max(modules & {*inner}, key=len, default=None)
    return None if found is None else PREFIX + found + rest.partition(found)[2]


def warn_of_tied_heads(adapters: Sequence[Adapter], module: Module, files: SourceFiles) -> None:
    """Log a warning for each adapter that changes the embedding or the head of a model in which both are one matrix.

    PEFT's forward and its merge are two models then: the former leaves the other of the two as it is. A build makes
    the former (`untie_head`).
    """
    if HEAD in module.weights or module.info.kind != "decoder":
        return
    for adapter in adapters:
        tied = tied_adapter(adapter, module)
        targets = {f"{update.module}.weight" for update in (*tied.low_rank, *tied.scales, *tied.updates)}
        if tied.tokens is not None and tied.tokens.has_own_head:
            targets |= {f"{rows.module}.weight" for rows in tied.tokens.every}
        changed = sorted(name.split(".")[-2] for name in targets if name.endswith((EMBEDDING_ENDING, HEAD)))
        if changed:
            files.warn(
                logger,
                "adapter %s: it changes %s of a model whose head is its embedding; each of the two gets its own "
                "change, as PEFT computes unmerged, where PEFT's merge_and_unload puts every change into both",
                adapter.reference, " and ".join(changed),
            )  # fmt: skip


def require_same_base(adapters: Sequence[Adapter], module: Module, files: SourceFiles) -> None:
    """Raise AdapterError for an adapter that was trained over a weight which an adapter before it changes, and has a
    copy of that weight which is not the model's.

    PEFT keeps a copy of an embedding or a head beside its factors. One of a model into which the earlier adapter was
    merged has that one's update already: to fuse both would add it twice.
    """
    for adapter, changed in _in_turn(adapters):
        for name, source in adapter.replacements:
            own = module.weights.get(name)
            if name not in adapter.of_base or name not in changed or own is None or own.shape != source.shape:
                continue
            if _differ(own, source, files):
                raise AdapterError(
                    f"adapter {adapter.reference!r}: it was trained over another {name} than the model's, of which it "
                    f"has a copy, and adapter {changed[name]!r} changes that weight, too; give the model that it was "
                    "trained over as `model`, and this adapter alone"
                )


def _in_turn(adapters: Sequence[Adapter]) -> Iterator[tuple[Adapter, dict[str, str]]]:
    """Yield each adapter with the weights that those before it change, and the name of the last that does."""
    changed = dict[str, str]()
    for adapter in adapters:
        yield adapter, changed
        updates = (*adapter.low_rank, *adapter.scales, *adapter.updates)
        changed |= dict.fromkeys(touched_by(adapter, (update.module for update in updates)), adapter.reference)


def checking_effects(
    adapters: Sequence[tuple[Adapter, float]], files: SourceFiles, observe: Observer = lambda name, module: None
) -> Observer:
    """Return an observer of passes that checks the effect of each that fuses one of `adapters`, those of the recipe
    with their weights, and tells `observe`."""
    before: Module | None = None

    def observed(name: str, module: Module) -> None:
        nonlocal before
        if before is not None and name.startswith("fuse_"):
            check_effect(before, module, adapters, files)
        before = module
        observe(name, module)

    return observed


def check_effect(
    before: Module, after: Module, adapters: Sequence[tuple[Adapter, float]], files: SourceFiles
) -> None:
    """Raise AdapterError when what an adapter was trained to changes no value of all the weights it is fused into.

    A factor of a module's output is fused into its weight and its bias, of which either may be 0.
    """
    changed: dict[Source, list[str]] = {}
    for name, expression in after.weights.items():
        earlier = before.weights.get(name)
        if earlier is None or earlier == expression:
            continue
        known = set(sources(earlier))
        own = [source for source in sources(expression) if source not in known]
        trained = next((source for source in own if _is_trained(source, files)), None)
        if trained is not None:
            changed.setdefault(trained, []).append(name)
    for trained, names in changed.items():
        if not any(_differ(before.weights[name], after.weights[name], files) for name in names):
            place = next(index for index, (adapter, _) in enumerate(adapters) if _has(adapter, trained))
            adapter, weight = adapters[place]
            why = (
                f"adapters[{place}].weight is 0" if weight == 0
                else "its other factors or alpha are 0, or the update is smaller than the weight's precision"
            )  # fmt: skip
            raise AdapterError(
                f"adapter {adapter.reference!r}: tensor {trained.tensor!r} is trained, but fusing it changes no value "
                f"of {' and '.join(names)}: {why}; leave the adapter out, or raise its weight"
            )


def _has(adapter: Adapter, source: Source) -> bool:
    return any(each.path == source.path for each in adapter.tensors)


def _is_trained(source: Source, files: SourceFiles) -> bool:
    match = _STRENGTHS.search(source.tensor)
    if match is None:
        return False
    start = 1 if match[1] == "ia3_l" else 0
    return any(bool((piece != start).any()) for piece in _pieces(source, "", files))


def _differ(first: Expression, second: Expression, files: SourceFiles) -> bool:
    rows = first.shape[0]
    for start in range(0, rows, ROWS_AT_A_TIME):
        stop = min(start + ROWS_AT_A_TIME, rows)
        if not np.array_equal(evaluate_rows(first, start, stop, files), evaluate_rows(second, start, stop, files)):
            return True
    return False


def _pieces(source: Source, adapter: str, files: SourceFiles) -> Iterator[Floats]:
    rows = source.shape[0] if source.shape else 0
    step = max(BYTES_AT_A_TIME * rows // max(source.size_bytes, 1), 1)
    for start in range(0, rows, step):
        try:
            yield evaluate_rows(source, start, min(start + step, rows), files)
        except (NotFiniteError, QuantizeError) as problem:
            raise AdapterError(f"adapter {adapter!r}: {problem}") from problem
