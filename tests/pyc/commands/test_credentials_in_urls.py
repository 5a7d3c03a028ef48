"""A URL that a command cannot use, in whatever place: its password and its signature are in no message.

What a job prints is kept, and read by others. Port 1 of this machine has no server.
"""

import pytest

URLS = [
    "https://user:SECRET@127.0.0.1:1/x.pyca?sig=SECRET",
    "https://user:as/SECRET@127.0.0.1:1/x.pyca#SECRET",
    "oci://user:SECRET@127.0.0.1:1/x:y",
]
COMMANDS = [
    "attach URL model.yaml -o out",
    "attach FILE URL -o out",
    "attest URL --format slsa",
    "bench URL",
    "build URL",
    "build model.yaml -o URL",
    "bundle URL -o out",
    "bundle FILE -o URL --no-wheels",
    "bundle FILE -o out --wheels URL",
    "cache URL",
    "diff FILE URL",
    "diff URL FILE",
    "embed FILE --file URL",
    "eval FILE --text URL",
    "eval URL --text x",
    "export URL --format onnx -o out",
    "init URL",
    "inspect URL",
    "install URL",
    "keygen --name URL",
    "keygen --public --key URL",
    "plan URL",
    "push FILE URL",
    "push URL oci://127.0.0.1:1/a:b",
    "report FILE URL",
    "report URL x",
    "run FILE --prompts URL",
    "run FILE -p x --trust URL",
    "run FILE --isa URL",
    "schema --of URL",
    "sign FILE --key URL",
    "sign URL",
    "trust add URL",
    "trust announce -o URL --revoke aaaaaaaaaaaaaaaa",
    "trust announce -o out --expire URL=2099-01-01",
    "trust announce -o out --trust URL",
    "trust apply URL",
    "trust remove URL",
    "trust revoke URL",
    "tune URL",
    "verify FILE --trust URL",
    "URL",
]
VARIABLES = ["PYC_SIGNER", "PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE", "PYC_TRUST_POLICY"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("line", COMMANDS)
def test_of_an_argument(line, url, pyc, make_artifact, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = {"FILE": make_artifact(), "URL": url, "URL=2099-01-01": f"{url}=2099-01-01"}
    code, out, err = pyc(*(words.get(word, word) for word in line.split()))
    assert code not in (0, 70) and err
    assert "SECRET" not in out + err


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("variable", VARIABLES)
def test_of_a_variable(variable, url, pyc, make_artifact, monkeypatch):
    path = make_artifact()
    monkeypatch.setenv(variable, url)
    code, out, err = pyc("verify" if variable == "PYC_TRUST_POLICY" else "sign", path)
    assert code not in (0, 70) and err
    assert "SECRET" not in out + err
