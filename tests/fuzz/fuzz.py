"""Coverage-guided fuzzing of one parser, or of all in turn: `fuzz.py SECONDS [PARSER ...]`, by atheris (extra `fuzz`).

Inputs that reach new code are added to build/fuzz/PARSER; one that is a fault lies there as crash-..., and the exit
code is 1. Put it into corpus/PARSER when it is mended: the default suite replays that folder.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import mutated

MOST_BYTES = 4096
SLOW_S = 5
MEMORY_MB = 2048
MEMORY = Path("/dev/shm")


def fuzz(parser: str, seconds: int) -> None:
    """Fuzz in this process, and never return."""
    import atheris

    with atheris.instrument_imports(include=["pyc"], enable_loader_override=False):
        import parsers

    logging.getLogger("pyc").setLevel(logging.ERROR)
    folder = Path(__file__).parents[2] / "build" / "fuzz" / parser
    folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={SLOW_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    seeds = folder.with_name(f"{parser}.seeds")
    seeds.mkdir(exist_ok=True)
    for number, data in enumerate(parsers.corpus(parser)):
        (seeds / str(number)).write_bytes(data)
    (folder.parent / f"{parser}.words").write_text(_words(seeds))
    options.append(f"-dict={folder.parent / parser}.words")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        made = mutated(parser, data, seed) if seed % 2 else None
        return atheris.Mutate(data, most) if made is None or len(made) > most else made

    atheris.Setup(
        [sys.argv[0], *options, str(folder), str(seeds)],
        lambda data: parsers.check(parser, data),
        custom_mutator=mutate,
    )
    atheris.Fuzz()


def _words(seeds: Path) -> str:
    """The words of the inputs to begin with, as a dictionary of libFuzzer."""
    found = set[str]()
    for path in seeds.iterdir():
        found |= set(re.findall(r"[A-Za-z_][A-Za-z0-9_.-]{1,40}", path.read_text("utf-8", "ignore")))
    return "".join(f'"{word}"\n' for word in sorted(found))


def main() -> int:
    """Fuzz each parser in a process of its own."""
    if len(sys.argv) == 4 and sys.argv[1] == "--one":
        fuzz(sys.argv[2], int(sys.argv[3]))
    if len(sys.argv) < 2 or not sys.argv[1].isdecimal():
        print(__doc__, file=sys.stderr)
        return 2
    from parsers import FOLDER, PARSERS

    names = sys.argv[2:] or list(PARSERS)
    share = max(int(sys.argv[1]) // len(names), 1)
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="pyc-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
            done = subprocess.run(
                [sys.executable, __file__, "--one", name, str(share)],
                env={**os.environ, "PYTHONHASHSEED": "0", FOLDER: folder},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        units = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        verdict = "a fault" if done.returncode else "none is a fault"
        print(f"{name}: {units[0] if units else '?'} inputs, {verdict}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
