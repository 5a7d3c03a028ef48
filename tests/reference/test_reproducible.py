"""The same recipe gives the same bytes, whatever the folder, hash seed, time zone, umask, locale, workers and
variables that compilers obey.

Each build is a process of its own with an empty cache, so that nothing is taken from the other. Two instruction
sets, so that what one leaves behind could show in the next.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys

import pytest

from pyc.compiler.recipe.types import ISAS
from pyc.runtime.artifact.reader import open_artifact

RECIPE = """\
model: checkpoint
adapters: [{path: adapter, weight: 0.5}]
quantize: {scheme: int4-g32, embeddings: int8}
shapes: {tokens: [1, 8], logits: [1]}
targets: [TARGET]
"""
MACHINE = platform.machine()
TARGET = f"{{arch: {MACHINE}, isa: [{', '.join(ISAS[MACHINE][:2])}]}}"
UMASKS = {"first": 0o022, "second": 0o077}
SETTINGS = {
    "first": {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "workers": "1"},
    "second": {
        "PYTHONHASHSEED": "31337",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "2",
        "SOURCE_DATE_EPOCH": "1",
        "COLUMNS": "40",
        "CPATH": "/nonexistent:/usr/include",
        "CCC_OVERRIDE_OPTIONS": "# +-ffast-math",
        "ZIG_LIB_DIR": "/nonexistent",
        "ZIG_LIBC": "/nonexistent",
        "TVM_LIBRARY_PATH": "/nonexistent",
        "TVM_USE_RUNTIME_LIB": "1",
        "workers": "3",
    },
}


@pytest.fixture(scope="module")
def documents(tiny_checkpoint, tiny_adapter, tmp_path_factory):
    """The reports of two builds in different surroundings, with the same signing key."""
    checkpoint = tiny_checkpoint("qwen2", hidden_size=64, intermediate_size=96, dtype="bfloat16", sharded=True)
    adapter = tiny_adapter(checkpoint, "lora", r=2, target_modules=["q_proj", "up_proj"])
    keys = tmp_path_factory.mktemp("keys")
    found = {}
    for name, settings in SETTINGS.items():
        home = tmp_path_factory.mktemp(f"{name}-place with a space") / ("deeper" if name == "second" else "")
        home.mkdir(exist_ok=True)
        shutil.copytree(checkpoint, home / "checkpoint")
        shutil.copytree(adapter, home / "adapter")
        (home / "model.yaml").write_text(RECIPE.replace("TARGET", TARGET))
        found[name] = build(home, keys, settings, UMASKS[name])
    return found


def build(home, keys, settings, umask):
    """Build in a fresh process from another folder; the report and the hash of the file."""
    ours = ("PYC_", "PYTHONHASH", "OPENBLAS_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment.update({key: value for key, value in settings.items() if key != "workers"})
    environment.update(PYC_HOME=str(keys), PYC_CACHE_DIR=str(home / "cache"), TMPDIR=str(home))
    command = [
        sys.executable,
        "-m",
        "pyc",
        "build",
        str(home / "model.yaml"),
        "--json",
        "--workers",
        settings["workers"],
    ]
    result = subprocess.run(
        command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False, umask=umask
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    document["file"] = hashlib.sha256((home / "model.pyca").read_bytes()).hexdigest()
    document["left"] = sorted(os.listdir(home))
    return document


def test_the_bytes_are_the_same(documents):
    first, second = documents["first"], documents["second"]
    assert first["path"] != second["path"]
    assert first["cache_hits"] == second["cache_hits"] == 0
    assert first["sha256"] == first["file"] == second["sha256"] == second["file"]


def test_nothing_but_the_artifact_and_the_cache_appears(documents):
    expected = ["adapter", "cache", "checkpoint", "model.pyca", "model.yaml"]
    assert documents["first"]["left"] == documents["second"]["left"] == expected


def test_the_artifact_names_no_place(documents):
    """Neither the folders nor the user's home stand anywhere in the file, compiled code included."""
    for document in documents.values():
        with open_artifact(document["path"]) as artifact:
            parts = [artifact.blob(blob.name) for blob in artifact.header.blobs if blob.name.endswith(".so")]
            ours = [part for part in parts if b"pyc_linear" in part]
            assert len(ours) == 2
            text = artifact.header.provenance.recipe.encode()
            for place in (os.path.dirname(document["path"]), os.path.expanduser("~/"), "pyc-tvm-", "zig-cache"):
                assert all(place.encode() not in part for part in [*ours, text]), place
