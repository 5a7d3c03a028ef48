"""`pyc inspect`: what an artifact holds. Nothing in it is executed, and no key is needed.

The header comes from anybody, so nothing of it reaches the terminal unescaped.
"""

from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ArtifactPlace, keep_blas_small
from pyc.commands.screen import say, say_json

if TYPE_CHECKING:
    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.sources.places import Place


@click.command("inspect")
@click.argument("artifact", type=ArtifactPlace())
@click.option("--all", "with_all", is_flag=True, help="Show everything but tensors: chunks, blobs, programs, passes.")
@click.option("--tensors", "with_tensors", is_flag=True, help="List every tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole header and the signature as JSON.")
@click.option(
    "--recipe", "as_recipe", is_flag=True, help="Print the recipe that it was built from, with the schemes chosen."
)
def command(artifact: "Place", as_json: bool, as_recipe: bool, with_all: bool, with_tensors: bool) -> None:
    """Show what ARTIFACT, a file or a URL, holds, and whether it runs here. Of a URL the header alone is fetched.

    Checks the header and the signature, not the contents: `pyc verify` does that. --json prints the header
    (docs/artifact-format.md) as this version has it, with "path", "digest", which `pyc trust revoke` takes,
    "size_bytes", "format_version" and "signature".
    --recipe prints a model.yaml in JSON, which is YAML: relative paths in it are from the folder of the recipe that was
    built, and of absolute ones it has the last part alone.
    """
    if as_recipe and (as_json or with_all or with_tensors):
        raise click.UsageError("--recipe stands alone")
    keep_blas_small()
    from pyc.commands.inspect_text import listing, summary, tensor_lines
    from pyc.runtime.artifact.reader import open_artifact

    with open_artifact(artifact) as opened:
        if as_recipe:
            click.echo(recipe_document(opened))
            return
        if as_json:
            say_json(as_document(opened))
            return
        lines = [
            *summary(opened),
            *(listing(opened.header) if with_all else ()),
            *(tensor_lines(opened.header) if with_tensors else ()),
        ]
        for line in lines:
            say(line)


def recipe_document(opened: "Artifact") -> str:
    """The recorded recipe as JSON of several lines. Raises ArtifactError for one that is no JSON."""
    from pyc.runtime.errors import ArtifactError
    from pyc.runtime.text.json_text import json_text, parse_json

    try:
        return json_text(parse_json(opened.header.provenance.recipe), indent=2)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{opened.path}: its recipe is no JSON: {error}") from error


def as_document(opened: "Artifact") -> dict[str, object]:
    """The JSON document: path, digest, size_bytes, format_version, signature (or null) and the header, without what
    only newer readers know."""
    import msgspec

    from pyc.runtime.artifact.trust.counting_keys import why_no_signature
    from pyc.runtime.artifact.trust.keys import PublicKey
    from pyc.runtime.artifact.trust.policy import machine_policy
    from pyc.runtime.artifact.trust.subjects import artifact_digest
    from pyc.runtime.errors import ArtifactError

    signature: dict[str, object] | None = None
    if opened.signature is not None:
        key = PublicKey(opened.signature.public_key)
        try:
            refusal = why_no_signature(key.raw, machine_policy())
        except ArtifactError as error:  # with a policy or a key store that cannot be read nothing runs
            refusal = f"is not known to be trusted: {error}"
        signature = {
            "fingerprint": key.fingerprint,
            "public_key": key.text(),
            "trusted": refusal is None,
            "refusal": refusal,
        }
    return {
        "path": str(opened.path),
        "digest": artifact_digest(opened.prelude.header_sha256),
        "size_bytes": opened.size_bytes,
        "format_version": ".".join(map(str, opened.version)),
        "signature": signature,
        "header": msgspec.to_builtins(opened.header),
    }
