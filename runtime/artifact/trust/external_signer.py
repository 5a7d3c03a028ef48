"""A private key that another program keeps: of a cloud's key management, an HSM, an agent. $PYC_SIGNER is its command.

    COMMAND public-key      prints the key's line: pyc-ed25519 <base64> <comment>
    COMMAND sign            reads a message from standard input, and prints the base64 of its ed25519 signature

What it prints is checked: a wrong signature is an
error here, not for those who get the artifact.
"""

import base64
import shlex

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.keys import SigningKey, is_signed, parse_public_key
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.asked_program import NoAnswerError, ask

VARIABLE = "PYC_SIGNER"
TIMEOUT_SECONDS = 120
MAX_OUTPUT_BYTES = 4096


def external_key(command: str) -> SigningKey:
    """The key that the command keeps. Raises ArtifactError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ArtifactError(f"${VARIABLE}: not a command: {error}") from error
    if not words:
        raise ArtifactError(f"${VARIABLE}: is set, but empty; give it a command, or unset it")
    try:
        public = parse_public_key(_run([*words, "public-key"], b"").decode("utf-8", "replace"))
    except ArtifactError as error:
        raise ArtifactError(f"${VARIABLE}: `{words[0]} ... public-key`: {error}") from error

    def sign(message: bytes) -> bytes:
        where = f"${VARIABLE}: `{words[0]} ... sign`"
        try:
            signature = base64.b64decode(_run([*words, "sign"], message).strip(), validate=True)
        except ArtifactError as error:
            raise ArtifactError(f"{where}: {error}") from error
        except ValueError:
            raise ArtifactError(f"{where}: expected the base64 of a signature on standard output") from None
        if len(signature) != 64 or not is_signed(SignatureRecord(public.raw, signature), message):
            raise ArtifactError(f"{where}: printed no signature of key {public.fingerprint} over what it was given")
        return signature

    return SigningKey(public, sign)


def _run(words: list[str], message: bytes) -> bytes:
    """What the command prints. Raises ArtifactError, without the command's name."""
    try:
        answer = ask(words, message, TIMEOUT_SECONDS, MAX_OUTPUT_BYTES)
    except NoAnswerError as error:
        raise ArtifactError(str(error)) from error
    if answer.code:
        raise ArtifactError(f"ended with exit code {answer.code}{f': {answer.said}' if answer.said else ''}")
    return answer.printed
