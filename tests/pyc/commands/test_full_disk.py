"""A full disk and exit codes: 8 of an artifact, 74 of any other file that a command writes."""

import errno
import os

import pytest

from pyc.runtime.artifact.trust.key_store import signing_key

HELD_OUT = "the cat sat on the mat; the dog sat on the log\n" * 20


def fill(folder, patch):
    """No byte goes into a file of `folder` any more, as on a full disk; all others are written."""

    def refusing(real):
        def write(descriptor, *arguments):
            if os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}")) == str(folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, *arguments)

        return write

    for name in ("write", "pwrite"):
        patch.setattr(os, name, refusing(getattr(os, name)))


OTHER_FILES = [
    "init {checkpoint} -o {full}/model.yaml",
    "schema -o {full}/recipe.json",
    "schema --of bench -o {full}/bench.json",
    "attest {decoder} --format spdx -o {full}/model.spdx.json",
    "attest {decoder} --format slsa --sign -o {full}/model.intoto.json",
    "diff {decoder} {encoder} --quick --html {full}/diff.html",
    "eval {decoder} --text {text} --context 32 --html {full}/eval.html",
    "report {decoder} {checkpoint} --html {full}/report.html",
    "embed {encoder} a b --npy {full}/vectors.npy",
    "trust announce -o {full}/keys.update --revoke 0123456789abcdef",
]
ARTIFACTS = [
    "build {checkpoint} -o {full}/model.pyca",
    "bundle {decoder} --no-wheels --format tar -o {full}/bundle.tar",
]


@pytest.mark.parametrize(
    ("line", "expected"), [(line, 74) for line in OTHER_FILES] + [(line, 8) for line in ARTIFACTS]
)
def test_the_code_says_whether_an_artifact_is_concerned(
    line, expected, pyc, decoder_artifact, encoder_artifact, tiny_checkpoint, tmp_path, monkeypatch
):
    full, text = tmp_path.resolve() / "full", tmp_path / "text.txt"
    full.mkdir()
    text.write_text(HELD_OUT)
    places = {
        "checkpoint": tiny_checkpoint("llama"),
        "decoder": decoder_artifact,
        "encoder": encoder_artifact,
        "full": full,
        "text": text,
    }
    signing_key()
    command = line.format(**places).split()
    file = next(each for each in command if each.startswith(f"{full}/"))
    with monkeypatch.context() as patch:
        fill(full, patch)
        code, out, err = pyc(*command)
    assert (code, out) == (expected, ""), err
    assert err.splitlines()[-1].startswith(f"pyc: error: {file}: cannot be written: No space left on device")
    assert list(full.iterdir()) == []
    code, _, err = pyc(*command)
    assert (code, [str(each) for each in full.iterdir()]) == (0, [file]), err
