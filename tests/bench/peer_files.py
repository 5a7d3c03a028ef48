"""What the engines load: pyc's artifacts, GGUF files, and the folders that the other peers' exporters write."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine_limits import best_isa
from peer_engines import AVX2, GGUF_TYPES, IK_GGUF_TYPES, PYC_STORAGES

from pyc.backends.cpu.isa import ISAS

WORKERS = Path(__file__).with_name("workers")
ERROR_LINES = 6
READ_BYTES = 1 << 20
TIMEOUT_S = 3600
PYC_TOKENS = (1, 16, 128, 512)  # the default of a recipe


def read_anew(weights: Path) -> None:
    """Drop a file, or those of a folder, from the page cache, and read them into it from disk.

    Pages of a file that was just written lie scattered over memory, those that were read ahead of a reader together;
    decoding reads the latter up to a tenth faster, and files of a former sitting are of that kind.
    """
    for path in [weights] if weights.is_file() else sorted(weights.rglob("*")):
        if not path.is_file():
            continue
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            buffer = bytearray(READ_BYTES)
            while file.readinto(buffer):
                pass


class PeerError(Exception):
    """A process of an engine failed; the message is the end of what it said."""


@dataclass(frozen=True)
class Place:
    """Where a comparison lives: the checkpoint it is about, and the folder for everything made from it."""

    checkpoint: Path
    work: Path

    @property
    def states(self) -> Path:
        """The folder of what engines computed from this checkpoint and keep: it goes with the checkpoint's files."""
        return self.work / "states" / hashlib.sha256(repr(_fingerprint(self.checkpoint)).encode()).hexdigest()[:16]

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: keys and caches in the work folder, nothing from the network."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        own = {"PYC_HOME": str(self.work / "home"), "PYC_CACHE_DIR": str(self.work / "cache"), "HF_HUB_OFFLINE": "1"}
        return {**inherited, **own, "HF_HOME": str(self.work / "hub"), "TOKENIZERS_PARALLELISM": "false"}

    def run(self, command: Sequence[str], standard_input: str = "") -> str:
        """Standard output of a command. Raises PeerError, which names no folder of this machine."""
        try:
            done = subprocess.run(
                command,
                input=standard_input,
                env=self.environment,
                cwd=self.work,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"no end after {TIMEOUT_S} s") from error
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-ERROR_LINES:]
            raise PeerError(self.anonymous("\n".join([f"exit status {done.returncode}", *lines]), Path(command[0])))
        return done.stdout

    def anonymous(self, text: str, python: Path) -> str:
        """`text` of an interpreter with the folders of this machine replaced by what they are."""
        folders = {
            self.work: "WORK",
            self.checkpoint: "CHECKPOINT",
            WORKERS.parents[2]: "REPOSITORY",
            python.parents[1]: "ENVIRONMENT",
            Path(sys.base_prefix): "PYTHON",
            Path.home(): "HOME",
        }
        for folder, name in sorted(folders.items(), key=lambda item: -len(str(item[0]))):
            text = text.replace(str(folder), name)
        return text


def build_artifacts(
    place: Place, names: Sequence[str], context: int, batches: Sequence[int]
) -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """Build pyc's artifacts `names` for this machine's best instruction set and for AVX2, each in a process.

    Returns what `pyc build` reports, and errors, by name.
    """
    isa = best_isa()
    lesser = [AVX2] if isa.arch == ISAS[AVX2].arch and isa.rank > ISAS[AVX2].rank else []
    reports, errors = {}, {}
    for name in names:
        recipe = {
            "model": str(place.checkpoint),
            "quantize": PYC_STORAGES[name],
            "shapes": {
                "context": context,
                "batch": list(batches),
                "tokens": sorted({*PYC_TOKENS, *batches}),
                "logits": sorted({1, *batches}),
            },
            "targets": [{"arch": isa.arch, "isa": [*lesser, isa.name]}],
        }
        path = place.work / f"{name}.yaml"
        path.write_text(json.dumps(recipe), "utf-8")
        output = place.work / name
        command = (sys.executable, "-m", "pyc", "build", str(path), "-o", str(output), "--json")
        try:
            report = json.loads(place.run(command))
        except PeerError as error:
            errors[name] = f"could not be built: {error}"
            continue
        reports[name] = {field: report[field] for field in ("elapsed_s", "size_bytes", "peak_rss_bytes", "cache_hits")}
    return reports, errors


def make_peer_files(place: Place, pythons: Mapping[str, Path]) -> dict[str, str]:
    """Make what the peers in `pythons` load, unless it is there for the same checkpoint; errors by peer."""
    errors = {}
    stamp = place.work / "peer-files.json"
    known = json.loads(stamp.read_text("utf-8")) if stamp.exists() else {}
    content = _fingerprint(place.checkpoint)
    for peer, python in pythons.items():
        command = _maker(peer, python, place)
        if command is None:
            continue
        scripts = [Path(part).read_text("utf-8") for part in command if part.startswith(str(WORKERS))]
        wanted = {"command": command, "scripts": scripts, "checkpoint": content}
        if known.get(peer) == wanted:
            continue
        try:
            place.run(command)
        except PeerError as error:
            errors[peer] = f"could not make its files: {error}"
            continue
        known[peer] = wanted
        stamp.write_text(json.dumps(known, indent=1), "utf-8")
    return errors


def _maker(peer: str, python: Path, place: Place) -> list[str] | None:
    """The command that makes a peer's files, None where it loads the checkpoint."""
    checkpoint = str(place.checkpoint)
    if peer == "llama.cpp":
        return [str(python), str(WORKERS / "make_gguf.py"), checkpoint, str(place.work / "gguf"), *GGUF_TYPES]
    if peer == "ik_llama.cpp":  # from a file of llama.cpp's, which comes before it
        script = str(WORKERS / "make_gguf_ik.py")
        return [sys.executable, script, str(python), str(place.work / "gguf"), *IK_GGUF_TYPES]
    if peer == "onnxruntime-genai":
        builder = [str(python), "-m", "onnxruntime_genai.models.builder", "-m", checkpoint]
        storage = ["-p", "int4", "-e", "cpu", "--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
        return [*builder, "-o", str(place.work / "onnxruntime-int4"), "-c", str(place.work / "hub"), *storage]
    if peer == "openvino-genai":
        export = [str(python.with_name("optimum-cli")), "export", "openvino", "-m", checkpoint]
        storage = ["--weight-format", "int4", "--sym", "--group-size", "32", "--ratio", "1.0"]
        task = ["--task", "text-generation-with-past"]
        return [*export, *task, *storage, str(place.work / "openvino-int4")]
    return None


def _fingerprint(checkpoint: Path) -> list[list[object]]:
    """Name, size and time of every file of the checkpoint."""
    stats = ((path.name, path.stat()) for path in sorted(checkpoint.iterdir()) if path.is_file())
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
