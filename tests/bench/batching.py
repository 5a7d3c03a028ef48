"""Tokens a second of several requests through `Model.generate`, beside one at a time.

    python tests/bench/batching.py ARTIFACT --out batching.json

Requests of random prompts, greedy, each with the same number of tokens, alone and 2, 4, ... at a time (as many as the
artifact has sequences), in turn within a round. Times are from the first call to the last token, prompts included, and
of decoding alone: from the moment that every request has its first token. Checks that each request gives the tokens
that it gives alone.
"""

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from peers import commit, say

import pyc
from pyc.runtime.host.machine import describe_machine
from pyc.runtime.model import Model


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each request")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with pyc.load(options.artifact, threads=options.threads) as model:
        random = np.random.default_rng(0)
        most = model.info.max_sequences
        prompts = random.integers(0, model.info.vocab_size, (most, options.prompt)).tolist()
        alone = [run(model, [prompt], options.tokens)[2][0] for prompt in prompts]
        counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
        whole: dict[int, list[float]] = {count: [] for count in counts}
        decode: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            for count in counts:
                total_s, decode_s, tokens = run(model, prompts[:count], options.tokens)
                if tokens != alone[:count]:
                    raise SystemExit(f"{count} at a time give other tokens than one at a time")
                whole[count].append(count * options.tokens / total_s)
                decode[count].append(count * (options.tokens - 1) / decode_s)
        isa = model.executor.isa
    document = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": asdict(describe_machine()),
        "artifact": options.artifact.name,
        "isa": isa,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "tokens_per_s": {str(count): summary(whole[count], whole[1]) for count in counts},
        "decode_tokens_per_s": {str(count): summary(decode[count], decode[1]) for count in counts},
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    say(json.dumps(document["decode_tokens_per_s"]))
    say(json.dumps(document["tokens_per_s"]))


def run(model: Model, prompts: list[list[int]], tokens: int) -> tuple[float, float, list[list[int]]]:
    """Seconds of everything and of decoding, and the tokens of each request."""
    found: list[list[int]] = [[] for _ in prompts]
    start = time.perf_counter()
    decoding = start
    batch = model.generate(prompts, max_tokens=tokens, temperature=0.0, ignore_eos=True)
    for index, token in batch.stream():
        found[index].append(token.id)
        if decoding == start and all(found):
            decoding = time.perf_counter()
    end = time.perf_counter()
    return end - start, end - decoding, found


def summary(speeds: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Median and range of speeds, and the median of their ratios to `base`, round by round."""
    ratios = [speed / one for speed, one in zip(speeds, base, strict=True)]
    return {
        "median": round(statistics.median(speeds), 2),
        "least": round(min(speeds), 2),
        "most": round(max(speeds), 2),
        "times_one": round(statistics.median(ratios), 3),
    }


if __name__ == "__main__":
    main()
