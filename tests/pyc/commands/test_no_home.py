"""Without a home directory, with one that is not there or is no folder: commands work or say what to set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyc.runtime.host.cache_folder import cache_directory
from pyc.runtime.host.home import find_home_directory

VARIABLES = ("HOME", "PYC_HOME", "PYC_CACHE_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def homeless(monkeypatch):
    """A user whom the system does not list, as in a container: no HOME, and no entry in /etc/passwd."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    def leave():
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("pwd.getpwuid", unknown)
        assert (find_home_directory(), cache_directory()) == (None, None)

    return leave


def test_what_needs_no_home_works(homeless, pyc, make_artifact):
    path = make_artifact()
    homeless()
    for arguments in (["--version"], ["inspect", path], ["verify", path, "--allow-unsigned"], ["--help"]):
        code, out, err = pyc(*arguments)
        assert (code, err) == (0, "")
        assert out


def test_what_needs_keys_says_what_to_set(homeless, pyc, make_artifact):
    path = make_artifact()
    homeless()
    for arguments in (["verify", path], ["run", path, "-p", "hello"], ["trust", "list"], ["keygen"]):
        code, out, err = pyc(*arguments)
        assert 1 <= code < 60, (arguments, code, err)
        assert out == ""
        assert "set PYC_HOME to the folder that holds" in err
        assert len(err.splitlines()) == 1


def test_a_cache_without_a_home_is_the_systems_refusal(homeless, pyc):
    homeless()
    for arguments in (["cache"], ["cache", "prune"]):
        words = "no home directory, and so no cache; set PYC_CACHE_DIR to a folder to have one"
        assert pyc(*arguments) == (74, "", f"pyc: error: {words}\n")


def test_a_build_says_so_before_it_reads_weights(homeless, pyc, tiny_checkpoint, tmp_path):
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {tiny_checkpoint('llama')}\n")
    homeless()
    code, _, _ = pyc("plan", recipe)
    assert code == 0
    code, out, err = pyc("build", recipe, "--no-cache")
    assert (code, out) == (8, "")
    assert "set PYC_HOME to the folder that holds" in err
    assert "writing weights" not in err and "hashing" not in err


@pytest.mark.parametrize("home", ["missing", "a file", "/dev/null", "", "relative"])
def test_a_home_that_is_none(home, pyc, make_artifact, tmp_path, monkeypatch):
    path = make_artifact()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / home) if home in ("missing", "a file") else home)
    monkeypatch.chdir(tmp_path)
    code, _, err = pyc("inspect", path)
    assert (code, err) == (0, "")
    code, _, err = pyc("verify", path)
    assert 1 <= code < 60 and "internal" not in err
    if home in ("a file", "/dev/null", ""):
        assert find_home_directory() is None
        code, _, err = pyc("keygen")
        assert code == 8
        assert "set PYC_HOME" in err
    assert not (tmp_path / ".config").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's identity takes root")
def test_a_bare_uid_with_nothing_that_it_may_write(make_artifact, tmp_path):
    """Code of another user may not be able to import pyc from here, so a child changes its user after importing."""
    path = make_artifact()
    public = tmp_path / "public.pyca"
    shutil.copy(path, public)
    code = (
        "import os, sys, pyc.cli, pyc.streams, pyc.commands.verify, pyc.commands.keygen\n"
        "import pyc.runtime.artifact.reader\n"
        "import pyc.runtime.artifact.trust.decision, pyc.runtime.artifact.trust.key_sources\n"
        "import nacl.signing, nacl.exceptions, encodings.idna\n"
        f"fd = os.open({str(public)!r}, os.O_RDONLY)\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "verdict = pyc.cli.main(['verify', f'/proc/self/fd/{fd}'])\n"
        "print(verdict, pyc.cli.main(['keygen']))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "HOME": "/root"}, capture_output=True, text=True, check=False
    )
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "0" not in done.stdout.split()
    assert Path(public).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's identity takes root")
def test_a_home_that_one_may_not_enter_is_none(tmp_path):
    """As with HOME=/root and a bare uid: no home for keys, caches and logins, and no error of the system."""
    (tmp_path / "locked").mkdir(mode=0o700)
    code = (
        "import os, sys, pyc.cli, pyc.streams, pyc.commands.doctor, pyc.commands.trust, pyc.commands.keygen\n"
        "import pyc.runtime.sources.registry_session as session, pyc.runtime.sources.credentials as credentials\n"
        "from pyc.runtime.sources.address import parse_address\n"
        "from pyc.runtime.host.home import find_home_directory\n"
        "from pyc.runtime.host.cache_folder import cache_directory\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "address = parse_address('https://host/m.pyca')\n"
        "print(find_home_directory(), cache_directory())\n"
        "print(credentials.authorization(address), session.logged_in(address))\n"
        "os.environ |= {'NETRC': os.environ['HOME'] + '/n', 'REGISTRY_AUTH_FILE': os.environ['HOME'] + '/a'}\n"
        "for ask in (credentials.authorization, session.logged_in):\n"
        "    try: ask(address)\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "print(pyc.cli.main(['trust', 'list']), pyc.cli.main(['cache']))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    environment |= {"HOME": str(tmp_path / "locked")}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["None None", "None None", "FetchError", "FetchError", "8 74"], done
    assert "set PYC_HOME" in done.stderr and "set PYC_CACHE_DIR" in done.stderr


@pytest.mark.parametrize("place", ["link", "home/trusted"])
def test_a_link_into_a_folder_that_one_may_not_enter(place, pyc, make_artifact, tmp_path, monkeypatch):
    """As the place for keys or as the store within it: commands say so with a remedy, and doctor has a finding."""
    path = make_artifact()
    (tmp_path / "home").mkdir()
    link = tmp_path / place
    link.symlink_to(tmp_path / "locked" / "keys")
    real = os.stat

    def stat(path, **options):
        if isinstance(path, str | Path) and (Path(path) == link or link in Path(path).parents):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setenv("PYC_HOME", str(tmp_path / place.split("/")[0]))
    monkeypatch.setattr("os.stat", stat)
    says = f"{link} cannot be entered" if place == "link" else f"{link}: cannot be read: not a folder"
    for arguments, expected in ((("trust", "list"), 8), (("keygen",), 8), (("verify", path), 15)):
        code, out, err = pyc(*arguments)
        assert (code, out, err.count("\n")) == (expected, "", 1), (arguments, err)
        assert says in err and "set PYC_HOME to a" in err
    code, out, err = pyc("doctor")
    assert (code, err, says in out) == (1, "", True), out
