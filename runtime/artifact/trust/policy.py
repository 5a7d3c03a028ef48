"""A policy: whose signatures, and how many, an artifact of a name needs. A TOML file:

    keys = ["pyc-ed25519 ... release", "pyc-ed25519 ... expires=2027-06-30 qa"]   # in place of this machine's
    revoked = ["9f86d081884c7d65", "header:<64 hex digits>"]                       # besides this machine's

    [[rule]]                      # the first whose `artifacts` fits counts
    artifacts = "prod-*.pyca"     # of the artifact's name: *, ? and [...]
    signers = ["3f0c...", ...]    # fingerprints; any trusted key where it is left out
    threshold = 2                 # so many of them, 1 where it is left out

The name is the last part of the path or URL that was asked for, however that is written (`names_of`): `prod-7.pyca`,
`coder:7` of oci://host/team/coder:7, `standard input` of -. All of it is optional. An artifact that no rule fits needs
one signature by a trusted key. `<home>/policy.toml` holds for every command, unless $PYC_TRUST_POLICY or --trust names
another.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase, translate
from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert

from pyc.runtime.artifact.trust.keys import (
    BYTE_ORDER_MARK,
    KEY_TYPE,
    PublicKey,
    is_private_key,
    parse_public_key,
    read_text_and_mode,
)
from pyc.runtime.artifact.trust.subjects import PREFIX, is_bare_digest, listed_subject
from pyc.runtime.errors import ArtifactError, TrustError
from pyc.runtime.host.files_read import POLICY_VARIABLE
from pyc.runtime.host.home import find_home_directory
from pyc.runtime.host.private_files import require_private, require_unwritable
from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.host.signal_handlers import unless_signalled

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 10
MAX_THRESHOLD = 64


class Rule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """So many of these signers, or of all trusted keys, for artifacts whose file's name fits the pattern."""

    artifacts: Annotated[str, Meta(min_length=1, max_length=512)] = "*"
    signers: tuple[Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")], ...] | None = None
    threshold: Annotated[int, Meta(ge=1, le=MAX_THRESHOLD)] = 1

    def fits(self, name: str) -> bool:
        """Whether the rule is about artifacts of this name."""
        return fnmatchcase(name, self.artifacts)


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[str, ...] | None = None
    revoked: tuple[str, ...] = ()
    rule: tuple[Rule, ...] = ()


class Policy(Struct, frozen=True):
    """`keys` stand in place of the key store's; None: the store's are meant. `origin` is where the policy is from."""

    keys: tuple[PublicKey, ...] | None = None
    revoked: frozenset[str] = frozenset()
    rules: tuple[Rule, ...] = ()
    origin: str = ""

    def rule_for(self, names: tuple[str, ...]) -> Rule | None:
        """The first rule whose pattern fits one of the artifact's names (`names_of`); None where none does: `Rule()` is
        meant. Raises ArtifactError where it fits a spelling, and not the name of what is read."""
        rule = next((rule for rule in self.rules if any(map(rule.fits, names))), None)
        if rule is not None and not rule.fits(names[0]):
            raise ArtifactError(
                f"what is read is called {names[0]!a}, and the rule for {rule.artifacts!a} of {self.origin} fits "
                f"{names[-1]!a} alone, so which rule holds is not known; have the rule fit both, as "
                "'coder[:@]*' fits every tag and digest of coder"
            )
        return rule


DEFAULT = Policy()


@contextmanager
def deciding() -> Iterator[None]:
    """Within it, what is wrong with a policy, a key store or a file of signatures is a TrustError: no artifact's fault.
    """
    try:
        yield
    except ArtifactError as error:
        if type(error) is not ArtifactError:  # a verdict, or another machine's fault
            raise
        raise TrustError(str(error)) from error


def policy_of_key(key: PublicKey) -> Policy:
    """The policy that exactly this key signs."""
    return Policy((key,))


def machine_policy(home: Path | None = None) -> Policy:
    """The policy that holds here: that of $PYC_TRUST_POLICY, else the home's, else the default. Raises TrustError.

    With `home`, that home's alone.
    """
    with deciding():
        return _machine_policy(home)


def _machine_policy(home: Path | None) -> Policy:
    if home is None:
        named = os.environ.get(POLICY_VARIABLE)
        if named == "":  # a service whose setting is lost must not fall back to a weaker policy
            raise ArtifactError(f"${POLICY_VARIABLE}: is set, but empty; give it a policy's file, or unset it")
        if named:
            _refuse_pipe(Path(named), f"${POLICY_VARIABLE}: {named}")
            return read_policy(Path(named))
        home = find_home_directory()
    path = home / "policy.toml" if home else None
    if path is None or not os.path.lexists(path):
        return DEFAULT
    require_private(path, "change what is trusted")
    return read_policy(path)


REQUIRED = "required"
"""What asks for a signature by this machine's policy."""
NEITHER = f"neither a public key, which is a line that begins with {KEY_TYPE}, nor a trust policy"


def asked_policy(text: str) -> Policy | None:
    """The policy that a command or a program asks for; None for this machine's. Raises TrustError."""
    return None if text == REQUIRED else trust_of(text)


def asked_file(text: str) -> Path | None:
    """The file that `asked_policy` reads, which nobody may write over."""
    return None if text == REQUIRED or text.startswith(f"{KEY_TYPE} ") else Path(text)


def check_read_often(text: str, option: str) -> None:
    """Raise TrustError where `asked_policy` reads a pipe, for a command that asks more than once."""
    path = asked_file(text)
    if path is not None:
        with deciding():
            _refuse_pipe(path, f"{option} {text[:200]}")


def _refuse_pipe(path: Path, where: str) -> None:
    """Raise ArtifactError for a pipe: the second of two questions would find it empty."""
    try:
        is_pipe = stat.S_ISFIFO(path.stat().st_mode)
    except unless_signalled(OSError, ValueError):  # what reads it says why
        return
    if is_pipe:
        raise ArtifactError(
            f"{where} is a pipe, which can be read once, and a policy is read as often as it is asked for; write it to "
            "a file that only you may write to, and name that"
        )


def trust_of(text: str) -> Policy:
    """The policy of a user's words: a public key's line, or the file of a policy or of a key. Raises TrustError."""
    with deciding():
        return _trust_of(text)


def _trust_of(text: str) -> Policy:
    if text.startswith(f"{KEY_TYPE} "):
        return policy_of_key(parse_public_key(text))
    if not os.path.lexists(text):
        raise ArtifactError(f"{text[:200]!a}: not a public key, and no file of a key or a policy")
    content, mode = read_text_and_mode(Path(text), MAX_FILE_BYTES, is_given=True)
    content = content.removeprefix(BYTE_ORDER_MARK)
    if content.startswith(f"{KEY_TYPE} ") or is_private_key(content):
        return policy_of_key(_key(content, text))
    require_unwritable(Path(text), mode, "change what is trusted")
    return parse_policy(content, text, NEITHER)


def read_policy(path: Path) -> Policy:
    """Read a policy's file. Raises ArtifactError, which says what is wrong with it, be it that others may write to it.
    """
    text, mode = read_text_and_mode(path, MAX_FILE_BYTES)
    require_unwritable(path, mode, "change what is trusted")
    return parse_policy(text, str(path))


def parse_policy(text: str, where: str, otherwise: str = "not a trust policy") -> Policy:
    """The policy of a text. Raises ArtifactError, which begins with `where`; what is no policy is `otherwise`."""
    import tomllib

    try:
        document = convert(tomllib.loads(text.removeprefix(BYTE_ORDER_MARK)), _Document)
    except (ValueError, ValidationError, RecursionError) as error:  # a number of thousands of digits, too
        refuse_deep_caller(error)
        reason = str(error).partition("; use sys.")[0]  # what a programmer would do
        raise ArtifactError(f"{where}: {otherwise}: {reason}; docs/keys.md has an example") from error
    if document == _Document():  # as a write that was cut short leaves it; the default would take its place
        raise ArtifactError(f"{where}: a trust policy that says nothing; give it a rule or keys: docs/keys.md")
    keys = None if document.keys is None else _keys(document.keys, where)
    for rule in document.rule:
        if problem := _pattern_problem(rule.artifacts):
            raise ArtifactError(f"{where}: the rule for {rule.artifacts!a} fits no name: {problem}")
        possible = rule.signers if rule.signers is not None else keys and [key.fingerprint for key in keys]
        if possible and len(set(possible)) < rule.threshold:
            raise ArtifactError(
                f"{where}: the rule for {rule.artifacts!a} asks for {rule.threshold} signatures of "
                f"{len(set(possible))} keys, so no artifact could pass"
            )
    try:
        revoked = frozenset(listed_subject(subject) for subject in document.revoked)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: revoked: {error}") from error
    for subject in filter(is_bare_digest, document.revoked):
        _warn_of_bare_digest(where, subject)
    return Policy(keys, revoked, document.rule, where)


@cache
def _warn_of_bare_digest(where: str, digest: str) -> None:
    """Say, once, that a digest may be of a file: then it revokes nothing, and there is no telling here."""
    logger.warning(
        "%s: revoked: %s is taken as the SHA-256 of an artifact's header; that of its file would revoke nothing; write "
        "the digest that `pyc verify --json` prints, with %s before it",
        where,
        digest,
        PREFIX,
    )


def _pattern_problem(pattern: str) -> str | None:
    """Why no artifact's name, or none that was meant, fits a pattern: the rule would be passed over without a word."""
    if "/" in pattern:
        return "a name has no slash, as it is the last part of a path or URL"
    start = pattern.find("[")
    while start >= 0:
        first = start + 1
        for letter in "!]":  # a bracket that comes first is one of the letters
            first += pattern.startswith(letter, first)
        end = pattern.find("]", first)
        if end < 0:
            return "'[' is not closed by ']'; the letter itself is [[]"
        if "(?!)" in translate(pattern[start : end + 1]):
            return f"{pattern[start : end + 1]!a} is a range from a letter to an earlier one"
        start = pattern.find("[", end + 1)
    return None


def _keys(lines: tuple[str, ...], where: str) -> tuple[PublicKey, ...]:
    """The keys of these lines, each once: of two last days of a key the earlier stands."""
    found: dict[bytes, PublicKey] = {}
    for line in lines:
        key = _key(line, where)
        found[key.raw] = found.setdefault(key.raw, key).until(key.expires)
    return tuple(found.values())


def _key(line: str, where: str) -> PublicKey:
    try:
        return parse_public_key(line)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from error
