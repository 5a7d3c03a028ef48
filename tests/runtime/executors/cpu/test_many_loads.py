"""Loading an artifact again and again: nothing is left of a model that was closed."""

import contextlib
import ctypes
import os
import resource
import threading

import pytest
from built_models import artifacts, built, target_of
from tiny_checkpoints import tiny_checkpoint

from pyc.runtime.executors.cpu import guard
from pyc.runtime.executors.cpu.libraries import load_bytes
from pyc.runtime.model import load

__all__ = ["artifacts", "built", "tiny_checkpoint"]

LOADS = 500


@pytest.fixture
def path(request, artifacts):
    pytest.importorskip("transformers")  # the base install has no compiler
    tiny_checkpoint = request.getfixturevalue("tiny_checkpoint")
    shapes = {"tokens": [1, 4], "logits": [1], "context": 64}
    return artifacts(tiny_checkpoint("qwen2", max_position_embeddings=64), shapes=shapes, targets=target_of()).path


def holdings() -> dict[str, int]:
    """What this process has open, mapped from files, and running."""
    with open("/proc/self/maps") as file:
        mapped = sum("/" in line for line in file)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings of files": mapped,
        "threads": len(os.listdir("/proc/self/task")),
    }


@pytest.mark.slow
def test_hundreds_of_loads_leave_nothing(path):
    """With a limit of descriptors that a leak of one each would reach."""
    with load(path, threads=2) as model:
        expected = model.logits([1, 2, 3])
    del model
    before = holdings()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before["descriptors"] + 100, hard), hard))
    try:
        for _ in range(LOADS):
            with load(path, threads=2) as model:
                last = model.logits([1, 2, 3])
            del model
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (last == expected).all()
    after = holdings()
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings of files"] <= before["mappings of files"]
    assert after["threads"] <= before["threads"]


def test_models_that_are_open_together_hold_three_descriptors_each(path):
    """Two of the mapped file (the mapping's own, and the one that tells whether the file is written to), one of the
    library."""
    before = holdings()["descriptors"]
    models = [load(path, threads=1) for _ in range(20)]
    assert holdings()["descriptors"] <= before + 3 * len(models)
    assert len({model.executor._library._handle for model in models}) == len(models)  # a library each, with its state
    assert len({model.logits([1, 2, 3]).tobytes() for model in models}) == 1
    for model in models:
        model.close()


class LoadedObject(ctypes.Structure):
    """The first fields of struct dl_phdr_info (dl_iterate_phdr(3))."""

    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]


def names_of_loaded_libraries() -> list[bytes]:
    """What debuggers, profilers and printers of stacks are told, and open."""
    names: list[bytes] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    def visit(found, size, context):
        names.append(found.contents.name or b"")
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(visit, None)
    return names


def test_the_name_of_a_library_is_never_that_of_another_file(path, tmp_path):
    """TVM's import maps what it finds under the names: a file that was just made ended a build by SIGBUS."""
    with load(path, threads=1) as model, contextlib.ExitStack() as stack:
        for number in range(20):  # files that take the free descriptors
            stack.enter_context(open(tmp_path / f"{number}", "wb"))
        names = [name for name in names_of_loaded_libraries() if name.startswith(b"/proc/self/fd/")]
        assert names
        for name in names:
            with open(name, "rb") as file:
                assert file.read(4) == b"\x7fELF"
        del model


def test_a_model_that_goes_while_another_is_guarded_does_not_wait_for_itself(path, monkeypatch):
    """The collector may strike in the middle of a load, and take a model with it."""
    model = load(path, threads=1)
    guarding = guard._guarding[0]

    class Collecting:
        pyc_unguard = guarding.pyc_unguard

        def pyc_guard(self, *given):
            model.executor._guard.release()
            return guarding.pyc_guard(*given)

    monkeypatch.setattr(guard, "_guarding", [Collecting()])
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(load(path, threads=1).logits([1, 2, 3])), daemon=True)
    thread.start()
    thread.join(60)
    assert len(loaded) == 1
    assert model.executor._guard._lost is None


def test_what_is_no_library_leaves_no_descriptor():
    before = holdings()["descriptors"]
    for _ in range(3):
        with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
            load_bytes("pyc-none", b"\x7fELF none")
    assert holdings()["descriptors"] == before
