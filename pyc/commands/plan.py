"""`pyc plan`: what a build would do. Reads headers and a few rows, compiles nothing and writes nothing."""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import PATH_TEXT, keep_blas_small
from pyc.commands.screen import say, say_json, tell
from pyc.commands.tables import entry_lines, print_table
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyc.compiler.recipe.types import Quality
    from pyc.passes.driver.plan import Plan, TensorPlan

INDENT = 14


@click.command("plan")
@click.argument("source", metavar="RECIPE", type=PATH_TEXT)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of the recipe, as in quantize.scheme=int8; may be given several times.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact that would be written.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Threads that a build would use.")
@click.option("--tensors", "with_tensors", is_flag=True, help="List every tensor, not only their kinds.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    source: str,
    overrides: tuple[str, ...],
    output: Path | None,
    workers: int | None,
    with_tensors: bool,
    as_json: bool,
) -> None:
    """Show what building RECIPE would do: tensors, sizes, memory, kernels, programs.

    RECIPE is what `pyc build` takes: a model.yaml, a checkpoint's folder, or a hub id that lies in the local cache.

    Reads headers, configuration files and a few rows of each matrix, so it takes a second on a model of any size.
    Finds most of what a build would refuse: a wrong key, a missing shard, an adapter that does not fit, a group size
    that does not divide.

    --json: every tensor, kernel, program and source; sizes are bytes, those called "about_..." estimates: of the
    artifact, of a build's process ("build_peak") and the compilers beside it, of a run's process at "run_tokens" tokens
    ("run") and when the cache is full ("run_full").
    """
    keep_blas_small()
    from pyc.passes.driver.build_source import read_source
    from pyc.passes.driver.plan import plan

    recipe, note = read_source(source, overrides)
    if note:
        tell(f"pyc: {note}")
    planned = plan(recipe, output=output, workers=workers)
    if as_json:
        say_json(as_document(planned))
    else:
        show(planned, with_tensors=with_tensors)


def as_document(planned: "Plan") -> dict[str, object]:
    """The plan as JSON: its fields, sizes as integers."""
    import msgspec

    document = {
        field.name: msgspec.to_builtins(getattr(planned, field.name), str_keys=True)
        for field in dataclasses.fields(planned)
        if field.name not in ("output", "scheme_bytes", "programs")
    }
    document["output"] = str(planned.output)
    document["scheme_bytes"] = dict(planned.scheme_bytes)
    document["programs"] = [
        {**dataclasses.asdict(program), "functions": dict(program.functions)} for program in planned.programs
    ]
    return document


def show(planned: "Plan", *, with_tensors: bool) -> None:
    """Print the plan for a reader's eyes."""
    from pyc.commands.inspect_text import cut_words

    model = planned.model
    say(f"{planned.output}: {model.architecture} {model.kind}, vocabulary {model.vocab_size}")
    before = f" behind {planned.virtual_tokens} virtual ones" if planned.virtual_tokens else ""
    context = model.context - planned.virtual_tokens
    cut = f" (the model serves {planned.model_context})" if planned.model_context != model.context else ""
    read = f"{cut_words(planned.text_cut)}, " if planned.text_cut else ""
    sequences = f"{counted(model.max_sequences, 'sequence')} at a time"
    say(f"context {counted(context, 'token')}{before}{cut}, {read}{sequences}")
    for adapter in planned.adapters:
        say(f"adapter {adapter}")
    click.echo()
    _tensors(planned, with_tensors=with_tensors)
    kernels = [
        (
            k.kind,
            k.scheme,
            k.activations,
            str(k.rows),
            str(k.columns),
            "bias" if k.has_bias else "",
            str(k.uses),
        )
        for k in planned.kernels
    ]
    title = f"kernels, compiled for each of {len(planned.programs)} instruction sets"
    print_table(title, ("kind", "weights", "inputs", "out", "in", "", "uses"), kernels, right=(3, 4, 6))
    _programs(planned)
    sources = fold([(source.name, source.size_bytes) for source in planned.sources], shards=True)
    rows = [(name, str(count), human_bytes(sum(sizes))) for name, count, sizes in sources]
    print_table("sources", ("file", "no.", "size"), rows, right=(1, 2))
    _sizes(planned)
    if planned.goal is not None:
        name, value = planned.goal
        say(f"schemes     the build chooses them by {name} {value:,.10g}: it measures on the calibration text what")
        of = "about the same bytes" if name in ("size_bytes", "bits_per_weight") else "4.5 bits a weight"
        say(f"            rounding each matrix costs; those above are a guess of {of}")
    if planned.quality is not None:
        _gate(planned.quality)


def fold(named: "Iterable[tuple[str, int]]", *, shards: bool = False) -> list[tuple[str, int, list[int]]]:
    """Return what is named alike but for a layer's, a value's or a shard's number: the name, how many, their values."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, value in named:
        pattern = re.sub(r"\d{5}(?=-of-)", "*", name) if shards else re.sub(r"(?<=[.%])\d+(?=\.)", "*", name)
        groups.setdefault(pattern, []).append((name, value))
    return [
        (pattern if len(members) > 1 else members[0][0], len(members), [value for _, value in members])
        for pattern, members in groups.items()
    ]


def _tensors(planned: "Plan", *, with_tensors: bool) -> None:
    if with_tensors:
        columns = ("tensor", "shape", "from", "as", "size", "made of")
        rows = list(map(_tensor_row, planned.tensors))
        print_table(counted(len(planned.tensors), "tensor"), columns, rows, right=(4,))
    kinds: dict[tuple[str, str, str], list[TensorPlan]] = {}
    for tensor in planned.tensors:
        kinds.setdefault((_numbers(tensor.shape, "x"), _origin(tensor), tensor.scheme), []).append(tensor)
    found: list[tuple[str, ...]] = [
        (str(count), _short(name), shape, origin, scheme, human_bytes(sum(sizes)))
        for (shape, origin, scheme), members in kinds.items()
        for name, count, sizes in fold([(tensor.name, tensor.stored_bytes) for tensor in members])
    ]
    header: tuple[str, ...] = ("no.", "tensor", "shape", "from", "as", "size")
    title = "tensors"
    origins = {_origin(tensor) for tensor in planned.tensors} - {"-"}
    if len(origins) == 1:  # then it needs no column, and a row fits 80 of them
        title = f"tensors, from {origins.pop()}"
        header, found = _without(header, 3), [_without(row, 3) for row in found]
    print_table(title, header, found, right=(0, len(header) - 1))


def _without(row: tuple[str, ...], column: int) -> tuple[str, ...]:
    return row[:column] + row[column + 1 :]


def _programs(planned: "Plan") -> None:
    """The programs; what differs in its instruction set only is said once."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for program in planned.programs:
        rows = "; ".join(f"{name} {_numbers(buckets)}" for name, buckets in program.functions)
        groups.setdefault((program.backend, program.device, program.arch, rows), []).append(program.isa)
    click.echo("programs")
    for (backend, device, arch, rows), isas in groups.items():
        for line in entry_lines(f"  {arch} {device}", isas, indent=INDENT):
            say(line)
        for line in entry_lines("  rows", [*rows.split("; "), f"backend {backend}"], indent=INDENT, joint=";"):
            say(line)
    click.echo()


def _sizes(planned: "Plan") -> None:
    weights, cache = human_bytes(planned.weights_bytes), human_bytes(planned.kv_cache_bytes)
    before, size = human_bytes(planned.source_bytes), human_bytes(planned.about_artifact_bytes)
    say(f"artifact    about {size}: weights {weights}, {before} before")
    beside = planned.about_compilers_bytes
    compilers = f", and {human_bytes(beside)} in compilers" if beside else ""
    say(f"build       about {human_bytes(planned.about_build_peak_bytes)} of memory{compilers}")
    if planned.about_run_bytes is None or planned.about_run_full_bytes is None:
        say("run         memory of the host is not known for these targets")
        return
    now, full = human_bytes(planned.about_run_bytes), human_bytes(planned.about_run_full_bytes)
    if not planned.kv_cache_bytes:
        say(f"run         about {full} of memory")
        return
    many = f"{planned.model.max_sequences} x " if planned.model.max_sequences > 1 else ""
    say(f"run         about {now} of memory at {planned.run_tokens} tokens, {full} at {many}{planned.model.context},")
    say(f"            when keys and values take {cache}")


def _gate(quality: "Quality") -> None:
    """The gate that the build will run, and its limits."""
    limits = ", ".join(f"{name} {value:g}" for name, value in quality.limits())
    say(f"gate        the build ends with a run over {quality.text}: {limits}")
    if quality.reference == "checkpoint":
        say("            beside the checkpoint without rounding, which it builds as well")


def _short(name: str) -> str:
    """A tensor's name without what all have."""
    return name.removeprefix("model.").removesuffix(".weight")


def _tensor_row(tensor: "TensorPlan") -> tuple[str, ...]:
    size = human_bytes(tensor.stored_bytes)
    made_of = " ".join(tensor.source_names) or "computed"
    return (tensor.name, _numbers(tensor.shape, " x "), _origin(tensor), tensor.scheme, size, made_of)


def _origin(tensor: "TensorPlan") -> str:
    return "+".join(tensor.source_dtypes) or "-"


def _numbers(numbers: tuple[int, ...], joint: str = ", ") -> str:
    return joint.join(map(str, numbers))
