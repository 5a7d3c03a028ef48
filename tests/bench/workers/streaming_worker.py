"""One measurement of tests/bench/streaming.py in a process of its own: `WHAT PLACE PROMPT_TOKENS`; prints JSON.

    bare           the same bytes over four connections into memory, unverified
    first-token    `pyc.load`, and a prompt to its first token, from when all is imported
    whole-first    the same, but the prompt begins when all weights are there
    weights-MODE   the weights of an open artifact, verified, in memory or mapped: mmap or pread of a file, or a URL
    read           the file into memory, on as many threads as hash
"""

import http.client
import json
import os
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import tokenizers

import pyc
from pyc.runtime import model
from pyc.runtime.artifact import arrival, reader
from pyc.runtime.executors.cpu import executor
from pyc.runtime.executors.registry import choose_program
from pyc.runtime.host.machine import peak_rss_bytes
from pyc.runtime.sources import http as source

assert all((np, tokenizers, model, arrival, reader, executor, source))  # imported before the clock starts
PIECE_BYTES = 4 << 20


def needed(place: str) -> list[tuple[int, int]]:
    """The ranges of the file that a load takes, those that touch as one."""
    with reader.open_artifact(place) as artifact:
        header = artifact.header
        program = choose_program(header.programs, None)
        names = {name for function in program.functions for name in function.weights}
        names |= {program.library, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
        names |= {"additional_chat_templates/tool_use.jinja", "special_tokens_map.json", "config.json"}
        payload = artifact.size_bytes - header.chunks[-1].offset - header.chunks[-1].stored_bytes
        numbers = sorted(
            number
            for record in (*header.tensors, *header.blobs)
            if record.name in names
            for number in range(record.span.first_chunk, record.span.first_chunk + record.span.chunk_count)
        )
        ranges: list[tuple[int, int]] = []
        for number in numbers:
            chunk = header.chunks[number]
            start, stop = payload + chunk.offset, payload + chunk.offset + chunk.stored_bytes
            if ranges and start - ranges[-1][1] < 4096:
                ranges[-1] = ranges[-1][0], stop
            else:
                ranges.append((start, stop))
        return ranges


def pieces_of(ranges: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(start, stop, place in memory) of each piece."""
    pieces, at = [], 0
    for start, stop in ranges:
        for first in range(start, stop, PIECE_BYTES):
            pieces.append((first, min(first + PIECE_BYTES, stop), at))
            at += min(first + PIECE_BYTES, stop) - first
    return pieces


def on_threads(count: int, work) -> float:
    """Seconds that `count` threads take to do `work(queue)`."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def bare(place: str, ranges: list[tuple[int, int]]) -> dict[str, float]:
    pieces = pieces_of(ranges)
    size = sum(stop - start for start, stop in ranges)
    memory = memoryview(np.empty(size, np.uint8).data)
    queue = iter(pieces)
    lock = threading.Lock()
    parts = urlsplit(place)

    def work() -> None:
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        while True:
            with lock:
                piece = next(queue, None)
            if piece is None:
                return
            start, stop, at = piece
            connection.request("GET", parts.path, headers={"Range": f"bytes={start}-{stop - 1}"})
            response = connection.getresponse()
            while start < stop:
                count = response.readinto(memory[at : at + stop - start])
                start, at = start + count, at + count
            response.read(0)

    return {"seconds": on_threads(4, work), "bytes": size}


def read(place: str, ranges: list[tuple[int, int]]) -> dict[str, float]:
    size = sum(stop - start for start, stop in ranges)
    memory = memoryview(np.empty(size, np.uint8).data)
    queue = iter(pieces_of(ranges))
    lock = threading.Lock()
    descriptor = os.open(place, os.O_RDONLY)

    def work() -> None:
        while True:
            with lock:
                piece = next(queue, None)
            if piece is None:
                return
            start, stop, at = piece
            while start < stop:
                count = os.preadv(descriptor, [memory[at : at + stop - start]], start)
                start, at = start + count, at + count

    return {"seconds": on_threads(min(4, len(os.sched_getaffinity(0))), work), "bytes": size}


def first_token(place: str, prompt: int, *, waits: bool) -> dict[str, float]:
    began_s = time.perf_counter()
    with pyc.load(place) as loaded:
        loaded_s = time.perf_counter() - began_s
        if waits:
            loaded.wait()
        ids = [5 + number % 1000 for number in range(prompt)]
        next(iter(loaded.generate(ids, max_tokens=1, temperature=0, ignore_eos=True)))
        first_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        next(iter(loaded.generate([7, *ids[1:]], max_tokens=1, temperature=0, ignore_eos=True)))
        again_s = time.perf_counter() - began_s
    return {"seconds": first_s, "load_s": loaded_s, "prompt_alone_s": again_s, "peak_rss_bytes": peak_rss_bytes()}


def weights(place: str, mode: str) -> dict[str, float]:
    with reader.open_artifact(place, mode=mode) as artifact:
        program = choose_program(artifact.header.programs, None)
        began_s = time.perf_counter()
        arrays = artifact.tensors({name for function in program.functions for name in function.weights})
        seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "bytes": sum(array.nbytes for array in arrays.values())}


def main() -> None:
    what, place, prompt = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what in ("bare", "read"):
        ranges = needed(place)
        result = bare(place, ranges) if what == "bare" else read(place, ranges)
    elif what.startswith("weights"):
        result = weights(place, what.partition("-")[2])
    else:
        result = first_token(place, prompt, waits=what == "whole-first")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
