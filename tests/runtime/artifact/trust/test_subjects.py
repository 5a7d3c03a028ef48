"""runtime/artifact/trust/subjects.py: an artifact is revoked by the digest of its header, never by its file's."""

import logging
from datetime import timedelta

import pytest
from stopped_clock import TODAY

from pyc.runtime.artifact.trust.key_store import add_trusted
from pyc.runtime.artifact.trust.keys import new_key_text, parse_signing_key
from pyc.runtime.artifact.trust.policy import parse_policy
from pyc.runtime.artifact.trust.revocations import find_revocation, list_revoked
from pyc.runtime.artifact.trust.subjects import artifact_digest, named_subject, shown_subject
from pyc.runtime.artifact.trust.updates import Update, apply_update, parse_update, write_update
from pyc.runtime.errors import ArtifactError

DIGEST = "ab" * 32
NAMED = f"header:{DIGEST}"


def test_a_digest_has_a_name_of_its_own() -> None:
    assert artifact_digest(bytes.fromhex(DIGEST)) == shown_subject(DIGEST) == NAMED
    assert named_subject(NAMED) == DIGEST
    assert named_subject("ab" * 8) == shown_subject("ab" * 8) == "ab" * 8


@pytest.mark.parametrize(
    "text", [DIGEST, DIGEST.upper(), f"sha256:{DIGEST}", f"SHA-256={DIGEST}", f"oci://host/coder@sha256:{DIGEST}"]
)
def test_the_sha256_of_a_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(ArtifactError, match=r"the SHA-256 of a file, it seems, .* header: and 64 hex .* verify --json"):
        named_subject(text)


@pytest.mark.parametrize(
    "text", ["", "all", "header:", f"header:{'ab' * 8}", f"header:header:{DIGEST}", f"HEADER:{DIGEST}", f"{NAMED}0"]
)
def test_what_names_nothing(text: str) -> None:
    with pytest.raises(ArtifactError, match="expected a key's fingerprint"):
        named_subject(text)


def test_announcements_are_as_earlier_versions_read_them(tmp_path) -> None:
    key = parse_signing_key(new_key_text(), "old", "old")
    add_trusted(key.public, tmp_path)
    text = write_update(Update(revoke=((DIGEST, "bad"), (f"header:{'cd' * 32}", "bad"))), key)
    assert f"\nrevoke {DIGEST} bad\nrevoke {'cd' * 32} bad\n" in text
    assert apply_update(parse_update(text, "u"), "u", tmp_path) == [f"revoked {NAMED}", f"revoked header:{'cd' * 32}"]
    assert find_revocation(DIGEST, tmp_path) is not None
    assert [each.shown for each in list_revoked(tmp_path)] == [NAMED, f"header:{'cd' * 32}"]


def test_a_last_day_is_of_a_key_alone() -> None:
    """Of an artifact it would be announced, applied, and heeded by nobody."""
    key = parse_signing_key(new_key_text(), "old", "old")
    tomorrow = TODAY + timedelta(1)
    with pytest.raises(ArtifactError, match="expected a key's fingerprint: 16 hex digits"):
        write_update(Update(expire=((DIGEST, tomorrow),)), key)


def test_a_policy_says_which_digest_it_means(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_policy(f'revoked = ["{NAMED}", "{"ab" * 8}"]', "named.toml").revoked == {DIGEST, "ab" * 8}
    assert not caplog.messages
    for _ in range(2):
        assert parse_policy(f'revoked = ["{DIGEST}"]', "bare.toml").revoked == {DIGEST}
    (message,) = caplog.messages
    assert message.startswith(f"bare.toml: revoked: {DIGEST} is taken as the SHA-256 of an artifact's header; ")
    with pytest.raises(ArtifactError, match="expected a key's fingerprint"):
        parse_policy(f'revoked = ["sha256:{DIGEST}"]', "p.toml")
