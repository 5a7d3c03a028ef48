"""Makes build/gpu, what travels to a machine with a GPU: artifacts, wheels for it, and what the CPU computes.

    python tests/gpu/prepare.py [--out build/gpu] [--arch sm_90a ...] [--without-shapes]

The demo model has its weights; those of the shapes are made on the GPU. All of it takes less than 42 MiB, and 64 with
this checkout. No GPU is needed here; `make gpu-test` and `make gpu-bench` run there.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "bench"), str(Path(__file__).parent)]

from hollow_checkpoint import LLAMA_1B, LLAMA_8B, LlamaShape, write_hollow_checkpoint  # noqa: E402
from kernel_cases import write_cases  # noqa: E402

from pyc.passes.driver.build import build  # noqa: E402
from pyc.passes.driver.build_programs import build_programs  # noqa: E402
from pyc.runtime.artifact.trust.key_sources import choose_key  # noqa: E402
from pyc.runtime.model import load  # noqa: E402

MOST_BYTES = 42 << 20
LONG_PROMPT = "".join(f"def area_{n}(width, height={n}):\n    return width * height + {n * n}\n\n" for n in range(36))
"""Some 900 tokens of the demo model, whose context is 1024: every bucket, and attention over many blocks."""
PROMPTS = (
    *("import os\n\ndef read_", "class Tree:\n    def __init__(self", "for i in range(10):\n    print("),
    LONG_PROMPT,
)
LAST_ROWS = 8
"""Rows of logits that are stored, the last ones of a prompt."""
SHAPES = {"1b": LLAMA_1B, "8b": LLAMA_8B}
SCHEMES: dict[str, dict[str, object]] = {
    "bf16": {"scheme": "none", "activations": "bf16"},
    "fp8": {"scheme": "fp8", "activations": "bf16"},
    "fp8x8": {"scheme": "fp8", "activations": "fp8"},
    "int4": {"scheme": "int4-g128", "activations": "bf16"},
}
TWO_BITS = {"scheme": "lut2-g32", "embeddings": "lut3-g128"}
DEMOS: dict[str, dict[str, object]] = {
    "demo": {"scheme": "int8"},
    "demo-fp8": {"scheme": "fp8", "activations": "fp8"},
    "demo-mxfp8": {"scheme": "fp8", "activations": "mxfp8"},
    "demo-kv-int8": {**TWO_BITS, "kv_cache": "int8"},
    "demo-kv-fp8": {**TWO_BITS, "kv_cache": "fp8"},
    "demo-tables": {
        "scheme": "lut4-g32",
        "embeddings": "lut3-g128",
        "overrides": [
            {"match": "re:.*o_proj.*", "scheme": "lut3-g32"},
            {"match": "re:.*(q|k|v)_proj.*", "scheme": "lut5-g32"},
            {"match": "re:.*(gate|up)_proj.*", "scheme": "lut2-g32"},
            {"match": "re:.*down_proj.*", "scheme": "ternary"},
        ],
    },
}
"""How the demo model is stored: CPU and GPU compute the same of each, but for rounding, and steps of demo-fp8."""
BUCKETS = {"context": 4096, "tokens": [1, 8, 64, 512, 2048], "batch": [64], "logits": [1, 8, 64]}
LONG_SHAPE = replace(LLAMA_8B, positions=32768)
LONG_BUCKETS = {"context": 32768, "tokens": [1, 8, 2048], "batch": [8], "logits": [1, 8]}
LONG_CACHES = {"f16": "8b-long", "fp8": "8b-long-kv-fp8", "int8": "8b-long-kv-int8"}
"""The 8B shape by int4, with contexts eight times as long and caches of each dtype."""
WHEELS = (
    *("blake3", "cffi", "click", "jinja2", "lz4", "markupsafe"),
    *("msgspec", "pycparser", "pynacl", "tokenizers", "zstandard"),
)
"""What a machine that has torch lacks of what pyc needs: it has numpy, which is a quarter of what may travel."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--arch", nargs="+", default=["sm_90a"])
    parser.add_argument("--python", default="3.12", help="the version there")
    parser.add_argument("--without-shapes", action="store_true")
    parser.add_argument("--without-wheels", action="store_true")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, quantize in DEMOS.items():
        build_demo(given.out / f"{name}.pyca", quantize, given.arch)
    if not given.without_shapes:
        for shape in SHAPES:
            for scheme in SCHEMES:
                build_shape(given.out / f"{shape}-{scheme}.pyca", SHAPES[shape], SCHEMES[scheme], BUCKETS, given.arch)
        for cache, name in LONG_CACHES.items():
            quantize = {**SCHEMES["int4"], "kv_cache": cache}
            build_shape(given.out / f"{name}.pyca", LONG_SHAPE, quantize, LONG_BUCKETS, given.arch)
    if len(given.arch) == 1:
        write_cases(given.out / "cases", given.arch[0])
    if not given.without_wheels:
        collect_wheels(given.out / "wheels", given.python)
    write_manifest(given.out, given.arch)
    size = sum(path.stat().st_size for path in given.out.rglob("*") if path.is_file())
    print(f"{given.out}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        raise SystemExit(f"that is more than {MOST_BYTES >> 20} MiB")


def build_demo(target: Path, quantize: dict[str, object], archs: Sequence[str]) -> None:
    """Build the demo model for GPUs, and store what a CPU computes of the same recipe."""
    recipe = {
        "model": str(ROOT / "models" / "demo" / "checkpoint"),
        "quantize": {"activations": "f32", **quantize},
        "shapes": {"context": 1024, "tokens": [1, 16, 128], "logits": [1, 16]},
        "artifact": {"codec": "zstd"},
    }
    with tempfile.TemporaryDirectory() as folder:
        on_cpu = Path(folder) / "cpu.pyca"
        build({**recipe, "targets": [{"backend": "cpu"}]}, output=on_cpu)
        store_expected(on_cpu, target.with_suffix(".npz"), "cpu")
    build({**recipe, "targets": [{"backend": "cuda", "arch": list(archs)}]}, output=target, force=True)


def store_expected(artifact: Path, target: Path, backend: str) -> None:
    """Store ids, logits of the last rows, and greedy tokens of prompts."""
    arrays: dict[str, np.ndarray] = {}
    with load(artifact, backend=backend) as model:
        for number, prompt in enumerate(PROMPTS):
            ids = model.tokenizer.encode(prompt)
            tokens = [token.id for token in model.generate(ids, max_tokens=32, temperature=0, ignore_eos=True)]
            arrays |= {f"ids{number}": np.array(ids), f"logits{number}": model.logits(ids)[-LAST_ROWS:].copy()}
            arrays[f"tokens{number}"] = np.array(tokens)
    np.savez_compressed(target, **arrays)


def build_shape(
    target: Path, shape: LlamaShape, quantize: dict[str, object], buckets: dict[str, object], archs: Sequence[str]
) -> None:
    """Build the programs of a shape without weights."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = {
            "model": str(write_hollow_checkpoint(Path(folder), shape)),
            "quantize": quantize,
            "shapes": buckets,
            "targets": [{"backend": "cuda", "arch": list(archs)}],
        }
        build_programs(recipe, output=target, force=True)


def collect_wheels(folder: Path, python: str) -> None:
    """Put pyc's wheel there, and `WHEELS`, for x86-64 and that version of Python."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)
    platforms = [
        option
        for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        for option in ("--platform", f"{name}_x86_64")
    ]
    wanted = ["--only-binary", ":all:", "--python-version", python, *platforms, "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, "download", "--no-deps", *wanted, "-d", folder, *WHEELS], check=True)


def write_manifest(out: Path, archs: Sequence[str]) -> None:
    """Say whose signature artifacts have, and of which commit they are."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    manifest = {"key": choose_key().key.public.text(), "commit": commit.stdout.strip(), "archs": list(archs)}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2))


if __name__ == "__main__":
    main()
