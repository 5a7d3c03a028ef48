"""runtime/executors/cpu/features.py: the best program that a CPU runs, and the words when there is none."""

import os
from pathlib import Path

import msgspec
import pytest

from pyc.runtime.artifact.format import Program, Tool
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu import features as cpu
from pyc.runtime.executors.cpu.features import cache_bytes, choose_program, cpu_features, cpu_kind, cpu_model

X86 = (
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nstepping\t: 1\n"
    "flags\t\t: fpu sse avx2 fma avx512f\nmodel name\t: Some CPU\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def program(isa: str, arch: str = "x86_64", features: tuple[str, ...] = ()) -> Program:
    return Program(
        backend="cpu",
        device="cpu",
        arch=arch,
        system="linux",
        isa=isa,
        features=features,
        library=f"{isa}.so",
        abi=(Tool("pyc-step", "7"),),
        functions=(),
    )


BEST = program("avx512-vnni", features=("avx2", "avx512_vnni"))
MIDDLE = program("x86-64-v3", features=("avx2", "fma"))
PLAIN = program("x86-64")
ARM_PLAIN = program("armv8", "aarch64", ("asimd",))
ALL = (ARM_PLAIN, BEST, MIDDLE, PLAIN)


@pytest.fixture
def unread():
    """/proc/cpuinfo is read anew in the test, and again behind it."""
    cpu._fields.cache_clear()
    yield
    cpu._fields.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    def pretend(arch: str, *features: str) -> None:
        monkeypatch.setattr(cpu.platform, "machine", lambda: arch)
        monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset(features))
        monkeypatch.setattr(cpu, "cpu_model", lambda: "Some CPU")

    return pretend


@pytest.mark.parametrize(
    ("arch", "features", "expected"),
    [
        ("x86_64", ("avx2", "fma", "avx512_vnni"), BEST),
        ("x86_64", ("avx2", "fma"), MIDDLE),
        ("x86_64", ("avx2",), PLAIN),
        ("x86_64", (), PLAIN),
        ("aarch64", ("asimd", "asimddp"), ARM_PLAIN),
    ],
)
def test_the_first_that_runs_is_chosen(machine, arch, features, expected):
    machine(arch, *features)
    assert choose_program(ALL, None) is expected


@pytest.mark.parametrize("granted", [True, False])
def test_tiles_need_the_kernel_too(machine, monkeypatch, granted):
    machine("x86_64", "avx2", "fma", "amx_tile")
    monkeypatch.setattr(cpu, "allow_tiles", lambda: granted)
    tiles = program("amx-bf16", features=("avx2", "amx_tile"))
    assert choose_program((tiles, *ALL), None) is (tiles if granted else MIDDLE)
    if not granted:
        with pytest.raises(RunError, match="amx-bf16 needs tile registers, which the kernel refuses"):
            choose_program((tiles, *ALL), "amx-bf16")


@pytest.mark.skipif("amx_tile" in cpu_features(), reason="this CPU has tiles: the kernel may grant them")
def test_a_cpu_without_tiles_is_refused_them():
    assert not cpu.allow_tiles()


def test_a_variant_that_only_others_can_run_is_answered_with_those_that_run_here(machine):
    machine("x86_64", "avx2", "fma")
    with pytest.raises(RunError) as caught:
        choose_program(ALL, "avx512-vnni")
    assert str(caught.value) == (
        "this CPU (Some CPU, x86_64) cannot run the isa that was asked for: avx512-vnni needs avx512_vnni; "
        "ask for none, or for x86-64-v3 or x86-64"
    )
    with pytest.raises(RunError, match=r"cannot run the artifact: .*build with another isa"):
        choose_program((BEST,), "avx512-vnni")


@pytest.mark.parametrize(("device", "system"), [("gpu", "linux"), ("cpu", "windows")])
def test_programs_of_other_machines_do_not_run(machine, device, system):
    """A header may name any: nothing but a CPU under Linux is this machine."""
    machine("x86_64", "avx2", "fma")
    other = msgspec.structs.replace(PLAIN, device=device, system=system)
    assert choose_program((other, MIDDLE), None) is MIDDLE
    with pytest.raises(RunError, match=f"x86-64 needs {device} {system} x86_64; build with another isa"):
        choose_program((other,), None)


def test_a_variant_by_name(machine):
    machine("x86_64", "avx2", "fma", "avx512_vnni")
    assert choose_program(ALL, "x86-64") is PLAIN


@pytest.mark.parametrize(
    ("arch", "programs", "isa", "message"),
    [
        (
            "x86_64",
            ALL,
            "armv7",
            "the artifact has no program for 'armv7'; it has: armv8 (aarch64), avx512-vnni (x86_64)",
        ),
        ("x86_64", ALL, "avx512-vnni", "avx512-vnni needs avx2, avx512_vnni"),
        ("x86_64", ALL, "armv8", "armv8 needs aarch64"),
        ("aarch64", ALL, "armv8", "armv8 needs asimd"),
        ("x86_64", (BEST, MIDDLE), None, "avx512-vnni needs avx2, avx512_vnni; x86-64-v3 needs avx2, fma"),
        ("riscv64", ALL, None, "this CPU (Some CPU, riscv64) cannot run the artifact: armv8 needs aarch64"),
        ("x86_64", (), None, "it has no programs"),
    ],
)
def test_what_cannot_run_here_is_said(machine, arch, programs, isa, message):
    machine(arch)
    with pytest.raises(RunError) as caught:
        choose_program(programs, isa)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "features", "model", "kind"),
    [
        (X86, {"fpu", "sse", "avx2", "fma", "avx512f"}, "Some CPU", "AuthenticAMD 25 17 1"),
        (ARM, {"fp", "asimd", "asimddp"}, "aarch64", "0x41 0xd0c"),
        ("model name: X\n", set(), "X", "X"),
        ("", set(), "aarch64", "aarch64"),
    ],
)
def test_proc_cpuinfo(text, features, model, kind, monkeypatch, unread):
    monkeypatch.setattr(Path, "read_bytes", lambda self: text.encode())
    monkeypatch.setattr(cpu.platform, "machine", lambda: "aarch64")
    assert cpu_features() == features
    assert cpu_model() == model
    assert cpu_kind() == kind


def test_no_proc(monkeypatch, unread):
    def refuse(self):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert cpu_features() == frozenset()
    assert cpu_model()
    assert cpu_kind()


def test_caches_are_counted_once_however_many_cpus_share_them(tmp_path, monkeypatch):
    def cache(cpu, index, **files):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")

    for number in (0, 1):
        cache(number, 0, level="1", type="Data", size="32K", shared_cpu_list=str(number))
        cache(number, 2, level="2", type="Unified", size="512K", shared_cpu_list=str(number))
        cache(number, 3, level="3", type="Unified", size="32768K", shared_cpu_list="0-1")
        cache(number, 4, level="2", type="Unified")
        cache(number, 5, level="3", type="Unified", size="much", shared_cpu_list="0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert cache_bytes(tmp_path) == (2 * 512 + 32768) << 10
    assert cache_bytes(tmp_path / "nowhere") == 0
