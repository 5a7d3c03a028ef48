"""How what is revoked is named: a key by its fingerprint, an artifact by the digest of its header.

    9f86d081884c7d65       a key: 16 hex digits
    header:<64 hex digits> an artifact: the SHA-256 of its header, which covers every byte

An artifact's file has a SHA-256, too, which `sha256sum`, SHA256SUMS and attestations have, and by which nothing is
revoked: to compare with it every byte would have to be read before an artifact runs. So a digest is named with the
prefix wherever a user meets it, and 64 bare digits are refused on the command line. Without the prefix it is the name
of a file in the store, stands in announcements, which earlier versions read, and may stand in a policy.
"""

from __future__ import annotations

import re

from pyc.runtime.errors import ArtifactError

PREFIX = "header:"

_fingerprint = re.compile(r"[0-9a-f]{16}")
_digest = re.compile(r"[0-9a-f]{64}")
_of_a_file = re.compile(r"(?:\S*sha-?256[:=])?[0-9a-f]{64}", re.IGNORECASE)


def artifact_digest(header_sha256: bytes) -> str:
    """Return the digest of the artifact whose header has this SHA-256, as `pyc trust revoke` takes it."""
    return f"{PREFIX}{header_sha256.hex()}"


def shown_subject(subject: str) -> str:
    """Return a fingerprint, or a digest with its prefix, of what `listed_subject` returned."""
    return f"{PREFIX}{subject}" if is_bare_digest(subject) else subject


def is_bare_digest(text: str) -> bool:
    """Whether these are 64 digits that do not say of what they are the SHA-256."""
    return _digest.fullmatch(text) is not None


def named_subject(text: str) -> str:
    """Return the fingerprint or the digest, without its prefix, that a user names. Raises ArtifactError for anything
    else, as is the SHA-256 of a file."""
    if _of_a_file.fullmatch(text):
        raise ArtifactError(
            f"{text[:160]!a}: the SHA-256 of a file, it seems, by which nothing is revoked; give the artifact's file "
            f"or URL, or its digest, {PREFIX} and 64 hex digits, which `pyc verify --json` prints"
        )
    try:
        return listed_subject(text)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; `pyc trust list` has the fingerprints of keys, and their names") from None


def listed_subject(text: str) -> str:
    """Return the fingerprint or the digest, without its prefix, that stands in a policy or an announcement; 64 bare
    digits are taken as a header's. Raises ArtifactError for anything else."""
    digest = text.removeprefix(PREFIX)
    if is_bare_digest(digest):
        return digest
    if _fingerprint.fullmatch(text):
        return text
    raise ArtifactError(
        f"{text[:80]!a}: expected a key's fingerprint (16 hex digits), an artifact's digest ({PREFIX} and 64) or an "
        "artifact"
    )


def require_fingerprint(text: str) -> str:
    """Return the fingerprint of a key. Raises ArtifactError for anything else."""
    if not _fingerprint.fullmatch(text):
        raise ArtifactError(f"{text[:80]!a}: expected a key's fingerprint: 16 hex digits")
    return text
