"""`pyc trust`: whose artifacts may run on this machine, and whose no more."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyc.commands.days import DAY, require_to_come
from pyc.commands.opening import PATH_TEXT
from pyc.commands.screen import say, say_json

if TYPE_CHECKING:
    from datetime import date


@click.group("trust")
def command() -> None:
    """Say whose artifacts may run here, and what may run no more."""


@command.command("list", short_help="Print every trusted key, and what was revoked.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_keys(as_json: bool) -> None:
    """Print every key that was trusted here, its fingerprint first, and what was revoked.

    Keys of this machine's policy come first, with its file; beside them keys of the key store count for nothing, which
    is said. Files that do not count, since they are damaged or others may write to them, are named on standard error,
    and the exit code is then 8.
    """
    from pyc.runtime.artifact.trust.counting_keys import why_without_effect
    from pyc.runtime.artifact.trust.key_store import check_store, why_not, with_last_day
    from pyc.runtime.artifact.trust.policy import machine_policy
    from pyc.runtime.artifact.trust.revocations import list_revoked
    from pyc.runtime.artifact.trust.subjects import shown_subject
    from pyc.runtime.errors import ArtifactError
    from pyc.runtime.host.home import find_home_directory

    policy = machine_policy()
    has_store = find_home_directory() is not None or policy.keys is None  # which says what to set without a home
    stored, problems = check_store() if has_store else ((), ())
    held = {key.raw for key in policy.keys or ()}
    listed = (*(policy.keys or ()), *(key for key in stored if key.raw not in held))
    keys = tuple(map(with_last_day, listed))
    states = {key.fingerprint: why_not(key) or (why_without_effect(key, policy) or (None,))[0] for key in keys}
    others = [(each.shown, f"was revoked {each}", each.subject) for each in (list_revoked() if has_store else ())]
    known = {*states, *(subject for _, _, subject in others)}
    others += [(shown_subject(each), f"is revoked by {policy.origin}", each) for each in sorted(policy.revoked - known)]
    others = [each for each in others if each[2] not in states]
    if as_json:
        rows: list[dict[str, object]] = [
            {
                "fingerprint": key.fingerprint,
                "public_key": key.text(),
                "comment": key.comment,
                "expires": str(key.expires) if key.expires else None,
                "trusted": states[key.fingerprint] is None,
                "refusal": states[key.fingerprint],
                "policy": policy.origin if key.raw in held else None,
            }
            for key in keys
        ]
        rows += [{"revoked": shown, "trusted": False, "refusal": refusal} for shown, refusal, _ in others]
        say_json(rows, indent=None)
    else:
        for key in keys:
            notes = [note for note in (policy.origin if key.raw in held else None, states[key.fingerprint]) if note]
            note = f"  ({'; '.join(notes)})" if notes else ""
            say(f"{key.fingerprint}  {key.text()}{note}")
        for shown, refusal, _ in others:
            say(f"{shown}  ({refusal})")
    if problems:
        raise ArtifactError("; ".join(problems))


@command.command("add", short_help="Trust a public key.")
@click.argument("key")
@click.option("--expires", type=DAY, metavar="DATE", help="The last day on which the key counts here, as YYYY-MM-DD.")
def add_key(key: str, expires: "date | None") -> None:
    """Trust KEY: the line `pyc-ed25519 <base64> <comment>`, or a file that holds it.

    Artifacts signed by it may then run code on this machine. A key that counts for nothing by this machine's policy is
    refused. A last day that the key has here stays, unless KEY or --expires says another.
    """
    from dataclasses import replace

    from pyc.runtime.artifact.trust.counting_keys import until_day_of_policy, why_without_effect, with_earliest_day
    from pyc.runtime.artifact.trust.key_store import add_trusted
    from pyc.runtime.artifact.trust.keys import PublicKey, public_key_of
    from pyc.runtime.artifact.trust.last_days import last_day
    from pyc.runtime.artifact.trust.policy import machine_policy
    from pyc.runtime.errors import ArtifactError

    require_to_come(expires, "--expires")
    public = public_key_of(key)
    if expires is not None:
        public = replace(public, expires=expires)
    if public.is_expired():
        raise ArtifactError(
            f"key {public.fingerprint} expired on {public.expires}, as its line says; trust its successor, or set a "
            "day of your own with --expires"
        )
    policy = machine_policy()
    if why := why_without_effect(public, policy):
        raise ArtifactError(f"key {public.fingerprint} {why[0]}; {why[1]}; nothing was changed")
    asked, public = public.expires, with_earliest_day(add_trusted(public), policy)
    until = f", until {public.expires}" if public.expires else ""
    announced = until_day_of_policy(PublicKey(public.raw, "", last_day(public.fingerprint)), policy).expires
    if asked is None and public.expires != announced:
        until += ", as before; --expires sets another day"
    say(f"trusted {public.fingerprint} {public.comment}".rstrip() + until)


@command.command("remove", short_help="Trust a key no longer.")
@click.argument("fingerprint")
def remove_key(fingerprint: str) -> None:
    """Trust the key with this FINGERPRINT (16 hex digits) no longer.

    One that this machine's policy holds is refused: take it out there, or revoke it.
    """
    from pyc.runtime.artifact.trust.counting_keys import require_not_held
    from pyc.runtime.artifact.trust.key_store import remove_trusted
    from pyc.runtime.artifact.trust.policy import machine_policy

    require_not_held(fingerprint, machine_policy())
    removed = remove_trusted(fingerprint)
    say(f"removed {fingerprint} {removed.comment if removed else '(its file was damaged)'}".rstrip())


@command.command("revoke", short_help="Count a key for nothing any more, or never again run an artifact.")
@click.argument("subject")
@click.option("--reason", default="", help="Why, for those who meet it.")
def revoke_subject(subject: str, reason: str) -> None:
    """Revoke SUBJECT: a key's fingerprint, an artifact's digest, or an artifact, a file or a URL.

    Signatures of a revoked key count for nothing, and it cannot be trusted again by mistake: what it alone signed does
    not run. What enough other keys that count signed, too, still runs; `pyc verify` names the revoked signature. A
    revoked artifact never runs, whoever signed it: revoke those, too, that a stolen key signed and you do not trust.
    The digest of an artifact, header: and 64 hex digits, is in `pyc verify --json`; that of sha256sum is another, and
    is refused. Another machine learns of what is revoked by `pyc trust announce`.
    """
    from pyc.runtime.artifact.trust.revocations import revoke

    found = revoke(_subject(subject), reason)
    say(f"{found.shown} is revoked {found}")


@command.command("restore", short_help="Undo a revocation here.")
@click.argument("subject")
def restore_subject(subject: str) -> None:
    """Undo the revocation of SUBJECT, a fingerprint, a digest or an artifact, here.

    What this machine's policy revokes is refused: take it out there.
    """
    from pyc.runtime.artifact.trust.counting_keys import require_not_revoked_by_policy
    from pyc.runtime.artifact.trust.policy import machine_policy
    from pyc.runtime.artifact.trust.revocations import restore
    from pyc.runtime.artifact.trust.subjects import is_bare_digest

    if not is_bare_digest(subject) or os.path.isfile(subject):  # such as were revoked by what a file has stand so here
        subject = _subject(subject)
    require_not_revoked_by_policy(subject, machine_policy())
    say(f"{restore(subject).shown} is revoked no more")


@command.command("announce", short_help="Write a signed text about keys for other machines.")
@click.option("-o", "--output", type=PATH_TEXT, required=True, metavar="FILE", help="The file of the announcement.")
@click.option("--trust", "trusted", multiple=True, metavar="KEY", help="Trust this public key: a line, or a file.")
@click.option("--expire", "expired", multiple=True, metavar="FINGERPRINT=DATE", help="A key's last day.")
@click.option("--revoke", "revoked", multiple=True, metavar="SUBJECT", help="A fingerprint, a digest or an artifact.")
@click.option("--reason", default="", help="Why it is revoked.")
@click.option(
    "--until", type=DAY, metavar="DATE", help="The last day on which this may be applied.  [default: in 90 days]"
)
@click.option("--name", default="default", show_default=True, help="The key of this machine's store that signs.")
@click.option("--key", "file", metavar="FILE", help="The key in this file instead.")
@click.option("--force", is_flag=True, help="Replace a FILE that is there.")
def announce(
    output: str,
    trusted: tuple[str, ...],
    expired: tuple[str, ...],
    revoked: tuple[str, ...],
    reason: str,
    until: "date | None",
    name: str,
    file: str | None,
    force: bool,
) -> None:
    """Write a signed text for other machines: keys to trust, keys that expire, what is revoked.

    \b
    pyc trust announce -o 2027.update --trust new.pub --expire 9f86d081884c7d65=2027-03-31

    They apply it with `pyc trust apply`, if they trust the key that signed it. A key to trust goes with the earliest
    last day that holds for it here; one that expired or was revoked here is refused.
    """
    from pyc.commands.signing_key import require_one_key
    from pyc.compiler.files.staging import StagedFile
    from pyc.runtime.artifact.trust.counting_keys import announceable
    from pyc.runtime.artifact.trust.key_sources import choose_key
    from pyc.runtime.artifact.trust.keys import public_key_of
    from pyc.runtime.artifact.trust.policy import DEFAULT, machine_policy
    from pyc.runtime.artifact.trust.subjects import require_fingerprint
    from pyc.runtime.artifact.trust.updates import Update, write_update
    from pyc.runtime.host.output_file import OutputFile, output_path

    require_one_key(file)
    if not (trusted or expired or revoked):
        raise click.UsageError("say what to announce: --trust, --expire or --revoke")
    require_to_come(until, "--until")
    days = []
    for entry in expired:
        fingerprint, _, day = entry.partition("=")
        subject = require_fingerprint(fingerprint)
        try:
            last_day = DAY.convert(day, None, None)
        except click.BadParameter as error:
            raise click.BadParameter(f"{error.message}, behind FINGERPRINT=", param_hint="'--expire'") from error
        days.append((subject, last_day))
    given = tuple(public_key_of(key) for key in trusted)
    policy = machine_policy() if given else DEFAULT  # one that cannot be read hinders no revocation
    update = Update(
        trust=tuple(announceable(each, policy) for each in given),
        expire=tuple(days),
        revoke=tuple((_subject(subject), reason) for subject in revoked),
        until=until,
    )
    key = choose_key(name, file, create=False)
    read = [(str(key.file), "the key that signs"), *((each, "what is announced") for each in (*trusted, *revoked))]
    sources = tuple((path, role) for path, role in read if os.path.isfile(path))  # a line may be no name of a file
    target = OutputFile(output_path(output), sources, force=force, what="an announcement")
    target.check()
    text = write_update(update, key.key)
    with StagedFile(target.path, allowed=target.check) as staged:
        staged.write(text.encode())
        staged.publish()
    say(f"wrote {target.path}")
    for sent in (each for each in update.trust if each not in given):
        say(f"  key {sent.fingerprint} until {sent.expires}, its last day here")


@command.command("apply", short_help="Do what an announcement of a trusted key says.")
@click.argument("file", type=click.Path(path_type=Path, readable=False))
def apply(file: Path) -> None:
    """Do what an announcement says, if a key that is trusted here signed it.

    Where a key of it counts for nothing by this machine's policy, or is written in a way that is refused, all else is
    done, and the exit code is 8.
    """
    from pyc.runtime.artifact.trust.keys import read_small_text
    from pyc.runtime.artifact.trust.updates import MAX_BYTES, apply_update, keys_without_effect, parse_update
    from pyc.runtime.errors import ArtifactError

    update = parse_update(read_small_text(file, MAX_BYTES, is_given=True), str(file))
    for line in apply_update(update, str(file)) or ["nothing new"]:
        say(line)
    if without := keys_without_effect(update):
        raise ArtifactError(f"{file}: applied, but {'; '.join(without)}")


def _subject(text: str) -> str:
    """The fingerprint or digest, without prefix, that a word of the user stands for, which may be an artifact."""
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.subjects import named_subject
    from pyc.runtime.sources.places import scheme_of

    is_meant_as_file = text.endswith(".pyca") or (os.sep in text and ":" not in text)  # a mistyped one, say
    if not (scheme_of(text) or is_meant_as_file or os.path.isfile(text)):  # also where no file can have that name
        return named_subject(text)
    with open_artifact(text) as artifact:
        return artifact.prelude.header_sha256.hex()
