"""The history file is bounded, and what is wrong with it costs history only."""

import json
import os
import stat

import pytest

from pyc.commands.chat_history import KEPT_MESSAGES, ChatHistory
from pyc.runtime.host.home import home_directory


@pytest.fixture
def file(key_home):
    key_home.mkdir(exist_ok=True)
    return home_directory() / "chat_history"


def test_messages_come_back(file):
    history = ChatHistory()
    for message in ("one", "two\nlines", "two\nlines", " a space keeps it out", "ü\x1b"):
        history.add(message)
    assert history.messages == ChatHistory().messages == ["one", "two\nlines", "ü\x1b"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_file_does_not_grow_for_ever(file):
    file.write_text("".join(f"{json.dumps(str(index))}\n" for index in range(2 * KEPT_MESSAGES + 10)))
    kept = ChatHistory().messages
    assert len(kept) == KEPT_MESSAGES
    assert kept[-1] == str(2 * KEPT_MESSAGES + 9)
    assert len(file.read_text().splitlines()) == KEPT_MESSAGES
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_damage_costs_history_only(file):
    file.write_bytes(b'"one"\n{"\n\xff\n7\n"two"\n"half')
    assert ChatHistory().messages == ["one", "two"]
    file.unlink()
    os.mkfifo(file)
    history = ChatHistory()
    history.add("nobody reads the pipe")
    file.unlink()
    file.symlink_to("/dev/full")
    history = ChatHistory()
    history.add("the disk is full")
    history.add("still")
    assert history.messages == ["the disk is full", "still"]
    file.unlink()
    file.symlink_to(file)
    assert ChatHistory().messages == []


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_home_of_others_leads_to_no_other_file(mode, link, file, tmp_path):
    """Where others may write, a link of theirs would have messages written into another file of this user's."""
    (tmp_path / "mine").write_text("kept\n")
    link(tmp_path / "mine", file)
    file.parent.chmod(mode)
    history = ChatHistory()
    history.add("one")
    assert history.messages == ["one"] and (tmp_path / "mine").read_text() == "kept\n"
    file.parent.chmod(0o755)
    history = ChatHistory()
    history.add("two")
    assert (tmp_path / "mine").read_text() == 'kept\n"two"\n'
    file.unlink()
    file.parent.chmod(mode)
    for message in ("three", "four"):
        ChatHistory().add(message)
    assert ChatHistory().messages == ["three", "four"]


def test_nobody_has_a_home(monkeypatch):
    for name in ("PYC_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what a uid without an entry gets
    history = ChatHistory()
    history.add("one")
    assert history.messages == ["one"]
