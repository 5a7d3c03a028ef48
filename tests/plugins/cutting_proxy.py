"""A proxy of TCP that cuts connections, as networks do: `cutting_proxy.py PORT TO_PORT BYTES COUNT [LATER_BYTES]`.

The first COUNT connections that pass more than BYTES in either direction are reset there, those behind the first more
than LATER_BYTES; the rest pass.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Iterator


class CuttingProxy:
    """`after_bytes` and `count` may be set at any time; `cuts` is how many connections were cut."""

    def __init__(self, to_port: int, after_bytes: int, count: int, port: int = 0, later_bytes: int = 0) -> None:
        self.to_port, self.after_bytes, self.count, self.cuts = to_port, after_bytes, count, 0
        self._later_bytes = later_bytes
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]

    def serve(self) -> None:
        """Accept until `close`."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self.to_port))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16 << 10):
                target.sendall(data)
                passed += len(data)
                if passed > self.after_bytes and self._takes_one():
                    for end in (source, target):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _takes_one(self) -> bool:
        with self._lock:
            if self.cuts < self.count:
                self.cuts += 1
                self.after_bytes = self._later_bytes or self.after_bytes
                return True
            return False


@contextlib.contextmanager
def cutting(to_port: int, after_bytes: int, count: int) -> Iterator[CuttingProxy]:
    """Yield a proxy that listens on this machine."""
    proxy = CuttingProxy(to_port, after_bytes, count)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


if __name__ == "__main__":
    port, to_port, after_bytes, count, *later = map(int, sys.argv[1:])
    CuttingProxy(to_port, after_bytes, count, port, *later).serve()
