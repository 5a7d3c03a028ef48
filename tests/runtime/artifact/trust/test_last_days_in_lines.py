"""runtime/artifact/trust/keys.py: a last day that is not where it belongs is refused: the key would count for ever."""

import base64
from datetime import date
from pathlib import Path

import pytest

from pyc.runtime.artifact.trust.key_sources import choose_key, write_key_file
from pyc.runtime.artifact.trust.keys import (
    PublicKey,
    new_key_text,
    parse_public_key,
    parse_signing_key,
    read_public_key,
)
from pyc.runtime.artifact.trust.policy import parse_policy, trust_of
from pyc.runtime.artifact.trust.updates import Update, parse_update, write_update
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
)


@pytest.mark.parametrize("comment", MISPLACED)
def test_a_last_day_in_another_place_or_form_is_refused(comment: str) -> None:
    message = r"says '.*', which is not taken for its last day; write it once, right behind the key: .* expires=YYYY"
    with pytest.raises(ArtifactError, match=message):
        parse_public_key(f"{LINE} {comment}")


@pytest.mark.parametrize(
    "comment",
    ["", "release 2027", "Ada's laptop, expired keys are elsewhere", "unexpired: yes", "made on 2026-01-31", "exp 1"],
)
def test_a_comment_about_something_else(comment: str) -> None:
    assert parse_public_key(f"{LINE} {comment}") == PublicKey(RAW, comment)
    assert parse_public_key(f"{LINE} expires=2027-06-30 {comment}") == PublicKey(RAW, comment, date(2027, 6, 30))


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
    update = Update(trust=(PublicKey(RAW, "release expires=2026-01-31"),))
    text = write_update(update, parse_signing_key(new_key_text(), "k"))
    with pytest.raises(ArtifactError, match=rf"^u:4: a public key .* {says}"):
        parse_update(text, "u")


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
