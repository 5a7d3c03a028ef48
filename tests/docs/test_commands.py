"""Every command of README and the quickstart runs, and standard output is what the page shows.

Numbers, digests, variants and fingerprints differ from machine to machine: each is compared as one sign. A line `...`
stands for any number of lines. What is not run, and why, is in NOT_RUN.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyc.runtime.executors.cpu import features

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/quickstart.md")
NOT_RUN = {
    "python3 -m venv": "the suite has its environment",
    "pip install": "takes the network; .ci/run installs both",
    "pyc build Qwen/": "takes the network; tests/pyc/commands/test_download.py has a hub of its own",
}
"""How a command begins -> why it is not run here."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = (
    (re.compile(r"\b[0-9a-f]{16,}\b"), "DIGEST"),
    (re.compile(r"\b(amx-bf16|avx512-bf16|avx512-vnni|avx-vnni|x86-64-v3|x86-64|armv8-dotprod|armv8)\b"), "ISA"),
    (re.compile(r"\d[\d.,]*( [kMG]?B\b)?"), "#"),
    (re.compile(r" +"), " "),
)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block."""
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


def commands(content: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines that it prints."""
    for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, lines


def reason_not_to_run(command: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if command.startswith(start)), None)


def plain(line: str) -> str:
    for pattern, sign in VARIES:
        line = pattern.sub(sign, line)
    return line.strip()


def pattern_of(lines: list[str]) -> re.Pattern[str]:
    """Matches the output, made plain, that a page shows."""
    parts = [r"(?:.*\n)*?" if line == "..." else re.escape(plain(line)) + r"\n" for line in lines]
    return re.compile("".join(parts))


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command[-1]}: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo model in its place; what commands write does not reach the repository."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "models").symlink_to(ROOT / "models")
    return folder


def shows_what_others_compute(command: str) -> bool:
    """Whether the command generates text on a CPU for which the page's text was not compared."""
    known = platform.machine() == "x86_64" and "amx_tile" not in features.cpu_features()
    return command.startswith("pyc run") and not known


@pytest.mark.parametrize("page", PAGES)
def test_commands(page, checkout):
    count = 0
    for language, content in blocks(page):
        if language == "python":
            assert run([sys.executable, "-c", content], checkout).strip()
            continue
        for command, lines in commands(content):
            if reason_not_to_run(command):
                continue
            printed = run(["bash", "-c", command], checkout)
            count += 1
            if lines and not shows_what_others_compute(command):
                got = "".join(plain(line) + "\n" for line in printed.rstrip("\n").split("\n"))
                assert pattern_of(lines).fullmatch(got), f"{page}: {command} printed\n{printed}"
    assert count >= 3


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_another_kind_of_block(page):
    text = (ROOT / page).read_text("utf-8")
    assert {language for language, _ in blocks(page)} <= {"console", "python"}
    assert not re.search(r"^(    |\t)(?:\$ |pyc |pip )", BLOCK.sub("", text), re.MULTILINE)


def test_what_is_not_run_is_there():
    shown = [command for page in PAGES for _, content in blocks(page) for command, _ in commands(content)]
    assert all(any(command.startswith(start) for command in shown) for start in NOT_RUN)


def test_output_that_differs_is_seen():
    expected = ["a.pyca: 5.06 MB in 4.6 s", "...", "key         c068353d938c3178"]
    assert pattern_of(expected).fullmatch("a.pyca: # in # s\nx\nkey DIGEST\n")
    assert not pattern_of(expected).fullmatch("b.pyca: # in # s\nx\nkey DIGEST\n")
    assert not pattern_of(expected).fullmatch("a.pyca: # in # s\nx\nkey DIGEST\nmore\n")
