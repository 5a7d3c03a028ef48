"""`pyc doctor`: every line is ok, warn or fail with a remedy, and the exit code is 1 only if something fails."""

import json
import os
from dataclasses import replace
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest

from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.executors.cpu.features import cpu_model
from pyc.runtime.measure import health


def report(pyc) -> tuple[int, dict[str, dict[str, str]]]:
    code, out, err = pyc("doctor", "--json")
    assert err == ""
    rows = json.loads(out)
    assert all(set(row) == {"name", "verdict", "found", "remedy"} for row in rows)
    assert all(row["verdict"] == "ok" or row["remedy"] for row in rows), "what is not ok says what to do"
    assert code == any(row["verdict"] == "fail" for row in rows)
    return code, {row["name"]: row for row in rows}


def test_a_machine_that_has_all(pyc):
    signing_key()
    code, found = report(pyc)
    assert code == 0
    assert cpu_model() in found["cpu"]["found"]
    assert found["signing keys"]["found"] == "default"
    assert found["trusted keys"]["found"] == signing_key().public.fingerprint
    assert found["ziglang"]["found"] == metadata.version("ziglang")
    assert found["variants"]["found"].split(", ")[-1] in ("x86-64", "armv8")


def test_lines_for_readers(pyc):
    code, out, err = pyc("doctor")
    assert (code, err) == (0, "")
    assert all(line.startswith(("ok ", "warn ", "fail ", "      ")) for line in out.splitlines())


def test_keys_that_others_may_read_or_that_are_none(pyc, key_home):
    signing_key()
    (key_home / "keys" / "default.pem").chmod(0o644)
    os.mkfifo(key_home / "keys" / "pipe.pem")
    os.mkfifo(key_home / "trusted" / "0123456789abcdef.pub")
    code, found = report(pyc)
    assert code == 1
    assert "chmod 600" in found["key default"]["found"]
    assert "not a regular file" in found["key pipe"]["found"]
    assert "not a regular file" in found["trusted keys"]["found"]


def test_places_that_cannot_be_used(pyc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    code, found = report(pyc)
    assert code == 1
    assert (found["key store"]["verdict"], found["cache"]["verdict"]) == ("fail", "warn")
    assert "PYC_HOME" in found["key store"]["remedy"]
    assert "PYC_CACHE_DIR" in found["cache"]["remedy"]
    assert "TMPDIR is" in found["temporary files"]["found"] or found["temporary files"]["verdict"] == "ok"


@pytest.fixture
def no_home(monkeypatch):
    """A user without a home directory, as in a container."""
    for name in ("PYC_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")


def test_a_policy_with_keys_needs_no_key_store(pyc, tmp_path, monkeypatch, no_home):
    code, found = report(pyc)
    assert (code, found["key store"]["verdict"]) == (1, "fail")
    public = signing_key(home=tmp_path / "elsewhere").public
    old = replace(signing_key("old", home=tmp_path / "elsewhere").public, expires=date(2020, 1, 31))
    policy = tmp_path / "trust.toml"
    monkeypatch.setenv("PYC_TRUST_POLICY", str(policy))
    policy.write_text(f'keys = ["{public.text()}", "{old.text()}"]\n')
    code, found = report(pyc)
    assert code == 0, found
    assert (found["key store"]["verdict"], found["trust policy"]["found"]) == ("ok", str(policy))
    assert found["trusted keys"]["found"] == f"{public.fingerprint}, {old.fingerprint} (expired on 2020-01-31)"
    # One that takes the keys of the store still needs it.
    policy.write_text("[[rule]]\nthreshold = 2\n")
    code, found = report(pyc)
    assert (code, found["key store"]["verdict"]) == (1, "fail")


@pytest.mark.parametrize("text", ["keys = [", None])
def test_a_policy_that_lets_nothing_run(pyc, tmp_path, monkeypatch, text):
    policy = tmp_path / "trust.toml"
    if text is not None:
        policy.write_text(text)
    monkeypatch.setenv("PYC_TRUST_POLICY", str(policy))
    code, found = report(pyc)
    assert (code, found["trust policy"]["verdict"]) == (1, "fail")
    assert str(policy) in found["trust policy"]["found"]


def test_without_the_compilers_it_runs_artifacts(pyc, monkeypatch):
    monkeypatch.setattr("pyc.compiler.health.version_of", lambda name: None)
    code, found = report(pyc)
    assert code == 0
    assert found["compilers"]["verdict"] == "warn"
    assert "pip install -c constraints.txt '.[compiler]'" in found["compilers"]["remedy"]


@pytest.mark.parametrize(("builds", "verdict"), [(True, "fail"), (False, "warn")])
def test_no_folder_for_temporary_files_matters_where_one_builds(pyc, monkeypatch, builds, verdict):
    """A container that runs artifacts may be read-only altogether."""

    def none_is_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    with monkeypatch.context() as changed:
        changed.setattr("tempfile.gettempdir", none_is_usable)
        if not builds:
            changed.setattr("pyc.compiler.health.version_of", lambda name: None)
        code, found = report(pyc)
    assert code == int(builds)
    assert found["temporary files"]["verdict"] == verdict
    assert "set TMPDIR" in found["temporary files"]["remedy"]


@pytest.mark.parametrize(("text", "verdict"), [("always [madvise] never", "ok"), ("always madvise [never]", "warn")])
def test_huge_pages(tmp_path, text, verdict):
    setting = tmp_path / health.HUGE_PAGES.relative_to("/")
    setting.parent.mkdir(parents=True)
    setting.write_text(text)
    found = {finding.name: finding for finding in health.check_machine(tmp_path)}
    assert found["huge pages"].verdict == verdict


def test_little_space(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "LEAST_FREE_BYTES", 1 << 62)
    finding = health.check_space("cache space", tmp_path / "not" / "there", "PYC_CACHE_DIR")
    assert (finding.verdict, "PYC_CACHE_DIR" in finding.remedy) == ("warn", True)


def test_a_cache_below_proc_is_none() -> None:
    finding = health.check_space("cache space", Path("/proc/nope"), "PYC_CACHE_DIR")
    assert (finding.verdict, finding.remedy) == ("warn", "set PYC_CACHE_DIR to another folder")
    assert finding.found == "/proc: a file system that keeps no files"
