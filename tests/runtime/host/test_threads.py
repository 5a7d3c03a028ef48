"""Threads under a limit on addresses: CPython waits for ever for one that had no memory to begin."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher
from pyc.runtime.host.threads import THREAD_BYTES, has_room_for_a_thread
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
fetcher = ChunkFetcher(None, (), 0, (), str)
fetcher.start()
fetcher.wait()
print(has_room_for_a_thread(), len(fetcher._threads))
"""


@pytest.mark.parametrize(
    ("left_bytes", "found"), [(1 << 20, "False 0"), (20 << 20, "False 0"), (400 << 20, "True 1")]
)
def test_a_thread_is_started_where_there_is_room_for_it(left_bytes, found):
    command = [sys.executable, "-P", "-c", PROGRAM, str(left_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == found
