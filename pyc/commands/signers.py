"""Who signed an artifact that is about to be moved, in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.runtime.artifact.reader import Artifact
    from pyc.runtime.artifact.trust.policy import Policy


def signers_of(opened: "Artifact", policy: "Policy | None", allow_unsigned: bool) -> str:
    """Who signed it, in words. Raises UnsignedArtifactError and UntrustedArtifactError."""
    from pyc.runtime.artifact.trust.decision import require_trusted
    from pyc.runtime.artifact.trust.keys import PublicKey

    if not allow_unsigned:
        good = [signer.key for signer in require_trusted(opened, policy)]
        names = ", ".join(f"{key.fingerprint} {key.comment}".rstrip() for key in good)
        return f"signed by trusted key{'s' if len(good) > 1 else ''} {names}"
    record = opened.signature
    return "not signed" if record is None else f"signed by key {PublicKey(record.public_key).fingerprint}"
