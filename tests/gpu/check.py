"""Runs the demo models on this machine's GPU and compares them with what the CPU computed where they were built.

    python tests/gpu/check.py [--work build/gpu] [--out results.json]

Exit status 1 where they differ by more than rounding.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kernel_cases import run_cases

from pyc.runtime.model import Model, load

KL_BOUND = 1e-5
"""Weights are the same on both sides, activations f32 there and two bf16 here, caches f16 on both."""
MARGIN = 1e-2
"""Where the likeliest two logits are closer than this, either may be chosen."""
ROUNDED: dict[str, tuple[float, float | None]] = {
    "demo-fp8": (2e-2, None),
    "demo-mxfp8": (2e-2, 1.0),
    "demo-kv-int8": (1e-3, 0.2),
    "demo-kv-fp8": (1e-3, 0.2),
}
"""The same two of models whose activations are rounded: one number beside a tie gives a token, and those behind it,
other roundings, which cost 0.005. Of demo-fp8 greedy tokens are not compared (None): steps multiply bf16 on GPUs and
e4m3 on CPUs. On the emulated device its prompts differ by 0.0024 at most, and those of demo-mxfp8 by 0.0033, as queries
are rounded in attention. Products by bf16, which other GPUs have in its place, differ from the CPU by as much (0.005):
this bound finds errors, and not which of the two was multiplied; tests/reference/test_cuda.py does. Of caches of 8 bits
a code beside a tie costs up to 1.2e-4, and logits differ by up to 0.09: on an H200 and on the emulated device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/gpu"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    manifest = json.loads((given.work / "manifest.json").read_text())
    models: dict[str, dict[str, object]] = {}
    for path in sorted(given.work.glob("demo*.pyca")):
        with load(path, backend="cuda", trust=manifest["key"]) as model:
            prompts = compare(model, np.load(path.with_suffix(".npz")), *ROUNDED.get(path.stem, (KL_BOUND, MARGIN)))
            models[path.stem] = {"isa": model.executor.isa, "prompts": prompts}
        models[path.stem]["is_right"] = bool(prompts) and all(prompt["is_right"] for prompt in prompts)
    cases = run_cases(given.work / "cases") if (given.work / "cases").exists() else []
    is_right = bool(models) and all(each["is_right"] for each in (*models.values(), *cases))
    report = {"commit": manifest["commit"], "models": models, "kernels": cases, "is_right": is_right}
    text = json.dumps(report, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text)
    return 0 if is_right else 1


def compare(
    model: Model, expected: np.lib.npyio.NpzFile, kl_bound: float = KL_BOUND, margin: float | None = MARGIN
) -> list[dict[str, object]]:
    """Return, for each prompt, how far logits are from those expected, and whether greedy tokens are the same (None:
    they are not compared, as there is no margin)."""
    found = []
    for number in range(sum(name.startswith("ids") for name in expected)):
        ids, wanted = expected[f"ids{number}"].tolist(), expected[f"logits{number}"]
        logits = model.logits(ids)[-len(wanted) :]
        kl = float(divergence(wanted, logits).mean())
        agreed = None
        if margin is not None:
            tokens = [token.id for token in model.generate(ids, max_tokens=32, temperature=0, ignore_eos=True)]
            agreed = agreement(model, ids, expected[f"tokens{number}"].tolist(), tokens, margin)
        found.append(
            {
                "tokens": len(ids),
                "mean_kl": kl,
                "largest_difference": float(np.abs(wanted - logits).max()),
                "greedy_tokens_agree": agreed,
                "is_right": bool(kl <= kl_bound) and agreed is not False,
            }
        )
    return found


def divergence(wanted: np.ndarray, got: np.ndarray) -> np.ndarray:
    """KL of the distributions of logits [rows, vocab], by row, in float64."""
    p, q = (np.asarray(x, np.float64) - np.asarray(x, np.float64).max(1, keepdims=True) for x in (wanted, got))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    return (np.exp(p) * (p - q)).sum(1)


def agreement(model: Model, ids: list[int], wanted: list[int], got: list[int], margin: float = MARGIN) -> bool:
    """Whether tokens are the same up to the first place where rounding may decide."""
    for place, (token, other) in enumerate(zip(wanted, got, strict=False)):
        if token != other:
            logits = model.logits([*ids, *wanted[:place]])[-1]
            return bool(abs(logits[token] - logits[other]) < margin)
    return len(wanted) == len(got)


if __name__ == "__main__":
    sys.exit(main())
