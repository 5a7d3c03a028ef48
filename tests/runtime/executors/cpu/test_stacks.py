"""stacks.py: threads of the caller with too little of a stack are refused, and the library's own have enough."""

import re
import resource
import subprocess
import sys

import pytest
from built_models import artifacts, target_of
from tiny_checkpoints import tiny_checkpoint

from pyc.runtime.executors.cpu.threads import usable_cpus

__all__ = ["artifacts", "tiny_checkpoint"]


@pytest.fixture
def path(request, artifacts):
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")("qwen2", max_position_embeddings=256)
    return artifacts(checkpoint, shapes={"tokens": [1, 4, 16], "context": 256}, targets=target_of()).path


ASK = """
import os, re, sys, threading
from pathlib import Path
from pyc.runtime.errors import RunError
from pyc.runtime.model import load
model = load(sys.argv[1], threads=2)
enough = (192 << 10) + 1024 * model.info.kv_cache.head_dim
def ask():
    try:
        model.logits(list(range(60)))
        print("ran")
    except RunError as error:
        print(error)
def ask_with(size, target=ask):
    threading.stack_size(size)
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
def stacks():
    lines = Path("/proc/self/maps").read_text()
    ranges = re.findall("^([0-9a-f]+)-([0-9a-f]+) (---p|rw-p) 0+ 00:00 0 +$", lines, re.M)
    ranges = [(int(start, 16), int(end, 16), kind) for start, end, kind in ranges]
    pairs = zip(ranges, ranges[1:])
    return [b[1] - b[0] for a, b in pairs if a[1] == b[0] and a[2] == "---p" and b[2] == "rw-p"]
"""


def answers(path, program, stack_bytes=None):
    """The lines that a process prints; it, and threads whose stack nobody sets, have a stack of `stack_bytes`."""

    def limit():
        if stack_bytes is not None:
            resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    command = [sys.executable, "-P", "-c", ASK + program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_thread_with_a_small_stack_is_refused(path):
    """The process ended by SIGSEGV."""
    small, *others = answers(path, "ask_with(128 << 10), ask_with(enough), ask()")
    assert others == ["ran", "ran"], "a thread whose stack is large enough, and the main one"
    assert small.startswith("this thread has a stack of 131072 bytes, and kernels of this model take up to ")
    assert "threading.stack_size(" in small


def test_a_child_that_such_a_thread_forks_is_refused_too(path):
    """Its only thread is the main one there, and has the stack of the one that forked."""
    program = """
def fork_and_ask():
    child = os.fork()
    if not child:
        ask()
        sys.stdout.flush()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
ask_with(128 << 10, fork_and_ask)
"""
    said, status = answers(path, program)
    assert re.match("the main thread has a stack of 131072 bytes, and kernels of this model take up to ", said)
    assert status == "0"


def test_a_main_thread_with_a_small_stack_is_refused(path):
    (small,) = answers(path, "ask()", 160 << 10)
    size = re.match("the main thread has a stack of ([0-9]+) bytes, and kernels of this model take up to ", small)
    assert size is not None and (128 << 10) <= int(size[1]) <= (160 << 10)
    assert "ulimit -s " in small


@pytest.mark.skipif(usable_cpus() < 2, reason="the library starts no thread beside the caller's")
def test_the_librarys_threads_have_enough_whatever_the_limit(path):
    """Theirs would be as large as the limit says, as the others' of the process are."""
    ran, sizes = answers(path, "ask_with(enough), print(*stacks())", 256 << 10)
    assert ran == "ran"
    assert [size for size in map(int, sizes.split()) if 1.9 * 2**20 < size < 2.1 * 2**20], sizes
