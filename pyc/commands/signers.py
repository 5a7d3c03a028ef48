"""Whose signature a command that verifies or moves an artifact asks for, and who signed it, in words."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyc.runtime.artifact.trust.decision import Signed
    from pyc.runtime.artifact.trust.policy import Policy


whose_signature_option = click.option(
    "--trust",
    "--key",
    "trust",
    metavar="KEY|FILE",
    help="Ask for this public key, a line or a file, or by this policy, whatever is trusted here.",
)
allow_unsigned_option = click.option(
    "--allow-unsigned", is_flag=True, help="Check integrity only: no signature or trusted key needed."
)


def require_one_answer(trust: str | None, allow_unsigned: bool) -> None:
    """Raise click.UsageError where both options are given."""
    if trust is not None and allow_unsigned:
        raise click.UsageError("give --trust or --allow-unsigned, not both")


def signers_of(opened: "Signed", policy: "Policy | None", allow_unsigned: bool) -> str:
    """Who signed it, in words. Raises UnsignedArtifactError and UntrustedArtifactError."""
    from pyc.runtime.artifact.trust.decision import require_trusted
    from pyc.runtime.artifact.trust.keys import PublicKey

    if not allow_unsigned:
        good = [signer.key for signer in require_trusted(opened, policy)]
        names = ", ".join(f"{key.fingerprint} {key.comment}".rstrip() for key in good)
        return f"signed by trusted key{'s' if len(good) > 1 else ''} {names}"
    record = opened.signature
    return "not signed" if record is None else f"signed by key {PublicKey(record.public_key).fingerprint}"
