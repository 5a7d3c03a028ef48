"""What rounding the weights of a decoder costs, activations in f32: pyc's schemes and algorithms, and ggml's types.

    python tests/bench/weights_quality.py CHECKPOINT SCORED CALIBRATION --schemes lut4-g32:gptq int8:rtn 5.5:gptq
    python tests/bench/weights_quality.py CHECKPOINT SCORED CALIBRATION --ggml ./ggml_round --types IQ4_K Q4_0:plain

CHECKPOINT is a folder, SCORED and CALIBRATION are texts; both are read in windows of 512 tokens, as many as
--scored-tokens and --tokens say. Figures are against transformers in float32 at all positions: mean KL and its standard
error (nats), same most likely token, perplexity. Schemes of pyc are interpreted, as they are for calibration; a
number in place of one is `quantize.bits_per_weight`, and schemes are chosen by that.

ggml's types are rounded by workers/ggml_round.c with an importance matrix of the same calibration text, unless
`:plain` says otherwise, and put into transformers. Which type a tensor takes is llama-quantize's choice for two query
heads a key head; of columns that are not in 256s, the type that it falls back to. Embedding and head are Q8_0, as with
`--token-embedding-type q8_0 --output-tensor-type q8_0`, since pyc's are int8 where a scheme is named; with `:own`, of a
tied one, what llama-quantize takes by itself.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.calibration.calibrate import calibrate
from pyc.passes.driver.build import build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.driver.plan import plan
from pyc.passes.interpretation.interpret_text import Windows, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.passes.mixed_precision.mix_schemes import mix_schemes
from pyc.runtime.measure.quality import log_probabilities

WINDOW = 512
GGML = {
    **{"Q4_0": 2, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20},
    **{"IQ3_K": 138, "IQ4_K": 139, "IQ5_K": 140, "IQ4_KS": 144, "IQ2_KL": 157},
}
"""Numbers of ik_llama.cpp's `enum ggml_type`."""
VALUES = {"IQ4_K": "IQ5_K", "IQ3_K": "IQ4_K", "IQ2_KL": "IQ4_KS"}
"""The type of v_proj beside that of the others."""
HEADS = {"Q4_0": "Q6_K", "Q4_K_M": "Q6_K", "IQ4_K": "Q6_K", "IQ3_K": "Q5_K", "IQ2_KL": "Q5_K"}
"""What llama-quantize takes for a head that is the embedding, too, where nothing else is asked for."""
FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0", "IQ4_K": "Q5_0", "IQ3_K": "IQ4_NL", "IQ2_KL": "IQ4_NL"}
"""The type of matrices whose columns are not a multiple of 256."""
Figures = dict[str, float | int | str | bool]


def windows(checkpoint: Path, text: Path, tokens: int) -> Windows:
    """The first tokens of a text in whole windows."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = np.array(tokenizer.encode(text.read_text("utf-8")[: tokens * 16]).ids[:tokens], np.int32)
    count = len(ids) // WINDOW
    return Windows(ids[: count * WINDOW].reshape(count, WINDOW), text.name)


def figures(reference: np.ndarray, predicted: np.ndarray, windows: Windows) -> Figures:
    """Compare log-probabilities f32 [tokens, vocabulary] with those of the reference."""
    kl, nll, same = [], [], 0
    for start, ids in zip(range(0, len(reference), WINDOW), windows.ids, strict=True):
        p, q = (each[start : start + WINDOW].astype(np.float64) for each in (reference, predicted))
        kl.append((np.exp(p) * (p - q)).sum(-1))
        nll.append(-q[np.arange(WINDOW - 1), ids[1:]])
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
    values = np.concatenate(kl)
    return {
        "kl": float(values.mean()),
        "kl_error": float(values.std() / len(values) ** 0.5),
        "same_top": same / len(values),
        "perplexity": float(np.exp(np.concatenate(nll).mean())),
        "scored_tokens": len(values),
    }


class Transformers:
    """The checkpoint in transformers, float32."""

    def __init__(self, checkpoint: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.exact = {name: value.detach().clone() for name, value in self.model.named_parameters() if value.ndim == 2}

    def predicted(self, given: Windows) -> np.ndarray:
        """Log-probabilities f32 [tokens, vocabulary]."""
        with torch.no_grad():
            rows = (self.model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0] for ids in given.ids)
            return np.concatenate([torch.log_softmax(row.double(), -1).float().numpy() for row in rows])

    def importances(self, given: Windows) -> dict[str, np.ndarray]:
        """Mean squares of the inputs of each matrix, by the name of its weight."""
        found: dict[str, torch.Tensor] = {}

        def remember(name: str) -> object:
            def seen(module: torch.nn.Module, x: tuple[torch.Tensor, ...]) -> None:
                squares = x[0].reshape(-1, x[0].shape[-1]).double().square().sum(0)
                found[name] = found[name] + squares if name in found else squares

            return seen

        linear = [(name, part) for name, part in self.model.named_modules() if isinstance(part, torch.nn.Linear)]
        hooks = [part.register_forward_pre_hook(remember(f"{name}.weight")) for name, part in linear]
        self.predicted(given)
        for hook in hooks:
            hook.remove()
        return {name: (sums / given.ids.size).numpy().astype(np.float32) for name, sums in found.items()}


def ggml_type(kind: str, name: str, columns: int, layers: int, head: str) -> str:
    """The type that llama-quantize gives a tensor, by the file's type; `head` is that of what is in no layer."""
    if ".layers." not in name:
        return head
    wanted = _wanted_type(kind, name, layers)
    return FALLBACKS.get(wanted, wanted) if columns % 256 else wanted


def _wanted_type(kind: str, name: str, layers: int) -> str:
    base = "Q4_K" if kind == "Q4_K_M" else kind
    layer = int(name.split(".")[2])
    has_more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if kind == "Q4_K_M" and has_more and ("v_proj" in name or "down_proj" in name):
        return "Q6_K"
    return VALUES.get(kind, base) if "v_proj" in name else base


def of_ggml(
    options: argparse.Namespace, model: Transformers, reference: np.ndarray, scored: Windows
) -> Iterator[Figures]:
    """Round by each type."""
    given = windows(options.checkpoint, options.calibration, options.tokens)
    importances = model.importances(given)
    layers = model.model.config.num_hidden_layers
    for wanted in options.types:
        kind, _, option = wanted.partition(":")
        parameters = dict(model.model.named_parameters())
        layer_bytes = layer_weights = size_bytes = 0
        for name, exact in model.exact.items():
            weights, importance = exact.numpy(), None if option == "plain" else importances.get(name)
            head = HEADS.get(kind, "Q8_0") if option == "own" else "Q8_0"
            number = str(GGML[ggml_type(kind, name, weights.shape[1], layers, head)])
            command = (str(options.ggml), number, *map(str, weights.shape), str(int(importance is not None)))
            sent = weights.tobytes() + (b"" if importance is None else importance.tobytes())
            done = subprocess.run(command, input=sent, capture_output=True, check=True)
            rounded = np.frombuffer(done.stdout, np.float32).reshape(weights.shape)
            parameters[name].data.copy_(torch.from_numpy(rounded.copy()))
            size_bytes += int(done.stderr)
            if ".layers." in name:
                layer_bytes, layer_weights = layer_bytes + int(done.stderr), layer_weights + weights.size
        yield {
            "name": kind,
            "imatrix": option != "plain",
            "has_own_head": option == "own",
            "layer_bits": round(8 * layer_bytes / layer_weights, 3),
            "bytes": size_bytes,
            **figures(reference, model.predicted(scored), scored),
        }


def of_pyc(options: argparse.Namespace, reference: np.ndarray, scored: Windows) -> Iterator[Figures]:
    """Round by each scheme and algorithm."""
    given = windows(options.checkpoint, options.calibration, options.tokens)
    for wanted in options.schemes:
        scheme, _, algorithm = wanted.partition(":")
        started = time.monotonic()
        is_goal = scheme.replace(".", "").isdigit()
        quantize = {"bits_per_weight": float(scheme)} if is_goal else {"scheme": scheme}
        calibration = {"text": str(options.calibration.resolve()), "tokens": options.tokens}
        quantize |= {"algorithm": algorithm, "calibration": calibration}
        recipe = recipe_from({"model": str(options.checkpoint), "quantize": quantize})
        with (
            tempfile.TemporaryDirectory() as folder,
            build_context(Cache(Path(folder) / "cache" if is_goal else None), 2) as context,
        ):
            files = context.files
            ingested = ingest_recipe(recipe, files, None, {})
            if is_goal:
                mixture = mix_schemes(ingested, context, lambda *what: None)
                assert mixture is not None
                recipe = mixture.recipe
            module = ingested.stored(recipe.quantize)
            if algorithm != "rtn":
                module = calibrate(module, given, files, Cache(None), Path(folder), lambda count: None, algorithm)
            calibration_s = time.monotonic() - started
            predictor, made = Predictor(module, scored), module

            def rows_of(name: str, start: int, stop: int, made=made, files=files) -> np.ndarray:
                return stored_rows(name, made.weights[name], start, stop, files)

            logits = predictor.predictions(predictor.inputs(), 0, rows_of, predictor.positions(1 << 40))
        parts = [log_probabilities(logits[start : start + WINDOW]) for start in range(0, len(logits), WINDOW)]
        found = figures(reference, np.concatenate(parts).astype(np.float32), scored)
        sizes = {"bytes": plan(recipe).weights_bytes}
        yield {"name": scheme, "algorithm": algorithm, "calibration_s": round(calibration_s, 1), **sizes, **found}


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("scored", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--schemes", nargs="*", default=[], help="SCHEME:ALGORITHM or BITS:ALGORITHM")
    parser.add_argument("--ggml", type=Path, help="the program made of workers/ggml_round.c")
    parser.add_argument("--types", nargs="*", default=[], help="of llama-quantize's files; TYPE:plain, TYPE:own")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--scored-tokens", type=int, default=5120)
    options = parser.parse_args()
    options.checkpoint = options.checkpoint.resolve()
    model = Transformers(options.checkpoint)
    scored = windows(options.checkpoint, options.scored, options.scored_tokens)
    reference = model.predicted(scored)
    if options.types:
        for found in of_ggml(options, model, reference, scored):
            print(json.dumps(found), flush=True)
    for found in of_pyc(options, reference, scored):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
