"""runtime/artifact/trust/keys.py: a last day that is not where it belongs is refused: the key would count for ever."""

import base64
import time
from datetime import date
from pathlib import Path

import pytest

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust import updates
from pyc.runtime.artifact.trust.comments import clean_comment, find_last_day
from pyc.runtime.artifact.trust.key_sources import choose_key, write_key_file
from pyc.runtime.artifact.trust.key_store import add_trusted, check_store, create_key, is_trusted, signing_key
from pyc.runtime.artifact.trust.keys import (
    PublicKey,
    SigningKey,
    new_key_text,
    parse_public_key,
    parse_signing_key,
    read_public_key,
)
from pyc.runtime.artifact.trust.policy import parse_policy, trust_of
from pyc.runtime.artifact.trust.revocations import find_revocation, restore
from pyc.runtime.artifact.trust.updates import Update, apply_update, keys_without_effect, parse_update, write_update
from pyc.runtime.errors import ArtifactError, TrustError

RAW = bytes(range(32))
LINE = f"pyc-ed25519 {base64.b64encode(RAW).decode()}"
MISPLACED = (
    "release expires=2026-01-31",
    "release\texpires=2026-01-31",
    "EXPIRES=2026-01-31",
    "Expires=2026-01-31 release",
    "expires = 2026-01-31",
    "expires:2026-01-31 release",
    "expires: 2026-01-31",
    "expires 2026-01-31",
    "expires on 2026-01-31",
    "expires\uff1d2026-01-31",
    "expi\u200bres=2026-01-31",
    "release --expires=2026-01-31",
    "key_expires=2026-01-31",
    "expires=2027-06-30 expires=2026-01-31 release",
    "expires=2027-06-30 release expires=soon",
    "expire=2026-01-31",
    "expiry: January 2026",
    "exp=2026-01-31",
    "expiration 31.01.2026",
    "valid-until=2026-01-31",
    "until 20260131",
    "not-after: 2026-01-31",
    "last day 2026/01/31",
    "expires_at=2026-01-31",
    "expires-on: 2026-01-31 release",
    "expiry_date=2026-01-31",
    "expiration date: 2026-01-31",
    "expires 31 Jan 2026",
    "expires at noon on 31.1.",
    'expires "2026-01-31"',
    "expires (2026-01-31)",
    "expires at 2026-01-31",
    "expires -> 2026-01-31",
    "key expires-2026-01-31",
    "key\u00a0expires-2026-01-31",
    "until\t2026-01-31",
    "keyExpiry=2026-01-31",
    "exp\u00edres 2026-01-31",
    "expires \u0662\u0660\u0662\u0666",
    "exp. 2026-01-31",
    "exp 31 Jan 2026",
    "expdate=2026-01-31",
    "valid-to=2026-01-31",
    "validTo=2026-01-31",
    "valid_until 2026",
    "valid through 2026-01-31",
    "valid for 90 days",
    "use-by=2026-01-31",
    "best before 2026-01-31",
    "end date: 2026-01-31",
    "notAfter 2026-01-31T00:00Z",
)
NAMES = (
    "release-exp20261231",
    "team.exp20260131",
    "prod.until20270630",
    "expires2027-06-30",
    "until2026.01.31",
    "lastday20260131",
    "expires-2026-01-31",
    "valid_to_2026",
)
"""One word, as the names of keys that pyc makes and writes into their lines."""


@pytest.mark.parametrize("comment", MISPLACED)
def test_a_last_day_in_another_place_or_form_is_refused(comment: str) -> None:
    message = r"says ['\"].*['\"], which is not taken for its last day; write it once, right behind the key: .*="
    with pytest.raises(ArtifactError, match=message):
        parse_public_key(f"{LINE} {comment}")


@pytest.mark.parametrize(
    "comment",
    [
        *NAMES,
        "",
        "release 2027",
        "Ada's laptop, expired keys are elsewhere",
        "unexpired: yes",
        "made on 2026-01-31",
        "exp 1",
        "exp-3 laptop",
        "expert: Ada",
        "validated: yes",
        "because by 3",
        "until the cows come home they give milk to 3",
    ],
)
def test_a_comment_about_something_else(comment: str) -> None:
    assert parse_public_key(f"{LINE} {comment}") == PublicKey(RAW, comment)
    assert parse_public_key(f"{LINE} expires=2027-06-30 {comment}") == PublicKey(RAW, comment, date(2027, 6, 30))


@pytest.mark.parametrize("name", NAMES)
def test_a_key_of_any_name_is_made_and_used(name: str, tmp_path: Path) -> None:
    home, day = tmp_path / "home", date(2999, 6, 30)
    assert create_key(name, expires=day, home=home)
    made = signing_key(name, create=False, home=home).public
    assert (made.comment, made.expires) == (name, day)
    assert check_store(home) == ((made,), ())
    assert write_key_file(tmp_path / f"{name}.pem").public.comment == name
    of_a_build = choose_key(name, home=tmp_path / "another")
    assert (of_a_build.is_new, of_a_build.key.public.comment) == (True, name)


def test_a_new_file_whose_name_no_line_can_say_is_not_written(tmp_path: Path) -> None:
    for stem in ("release expires=2027-06-30", "expires=2027-06-30", "valid to 2027", "a  b", "a\nb", "a\udcff"):
        with pytest.raises(ArtifactError, match=r"its name would be the key's comment, .*; choose a name of letters"):
            write_key_file(tmp_path / f"{stem}.pem")
    assert not list(tmp_path.iterdir())
    assert write_key_file(tmp_path / "Ada's key.pem").public.comment == "Ada's key"


def test_a_file_that_is_there_signs_whatever_its_name(tmp_path: Path) -> None:
    """Its line says the name as that of a key, so that it is read as what it is."""
    path = tmp_path / "expires=2001-01-01 a.pem"
    path.touch(0o600)
    path.write_text(new_key_text())
    public = choose_key(file=path, home=tmp_path / "home").key.public
    assert (public.comment, public.expires) == ("expires-2001-01-01-a", None)
    assert parse_public_key(public.text()) == public


@pytest.mark.parametrize("comment", ["a\tb", "a \u200b b", " a  b ", "a\u00a0b", "a\rb", "\u200b a b \u200b"])
def test_a_comment_is_read_again_as_it_was(comment: str) -> None:
    key = parse_public_key(f"{LINE} {comment}")
    assert key.comment == "a b"
    assert parse_public_key(key.text()) == key


def test_what_no_line_can_say_is_not_stored(tmp_path: Path) -> None:
    for comment in ("until 2026", "expires=2027-01-01", "a\nb"):
        with pytest.raises(ArtifactError):
            add_trusted(PublicKey(RAW, comment), tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "part", ["exp ", "exp-", "exp1 ", "exp1-", "until ", "not", "valid", "1", "\u0316\u0301", "end ", "unexpir"]
)
def test_a_long_comment_takes_time_in_proportion(part: str) -> None:
    """Of a million letters some seconds at most, where quadratic time takes hours."""
    comment = "a " + part * (1_000_000 // len(part))
    started_s = time.process_time()
    find_last_day(clean_comment(comment))
    assert time.process_time() - started_s < 30


def test_wherever_a_line_is_read(tmp_path: Path) -> None:
    line = f"{LINE} release expires=2026-01-31"
    (tmp_path / "release.pub").write_text(line + "\n")
    says = "is not taken for its last day"
    with pytest.raises(ArtifactError, match=rf"^policy\.toml: a public key .* {says}"):
        parse_policy(f'keys = ["{line}"]', "policy.toml")
    with pytest.raises(ArtifactError, match=rf"^{tmp_path}/release\.pub: a public key .* {says}"):
        read_public_key(tmp_path / "release.pub")
    for given in (line, str(tmp_path / "release.pub")):
        with pytest.raises(TrustError, match=says):
            trust_of(given)


def test_such_a_line_of_an_announcement_hinders_none_of_its_revocations(tmp_path: Path) -> None:
    """As earlier versions announced it; and so they did a last day of an artifact, which nobody heeded."""
    signer, home = parse_signing_key(new_key_text(), "k"), tmp_path / "home"
    add_trusted(signer.public, home)
    update = Update(trust=(PublicKey(RAW, "release expires=2026-01-31"),), revoke=(("1" * 16, "leaked"),))
    for text, says in (
        (write_update(update, signer), "line 4 is left out: a public key whose comment says"),
        (signed_text(f"expire {'2' * 64} 2026-01-31\nrevoke {'1' * 16} leaked\n", signer), "line 4 is left out: "),
    ):
        read = parse_update(text, "u")
        apply_update(read, "u", home)
        assert find_revocation("1" * 16, home) is not None and not is_trusted(RAW, home)
        (said,) = keys_without_effect(read, home)
        assert said.startswith(says) and said.endswith("; ask who announced it for one without it")
        restore("1" * 16, home)


def signed_text(lines: str, signer: SigningKey) -> str:
    """An announcement of these lines."""
    body = write_update(Update(), signer).partition("signature ")[0] + lines
    signature = signer.sign_message(updates._DOMAIN + body.encode())
    return f"{body}{updates._signature_line(SignatureRecord(signer.public.raw, signature))}\n"


def test_a_key_whose_public_half_has_a_misplaced_last_day_signs_nothing(tmp_path: Path) -> None:
    key = write_key_file(tmp_path / "ci.pem").public
    (tmp_path / "ci.pub").write_text(f"{key.text()} expires=2026-01-31\n")
    with pytest.raises(ArtifactError, match=rf"^{tmp_path}/ci\.pub: a public key .* is not taken for its last day"):
        choose_key(file=tmp_path / "ci.pem", home=tmp_path / "home")
    (tmp_path / "ci.pub").write_text("-----BEGIN PUBLIC KEY-----\n")
    assert choose_key(file=tmp_path / "ci.pem", home=tmp_path / "home").key.public == key


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_last_days_of_a_key_in_a_policy_the_earlier_stands(order: int) -> None:
    lines = [f"{LINE} expires=2027-06-30 b", f"{LINE} a", f"{LINE} expires=2026-01-31 c"][::order]
    (key,) = parse_policy(f"keys = {lines}", "policy.toml").keys or ()
    assert (key.raw, key.expires) == (RAW, date(2026, 1, 31))
    with pytest.raises(ArtifactError, match="asks for 2 signatures of 1 keys"):
        parse_policy(f"keys = {lines}\n[[rule]]\nthreshold = 2", "policy.toml")


def test_a_byte_order_mark_is_no_part_of_what_it_begins(tmp_path: Path) -> None:
    mark = "\ufeff"
    assert parse_policy(f'{mark}keys = ["{LINE} a"]', "p.toml") == parse_policy(f'keys = ["{LINE} a"]', "p.toml")
    (tmp_path / "a.pub").write_text(f"{mark}{LINE} a\n", "utf-8")
    assert read_public_key(tmp_path / "a.pub") == PublicKey(RAW, "a")
    assert trust_of(str(tmp_path / "a.pub")) == trust_of(f"{LINE} a")
    with pytest.raises(ArtifactError, match="not a public key"):
        parse_public_key(f"{mark}{mark}{LINE}")
