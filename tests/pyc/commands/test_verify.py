"""`pyc verify`: the exit code is the verdict, and a negative verdict says nothing on standard output."""

import pytest

from pyc.runtime import trust


def test_intact_and_trusted(pyc, make_artifact):
    path = make_artifact()
    code, out, err = pyc("verify", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: intact, ")
    assert out.endswith(f"signed by trusted key {trust.signing_key().public.fingerprint} default\n")


@pytest.mark.parametrize("options", [[], ["--allow-unsigned"]])
@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (0, "not a pyc artifact"),
        (30, "header size"),
        (40, "signature of key"),
        (70, "signature of key"),
        (130, "signature of key"),
        (300, "header altered"),
        (4000, "padding after the header"),
        (4096 + 5, "chunk 0 (w): altered"),
        (4096 + 40, "chunk 0 (w): altered: the 4066 bytes of padding"),
        (-1, "chunk 1 (lib.so): altered"),
    ],
)
def test_altered(byte, message, options, pyc, make_artifact):
    path = make_artifact()
    data = bytearray(path.read_bytes())
    assert len(data) == 2 * 4096 + 9
    data[byte] ^= 0x10
    path.write_bytes(data)
    code, out, err = pyc("verify", path, *options)
    assert (code, out) == (8, "")
    assert err.startswith(f"pyc: error: {path}: ")
    assert message in err


def test_unsigned(pyc, make_artifact):
    path = make_artifact(signed=False)
    code, out, err = pyc("verify", path)
    assert (code, out) == (8, "")
    assert err.startswith(f"pyc: error: {path}: not signed")
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, err) == (0, "")
    assert out.endswith("not signed\n")


def test_signed_by_a_stranger(pyc, make_artifact):
    path = make_artifact()
    fingerprint = trust.signing_key().public.fingerprint
    trust.remove_trusted(fingerprint)
    code, out, err = pyc("verify", path)
    assert (code, out) == (8, "")
    assert f"signed by key {fingerprint}, which is not trusted here" in err
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, err) == (0, "")
    assert out.endswith(f"signed by key {fingerprint}, trust not checked\n")


@pytest.mark.parametrize("size", [0, 10, 100, 3000, 5000, -1])
def test_cut(size, pyc, make_artifact):
    path = make_artifact()
    path.write_bytes(path.read_bytes()[:size])
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, out) == (8, "")
    assert "too short" in err or "truncated" in err


def test_no_such_file(pyc, tmp_path):
    code, out, err = pyc("verify", tmp_path / "none.pyca")
    assert (code, out) == (8, "")
    assert "cannot be opened: No such file or directory" in err
