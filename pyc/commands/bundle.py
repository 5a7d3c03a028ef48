"""`pyc bundle`: an artifact with all that it needs to run elsewhere."""

import platform
import sys
from pathlib import Path

import click

from pyc.commands.opening import ARTIFACT_FILE, PATH_TEXT
from pyc.commands.screen import say

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@click.command("bundle")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.option("-o", "--output", type=PATH_TEXT, required=True, metavar="PATH", help="The folder to write, or the tar.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("dir", "tar", "oci")),
    default="dir",
    show_default=True,
    help="A folder, a tar of it, or an OCI image layout (ModelPack).",
)
@click.option("--machine", type=click.Choice(("x86_64", "aarch64")), help="Where it runs.  [default: as here]")
@click.option("--python", metavar="VERSION", default=HERE, show_default=True, help="The Python that it runs with.")
@click.option("--wheels", type=click.Path(path_type=Path, file_okay=False), help="Take the wheels of this folder.")
@click.option("--no-wheels", is_flag=True, help="Leave the runtime out: where it runs pyc is installed.")
@click.option("--tag", default="latest", show_default=True, help="Of oci: the name of its manifest.")
@click.option("--force", is_flag=True, help="Replace a tar that is there.")
def command(
    artifact: Path,
    output: str,
    form: str,
    machine: str | None,
    python: str,
    wheels: Path | None,
    no_wheels: bool,
    tag: str,
    force: bool,
) -> None:
    """Put ARTIFACT, the runtime's wheels, scripts that install, start and check it, and licences together.

    \b
    pyc bundle model.pyca -o release
    release/run.sh -p "def main("      # where there is no network

    The wheels are fetched by pip in the versions that are installed here, unless --wheels names a folder that has them.
    The artifact must be signed by trusted keys; the bundle asks for the same ones.
    """
    import re

    from pyc.passes.bundle.make import BundleOptions, make_bundle
    from pyc.passes.bundle.wheels import Target, oldest_python
    from pyc.runtime.host.output_file import output_path

    if wheels is not None and no_wheels:
        raise click.UsageError("give --wheels or --no-wheels, not both")
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise click.BadParameter(f"got {python!r}, expected a version such as 3.11", param_hint="--python")
    if (oldest := oldest_python()) > tuple(map(int, python.split("."))):
        expected = ".".join(map(str, oldest))
        raise click.BadParameter(f"got {python}, but pyc runs with {expected} or later", param_hint="--python")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag):
        raise click.BadParameter(f"got {tag!r}, expected letters, digits, '.', '_', '-'", param_hint="--tag")
    target = Target(machine or platform.machine(), python)
    options = BundleOptions(form, target, wheels, not no_wheels, tag, force)  # type: ignore[arg-type]
    place = output_path(output if form == "tar" else output.rstrip("/") or output)
    made = make_bundle(artifact, place, options)
    files = [file for file in made.rglob("*") if file.is_file()] if made.is_dir() else [made]
    say(f"{made}: {sum(file.stat().st_size for file in files):,} bytes")
