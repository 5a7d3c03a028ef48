"""Whether an artifact may run here: whose signatures it has, and which of them count."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyc.runtime.artifact.format import Prelude, SignatureRecord, signed_message
from pyc.runtime.artifact.trust.counting_keys import REVOKED, UNKNOWN, held_key, known_key, why_no_signature
from pyc.runtime.artifact.trust.keys import PublicKey, is_signed
from pyc.runtime.artifact.trust.names import names_of
from pyc.runtime.artifact.trust.policy import Policy, Rule, deciding, machine_policy
from pyc.runtime.artifact.trust.revocations import find_revocation
from pyc.runtime.artifact.trust.signature_file import SUFFIX, has_one_beside, read_signature_file, read_signatures
from pyc.runtime.artifact.trust.subjects import artifact_digest
from pyc.runtime.errors import ArtifactError, TrustError, UnsignedArtifactError, UntrustedArtifactError
from pyc.runtime.host.home import NO_HOME, find_home_directory
from pyc.runtime.sources.places import Place

logger = logging.getLogger(__name__)

_MOST_OFFERED = 4


class Signed(Protocol):
    """What is decided on: an open artifact, whose own signature, if it has one, was found right."""

    @property
    def path(self) -> Place:
        """Where it is; its last part is the name that rules of a policy know it by."""
        ...

    @property
    def prelude(self) -> Prelude:
        """What its signatures are over."""
        ...

    @property
    def signature(self) -> SignatureRecord | None:
        """The one inside."""
        ...


@dataclass(frozen=True, slots=True)
class Packed:
    """An artifact among the files of something else, as the layers of an image are. `path` ends with the name that it
    has in there, and is no file; `signatures` is the file of its further signatures, None: it has none."""

    path: Path
    prelude: Prelude
    signature: SignatureRecord | None
    signatures: Path | None


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signed an artifact; `refusal` says why it does not count, as the end of a sentence. One that was
    revoked counts for nothing, and hinders no other: who signs a header vouches for every byte of it."""

    key: PublicKey
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an artifact may run: `refusal` says why not. `signers` are those that were looked at, `rule` the one of
    `policy` that its name fits; None: none of them, so that one trusted key suffices."""

    policy: Policy
    rule: Rule | None
    signers: tuple[Signer, ...]
    refusal: ArtifactError | None = None

    @property
    def good(self) -> tuple[Signer, ...]:
        """The signers that count."""
        return tuple(signer for signer in self.signers if signer.refusal is None)


def require_trusted(artifact: Signed, policy: Policy | None = None, *, home: Path | None = None) -> tuple[Signer, ...]:
    """Return the signers that let the artifact run, by `policy` or else by the one of this machine.

    Raises UnsignedArtifactError and UntrustedArtifactError where they do not suffice, and TrustError where that cannot
    be told, as where others may write to the key store.
    """
    decision = decide(artifact, policy, home=home)
    if decision.refusal is not None:
        raise decision.refusal
    return decision.good


def decide(
    artifact: Signed, policy: Policy | None = None, *, looks_at_all: bool = False, home: Path | None = None
) -> Decision:
    """Return whether the artifact may run, by `policy` or else by the one of this machine.

    Without `looks_at_all` no more signers are looked at than it takes. Raises TrustError where it cannot be told, and
    FetchError where signatures of another machine cannot be had.
    """
    with deciding():
        where = str(artifact.path)
        policy = machine_policy(home) if policy is None else policy
        names = names_of(artifact.path)
        try:
            fitting = policy.rule_for(names)
        except ArtifactError as error:
            raise TrustError(f"{where}: {error}") from error
        rule = fitting or Rule()
        signers: list[Signer] = []
        refusal = _revoked_in_store(artifact, home) or _revoked_by_policy(artifact, policy)
        if refusal is None or looks_at_all:
            try:
                for signer in signers_of(artifact, policy, rule, home):
                    signers.append(signer)
                    if not looks_at_all and sum(each.refusal is None for each in signers) >= rule.threshold:
                        break
            except ArtifactError as error:
                enough = sum(each.refusal is None for each in signers) >= rule.threshold
                if refusal is None and not enough:
                    raise
                if refusal is None:
                    logger.warning("%s; signatures that are there suffice, further ones were not read", error)
        decision = Decision(policy, fitting, tuple(signers), refusal)
        if refusal is None and len(decision.good) < rule.threshold:
            decision = replace(decision, refusal=_refusal(artifact, policy, rule, signers, home))
        _log(artifact, decision)
        return decision


def _log(artifact: Signed, decision: Decision) -> None:
    """For `pyc -v` and services: how it was decided."""
    may = "may run" if decision.refusal is None else "may not run"
    keys = (f"key {each.key.fingerprint} {each.refusal or 'counts'}" for each in decision.signers)
    origin = decision.policy.origin or "the key store"
    judged = f"{artifact.path}, {artifact_digest(artifact.prelude.header_sha256)}: {may} by {origin}"
    logger.info("%s: %s", judged, ", ".join(keys) or "no signature was looked at")


def require_not_revoked(artifact: Signed, home: Path | None = None) -> None:
    """Raise UntrustedArtifactError for an artifact that was revoked on this machine, and TrustError where that cannot
    be told."""
    with deciding():
        try:
            refusal = _revoked_in_store(artifact, home)
        except ArtifactError:  # which hides no revocation by the policy, nor the other way round
            refusal = _revoked_by_policy(artifact, machine_policy(home))
            if refusal is None:
                raise
        else:
            refusal = refusal or _revoked_by_policy(artifact, machine_policy(home))
    if refusal is not None:
        raise refusal


def _revoked_in_store(artifact: Signed, home: Path | None) -> UntrustedArtifactError | None:
    revocation = find_revocation(artifact.prelude.header_sha256.hex(), home)
    if revocation is None:
        return None
    return UntrustedArtifactError(
        f"{artifact.path}: this artifact was revoked {revocation}; get or build another version"
    )


def _revoked_by_policy(artifact: Signed, policy: Policy) -> UntrustedArtifactError | None:
    if artifact.prelude.header_sha256.hex() in policy.revoked:
        return UntrustedArtifactError(
            f"{artifact.path}: this artifact is revoked by {policy.origin}; get another version"
        )
    return None


def signers_of(artifact: Signed, policy: Policy, rule: Rule, home: Path | None = None) -> Iterator[Signer]:
    """Yield each key that signed, once: first that in the artifact, then those of the file beside it."""
    message = signed_message(artifact.prelude.pack())
    seen: set[bytes] = set()
    if artifact.signature is not None:
        seen.add(artifact.signature.public_key)
        yield _judged(artifact.signature, policy, rule, home)
    wrong: dict[bytes, PublicKey] = {}
    for record in _further_signatures(artifact):
        if record.public_key in seen:
            continue
        if is_signed(record, message):
            seen.add(record.public_key)
            yield _judged(record, policy, rule, home)
        else:
            wrong[record.public_key] = PublicKey(record.public_key)
    place = artifact.path.name + SUFFIX
    for raw, key in wrong.items():
        if raw not in seen:
            yield Signer(key, f"signed other bytes than these ({place})")


def _further_signatures(artifact: Signed) -> tuple[SignatureRecord, ...]:
    """Those that are not in the artifact. Raises ArtifactError."""
    if isinstance(artifact, Packed):
        return () if artifact.signatures is None else read_signature_file(artifact.signatures)
    return read_signatures(artifact.path)


def _judged(record: SignatureRecord, policy: Policy, rule: Rule, home: Path | None) -> Signer:
    key = PublicKey(record.public_key)
    refusal = why_no_signature(key.raw, policy, home)
    if refusal is None and rule.signers is not None and key.fingerprint not in rule.signers:
        refusal = f"is not a signer of {rule.artifacts!a} ({policy.origin})"
    find = known_key if refusal is None else held_key
    return Signer(find(key.raw, policy, home) or key, refusal)


def _refusal(
    artifact: Signed, policy: Policy, rule: Rule, signers: list[Signer], home: Path | None
) -> ArtifactError:
    where = str(artifact.path)
    if not signers:
        return UnsignedArtifactError(f"{where}: not signed{_wanted(policy)}")
    unknown = [signer.key for signer in signers if signer.refusal == UNKNOWN]
    is_of_rule = rule.signers is None or all(key.fingerprint in rule.signers for key in unknown)
    if rule.threshold == 1 and len(unknown) == len(signers) and is_of_rule:
        signed = f"{where}: signed by key {' and key '.join(each.fingerprint for each in unknown[:8])}"
        if policy.keys is not None and len(policy.keys) == 1:
            return UntrustedArtifactError(f"{signed}, expected {_the_key(policy)}")
        if policy.keys is not None:
            return UntrustedArtifactError(f"{signed}, which {policy.origin} lacks")
        if home is None and find_home_directory() is None:
            return TrustError(f"{signed}, but there is {NO_HOME}")
        which = "which is not trusted here" if len(unknown) == 1 else "none of which is trusted here"
        return UntrustedArtifactError(f"{signed}, {which}; {_trust(policy, unknown)}")
    good = sum(signer.refusal is None for signer in signers)
    found = "; ".join(f"key {each.key.fingerprint} {each.refusal or 'counts'}" for each in signers[:8])
    asked = f"{good} of the {rule.threshold} signatures" if rule.threshold > 1 else "no signature"
    by = f" for {rule.artifacts!a} by {policy.origin}" if policy.rules and policy.origin else ""
    remedy = _remedy(artifact, policy, rule, signers)
    return UntrustedArtifactError(f"{where}: has {asked} that it needs{by}: {found}; {remedy}")


def _the_key(policy: Policy) -> str:
    """The one key that counts, and who says so; a key that was given says it itself."""
    assert policy.keys is not None and len(policy.keys) == 1
    return f"key {policy.keys[0].fingerprint}" + (f" by {policy.origin}" if policy.origin else "")


def _wanted(policy: Policy) -> str:
    if policy.keys is not None and len(policy.keys) == 1:
        return f", expected a signature by {_the_key(policy)}"
    return "; build it with a key, or get it from someone who signs"


def _remedy(artifact: Signed, policy: Policy, rule: Rule, signers: list[Signer]) -> str:
    """What to do: trust signers that would count then, else have one more key sign, or get another version."""
    unknown = [signer.key for signer in signers if signer.refusal == UNKNOWN]
    counting = [key for key in unknown if rule.signers is None or key.fingerprint in rule.signers]
    missing = rule.threshold - sum(signer.refusal is None for signer in signers)
    if len(counting) >= missing:
        return _trust(policy, counting, missing)
    if isinstance(artifact, Packed):  # no file that could be signed
        again = "sign the artifact and bundle it again"
        name = f"the name {artifact.path.name!a} that it has in the layout"
        return f"{again}, or have a rule of the policy fit {name}" if policy.rules else again
    if not has_one_beside(artifact.path):
        return f"no {SUFFIX} was asked for: put it beside the file and give its path, or a URL without ? and #"
    past = ("expired", *REVOKED)
    if any(signer.refusal and signer.refusal.startswith(past) for signer in signers):
        return "get a version that a current key signed, or have one sign this: pyc sign"
    return "have another key sign it: pyc sign"


def _trust(policy: Policy, keys: list[PublicKey], missing: int = 1) -> str:
    """How keys that signed come to be trusted, of which so many have to be."""
    ways = [
        f"pyc trust add '{key.text()}'" if policy.keys is None else f"add '{key.text()}' to the keys of {policy.origin}"
        for key in keys[:_MOST_OFFERED]
    ]
    if len(keys) == 1:
        return f"if you trust its owner with running code: {ways[0]}"
    if len(keys) == missing:
        return f"if you trust their owners with running code: {' and '.join(ways)}"
    some = "one of their owners" if missing == 1 else f"{missing} of their owners"
    return f"if you trust {some} with running code: {' or '.join(ways)}"
