"""docs/service.md: the program of the page answers, refuses, is left by its clients, and ends."""

import gc
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyc

ROOT = Path(__file__).parents[2]
ADD = {"prompt": "def add(a, b):\n", "temperature": 0}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "demo.pyca"
    result = pyc.build(ROOT / "models/demo/model.yaml", output=path, overrides=["targets.0.isa=[x86-64]"])
    with pyc.load(path) as model:
        assert model.digest == result.digest
    return path


class Service:
    """The program of the page, as a process."""

    def __init__(self, artifact: Path) -> None:
        page = (ROOT / "docs/service.md").read_text("utf-8")
        program = artifact.with_name("main.py")
        program.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
        self.log = artifact.with_name("service.log")
        with self.log.open("w") as log:
            command = [sys.executable, program, artifact, "0"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def ask(
        self, body: object, path: str = "/generate", headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body), headers or {})
        return connection.getresponse()


@pytest.fixture
def service(artifact: Path) -> Iterator[Service]:
    started = Service(artifact)
    yield started
    started.process.kill()
    started.process.wait()
    started.process.stdout.close()


def lines(response: http.client.HTTPResponse) -> list[dict[str, object]]:
    return [json.loads(line) for line in response.read().splitlines()]


def test_it_answers_what_the_model_says_and_refuses_what_it_does_not_take(service: Service, artifact: Path) -> None:
    with pyc.load(artifact) as model:
        expected = model.generate(ADD["prompt"], max_tokens=12, temperature=0.0).text()
    response = service.ask(ADD | {"max_tokens": 12})
    answer = lines(response)
    assert (response.status, "".join(line["text"] for line in answer)) == (200, expected)
    assert [line["finish_reason"] for line in answer] == [None] * 11 + ["length"]
    for body, said in (
        ("x", "expected JSON"), ([], "expected JSON"), ({}, "expected JSON"), ({"prompt": 5}, "expected JSON"),
        ({"prompt": ["a", "b"]}, "expected JSON"), ({"messages": ["a"]}, "expected JSON"),
        ("[" * 99999, "expected JSON"),
        ({"messages": []}, "got no tokens"), (ADD | {"temperature": -1}, "temperature: got -1"),
        (ADD | {"max_tokens": "many"}, "max_tokens: got 'many'"), (ADD | {"stop": 5}, "stop: got 5"),
    ):  # fmt: skip
        response = service.ask(body)
        assert response.status == 400 and said in lines(response)[0]["error"], body
    assert service.ask(ADD, "/other").status == 404
    for size in ("-5", "many", str(1 << 30), "9" * 5000, "\u00b2"):
        assert service.ask("x", headers={"Content-Length": size}).status == 413, size
    assert service.log.read_text().count("Traceback") == 0


def test_clients_that_go_away_leave_room_and_sigterm_lets_answers_end(service: Service) -> None:
    for _ in range(40):  # more than are answered at a time
        response = service.ask(ADD | {"max_tokens": 900})
        if response.status == 503:
            continue
        assert response.readline()
        response.close()
    while (response := service.ask(ADD | {"max_tokens": 300})).status == 503:
        pass
    assert response.readline()
    service.process.send_signal(signal.SIGTERM)
    assert lines(response)[-1]["finish_reason"] is not None
    assert service.process.wait(60) == 0
    assert service.log.read_text().count("Traceback") == 0


def test_streams_of_a_model_that_is_dropped_go_on_and_then_its_memory_goes_back(artifact: Path) -> None:
    """How docs/python.md has a service take a new artifact."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(artifact))

    model, before = pyc.load(artifact), mapped()
    stream = model.generate(ADD["prompt"], max_tokens=12, temperature=0.0)
    text = next(stream).text
    model = pyc.load(artifact)
    assert mapped() == 2 * before > 0
    text += stream.text()
    assert text == model.generate(ADD["prompt"], max_tokens=12, temperature=0.0).text()
    del stream
    gc.collect()
    assert mapped() == before
    model.close()
