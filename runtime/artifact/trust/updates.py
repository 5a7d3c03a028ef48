"""Announcements: a signed text by which those who trust a key learn of its successor, and of what counts no more.

    pyc-trust-update 1
    issued 2026-11-26
    until 2027-02-24
    trust pyc-ed25519 <base64> release 2027
    expire <fingerprint> 2027-01-31
    revoke <fingerprint or digest> <reason>
    signature <base64 of the public key> <base64 of the signature>

A digest is that of an artifact's header, without a prefix, which earlier versions do not read (`subjects`).
The signature is over `pyc trust update v1`, a NUL and all bytes before its line. One applies where its key is trusted:
who may run code on a machine may also say which other keys may, and stop them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.counting_keys import (
    UNKNOWN,
    until_day_of_policy,
    why_no_signature,
    why_without_effect,
)
from pyc.runtime.artifact.trust.key_store import (
    check_store,
    remove_trusted,
    why_unreadable,
    write_trusted,
)
from pyc.runtime.artifact.trust.keys import (
    PublicKey,
    SigningKey,
    is_signed,
    parse_date,
    parse_public_key,
    today_utc,
)
from pyc.runtime.artifact.trust.last_days import last_day, set_last_day
from pyc.runtime.artifact.trust.policy import Policy, machine_policy
from pyc.runtime.artifact.trust.revocations import clean_reason, find_revocation, restore, revoke
from pyc.runtime.artifact.trust.store_lock import changing_store
from pyc.runtime.artifact.trust.subjects import listed_subject, require_fingerprint, shown_subject
from pyc.runtime.errors import ArtifactError, UntrustedArtifactError
from pyc.runtime.host import unfinished

FIRST_LINE = "pyc-trust-update 1"
MAX_BYTES = 64 << 10
VALID_DAYS = 90
_DOMAIN = b"pyc trust update v1\0"
_digest = re.compile(r"[0-9a-f]{64} \d{4}-\d\d-\d\d\Z")


@dataclass(frozen=True, slots=True)
class Update:
    """What an announcement says: keys to trust, last days of keys by fingerprint, reasons by what is revoked.

    `left_out` has a sentence for each key to trust and each last day that this version does not take; they hinder no
    revocation.
    """

    trust: tuple[PublicKey, ...] = ()
    expire: tuple[tuple[str, date], ...] = ()
    revoke: tuple[tuple[str, str], ...] = ()
    issued: date | None = None
    until: date | None = None
    signer: PublicKey | None = None
    left_out: tuple[str, ...] = ()


def write_update(update: Update, key: SigningKey) -> str:
    """The text of an announcement that this key signs. Raises ArtifactError, also where it would be too long to apply.
    """
    issued = update.issued or today_utc()
    until = update.until or issued + timedelta(VALID_DAYS)
    lines = [FIRST_LINE, f"issued {issued}", f"until {until}"]
    lines += [f"trust {each.text()}" for each in update.trust]
    lines += [f"expire {require_fingerprint(subject)} {day}" for subject, day in update.expire]
    lines += [f"revoke {listed_subject(subject)} {clean_reason(why)}".rstrip() for subject, why in update.revoke]
    body = "".join(f"{line}\n" for line in lines)
    record = SignatureRecord(key.public.raw, key.sign_message(_DOMAIN + body.encode()))
    text = f"{body}{_signature_line(record)}\n"
    if len(text.encode()) > MAX_BYTES:
        raise ArtifactError(
            f"the announcement has {len(text.encode())} bytes, expected at most {MAX_BYTES}; announce it in parts"
        )
    return text


def parse_update(text: str, where: str) -> Update:
    """Read an announcement and check its signature, by whatever key. Raises ArtifactError, beginning with `where`."""
    lines = text.split("\n")
    if lines[0] != FIRST_LINE or len(lines) < 3 or lines[-1] or not lines[-2].startswith("signature "):
        if text.removeprefix("\ufeff").startswith(FIRST_LINE) and (text[0] == "\ufeff" or "\r" in text):
            raise ArtifactError(
                f"{where}: a trust update that an editor or a transfer of text has altered: its lines end with CR, or"
                " it begins with a mark of its encoding; get it again, byte for byte"
            )
        raise ArtifactError(f"{where}: not a trust update: expected {FIRST_LINE!r} first and a signature last")
    record = _record(lines[-2], where)
    body = "".join(f"{line}\n" for line in lines[:-2]).encode()
    if not is_signed(record, _DOMAIN + body):
        raise ArtifactError(f"{where}: the signature is wrong: the update was altered after signing")
    update = Update(signer=PublicKey(record.public_key))
    for number, line in enumerate(lines[1:-2], 2):
        try:
            update = _with(update, *line.split(" ", 1))
        except (ArtifactError, TypeError) as error:
            if _was_written_before(line):
                said = f"line {number} is left out: {error}; ask who announced it for one without it"
                update = replace(update, left_out=(*update.left_out, said))
                continue
            reason = error if isinstance(error, ArtifactError) else "expected a word and what it is about"
            raise ArtifactError(f"{where}:{number}: {reason}") from error
    if update.issued is None or update.until is None:
        raise ArtifactError(f"{where}: says not when it was issued, or until when it counts")
    return update


def apply_update(update: Update, where: str, home: Path | None = None) -> list[str]:
    """Do what an announcement says, all of it or nothing; return a line for each change.

    What is revoked stays revoked, also where it is to be trusted, which gets a line; and of two last days of a key the
    earlier one stands. So applying updates in another order, or an old one again, ends with the same keys. Raises
    UntrustedArtifactError where its signer does not count here, ArtifactError where it is too old.
    """
    assert update.signer is not None and update.until is not None
    with changing_store(home):
        return _applied(update, update.signer, update.until, where, home)


def _applied(update: Update, signer: PublicKey, until: date, where: str, home: Path | None) -> list[str]:
    policy = machine_policy(home)
    if why := _why_no_signer(signer, policy, home):
        raise UntrustedArtifactError(f"{where}: signed by key {signer.fingerprint}, which {why}; nothing was changed")
    if until < today_utc():
        raise ArtifactError(f"{where}: counted until {until}; get a newer update; nothing was changed")
    return unfinished.whole(lambda: _changed(update, policy, home))


def _changed(update: Update, policy: Policy, home: Path | None) -> list[str]:
    changes = _Changes(home)
    try:
        for subject, reason in update.revoke:
            changes.revoke(subject, reason)
        for subject, day in update.expire:
            changes.expire(subject, day, any(key.fingerprint == subject for key in policy.keys or ()))
        for key in update.trust:
            if key.fingerprint in policy.revoked:
                changes.done.append(f"left out key {key.fingerprint}, which is revoked by {policy.origin}")
            else:
                changes.trust(key, policy)
    except BaseException:
        changes.undo()
        raise
    return changes.done


def _why_no_signer(signer: PublicKey, policy: Policy, home: Path | None) -> str | None:
    """Why announcements of a key do not count here, as the end of a sentence; None where they do."""
    refusal = why_no_signature(signer.raw, policy, home)
    return f"{policy.origin} lacks" if refusal == UNKNOWN and policy.keys is not None else refusal


def keys_without_effect(update: Update, home: Path | None = None) -> list[str]:
    """Of the keys that an announcement says to trust, a sentence for each that is left out, or that this machine's
    policy lets count for nothing, with what to do; none for those that were revoked. Raises ArtifactError."""
    policy = machine_policy(home)
    said = list(update.left_out)
    for key in update.trust:
        why = why_without_effect(key, policy)
        if why and key.fingerprint not in policy.revoked and find_revocation(key.fingerprint, home) is None:
            said.append(f"key {key.fingerprint} {why[0]}; {why[1]}")
    return said


class _Changes:
    """Changes of a key store, each of which can be undone: what would not be whole is as it was. How it is undone is
    noted first: an interruption may come between a change and the next line.

    A bad file of another key hinders no revocation; it is left as it is, and its key does not count.
    """

    def __init__(self, home: Path | None) -> None:
        self._home = home
        self._trusted = {key.fingerprint: key for key in check_store(home)[0]}  # a bad file names no key that counts
        self._undo: list[Callable[[], object]] = []
        self.done: list[str] = []

    def revoke(self, subject: str, reason: str) -> None:
        if find_revocation(subject, self._home) is None:
            self._undo.append(lambda: self._restore(subject, reason))
            revoke(subject, reason, self._home)
            self.done.append(f"revoked {shown_subject(subject)}")

    def _restore(self, subject: str, reason: str) -> None:
        """Take back a revocation, unless somebody else made it meanwhile, for another reason."""
        found = find_revocation(subject, self._home)
        if found is not None and found.reason == clean_reason(reason):
            restore(subject, self._home)

    def expire(self, fingerprint: str, day: date, is_held: bool = False) -> None:
        """Set a last day, also of a key that is not known yet; the earliest that was ever set stands. `is_held` says
        that the policy holds the key."""
        before = last_day(fingerprint, self._home)
        if before is None or day < before:
            self._undo.append(lambda: set_last_day(fingerprint, before, self._home))
            set_last_day(fingerprint, day, self._home)
        known = self._trusted.get(fingerprint)
        if known is not None:
            self._put(known, lambda key: f"key {fingerprint} expires on {key.expires}")
        elif before is None or day < before:
            said = "expires" if is_held else "which is not trusted here, would expire"
            self.done.append(f"key {fingerprint}{' ' if is_held else ', '}{said} on {day}")

    def trust(self, key: PublicKey, policy: Policy) -> None:
        """Trust a key, unless it was revoked: an update that is older than the revocation may come after it. One whose
        file here is bad is left out, too: that may have an earlier last day."""
        if revocation := find_revocation(key.fingerprint, self._home):
            self.done.append(f"left out key {key.fingerprint}, which was revoked {revocation}")
            return
        known = self._trusted.get(key.fingerprint)
        if known is None and (problem := why_unreadable(key.fingerprint, self._home)):
            self.done.append(f"left out key {key.fingerprint}, whose file here is bad: {problem}")
            return
        if known is not None:
            key = key.until(known.expires)
        self._put(key, lambda key: _trusted_line(key, policy))

    def undo(self) -> None:
        """Take everything back, the last first. What cannot be taken back stays."""
        for undo in reversed(self._undo):
            with suppress(ArtifactError):
                undo()

    def _put(self, key: PublicKey, said: Callable[[PublicKey], str]) -> None:
        """Trust a key until the last day that is known of it, if that changes anything."""
        before = self._trusted.get(key.fingerprint)
        key = key.until(last_day(key.fingerprint, self._home))
        if key == before:
            return
        self._undo.append(
            lambda: remove_trusted(key.fingerprint, self._home) if before is None else write_trusted(before, self._home)
        )
        write_trusted(key, self._home)
        self._trusted[key.fingerprint] = key
        self.done.append(said(key))


def _trusted_line(key: PublicKey, policy: Policy) -> str:
    """What was done with a key to trust, which may count for nothing here."""
    said, key = f"{key.fingerprint} {key.comment}".rstrip(), until_day_of_policy(key, policy)
    if key.is_expired():
        return f"stored {said}, which expired on {key.expires}"
    until = f", until {key.expires}" if key.expires else ""
    return f"{'stored' if why_without_effect(key, policy) else 'trusted'} {said}{until}"


def _record(line: str, where: str) -> SignatureRecord:
    try:
        key, signature = (base64.b64decode(field, validate=True) for field in line.split(" ")[1:])
    except ValueError:
        key, signature = b"", b""
    record = SignatureRecord(key, signature)
    if len(key) != 32 or len(signature) != 64 or line != _signature_line(record):
        raise ArtifactError(f"{where}: not a trust update: its signature is cut or damaged")
    return record


def _signature_line(record: SignatureRecord) -> str:
    encoded = (base64.b64encode(each).decode() for each in (record.public_key, record.signature))
    return f"signature {' '.join(encoded)}"


def _was_written_before(line: str) -> bool:
    """Whether earlier versions of pyc announced such a line, which is refused today: the comment of a key names a last
    day in a form of its own, or an artifact is to expire, which nobody heeded."""
    word, _, rest = line.partition(" ")
    if word == "expire":
        return _digest.match(rest) is not None
    try:
        parse_public_key(" ".join(rest.split(" ")[:2]))
    except ArtifactError:
        return False
    return word == "trust"


def _with(update: Update, word: str, rest: str) -> Update:
    """The update with what a line says. Raises ArtifactError."""
    if word == "issued":
        return replace(update, issued=parse_date(rest, "issued"))
    if word == "until":
        return replace(update, until=parse_date(rest, "until"))
    if word == "trust":
        return replace(update, trust=(*update.trust, parse_public_key(rest)))
    subject, _, detail = rest.partition(" ")
    if word == "expire":
        day = parse_date(detail, "expire")
        return replace(update, expire=(*update.expire, (require_fingerprint(subject), day)))
    if word == "revoke":
        return replace(update, revoke=(*update.revoke, (listed_subject(subject), clean_reason(detail))))
    raise ArtifactError(f"{word[:40]!a}: expected trust, expire or revoke; a newer pyc may know it")
