"""`pyc init`: a commented recipe for a checkpoint, from its headers alone."""

import json
import math
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.sizes import human_bytes, human_count

if TYPE_CHECKING:
    from pyc.compiler.ir import Module
    from pyc.compiler.recipe import Quantize

TEMPLATE = "model.yaml.j2"
LARGE_PARAMETERS = 100_000_000
"""From this many parameters on, int4 is the scheme that is proposed; smaller models lose too much by it."""

_SHOWN = {
    "none": "as in the checkpoint",
    "int8": "8 bits a weight",
    "int8-g32": "8 bits in groups of 32, more exact",
    "int4-g128": "groups of 128",
    "int4-g32": "groups of 32, more exact",
}


@dataclass(frozen=True, slots=True)
class RecipeContext:
    """What the template says; each field is YAML text, or numbers."""

    title: str
    file: str
    model: str
    sizes: tuple[str, ...]
    scheme: str
    embeddings: str
    head: str
    cache: bool
    example: str
    context_note: str
    context: int
    tokens: tuple[int, ...]
    batch: tuple[int, ...]
    targets: tuple[tuple[str, tuple[str, ...]], ...]
    artifact: str


@click.command("init")
@click.argument("checkpoint")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("model.yaml"),
    show_default=True,
    help="The recipe to write.",
)
@click.option(
    "--scheme", help="How weights are stored, such as int8 or int4-g32 (default: by the model's size)."
)
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
def command(checkpoint: str, output: Path, scheme: str | None, force: bool) -> None:
    """Write a commented model.yaml for CHECKPOINT, a folder or a hub id in the local cache.

    Reads config.json and the headers of the weights; nothing is downloaded and nothing is built.
    """
    from pyc.compiler.staging import StagedFile
    from pyc.models.catalog import load_model
    from pyc.runtime.errors import RecipeError

    if output.exists() and not force:
        raise RecipeError(f"{output}: is there already; choose another name with -o, or give --force")
    module = load_model(checkpoint, base_dir=Path())
    text = recipe_for(module, checkpoint, output, scheme)
    with StagedFile(output) as file:
        file.write(text.encode())
        file.publish()
    click.echo(f"{output}: recipe for {checkpoint}; next: pyc build {output}")


def recipe_for(module: "Module", checkpoint: str, output: Path, scheme: str | None = None) -> str:
    """Return the text of a recipe at `output` for a loaded model; it is a valid recipe.

    Raises RecipeError for an unknown scheme, QuantizeError for one whose groups do not divide a matrix.
    """
    from pyc.compiler.estimate import kv_cache_bytes
    from pyc.compiler.recipe import DEFAULT_CONTEXT_LIMIT, ISAS, recipe_from

    info = module.info
    sizes = weight_sizes(module, tuple(_SHOWN))
    parameters = sum(math.prod(weight.shape) for weight in module.weights.values())
    if scheme is None:
        scheme = _proposal(sizes, parameters, info.kind)
    quantize = recipe_from({"model": "m", "quantize": {"scheme": scheme}}).quantize
    stored_size_bytes(module, quantize)
    context = min(info.context, DEFAULT_CONTEXT_LIMIT)
    cache_size = human_bytes(kv_cache_bytes(info, 1, context))
    limit = f"Tokens of a sequence; the model serves {info.context}."
    batch = (1,) if info.kind == "decoder" else (1, 16)
    tokens = tuple(rows for rows in (1, 16, 128, 512) if rows < 2 * context)
    if info.kind == "encoder":  # a text is read at once, and several texts in one step
        tokens = tuple(sorted({16, 128, 512, context}))
    kind = f"{info.architecture} {info.kind}, {human_count(parameters)} parameters"
    values = RecipeContext(
        title=f"{_one_line(checkpoint)}: {kind}.",
        file=_one_line(str(output)),
        model=yaml_text(_reference(checkpoint, output)),
        sizes=tuple(_size_row(name, sizes[name]) for name in _SHOWN),
        scheme=scheme,
        embeddings=quantize.embeddings,
        head=" and output head" if info.kind == "decoder" else "",
        cache=info.kv_cache is not None,
        example=_example(module),
        context_note=f"{limit} Keys and values take {cache_size} for each." if info.kv_cache else limit,
        context=context,
        tokens=tokens,
        batch=batch,
        targets=(("x86_64", ISAS["x86_64"]),),
        artifact=yaml_text(f"{output.stem}.pyca"),
    )
    from pyc.templates.rendering import render

    return render(TEMPLATE, asdict(values))


def weight_sizes(module: "Module", schemes: tuple[str, ...]) -> dict[str, int | None]:
    """Return the bytes of all weights under each scheme; None where its groups do not divide a matrix."""
    from pyc.compiler.recipe import Quantize
    from pyc.runtime.errors import QuantizeError

    found: dict[str, int | None] = {}
    for scheme in schemes:
        try:
            found[scheme] = stored_size_bytes(module, Quantize(scheme=scheme))
        except QuantizeError:
            found[scheme] = None
    return found


def stored_size_bytes(module: "Module", quantize: "Quantize") -> int:
    """Return the bytes that the weights take as `quantize` stores them; QuantizeError when it cannot."""
    from pyc.compiler.storage import stored_tensor
    from pyc.passes.lower_layout import LowerLayout
    from pyc.passes.quantize_round_to_nearest import QuantizeRoundToNearest

    packed = LowerLayout().run(QuantizeRoundToNearest(quantize).run(module))
    return sum(stored_tensor(weight).size_bytes for weight in packed.weights.values())


def _proposal(sizes: dict[str, int | None], parameters: int, kind: str) -> str:
    large = kind == "decoder" and parameters >= LARGE_PARAMETERS
    return "int4-g32" if large and sizes["int4-g32"] is not None else "int8"


def _size_row(scheme: str, size_bytes: int | None) -> str:
    size = "-" if size_bytes is None else human_bytes(size_bytes)
    note = _SHOWN[scheme] if size_bytes is not None else "does not divide a matrix of this model"
    return f"{scheme:<11}{size:>9}   {note}"


def _reference(checkpoint: str, output: Path) -> str:
    """The checkpoint as the recipe should name it: a folder relative to the recipe's own, or the hub id."""
    if checkpoint.startswith("~") or not Path(checkpoint).is_dir() or Path(checkpoint).is_absolute():
        return checkpoint
    relative = os.path.relpath(Path(checkpoint).resolve(), output.parent.resolve())
    return relative if relative.startswith(".") else f"./{relative}"


def _example(module: "Module") -> str:
    """A regular expression that names the last product of every block."""
    from pyc.passes.quantize_round_to_nearest import quantizable

    last = [name for name in module.weights if name in quantizable(module) and re.search(r"\.\d+\.", name)]
    return "re:.*" + re.escape(last[-1].split(".")[-2]) if last else "re:.*"


def yaml_text(text: str) -> str:
    """`text` as a YAML scalar, quoted where a plain one could be read as something else."""
    return (
        text
        if re.fullmatch(r"[./~]*[A-Za-z_][\w./@+-]*", text, re.ASCII) and not _is_word(text)
        else json.dumps(text, ensure_ascii=False)
    )


def _is_word(text: str) -> bool:
    return text.lower() in ("null", "true", "false", "yes", "no", "on", "off")


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
