"""Loads one model with one engine, runs a prompt and decodes, and prints what it took as JSON.

engine.py KIND PATH PROMPT TOKENS THREADS: KIND is a backend of pyc (cpu, onnx), or genai.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    """Measure once, after a warm-up of the same length."""
    kind, path = sys.argv[1:3]
    prompt, tokens, threads = map(int, sys.argv[3:])
    start = time.perf_counter()
    generate = load_genai(path, threads) if kind == "genai" else load_pyc(path, kind, threads)
    load_s = time.perf_counter() - start
    generate(prompt, 4)
    prefill_s, steps = generate(prompt, tokens)
    print(
        json.dumps(
            {
                "load_s": round(load_s, 3),
                "prompt_tokens_per_s": round(prompt / prefill_s, 1),
                "decode_tokens_per_s": round(1 / statistics.median(steps), 1),
                "peak_rss_mb": round(status("VmHWM")),
                "own_mb": round(status("RssAnon")),
            }
        )
    )


Generate = Callable[[int, int], tuple[float, list[float]]]
"""Seconds of a prompt up to its first token, and of each further one."""


def load_pyc(path: str, backend: str, threads: int) -> Generate:
    """An artifact with one of its engines."""
    import pyc

    model = pyc.load(path, backend=backend, threads=threads, context=1024)

    def generate(prompt: int, tokens: int) -> tuple[float, list[float]]:
        stream = iter(model.generate(ids(prompt), max_tokens=tokens + 1, temperature=0.0, ignore_eos=True))
        return timed(lambda: next(stream), tokens)

    return generate


def load_genai(path: str, threads: int) -> Generate:
    """A folder of onnxruntime-genai."""
    import onnxruntime_genai as genai

    file = Path(path) / "genai_config.json"
    document = json.loads(file.read_text())
    document["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    file.write_text(json.dumps(document, indent=2))
    model = genai.Model(path)

    def generate(prompt: int, tokens: int) -> tuple[float, list[float]]:
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=1024, do_sample=False)
        generator = genai.Generator(model, params)
        is_first = True

        def step() -> None:
            nonlocal is_first
            if is_first:
                generator.append_tokens(ids(prompt))
                is_first = False
            generator.generate_next_token()

        return timed(step, tokens)

    return generate


def timed(step: Callable[[], object], tokens: int) -> tuple[float, list[float]]:
    """Seconds of the first call, and of each of `tokens` others."""
    marks = [time.perf_counter()]
    for _ in range(tokens + 1):
        step()
        marks.append(time.perf_counter())
    took = [after - before for before, after in itertools.pairwise(marks)]
    return took[0], took[1:]


def ids(count: int) -> list[int]:
    """Token ids, the same in every process."""
    return [5 + 7919 * number % 4000 for number in range(count)]


def status(name: str) -> float:
    """A number of /proc/self/status, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
