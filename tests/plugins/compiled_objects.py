"""Kernels that tests with empty caches of their own have compiled once a run."""

import os
from collections.abc import Mapping

import pytest
from blake3 import blake3

from pyc.backends.cpu.isa import Isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.files.cache import Cache

compile_object = Toolchain.compile_object


@pytest.fixture(scope="session")
def suite_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    return Cache((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled")


@pytest.fixture
def compiled_once(suite_cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose cache lacks an object has it from the test that compiled it before: the same bytes."""

    def compiled(
        self: Toolchain, source: str, isa: Isa, headers: Mapping[str, str], flags: tuple[str, ...] = ()
    ) -> bytes:
        parts = source, sorted(headers.items()), isa.zig_target, isa.zig_cpu, flags
        key = blake3(repr(("compiled once", parts)).encode()).hexdigest()
        found = suite_cache.get(key, counts=False)
        if found is None:
            found = compile_object(self, source, isa, headers, flags)
            suite_cache.put(key, found)
        return found

    monkeypatch.setattr(Toolchain, "compile_object", compiled)
