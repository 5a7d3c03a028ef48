"""`pyc init`: a commented recipe for a checkpoint, from its headers alone."""

import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import PATH_TEXT, keep_blas_small
from pyc.commands.screen import say
from pyc.runtime.host.sizes import human_bytes, human_count
from pyc.runtime.text.printable import printable

if TYPE_CHECKING:
    from pyc.compiler.ir import Module
    from pyc.passes.driver.default_recipe import Proposal

TEMPLATE = "model.yaml.j2"

_SHOWN = {
    "none": "as in the checkpoint",
    "int8": "8 bits a weight",
    "int8-g32": "8 bits in groups of 32, more exact",
    "int4-g32": "4 bits in groups of 32",
    "lut4-g32": "the same by lookup tables, more exact",
    "lut3-g32": "3 bits by lookup tables: calibrate",
}


@dataclass(frozen=True, slots=True)
class RecipeContext:
    """What the template says; each field is YAML text, or numbers."""

    schema: str
    title: str
    file: str
    model: str
    tokenizer: str
    adapters: tuple[str, ...]
    sizes: tuple[str, ...]
    scheme: str
    algorithm: str
    reason: tuple[str, ...]
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
@click.argument("checkpoint", type=PATH_TEXT)
@click.option(
    "-o", "--output", type=PATH_TEXT, metavar="FILE", default="model.yaml", show_default=True,
    help="The recipe to write.",
)
@click.option("--scheme", help="How weights are stored, such as int8 or int4-g32 (default: by the model's size).")
@click.option(
    "--preset",
    type=click.Choice(("quality", "balanced", "small")),
    help="quality: int8; balanced: 4 bits, small: 3 bits, by lookup tables that a text calibrates.",
)
@click.option("--adapter", "adapters", multiple=True, metavar="DIR", help="A PEFT adapter to fuse; in this order.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@click.option("--download", is_flag=True, help="Fetch what the local cache lacks of a model on the Hugging Face hub.")
def command(
    checkpoint: str,
    output: str,
    scheme: str | None,
    preset: str | None,
    adapters: tuple[str, ...],
    force: bool,
    download: bool,
) -> None:
    """Write a commented model.yaml for CHECKPOINT, a folder or a hub id (org/name or org/name@revision).

    Reads config.json and the headers of the weights; nothing is built. Adapters are checked against the model. Without
    --download, a hub id must lie in the local cache.
    """
    keep_blas_small()
    from pyc.compiler.files.staging import StagedFile
    from pyc.passes.driver.build_output import with_sources
    from pyc.passes.driver.default_recipe import propose
    from pyc.runtime.errors import RecipeError
    from pyc.runtime.host.output_file import OutputFile, output_path

    if scheme is not None and preset is not None:
        raise click.UsageError("--scheme and --preset both say how weights are stored; expected one of them")
    target = OutputFile(output_path(output, RecipeError), what="a recipe", force=force, error=RecipeError)
    target.check()
    if download:
        _download(checkpoint, adapters)
    proposal = propose(checkpoint, Path(), scheme, preset, adapters)
    text = recipe_for(proposal, checkpoint, target.path, adapters)
    target = with_sources(target, proposal.module)
    with StagedFile(target.path, allowed=target.check) as file:
        file.write(text.encode())
        file.publish()
    say(f"{output}: recipe for {checkpoint}, {proposal.scheme}; next: pyc build {shlex.quote(output)}")


def _download(checkpoint: str, adapters: Sequence[str]) -> None:
    """Fetch what is no folder here, with progress on standard error."""
    from pyc.commands.progress import report_progress
    from pyc.compiler.recipe.api import recipe_from
    from pyc.passes.build_events import BuildEvent
    from pyc.passes.driver.build_source import fetch

    recipe = recipe_from({"model": checkpoint, "adapters": [{"path": path} for path in adapters]})
    with report_progress() as progress:
        fetch(recipe, lambda done, total: progress(BuildEvent("download", done, total)))


def recipe_for(proposal: "Proposal", checkpoint: str, output: Path, adapters: Sequence[str] = ()) -> str:
    """Return the text of a recipe at `output` for a checkpoint and its adapters.

    Raises AdapterError for an adapter that does not fit, RecipeError for a path that no recipe can name.
    """
    from pyc.compiler.estimate import kv_cache_bytes
    from pyc.compiler.recipe.api import recipe_from
    from pyc.compiler.recipe.schema import schema_path
    from pyc.models.adapters import read_adapter
    from pyc.passes.adapters.compute_prefix import virtual_tokens_of
    from pyc.passes.driver.default_recipe import reference_from, tokenizer_for
    from pyc.passes.driver.lower_recipe import lower_recipe
    from pyc.templates.rendering import render

    info = proposal.module.info
    model, *paths = (reference_from(path, output.parent) for path in (checkpoint, *adapters))
    read = [(read_adapter(path, output.parent), 1.0) for path in paths]
    proposal = proposal.behind(virtual_tokens_of(read))
    tokenizer = tokenizer_for(proposal.module, paths, output.parent)
    recipe = recipe_from(proposal.document(model, paths, tokenizer), folder=output.parent)
    lower_recipe(recipe)
    cache_size = human_bytes(kv_cache_bytes(info, 1, proposal.context))
    limit = f"Tokens of a sequence; the model serves {info.context}."
    kind = f"{info.architecture} {info.kind}, {human_count(proposal.parameters)} parameters"
    values = RecipeContext(
        schema=schema_path().as_uri(),
        title=f"{printable(checkpoint)}: {kind}.",
        file=printable(shlex.quote(str(output))),
        model=yaml_text(model),
        tokenizer="" if tokenizer is None else yaml_text(tokenizer),
        adapters=tuple(map(yaml_text, paths)),
        sizes=tuple(_size_row(name, size) for name, size in proposal.scheme_bytes.items()),
        scheme=proposal.scheme,
        algorithm=proposal.algorithm,
        reason=tuple(textwrap.wrap(f"Why {proposal.scheme}: {proposal.reason}.", 110)),
        embeddings=recipe.quantize.embeddings,
        head=" and output head" if info.kind == "decoder" else "",
        cache=info.kv_cache is not None,
        example=_example(proposal.module),
        context_note=f"{limit} A full sequence's keys and values take {cache_size}." if info.kv_cache else limit,
        context=proposal.context,
        tokens=proposal.tokens,
        batch=proposal.batch,
        targets=proposal.targets,
        artifact=yaml_text(f"{output.stem}.pyca"),
    )
    return render(TEMPLATE, asdict(values))


def _size_row(scheme: str, size_bytes: int | None) -> str:
    size = "-" if size_bytes is None else human_bytes(size_bytes)
    note = _SHOWN[scheme] if size_bytes is not None else "does not divide a matrix of this model"
    return f"{scheme:<11}{size:>9}   {note}"


def _example(module: "Module") -> str:
    """A regular expression that names the last product of every block."""
    from pyc.passes.assign_schemes import quantizable

    last = [name for name in module.weights if name in quantizable(module) and re.search(r"\.\d+\.", name)]
    return "re:.*" + re.escape(last[-1].split(".")[-2]) if last else "re:.*"


def yaml_text(text: str) -> str:
    """`text` as a YAML scalar, quoted where a plain one could be read as something else, with escapes for characters
    that do not show or that reorder others."""
    if re.fullmatch(r"[./~]*[A-Za-z_][\w./@+-]*", text, re.ASCII) and not _is_word(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in quoted)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 1 << 16 else f"\\U{ord(letter):08x}"


def _is_word(text: str) -> bool:
    return text.lower() in ("null", "true", "false", "yes", "no", "on", "off")
