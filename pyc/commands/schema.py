"""`pyc schema`: the JSON schemas of the recipe and of results, for editors and other tools."""

import click

from pyc.commands.opening import PATH_TEXT
from pyc.commands.result_schemas import RESULTS, schema_of
from pyc.commands.screen import tell

RECIPE = "recipe"


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
@click.option("--force", is_flag=True, help="Replace a file that is there even if it is not such a schema.")
def command(what: str, output: str | None, force: bool) -> None:
    """Print the JSON schema of model.yaml, or of a command's JSON, or write it to a file.

    An editor with a YAML language server completes and checks a recipe whose first line names it:
    `# yaml-language-server: $schema=recipe.schema.json`. `pyc init` writes that line.

    Those of results refuse fields that they do not name; "check" is `pyc build --check --json`.
    """
    if what == RECIPE:
        from pyc.compiler.recipe.schema import schema_path

        text = schema_path().read_text("utf-8")
        start = text[: text.index("AdapterRef")].encode()
    else:
        text = schema_of(what)
        start = b'{\n  "$defs": {'
    if output is None:
        click.echo(text, nl=False)
        return
    from pyc.compiler.files.staging import StagedFile
    from pyc.runtime.errors import RecipeError
    from pyc.runtime.host.output_file import OutputFile, output_path

    name = "a schema of recipes" if what == RECIPE else "a JSON schema"
    target = OutputFile(output_path(output, RecipeError), magic=start, what=name, force=force, error=RecipeError)
    target.check()
    with StagedFile(target.path, allowed=target.check) as file:
        file.write(text.encode())
        file.publish()
    tell(f"wrote {output}")
