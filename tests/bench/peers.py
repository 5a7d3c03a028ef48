"""Speed of pyc and of its peers on the same checkpoint, in turn, with the limits of the machine.

    python tests/bench/peers.py --work DIR --peer llama.cpp=VENV/bin/python --peer mistral.rs=VENV/bin/python \\
        --out results.json --markdown table.md

Peers live in virtual environments of their own; one that is not given is looked for in the running environment, and
reported as not installed when it is not there either:

    llama.cpp          pip install llama-cpp-python gguf numpy   (CMAKE_ARGS says for which instruction set)
    mistral.rs         pip install mistralrs
    transformers       pip install torch transformers
    onnxruntime-genai  pip install torch onnxruntime-genai onnx onnx_ir onnxscript transformers
    openvino-genai     pip install torch "optimum-intel[openvino]" openvino-genai

Without --checkpoint a random one in the shape of Qwen3-0.6B is written to the work folder, which also takes pyc's
artifacts, the peers' files, keys and caches (about 6 GB, kept for the next time). Every engine runs in a process of
its own, on the same CPUs, with the same tokens, and one after the other within a round. A run is a prompt and the
tokens decoded after it, one at a time; one run of each length warms up and is not counted.
"""

import argparse
import datetime
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from machine_limits import Limits, measure_limits
from peer_engines import ENGINES, PEERS, PYC, Engine
from peer_files import WORKERS, PeerError, Place, build_artifacts, make_peer_files
from peer_results import add_shares, operations_a_token, ratios, summary, versions
from peer_table import markdown
from random_checkpoint import Shape, write_checkpoint
from tokenizers import Tokenizer

from pyc.runtime.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "models" / "demo" / "heldout.txt"
WORD = re.compile("Ġ[a-z]+")  # Ġ is the space of byte-level tokenizers
CONTEXT_STEP = 1024
REPORTED_OPTIONS = ("prompt", "contexts", "decode", "threads", "rounds", "repeats")

Document = dict[str, Any]


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    machine, source = describe_machine(), commit()
    place = prepare_place(options)
    lengths = sorted({options.prompt, *options.contexts})
    say("building pyc's artifacts")
    builds = build_artifacts(place, -(-(lengths[-1] + options.decode + 1) // CONTEXT_STEP) * CONTEXT_STEP)
    pythons = find_pythons(options.peer)
    say("making the peers' files")
    problems = make_peer_files(place, pythons)
    job = {
        "checkpoint": str(place.checkpoint),
        "prompts": [prompt(place.checkpoint, length) for length in lengths],
        "decode": options.decode,
        "threads": options.threads,
        "repeats": options.repeats,
    }
    say("measuring the machine")
    limits = measure_limits(place.work / "cache", options.threads)
    wanted = [engine for engine in ENGINES if not options.only or engine.name in options.only]
    engines = measure_rounds(place, pythons, problems, wanted, job, options)
    limits = best_limits(limits, measure_limits(place.work / "cache", options.threads))
    operations = operations_a_token(place.checkpoint)
    for engine in engines:
        if engine["state"] == "measured":
            add_shares(engine, limits, operations, options.contexts[0])
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "limits": asdict(limits),
        "operations_a_token": operations,
        "versions": versions(engines),
        "job": {name: getattr(options, name) for name in REPORTED_OPTIONS},
        "builds": builds,
        "engines": engines,
        "ratios": ratios(engines),
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    options.markdown.write_text(markdown(document), "utf-8")
    print(markdown(document))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [peer.name for peer in PEERS]
    parser.add_argument("--checkpoint", type=Path, help="folder of a Qwen3 checkpoint (default: a random one)")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"a peer's python: {', '.join(peers)}"
    )
    parser.add_argument("--only", action="append", metavar="ENGINE", choices=[engine.name for engine in ENGINES])
    parser.add_argument("--rounds", type=int, default=3, help="times that every engine takes its turn")
    parser.add_argument("--repeats", type=int, default=2, help="runs of an engine in its turn")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt that prefill is timed with")
    parser.add_argument("--decode", type=int, default=48, help="tokens to decode")
    parser.add_argument("--contexts", default="8,512", help="tokens before the first decoded one")
    parser.add_argument("--threads", type=int, default=describe_machine().cores, help="CPUs for every engine")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    parser.add_argument("--markdown", type=Path, required=True, help="where the table goes")
    options = parser.parse_args()
    try:
        options.contexts = sorted({int(context) for context in options.contexts.split(",")})
        options.peer = dict(value.split("=", 1) for value in options.peer)
    except ValueError:
        parser.error("--contexts takes numbers (8,512), --peer a name and a python (llama.cpp=VENV/bin/python)")
    if unknown := set(options.peer) - set(peers):
        parser.error(f"--peer: unknown {', '.join(sorted(unknown))}; known are {', '.join(peers)}")
    counts = [options.rounds, options.repeats, options.prompt, options.decode, options.threads, *options.contexts]
    if min(counts) < 1 or options.threads > describe_machine().cores:
        parser.error(f"counts are at least 1, and --threads at most {describe_machine().cores} here")
    return options


def prepare_place(options: argparse.Namespace) -> Place:
    """The folders; the checkpoint is written if there is none."""
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    checkpoint = options.checkpoint.absolute() if options.checkpoint else work / "checkpoint"
    if not options.checkpoint and not (checkpoint / "config.json").exists():
        say("writing a random checkpoint")
        write_checkpoint(checkpoint, Shape())
    return Place(checkpoint, work)


def find_pythons(given: Mapping[str, str]) -> dict[str, Path]:
    """The interpreter of every peer that is given, or that the running environment has."""
    found = {PYC: Path(sys.executable)}
    for peer in PEERS:
        if peer.name in given:
            found[peer.name] = Path(given[peer.name]).absolute()  # a link to the interpreter is what makes the venv
        elif importlib.util.find_spec(peer.module):
            found[peer.name] = Path(sys.executable)
    return found


def prompt(checkpoint: Path, tokens: int) -> Document:
    """So many words of real text, each of one token, for engines that take ids and for those that take text.

    Words with a space before them, since peers differ in how they split anything else before encoding it.
    """
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found = tokenizer.encode(TEXT.read_text("utf-8"), add_special_tokens=False)
    words = [index for index, token in zip(found.ids, found.tokens, strict=True) if WORD.fullmatch(token)]
    ids = [words[index % len(words)] for index in range(tokens)] if words else []
    text = tokenizer.decode(ids, skip_special_tokens=False)
    if not ids or tokenizer.encode(text).ids != ids:
        raise SystemExit("the checkpoint's tokenizer has no words that survive decoding and encoding")
    return {"ids": ids, "text": text}


def measure_rounds(
    place: Place,
    pythons: Mapping[str, Path],
    problems: Mapping[str, str],
    wanted: Sequence[Engine],
    job: Document,
    options: argparse.Namespace,
) -> list[Document]:
    """Every engine once a round, in the same order; what was found of each, in that order."""
    states = {engine.name: obstacle(engine, pythons, problems) for engine in wanted}
    answers: dict[str, list[Document]] = {engine.name: [] for engine in wanted}
    for number in range(1, options.rounds + 1):
        for engine in wanted:
            if states[engine.name]:
                continue
            try:
                answer = run_worker(place, pythons[engine.peer], engine, job)
            except PeerError as error:
                states[engine.name] = {"state": "failed", "reason": str(error)}
                say(f"round {number}: {engine.name} failed: {error}")
                continue
            answers[engine.name].append(answer)
            say(f"round {number}: {engine.name}: {brief(answer)}")
    return [
        {
            "name": engine.name,
            "peer": engine.peer,
            **(
                states[engine.name]
                or {"state": "measured", **summary(answers[engine.name], options.prompt, options.contexts)}
            ),
        }
        for engine in wanted
    ]


def obstacle(engine: Engine, pythons: Mapping[str, Path], problems: Mapping[str, str]) -> Document:
    """Why an engine cannot run; empty when it can."""
    if engine.peer not in pythons:
        return {"state": "not installed"}
    maker = engine.maker or engine.peer
    if maker not in pythons:
        return {"state": "not installed", "reason": f"{maker}, which makes its weights, is not installed"}
    if maker in problems:
        return {"state": "failed", "reason": problems[maker]}
    return {}


def run_worker(place: Place, python: Path, engine: Engine, job: Document) -> Document:
    """One turn of an engine. Raises PeerError."""
    weights = place.work / engine.weights if engine.weights else place.checkpoint
    task = {**job, "weights": str(weights), "options": engine.options}
    lines = place.run((str(python), str(WORKERS / engine.worker)), json.dumps(task)).strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise PeerError("the worker's last line is not JSON") from error


def best_limits(first: Limits, second: Limits) -> Limits:
    """The better of two measurements, before and after the rounds."""
    best = {
        name: tuple(max(pair) for pair in zip(getattr(first, name), getattr(second, name), strict=True))
        for name in ("read", "float32", "int8", "amx_int8")
    }
    return replace(first, **best)


def commit() -> Document:
    """The commit of this checkout, and whether files were changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def brief(answer: Document) -> str:
    """One line about a turn."""
    runs = (f"{run['context']}: {run['prefill_tok_s']:.1f}, {run['decode_tok_s']:.2f}" for run in answer["runs"])
    return f"load {answer['load_s']:.2f} s; prefill, decode at {'; '.join(runs)}"


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
