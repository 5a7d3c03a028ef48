"""Logins of `docker login` and `podman login`, and the programs that these name as helpers."""

import base64
import json
import re
import time

import pytest

from pyc.runtime.sources import logins
from pyc.runtime.sources.address import parse_address
from pyc.runtime.sources.logins import logged_in

REGISTRY = parse_address("https://registry.example:5000/")
ANSWERS = """cat <<'EOF'
{"ServerURL": "x", "Username": "ada", "Secret": "s3cret"}
EOF"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder for a config.json, and a folder `bin` alone in the PATH."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path


def helper(place, name, body):
    program = place / "bin" / f"docker-credential-{name}"
    program.write_text(f'#!/bin/sh\ncat > {place}/asked-{name}\necho "$@" >> {place}/asked-{name}\n{body}\n')
    program.chmod(0o755)


def config(place, **fields):
    (place / "config.json").write_text(json.dumps(fields))


def header(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_store_is_asked_for_the_host(place):
    helper(place, "desktop", ANSWERS)
    config(place, auths={"registry.example:5000": {}}, credsStore="desktop")
    assert logged_in(REGISTRY) == header("ada", "s3cret")
    assert (place / "asked-desktop").read_text() == "registry.example:5000get\n"


def test_the_helper_of_a_host_comes_first(place):
    helper(place, "desktop", ANSWERS)
    helper(place, "ecr-login", ANSWERS.replace("ada", "AWS"))
    config(place, credHelpers={"registry.example:5000": "ecr-login"}, credsStore="desktop")
    assert logged_in(REGISTRY) == header("AWS", "s3cret")
    assert logged_in(parse_address("https://other.example/")) == header("ada", "s3cret")


def test_where_a_helper_knows_nothing_the_file_counts(place):
    helper(place, "pass", "echo credentials not found in native keychain\nexit 1")
    auth = base64.b64encode(b"eve:other").decode()
    config(place, auths={"registry.example:5000": {"auth": auth}}, credsStore="pass")
    assert logged_in(REGISTRY) == header("eve", "other")
    config(place, auths=None, credHelpers=None, credsStore="pass")
    assert logged_in(REGISTRY) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'the keychain is locked\nmore' ; exit 3", r"ended with exit code 3: the keychain is locked"),
        ("echo s3cret", "answers no JSON with Username and Secret"),
        ("echo '{\"Username\": \"ada\"}'", "answers no JSON with Username and Secret"),
        (ANSWERS.replace("ada", "<token>"), "has an identity token, .* access token"),
        ("exec sleep 30", r"took more than 0\.5 s"),
    ],
)
def test_a_helper_that_is_no_good_is_told(body, message, place, monkeypatch, caplog):
    """And the registry is asked without: it may let anybody read."""
    monkeypatch.setattr(logins, "HELPER_S", 0.5)
    helper(place, "desktop", body)
    config(place, credsStore="desktop")
    assert logged_in(REGISTRY) is None
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"the credential helper docker-credential-desktop, which {place / 'config.json'} names, ")
    assert re.search(rf"{message}; asking registry\.example:5000 without it$", said)
    assert "s3cret" not in said


def test_the_end_of_a_helper_counts_and_it_sees_no_signing_key(place, monkeypatch, caplog):
    """It may leave a program behind that holds its output, as an agent does."""
    monkeypatch.setenv("PYC_SIGNING_KEY", "a key")
    helper(place, "pass", f'sleep 20 &\nenv > "{place}/seen"\n{ANSWERS}')
    config(place, credsStore="pass")
    began_s = time.monotonic()
    assert logged_in(REGISTRY) == header("ada", "s3cret")
    assert time.monotonic() - began_s < 15 and not caplog.text
    assert "PATH=" in (place / "seen").read_text() and "PYC_SIGNING_KEY" not in (place / "seen").read_text()


def test_a_helper_that_fails_without_a_word(place, caplog):
    helper(place, "desktop", "exit 4")
    config(place, credsStore="desktop")
    assert logged_in(REGISTRY) is None
    assert "names, ended with exit code 4; asking" in caplog.text


@pytest.mark.parametrize("name", ["../../bin/sh", "a b", "", 5, ["desktop"], {"a": 1}, "-x"])
def test_what_is_no_name_of_a_helper(name, place, caplog):
    config(place, credHelpers={"registry.example:5000": name})
    assert logged_in(REGISTRY) is None
    if not name:
        assert not caplog.text
        return
    assert "config.json: names the credential helper" in caplog.text and "expected a name such as" in caplog.text


def test_a_helper_that_is_not_there(place, caplog):
    auth = base64.b64encode(b"eve:other").decode()
    config(place, auths={"registry.example:5000": {"auth": auth}}, credsStore="desktop")
    assert logged_in(REGISTRY) == header("eve", "other")
    assert "names, is no program in PATH; asking registry.example:5000 without it" in caplog.text
    (place / "bin" / "docker-credential-desktop").write_text("#!/no/such/interpreter\n")
    (place / "bin" / "docker-credential-desktop").chmod(0o755)
    assert logged_in(REGISTRY) == header("eve", "other")
    assert "cannot be run: No such file" in caplog.text
