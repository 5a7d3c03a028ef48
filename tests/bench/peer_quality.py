"""What each engine's storage costs: KL to transformers in float32, of the demo model on text that was held back.

Every engine scores the same tokens: whole windows of 512 of models/demo/heldout.txt, each a text of its own, of which
the second half counts, as in llama.cpp's perplexity tool. The demo model is not the one whose speed is measured; its
checkpoint is quantized by the same programs with the same options. Its 640 columns of FFN are no multiple of 256, so
llama.cpp takes a fallback of about as many bits there for storages in blocks of 256 (Q4_K_M, IQ4_K).
"""

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peer_engines import PEERS, PYC, Engine
from peer_files import WORKERS, PeerError, Place, build_artifacts, make_peer_files
from perplexity import DEMO, WINDOW, log_probabilities, windows

Document = dict[str, Any]

FIRST = WINDOW // 2
"""The first position of a window that is scored: it has as many tokens before it."""


def measure_quality(
    work: Path, pythons: Mapping[str, Path], wanted: Sequence[Engine], threads: int
) -> dict[str, Document]:
    """Return figures by engine, or {"problem": ...}: mean KL and its standard error (nats), perplexity, same top-1."""
    place = Place(DEMO / "checkpoint", work / "quality")
    place.work.mkdir(parents=True, exist_ok=True)
    parts = np.stack([part for part in windows(None) if len(part) == WINDOW]).astype(np.int32)
    targets = parts[:, FIRST + 1 :]
    reference = reference_log_probabilities(place.checkpoint, parts)
    paths = {name: place.work / name for name in ("windows.npy", "logits.npy", "reference.kld")}
    np.save(paths["windows.npy"], parts)
    write_llama_reference(paths["reference.kld"], parts, reference)
    scored = [engine for engine in wanted if engine.quality and engine.peer in pythons]
    names = dict.fromkeys(engine.weights for engine in scored if engine.peer == PYC and engine.weights)
    _, problems = build_artifacts(place, list(names), WINDOW, (1,))
    makers = {engine.maker or engine.peer for engine in scored}
    problems |= make_peer_files(place, {peer: python for peer, python in pythons.items() if peer in makers})
    found: dict[str, Document] = {}
    for engine in scored:
        problem = problems.get(engine.weights or "") or problems.get(engine.maker or engine.peer)
        if problem:
            found[engine.name] = {"problem": problem}
            continue
        try:
            answer = _score(place, pythons, engine, paths, threads)
        except PeerError as error:
            found[engine.name] = {"problem": str(error)}
            continue
        if "logits" in answer:
            answer = figures(reference, np.load(paths["logits.npy"]), targets)
            paths["logits.npy"].unlink()
        found[engine.name] = {**answer, "scored_tokens": int(targets.size)}
    paths["reference.kld"].unlink()
    return found


def _score(
    place: Place, pythons: Mapping[str, Path], engine: Engine, paths: Mapping[str, Path], threads: int
) -> Document:
    """One engine's worker. Raises PeerError."""
    python, options = pythons[engine.peer], dict(engine.options)
    if any(peer.name == engine.peer and peer.module is None for peer in PEERS):
        python, options = Path(sys.executable), {**options, "program": str(python)}
    assert engine.quality is not None and engine.weights is not None, engine.name
    job = {
        "weights": str(place.work / engine.weights),
        "checkpoint": str(place.checkpoint),
        "threads": threads,
        "options": options,
        **{name.partition(".")[0]: str(path) for name, path in paths.items()},
    }
    lines = place.run((str(python), str(WORKERS / engine.quality)), json.dumps(job)).strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise PeerError("the worker's last line is not JSON") from error


def reference_log_probabilities(checkpoint: Path, parts: np.ndarray) -> np.ndarray:
    """Log-probabilities f32 [windows, n, vocabulary] of transformers in float32 at the scored positions."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    found = []
    with torch.no_grad():
        for part in parts:
            logits = model(torch.from_numpy(part.astype(np.int64))[None]).logits[0, FIRST : WINDOW - 1].numpy()
            found.append(log_probabilities(logits).astype(np.float32))
    return np.stack(found)


def figures(reference: np.ndarray, logits: np.ndarray, targets: np.ndarray) -> Document:
    """KL(reference || engine) of logits f32 [windows, n, vocabulary], perplexity of `targets` [windows, n], top-1."""
    kl, nll, same = [], [], []
    for first, second, ids in zip(reference, logits, targets, strict=True):
        own, wide = log_probabilities(second), first.astype(np.float64)
        kl.append((np.exp(wide) * (wide - own)).sum(-1))
        nll.append(-own[np.arange(len(ids)), ids])
        same.append(first.argmax(-1) == own.argmax(-1))
    values = np.concatenate(kl)
    return {
        "kl": float(values.mean()),
        "kl_error": float(values.std() / np.sqrt(len(values) - 1)),
        "perplexity": float(np.exp(np.concatenate(nll).mean())),
        "same_top": float(np.concatenate(same).mean()),
    }


def write_llama_reference(path: Path, parts: np.ndarray, reference: np.ndarray) -> None:
    """Write tokens and log-probabilities as llama.cpp's perplexity tool writes those of a base model.

    Sixteen bits a log-probability, of those within 24 nats of the largest: `_logits_`, u32 n_ctx, i32 vocabulary and
    windows, i32 tokens, and for each scored token f32 scale and least value, then u16 codes, padded to an even number.
    """
    vocabulary = reference.shape[-1]
    with path.open("wb") as file:
        file.write(b"_logits_" + struct.pack("<Iii", WINDOW, vocabulary, len(parts)))
        file.write(parts.astype("<i4").tobytes())
        for window in reference:
            most = window.max(-1, keepdims=True)
            least = np.maximum(window.min(-1, keepdims=True), most - 24)
            scale = (most - least) / np.float32(65535)
            codes = np.zeros((len(window), 4 + vocabulary + vocabulary % 2), "<u2")
            codes[:, :4] = np.concatenate([scale, least], axis=1).astype("<f4").view("<u2")
            codes[:, 4 : 4 + vocabulary] = np.rint((np.maximum(window, least) - least) / scale)
            file.write(codes.tobytes())
