"""pyc tune: what it says, and what it keeps for later runs."""

import json
import re
import sys

import pytest

from pyc.runtime.executors.cpu import features as cpu
from pyc.runtime.executors.cpu.features import cpu_kind
from pyc.runtime.executors.cpu.prefetch import distances_for, require_keeping, usual_distances
from pyc.runtime.measure import tuning


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Whatever is found with such short runs: it is about what is done with it."""
    monkeypatch.setattr(tuning, "RUN_S", 0.0005)


def test_a_model_that_is_tuned(pyc, decoder_artifact):
    code, out, err = pyc("tune", decoder_artifact, "--force", "--threads", 1, "--rounds", 3)
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        [kind, count, word]
        for kind in ("codes", "floats", "pairs")
        for count, word in (("1", "token"), ("8", "tokens"))
    ]
    assert last.startswith("kept for ") and f" on {cpu_kind()} in " in last and last.endswith("tuned.json")


def test_what_is_said_is_what_is_kept(pyc, decoder_artifact):
    code, out, err = pyc("tune", decoder_artifact, "--force", "--threads", 1, "--rounds", 3, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["cpu"] == cpu_kind()
    kept = distances_for(document["isa"])
    for finding in document["findings"]:
        assert (finding["ratio"] == 1) == (finding["before"] == finding["after"])
    for kind in ("codes", "floats", "pairs"):
        after = [finding["after"] for finding in document["findings"] if finding["kind"] == kind][-1]
        assert after == {name: getattr(getattr(kept, kind), name) for name in after}
    assert json.loads(pyc("tune", "--forget", "--json")[1]) == {"forgotten": 1}
    assert distances_for(document["isa"]) == usual_distances()
    assert pyc("tune", "--forget") == (0, f"forgot 0 variants on {cpu_kind()}\n", "")


def test_a_model_that_fits_the_caches_is_refused(pyc, decoder_artifact, monkeypatch):
    monkeypatch.setattr(cpu, "cache_bytes", lambda: 33 << 20)
    code, out, err = pyc("tune", decoder_artifact)
    assert (code, out) == (9, "")
    assert "fit the caches of this CPU (34.6 MB)" in err and "take a larger model, or --force" in err
    assert pyc("tune", "--forget", "--json")[1] == '{"forgotten": 0}\n'


def test_caches_that_nobody_knows_refuse_nothing(pyc, decoder_artifact, monkeypatch):
    monkeypatch.setattr(cpu, "cache_bytes", lambda: 0)
    assert pyc("tune", decoder_artifact, "--threads", 1, "--rounds", 3)[0] == 0


@pytest.mark.slow
def test_who_waits_at_a_terminal_is_told_how_far_it_is(pyc, decoder_artifact, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = pyc("tune", decoder_artifact, "--force", "--threads", 1, "--rounds", 3)
    shares = [int(share) for share in re.findall(r"tuning: (\d+)%", err)]
    assert code == 0 and shares == sorted(shares) and 0 < shares[0] < 20 and shares[-1] == 100
    assert err.endswith("\r") and "\r" not in out
    monkeypatch.setenv("TERM", "dumb")
    assert pyc("tune", decoder_artifact, "--force", "--threads", 1, "--rounds", 3)[2] == ""


def unwritable(tmp_path):
    message = "and what `pyc tune` finds is kept there for later runs; tune as a user who may write there, or set"
    return "/proc/pyc", message  # no folder is made there, not even by root


def a_file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file", f"cannot be read: {tmp_path / 'file'} is a file, expected a folder; set PYC_HOME to a"


def below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "a" / "b", f"cannot be read: {tmp_path / 'file'} is a file, expected a folder; set"


def damaged(tmp_path):
    (tmp_path / "tuned.json").write_text("{")
    return tmp_path, "not what `pyc tune` writes"


@pytest.mark.parametrize("home", [unwritable, a_file, below_a_file, damaged])
def test_what_could_not_be_kept_is_not_measured(pyc, decoder_artifact, monkeypatch, tmp_path, home):
    place, message = home(tmp_path)
    monkeypatch.setenv("PYC_HOME", str(place))
    monkeypatch.setattr(tuning, "tune_distances", lambda *arguments, **options: pytest.fail("it was measured"))
    code, out, err = pyc("tune", decoder_artifact, "--force")
    assert (code, out) == (9, "")
    assert f"{place}/tuned.json: " in err and message in err


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_without_a_home_it_says_where_the_result_would_be_kept(pyc, decoder_artifact, monkeypatch, is_forgotten):
    for name in ("PYC_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(tuning, "tune_distances", lambda *arguments, **options: pytest.fail("it was measured"))
    code, out, err = pyc("tune", *(["--forget"] if is_forgotten else [decoder_artifact, "--force"]))
    assert (code, out, err.count("\n")) == (9, "", 1)
    assert "kept in $PYC_HOME/tuned.json for later runs" in err and "set PYC_HOME" in err and "keys" not in err


def test_finding_out_leaves_nothing(tmp_path):
    require_keeping(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_is_refused(pyc, encoder_artifact):
    code, out, err = pyc("tune", encoder_artifact, "--force")
    assert (code, out) == (9, "")
    assert "is an encoder" in err


@pytest.mark.parametrize("arguments", [(), ("model.pyca", "--forget")])
def test_an_artifact_or_forget(pyc, arguments):
    code, out, err = pyc("tune", *arguments)
    assert (code, out) == (2, "")
    assert "name an artifact to tune with, or --forget, and not both" in err


@pytest.mark.parametrize("option", ["--threads=2", "--isa=avx512", "--trust=p.toml", "--rounds=15", "--force"])
def test_forget_takes_no_option_that_it_has_no_use_for(pyc, option):
    code, out, err = pyc("tune", "--forget", option)
    assert (code, out) == (2, "")
    assert f"{option.partition('=')[0]} is for measuring; --forget forgets all of this kind of CPU" in err
