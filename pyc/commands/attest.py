"""`pyc attest`: documents about an artifact for other tools."""

from pathlib import Path

import click

from pyc.commands.opening import ARTIFACT_FILE, PATH_TEXT
from pyc.commands.screen import say


@click.command("attest")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(("cyclonedx", "spdx", "slsa")),
    required=True,
    help="A bill of materials of CycloneDX 1.6 or SPDX 2.3, or an in-toto statement with SLSA provenance.",
)
@click.option(
    "-o", "--output", type=PATH_TEXT, metavar="FILE",
    help="Write it to this file.  [default: standard output]",
)
@click.option("--sign", is_flag=True, help="Of slsa: wrap it in an envelope of DSSE, signed.")
@click.option("--name", default="default", show_default=True, help="With --sign: the key of this machine's store.")
@click.option("--key", "file", metavar="FILE", help="With --sign: the key in this file instead.")
@click.option("--force", is_flag=True, help="Replace a FILE that is there.")
def command(
    artifact: Path, form: str, output: str | None, sign: bool, name: str, file: str | None, force: bool
) -> None:
    """Say what ARTIFACT was made from, what made it, and under which licences, in a form that other tools read.

    \b
    pyc attest model.pyca --format cyclonedx -o model.cdx.json
    pyc attest model.pyca --format slsa --sign -o model.intoto.json

    Every byte of the artifact is verified first. No key is needed but to sign.
    """
    from pyc.commands.opening import keep_blas_small

    keep_blas_small()
    from pyc.commands.signing_key import require_one_key
    from pyc.compiler.files.staging import StagedFile
    from pyc.passes.attest.cyclonedx import cyclonedx
    from pyc.passes.attest.facts import facts_of
    from pyc.passes.attest.provenance import provenance, signed
    from pyc.passes.attest.spdx import spdx
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.key_sources import choose_key
    from pyc.runtime.artifact.trust.signature_file import signature_file
    from pyc.runtime.host.output_file import OutputFile, output_path
    from pyc.runtime.text.json_text import json_text

    if sign and form != "slsa":
        raise click.UsageError("--sign goes with --format slsa")
    if sign:
        require_one_key(file)
    chosen = choose_key(name, file, create=False) if sign else None
    key = chosen.key if chosen else None
    target = None
    if output is not None:
        beside = (str(signature_file(artifact)), "its further signatures")
        sources = [(str(artifact), "the artifact"), beside]
        if chosen is not None and chosen.file is not None:
            sources.append((str(chosen.file), "the key that signs"))
        target = OutputFile(output_path(output), tuple(sources), force=force)
        target.check()
    with open_artifact(artifact, mode="pread") as opened:
        facts = facts_of(opened, artifact)
    document = {"cyclonedx": cyclonedx, "spdx": spdx, "slsa": provenance}[form](facts)
    if key is not None:
        document = signed(document, key)
    text = json_text(document, indent=2) + "\n"
    if target is None:
        click.echo(text, nl=False)
        return
    with StagedFile(target.path, allowed=target.check) as staged:
        staged.write(text.encode())
        staged.publish()
    say(f"wrote {target.path}")
