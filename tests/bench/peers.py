"""Speed of pyc and of its peers on the same checkpoint, in turn, with the limits of the machine.

    make bench                                    # the engines of README's table, 3 rounds, into build/bench
    python tests/bench/peers.py --work DIR --all --prompts 512,2048 --contexts 8,512,4096,16384 \\
        --out results.json --markdown table.md

Peers live in virtual environments of their own: DIR/peers/NAME, or what --peer NAME=PYTHON says. One that is in
neither place is looked for in the running environment, and reported as not installed when it is not there either:

    llama.cpp          pip install llama-cpp-python gguf numpy   (CMAKE_ARGS says for which instruction set)
    mistral.rs         pip install mistralrs
    transformers       pip install torch transformers
    onnxruntime-genai  pip install torch onnxruntime-genai onnx onnx_ir onnxscript transformers
    openvino-genai     pip install torch "optimum-intel[openvino]" openvino-genai
    ik_llama.cpp       no package: clone github.com/ikawrakow/ik_llama.cpp, cmake -B build -DGGML_NATIVE=ON, build the
                       targets llama-bench, llama-quantize and llama-perplexity, and link or copy build/bin to
                       DIR/peers/ik_llama.cpp/bin, or pass --peer ik_llama.cpp=build/bin/llama-bench

Without --checkpoint a random one in the shape of --shape is written to the work folder, which also takes pyc's
artifacts, the peers' files, keys and caches (for Qwen3-0.6B about 12 GB, kept for the next time). Every engine runs
in a process of its own, on the same CPUs, with the same tokens, and one after the other within a round. A run is a
prompt and the tokens decoded after it, one at a time; one run of each length warms up and is not counted. The
headline takes half an hour the first time; all engines and lengths an hour and a half.

Between turns nothing runs for --pause seconds: a virtual machine's kernel may hand the memory that an engine had back
to its host meanwhile, and an engine that loads fast would be measured while it does.

Contexts above 2048 take a process of their own, and their prompts minutes, so they are treated apart: pyc fills its
cache in pieces of 512 tokens that do not attend to each other, llama.cpp reads the state that it saved the first
time; both then decode in every round. The other engines compute the prompt, without warming up, in the first
--long-rounds rounds, and of them only those that --long-engines names.
"""

import argparse
import datetime
import fnmatch
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from machine_limits import LimitMeter, Limits
from peer_engines import ENGINES, LONG_CONTEXT, LONG_ENGINES, PEERS, PYC, Engine
from peer_files import PeerError, Place, build_artifacts, make_peer_files, read_anew
from peer_quality import measure_quality
from peer_results import add_shares, operations_a_token, ratios, summary, versions
from peer_speeds import by_speed
from peer_table import markdown
from peer_turns import Turns
from random_checkpoint import SHAPES, is_checkpoint, write_checkpoint
from tokenizers import Tokenizer

from pyc.runtime.host.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "models" / "demo" / "heldout.txt"
WORD = re.compile("Ġ[a-z]+")  # Ġ is the space of byte-level tokenizers
CONTEXT_STEP = 1024
SPARE_TOKENS = 16  # of a context: what warming up decodes, and the token that is never fed
REPORTED_OPTIONS = ("prompts", "contexts", "batches", "decode", "threads", "rounds", "repeats", "long_rounds", "pause")

Document = dict[str, Any]


@dataclass(frozen=True)
class Jobs:
    """What every engine does in its turn, and what those do that take part in long contexts (None: there are none)."""

    short: Document
    long: Document | None


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    machine, source = describe_machine(), commit()
    place = prepare_place(options, options.shape)
    wanted = [engine for engine in ENGINES if is_wanted(engine, options)]
    jobs = make_jobs(place, options)
    say("building pyc's artifacts")
    longest = max(*options.prompts, *options.contexts) + options.repeats * options.decode + SPARE_TOKENS
    artifacts = [engine.weights for engine in wanted if engine.peer == PYC and engine.weights]
    builds, problems = build_artifacts(place, artifacts, -(-longest // CONTEXT_STEP) * CONTEXT_STEP, options.batches)
    pythons = find_pythons(options.peer, place.work / "peers")
    say("making the peers' files")
    needed = {engine.maker or engine.peer for engine in wanted}
    problems |= make_peer_files(place, {peer: python for peer, python in pythons.items() if peer in needed})
    say("scoring the demo model's text")
    quality = measure_quality(place.work, pythons, wanted, options.threads) if options.quality else {}
    for name in dict.fromkeys(engine.weights for engine in wanted):
        weights = place.work / name if name else place.checkpoint
        if weights.exists():
            read_anew(weights)
    say("measuring the machine")
    meter = LimitMeter(place.work / "cache", options.threads)
    limits = meter.limits()
    engines = measure_rounds(place, pythons, problems, wanted, jobs, meter, options)
    for engine in engines:
        engine["quality"] = quality.get(engine["name"])
    limits = best_limits(limits, meter.limits())
    operations = operations_a_token(place.checkpoint)
    for engine in engines:
        if engine["state"] == "measured":
            add_shares(engine, operations, options.prompts[0], options.contexts[0])
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "model": options.checkpoint.name if options.checkpoint else f"random weights in the shape of {options.shape}",
        "limits": asdict(limits),
        "operations_a_token": operations,
        "versions": versions(engines),
        "job": {name: getattr(options, name) for name in REPORTED_OPTIONS},
        "builds": builds,
        "engines": engines,
        "ratios": ratios(engines),
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    text = "\n".join(part for part in (markdown(document), by_speed([document])) if part)
    options.markdown.write_text(text, "utf-8")
    print(text)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [peer.name for peer in PEERS]
    parser.add_argument("--checkpoint", type=Path, help="folder of a Qwen3 checkpoint (default: a random one)")
    parser.add_argument("--shape", choices=SHAPES, default=next(iter(SHAPES)), help="of the random checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help=f"a peer's python: {', '.join(peers)}"
    )
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="engines by name, such as 'pyc *' (default: the headline's)"
    )
    parser.add_argument("--all", action="store_true", help="all engines")
    parser.add_argument("--no-quality", dest="quality", action="store_false", help="measure no KL")
    parser.add_argument("--rounds", type=int, default=3, help="times that every engine takes its turn")
    parser.add_argument("--repeats", type=int, default=1, help="runs of an engine in its turn")
    parser.add_argument("--prompts", default="512", help="tokens of the prompts that prefill is timed with")
    parser.add_argument("--decode", type=int, default=48, help="tokens to decode")
    parser.add_argument("--contexts", default="8,512", help="tokens before the first decoded one")
    parser.add_argument("--batches", default="1,4,8", help="sequences that pyc decodes at once, at the least context")
    parser.add_argument(
        "--long-engines",
        action="append",
        metavar="PATTERN",
        help=f"engines whose contexts above {LONG_CONTEXT} are measured (default: {', '.join(LONG_ENGINES)})",
    )
    parser.add_argument("--long-rounds", type=int, default=1, help="rounds in which a long prompt is computed")
    parser.add_argument("--pause", type=float, default=6, help="seconds between two turns")
    parser.add_argument("--threads", type=int, default=describe_machine().cores, help="CPUs for every engine")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    parser.add_argument("--markdown", type=Path, required=True, help="where the table goes")
    options = parser.parse_args()
    options.only, options.long_engines = options.only or [], options.long_engines or list(LONG_ENGINES)
    try:
        for name in ("prompts", "contexts", "batches"):
            setattr(options, name, sorted({int(number) for number in getattr(options, name).split(",")}))
        options.peer = dict(value.split("=", 1) for value in options.peer)
    except ValueError:
        parser.error("--prompts, --contexts and --batches take numbers (8,512), --peer takes NAME=PROGRAM")
    if unknown := set(options.peer) - set(peers):
        parser.error(f"--peer: unknown {', '.join(sorted(unknown))}; known are {', '.join(peers)}")
    if not any(is_wanted(engine, options) for engine in ENGINES):
        parser.error(f"--only: no engine is called so; there are {', '.join(engine.name for engine in ENGINES)}")
    counts = [options.rounds, options.repeats, options.decode, options.threads, options.long_rounds]
    if min(*counts, *options.prompts, *options.contexts, *options.batches) < 1:
        parser.error("counts and lengths are at least 1")
    if options.pause < 0:
        parser.error("--pause: seconds, not fewer than 0")
    if options.threads > describe_machine().cores:
        parser.error(f"--threads: at most {describe_machine().cores} here")
    return options


def prepare_place(options: argparse.Namespace, shape: str = next(iter(SHAPES))) -> Place:
    """The folders; a random checkpoint is written if there is none."""
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    checkpoint = options.checkpoint.absolute() if options.checkpoint else work / "checkpoint"
    if not options.checkpoint and not is_checkpoint(checkpoint, SHAPES[shape]):
        if checkpoint.exists():
            raise SystemExit(f"{checkpoint}: got another checkpoint, or half of one; expected {shape}'s: remove it")
        say("writing a random checkpoint")
        write_checkpoint(checkpoint, SHAPES[shape])
    return Place(checkpoint, work)


def is_wanted(engine: Engine, options: argparse.Namespace) -> bool:
    """Whether the command line asks for an engine: by name, all of them, or those of the headline."""
    if options.only:
        return any(fnmatch.fnmatch(engine.name, name) for name in options.only)
    return engine.headline or options.all


def find_pythons(given: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """The interpreter of every peer that is given, lies in `folder`, or that the running environment has."""
    found = {PYC: Path(sys.executable)}
    for peer in PEERS:
        usual = folder / peer.name / "bin" / ("python" if peer.module else "llama-bench")
        if peer.name in given:
            found[peer.name] = Path(given[peer.name]).absolute()  # a link to the interpreter is what makes the venv
        elif usual.exists():
            found[peer.name] = usual.absolute()
        elif peer.module and importlib.util.find_spec(peer.module):
            found[peer.name] = Path(sys.executable)
    return found


def make_jobs(place: Place, options: argparse.Namespace) -> Jobs:
    """The two jobs of a turn."""
    lengths = sorted({*options.prompts, *options.contexts})

    def job(wanted: Sequence[int], batches: Sequence[int]) -> Document:
        return {
            "checkpoint": str(place.checkpoint),
            "prompts": [
                {**prompt(place.checkpoint, length), "decode": options.decode if length in options.contexts else 0}
                for length in wanted
            ],
            "threads": options.threads,
            "repeats": options.repeats,
            "states": str(place.states),
            "batches": list(batches),
        }

    longs = [length for length in lengths if length > LONG_CONTEXT and length in options.contexts]
    shorts = [length for length in lengths if length not in longs]
    return Jobs(job(shorts, options.batches), job(longs, ()) if longs else None)


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
    jobs: Jobs,
    meter: LimitMeter,
    options: argparse.Namespace,
) -> list[Document]:
    """Every engine once a round, in the same order; what was found of each, in that order."""
    states = {engine.name: obstacle(engine, pythons, problems) for engine in wanted}
    answers: dict[str, list[Document]] = {engine.name: [] for engine in wanted}
    long_problems: dict[str, str] = {}
    turns = Turns(place, pythons, meter, options.pause)
    for number in range(1, options.rounds + 1):
        for engine in wanted:
            if states[engine.name]:
                continue
            try:
                answer = turns.take(engine, jobs.short)
            except PeerError as error:
                states[engine.name] = {"state": "failed", "reason": str(error)}
                say(f"round {number}: {engine.name} failed: {error}")
                continue
            answers[engine.name].append(answer)
            say(f"round {number}: {engine.name}: {brief(answer)}")
            if jobs.long and engine.name not in long_problems and takes_long(engine, number, options):
                try:
                    long_answer = turns.take(engine, jobs.long)
                except PeerError as error:
                    long_problems[engine.name] = str(error)
                    say(f"round {number}: {engine.name} failed at long contexts: {error}")
                    continue
                answer["runs"] += long_answer["runs"]
                say(f"round {number}: {engine.name}: {brief(long_answer)}")
    return [
        {
            "name": engine.name,
            "peer": engine.peer,
            "cache_bits": engine.cache_bits,
            "long_problem": long_problems.get(engine.name),
            **(
                states[engine.name]
                or {"state": "measured", **summary(answers[engine.name], options.prompts, options.contexts)}
            ),
        }
        for engine in wanted
    ]


def takes_long(engine: Engine, number: int, options: argparse.Namespace) -> bool:
    """Whether an engine runs long contexts in a round."""
    named = any(fnmatch.fnmatch(engine.name, name) for name in options.long_engines)
    return named and (engine.fills or number <= options.long_rounds)


def obstacle(engine: Engine, pythons: Mapping[str, Path], problems: Mapping[str, str]) -> Document:
    """Why an engine cannot run; empty when it can."""
    if engine.peer not in pythons:
        return {"state": "not installed"}
    if engine.peer == PYC and engine.weights in problems:
        return {"state": "failed", "reason": problems[engine.weights]}
    maker = engine.maker or engine.peer
    if maker not in pythons:
        return {"state": "not installed", "reason": f"{maker}, which makes its weights, is not installed"}
    if maker in problems:
        return {"state": "failed", "reason": problems[maker]}
    return {}


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
    runs = [f"{run['context']}: {shown(run['prefill_tok_s'])}, {shown(run['decode_tok_s'])}" for run in answer["runs"]]
    runs += [f"{run['sequences']} at once: {shown(run['decode_tok_s'])}" for run in answer.get("batches", ())]
    read = shown(answer["limits"]["read"] / 1e9)
    return f"load {shown(answer['load_s'])} s; prefill, decode at {'; '.join(runs)}; {read} GB/s"


def shown(value: float | None) -> str:
    """A figure for a line of progress."""
    return "-" if value is None else f"{value:.2f}"


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
