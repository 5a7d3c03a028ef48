"""Which keys count on this machine: those of its policy where that holds any, else those of the key store."""

from __future__ import annotations

from pathlib import Path

from pyc.runtime.artifact.trust.key_store import stored_key, why_not, with_last_day
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.artifact.trust.policy import Policy, machine_policy
from pyc.runtime.artifact.trust.revocations import find_revocation
from pyc.runtime.artifact.trust.subjects import shown_subject
from pyc.runtime.errors import ArtifactError

UNKNOWN = "is not trusted here"
REVOKED = ("was revoked", "is revoked")
"""With one of these begins why a key that was revoked does not count."""


def known_key(raw: bytes, policy: Policy, home: Path | None = None) -> PublicKey | None:
    """The key with these 32 bytes as the policy, or else the key store, has it, with the earliest last day that holds
    here; None where the one that is asked lacks it. Raises ArtifactError."""
    key = held_key(raw, policy, home)
    return None if key is None else with_last_day(key, home)


def held_key(raw: bytes, policy: Policy, home: Path | None = None) -> PublicKey | None:
    """The key as the policy, or else the key store, has it, whatever last day is told elsewhere.
    Raises ArtifactError."""
    if policy.keys is None:
        return stored_key(raw, home)
    return next((key for key in policy.keys if key.raw == raw), None)


def with_earliest_day(key: PublicKey, policy: Policy, home: Path | None = None) -> PublicKey:
    """The key with the earliest last day that its line, the policy, the key store and announcements tell. Raises
    ArtifactError."""
    return with_last_day(until_day_of_policy(key, policy), home)


def until_day_of_policy(key: PublicKey, policy: Policy) -> PublicKey:
    """The key with the last day of its line in the policy, where that is earlier."""
    held = next((each for each in policy.keys or () if each.raw == key.raw), None)
    return key.until(held.expires if held else None)


def announceable(key: PublicKey, policy: Policy, home: Path | None = None) -> PublicKey:
    """The key to trust as an announcement tells it, with the earliest last day that is known here. Raises ArtifactError
    for one that expired or was revoked here."""
    key = with_earliest_day(key, policy, home)
    said = f"key {key.fingerprint}"
    if key.fingerprint in policy.revoked:
        raise ArtifactError(
            f"{said} is revoked by {policy.origin}; take it out of `revoked` in {policy.origin}, if it is to count all "
            "the same; nothing was announced"
        )
    why = why_not(key, home)
    if why is not None and key.is_expired():
        raise ArtifactError(f"{said} {why}; announce its successor; nothing was announced")
    if why is not None:
        raise ArtifactError(
            f"{said} {why}; to trust it all the same, first: pyc trust restore {key.fingerprint}; nothing was announced"
        )
    return key


def why_no_signature(raw: bytes, policy: Policy, home: Path | None = None) -> str | None:
    """Why signatures by this key count for nothing here, as the end of a sentence; None where they count, as far as no
    rule of the policy names others. Raises ArtifactError."""
    key = PublicKey(raw)
    if key.fingerprint in policy.revoked:  # first: a store that cannot be read hides no revocation by the policy
        return f"is revoked by {policy.origin}"
    known = held_key(raw, policy, home)
    if known is not None:
        return why_not(known, home)
    try:
        revocation = find_revocation(key.fingerprint, home)
    except ArtifactError:  # it does not count either way
        return UNKNOWN
    return UNKNOWN if revocation is None else f"was revoked {revocation}"


def why_without_effect(key: PublicKey, policy: Policy) -> tuple[str, str] | None:
    """Why the policy lets a key count for nothing, be it in the key store or not, as the end of a sentence, and what to
    do about it; None where the key store decides."""
    origin = policy.origin
    if key.fingerprint in policy.revoked:
        return f"is revoked by {origin}", f"take it out of `revoked` in {origin}, if it is to count all the same"
    if policy.keys is not None:
        held = next((each for each in policy.keys if each.raw == key.raw), None)
        if held is None:
            return (
                f"counts for nothing here: the keys of {origin} count in place of the key store's",
                f"add '{key.text()}' to `keys` in {origin}, if you trust its owner with running code",
            )
        if held.is_expired():
            return f"expired on {held.expires}, as its line in {origin} says", f"mend the line in {origin}"
    if _least_signatures(key.fingerprint, policy) is None:
        return (
            f"counts for nothing here: it is a signer of no rule of {origin} that an artifact can reach",
            f"add {key.fingerprint} to the `signers` of a rule in {origin}, if you trust its owner with running code",
        )
    return None


def effect_of_new_key(key: PublicKey, home: Path | None = None) -> str | None:
    """What the maker of a key of this machine's store has to know: why artifacts that it alone signs do not run here
    all the same, and what to do about it, as a sentence; None where some run."""
    try:
        policy = machine_policy(home)
        why = why_without_effect(key, policy)
    except ArtifactError as error:
        return f"whether artifacts that it signs run here is not known: {error}"
    if why:
        return f"key {key.fingerprint} {why[0]}; {why[1]}"
    needed = _least_signatures(key.fingerprint, policy)
    if needed is None or needed == 1:
        return None
    return (
        f"artifacts need {needed} signatures here, by {policy.origin}, of which it gives one; have other keys sign "
        "them, too: pyc sign"
    )


def require_not_held(fingerprint: str, policy: Policy) -> None:
    """Raise ArtifactError where the policy holds the key: it would count after it was removed from the store, which may
    tell a last day of it besides."""
    if any(key.fingerprint == fingerprint for key in policy.keys or ()):
        raise ArtifactError(
            f"key {fingerprint} is among the keys of {policy.origin}, which count in place of the key store's; take "
            f"its line out of that file, or run: pyc trust revoke {fingerprint}; nothing was changed"
        )


def require_not_revoked_by_policy(subject: str, policy: Policy) -> None:
    """Raise ArtifactError where the policy revokes a key or an artifact, which it would go on to do."""
    if subject in policy.revoked:
        raise ArtifactError(
            f"{shown_subject(subject)} is revoked by {policy.origin}; take it out of `revoked` there; "
            "nothing was changed"
        )


def _least_signatures(fingerprint: str, policy: Policy) -> int | None:
    """How many signatures suffice, one by this key among them, for artifacts of the names that need the fewest; None
    where one by this key counts for no artifact."""
    thresholds = []
    for rule in policy.rules:
        if rule.signers is None or fingerprint in rule.signers:
            thresholds.append(rule.threshold)
        if not rule.artifacts.strip("*"):  # fits every name, so that no later rule is reached
            return min(thresholds, default=None)
    return 1
