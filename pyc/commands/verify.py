"""`pyc verify`: the exit code is the verdict."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from pyc.commands.opening import ArtifactPlace
from pyc.commands.screen import SPACES_AND_JOINERS, say_json
from pyc.commands.signers import allow_unsigned_option, require_one_answer, whose_signature_option
from pyc.runtime.text.counted import counted
from pyc.runtime.text.printable import printable

if TYPE_CHECKING:
    from pyc.runtime.errors import PycError
    from pyc.runtime.sources.places import Place


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of an artifact, as `--json` prints it; `refusal` is why it does not count, null where it does."""

    key: str
    comment: str | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `--json` prints. `verdict` is "intact", "missing", "damaged", "unsigned", "untrusted", "unreachable",
    "undecided": the policy, the key store or the .sig is at fault, or "unread": this process has no memory for it.
    `code` is the exit code; `signer` the fingerprint of who signed first, `signatures` all that were looked at,
    `trusted` None where trust was not asked for or not reached. `rule` is the pattern of the rule that held, by
    `policy`, a file; None: one trusted key was asked for. `digest` is what `pyc trust revoke` takes: "header:" and the
    SHA-256 of the header, not of the file. `size_bytes` is None where not all bytes were found to be intact."""

    path: str
    verdict: str
    code: int
    size_bytes: int | None = None
    chunks: int | None = None
    digest: str | None = None
    signer: str | None = None
    comment: str | None = None
    trusted: bool | None = None
    signatures: tuple[Signature, ...] = ()
    policy: str | None = None
    rule: str | None = None
    error: str | None = None


@click.command("verify")
@click.argument("artifact", type=ArtifactPlace(reads_stdin=True))
@whose_signature_option
@allow_unsigned_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, a negative one too.")
def command(artifact: "Place", trust: str | None, allow_unsigned: bool, as_json: bool) -> None:
    """Check every byte of ARTIFACT, a file, a URL or - for standard input, and that a trusted key signed it.

    Exit code 0: intact and trusted. 8: malformed, cut or altered. 9: a stream that memory has no room for. 10: not
    there. 11: not signed. 12: signed by a key that is not trusted, expired or revoked, or by fewer than the policy asks
    for. 14: another machine does not give it. 15: whom this machine trusts cannot be told, as its policy, its key store
    or the .sig is at fault.
    Of a URL all bytes are fetched, whatever the cache has of them.
    The bytes are checked before the signers are: 11 and 12 say that all of them are intact, the message of 15, too.
    """
    from pyc.runtime.artifact.trust.counting_keys import REVOKED
    from pyc.runtime.errors import PycError
    from pyc.streams import courtesy

    require_one_answer(trust, allow_unsigned)
    refusal: PycError | None
    try:
        verdict, refusal = _verify(artifact, trust, allow_unsigned)
    except PycError as error:
        verdict, refusal = _negative(artifact, error), error
    if as_json:
        say_json(asdict(verdict))
    if refusal is not None:
        raise refusal
    if as_json:
        return
    size = f"{verdict.size_bytes:,} bytes in {counted(verdict.chunks or 0, 'chunk')}"
    courtesy(printable(f"{artifact}: intact, {size}, {_signer_text(verdict)}", keep=SPACES_AND_JOINERS))
    for each in verdict.signatures:
        if each.refusal is not None and each.refusal.startswith(REVOKED):
            key = f"{each.key} {each.comment or ''}".rstrip()
            courtesy(printable(f"  signed by key {key} as well, which {each.refusal}; it counts for nothing"))


def _verify(
    artifact: "Place", trust: str | None, allow_unsigned: bool
) -> "tuple[Verdict, PycError | None]":
    """Return the verdict on an artifact whose bytes are intact, and the error where its signers do not pass.

    Raises ArtifactError for one that is missing or damaged, RunError for one that memory has no room for.
    """
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.decision import decide
    from pyc.runtime.artifact.trust.keys import PublicKey
    from pyc.runtime.artifact.trust.policy import trust_of
    from pyc.runtime.artifact.trust.subjects import artifact_digest
    from pyc.runtime.errors import PycError, TrustError

    with open_artifact(artifact, mode="pread") as opened:  # a mapped file that is cut meanwhile would end the process
        opened.verify_all()
        record = opened.signature
        signer = None if record is None else PublicKey(record.public_key)
        verdict = Verdict(str(artifact), "intact", 0)
        refusal: PycError | None = None
        if not allow_unsigned:
            try:
                decision = decide(opened, None if trust is None else trust_of(trust), looks_at_all=True)
            except TrustError as error:
                refusal = TrustError(f"{artifact}: intact, but whether it may run here is not known: {error}")
            except PycError as error:  # its signatures are on another machine
                refusal = error
            else:
                refusal = decision.refusal
                verdict = replace(
                    verdict,
                    trusted=True,
                    signatures=tuple(
                        Signature(each.key.fingerprint, each.key.comment or None, each.refusal)
                        for each in decision.signers
                    ),
                    policy=decision.policy.origin or None,
                    rule=decision.rule.artifacts if decision.rule else None,
                )
                signer = decision.good[0].key if refusal is None else signer
            if refusal is not None:
                negative = _negative(artifact, refusal)
                verdict = replace(negative, signatures=verdict.signatures, policy=verdict.policy, rule=verdict.rule)
        verdict = replace(
            verdict,
            size_bytes=opened.size_bytes,
            chunks=len(opened.header.chunks),
            digest=artifact_digest(opened.prelude.header_sha256),
            signer=signer.fingerprint if signer else None,
            comment=(signer.comment or None) if signer else None,
        )
        return verdict, refusal


def _negative(artifact: "Place", error: "PycError") -> Verdict:
    from pyc.runtime.errors import (
        FetchError,
        MissingArtifactError,
        RunError,
        TrustError,
        UnsignedArtifactError,
        UntrustedArtifactError,
    )

    names: dict[type[PycError], str] = {
        MissingArtifactError: "missing",
        UnsignedArtifactError: "unsigned",
        UntrustedArtifactError: "untrusted",
        FetchError: "unreachable",
        TrustError: "undecided",
        RunError: "unread",
    }
    verdict = next((name for kind, name in names.items() if isinstance(error, kind)), "damaged")
    trusted = False if verdict in ("unsigned", "untrusted") else None
    return Verdict(str(artifact), verdict, error.exit_code, trusted=trusted, error=str(error))


def _signer_text(verdict: Verdict) -> str:
    if verdict.signer is None:
        return "not signed"
    if verdict.trusted:
        good = [each for each in verdict.signatures if each.refusal is None]
        names = ", ".join(f"{each.key} {each.comment or ''}".rstrip() for each in good)
        return f"signed by trusted key{'s' if len(good) > 1 else ''} {names}{_rule_text(verdict)}"
    return f"signed by key {verdict.signer}, trust not checked"


def _rule_text(verdict: Verdict) -> str:
    """Which rule held, where a policy's file has any."""
    if verdict.policy is None:
        return ""
    if verdict.rule is None:
        return f"; no rule of {verdict.policy} fits its name, so that one is enough"
    return f", as the rule for {verdict.rule!a} of {verdict.policy} asks"
