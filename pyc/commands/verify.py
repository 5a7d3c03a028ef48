"""`pyc verify`: the exit code is the verdict."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyc.runtime.artifact.trust import PublicKey
    from pyc.runtime.errors import PycError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `--json` prints. `verdict` is "intact", "missing", "damaged", "unsigned" or "untrusted", `code` the exit
    code; `signer` is a fingerprint, `trusted` None where trust was not asked for or not reached."""

    path: str
    verdict: str
    code: int
    size_bytes: int | None = None
    chunks: int | None = None
    signer: str | None = None
    comment: str | None = None
    trusted: bool | None = None
    error: str | None = None


@click.command("verify")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--key", metavar="KEY", help="Accept this public key alone, a line or a file, whatever is trusted here.")
@click.option("--allow-unsigned", is_flag=True, help="Check integrity only: no signature or trusted key needed.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, a negative one too.")
def command(artifact: Path, key: str | None, allow_unsigned: bool, as_json: bool) -> None:
    """Check every byte of ARTIFACT, and that a trusted key signed it.

    Exit code 0: intact and trusted. 8: malformed, cut or altered. 10: not there. 11: not signed. 12: signed by a key
    that is not trusted. The bytes are checked before the signer is: 11 and 12 say that all of them are intact.
    """
    from pyc.runtime.errors import PycError
    from pyc.streams import courtesy

    if key is not None and allow_unsigned:
        raise click.UsageError("give --key or --allow-unsigned, not both")
    expected = _public_key(key) if key is not None else None
    refusal: PycError | None
    try:
        verdict, refusal = _verify(artifact, expected, allow_unsigned)
    except PycError as error:
        verdict, refusal = _negative(artifact, error), error
    if as_json:
        click.echo(json.dumps(asdict(verdict), indent=2))
    if refusal is not None:
        raise refusal
    if as_json:
        return
    size = f"{verdict.size_bytes:,} bytes in {verdict.chunks} chunks"
    courtesy(f"{artifact}: intact, {size}, {_signer_text(verdict)}")


def _verify(
    artifact: Path, expected: "PublicKey | None", allow_unsigned: bool
) -> "tuple[Verdict, PycError | None]":
    """Return the verdict on an artifact whose bytes are intact, and the error where its signer does not pass.

    Raises ArtifactError for one that is missing or damaged.
    """
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust import PublicKey, require_signed_by, require_trusted
    from pyc.runtime.errors import UnsignedArtifactError, UntrustedArtifactError

    with open_artifact(artifact, mode="pread") as opened:  # a mapped file that is cut meanwhile would end the process
        opened.verify_all()
        where, record = str(artifact), opened.signature
        signer: PublicKey | None = None if record is None else PublicKey(record.public_key)
        trusted = None
        refusal: PycError | None = None
        try:
            if expected is not None:
                require_signed_by(record, expected, where)
                signer, trusted = expected, True
            elif not allow_unsigned:
                signer, trusted = require_trusted(record, where), True
        except (UnsignedArtifactError, UntrustedArtifactError) as error:
            refusal = error
        verdict = Verdict(where, "intact", 0, trusted=trusted) if refusal is None else _negative(artifact, refusal)
        verdict = replace(
            verdict,
            size_bytes=opened.size_bytes,
            chunks=len(opened.header.chunks),
            signer=signer.fingerprint if signer else None,
            comment=(signer.comment or None) if signer else None,
        )
        return verdict, refusal


def _negative(artifact: Path, error: "PycError") -> Verdict:
    from pyc.runtime.errors import MissingArtifactError, UnsignedArtifactError, UntrustedArtifactError

    names: dict[type[PycError], str] = {
        MissingArtifactError: "missing",
        UnsignedArtifactError: "unsigned",
        UntrustedArtifactError: "untrusted",
    }
    verdict = names.get(type(error), "damaged")
    trusted = False if verdict in ("unsigned", "untrusted") else None
    return Verdict(str(artifact), verdict, error.exit_code, trusted=trusted, error=str(error))


def _public_key(text: str) -> "PublicKey":
    from pyc.runtime.artifact.trust import KEY_TYPE, parse_public_key, read_public_key

    return parse_public_key(text) if text.startswith(f"{KEY_TYPE} ") else read_public_key(Path(text))


def _signer_text(verdict: Verdict) -> str:
    if verdict.signer is None:
        return "not signed"
    if verdict.trusted:
        return f"signed by trusted key {verdict.signer} {verdict.comment or ''}".rstrip()
    return f"signed by key {verdict.signer}, trust not checked"
