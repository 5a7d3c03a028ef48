"""`pyc sign`: one more signature, beside the artifact."""

from pathlib import Path

import click

from pyc.commands.opening import ARTIFACT_FILE
from pyc.commands.screen import say, tell


@click.command("sign")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.option("--name", default="default", show_default=True, help="The key of this machine's store.")
@click.option("--key", "file", metavar="FILE", help="The key in this file instead.")
def command(artifact: Path, name: str, file: str | None) -> None:
    """Check every byte of ARTIFACT, and sign it with one more key.

    The signature goes to ARTIFACT.sig, which has to lie beside the artifact where it runs; the artifact stays as it is.
    The key is --key's, or that of PYC_SIGNING_KEY, PYC_SIGNING_KEY_FILE or PYC_SIGNER, or the one in this machine's
    store; --name beside another of them is refused. What to look at before signing: `pyc inspect ARTIFACT`. An artifact
    that was revoked here is refused.
    """
    from pyc.commands.signing_key import require_one_key
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.decision import require_not_revoked
    from pyc.runtime.artifact.trust.key_sources import choose_key
    from pyc.runtime.artifact.trust.signature_file import add_signature
    from pyc.runtime.errors import TrustError

    require_one_key(file)
    with open_artifact(artifact, mode="pread") as opened:
        key = choose_key(name, file, create=False).key
        try:
            require_not_revoked(opened)
        except TrustError as error:  # which stops no job that brings its own key
            tell(f"pyc: whether {artifact} was revoked here is not known: {error}")
        opened.verify_all()
        record = key.sign(opened.prelude.pack())
    path = add_signature(artifact, record)
    say(f"{path}: signed by key {key.public.fingerprint} {key.public.comment}".rstrip())
