"""pyc/commands/opening.py: verification begins at once, and the collector is as it was afterwards."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyc.commands.opening import open_ahead
from pyc.runtime.errors import ArtifactError
from pyc.runtime.model import load


def test_the_artifact_is_opened_for_load(decoder_artifact):
    assert gc.isenabled()
    with open_ahead(decoder_artifact) as artifact:
        assert not gc.isenabled()
        model = load(artifact, threads=1)
        assert artifact.blob("tokenizer.json")  # load leaves it open
    assert gc.isenabled()
    with model:
        assert model.logits([1, 2]).shape == (2, model.info.vocab_size)


@pytest.mark.parametrize("arguments", ["inspect -", "bench -", "eval - --text t", "tune -", "diff - -", "install -"])
def test_commands_that_read_no_standard_input_say_which_do(arguments, pyc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("some text")
    expected = "pyc: error: -: no such file; pyc run, embed, verify and pull alone read standard input as `-`"
    code, out, err = pyc(*arguments.split())
    assert (code, out, err) == (10, "", f"{expected}: save it in a file first\n")


def test_an_error_turns_the_collector_on_again(tmp_path):
    with pytest.raises(ArtifactError), open_ahead(tmp_path / "none.pyca"):
        raise AssertionError("not reached")
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(ArtifactError), open_ahead(tmp_path / "none.pyca"):
            raise AssertionError("not reached")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_run_starts_no_threads_of_blas(decoder_artifact):
    """numpy's BLAS starts a thread a core when it is imported; they spin, and the end of the process joins them."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    # Threads that have verified the artifact are listed for a moment after they have been joined; those of a BLAS stay.
    code = (
        "import sys; from pyc.cli import main; main(sys.argv[1:]); import numpy, os, time; "
        "sys.exit(min(len(os.listdir('/proc/self/task')) for _ in range(20) if not time.sleep(0.01)))"
    )
    command = (sys.executable, "-c", code, "run", str(decoder_artifact), "-p", "the", "-n", "1", "--threads", "1")
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    one = subprocess.run(command, env={**environment, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert done.returncode == one.returncode


NUMPY_WATCHED = """
import os, sys
from pyc.cli import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and "OPENBLAS_NUM_THREADS" not in os.environ:
            sys.exit(f"numpy before its BLAS was told of threads: {sys.argv[1:]}")

sys.meta_path.insert(0, Watch())
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["inspect"], ["bench", "-p", "1", "-n", "1", "-r", "1"], ["tune", "--force", "--isa", "none"], ["run"]]
)
def test_numpy_begins_no_threads(words, decoder_artifact):
    """OpenBLAS sends the process a SIGINT where the system has no more threads."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", NUMPY_WATCHED, words[0], str(decoder_artifact), *words[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "BLAS" not in done.stderr
    assert done.returncode == {"run": 2, "tune": 9}.get(words[0], 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["build", "absent.yaml"], ["plan", "absent.yaml"], ["init", "absent"]], ids=str)
def test_numpy_begins_no_threads_where_an_artifact_is_made(words, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", NUMPY_WATCHED, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "absent" in done.stderr
    assert "BLAS" not in done.stderr


UNREADABLE = (
    *("inspect {}", "verify {}", "run {} -p a", "embed {} a", "eval {} --text text", "bench {}", "tune {}"),
    *("diff {} {}", "install {}", "attest {} --format spdx", "push {} oci://127.0.0.1:1/a:1", "bundle {} -o made"),
    *("sign {}", "attach {} model.yaml -o made", "export {} made --to onnx", "trust revoke {}"),
)


@pytest.mark.parametrize("command", [*UNREADABLE, "report {} CHECKPOINT"])
def test_an_artifact_that_this_user_may_not_read_is_one_error_of_every_command(
    command, pyc, make_artifact, tmp_path, monkeypatch
):
    """As with the mode 000; root may read everything, so the system's refusal is put in its place."""
    artifact = make_artifact()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a text")
    opened, may = os.open, os.access

    def refuse(path, *arguments, **options):
        if str(path) == str(artifact):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("os.access", lambda path, *mode, **more: str(path) != str(artifact) and may(path, *mode))
    command = command.replace("CHECKPOINT", str(Path(__file__).parents[3] / "models" / "demo" / "checkpoint"))
    code, out, err = pyc(*command.replace("{}", str(artifact)).split())
    assert (code, out, err.count("\n")) == (8, "", 1), err
    assert f"{artifact}: cannot be opened: Permission denied; let this user read it" in err
    assert not (tmp_path / "made").exists()
