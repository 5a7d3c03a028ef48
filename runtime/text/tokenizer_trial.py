"""Tries a tokenizer in a process of its own, which may be stopped: the library that runs it may not.

`try_tokenizer` starts a second interpreter with bounds on processor time and memory, gives it the file, and reports
what it found. That one parses the file, encodes texts of many kinds, among them long runs of each character, decodes
what came out, and looks every token up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.text.foreign_code import contained
from pyc.runtime.text.printable import printable
from pyc.runtime.text.tokenizer_rules import TokenizerRuleError

TRIAL_VERSION = 2
"""Counts what a trial tries: findings of another version are not taken from the cache."""
MAX_CPU_S = 10
"""Seconds of processor time for a trial, and half a second more for each MiB of the file."""
MAX_MEMORY_BYTES = 4 << 30
"""Address space of a trial, and 64 bytes more for each byte of the file."""
_MAX_WALL_FACTOR = 20  # a machine may have other things to do
_RUN = 4_000
_LONGEST_RUN = 40_000
_TOKENS_A_CHARACTER = 16

# Not `-m`: an isolated interpreter finds pyc only where this one found it.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyc.runtime.text.tokenizer_trial import main; "
    "main(json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))"
)


class Findings(msgspec.Struct, frozen=True):
    """What a trial found: a fault, or None, the vocabulary's largest id with its token, the ids of the tokens asked for
    (None: it does not have that token), and the ids that are added to every text."""

    fault: str | None = None
    largest_id: int = -1
    largest_token: str = ""
    ids: tuple[int | None, ...] = ()
    added: tuple[int, ...] = ()


def try_tokenizer(content: bytes, tokens: tuple[str, ...] = ()) -> Findings:
    """Findings on a tokenizer.json, with the ids of `tokens`. Raises TokenizerRuleError when it does not pass.

    Where no interpreter can be started (an application that embeds Python), it is tried in this process.
    """
    findings = _run_trial(content, tokens)
    if findings.fault is not None:
        raise TokenizerRuleError(findings.fault)
    return findings


@lru_cache(maxsize=16)
def _run_trial(content: bytes, tokens: tuple[str, ...]) -> Findings:
    command = interpreter()
    if command is None:
        return examine(content, tokens)
    cpu_s = MAX_CPU_S + len(content) // (2 << 20)
    wall_s = cpu_s * _MAX_WALL_FACTOR
    path = json.dumps([str(entry) or os.getcwd() for entry in sys.path])
    memory_bytes = MAX_MEMORY_BYTES + 64 * len(content)
    arguments = [command, "-I", "-c", _PROGRAM, path, json.dumps(tokens), str(cpu_s), str(memory_bytes)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            arguments, input=content, capture_output=True, check=False, env=environment, timeout=wall_s
        )
    except subprocess.TimeoutExpired:
        return Findings(f"trying it took longer than {wall_s} s")
    except unless_signalled(OSError):
        return examine(content, tokens)
    try:
        return msgspec.json.decode(done.stdout, type=Findings)
    except msgspec.DecodeError:
        pass
    last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["without a word"])[-1]
    last = printable(last[:200])
    if done.returncode < 0:
        return Findings(
            f"trying it ended with signal {-done.returncode}, after at most {cpu_s} s of processor time and "
            f"{memory_bytes >> 20} MiB of memory ({last})"
        )
    if last.startswith(("ModuleNotFoundError", "ImportError")):  # this program's paths are its own, as of a notebook
        return examine(content, tokens)
    return Findings(f"trying it ended with exit code {done.returncode} ({last})")


def interpreter() -> str | None:
    """The path of a Python like this one, or None; sys.executable may be the application that embeds it."""
    bases = (sys.executable, f"{sys.base_prefix}/bin/python3")
    fitting = (path for path in bases if path and Path(path).name.startswith("python") and os.access(path, os.X_OK))
    return next(fitting, None)


def main(tokens: list[str], cpu_s: int, memory_bytes: int) -> None:
    """What the second interpreter runs: a tokenizer.json on standard input, findings as JSON on standard output."""
    import resource

    content = sys.stdin.buffer.read()
    for limit, value in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    sys.stdout.buffer.write(msgspec.json.encode(examine(content, tuple(tokens))))
    sys.stdout.buffer.flush()
    os._exit(0)  # nothing to clean up; threads of the library need not be waited for


def examine(content: bytes, tokens: tuple[str, ...] = ()) -> Findings:
    """Findings of a trial, here and now, without bounds."""
    try:
        with contained(ArtifactError, "it cannot be used"):
            return _examine(content, tokens)
    except ArtifactError as error:
        return Findings(str(error))
    except MemoryError:
        return Findings("it needs too much memory")


def _examine(content: bytes, tokens: tuple[str, ...]) -> Findings:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_buffer(content)
    backend.no_truncation()
    backend.no_padding()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if not backend.get_vocab(with_added_tokens=False):
        return Findings("its vocabulary is empty")
    largest_token, largest_id = max(vocabulary.items(), key=lambda entry: (entry[1], entry[0]))
    for name, text in probes():
        ids = backend.encode(text).ids
        if len(ids) > _TOKENS_A_CHARACTER * len(text) + 256:
            return Findings(f"it makes {len(ids)} tokens of {len(text)} characters ({name})")
        if ids and max(ids) > largest_id:
            return Findings(f"it gives token id {max(ids)}, and its largest is {largest_id} ({name})")
        decoded = backend.decode(ids, skip_special_tokens=False)
        if len(decoded) > 64 * len(text) + 65536:
            return Findings(f"it decodes {len(ids)} tokens to {len(decoded)} characters ({name})")
    ids_of_tokens = tuple(vocabulary.get(token) for token in tokens)
    return Findings(None, largest_id, largest_token[:100], ids_of_tokens, tuple(backend.encode("").ids))


def probes() -> Iterator[tuple[str, str]]:
    """Texts to encode, with what to call them."""
    yield "no text", ""
    yield "one letter", "a"
    yield "words", "The quick brown fox can't jump over 12,345.67 dogs (or 8?)!\n\n\tdef f(x):\n    return x**2\r\n"
    yield "scripts", "Größe Ελληνικά русский 日本語の文章です 中文 한국어 עברית العربية हिन्दी ไทย"
    yield "marks and signs", "👩‍👩‍👧‍👦🇩🇪 e\u0301\u0302 \ufdfa\u2028\x00\u200b\ufeff"
    yield "markup", '<s>[INST] <|im_start|>user\n{"a": [1, 2]}</s><0x0A>▁Ġ##'
    codes = (*range(0x20, 0x3000, 3), *range(0x3000, 0xD800, 37), *range(0xE000, 0x1FFFF, 41))
    yield "one of many characters", "".join(map(chr, codes))
    yield "a run of each character of ASCII", "".join(chr(code) * 100 for code in range(128))
    for character in "aA0._\n\té中😀\u0301":
        yield f"{_RUN} times {character!r}", character * _RUN + "!x"
    for pair in ("ab", "a ", "a1", "A.", " \n", "aA", "\r\n", "中a"):
        yield f"{_RUN} times {pair!r}", pair * _RUN + "!"
    for character in "a ":
        yield f"{_LONGEST_RUN} times {character!r}", character * _LONGEST_RUN + "!x"
