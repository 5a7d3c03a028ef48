"""A hub on this machine that speaks what a download needs of the Hugging Face protocol, and misbehaves when told."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class Hub:
    """Models by id: the files of each. `asked` are the requests, `cut` breaks the next transfers of a file after that
    many bytes, `status` answers everything of a model with a status and an error code. `store` is where the files of
    its models lie, `commit` what is said of each file, `listed` what of each model."""

    url: str = ""
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    cut: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, tuple[int, str]] = field(default_factory=dict)
    store: str = ""
    commit: str = COMMIT
    listed: bytes = b""

    def add(self, name: str, folder: Path, **more: bytes) -> None:
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.models[name] = {**files, **more}

    def fetched(self) -> set[str]:
        return {path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path}


def handler_for(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the name of the base class
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            for name, (code, reason) in hub.status.items():
                if f"/{name}/" in f"{path}/":
                    return self.fail(code, reason)
            for name, files in hub.models.items():
                if path.startswith(f"/api/models/{name}/revision/"):
                    if path.rpartition("/")[2] not in ("main", "v1", COMMIT):
                        return self.fail(404, "RevisionNotFound")
                    listed = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
                    if hub.listed:
                        return self.send(hub.listed, {"Content-Type": "text/html"})
                    return self.send(json.dumps({"id": name, "sha": COMMIT, "siblings": listed}).encode(), {})
                start = f"/{name}/resolve/{COMMIT}/"
                if path.startswith(start) and path.removeprefix(start) in files:
                    return self.send_file(path.removeprefix(start), files[path.removeprefix(start)])
            self.fail(404, "RepoNotFound")

        def send_file(self, file: str, data: bytes) -> None:
            if hub.store and file.endswith(".safetensors"):
                self.send_response(302)
                place = {"Location": f"{hub.store}/{file}?X-Amz-Signature=secret", "Content-Length": "0"}
                said = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": '"abc"', "X-Repo-Commit": hub.commit}
                for key, value in {**said, **place}.items():
                    self.send_header(key, value)
                self.end_headers()
                return
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
            self.send(data, {"ETag": etag, "X-Repo-Commit": hub.commit, **linked}, file)

        def send(self, data: bytes, headers: dict[str, str], file: str = "") -> None:
            start = 0
            if asked := self.headers.get("Range"):
                start = int(asked.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send_response(206 if asked else 200)
            for key, value in {**headers, "Content-Length": str(len(data) - start)}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            cuts = hub.cut.get(file)
            if cuts:
                self.wfile.write(data[start : start + cuts.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data[start:])

        def fail(self, code: int, reason: str) -> None:
            self.send_response(code)
            self.send_header("X-Error-Code", reason)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub without models, listening on this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
