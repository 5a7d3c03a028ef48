"""`pyc schema`: the JSON schema of the recipe, for editors and other tools."""

import click

from pyc.commands.screen import tell


@click.command("schema")
@click.option("-o", "--output", metavar="FILE", help="Write it to this file instead of standard output.")
@click.option("--force", is_flag=True, help="Replace a file that is there even if it is not such a schema.")
def command(output: str | None, force: bool) -> None:
    """Print the JSON schema of model.yaml, or write it to a file.

    An editor with a YAML language server completes and checks a recipe whose first line names it:
    `# yaml-language-server: $schema=recipe.schema.json`. `pyc init` writes that line.
    """
    from pyc.compiler.recipe.schema import schema_path

    text = schema_path().read_text("utf-8")
    if output is None:
        click.echo(text, nl=False)
        return
    from pyc.compiler.files.staging import StagedFile
    from pyc.runtime.errors import RecipeError
    from pyc.runtime.host.output_file import OutputFile, output_path

    start = text[: text.index("AdapterRef")].encode()
    what = "a schema of recipes"
    target = OutputFile(output_path(output, RecipeError), magic=start, what=what, force=force, error=RecipeError)
    target.check()
    with StagedFile(target.path, allowed=target.check) as file:
        file.write(text.encode())
        file.publish()
    tell(f"wrote {output}")
