"""Perplexity of the demo model under each scheme, beside transformers in bfloat16.

    python tests/bench/perplexity.py --json quality.json --markdown quality.md

The text is models/demo/heldout.txt, cut into windows of 512 tokens that are scored on their own; the first token
of a window has nothing before it and is not scored. `kl` is the mean KL(reference || build) a token in nats,
against transformers in bfloat16 and in float32 (which is what the build's own arithmetic is nearest to);
`top1` the share of tokens whose most likely successor is the bfloat16 reference's.
"""

import argparse
import hashlib
import importlib.metadata
import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from machine_limits import best_isa

import pyc
from pyc.models.demo.corpus import read_corpus
from pyc.runtime.host.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
WINDOW = 512
SHAPES = {"context": WINDOW, "tokens": [128], "logits": [64]}
INT4 = ("int4-g32", "int4-g64", "int4-g128", "int4-g32-asym", "int4-g64-asym", "int4-g128-asym")
BUILDS = {
    "none": {},
    "int8": {"scheme": "int8"},
    "int8-g32": {"scheme": "int8-g32"},
    **{name: {"scheme": name} for name in INT4},
    **{f"{name}, embeddings too": {"scheme": name, "embeddings": name} for name in INT4},
    "int8, f32 activations": {"scheme": "int8", "activations": "f32"},
    "int4-g32, f32 activations": {"scheme": "int4-g32", "activations": "f32"},
    "none, bf16 activations": {"activations": "bf16"},
    "none, int8 keys and values": {"kv_cache": "int8"},
    "none, fp8 keys and values": {"kv_cache": "fp8"},
    "int8-g32, f32 keys and values": {"scheme": "int8-g32", "kv_cache": "f32"},
    "int8-g32, int8 keys and values": {"scheme": "int8-g32", "kv_cache": "int8"},
    "int8-g32, fp8 keys and values": {"scheme": "int8-g32", "kv_cache": "fp8"},
    "int4-g32, f32 keys and values": {"scheme": "int4-g32", "kv_cache": "f32"},
    "int4-g32, int8 keys and values": {"scheme": "int4-g32", "kv_cache": "int8"},
    "int4-g32, fp8 keys and values": {"scheme": "int4-g32", "kv_cache": "fp8"},
}
LOOKUP = (
    *("lut5-g32", "lut5-g128", "lut4-g32", "lut4-g128", "lut3-g32", "lut3-g128", "lut2-g32", "lut2-g128"),
    *("int3-g32", "int2-g32"),
)
BUILDS |= {name: {"scheme": name} for name in (*LOOKUP, "fp8")}
CALIBRATED = ("int4-g32", "int4-g32-asym", "int4-g128", "int8", "lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32")
PACKAGED, CORPUS = "packaged text", "training text"
BUILDS |= {
    f"{name}, gptq, {text}": {"scheme": name, "algorithm": "gptq"} for name in CALIBRATED for text in (PACKAGED, CORPUS)
}
TABLE = ("int4-g32", "int4-g128", "int3-g32", "lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32", "int8")
ALGORITHMS = ("rtn", "imatrix", "awq", "gptq", "yaqa")
BUILDS |= {
    f"{name} by {algorithm}": {"scheme": name, "algorithm": algorithm} for name in TABLE for algorithm in ALGORITHMS
}
VERSIONS = ("apache-tvm", "numpy", "tokenizers", "torch", "transformers", "ziglang")


@dataclass(frozen=True)
class Row:
    """One line of the table; `weights_bytes` is what the artifact stores, None for the reference."""

    name: str
    perplexity: float
    kl_bf16: float
    kl_f32: float
    top1: float
    weights_bytes: int | None


class Score:
    """Sums over windows."""

    def __init__(self) -> None:
        self.tokens = self.nll = self.kl_bf16 = self.kl_f32 = self.top1 = 0.0

    def add(self, ids: np.ndarray, got: np.ndarray, bf16: np.ndarray, f32: np.ndarray) -> None:
        """One window: ids [n], log-probabilities [n, vocab] of the build and of the two references."""
        targets = ids[1:]
        self.tokens += len(targets)
        self.nll -= float(got[np.arange(len(targets)), targets].sum())
        self.kl_bf16 += divergence(bf16, got)
        self.kl_f32 += divergence(f32, got)
        self.top1 += float((bf16.argmax(-1) == got.argmax(-1))[:-1].sum())

    def row(self, name: str, weights_bytes: int | None) -> Row:
        """The averages."""
        count = self.tokens
        return Row(
            name,
            round(float(np.exp(self.nll / count)), 4),
            float(f"{self.kl_bf16 / count:.4g}"),
            float(f"{self.kl_f32 / count:.4g}"),
            round(self.top1 / count, 5),
            weights_bytes,
        )


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Sum over the scored tokens of KL(p || q)."""
    return float((np.exp(p[:-1]) * (p[:-1] - q[:-1])).sum())


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-softmax in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def windows(limit: int | None) -> list[np.ndarray]:
    """The held-back text as windows of token ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO / "checkpoint" / "tokenizer.json"))
    ids = np.array(tokenizer.encode((DEMO / "heldout.txt").read_text("utf-8")).ids)[:limit]
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - 1, WINDOW)]


def reference(parts: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    """Log-probabilities of transformers as float32, to keep all windows in memory."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "checkpoint", dtype=getattr(torch, dtype))
    found = []
    with torch.no_grad():
        for part in parts:
            logits = model(torch.from_numpy(part)[None]).logits[0].float().numpy()
            found.append(log_probabilities(logits).astype(np.float32))
    return found


def target() -> dict[str, object]:
    """This machine's best instruction set: one library to compile instead of three."""
    isa = best_isa()
    return {"arch": isa.arch, "isa": [isa.name]}


def score_build(name: str, quantize: dict[str, object], parts, bf16, f32, folder: Path) -> Row:
    """Build the demo model and score it."""
    if name.endswith(CORPUS):
        quantize = {**quantize, "calibration": {"text": str(training_text(folder))}}
    recipe = {
        "model": str(DEMO / "checkpoint"),
        "quantize": quantize,
        "shapes": SHAPES,
        "targets": [target()],
    }
    result = pyc.build(recipe, output=folder / "model.pyca")
    score = Score()
    with pyc.load(result.path) as model:
        for ids, first, second in zip(parts, bf16, f32, strict=True):
            score.add(ids, log_probabilities(model.logits(ids)), first, second)
    return score.row(name, sum(size for _, size in result.scheme_bytes))


def training_text(folder: Path) -> Path:
    """A file of the text that the demo model was trained on; none of it is scored."""
    path = folder / "training.txt"
    if not path.exists():
        # Every file's beginning, in the order of a hash: what is taken from the front is of every kind.
        files = sorted(read_corpus().training, key=lambda file: hashlib.sha256(file.name.encode()).hexdigest())
        path.write_text("\n\n".join(file.text[:4096] for file in files), "utf-8")
    return path


def table(rows: list[Row]) -> str:
    """The rows as markdown."""
    head = "| build | perplexity | KL to bf16 | KL to f32 | top-1 as bf16 | weights, MB |\n|---|---|---|---|---|---|\n"
    lines = (
        f"| {row.name} | {row.perplexity:.3f} | {row.kl_bf16:.2g} | {row.kl_f32:.2g} | {100 * row.top1:.2f} % "
        f"| {'' if row.weights_bytes is None else f'{row.weights_bytes / 1e6:.2f}'} |\n"
        for row in rows
    )
    return head + "".join(lines)


def main() -> None:
    """Score every build and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--tokens", type=int, help="score only the first of the text")
    parser.add_argument("--only", nargs="*", choices=list(BUILDS), help="these builds (default: all)")
    options = parser.parse_args()
    parts = windows(options.tokens)
    bf16, f32 = reference(parts, "bfloat16"), reference(parts, "float32")
    rows = []
    for name, own in (("transformers bf16", bf16), ("transformers f32", f32)):
        score = Score()
        for ids, got, first, second in zip(parts, own, bf16, f32, strict=True):
            score.add(ids, got, first, second)
        rows.append(score.row(name, None))
    with tempfile.TemporaryDirectory(prefix="pyc-perplexity-") as folder:
        for name in options.only or BUILDS:
            rows.append(score_build(name, BUILDS[name], parts, bf16, f32, Path(folder)))
            print(rows[-1], flush=True)
            if options.json:
                write_json(options.json, rows, parts)
    print(table(rows))
    if options.markdown:
        options.markdown.write_text(table(rows), "utf-8")


def write_json(path: Path, rows: list[Row], parts: list[np.ndarray]) -> None:
    """What is scored so far, and where."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    document = {
        "rows": [asdict(row) for row in rows],
        "scored_tokens": sum(len(part) - 1 for part in parts),
        "window": WINDOW,
        "evaluated_text": "models/demo/heldout.txt",
        "calibration_text": f"passes/calibration/calibration.txt, or where a row says so, the {CORPUS}",
        "commit": commit.stdout.strip(),
        "machine": asdict(describe_machine()),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
