"""`pyc attach`: the weights of a checkpoint and the programs of another artifact to an artifact, without a compiler."""

import click

from pyc.commands.opening import PATH_TEXT, keep_blas_small, trust_option
from pyc.commands.screen import say, say_json


@click.command("attach")
@click.argument("program", metavar="PROGRAM", type=PATH_TEXT)
@click.argument("source", metavar="RECIPE", type=PATH_TEXT)
@click.option("-o", "--output", type=PATH_TEXT, metavar="FILE", help="The artifact to write.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe.")
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Threads that evaluate weights (default: one a CPU, within a container's quota).",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor write the build cache.")
@click.option("--force", is_flag=True, help="Replace a file that is there even if it is not an artifact.")
@click.option("--download", is_flag=True, help="Fetch what the local cache lacks of a model on the Hugging Face hub.")
@click.option("--key", metavar="FILE", help="Sign with the key in this file instead of the recipe's artifact.key.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, as `pyc build` does.")
def command(
    program: str,
    source: str,
    output: str | None,
    overrides: tuple[str, ...],
    workers: int | None,
    no_cache: bool,
    force: bool,
    download: bool,
    key: str | None,
    trust: str,
    as_json: bool,
) -> None:
    """Make the artifact of RECIPE with the compiled code of PROGRAM. No compiler is needed.

    \b
    pyc build model.yaml --program-only -o program.pyca
    pyc attach program.pyca finetune.yaml -o finetune.pyca

    PROGRAM is an artifact, with weights or without, that a trusted key has signed: its code is signed again, with the
    keys of `pyc build`. It serves every checkpoint of the same shape under the same schemes, context, buckets and code
    generators of pyc; where one of these is another, it is named. Adapters are free, but for those of `scheme: none`
    and of a quantized checkpoint, of a tied embedding, and with virtual tokens: docs/ci.md. The artifact is, byte for
    byte, that of `pyc build RECIPE`. A checkpoint's folder in place of RECIPE is built with the recipe of PROGRAM.
    """
    keep_blas_small()
    from pyc.commands.build import as_document, describe
    from pyc.commands.building import attach

    result = attach(
        program,
        source,
        output=output,
        overrides=overrides,
        workers=workers,
        use_cache=not no_cache,
        force=force,
        download=download,
        key=key,
        trust=trust,
        progress=True,
    )
    if as_json:
        say_json(as_document(result))
        return
    for line in describe(result):
        say(line)
