"""runtime/artifact/trust/updates.py: successors and revocations reach other machines in a signed text."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from stopped_clock import TODAY

from pyc.runtime.artifact.trust import key_store, updates
from pyc.runtime.artifact.trust.key_store import (
    add_trusted,
    is_trusted,
    list_trusted,
    remove_trusted,
    stored_key,
    why_not,
)
from pyc.runtime.artifact.trust.keys import PublicKey, SigningKey, new_key_text, parse_signing_key
from pyc.runtime.artifact.trust.last_days import last_day
from pyc.runtime.artifact.trust.revocations import find_revocation, restore, revoke
from pyc.runtime.artifact.trust.store_lock import LOCK, changing_store
from pyc.runtime.artifact.trust.updates import Update, apply_update, parse_update, write_update
from pyc.runtime.errors import ArtifactError, UntrustedArtifactError
from pyc.runtime.host import unfinished

TraceFunction = Callable[[FrameType, str, Any], Any]

LATER = TODAY + timedelta(30)


@pytest.fixture
def old() -> SigningKey:
    return parse_signing_key(new_key_text(), "old", "old")


@pytest.fixture
def new() -> SigningKey:
    return parse_signing_key(new_key_text(), "new", "new")


@pytest.fixture
def home(tmp_path: Path, old: SigningKey) -> Path:
    add_trusted(old.public, tmp_path / "home")
    return tmp_path / "home"


def apply(text: str, home: Path) -> list[str]:
    return apply_update(parse_update(text, "u"), "u", home)


def test_a_rotation(home: Path, old: SigningKey, new: SigningKey) -> None:
    update = Update(trust=(new.public,), expire=((old.public.fingerprint, LATER),))
    text = write_update(update, old)
    assert apply(text, home) == [
        f"key {old.public.fingerprint} expires on {LATER}",
        f"trusted {new.public.fingerprint} new",
    ]
    assert is_trusted(old.public.raw, home)
    assert stored_key(old.public.raw, home) == replace(old.public, expires=LATER)
    assert apply(text, home) == []
    goodbye = write_update(Update(revoke=((old.public.fingerprint, "replaced"),)), new)
    assert apply(goodbye, home) == [f"revoked {old.public.fingerprint}"]
    assert not is_trusted(old.public.raw, home)
    with pytest.raises(UntrustedArtifactError, match=r"was revoked .* replaced; nothing was changed"):
        apply(text, home)


def test_an_old_update_undoes_nothing(home: Path, old: SigningKey, new: SigningKey) -> None:
    first = write_update(Update(trust=(new.public,)), old)
    apply(first, home)
    apply(write_update(Update(expire=((new.public.fingerprint, LATER),)), old), home)
    assert apply(first, home) == []
    assert stored_key(new.public.raw, home) == replace(new.public, expires=LATER)


def test_a_key_that_was_revoked_is_left_out_and_the_rest_applied(
    tmp_path: Path, old: SigningKey, new: SigningKey
) -> None:
    """In any order, and twice: the other key is trusted, the revoked one never again."""
    leaked = parse_signing_key(new_key_text(), "leaked", "leaked").public
    trusting = write_update(Update(trust=(leaked, new.public)), old)
    revoking = write_update(Update(revoke=((leaked.fingerprint, "it leaked"),)), old)
    for index, order in enumerate(((trusting, revoking), (revoking, trusting), (trusting, revoking, trusting))):
        home = tmp_path / str(index)
        add_trusted(old.public, home)
        said = [apply(text, home) for text in order]
        assert is_trusted(new.public.raw, home) and not is_trusted(leaked.raw, home)
        assert find_revocation(leaked.fingerprint, home) is not None
    assert said[-1] == [f"left out key {leaked.fingerprint}, which was revoked on {TODAY}: it leaked"]


def test_a_bad_file_of_another_key_hinders_no_revocation(home: Path, old: SigningKey, new: SigningKey) -> None:
    """It names no key that counts, stays as it is, and the key that it is of is left out."""
    add_trusted(new.public, home)
    other = parse_signing_key(new_key_text(), "other", "other").public
    line = f"{new.public.text()} expires=2026-01-31\n"
    path = home / "trusted" / f"{new.public.fingerprint}.pub"
    path.write_text(line)
    leaked, expiring = "0123456789abcdef", ((old.public.fingerprint, LATER), (new.public.fingerprint, LATER))
    update = Update(trust=(new.public, other), expire=expiring, revoke=((leaked, "it leaked"),))
    *done, left_out, trusted = apply(write_update(update, old), home)
    assert done == [
        f"revoked {leaked}",
        f"key {old.public.fingerprint} expires on {LATER}",
        f"key {new.public.fingerprint}, which is not trusted here, would expire on {LATER}",
    ]
    assert left_out.startswith(f"left out key {new.public.fingerprint}, whose file here is bad: {path}: a public key")
    assert trusted == f"trusted {other.fingerprint} other"
    assert path.read_text() == line and find_revocation(leaked, home) and is_trusted(other.raw, home)
    path.write_text(other.text())
    (left_out,) = apply(write_update(Update(trust=(new.public,)), old), home)
    assert f"{path}: holds key {other.fingerprint}" in left_out and path.read_text() == other.text()


def test_one_update_that_says_several_things_of_a_key(home: Path, old: SigningKey, new: SigningKey) -> None:
    """The strictest holds, and a last day is written down also of a key that was revoked: it may be restored."""
    subject = new.public.fingerprint
    add_trusted(new.public, home)
    text = write_update(Update((new.public,), ((subject, LATER),), ((subject, "lost"),)), old)
    apply(text, home)
    assert not is_trusted(new.public.raw, home)
    restore(subject, home)
    assert stored_key(new.public.raw, home) == replace(new.public, expires=LATER)
    assert is_trusted(new.public.raw, home)


def test_of_two_last_days_the_earlier_stands(home: Path, old: SigningKey) -> None:
    subject, later = old.public.fingerprint, LATER + timedelta(30)
    for days in ((LATER, later), (later, LATER)):
        apply(write_update(Update(expire=tuple((subject, day) for day in days)), old), home)
        assert stored_key(old.public.raw, home) == replace(old.public, expires=LATER)


def test_of_two_last_days_that_come_at_once_the_earlier_stands(
    home: Path, old: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other announcement comes between the reading of the day that is there and the writing of the later one."""
    fingerprint, sooner = old.public.fingerprint, TODAY + timedelta(7)
    early, late = (write_update(Update(expire=((fingerprint, day),)), old) for day in (sooner, LATER))
    other = threading.Thread(target=apply, args=(early, home))
    set_day = updates.set_last_day

    def set_behind_the_other(fingerprint: str, day: date | None, home: Path | None = None) -> None:
        if day == LATER:
            other.start()
            other.join(1)  # it waits for this one
        set_day(fingerprint, day, home)

    monkeypatch.setattr(updates, "set_last_day", set_behind_the_other)
    apply(late, home)
    other.join()
    assert last_day(fingerprint, home) == sooner
    known = stored_key(old.public.raw, home)
    assert known is not None and known.expires == sooner


def test_who_is_revoked_while_an_announcement_waits_announces_nothing(
    home: Path, old: SigningKey, new: SigningKey
) -> None:
    """It waits for another change of the store, and is judged by what that leaves."""
    text, said = write_update(Update(trust=(new.public,)), old), []

    def apply_it() -> None:
        try:
            apply(text, home)
        except UntrustedArtifactError as error:
            said.append(str(error))

    waiting = threading.Thread(target=apply_it)
    with changing_store(home):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        revoke(old.public.fingerprint, "it leaked", home)
    waiting.join()
    assert len(said) == 1 and "was revoked on" in said[0]
    assert stored_key(new.public.raw, home) is None


def test_the_order_of_updates_does_not_matter(tmp_path: Path, old: SigningKey, new: SigningKey) -> None:
    """A last day that comes before its key counts when the key comes."""
    texts = [
        write_update(Update(expire=((new.public.fingerprint, LATER),)), old),
        write_update(Update(trust=(new.public,)), old),
    ]
    for index, order in enumerate((texts, texts[::-1], [*texts, texts[0]])):
        home = tmp_path / str(index)
        add_trusted(old.public, home)
        said = [line for text in order for line in apply(text, home)]
        assert len(said) == 2 and str(LATER) in "".join(said)
        assert stored_key(new.public.raw, home) == replace(new.public, expires=LATER)


@pytest.mark.parametrize("failing", ["revoked", "last-days", "trusted"])
def test_an_update_that_cannot_be_applied_whole_changes_nothing(
    failing: str, home: Path, old: SigningKey, new: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever folder cannot be written: what is in its way is a file, which stops root as well."""
    update = Update((new.public,), ((old.public.fingerprint, LATER),), (("ab" * 32, "recalled"),))
    text = write_update(update, old)
    if failing == "trusted":

        def write_trusted(key: PublicKey, home: Path | None) -> Path:
            if key == new.public:
                raise ArtifactError("the disk is full")
            return key_store.write_trusted(key, home)

        monkeypatch.setattr(updates, "write_trusted", write_trusted)
    else:
        (home / failing).write_text("")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(ArtifactError):
        apply(text, home)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_an_update_that_is_interrupted_anywhere_is_applied_whole_or_not_at_all(
    tmp_path: Path, old: SigningKey, new: SigningKey
) -> None:
    update = Update((new.public,), ((old.public.fingerprint, LATER),), (("ab" * 32, "recalled"),))
    text = parse_update(write_update(update, old), "u")
    place = os.path.dirname(updates.__file__)

    def applied(home: Path, left: int) -> tuple[int, dict[str, bytes]]:
        """The lines of these modules that ran, of which the one of this number is interrupted."""
        add_trusted(old.public, home)

        def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
            nonlocal left
            if os.path.dirname(frame.f_code.co_filename) != place:
                return None
            if event in ("line", "return"):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        former = sys.gettrace()
        sys.settrace(trace)
        try:
            apply_update(text, "u", home)
        except KeyboardInterrupt:
            assert left <= 0
        finally:
            sys.settrace(former)
        return left, files(home)

    def files(home: Path) -> dict[str, bytes]:
        return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}

    add_trusted(old.public, tmp_path / "before")
    before = files(tmp_path / "before")
    assert len(before) == 2 and before[LOCK] == b""
    left, whole = applied(tmp_path / "whole", 1_000_000)
    lines = 1_000_000 - left
    found = [applied(tmp_path / str(number), number)[1] for number in range(1, lines + 1, 3)]
    assert len(found) > 50
    assert all(each in (before, whole) for each in found)
    assert before in found


def test_a_process_that_is_ended_waits_until_all_is_done_or_taken_back(
    home: Path, old: SigningKey, new: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each file takes longer than what an interrupted process has to clean up."""
    set_day, seen = updates.set_last_day, []
    ending = threading.Thread(target=unfinished.drop_all)

    def slowly(fingerprint: str, day: date | None, home: Path | None = None) -> None:
        if not ending.ident:
            ending.start()
            ending.join(0.1)
        seen.append(ending.is_alive())
        set_day(fingerprint, day, home)

    monkeypatch.setattr(updates, "set_last_day", slowly)
    try:
        apply(write_update(Update(expire=tuple((key.public.fingerprint, LATER) for key in (old, new))), old), home)
        ending.join(30)
        with pytest.raises(KeyboardInterrupt):
            apply(write_update(Update(revoke=((new.public.fingerprint, "x"),)), old), home)
    finally:
        unfinished.resume()
    assert seen == [True, True] and not ending.is_alive()
    assert find_revocation(new.public.fingerprint, home) is None


def test_who_is_not_trusted_changes_nothing(home: Path, old: SigningKey, new: SigningKey) -> None:
    text = write_update(Update(trust=(new.public,)), new)
    with pytest.raises(UntrustedArtifactError, match="is not trusted here; nothing was changed"):
        apply(text, home)
    assert list_trusted(home) == (old.public,)
    past = Update(trust=(new.public,), issued=TODAY - timedelta(100), until=TODAY - timedelta(1))
    with pytest.raises(ArtifactError, match="counted until"):
        apply(write_update(past, old), home)
    assert list_trusted(home) == (old.public,)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('revoked = ["{old}"]', r"is revoked by .*policy\.toml; nothing was changed"),
        ('keys = ["{new}"]', r"which .*policy\.toml lacks; nothing was changed"),
    ],
)
def test_whom_the_policy_does_not_trust_announces_nothing(
    policy: str, said: str, home: Path, old: SigningKey, new: SigningKey
) -> None:
    text = write_update(Update(trust=(new.public,)), old)
    (home / "policy.toml").write_text(policy.format(old=old.public.fingerprint, new=new.public.text()))
    with pytest.raises(UntrustedArtifactError, match=said):
        apply(text, home)
    assert stored_key(new.public.raw, home) is None
    (home / "policy.toml").unlink()
    assert apply(text, home)


def test_an_announced_last_day_stands_whoever_trusts_the_key(home: Path, old: SigningKey, new: SigningKey) -> None:
    past, key = TODAY - timedelta(1), new.public
    apply(write_update(Update(expire=((key.fingerprint, LATER),)), old), home)
    assert add_trusted(key, home) == stored_key(key.raw, home) == replace(key, expires=LATER)
    later = replace(key, expires=LATER + timedelta(1))
    assert add_trusted(later, home).expires == LATER
    assert add_trusted(replace(key, expires=TODAY), home).expires == TODAY
    assert why_not(key, home) is None
    remove_trusted(key.fingerprint, home)
    apply(write_update(Update(expire=((key.fingerprint, past),)), old), home)
    assert why_not(key, home) == f"expired on {past}"
    with pytest.raises(ArtifactError, match=rf"expired on {past}, as was announced; .*last-days"):
        add_trusted(key, home)
    assert not is_trusted(key.raw, home)


def test_a_last_day_of_the_store_holds_for_a_key_that_a_policy_holds(home: Path, new: SigningKey) -> None:
    assert why_not(new.public, home) is None
    add_trusted(replace(new.public, expires=TODAY - timedelta(1)), home)
    assert why_not(new.public, home) == f"expired on {TODAY - timedelta(1)}"


@pytest.mark.parametrize("altered", ["\ufeff{}", "crlf"])
def test_an_announcement_that_an_editor_has_saved_is_told_as_such(altered: str, old: SigningKey) -> None:
    text = write_update(Update(expire=((old.public.fingerprint, LATER),)), old)
    text = text.replace("\n", "\r\n") if altered == "crlf" else altered.format(text)
    with pytest.raises(ArtifactError, match=r"^u: a trust update that an editor .* get it again, byte for byte$"):
        parse_update(text, "u")


def test_every_altered_byte_is_found(old: SigningKey, new: SigningKey) -> None:
    text = write_update(Update(trust=(new.public,), revoke=(("0" * 16, "leaked"),)), old)
    for position in range(len(text)):
        forged = text[:position] + chr(ord(text[position]) ^ 1) + text[position + 1 :]
        with pytest.raises(ArtifactError):
            parse_update(forged, "u")
    for cut in range(len(text)):
        with pytest.raises(ArtifactError):
            parse_update(text[:cut], "u")
    with pytest.raises(ArtifactError):
        parse_update(text + "\n", "u")


@pytest.mark.parametrize("line", ["", "trust", "trust x", "revoke all", "expire 0123456789abcdef soon", "obey me"])
def test_a_line_that_is_wrong(line: str, old: SigningKey) -> None:
    from pyc.runtime.artifact.trust import updates

    good = write_update(Update(), old)
    body = good.partition("signature ")[0] + line + "\n"
    signature = old.sign_message(updates._DOMAIN + body.encode())
    encoded = " ".join(updates.base64.b64encode(each).decode() for each in (old.public.raw, signature))
    with pytest.raises(ArtifactError, match=r"^u:4: "):
        parse_update(f"{body}signature {encoded}\n", "u")
