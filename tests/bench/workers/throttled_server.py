"""Serves one file by ranges at so many bytes a second for all connections together: `FILE BYTES_PER_S`, 0 for no limit.

Prints the port. A token bucket of two milliseconds stands for the link.
"""

import os
import re
import socket
import sys
import threading
import time
from pathlib import Path

RANGE = re.compile(rb"[Rr]ange: bytes=(\d+)-(\d+)")
BURST_S = 0.002


class Link:
    """What lets bytes through at a rate."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        self.step = int(max(64 << 10, bytes_per_s * BURST_S / 2)) if bytes_per_s else 8 << 20
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait(self, size_bytes: int) -> None:
        if not self.rate:
            return
        with self._lock:
            now_s = time.perf_counter()
            self._free_at_s = max(self._free_at_s, now_s - BURST_S) + size_bytes / self.rate
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)


def serve(connection: socket.socket, descriptor: int, link: Link) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    total = os.fstat(descriptor).st_size
    with connection:
        while request := connection.recv(1 << 16):
            found = RANGE.search(request)
            first, last = (int(found[1]), min(int(found[2]), total - 1)) if found else (0, total - 1)
            connection.sendall(
                b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n"
                % (last + 1 - first, first, last, total)
            )
            while first <= last:
                size = min(link.step, last + 1 - first)
                link.wait(size)
                first += os.sendfile(connection.fileno(), descriptor, first, size)


def main() -> None:
    path, rate = Path(sys.argv[1]), float(sys.argv[2])
    descriptor = os.open(path, os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    link = Link(rate)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, descriptor, link), daemon=True).start()


if __name__ == "__main__":
    main()
