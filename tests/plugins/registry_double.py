"""An OCI registry on this machine: pull and push as the distribution specification has them, wrongly when told.

    with serving() as registry:
        registry.plan = lambda number, method, path: "busy"     # what each request gets; "" is right
        ... oci://{registry.host}/models/demo:v1

The names of misbehaviours are the methods of `_Handler` that begin with `do_wrong_`. As a program it serves what the
file tells to: `registry_double.py PORT`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Plan = Callable[[int, str, str], str]
ACCEPTED = "application/vnd.oci.image.manifest.v1+json"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Registry:
    """`documents` are manifests and blobs by path. `asked` are method, path and Authorization of each request; tokens
    expire after so many requests for blobs. `least_piece_bytes` is asked of those who upload, `retry_after` of those
    who come while it is busy. `realm` may be several, a header each."""

    host: str = ""
    documents: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    first_pieces: dict[str, int] = field(default_factory=dict)
    plan: Plan = lambda number, method, path: ""
    token: str = ""
    user: str = ""
    realm: str | list[str] = ""
    retry_after: str = ""
    blobs_per_token: int = 0
    tokens: int = 0
    least_piece_bytes: int = 0
    received_bytes: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def blobs(self) -> list[bytes]:
        return [data for path, data in self.documents.items() if "/blobs/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the name of the base class
        pass

    def begin(self) -> bool:
        """Note a request; whether it is to be answered rightly."""
        state = self.registry
        given = self.headers.get("Authorization", "")
        number = len(state.asked)
        state.asked.append((self.command, self.path, given))
        self.size = int(self.headers.get("Content-Length") or 0)
        if self.path.startswith("/token"):
            self.give_token(given)
            return False
        is_elsewhere = self.path.startswith("/elsewhere")
        if state.realm and not is_elsewhere and (not state.token or given != f"Bearer {state.token}"):
            self.read()
            self.answer(401, b"", {"WWW-Authenticate": state.realm})
            return False
        if wrong := state.plan(number, self.command, self.path):
            getattr(self, f"do_wrong_{wrong}")()
            return False
        return True

    def read(self) -> bytes:
        data = self.rfile.read(self.size)
        self.registry.received_bytes += len(data)
        return data

    def give_token(self, given: str) -> None:
        state = self.registry
        if state.user and given != "Basic " + base64.b64encode(state.user.encode()).decode():
            return self.answer(401, b"")
        state.tokens += 1
        state.token = f"T{state.tokens}"
        self.answer(200, json.dumps({"token": state.token}).encode())

    def do_HEAD(self) -> None:
        if self.begin():
            data = self.registry.documents.get(self.path)
            headers = {"Docker-Content-Digest": sha256(data)} if data is not None else {}
            self.answer(404 if data is None else 200, b"", headers)

    def do_GET(self) -> None:
        if not self.begin():
            return
        state, path = self.registry, self.path
        if "/uploads/" in path:
            if (upload := self.upload()) is not None:
                self.answer(204, b"", {"Range": f"0-{max(len(upload) - 1, 0)}", "Location": path})
            return
        blobs = sum("/blobs/" in asked for _, asked, _ in state.asked)
        if "/blobs/" in path and state.blobs_per_token and blobs % state.blobs_per_token == 0:
            state.token = ""
        data = state.documents.get(path)
        if data is None:
            return self.answer(404, b"{}")
        wanted = self.headers.get("Range", "")
        if not wanted:
            return self.answer(200, data)
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        self.answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def do_POST(self) -> None:
        if not self.begin():
            return
        name = f"{urlsplit(self.path).path}{secrets.token_hex(4)}"
        self.registry.uploads[name] = b""
        headers = {"Location": f"{name}?_state=secret"}
        if self.registry.least_piece_bytes:
            headers["OCI-Chunk-Min-Length"] = str(self.registry.least_piece_bytes)
        self.answer(202, b"", headers)

    def do_PATCH(self) -> None:
        if self.begin() and (upload := self.upload()) is not None:
            first = int(self.headers["Content-Range"].partition("-")[0])
            if first != len(upload):
                self.read()
                return self.complain(416, "BLOB_UPLOAD_INVALID", f"begins at {first}, expected {len(upload)}")
            self.keep(self.read())
            self.answer(202, b"", {"Location": self.path, "Range": f"0-{len(upload) + self.size - 1}"})

    def do_PUT(self) -> None:
        if not self.begin():
            return
        data = self.read()
        if "/manifests/" in self.path:
            return self.name(data)
        if (upload := self.upload()) is not None:
            wanted = parse_qs(urlsplit(self.path).query)["digest"][0]
            if sha256(upload + data) != wanted:
                return self.complain(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
            del self.registry.uploads[urlsplit(self.path).path]
            self.registry.documents[re.sub("/uploads/.*", f"/{wanted}", self.path)] = upload + data
            self.answer(201, b"", {"Docker-Content-Digest": wanted})

    def name(self, data: bytes) -> None:
        """Take a manifest whose blobs are there."""
        folder = self.path.rpartition("/manifests/")[0]
        manifest = json.loads(data)
        for each in (manifest["config"], *manifest["layers"]):
            if f"{folder}/blobs/{each['digest']}" not in self.registry.documents:
                return self.complain(404, "MANIFEST_BLOB_UNKNOWN", each["digest"])
        self.registry.documents[self.path] = self.registry.documents[f"{folder}/manifests/{sha256(data)}"] = data
        self.answer(201, b"", {"Docker-Content-Digest": sha256(data)})

    def upload(self) -> bytes | None:
        """What was uploaded so far; None where there is no such upload, which is answered."""
        found = self.registry.uploads.get(urlsplit(self.path).path)
        if found is None:
            self.read()
            self.complain(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        return found

    def keep(self, data: bytes) -> None:
        self.registry.uploads[urlsplit(self.path).path] += data

    def complain(self, status: int, code: str, message: str) -> None:
        self.answer(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def answer(self, status: int, data: bytes, headers: Mapping[str, str | list[str]] | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, values in {**(headers or {}), "Content-Length": str(len(data))}.items():
                for value in [values] if isinstance(values, str) else values:
                    self.send_header(name, value)
            if status == 503 and self.registry.retry_after:
                self.send_header("Retry-After", self.registry.retry_after)
            self.end_headers()
            self.wfile.write(data)

    # --- what registries, proxies and networks do

    def do_wrong_busy(self) -> None:
        self.read()
        self.complain(503, "UNAVAILABLE", "come back")

    def do_wrong_whole(self) -> None:
        """Know no ranges."""
        self.answer(200, self.registry.documents[self.path])

    def do_wrong_full(self) -> None:
        self.read()
        self.complain(500, "UNKNOWN", "no space left on device")

    def do_wrong_refused(self) -> None:
        self.read()
        self.complain(403, "DENIED", "requested access to the resource is denied")

    def do_wrong_reset(self) -> None:
        """Hang up in the middle of a body, of which the half is kept."""
        self.size //= 2
        data = self.read()
        if self.command == "PATCH":
            self.keep(data)
        self.hang_up()

    def do_wrong_lost(self) -> None:
        """Take it all, and hang up before the answer."""
        getattr(self, f"finish_{self.command.lower()}", lambda: None)()
        self.hang_up()

    def finish_patch(self) -> None:
        self.keep(self.read())

    def finish_put(self) -> None:
        self.wfile, kept = _Nowhere(), self.wfile  # type: ignore[assignment]
        plan, self.registry.plan = self.registry.plan, lambda number, method, path: ""
        self.do_PUT()
        self.registry.plan, self.wfile = plan, kept

    def do_wrong_forget(self) -> None:
        self.read()
        self.registry.uploads.clear()
        self.complain(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")

    def do_wrong_flip(self) -> None:
        data = bytearray(self.read())
        data[len(data) // 2] ^= 1
        self.keep(bytes(data))
        self.answer(202, b"", {"Location": self.path})

    def do_wrong_stuck(self) -> None:
        """Keep nothing, and say so as registries do."""
        self.read()
        self.answer(202, b"", {"Location": self.path, "Range": "0-0"})

    def keep_piece(self) -> bool:
        """Keep what a PATCH brings, if it begins where the upload ends; false where this has answered already."""
        if (upload := self.upload()) is None:
            return False
        if self.command == "PATCH":
            first = int(self.headers["Content-Range"].partition("-")[0])
            if first != len(upload):
                self.read()
                self.complain(416, "BLOB_UPLOAD_INVALID", f"begins at {first}, expected {len(upload)}")
                return False
            self.keep(self.read())
        return True

    def do_wrong_stale(self) -> None:
        """Keep it, and say each time that the first piece is there, also when asked."""
        if not self.keep_piece():
            return
        size = self.registry.first_pieces.setdefault(urlsplit(self.path).path, len(self.upload() or b""))
        status = 202 if self.command == "PATCH" else 204
        self.answer(status, b"", {"Location": self.path, "Range": f"0-{max(size - 1, 0)}"})

    def do_wrong_less(self) -> None:
        """Keep it, and name a tenth of what is there, also when asked."""
        if not self.keep_piece():
            return
        status = 202 if self.command == "PATCH" else 204
        last = len(self.upload() or b"") // 10
        self.answer(status, b"", {"Location": self.path, "Range": f"0-{last}"})

    def do_wrong_off_by_one(self) -> None:
        """Keep it, and name the byte behind the last."""
        self.keep(self.read())
        self.answer(202, b"", {"Location": self.path, "Range": f"0-{len(self.upload() or b'')}"})

    def do_wrong_beyond(self) -> None:
        """Keep nothing, and say that more is there than was sent."""
        self.read()
        self.answer(202, b"", {"Location": self.path, "Range": f"0-{10**18 - 1}"})

    def do_wrong_part(self) -> None:
        """Keep a start of it, and say so."""
        data = self.read()
        self.keep(data[: 3 * len(data) // 4])
        self.answer(202, b"", {"Location": self.path, "Range": f"0-{len(self.upload() or b'') - 1}"})

    def do_wrong_back(self) -> None:
        """Lose what was there."""
        self.read()
        self.registry.uploads[urlsplit(self.path).path] = b""
        self.answer(202, b"", {"Location": self.path, "Range": "0-0"})

    def do_wrong_garbage(self) -> None:
        self.read()
        with contextlib.suppress(OSError):
            self.wfile.write(b"\x16\x03\x01 no http at all\r\n\r\n")
        self.hang_up()

    def do_wrong_huge(self) -> None:
        self.read()
        self.answer(202, b" " * (5 << 20))

    def do_wrong_trailers(self) -> None:
        """End a body in chunks with header lines that do not end."""
        self.read()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"2\r\n{}\r\n0\r\n")
            while True:
                self.wfile.write(b"X: y\r\n" * 1000)

    def do_wrong_away(self) -> None:
        """Send the upload to another host, as registries over object stores do."""
        self.read()
        self.answer(202, b"", {"Location": f"http://localhost:{self.registry.host.rpartition(':')[2]}/elsewhere"})

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass


def _server(state: Registry, port: int = 0) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"registry": state}))
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda request, address: None  # type: ignore[method-assign]
    state.host = f"127.0.0.1:{server.server_port}"
    return server


@contextlib.contextmanager
def serving() -> Iterator[Registry]:
    """Yield an empty registry, listening on this machine."""
    state = Registry()
    server = _server(state)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    _server(Registry(), int(sys.argv[1])).serve_forever()
