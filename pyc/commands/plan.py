"""`pyc plan`: what a build would do. Reads headers only, compiles nothing and writes nothing."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.sizes import human_bytes
from pyc.commands.tables import print_table

if TYPE_CHECKING:
    from pyc.passes.plan import Plan, TensorPlan


@click.command("plan")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact that would be written.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Threads that a build would use.")
@click.option("--tensors", "with_tensors", is_flag=True, help="List every tensor, not only their kinds.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    workers: int | None,
    with_tensors: bool,
    as_json: bool,
) -> None:
    """Show what building RECIPE would do: tensors, sizes, memory, kernels, programs.

    Reads headers and configuration files only, so it takes a second on a model of any size. Finds most of
    what a build would refuse: a wrong key, a missing shard, an adapter that does not fit, a group size that
    does not divide.
    """
    from pyc.compiler.recipe import load_recipe
    from pyc.passes.plan import plan

    planned = plan(load_recipe(recipe, overrides), output=output, workers=workers)
    if as_json:
        click.echo(json.dumps(as_document(planned), indent=2))
    else:
        show(planned, with_tensors=with_tensors)


def as_document(planned: "Plan") -> dict[str, object]:
    """The plan as JSON: its fields, `run_bytes`, and sizes as integers."""
    import msgspec

    document = {
        field.name: msgspec.to_builtins(getattr(planned, field.name), str_keys=True)
        for field in dataclasses.fields(planned)
        if field.name not in ("output", "scheme_bytes", "programs")
    }
    document["output"] = str(planned.output)
    document["scheme_bytes"] = dict(planned.scheme_bytes)
    document["run_bytes"] = planned.run_bytes
    document["programs"] = [
        {**dataclasses.asdict(program), "functions": dict(program.functions)} for program in planned.programs
    ]
    return document


def show(planned: "Plan", *, with_tensors: bool) -> None:
    """Print the plan for a reader's eyes."""
    model = planned.model
    click.echo(f"{planned.output}: {model.architecture} {model.kind}, vocabulary {model.vocab_size}")
    cut = f" (the model serves {planned.model_context})" if planned.model_context != model.context else ""
    click.echo(f"context {model.context} tokens{cut}, {model.max_sequences} sequences at a time")
    for adapter in planned.adapters:
        click.echo(f"adapter {adapter}")
    click.echo()
    _tensors(planned, with_tensors=with_tensors)
    rows = [
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
    print_table(title, ("kind", "weights", "inputs", "out", "in", "", "uses"), rows, right=(3, 4, 6))
    programs = [
        (
            p.backend,
            p.device,
            p.arch,
            p.isa,
            "; ".join(f"{name} {_numbers(buckets)}" for name, buckets in p.functions),
        )
        for p in planned.programs
    ]
    print_table("programs", ("backend", "device", "arch", "isa", "buckets (rows)"), programs)
    print_table(
        "sources",
        ("file", "size"),
        [(s.name, human_bytes(s.size_bytes)) for s in planned.sources],
        right=(1,),
    )
    weights, cache = human_bytes(planned.weights_bytes), human_bytes(planned.kv_cache_bytes)
    size, peak = human_bytes(planned.about_artifact_bytes), human_bytes(planned.about_build_peak_bytes)
    kept = f", keys and values {cache}" if planned.kv_cache_bytes else ""
    click.echo(f"artifact    about {size}; weights {weights}, {human_bytes(planned.source_bytes)} before")
    click.echo(f"build       about {peak} of memory, whatever the model's size")
    click.echo(f"run         {human_bytes(planned.run_bytes)} of memory: weights {weights}{kept}")


def _tensors(planned: "Plan", *, with_tensors: bool) -> None:
    if with_tensors:
        header = ("tensor", "shape", "from", "as", "size", "made of")
        print_table(
            f"{len(planned.tensors)} tensors", header, list(map(_tensor_row, planned.tensors)), right=(4,)
        )
    kinds: dict[tuple[str, str], list[int]] = {}
    for tensor in planned.tensors:
        kinds.setdefault((_origin(tensor), tensor.scheme), []).append(tensor.stored_bytes)
    rows = [
        (origin, scheme, str(len(sizes)), human_bytes(sum(sizes)))
        for (origin, scheme), sizes in sorted(kinds.items())
    ]
    print_table("tensors", ("from", "as", "count", "size"), rows, right=(2, 3))


def _tensor_row(tensor: "TensorPlan") -> tuple[str, ...]:
    size = human_bytes(tensor.stored_bytes)
    made_of = " ".join(tensor.source_names) or "computed"
    return (tensor.name, _numbers(tensor.shape, " x "), _origin(tensor), tensor.scheme, size, made_of)


def _origin(tensor: "TensorPlan") -> str:
    return "+".join(tensor.source_dtypes) or "-"


def _numbers(numbers: tuple[int, ...], joint: str = ", ") -> str:
    return joint.join(map(str, numbers))
