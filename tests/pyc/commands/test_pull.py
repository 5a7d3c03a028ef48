"""`pyc pull`, and the commands that take a URL: whole files, one line where it fails, and no second transfer."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from artifact_forge import signed_file
from range_server import RangeServer, range_server
from remote_artifacts import folder, small_pieces, write_artifact

from pyc.runtime.artifact import partial_file
from pyc.runtime.artifact.format import payload_offset
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.policy import parse_policy
from pyc.runtime.artifact.trust.signature_file import add_signature
from pyc.runtime.sources import http

__all__ = ["folder", "range_server", "small_pieces"]


@pytest.fixture
def server(range_server: RangeServer, tmp_path: Path, small_pieces: None) -> RangeServer:
    (tmp_path / "served").mkdir()
    range_server.files["/m.pyca"] = write_artifact(tmp_path / "served" / "m.pyca")
    return range_server


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_as_it_was_served(server, folder, pyc):
    code, out, err = pyc("pull", f"{server.url}/m.pyca?signature=secret", "--allow-unsigned")
    assert (code, err) == (0, "")
    assert out == "m.pyca: 947 kB, not signed\n"
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"]
    assert left_in(folder) == ["m.pyca"]
    umask = os.umask(0)
    os.umask(umask)
    assert (folder / "m.pyca").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_is_called_as_a_policy_calls_it(server, folder, pyc):
    """Under another name it would pass by the rule that held for the URL."""
    server.files["/prod%2D7.pyca"] = server.files["/a%2F..%2F%2e%2e/m.pyca/"] = server.files["/m.pyca"]
    assert pyc("pull", f"{server.url}/prod%2D7.pyca", "--allow-unsigned")[0] == 0
    assert pyc("pull", f"{server.url}/a%2F..%2F%2e%2e/m.pyca/", "--allow-unsigned")[0] == 0
    assert left_in(folder) == ["m.pyca", "prod-7.pyca"]


def test_signatures_come_first(server, folder, pyc, tmp_path, monkeypatch):
    code, out, err = pyc("pull", f"{server.url}/m.pyca")
    assert (code, out) == (11, "") and "not signed" in err
    assert len(server.asked) == 1 and left_in(folder) == []
    server.files["/s.pyca"] = signed_file(tmp_path / "s.pyca", tmp_path / "elsewhere")
    code, out, err = pyc("pull", f"{server.url}/s.pyca")
    assert (code, out) == (12, "") and "not trusted here" in err and left_in(folder) == []
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "elsewhere"))
    code, out, err = pyc("pull", f"{server.url}/s.pyca", "-o", "other.pyca")
    assert (code, err) == (0, "") and "signed by trusted key" in out and left_in(folder) == ["other.pyca"]


def test_further_signatures_come_along(server, folder, pyc, make_artifact, key_home):
    """Of each of two versions: after every pull the file here has the signatures that it needs, and no others."""
    keys = [signing_key(name) for name in ("default", "qa", "here")]
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    for version in ("0.1", "0.2"):
        artifact = make_artifact(version=version)
        server.files["/m.pyca"] = artifact.read_bytes()
        code, _, err = pyc("pull", f"{server.url}/m.pyca")
        assert code == 12 and "1 of the 2 signatures" in err
        with open_artifact(artifact) as opened:
            message = opened.prelude.pack()
        server.files["/m.pyca.sig"] = add_signature(artifact, keys[1].sign(message)).read_bytes()
        assert pyc("verify", f"{server.url}/m.pyca")[0] == 0
        code, _, err = pyc("verify", f"{server.url}/m.pyca?x=1")
        assert code == 12 and "no .sig was asked for: put it beside the file and give its path, or a URL without" in err
        code, out, err = pyc("pull", f"{server.url}/m.pyca")
        assert (code, err) == (0, "") and "signed by trusted keys" in out
        assert pyc("verify", "m.pyca")[0] == 0 and left_in(folder) == ["m.pyca", "m.pyca.sig"]
        assert (folder / "m.pyca.sig").read_bytes() == server.files["/m.pyca.sig"]
        # One that was made here is not lost when the same version is pulled again.
        add_signature(folder / "m.pyca", keys[2].sign(message))
        assert pyc("pull", f"{server.url}/m.pyca")[0] == 0
        assert len((folder / "m.pyca.sig").read_text().splitlines()) == 2
        artifact.with_name("model.pyca.sig").unlink()
        del server.files["/m.pyca.sig"]


def test_an_artifact_without_further_signatures_leaves_none_of_the_former(server, folder, pyc, make_artifact, key_home):
    """Beside the new file they count for nothing, and `pyc push` would take them along."""
    keys = [signing_key(name) for name in ("default", "qa", "here")]
    for version, others in (("0.1", (1, 2)), ("0.2", ())):
        artifact = make_artifact(version=version)
        server.files["/m.pyca"] = artifact.read_bytes()
        with open_artifact(artifact) as opened:
            message = opened.prelude.pack()
        for place in others:
            server.files["/m.pyca.sig"] = add_signature(artifact, keys[place].sign(message)).read_bytes()
        code, _, err = pyc("pull", f"{server.url}/m.pyca")
        assert (code, err) == (0, "") and left_in(folder) == ["m.pyca", *(["m.pyca.sig"] if others else [])]
        server.files.pop("/m.pyca.sig", None)
    # One that was made here is of the same version, and stays.
    add_signature(folder / "m.pyca", keys[1].sign(message))
    assert pyc("pull", f"{server.url}/m.pyca")[0] == 0 and left_in(folder) == ["m.pyca", "m.pyca.sig"]


def test_signatures_count_at_any_moment_of_a_pull(server, folder, pyc, make_artifact, key_home, monkeypatch):
    """A run between any two steps finds the old artifact or the new one, with its signatures."""
    keys = [signing_key(name) for name in ("default", "qa")]
    versions = []
    for version in ("0.1", "0.2"):
        artifact = make_artifact(version=version)
        with open_artifact(artifact) as opened:
            beside = add_signature(artifact, keys[1].sign(opened.prelude.pack()))
        versions.append((artifact.read_bytes(), beside.read_bytes()))
        beside.unlink()
    (folder / "m.pyca").write_bytes(versions[0][0])
    (folder / "m.pyca.sig").write_bytes(versions[0][1])
    server.files["/m.pyca"], server.files["/m.pyca.sig"] = versions[1]
    policy = parse_policy("[[rule]]\nthreshold = 2\n", "test")
    seen = []
    replace = Path.replace

    def watched(self, target):
        done = replace(self, target)
        with open_artifact(folder / "m.pyca") as opened:
            seen.append((len(require_trusted(opened, policy)), (folder / "m.pyca").read_bytes() == versions[1][0]))
        return done

    monkeypatch.setattr(Path, "replace", watched)
    assert pyc("pull", f"{server.url}/m.pyca")[0] == 0
    assert seen == [(2, False), (2, True), (2, True)]
    assert (folder / "m.pyca.sig").read_bytes() == versions[1][1]


@pytest.mark.parametrize(
    ("beside", "status", "says"),
    [
        (b"no signature", 0, "m.pyca.sig:1: expected 'pyc-signature"),
        (b"\xff", 0, "is no text"),
        (b"#" * (65 << 10), 0, "expected at most 65536"),
        (b"", 403, "access refused (403)"),
        (b"", 403, "put an empty file .sig beside it"),
        (b"", 500, "gave up after 5 tries"),
    ],
)
def test_signatures_that_are_not_to_be_had(beside, status, says, server, folder, pyc, make_artifact, key_home):
    """They are told about where they are not asked for, and an error where they are."""
    server.files["/m.pyca"], server.files["/m.pyca.sig"] = make_artifact().read_bytes(), beside
    if status:
        server.statuses["/m.pyca.sig"] = status
    code, out, err = pyc("pull", f"{server.url}/m.pyca")
    assert code == 0 and "signed by trusted key" in out
    assert says in err and err.startswith("pyc: its further signatures are left out: ") and err.count("\n") == 1
    assert left_in(folder) == ["m.pyca"]
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    code, out, err = pyc("verify", f"{server.url}/m.pyca")
    assert (code, out) == (14 if status else 15, "") and says in err and err.count("\n") == 1


def test_an_empty_file_of_signatures_has_none(server, folder, pyc, make_artifact, key_home):
    """As one here has; a server has no first byte of it to give (416)."""
    server.files["/m.pyca"], server.files["/m.pyca.sig"] = make_artifact().read_bytes(), b""
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    code, out, err = pyc("verify", f"{server.url}/m.pyca")
    assert (code, out) == (12, "") and "(416)" not in err
    (key_home / "policy.toml").unlink()
    code, out, err = pyc("pull", f"{server.url}/m.pyca")
    assert (code, err) == (0, "") and "signed by trusted key" in out
    assert left_in(folder) == ["m.pyca"]
    server.files["/m.pyca"] = b""
    assert pyc("verify", f"{server.url}/m.pyca")[0] == 14
    server.statuses["/m.pyca"] = 403
    code, out, err = pyc("verify", f"{server.url}/m.pyca", "--json")
    assert code == 14 and '"verdict": "unreachable"' in out and "empty file" not in err


def test_what_was_fetched_is_not_fetched_again(server, folder, pyc):
    stop = len(server.files["/m.pyca"]) // 2
    server.plan = lambda number, path, first, last: "reset" if last > stop else ""
    code, out, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    assert (code, out) == (14, "") and "gave up after 5 tries" in err
    assert left_in(folder) == [".m.pyca.part"]
    part = server.files["/m.pyca"]
    flipped = bytearray(part[:stop] + bytes(len(part) - stop))  # how much is there is luck: let it be a half
    flipped[200_000] ^= 1  # in what had been fetched: a disk that lies
    (folder / ".m.pyca.part").write_bytes(flipped)
    server.plan = lambda number, path, first, last: ""
    server.asked.clear()
    code, out, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    assert (code, err) == (0, "") and "of them there already" in out
    with open_artifact(folder / "m.pyca") as opened:
        payload = payload_offset(opened.prelude.header_size)
        chunks = [(payload + c.offset, payload + c.offset + c.stored_bytes) for c in opened.header.chunks]
    intact = [(first, end) for first, end in chunks if end <= stop and not first <= 200_000 < end]
    assert sum(end - first for first, end in intact) > len(part) // 4
    for _, asked, last, _ in server.asked:  # a range may be asked for again, of which a busy server sent nothing
        assert not any(first <= last and asked < end for first, end in intact if first >= http.START_BYTES)
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"] and left_in(folder) == ["m.pyca"]


def test_another_version_over_what_was_fetched(server, folder, pyc, tmp_path):
    (folder / ".m.pyca.part").write_bytes(server.files["/m.pyca"] + b"rest" * 5000)
    server.files["/m.pyca"] = write_artifact(tmp_path / "served" / "m.pyca", tensors=7)
    assert pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")[0] == 0
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"]


def test_an_older_file_stays_until_the_new_one_is_whole(server, folder, pyc):
    (folder / "m.pyca").write_bytes(b"notes")
    code, _, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    assert code == 8 and "give --force to replace it" in err and not server.asked
    server.plan = lambda number, path, first, last: "flipped" if first else ""
    code, _, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned", "--force")
    assert code == 8 and "altered" in err and (folder / "m.pyca").read_bytes() == b"notes"
    server.plan = lambda number, path, first, last: ""
    assert pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned", "--force")[0] == 0
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"]


def test_a_server_without_ranges(server, folder, pyc):
    server.knows_ranges = False
    assert pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")[0] == 0
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"]


def planted(kind: str, folder: Path) -> str:
    """Put what others could under the name of the partial file; says what is told of it."""
    part = folder / ".m.pyca.part"
    (folder / "other").write_text("kept")
    if kind == "a link":
        part.symlink_to("other")
        return "is not a regular file"
    if kind == "a pipe":
        os.mkfifo(part)
        return "is not a regular file"
    part.write_text("theirs")
    part.chmod(0o666 if kind == "another's, for all" else 0o600)
    os.chown(part, 1, 1)
    return "belongs to user 1"


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """What lies in a folder, and when it was written to."""
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {
        name: (each.st_ino, each.st_uid, each.st_mode, each.st_size, each.st_mtime_ns) for name, each in found.items()
    }


_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")


@pytest.mark.parametrize(
    "kind",
    [
        "a link",
        "a pipe",
        pytest.param("another's", marks=_as_root),
        pytest.param("another's, for all", marks=_as_root),
    ],
)
def test_a_partial_file_that_others_made_is_not_written_into(kind, server, folder, pyc):
    """Its owner would own the artifact, and could change it while it runs."""
    says = planted(kind, folder)
    before = states(folder)
    umask = os.umask(0o022)
    try:
        code, out, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    finally:
        os.umask(umask)
    assert (code, out, err.count("\n")) == (8, "", 1)
    assert f".m.pyca.part: {says}" in err and "; remove it, or choose another folder or name with -o" in err
    assert server.count() <= 8192, "the header alone"
    assert states(folder) == before
    assert pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned", "-o", "mine.pyca")[0] == 0


@pytest.mark.parametrize("how", ["mode", "name", "no space"])
def test_an_own_partial_file_that_others_may_have_open_is_copied(how, server, folder, pyc, monkeypatch):
    """As after a volume's group got its bits (fsGroup of Kubernetes), or in a backup by links: what is there counts,
    and what they have open is no artifact."""
    whole, part = server.files["/m.pyca"], folder / ".m.pyca.part"
    part.write_bytes(half := whole[: len(whole) // 2])
    if how == "name":
        os.link(part, folder / "backup")
    else:
        part.chmod(0o666)
    if how == "no space":
        monkeypatch.setattr(partial_file, "write", full(partial_file.write))
    with part.open("r+b") as theirs:
        umask = os.umask(0o022)
        try:
            code, _, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
        finally:
            os.umask(umask)
        assert (code, theirs.read()) == (0, half), err
        assert not os.path.samestat(os.fstat(theirs.fileno()), (folder / "m.pyca").stat())
    assert (folder / "m.pyca").read_bytes() == whole
    assert (server.count() < len(whole)) == (how != "no space")
    assert left_in(folder) == (["backup", "m.pyca"] if how == "name" else ["m.pyca"])


def full(write):
    """A disk without space for the first write."""
    calls = iter([True])

    def once(descriptor, offset, data):
        if next(calls, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor, offset, data)

    return once


@pytest.mark.parametrize("error", [28, 5])
def test_a_disk_that_fails(error, server, folder, pyc, monkeypatch):
    write = os.pwrite
    count = iter(range(1000))

    def failing(descriptor, data, offset):
        if next(count) > 4:
            raise OSError(error, os.strerror(error))
        return write(descriptor, data[:1000], offset)

    monkeypatch.setattr(os, "pwrite", failing)
    code, out, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    assert (code, out) == (8, "")
    assert f".m.pyca.part: cannot be written: {os.strerror(error)}" in err and err.count("\n") == 1
    monkeypatch.undo()
    assert not (folder / "m.pyca").exists()


def is_locked(file: Path) -> bool:
    """Says whether a process holds a lock of a file, which may not be there yet. Takes none itself."""
    return file.exists() and f":{file.stat().st_ino} " in Path("/proc/locks").read_text()


def test_a_disk_without_room(server, folder, pyc, monkeypatch):
    """Nothing is begun; what an earlier try left stays."""
    status = os.statvfs(folder)
    values = {name: getattr(status, name) for name in dir(status) if name.startswith("f_")} | {"f_bavail": 0}
    monkeypatch.setattr(partial_file.os, "fstatvfs", lambda descriptor: SimpleNamespace(**values))
    code, out, err = pyc("pull", f"{server.url}/m.pyca", "-o", folder / "m.pyca", "--allow-unsigned")
    assert (code, out) == (8, "") and "bytes are to be written, the disk has 0 left" in err
    assert left_in(folder) == []
    (folder / ".m.pyca.part").write_bytes(server.files["/m.pyca"][:5000])
    assert pyc("pull", f"{server.url}/m.pyca", "-o", folder / "m.pyca", "--allow-unsigned")[0] == 8
    assert left_in(folder) == [".m.pyca.part"]


def test_a_disk_without_room_for_the_rest(server, folder, pyc, monkeypatch):
    """What is there of the file takes none: a pull that goes on where the rest does not fit fetches nothing of it."""
    whole = server.files["/m.pyca"]
    half = len(whole) // 2
    status = os.statvfs(folder)
    values = {name: getattr(status, name) for name in dir(status) if name.startswith("f_")}
    for spare_bytes, expected in ((-50_000, 8), (50_000, 0)):
        (folder / ".m.pyca.part").write_bytes(whole[:half])
        has_bytes = (folder / ".m.pyca.part").stat().st_blocks * 512
        free_bytes = len(whole) - has_bytes + partial_file.MARGIN_BYTES + spare_bytes
        given = values | {"f_bavail": free_bytes, "f_frsize": 1}
        monkeypatch.setattr(partial_file.os, "fstatvfs", lambda descriptor, given=given: SimpleNamespace(**given))
        code, _, err = pyc("pull", f"{server.url}/m.pyca", "-o", folder / "m.pyca", "--allow-unsigned")
        assert code == expected, err
        assert ("bytes are to be written" in err) == bool(expected)


def test_one_at_a_time_and_again_after_a_kill(server, folder, pyc):
    server.bytes_per_s = 300_000
    environment = {**os.environ, "PYC_CHUNK_CACHE": "off"}
    line = [sys.executable, "-m", "pyc", "pull", f"{server.url}/m.pyca", "--allow-unsigned"]
    first = subprocess.Popen(line, cwd=folder, env=environment, stderr=subprocess.PIPE)
    part = folder / ".m.pyca.part"
    while not is_locked(part):
        time.sleep(0.01)
        assert first.poll() is None
    code, _, err = pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")
    assert code == 14 and "another process is fetching into it" in err
    first.send_signal(signal.SIGINT)
    assert first.wait(20) == 130 and left_in(folder) == [".m.pyca.part"]
    server.bytes_per_s = 0
    assert pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")[0] == 0
    assert (folder / "m.pyca").read_bytes() == server.files["/m.pyca"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pull", __file__], 2, "not a URL; expected one such as https://host/model.pyca; copy a file with cp"),
        (["pull", "llama3"], 2, "llama3: not a URL; expected one such as https://host/model.pyca; a model of a hub: "),
        (["pull", "file:///m.pyca"], 14, "nothing is fetched by file, expected one of http"),
        (["pull", "file:///m.pyca"], 14, "or - for standard input; copy a file with cp"),
        (["verify", "file:///m.pyca"], 14, ", or a path"),
        (["pull", "{url}/"], 10, "no such file"),
        (["pull", "{url}/none.pyca"], 10, "no such file (404)"),
        (["pull", "http:/host/m.pyca"], 2, "http://host/m.pyca: was given with one slash behind the colon; give both"),
        (["verify", "http:/host/m.pyca"], 8, "a URL, taken for a path; give it as text and with both slashes"),
        (["pull", "ftp://host/m.pyca"], 14, "nothing is fetched by ftp"),
        (["pull", "{url}/m.pyca", "-o", "no/m.pyca"], 8, "the directory no does not exist"),
        (["verify", "{url}/none.pyca"], 10, "no such file (404)"),
        (["run", "http://127.0.0.1:9/m.pyca", "-p", "x"], 14, "gave up after 5 tries"),
        (["run", "{url}/m.pyca", "-p", "x"], 9, "is an encoder"),
        (["tune", "{url}/m.pyca"], 8, "to what reads files alone, fetch it first: pyc pull http://"),
    ],
)
def test_one_line(arguments, code, says, server, folder, pyc):
    got, out, err = pyc(*(argument.format(url=server.url) for argument in arguments))
    assert (got, out) == (code, "") and says in err
    assert err.count("\n") == 1 or code == 2


def test_an_empty_name_is_none_to_write_to(server, folder, pyc):
    """As from a variable that is not set: not the name that is taken where none is given."""
    code, out, err = pyc("pull", f"{server.url}/m.pyca", "-o", "", "--allow-unsigned")
    assert (code, out) == (8, "") and "the name of the file to write is empty" in err
    assert not list(folder.iterdir())


def test_a_url_is_verified_and_inspected(server, folder, pyc):
    code, out, err = pyc("verify", f"{server.url}/m.pyca", "--allow-unsigned")
    assert (code, out) == (0, "") or "intact, 947," in out + err
    server.asked.clear()
    code, out, err = pyc("inspect", f"{server.url}/m.pyca?signature=secret")
    assert (code, err) == (0, "") and "secret" not in out and out.startswith(f"{server.url}/m.pyca: 947 kB")
    assert server.count() == 8192, "the header alone"
    server.statuses["/m.pyca"] = 503
    code, out, err = pyc("verify", f"{server.url}/m.pyca", "--json")
    assert code == 14 and '"verdict": "unreachable"' in out


def test_a_terminal_hears_how_much_is_there(monkeypatch):
    from pyc.commands import opening, status_line

    shown = []
    monkeypatch.setattr(status_line, "show_status", shown.append)
    opening._show_progress(250, 1000)
    opening._show_progress(1000, 1000)
    assert shown == ["fetching: 25% of 1 kB", ""]


def test_inspect_tells_of_an_artifact_whose_further_signatures_are_not_to_be_had(server, pyc, key_home):
    """A bucket whose files may be read and not listed answers 403 for each that is not there."""
    server.statuses["/m.pyca.sig"] = 403
    code, out, _ = pyc("inspect", f"{server.url}/m.pyca")
    assert code == 0 and "further ones are not known: " in " ".join(out.split()) and "403" in out
