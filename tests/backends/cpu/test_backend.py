"""backends/cpu/backend.py: what a compiled library is made of, and one set of functions for all instruction sets."""

import os
import re
import struct
import subprocess
import sys

import pytest

from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.cpu.isa import GLIBC, ISAS
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.protocol import Buckets
from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.errors import LowerError

MACHINES = {"x86_64": 62, "aarch64": 183}
BUCKETS = Buckets((1, 4), (1,))


@pytest.fixture(scope="module")
def module(tiny_checkpoint):
    path = tiny_checkpoint("qwen3", num_hidden_layers=1, hidden_size=64, intermediate_size=96)
    return lower_recipe(recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32"}})).part("cpu").module


def program_builder(module, **options):
    from pyc.backends.cpu.emit.operands import weight_types
    from pyc.backends.cpu.emit.program import ProgramBuilder

    return ProgramBuilder(module.info, module.graph, weight_types(module.weights), **options)


@pytest.fixture(scope="module")
def programs(module):
    return {program.isa: program for program in CpuBackend().compile(module, BUCKETS, tuple(ISAS))}


@pytest.mark.parametrize("isa", ISAS)
def test_a_library_is_for_its_architecture(isa, programs):
    program, expected = programs[isa], ISAS[isa]
    magic, machine = program.library[:6], struct.unpack_from("<H", program.library, 18)[0]
    assert magic == b"\x7fELF\x02\x01"
    assert machine == MACHINES[expected.arch]
    assert (program.arch, program.features) == (expected.arch, expected.features)


@pytest.mark.parametrize("isa", ISAS)
def test_a_library_runs_on_the_oldest_glibc(isa, programs):
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", programs[isa].library)
    newest = max((int(major), int(minor)) for major, minor in versions)
    assert newest <= tuple(int(part) for part in GLIBC.split("."))


@pytest.mark.parametrize("isa", ISAS)
def test_a_library_needs_the_c_library_only(isa, programs):
    needed = set(re.findall(rb"\0(lib[\w+.-]+\.so[.\d]*)(?=\0)", programs[isa].library))
    assert needed <= {b"libc.so.6", b"libm.so.6", b"libpthread.so.0"}


def test_functions_do_not_depend_on_the_instruction_set(programs):
    functions = {program.functions for program in programs.values()}
    assert len(functions) == 1
    (found,) = functions
    expected = [("forward", 1), ("forward", 4), ("prompt", 4), ("logits", 1)]
    assert [(function.name, function.tokens) for function in found] == expected
    assert len({function.symbol for function in found}) == 4
    forward = found[0]
    assert forward.inputs == ("token_ids", "positions", "sequences", "block_table", "kv_0")
    assert "model.layers.0.self_attn.q_proj+k_proj+v_proj.weight" in forward.weights


def test_each_matmul_names_the_weights_that_are_read_after_it(module):
    """Those of the function that a decoder runs next, too: its threads ask for them while nothing else reads memory."""
    builder = program_builder(module)
    layer, head = "model.layers.0.", "lm_head.weight"
    matmuls = [f"{layer}{name}.weight" for name in ("self_attn.q_proj+k_proj+v_proj", "self_attn.o_proj",
                                                     "mlp.gate_proj+up_proj", "mlp.down_proj")]  # fmt: skip
    following = {"forward": [*matmuls[1:], head], "prompt": [*matmuls[1:], head], "logits": [matmuls[0]]}
    for function in module.graph.functions:
        _, weights = builder.add_function(function, 4, function.name)
        made = builder.variants["simd"].functions[-1]
        names = dict(zip(made.parameters[-len(weights) :], weights, strict=True))
        asking = [call for call in made.calls if "pyc_prefetch_next" in str(builder.kernels.tir[call.kernel])]
        assert [names[call.operands[-1]] for call in asking] == following[function.name]


@pytest.mark.parametrize("model", ["qwen3", "bert"])
def test_every_parallel_loop_is_cut_into_parts(model, tiny_checkpoint):
    """Left to TVM, few rows are all of one thread."""
    from pyc.backends.cpu.constants import PARTS

    recipe = recipe_from({"model": str(tiny_checkpoint(model)), "quantize": {"scheme": "int8"}})
    module = lower_recipe(recipe).part("cpu").module
    builder = program_builder(module)
    for function in module.graph.functions:
        builder.add_function(function, 4, function.name)
    parallel = [kernel for kernel in builder.kernels.tir.values() if "parallel" in str(kernel)]
    assert len(parallel) >= 8
    for kernel in parallel:
        assert str(kernel).count("T.parallel(") == str(kernel).count(f"T.parallel({PARTS})") == 1, kernel


def test_libraries_of_tiles_make_records_in_matmuls_and_attention(tiny_checkpoint):
    path = tiny_checkpoint("qwen3", num_hidden_layers=2, hidden_size=64, intermediate_size=96, head_dim=32)
    module = lower_recipe(recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32"}})).part("cpu").module
    few, many, tiles = lists_of(module, "amx", 4, 32)
    assert few[0] == few[1]
    assert not set(many[0]) & set(tiles.tir)
    own = [kernel for kernel in many[1] if kernel in tiles.tir]
    assert len(own) == 10, "attention and four matmuls of two layers"
    assert len(many[1]) == len(many[0]) - 4, "neither gates nor attention are quantized by a kernel of their own"
    symbols = sorted(tiles.c)
    assert len(symbols) == 5
    assert all("_amx" in symbol for symbol in symbols)
    assert sum(symbol.startswith("pyc_attention_") for symbol in symbols) == 1
    assert sum(symbol.endswith("_silu_interleaved") for symbol in symbols) == 1


def lists_of(module, strategy, *rows):
    """The kernels that each way of multiplying calls for so many rows, few and many, and those of this way alone."""
    builder = program_builder(module, own=(strategy,))
    for count in rows:
        builder.add_function(module.graph.functions[0], count, f"forward_{count}")
    common, own = builder.variants["simd"], builder.variants[strategy]
    assert not any("_amx" in symbol or "linear_append" in symbol for symbol in common.kernels.c)
    lists = ([[call.kernel for call in made.calls] for made in both] for both in
             zip(common.functions, own.functions, strict=True))  # fmt: skip
    return (*lists, own.kernels)


@pytest.mark.parametrize(("rows", "gates"), [(96, True), (100, False)])
def test_libraries_that_fold_take_matmuls_in_strips(rows, gates, tiny_checkpoint):
    path = tiny_checkpoint("qwen3", num_hidden_layers=2, hidden_size=64, intermediate_size=96, head_dim=32)
    module = lower_recipe(recipe_from({"model": str(path), "quantize": {"scheme": "int4-g32"}})).part("cpu").module
    few, many, folded = lists_of(module, "scale_folded", 88, rows)
    assert few[0] == few[1]
    assert len([kernel for kernel in many[1] if kernel in folded.tir]) == (4 if gates else 2)
    assert len(many[1]) == len(many[0]) - (4 if gates else 2), "gates and appending come with their matmuls"
    assert [spec.kind for spec in folded.c.values()] == ["linear_append", *["linear_gated"] * gates]


def test_nothing_is_compiled_twice(module, monkeypatch):
    """What libraries of different ways of multiplying have in common, such as their threads."""
    sources = []
    monkeypatch.setattr(Toolchain, "compile_object", lambda _, source, isa, *__: sources.append((isa, source)) or b"")
    monkeypatch.setattr(Toolchain, "link_shared", lambda *_: b"")
    names = ("amx-bf16", "avx512-vnni", "x86-64-v3")
    backend = CpuBackend(Cache(None))  # one with a cache compiles what nobody has compiled before
    assert len(list(backend.compile(module, Buckets((1, 128), (1,)), names))) == 3
    # Matmuls of two, other kernels and lists of three, the threads, and what each says that it is.
    assert len(sources) == len(set(sources)) == 12


def test_what_tvm_refuses_is_told(module, monkeypatch):
    from pyc.backends.cpu.tir.imports import import_tvm

    import_tvm()
    import tvm

    def refuse(*_):
        raise RuntimeError("Traceback\nno such thing")

    monkeypatch.setattr(tvm.tirx, "build", refuse)
    with pytest.raises(LowerError, match="tvm: x86-64: no such thing"):
        list(CpuBackend().compile(module, BUCKETS, ("x86-64",)))


def test_objects_of_tvm_take_no_room_on_a_disk(module, monkeypatch):
    """LLVM ends the process, without a word of pyc's, when a disk is full."""
    from pyc.backends.cpu.tir.imports import import_tvm

    import_tvm()
    import tvm

    write, places = tvm.runtime.Module.write_to_file, []
    monkeypatch.setattr(
        tvm.runtime.Module, "write_to_file", lambda self, path, *how: places.append(path) or write(self, path, *how)
    )
    assert list(CpuBackend().compile(module, BUCKETS, ("x86-64",)))
    assert places
    assert all(place.startswith("/proc/self/fd/") for place in places)


def test_a_limit_on_the_size_of_files_is_told(module, monkeypatch):
    """LLVM ends the process where an object may not grow."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))
    with pytest.raises(LowerError, match=r"may have 1000 bytes, expected at least 4194304; raise the limit"):
        list(CpuBackend().compile(module, BUCKETS, ("x86-64",)))


def test_tvm_is_imported_where_there_is_no_home():
    """As for a uid that the system does not list, in a container."""
    code = (
        "import os, pwd\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown; before = dict(os.environ)\n"
        "from pyc.backends.cpu.tir.imports import import_tvm\n"
        "import_tvm(); assert dict(os.environ) == before"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_an_import_that_runs_out_of_memory_is_no_fault_of_pyc(monkeypatch):
    """As the interpreter says it when an allocation fails unseen."""
    from pyc.backends.cpu.tir import imports

    def fail(_):
        raise SystemError("error return without exception set")

    monkeypatch.setattr(imports.importlib, "import_module", fail)
    monkeypatch.delitem(sys.modules, "tvm", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(MemoryError, match="while TVM was imported"):
        imports.import_tvm()


def test_compiling_again_gives_the_same_bytes(module, programs):
    isa = "x86-64-v3"
    (again,) = CpuBackend().compile(module, BUCKETS, (isa,))
    assert again.library == programs[isa].library


def test_nothing_to_compile(module):
    assert list(CpuBackend().compile(module, BUCKETS, ())) == []


def test_an_unknown_instruction_set(module):
    with pytest.raises(LowerError, match="unknown instruction set 'vax'; known: x86-64"):
        list(CpuBackend().compile(module, BUCKETS, ("vax",)))


def test_tools_have_versions():
    tools = CpuBackend().tools()
    assert {tool.name for tool in tools} == {"apache-tvm", "ziglang", "pyc-step"}
    assert all(re.match(r"\d+", tool.version) for tool in tools)
