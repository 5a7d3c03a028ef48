"""`pyc pull`: an artifact from another machine into a file, verified, and from where it was when it is cut off."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import PATH_TEXT, ArtifactPlace
from pyc.commands.screen import say
from pyc.commands.signatures import Signatures
from pyc.commands.signers import allow_unsigned_option, require_one_answer, signers_of, whose_signature_option
from pyc.commands.transfer_progress import TransferProgress
from pyc.runtime.host.sizes import human_bytes

if TYPE_CHECKING:
    from pyc.runtime.sources.places import Place, Remote

_NAME = "model.pyca"


@click.command("pull")
@click.argument("artifact", metavar="URL", type=ArtifactPlace(reads_stdin=True))
@click.option(
    "-o", "--output", type=PATH_TEXT, metavar="FILE",
    help="The file to write.  [default: the URL's last part, here]",
)
@whose_signature_option
@allow_unsigned_option
@click.option("--force", is_flag=True, help="Replace a file that is no artifact, or no signatures of one.")
def command(artifact: "Place", output: str | None, trust: str | None, allow_unsigned: bool, force: bool) -> None:
    """Fetch the artifact at URL (https, http, oci, s3, gs, az; - is standard input) into a file.

    Its signature is checked before anything else is fetched, as `pyc verify` does, and each chunk before it counts.
    The file appears whole or not at all. What was fetched before an interruption stays in .FILE.part, and the next
    `pyc pull` goes on from there. Further signatures come along, into FILE.sig.
    """
    from pyc.runtime.artifact.format import MAGIC
    from pyc.runtime.artifact.kinds import written
    from pyc.runtime.artifact.partial_file import pull_into
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.policy import trust_of
    from pyc.runtime.artifact.trust.signature_file import signature_file
    from pyc.runtime.host.output_file import OutputFile, output_path
    from pyc.runtime.sources.places import Remote, require_fetchable

    require_one_answer(trust, allow_unsigned)
    if not isinstance(artifact, Remote):
        remedy = "copy a file with cp" if artifact.exists() else "a model of a hub: pyc build ORG/NAME --download"
        if (url := written(artifact)) != str(artifact):
            raise click.UsageError(f"{url}: was given with one slash behind the colon; give both")
        raise click.UsageError(f"{artifact}: not a URL; expected one such as https://host/{_NAME}; {remedy}")
    require_fetchable(artifact, "- for standard input; copy a file with cp")
    target = OutputFile(output_path(_name_of(artifact) if output is None else output), (), MAGIC, force=force)
    policy = trust_of(trust) if trust is not None else None
    target.check()
    OutputFile(signature_file(target.path), force=True).check()
    with open_artifact(artifact) as opened:
        signer = signers_of(opened, policy, allow_unsigned)
        brought = Signatures(target.path, opened, force=force)
        with TransferProgress(opened.size_bytes) as progress:
            reused = pull_into(opened, target, progress.advance, brought.add)
        brought.tidy()
    already = f", {human_bytes(reused)} of them there already" if reused else ""
    say(f"{target.path}: {human_bytes(opened.size_bytes)}{already}, {signer}")


def _name_of(place: "Remote") -> Path:
    from pyc.runtime.artifact.trust.names import names_of
    from pyc.runtime.sources.places import REGISTRY, STANDARD_INPUT, scheme_of
    from pyc.runtime.sources.registry import file_name

    if scheme_of(place.address) == REGISTRY:
        return Path(file_name(place.address))
    return Path(_NAME if place.address == STANDARD_INPUT else names_of(place)[0] or _NAME)
