"""`pyc schema`: the JSON schemas of the recipe and of results, for editors and other tools."""

import json
from pathlib import Path

import click

from pyc.commands.opening import PATH_TEXT
from pyc.commands.result_schemas import RESULTS, schema_of
from pyc.commands.screen import tell

RECIPE = "recipe"
_MOST_BYTES, _START_BYTES = 4 << 20, 64


@click.command("schema")
@click.option(
    "--of",
    "what",
    type=click.Choice((RECIPE, *RESULTS)),
    default=RECIPE,
    show_default=True,
    help="Of what: model.yaml, or what the command so called prints with --json.",
)
@click.option(
    "-o", "--output", type=PATH_TEXT, metavar="FILE",
    help="Write it to this file instead of standard output.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there even if it is none of these schemas.")
def command(what: str, output: str | None, force: bool) -> None:
    """Print the JSON schema of model.yaml, or of a command's JSON, or write it to a file.

    An editor with a YAML language server completes and checks a recipe whose first line names it:
    `# yaml-language-server: $schema=recipe.schema.json`. `pyc init` writes that line.

    Those of results refuse fields that they do not name; "check" is `pyc build --check --json`.
    """
    if what == RECIPE:
        from pyc.compiler.recipe.schema import schema_path

        text = schema_path().read_text("utf-8")
    else:
        text = schema_of(what)
    if output is None:
        click.echo(text, nl=False)
        return
    from pyc.compiler.files.staging import StagedFile
    from pyc.runtime.errors import RecipeError
    from pyc.runtime.host.output_file import OutputFile, output_path

    path, title = output_path(output, RecipeError), json.loads(text)["title"]
    start = _start_of_former(path, title) or text.encode()
    target = OutputFile(path, magic=start, what=f"the schema of {title}", force=force, error=RecipeError)
    target.check()
    with StagedFile(target.path, allowed=target.check) as file:
        file.write(text.encode())
        file.publish()
    tell(f"wrote {output}")


def _start_of_former(path: Path, title: str) -> bytes:
    """How a file begins that is a schema of the same name, by whatever version; nothing for another file."""
    from pyc.runtime.host.home import open_regular

    try:
        with open_regular(path) as file:
            former = file.read(_MOST_BYTES)
        found = json.loads(former)
    except (OSError, ValueError, RecursionError):
        return b""
    return former[:_START_BYTES] if isinstance(found, dict) and found.get("title") == title else b""
