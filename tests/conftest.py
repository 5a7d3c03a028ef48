"""What holds for the whole suite: no network, the same examples every time, no pickle, no double import, and
nothing of the user's keys and caches.

`pytest --hypothesis-profile explore` draws new and more examples.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

# Read by huggingface_hub, transformers and onnxruntime when they are imported, so set before anything else.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# Read when numpy and torch are imported: one thread, as the command line has, since each core has a worker of its own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("deterministic")

LOCAL_ADDRESSES = ("127.", "::1", "localhost")
# These unpickle their own messages, whoever's frames lie below them on the stack.
MESSAGING = ("multiprocessing.", "concurrent.futures.", "execnet.", "ray.")

ROOT_FOLDERS = ("backends", "compiler", "models", "passes", "runtime", "templates")

_pickled: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """The audit hook: refuses connections that leave the machine, and notes what pyc unpickles."""
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and not str(address[0]).startswith(LOCAL_ADDRESSES):
            raise PermissionError(f"the test suite uses no network, but something connects to {address}")
    elif event == "pickle.find_class" and (caller := _pyc_frame(sys._getframe(1))):
        _pickled.append(f"{arguments[0]}.{arguments[1]} unpickled under {caller}")


def _pyc_frame(frame: FrameType | None) -> str | None:
    """The nearest frame of pyc on the stack, unless a messaging library stands above it."""
    while frame is not None:
        module = f"{frame.f_globals.get('__name__')}"
        if module.startswith(MESSAGING):
            return None
        if module.startswith("pyc."):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return None


sys.addaudithook(_watch)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script: what tests start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keys and cache of the suite are its own, not those of whoever runs it; the workers of a run share the cache."""
    os.environ["PYC_HOME"] = str(tmp_path_factory.mktemp("pyc_home"))
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["PYC_CACHE_DIR"] = str(shared / "pyc_cache")


@pytest.fixture(autouse=True)
def house_rules() -> Iterator[None]:
    """Fails a test during which pyc unpickles a class, or a root folder is imported without `pyc.`."""
    _pickled.clear()
    yield
    assert not _pickled, f"pyc never unpickles: {_pickled}"
    twice = [name for name in ROOT_FOLDERS if name in sys.modules]
    assert not twice, f"imported without `pyc.` in front, which makes a second copy of every class: {twice}"


def pytest_collection_finish() -> None:
    """Leaves what collecting made out of garbage collections, and has fewer of them: 7 % of the time of some files."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fails the collection where a set is part of a test's name: its order differs between workers."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        for value in parameters.params.values() if parameters else ():
            if isinstance(value, set | frozenset) and len(value) > 1 and repr(value) in item.name:
                raise pytest.UsageError(f"{item.nodeid}: a set in a test's name; parametrize with a sorted list")
