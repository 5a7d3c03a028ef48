"""The C toolchain: same bytes anywhere, errors that quote the compiler, keys that cover every input."""

import ctypes
import errno
import os
import platform
import shutil
import signal
import subprocess
from importlib import metadata
from itertools import combinations
from pathlib import Path

import pytest
from kernel_machine import compile_kernels

from pyc.backends.cpu.isa import ISAS, find_isa
from pyc.backends.cpu.kernels.linear import KernelSpec
from pyc.backends.cpu.toolchain import zig as toolchain_module
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.processes import Processes
from pyc.compiler.schemes import parse_scheme
from pyc.runtime.errors import LowerError
from pyc.runtime.host.cache_folder import cache_directory

PORTABLE = "x86-64" if platform.machine() == "x86_64" else "armv8"
SOURCE = (
    '#include "twice.h"\n#include <string.h>\nint f(int a) { char b[64]; memset(b, a, 64); return twice(b[a & 63]); }\n'
)
HEADERS = {"twice.h": "static inline int twice(int a) { return 2 * a; }\n"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this file: it is copied, and no other worker may write to it meanwhile."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def toolchain(cache: Path) -> Toolchain:
    return Toolchain(cache)


def test_objects_link_and_run(toolchain: Toolchain, tmp_path: Path) -> None:
    isa = ISAS[PORTABLE]
    object_file = toolchain.compile_object(SOURCE, isa, HEADERS)
    second = toolchain.compile_object("int g(void) { return 7; }\n", isa, {})
    library = toolchain.link_shared((object_file, second), isa, "pair.so")
    path = tmp_path / "pair.so"
    path.write_bytes(library)
    loaded = ctypes.CDLL(str(path))
    assert loaded.f(5) == 10
    assert loaded.g() == 7
    assert b"pair.so\0" in library


def test_bytes_do_not_depend_on_the_folder(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isa = ISAS[PORTABLE]
    found = []
    for name in ("a", "a rather longer folder"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        compiled = toolchain.compile_object(SOURCE, isa, HEADERS)
        library = toolchain.link_shared((compiled,), isa, "f.so")
        assert not list(folder.iterdir())
        for data in (compiled, library):
            assert str(folder).encode() not in data
            assert b"pyc-cc-" not in data
        found.append((compiled, library))
    assert found[0] == found[1]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of other headers, and an environment whose variables would each change what zig compiles, or stop it."""
    folder = tmp_path / "headers"
    folder.mkdir()
    for header in ("string.h", "stdint.h", "stddef.h", "features.h"):
        (folder / header).write_text(f"#include_next <{header}>\n#define memset(place, value, size) (void)(place)\n")
    for name in ("CPATH", "C_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(folder))
    for name in ("ZIG_LIB_DIR", "ZIG_LIBC", "CLANG_CONFIG_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# +-ffast-math +-DPYC")
    return folder


def test_bytes_do_not_depend_on_the_environment(toolchain: Toolchain, tmp_path: Path, hostile: Path) -> None:
    """Neither those of an object nor what zig makes of its C library for later builds."""
    with pytest.MonkeyPatch.context() as clean:
        for name in ("CPATH", "C_INCLUDE_PATH", "ZIG_LIB_DIR", "ZIG_LIBC", "CLANG_CONFIG_PATH", "CCC_OVERRIDE_OPTIONS"):
            clean.delenv(name)
        expected = link(toolchain)
    own = Toolchain(tmp_path / "cache")
    assert link(own) == expected
    made = b"".join(path.read_bytes() for path in own.zig_cache.rglob("*") if path.is_file())
    assert str(hostile).encode() not in made


def test_the_compiler_gets_folders_of_pyc_alone(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def look(_: Processes, command: list[str], __: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        seen.append(variables)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(Processes, "run", look)
    toolchain.link_files((), "x.so", ISAS[PORTABLE], "x.so", Path("/"))
    assert [set(variables) for variables in seen] == [{"ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "TMPDIR"}]


def test_what_earlier_versions_left_in_zigs_cache_is_not_used(tmp_path: Path) -> None:
    """It was made with the user's CPATH."""
    (tmp_path / "zig" / "o").mkdir(parents=True)
    assert Toolchain(tmp_path).zig_cache == tmp_path / "zig-2"


@pytest.mark.parametrize("name", list(ISAS))
def test_every_instruction_set_compiles(toolchain: Toolchain, name: str) -> None:
    compiled = toolchain.compile_object(SOURCE, ISAS[name], HEADERS)
    machine = int.from_bytes(compiled[18:20], "little")
    assert compiled[:4] == b"\x7fELF"
    assert machine == {"x86_64": 62, "aarch64": 183}[ISAS[name].arch]


def test_features_reach_the_compiler(toolchain: Toolchain) -> None:
    macros = {
        "x86-64": (),
        "x86-64-v3": ("__AVX2__", "__FMA__", "__F16C__"),
        "avx512-vnni": ("__AVX512F__", "__AVX512BW__", "__AVX512VL__", "__AVX512DQ__", "__AVX512VNNI__"),
        "avx512-bf16": ("__AVX512VNNI__", "__AVX512BF16__"),
        "avx-vnni": ("__AVX2__", "__AVXVNNI__"),
        "amx-bf16": ("__AVX512VNNI__", "__AVX512FP16__", "__AMX_TILE__", "__AMX_BF16__"),
        "armv8": ("__ARM_NEON",),
        "armv8-dotprod": ("__ARM_FEATURE_DOTPROD",),
    }
    for name, wanted in macros.items():
        source = "".join(f"#ifndef {macro}\n#error {macro}\n#endif\n" for macro in wanted)
        toolchain.compile_object(source + "int f(void) { return 0; }\n", ISAS[name], {})
    with pytest.raises(LowerError, match="AVX2 is missing"):
        toolchain.compile_object("#ifndef __AVX2__\n#error AVX2 is missing\n#endif\n", ISAS["x86-64"], {})


def test_errors_quote_the_compiler(toolchain: Toolchain) -> None:
    with pytest.raises(LowerError, match=r"zig [0-9.]+\): kernels\.c:2:.*undeclared"):
        toolchain.compile_object("\nint f(void) { return missing; }\n", ISAS[PORTABLE], {})
    with pytest.raises(LowerError, match="unused"):
        toolchain.compile_object("static int f(void) { return 1; }\n", ISAS[PORTABLE], {})
    long = "".join(f"int f{i}(void) {{ return missing; }}\n" for i in range(30))
    with pytest.raises(LowerError) as caught:
        toolchain.compile_object(long, ISAS[PORTABLE], {})
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("error: ") == toolchain_module.ERROR_LINES // 3


def test_a_bad_object_does_not_link(toolchain: Toolchain) -> None:
    with pytest.raises(LowerError, match="C compiler failed"):
        toolchain.link_shared((b"not an object",), ISAS[PORTABLE], "bad.so")


def test_a_compiler_that_says_nothing(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -9, "", "")

    monkeypatch.setattr(Processes, "run", killed)
    with pytest.raises(LowerError, match="no message, exit status -9"):
        toolchain.compile_object("", ISAS[PORTABLE], {})


def test_a_compiler_that_is_not_installed(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(LowerError, match="the C compiler is missing; to install it, "):
        toolchain.compile_object(SOURCE, ISAS[PORTABLE], HEADERS)


def test_unknown_instruction_set() -> None:
    with pytest.raises(LowerError, match="unknown instruction set 'avx9'; known: x86-64, x86-64-v3"):
        find_isa("avx9")


def test_ranks_order_the_variants_of_an_architecture() -> None:
    for arch in {isa.arch for isa in ISAS.values()}:
        ranked = sorted((isa for isa in ISAS.values() if isa.arch == arch), key=lambda isa: isa.rank)
        assert [isa.rank for isa in ranked] == list(range(len(ranked)))
        for lower, higher in combinations(ranked, 2):
            assert not set(higher.features) <= set(lower.features)  # or it would never be what a CPU is given


def test_avx_vnni_is_multiplied_in_the_encoding_of_avx() -> None:
    """CPUs that have AVX-VNNI alone do not know that of AVX-512. Its results are tested emulated."""
    spec = KernelSpec("linear", 64, 64, parse_scheme("int4-g32", "int8"), has_bias=False)
    toolchain = Toolchain(cache_directory())
    found = {name: _vex_vpdpbusd(b"".join(compile_kernels((spec,), ISAS[name], toolchain))) for name in ISAS}
    assert found["avx-vnni"] >= 4 * 8 * 2  # a block of four tokens: eight words by both vectors of a panel
    assert not any(count for name, count in found.items() if name != "avx-vnni")


def _vex_vpdpbusd(code: bytes) -> int:
    """How often `code` has vpdpbusd of 256 bits with a VEX prefix: the map 0F38, 66, W0, L1, opcode 50."""
    starts = (code[i : i + 4] for i in range(len(code) - 3) if code[i] == 0xC4)
    return sum(start[1] & 0x1F == 2 and start[2] & 0x87 == 5 and start[3] == 0x50 for start in starts)


def damage_of(kind: str, path: Path) -> None:
    if kind == "deleted":
        path.unlink()
    elif kind == "emptied":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)


def link(toolchain: Toolchain) -> bytes:
    isa = ISAS[PORTABLE]
    return toolchain.link_shared((toolchain.compile_object(SOURCE, isa, HEADERS),), isa, "f.so")


@pytest.mark.parametrize("kind", ["deleted", "emptied", "cut", "garbage"])
def test_damage_in_zigs_cache_is_mended(tmp_path: Path, toolchain: Toolchain, kind: str) -> None:
    expected = link(toolchain)
    own = Toolchain(tmp_path / "cache")
    shutil.copytree(toolchain.zig_cache, own.zig_cache, dirs_exist_ok=True)
    for path in own.zig_cache.rglob("*"):
        if path.is_file():
            damage_of(kind, path)
    assert link(own) == expected
    assert link(Toolchain(tmp_path / "cache")) == expected
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["zig-2"]


@pytest.mark.parametrize("place", ["none", "a file", "cannot be written", "another's"])
def test_without_a_cache_that_can_be_written(
    tmp_path: Path,
    toolchain: Toolchain,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = link(toolchain)
    folder = tmp_path / "cache"
    if place == "a file":
        folder.touch()
    elif place == "cannot be written":
        monkeypatch.setattr("pyc.backends.cpu.toolchain.zig_cache._is_writable", lambda _: False)
        shutil.copytree(toolchain.zig_cache, folder / "zig-2")
    elif place == "another's":
        (folder / "zig-2" / "src").mkdir(parents=True)
    before = sorted(folder.rglob("*"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    own = Toolchain(None if place == "none" else folder)
    assert [link(own), link(own)] == [expected, expected]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == (place != "none")
    own.close()
    assert sorted(folder.rglob("*")) == before
    assert list(temporary.iterdir()) == []


def test_a_cache_on_a_full_disk_is_not_damaged(
    tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What zig has of it stays, and a temporary one takes its place in this build."""
    expected, run = link(toolchain), Processes.run
    own = Toolchain(tmp_path / "cache")
    full = own.zig_cache
    (full / "h").mkdir()
    (full / "h" / "timestamp").write_bytes(b"kept")

    def without_space(
        processes: Processes, command: list[str], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        if environment["ZIG_GLOBAL_CACHE_DIR"] == str(full):
            return subprocess.CompletedProcess(command, 1, "", "error: unable to build: NoSpaceLeft")
        return run(processes, command, folder, environment)

    monkeypatch.setattr(Processes, "run", without_space)
    monkeypatch.setattr(toolchain_module, "_is_full", lambda folder: folder == full)
    assert [link(own), link(own)] == [expected, expected]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"cache: no space left in {full}; the compiler uses a temporary one"
    assert (full / "h" / "timestamp").read_bytes() == b"kept"
    own.close()


def test_a_full_disk_is_named(tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain_module, "_is_full", lambda folder: folder.name == "zig-2")
    with pytest.raises(LowerError, match=r"no space left in .*zig-2; free some, or set PYC_CACHE_DIR"):
        toolchain.link_shared((b"not an object",), ISAS[PORTABLE], "bad.so")


@pytest.mark.parametrize(
    ("status", "output", "message"),
    [
        (1, "error: unable to spawn: ProcessFdQuotaExceeded", r"too many open files; raise the limit \(ulimit -n\)"),
        (1, "failed to evaluate zig clang: failed to spawn: SystemResources", r"no more processes .*\(ulimit -u\)"),
        (-signal.SIGABRT, "system_error: Resource temporarily unavailable", r"no more processes .*\(ulimit -u\)"),
        (-signal.SIGXFSZ, "", r"beyond the limit of this process; raise it \(ulimit -f\)"),
    ],
)
def test_a_limit_of_the_process_is_named(
    status: int, output: str, message: str, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess([], status, "", output)
    monkeypatch.setattr(Processes, "run", lambda *_: ended)
    with pytest.raises(LowerError, match=message):
        toolchain.link_shared((b"",), ISAS[PORTABLE], "x.so")


@pytest.mark.parametrize(("number", "limit"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")])
def test_a_compiler_that_the_system_does_not_start(
    number: int, limit: str, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Processes, "run", refuse)
    with pytest.raises(LowerError, match=rf"{os.strerror(number)}; raise the limit \({limit}\)"):
        toolchain.link_shared((b"",), ISAS[PORTABLE], "x.so")
