"""runtime/artifact/trust/key_store.py: a key is made once, and whole, whoever makes it at once or is ended then."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyc.runtime.artifact.trust import key_store, store_lock
from pyc.runtime.artifact.trust.key_store import (
    create_key,
    is_trusted,
    key_path,
    list_trusted,
    remove_trusted,
    signing_key,
)
from pyc.runtime.artifact.trust.keys import PublicKey, new_key_text, read_public_key, read_signing_key
from pyc.runtime.errors import ArtifactError

LATER = date(2126, 1, 1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_first_use_makes_a_private_trusted_key(home: Path) -> None:
    key = signing_key(home=home)
    path = home / "keys" / "default.pem"
    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700
    assert is_trusted(key.public.raw, home)
    assert list_trusted(home) == (PublicKey(key.public.raw, "default"),)
    assert read_public_key(path.with_suffix(".pub")).raw == key.public.raw
    assert sorted(p.name for p in path.parent.iterdir()) == ["default.pem", "default.pub"]
    assert signing_key(home=home).public == key.public


def test_the_mode_holds_whatever_the_umask(home: Path) -> None:
    previous = os.umask(0)
    try:
        signing_key(home=home)
    finally:
        os.umask(previous)
    assert mode_of(home / "keys" / "default.pem") == 0o600


def test_without_create_a_missing_key_is_an_error(home: Path) -> None:
    with pytest.raises(ArtifactError, match="no such key; make it with `pyc keygen --name ci`"):
        signing_key("ci", create=False, home=home)
    assert not home.exists()


def test_an_existing_key_is_never_replaced(home: Path) -> None:
    first = signing_key(home=home).public
    assert not create_key(home=home)
    assert signing_key(home=home).public == first
    assert len(list_trusted(home)) == 1


def test_one_that_another_process_is_making_is_not_finished_by_this_one(home: Path, monkeypatch: Any) -> None:
    """It is made once, and with the last day that its maker gave it."""
    write, begun, going_on, made = key_store._write_new, threading.Event(), threading.Event(), []

    def slowly(path: Path, text: str, mode: int, *, replace: bool) -> bool:
        if path.name == "default.pub":
            begun.set()
            going_on.wait(60)
        return write(path, text, mode, replace=replace)

    monkeypatch.setattr(key_store, "_write_new", slowly)
    first = threading.Thread(target=lambda: made.append(create_key(expires=date(2099, 1, 1), home=home)))
    first.start()
    assert begun.wait(60) and key_path("default", home).exists()
    others = [threading.Thread(target=lambda: made.append(create_key(home=home))) for _ in range(2)]
    others.append(threading.Thread(target=lambda: made.append(signing_key(home=home).public.expires)))
    for other in others:
        other.start()
    others[0].join(0.05)
    assert made == [], "they wait"
    going_on.set()
    for thread in (first, *others):
        thread.join()
    assert made.count(True) == 1 and made.count(False) == 2 and made.count(date(2099, 1, 1)) == 1
    (key,) = list_trusted(home)
    assert key.expires == date(2099, 1, 1)


def test_one_whose_maker_fails_meanwhile_does_not_sign(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no file any more: what it signed, nobody could sign again."""
    begun = new_key(home, monkeypatch)
    making, removed = key_store.making_keys, []

    @contextlib.contextmanager
    def waiting(folder: Path) -> Iterator[None]:
        with making(folder):
            if not removed:
                removed.append(key_path("default", home).unlink())
                remove_trusted(begun.fingerprint, home)
            yield

    monkeypatch.setattr(key_store, "making_keys", waiting)
    with pytest.raises(ArtifactError, match="no such key"):
        signing_key(create=False, home=home)
    assert list_trusted(home) == ()
    removed.clear()
    begun = new_key(home, monkeypatch)
    key = signing_key(home=home)
    assert key.public.raw != begun.raw and read_signing_key(key_path("default", home)).public.raw == key.public.raw


def new_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> PublicKey:
    """A private key whose maker has not written its public half yet."""
    write = key_store._write_new
    with monkeypatch.context() as patched:
        patched.setattr(key_store, "_write_new", lambda path, *rest, **how: (path.parent.name == "keys" and
                        path.suffix == ".pub") or write(path, *rest, **how))
        patched.setattr(key_store, "making_keys", lambda _: contextlib.nullcontext())
        create_key(home=home)
    return read_signing_key(key_path("default", home)).public


def test_one_whose_maker_does_not_go_on_is_finished(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_lock, "PATIENCE_S", 0.01)
    create_key(home=home)
    (home / "keys" / "default.pub").unlink()
    with store_lock.making_keys(home / "keys"):
        assert not create_key(home=home)
    assert (home / "keys" / "default.pub").exists()


def test_one_whose_public_half_was_removed_is_not_made_again(home: Path) -> None:
    key = signing_key(home=home).public
    (home / "keys" / "default.pub").unlink()
    assert not create_key(expires=date(2099, 1, 1), home=home)
    assert signing_key(home=home).public == key


def test_a_key_that_another_process_makes_meanwhile_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system has no locks, or the other took too long; also where this one is interrupted then."""
    write, theirs = key_store._write_new, new_key_text()

    def write_behind_the_other(path: Path, text: str, mode: int, *, replace: bool) -> bool:
        if path.suffix != ".pem":
            return write(path, text, mode, replace=replace)
        write(path, theirs, mode, replace=False)
        assert not write(path, text, mode, replace=replace)
        raise KeyboardInterrupt

    monkeypatch.setattr(key_store, "_write_new", write_behind_the_other)
    with pytest.raises(KeyboardInterrupt):
        create_key(home=home)
    assert key_path("default", home).read_text() == theirs


@pytest.mark.slow
def test_many_processes_make_one_key(home: Path) -> None:
    code = "from pyc.runtime.artifact.trust import key_store; print(key_store.signing_key().public.fingerprint)"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYC_HOME": str(home)}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    outputs = {process.communicate(timeout=60)[0] for process in running}
    assert len(outputs) == 1
    assert outputs == {signing_key(home=home).public.fingerprint + "\n"}
    assert len(list_trusted(home)) == 1


def test_a_public_half_that_is_removed_comes_back_as_the_key_is_known_here(home: Path) -> None:
    """With its last day, and trusted only where it is."""
    create_key("rel", expires=LATER, home=home)
    public = key_path("rel", home).with_suffix(".pub")
    public.unlink()
    assert signing_key("rel", home=home).public.expires == LATER
    assert read_public_key(public).expires == LATER
    (known,) = list_trusted(home)
    assert known.expires == LATER
    remove_trusted(known.fingerprint, home)
    public.unlink()
    assert signing_key("rel", create=False, home=home).public.raw == known.raw
    assert list_trusted(home) == ()


def lines_of_a_new_key(home: Path, stop: int, stopping: Callable[[], object]) -> int:
    """Make a key; call `stopping` at this line of the modules that do. Returns the number of lines that ran."""
    modules, ran = (key_store.__file__, store_lock.__file__), 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal ran
        if frame.f_code.co_filename not in modules:
            return None
        if event in ("line", "return"):
            ran += 1
            if ran == stop:
                stopping()
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        create_key("rel", expires=LATER, home=home)
    finally:
        sys.settrace(former)
    return ran


def is_whole_or_not_there(home: Path) -> bool:
    """Whether there is a key that is whole, which is told; fails where there is a part of one."""
    found = sorted(path.name for path in home.glob("keys/*"))
    trusted = list_trusted(home)
    assert (found, [key.expires for key in trusted]) in (([], []), (["rel.pem", "rel.pub"], [LATER]))
    return bool(found)


@pytest.mark.slow
def test_a_key_whose_making_is_interrupted_anywhere_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the next one who wants it has it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(store_lock, "PATIENCE_S", 0.01)  # a lock whose closing is interrupted is this process's

    def interrupt() -> None:
        raise KeyboardInterrupt

    lines, found = lines_of_a_new_key(tmp_path / "whole", 0, interrupt), set()
    for stop in range(1, lines + 1):
        home = tmp_path / str(stop)
        with contextlib.suppress(KeyboardInterrupt):
            lines_of_a_new_key(home, stop, interrupt)
        found.add(is_whole_or_not_there(home))
        assert signing_key("rel", home=home).public in list_trusted(home)
    assert found == {False, True}


@pytest.mark.slow
def test_a_key_whose_maker_is_killed_anywhere_is_trusted_until_the_day_that_it_was_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private key is there only where its public half is trusted, and none is trusted later without a word."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    lines, days = lines_of_a_new_key(tmp_path / "whole", 0, lambda: None), set()
    for stop in range(1, lines + 1, 2):
        home = tmp_path / str(stop)
        child = os.fork()
        if not child:
            lines_of_a_new_key(home, stop, lambda: os._exit(9))
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        key = signing_key("rel", home=home).public
        assert key.raw in {each.raw for each in list_trusted(home)}
        days.add(key.expires)
        remove_trusted(key.fingerprint, home)
        (home / "keys" / "rel.pub").unlink()
        assert signing_key("rel", create=False, home=home).public.raw == key.raw and not is_trusted(key.raw, home)
    assert days == {None, LATER}, "None: of the one that was made anew"


def test_a_private_key_without_a_public_half_signs_where_one_may_not_write(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key("rel", expires=LATER, home=home)
    key_path("rel", home).with_suffix(".pub").unlink()

    def refused(path: Path, *_: object, **__: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(key_store, "write_whole", refused)
    key = signing_key("rel", create=False, home=home)
    assert key.public.expires == LATER and len(key.sign_message(b"x")) == 64


def test_a_link_to_nothing_is_no_key_that_exists(home: Path) -> None:
    (home / "keys").mkdir(mode=0o700, parents=True)
    key_path("rel", home).symlink_to(home / "moved.pem")
    with pytest.raises(ArtifactError, match=r"rel\.pem: a link to what is not there; remove it, or name another key"):
        create_key("rel", home=home)
    assert list_trusted(home) == () and sorted(os.listdir(home / "keys")) == ["rel.pem"]


def test_a_child_that_is_forked_while_the_store_changes_does_not_keep_its_lock(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lock, "PATIENCE_S", 5.0)
    reader, writer = os.pipe()
    with store_lock.changing_store(home):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    descriptor = os.open(home / store_lock.LOCK, os.O_RDWR)
    try:
        assert store_lock._is_locked(descriptor)
    finally:
        os.close(writer)
        os.close(descriptor)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_public_half_without_its_private_key_is_not_replaced(home: Path) -> None:
    create_key("rel", home=home)
    path = key_path("rel", home)
    path.rename(home / "moved.pem")
    before = path.with_suffix(".pub").read_text()
    for make in (
        lambda: create_key("rel", home=home),
        lambda: signing_key("rel", home=home),
        lambda: signing_key("rel", create=False, home=home),
    ):
        with pytest.raises(ArtifactError, match=r"rel\.pub: is there without its private key, rel\.pem; move it"):
            make()
    assert path.with_suffix(".pub").read_text() == before and not path.exists()
