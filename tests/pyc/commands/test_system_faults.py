"""Every writer, with a fault at each of its system calls: no space, an error, half of a write or read, kill -9.

After each: the old file or the new one; success only with the new one; a documented exit code and one line; nothing
left beside it; and the same command after it succeeds and leaves what an undisturbed run leaves. PYC_FAULTS is how many
calls of each kind and writer are tried: 2 by default, drawn by the writer's name, and not of those that build or
export; `make test-long` tries all, of builds 30 of each kind.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
from range_server import serving
from system_faults import KILL, KINDS, OPENING, FaultRunner

from pyc import cli
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.signature_file import add_signature

REMOVALS = ("unlink", "unlinkat", "rmdir")
PROBES = "tmp/????????"
"""With which Python's tempfile finds out whether it may write somewhere."""
COUNT = int(os.environ.get("PYC_FAULTS", "2"))
LONG = COUNT > 10
CODES = {0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 74}
"""What an error may end with; 70 would be a fault of pyc."""


@dataclass(frozen=True)
class Writer:
    """`arguments` of pyc, and `targets`, patterns of the files that it writes. `passes_over` says that a write that
    fails costs nothing but time. `is_random` says that two runs write other bytes, `again` False that a second one to
    the same place is refused. At most `most` calls of a kind are tried."""

    arguments: tuple[object, ...]
    targets: tuple[str, ...]
    passes_over: bool = False
    is_random: bool = False
    again: bool = True
    most: int = 1_000_000
    environment: tuple[tuple[str, str], ...] = ()


class Stage:
    """What lies in the folder before a command."""

    def __init__(self, folder: Path, artifact: Callable[..., Path], request: pytest.FixtureRequest) -> None:
        self.folder, self.request = folder, request
        self._artifact = artifact

    def artifact(self, name: str = "model.pyca", **options: object) -> str:
        """A small artifact, signed by the key of the home."""
        shutil.copy(self._artifact(**options), self.folder / name)
        return name

    def model(self, kind: str) -> str:
        """An artifact that runs."""
        shutil.copy(self.request.getfixturevalue(f"{kind}_artifact"), self.folder / "model.pyca")
        return "model.pyca"

    def checkpoint(self, **quantize: object) -> str:
        """A recipe for ONNX Runtime, which needs no compiler, its checkpoint and a text to calibrate by."""
        signing_key("default")
        made = self.request.getfixturevalue("tiny_checkpoint")("llama", hidden_size=64, intermediate_size=96)
        shutil.copytree(made, self.folder / "checkpoint")
        (self.folder / "text.txt").write_text("the cat sat on the mat; the dog sat on the log\n" * 20)
        recipe = {"model": "checkpoint", "quantize": quantize, "shapes": {"tokens": [1, 8], "logits": [1]}}
        (self.folder / "model.yaml").write_text(json.dumps({**recipe, "targets": [{"backend": "onnx"}]}))
        return "model.yaml"

    def pyc(self, *arguments: object) -> None:
        here = Path.cwd()
        os.chdir(self.folder)
        try:
            assert cli.main([str(argument) for argument in arguments]) == 0
        finally:
            os.chdir(here)


def keygen(stage: Stage) -> Writer:
    return Writer(("keygen", "--name", "new"), ("home/keys/new.pem", "home/trusted/*"), is_random=True, again=False)


def keygen_to_a_file(stage: Stage) -> Writer:
    return Writer(("keygen", "-o", "ci.key"), ("ci.key",), is_random=True, again=False)


def trust_add(stage: Stage) -> Writer:
    line = "pyc-ed25519 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8= expires=2040-01-01 other"
    return Writer(("trust", "add", line), ("home/trusted/*", "home/last-days/*"))


def trust_revoke(stage: Stage) -> Writer:
    return Writer(("trust", "revoke", "0123456789abcdef", "--reason", "lost"), ("home/revoked/*",))


def announce(stage: Stage) -> Writer:
    signing_key("default")
    return Writer(("trust", "announce", "-o", "a.update", "--revoke", "0123456789abcdef", "--force"), ("a.update",))


def apply(stage: Stage) -> Writer:
    signing_key("default")
    stage.pyc("trust", "announce", "-o", "a.update", "--revoke", "0123456789abcdef", "--revoke", "0123456789abcde0")
    return Writer(("trust", "apply", "a.update"), ("home/revoked/*",))


def sign(stage: Stage) -> Writer:
    name = stage.artifact()
    signing_key("qa")
    stage.pyc("sign", name, "--name", "qa")
    signing_key("more")
    return Writer(("sign", name, "--name", "more"), ("model.pyca.sig",))


def bundle_folder(stage: Stage) -> Writer:
    arguments = ("bundle", stage.artifact(), "-o", "made", "--no-wheels")
    return Writer(arguments, ("made/*", "made/*/*"), again=False)


def bundle_tar(stage: Stage) -> Writer:
    (stage.folder / "made.tar").write_bytes(b"old")
    return Writer(
        ("bundle", stage.artifact(), "-o", "made.tar", "--no-wheels", "--format", "tar", "--force"), ("made.tar",)
    )


def bundle_oci(stage: Stage) -> Writer:
    arguments = ("bundle", stage.artifact(), "-o", "made", "--no-wheels", "--format", "oci")
    return Writer(arguments, ("made/*", "made/*/*"), again=False)


def attest(stage: Stage) -> Writer:
    (stage.folder / "bill.json").write_bytes(b"old")
    return Writer(
        ("attest", stage.artifact(), "--format", "cyclonedx", "-o", "bill.json", "--force"), ("bill.json",)
    )


def diff_page(stage: Stage) -> Writer:
    stage.artifact("old.pyca")
    (stage.folder / "page.html").write_bytes(b"old")
    return Writer(("diff", "old.pyca", stage.artifact(version="0.2"), "--html", "page.html", "--force"), ("page.html",))


def schema(stage: Stage) -> Writer:
    (stage.folder / "schema.json").write_bytes(b"old")
    return Writer(("schema", "-o", "schema.json", "--force"), ("schema.json",))


def pull(stage: Stage) -> Writer:
    """Over another version, with a signature beside each."""
    server = stage.request.getfixturevalue("server")
    for number, name in enumerate(("model.pyca", "served.pyca")):
        stage.artifact(name, version=f"0.{number}")
        with open_artifact(stage.folder / name) as opened:
            add_signature(stage.folder / name, signing_key("qa").sign(opened.prelude.pack()))
    for suffix in ("", ".sig"):
        path = stage.folder / f"served.pyca{suffix}"
        server.files[f"/model.pyca{suffix}"] = path.read_bytes()
        path.unlink()
    return Writer(("pull", f"{server.url}/model.pyca"), ("model.pyca",))


def chunks(stage: Stage) -> Writer:
    """The cache of chunks that came over a network."""
    server = stage.request.getfixturevalue("server")
    name = stage.artifact()
    server.files["/cached.pyca"] = (stage.folder / name).read_bytes()
    (stage.folder / name).unlink()
    return Writer(("verify", f"{server.url}/cached.pyca"), ("cache/chunks/*/*",), passes_over=True)


def cache_entries(stage: Stage) -> Writer:
    return Writer(("call", "fault_calls", "cache_entries"), ("cache/entries/*/*",), passes_over=True)


def tuned(stage: Stage) -> Writer:
    (stage.folder / "home").mkdir(exist_ok=True)
    return Writer(("call", "fault_calls", "tuned"), ("home/tuned.json",))


def history(stage: Stage) -> Writer:
    """Lines are added; one that is cut is passed over by who reads them."""
    return Writer(("call", "fault_calls", "history"), (), passes_over=True)


def embed(stage: Stage) -> Writer:
    (stage.folder / "v.npy").write_bytes(b"\x93NUMPY old")
    return Writer(("embed", stage.model("encoder"), "one", "two", "--npy", "v.npy", "--threads", "1"), ("v.npy",))


def generate(stage: Stage) -> Writer:
    """Writes nothing: what it reads is an artifact, keys and a policy."""
    (stage.folder / "home" / "policy.toml").write_text("[[rule]]\nthreshold = 1\n")
    return Writer(
        ("run", stage.model("decoder"), "-p", "a", "-n", "2", "--temperature", "0", "--threads", "1", "--no-mmap"), ()
    )


def export_onnx(stage: Stage) -> Writer:
    stage.pyc("build", stage.checkpoint(scheme="int8"), "-o", "model.pyca")
    return Writer(("export", "model.pyca", "out", "--to", "onnx"), ("out/*",), again=False)


def export_hf(stage: Stage) -> Writer:
    return Writer(("export", stage.checkpoint(scheme="int8"), "out", "--to", "hf"), ("out/*",), again=False, most=30)


def export_compressed(stage: Stage) -> Writer:
    arguments = ("export", stage.checkpoint(scheme="int8"), "out", "--to", "compressed-tensors")
    return Writer(arguments, ("out/*",), again=False, most=30)


def build_calibrated(stage: Stage) -> Writer:
    """Sources, cache, calibration, weights and the artifact."""
    calibration = {"text": "text.txt", "window": 32}
    recipe = stage.checkpoint(scheme="int4-g32", algorithm="gptq", calibration=calibration)
    return Writer(("build", recipe, "-o", "model.pyca"), ("model.pyca",), most=30)


SLOW = (embed, generate, export_onnx, export_hf, export_compressed, build_calibrated)
WRITERS: dict[str, Callable[[Stage], Writer]] = {
    each.__name__: each
    for each in (
        keygen,
        keygen_to_a_file,
        trust_add,
        trust_revoke,
        announce,
        apply,
        sign,
        bundle_folder,
        bundle_tar,
        bundle_oci,
        attest,
        diff_page,
        schema,
        pull,
        chunks,
        cache_entries,
        tuned,
        history,
        *(SLOW if LONG else ()),
    )
}


@pytest.fixture(scope="module")
def runner() -> Iterator[FaultRunner]:
    made = FaultRunner()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[object]:
    with serving() as made:
        yield made


@pytest.fixture
def stage(
    tmp_path: Path, key_home: Path, make_artifact: Callable[..., Path], request: pytest.FixtureRequest, monkeypatch
) -> Stage:
    folder = tmp_path / "before"
    for name in ("home", "tmp"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setenv("PYC_HOME", str(folder / "home"))
    return Stage(folder, make_artifact, request)


def is_target(writer: Writer, name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in writer.targets) and not fnmatch(name, "*.tmp")


def check(writer: Writer, before: dict[str, str], whole: dict[str, object], got: dict[str, object]) -> str:
    """What is wrong with an outcome; empty for nothing."""
    code, said, state = got["code"], got["said"], got["state"]
    new = whole["state"]
    is_kill = got["fault"][1] == KILL and bool(code == -9)
    if not is_kill and code not in CODES:
        return f"exit code {code}"
    if "Traceback" in said or "internal error" in said or said.count("error:") > 1:
        return "more than one line"
    if not is_kill and code and "pyc: error: " not in said:
        return "fails and does not say why"
    if writer.passes_over and not got["fault"][0] & OPENING and code and not is_kill:
        return "fails though it need not"
    targets = {name for name in {*state, *before, *new} if is_target(writer, name)}
    for name in targets:
        value = state.get(name)
        if value not in (before.get(name), new.get(name)) and not (writer.is_random and value is not None):
            return f"{name} is neither the old file nor the new one"
        if code == 0 and not writer.passes_over and not writer.is_random and value != new.get(name):
            return f"succeeds without {name}"
        if code == 0 and name in writer.targets and value is None:
            return f"succeeds without {name}"
    strange = [
        name
        for name, content in state.items()
        if name not in before and name not in new and not is_target(writer, name) and content != "folder"
        and not fnmatch(name, "*.part")
    ]  # fmt: skip
    if strange and not is_kill and got["struck"] not in REMOVALS:
        return f"leaves {strange[0]}"
    return check_after(writer, before, new, got, is_kill)


def check_after(
    writer: Writer, before: dict[str, str], new: dict[str, str], got: dict[str, object], is_kill: bool
) -> str:
    """The same of the undisturbed run after it."""
    after = got["after"]
    if not writer.again and any(is_target(writer, name) for name in got["state"]):
        return "" if after["code"] in (0, 8) else f"the next run ends with {after['code']}"
    if after["code"] != 0:
        return f"the next run ends with {after['code']}: {after['said'][-300:]}"
    for name in {*after["state"], *new}:
        value = after["state"].get(name)
        if is_target(writer, name) and not writer.is_random and value != new.get(name):
            return f"the next run leaves {name} as it was"
        if name not in new and not (writer.is_random and is_target(writer, name)) and not fnmatch(name, PROBES):
            if fnmatch(name, "*.tmp") and value in new.values():
                continue  # a second name of what was written, which no later run writes again
            return f"{name} outlives the next run"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_fault_at_every_system_call(
    name: str, stage: Stage, runner: FaultRunner, request: pytest.FixtureRequest
) -> None:
    writer = WRITERS[name](stage)
    memory = Path("/dev/shm")
    place = tempfile.TemporaryDirectory(prefix="pyc-faults-", dir=memory if os.access(memory, os.W_OK) else None)
    request.addfinalizer(place.cleanup)
    work = Path(place.name) / "work"
    environment = {
        "PYC_HOME": str(work / "home"),
        "PYC_CACHE_DIR": str(work / "cache"),
        "TMPDIR": str(work / "tmp"),
        "HOME": str(work / "home"),
        "PYC_CHUNK_CACHE": "on" if name == "chunks" else "off",
        **dict(writer.environment),
    }
    noise = random.Random(name)
    faults_tried, struck, wrong = 0, 0, []
    for kind in KINDS:
        base = [kind.calls, kind.fault, kind.error, int(kind.lasts)]
        whole = runner.run(stage.folder, work, writer.arguments, environment, [[*base, 0]])[0]
        assert whole["code"] == 0, whole["said"]
        before = _state(stage.folder)
        total = whole["counted"]
        places = sorted(noise.sample(range(1, total + 1), min(COUNT, total, writer.most)))
        for got in runner.run(stage.folder, work, writer.arguments, environment, [[*base, at] for at in places]):
            faults_tried += 1
            struck += bool(got["struck"] or got["code"] == -9)
            if problem := check(writer, before, whole, got):
                at = f"{kind.name} at call {got['fault'][4]} of {total} ({got['struck']})"
                wrong.append(f"{at}: {problem}; {got['code']}: {got['said'][-300:].strip()}")
    print(f"{name}: {faults_tried} faults")
    assert struck > faults_tried * 0.8, "the faults do not strike"
    assert not wrong, f"{len(wrong)} of {faults_tried}:\n" + "\n".join(wrong[:12])


def _state(folder: Path) -> dict[str, str]:
    from fault_runner import state

    return state(folder)
