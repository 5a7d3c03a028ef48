"""runtime/artifact/trust/external_signer.py: a key that another program keeps."""

import os
import signal
import sys
from pathlib import Path

import pytest

from pyc.runtime.artifact.format import Prelude
from pyc.runtime.artifact.trust.external_signer import external_key
from pyc.runtime.artifact.trust.key_sources import choose_key
from pyc.runtime.artifact.trust.keys import verify_signature
from pyc.runtime.errors import ArtifactError

PRELUDE = Prelude(0, 10, bytes(32)).pack()
# Holds its key in itself, as none should.
KEEPER = """
import base64, sys
from nacl.signing import SigningKey
key = SigningKey(bytes(range(32)))
if sys.argv[-1] == "public-key":
    print("pyc-ed25519", base64.b64encode(bytes(key.verify_key)).decode(), "kms")
else:
    print(base64.b64encode(key.sign(sys.stdin.buffer.read()).signature).decode())
"""


@pytest.fixture
def keeper(tmp_path: Path):
    """Make the command of a program that keeps a key, with this replaced in it."""

    def make(old: str = "", new: str = "") -> str:
        (tmp_path / "keep er.py").write_text(KEEPER.replace(old, new) if old else KEEPER)
        return f"'{sys.executable}' '{tmp_path}/keep er.py' --key-id 5"

    return make


def test_it_signs(keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_SIGNER", keeper())
    chosen = choose_key()
    assert (chosen.file, chosen.is_new, chosen.key.public.comment) == (None, False, "kms")
    verify_signature(chosen.key.sign(PRELUDE), PRELUDE)


def test_one_that_calls_pyc_is_not_called_again(keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees no variable that names a key, so that pyc takes the one that it is told."""
    seen = "seen = [name for name in os.environ if name.startswith('PYC_SIGN')]\nif seen: sys.exit(f'sees {seen}')"
    command = keeper("import base64, sys", f"import base64, os, sys\n{seen}\nassert 'PYC_HOME' in os.environ")
    for variable in ("PYC_SIGNER", "PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE"):
        monkeypatch.setenv(variable, command)
    monkeypatch.setenv("PYC_HOME", "/somewhere")
    verify_signature(external_key(command).sign(PRELUDE), PRELUDE)


def test_one_source_of_keys(keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_SIGNER", keeper())
    monkeypatch.setenv("PYC_SIGNING_KEY", "x")
    with pytest.raises(ArtifactError, match="PYC_SIGNING_KEY and PYC_SIGNER are both set"):
        choose_key()
    monkeypatch.delenv("PYC_SIGNING_KEY")
    monkeypatch.setenv("PYC_SIGNER", "")
    with pytest.raises(ArtifactError, match="is set, but empty"):
        choose_key()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sys.stdin.buffer.read()", "b'something else'", "printed no signature of key"),
        (".signature)", ".signature[:9])", "printed no signature of key"),
        (".signature).decode()", ".signature)", "expected the base64 of a signature"),
        ('"pyc-ed25519"', '"ssh-ed25519"', "public-key`: not a public key"),
        ("import base64, sys", "import sys; sys.exit('no\\x1b[2J such key')", "ended with exit code 1: no.2J such key"),
        ('"kms")', '"kms" * 4096)', "printed more than 4096 bytes"),
        ("import base64, sys", "import os\nwhile True: os.write(1, bytes(65536))", "printed more than 4096 bytes"),
        ("import base64, sys", "import os\nfor _ in range(99): os.write(2, b'x' * 65536)\nos._exit(3)", "3: x{300}$"),
    ],
)
def test_one_that_misbehaves(old: str, new: str, message: str, keeper) -> None:
    with pytest.raises(ArtifactError, match=message):
        external_key(keeper(old, new)).sign(PRELUDE)


def test_one_that_never_ends(keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it holds its outputs open or has closed them."""
    monkeypatch.setattr("pyc.runtime.artifact.trust.external_signer.TIMEOUT_SECONDS", 1)
    for closing in ("", "os.close(1); os.close(2); "):
        with pytest.raises(ArtifactError, match="took more than 1 s"):
            external_key(keeper("import base64, sys", f"import os, time\n{closing}time.sleep(60)"))


@pytest.mark.parametrize("closed", ["", ", stdout=subprocess.DEVNULL"])
def test_one_that_leaves_a_helper_behind(closed: str, keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper holds standard error, or both outputs, until it is killed here."""
    monkeypatch.setattr("pyc.runtime.artifact.trust.external_signer.TIMEOUT_SECONDS", 20)
    pids = tmp_path / "pids"
    helper = f"helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']{closed})"
    note = f"print(helper.pid, file=open({str(pids)!r}, 'a'))"
    command = keeper("import base64, sys", f"import base64, subprocess, sys\n{helper}\n{note}")
    try:
        verify_signature(external_key(command).sign(PRELUDE), PRELUDE)
    finally:
        for pid in pids.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "message"),
    [("'", "not a command"), (" ", "is set, but empty"), ("/no/such/program", "cannot be run: No such file")],
)
def test_a_command_that_is_none(command: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        external_key(command)
