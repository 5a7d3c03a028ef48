"""`pyc verify`: the exit code is the verdict."""

from pathlib import Path

import click


@click.command("verify")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--allow-unsigned", is_flag=True, help="Check integrity only: no signature or trusted key needed."
)
def command(artifact: Path, allow_unsigned: bool) -> None:
    """Check every byte of ARTIFACT, and that a trusted key signed it.

    Exit code 0: intact and trusted. 8: malformed, altered, unsigned, or signed by a key that is not trusted.
    """
    from pyc.runtime.reader import open_artifact
    from pyc.runtime.trust import PublicKey, require_trusted
    from pyc.streams import courtesy

    with open_artifact(artifact) as opened:
        opened.verify_all()
        size = f"{opened.size_bytes:,} bytes in {len(opened.header.chunks)} chunks"
        if not allow_unsigned:
            key = require_trusted(opened.signature, str(artifact))
            signer = f"signed by trusted key {key.fingerprint} {key.comment}".rstrip()
        elif opened.signature is None:
            signer = "not signed"
        else:
            signer = f"signed by key {PublicKey(opened.signature.public_key).fingerprint}, trust not checked"
    courtesy(f"{artifact}: intact, {size}, {signer}")
