"""A private key that another program keeps: of a cloud's key management, an HSM, an agent. $PYC_SIGNER is its command.

    COMMAND public-key      prints the key's line: pyc-ed25519 <base64> <comment>
    COMMAND sign            reads a message from standard input, and prints the base64 of its ed25519 signature

The command is run without a shell, and without the variables that name a signing key: one that calls pyc itself means a
key of its own, where the variable would start it again, and again. What it prints is checked: a wrong signature is an
error here, not for those who get the artifact.
"""

import base64
import os
import selectors
import shlex
import subprocess
import time

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.keys import SigningKey, is_signed, parse_public_key
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.memory_file import memory_file
from pyc.runtime.host.signal_handlers import unless_signalled

VARIABLE = "PYC_SIGNER"
_KEPT_FROM_IT = (VARIABLE, "PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE")
TIMEOUT_SECONDS = 120
MAX_OUTPUT_BYTES = 4096
MAX_COMPLAINT_BYTES = 300
LOOK_SECONDS = 0.1
"""How long nothing is printed before one looks whether the process has ended."""
PIPE_BYTES = 1 << 20
"""What is read at once: more than a pipe holds."""


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
        given = memory_file("message")
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"cannot be run: {error.strerror}") from error
    environment = {name: value for name, value in os.environ.items() if name not in _KEPT_FROM_IT}
    try:
        os.write(given, message)
        os.lseek(given, 0, os.SEEK_SET)
        with subprocess.Popen(
            words, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            try:
                printed, complaint = _listen(process)
            except BaseException:
                process.kill()
                raise
    except unless_signalled(OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArtifactError(f"cannot be run: {reason}") from error
    finally:
        os.close(given)
    if process.returncode:
        said = "".join(letter for letter in complaint.decode("utf-8", "replace") if letter.isprintable())
        raise ArtifactError(f"ended with exit code {process.returncode}{f': {said}' if said else ''}")
    return printed


def _listen(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What a process prints until it ends, and the end of its complaint. Raises ArtifactError when that takes too long,
    and for more than MAX_OUTPUT_BYTES.

    Its end counts, not that of its outputs: it may leave a helper behind that holds them, as ssh's ControlPersist does.
    """
    deadline_s = time.monotonic() + TIMEOUT_SECONDS
    assert process.stdout is not None and process.stderr is not None
    printed, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            has_ended = process.poll() is not None  # before it is read: all that it has printed is there then
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 and not has_ended:
                break
            for key, _ in selector.select(0 if has_ended else min(left_s, LOOK_SECONDS)):
                data = os.read(key.fd, PIPE_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
            if len(printed) > MAX_OUTPUT_BYTES:
                raise ArtifactError(f"printed more than {MAX_OUTPUT_BYTES} bytes, which no key or signature has")
            del complaint[:-MAX_COMPLAINT_BYTES]
            if has_ended:
                break
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ArtifactError(f"took more than {TIMEOUT_SECONDS} s") from None
    return bytes(printed), bytes(complaint)
