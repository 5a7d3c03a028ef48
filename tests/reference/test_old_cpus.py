"""A CPU without AVX2: it gets the portable variant, or a refusal that names what it lacks.

What the CPU has is forced where it is read, in /proc/cpuinfo; that the portable library needs no more than SSE is
shown by an emulated CPU that has no AVX at all.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from built_models import random_ids, target_of

from pyc.backends.cpu.isa import ISAS
from pyc.cli import main
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu import features as cpu

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUs of x86-64")

QEMU = shutil.which("qemu-x86_64")
NEHALEM = """\
processor\t: 0
model name\t: Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz
flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ss ht \
syscall nx rdtscp lm constant_tsc pni monitor ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm
"""
SANDY_BRIDGE = NEHALEM.replace("popcnt", "popcnt aes xsave avx").replace("i7 CPU 920", "i7-2600")
X86_64 = tuple(isa.name for isa in ISAS.values() if isa.arch == "x86_64")
NEEDY = tuple(isa for isa in X86_64 if isa != "x86-64")
GREEDY = ("-p", "the cat", "-n", "5", "--temperature", "0", "--json", "--threads", "1")


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """`processor(text)`: this machine's /proc/cpuinfo from now on."""

    def pretend(text):
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        monkeypatch.setattr(cpu, "CPUINFO", path)
        forget()

    def forget():
        cpu._fields.cache_clear()

    yield pretend
    monkeypatch.undo()
    forget()


@pytest.fixture
def checkpoint(tiny_checkpoint):
    return tiny_checkpoint("qwen3", hidden_size=64, intermediate_size=96)


@pytest.mark.parametrize("text", [NEHALEM, SANDY_BRIDGE, "processor\t: 0\n"])
def test_the_portable_variant_is_chosen_and_runs(text, processor, checkpoint, built):
    recipe = {"quantize": {"scheme": "int4-g32"}, "targets": target_of(*X86_64)}
    asked = built(checkpoint, isa="x86-64", **recipe)
    ids = random_ids(asked, 20)
    wanted = asked.logits(ids)
    processor(text)
    model = built(checkpoint, **recipe)
    assert model.executor.isa == "x86-64"
    assert np.array_equal(model.logits(ids), wanted)


@pytest.mark.parametrize(
    ("text", "lacks", "has"),
    [(NEHALEM, ("avx2", "fma", "f16c", "bmi2"), "sse4_2"), (SANDY_BRIDGE, ("avx2", "fma"), "avx,")],
)
def test_an_artifact_that_needs_more_is_refused(text, lacks, has, processor, checkpoint, artifacts, capsys):
    path = artifacts(checkpoint, targets=target_of(*NEEDY)).path
    processor(text)
    capsys.readouterr()
    assert main(["run", str(path), *GREEDY]) == RunError.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "pyc: error: this CPU (Intel(R) Core(TM) i7" in line
    for isa in NEEDY:
        (needs,) = (part for part in line.split("; ") if f"{isa} needs " in part)
        missing = needs.partition(" needs ")[2].split(", ")
        assert set(lacks) <= set(missing) <= set(ISAS[isa].features)
    assert has not in line
    assert line.endswith(
        "build with another isa in the recipe's targets: x86-64 runs on every x86_64, armv8 on every aarch64"
    )


@pytest.mark.skipif(QEMU is None, reason="emulates a CPU with qemu-x86_64, of Debian's qemu-user")
def test_the_portable_library_runs_on_a_cpu_without_avx(checkpoint, artifacts):
    path = artifacts(checkpoint, quantize={"scheme": "int8"}, targets=target_of("x86-64", "x86-64-v3")).path

    def run(*emulator, isa):
        command = (*emulator, sys.executable, "-m", "pyc", "run", str(path), *GREEDY, "--isa", isa)
        # numpy's OpenBLAS may take the emulated CPU for the one below it; what is tried here is our library.
        environment = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)

    nehalem = (QEMU, "-cpu", "Nehalem")
    native, emulated = run(isa="x86-64"), run(*nehalem, isa="x86-64")
    assert (native.returncode, emulated.returncode) == (0, 0), emulated.stderr
    tokens = [[json.loads(line)["text"] for line in done.stdout.splitlines()[:-1]] for done in (native, emulated)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 5
    assert run(*nehalem, isa="x86-64-v3").returncode == -signal.SIGILL  # the emulated CPU really lacks AVX2
