"""`pyc build --program-only` and `pyc attach`: one program serves every fine-tune of a shape, without a compiler."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from built_models import recipe_for, target_of

import pyc.passes.driver.emit_programs as emit_programs
from pyc.backends.cpu import backend as cpu
from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.protocol import CompiledProgram
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.driver import build_calibration, build_source
from pyc.passes.driver.attach import attach
from pyc.passes.driver.build import build
from pyc.passes.driver.build_programs import build_programs
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import RecipeError, UntrustedArtifactError
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.host import extras
from pyc.runtime.model import load

pytestmark = pytest.mark.usefixtures("compiled_once")

SHAPE = {"hidden_size": 64, "intermediate_size": 96}
SCHEME = {"scheme": "int4-g32"}
LEVELS = {"x86_64": ("x86-64", "x86-64-v3")}.get(platform.machine(), ("armv8-a", "armv8.2-a+dotprod"))
WITHOUT_COMPILERS = """
import sys, importlib.metadata as metadata
ABSENT = "tvm", "tvm_ffi", "ziglang", "onnx", "torch", "apache-tvm", "apache-tvm-ffi"
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
find = metadata.distribution
def distribution(name):
    if name in ABSENT:
        raise metadata.PackageNotFoundError(name)
    return find(name)
sys.meta_path.insert(0, Absent())
metadata.distribution = distribution
from pyc.cli import main
sys.exit(main(sys.argv[1:]))
"""


def recipe(checkpoint, **more):
    shapes = {"tokens": [1, 4], "logits": [1], "context": 48}
    return recipe_for(checkpoint, **{"quantize": SCHEME, "shapes": shapes, **more})


@pytest.fixture
def write(tmp_path):
    """Write a recipe to a file."""

    def write(checkpoint, name="model", **more):
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(recipe(checkpoint, **more)))
        return path

    return write


@pytest.fixture
def base(tiny_checkpoint):
    return tiny_checkpoint("llama", **SHAPE)


@pytest.fixture
def program(base, tmp_path, key_home):
    return build_programs(recipe(base), output=tmp_path / "program.pyca").path


@pytest.fixture
def no_compiler(monkeypatch):
    """Fail where a program would be compiled, or a compiler asked for."""

    def refuse(*arguments):
        raise AssertionError("a compiler was used")

    for name in ("compile", "tools"):
        monkeypatch.setattr(CpuBackend, name, refuse)


def test_without_a_compiler_the_bytes_are_those_of_a_build(base, write, tmp_path, pyc):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    both = {"targets": [*target_of(), {"backend": "onnx"}]}
    expected = build(recipe(base, **both), output=tmp_path / "built.pyca").path
    program = build_programs(recipe(base, **both), output=tmp_path / "both.pyca").path
    command = ("attach", program, write(base, **both), "-o", tmp_path / "attached.pyca")
    environment = {**os.environ, "PYC_CACHE_DIR": str(tmp_path / "cache")}  # no compiled packer in it
    done = subprocess.run([sys.executable, "-c", WITHOUT_COMPILERS, *command], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "attached.pyca").read_bytes() == expected.read_bytes()
    fewer = build(recipe(base), output=tmp_path / "built.pyca").path
    code, _, err = pyc("attach", program, write(base), "-o", tmp_path / "attached.pyca")
    assert code == 0, err
    assert (tmp_path / "attached.pyca").read_bytes() == fewer.read_bytes()


@pytest.fixture
def compilers_are_missing(monkeypatch):
    """As on a machine of the base install; fail where a source is hashed."""
    monkeypatch.setattr(emit_programs, "COMPILERS", ("absent-compiler",))
    monkeypatch.setattr(SourceFiles, "digest", lambda self, path: pytest.fail(f"{path} was hashed"))


GATE = {"text": "text.txt", "context": 16, "max_ppl": 1e9}
TIMED = {"min_tok_s": 0.01, "calibration": {"text": "text.txt", "window": 16, "tokens": 256}}
NEEDS_COMPILERS = [
    ({"quality": GATE}, "quality: the gate compares .*, and absent-compiler is not installed; write `reference: none`"),
    ({"quantize": TIMED}, r"quantize\.min_tok_s: choices are compiled .*, and absent-compiler is not .*inspect ARTIF"),
]


@pytest.mark.parametrize(("more", "says"), NEEDS_COMPILERS, ids=["gate", "speed"])
def test_what_compiles_beside_the_programs_is_refused_before_the_work(
    more, says, base, program, write, tmp_path, compilers_are_missing, pyc
):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)
    code, _, err = pyc("attach", program, write(base, **more), "-o", tmp_path / "attached.pyca")
    assert (code, bool(re.search(says, err))) == (69, True), err
    assert "pip install" in err
    assert not (tmp_path / "attached.pyca").exists()


@pytest.mark.slow
def test_a_gate_without_a_reference_needs_no_compiler(base, program, write, tmp_path, no_compiler, monkeypatch, pyc):
    monkeypatch.setattr(emit_programs, "COMPILERS", ("absent-compiler",))
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)
    path = write(base, quality={**GATE, "reference": "none"})
    code, _, err = pyc("attach", program, path, "-o", tmp_path / "attached.pyca")
    assert code == 0, err


@pytest.mark.slow
def test_schemes_that_are_named_are_not_timed(base, tmp_path, monkeypatch, key_home):
    """A recipe that its build has resolved has a goal, and nothing left to choose."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the cat sat on the mat\n" * 40)
    made = build(recipe(base, quantize=TIMED), output="built.pyca")
    monkeypatch.setattr(emit_programs, "COMPILERS", ("absent-compiler",))
    again = attach(made.path, made.mixture.recipe, output="attached.pyca")
    assert again.sha256 == made.sha256


@pytest.mark.parametrize("command", [["build"], ["build", "--program-only"]])
def test_a_build_misses_compilers_before_anything_is_fetched(command, tmp_path, monkeypatch, pyc):
    monkeypatch.setattr(emit_programs, "COMPILERS", ("apache-tvm-absent",))
    monkeypatch.setitem(extras.EXTRAS, "compiler", ("apache-tvm-absent",))
    monkeypatch.setattr(build_source, "fetch_model", lambda *arguments: pytest.fail("something was fetched"))
    code, _, err = pyc(*command, "org/model", "--download", "-o", tmp_path / "model.pyca")
    assert (code, "this needs apache-tvm-absent, which is not installed" in err) == (69, True), err


def test_help_says_how_large_a_program_is(base, tmp_path, monkeypatch, pyc):
    """Of the targets that a recipe has unasked."""
    monkeypatch.chdir(tmp_path)
    assert pyc("build", base, "--program-only", "-o", "program.pyca")[0] == 0
    assert 100_000 < (tmp_path / "program.pyca").stat().st_size < 1_000_000
    said = " ".join(pyc("build", "--help")[1].split())
    assert "buckets and the tensor table, some hundred kilobytes for a model of any size" in said


def test_fine_tunes_and_adapters(base, program, tiny_checkpoint, tiny_adapter, write, tmp_path, no_compiler, pyc):
    tuned = tiny_checkpoint("llama", seed=5, **SHAPE)
    adapted = {"adapters": [{"path": str(tiny_adapter(base))}]}
    sources = {"tuned": write(tuned), "adapted": write(base, "adapted", **adapted), "folder": tuned}
    for name, source in sources.items():
        code, out, err = pyc("attach", program, source, "-o", tmp_path / f"{name}.pyca", "--json")
        assert code == 0, err
        assert json.loads(out)["tensors"] == 12
    made = {name: (tmp_path / f"{name}.pyca").read_bytes() for name in sources}
    assert len(set(made.values())) == 2
    assert made["tuned"] == made["folder"]  # a folder gets the recipe of the program


def test_virtual_tokens(base, tiny_adapter, write, tmp_path, pyc, key_home):
    """Their values are those of weights, so the program has the shape of as many."""

    def adapted(tokens, seed):
        adapter = tiny_adapter(base, "prefix_tuning", seed=seed, num_virtual_tokens=tokens, task_type="CAUSAL_LM")
        return {"adapters": [{"path": str(adapter)}]}

    program = build_programs(recipe(base, **adapted(3, 1)), output=tmp_path / "program.pyca").path
    other = adapted(3, 2)
    expected = build(recipe(base, **other), output=tmp_path / "built.pyca").path
    code, _, err = pyc("attach", program, write(base, **other), "-o", tmp_path / "attached.pyca")
    assert code == 0, err
    assert (tmp_path / "attached.pyca").read_bytes() == expected.read_bytes()
    code, _, err = pyc("attach", program, write(base, "four", **adapted(4, 1)), "-o", tmp_path / "four.pyca")
    assert code == 7 and "this has model.context = 52; the program has model.context = 51;" in err, err
    assert not (tmp_path / "four.pyca").exists()


def test_fine_tunes_are_what_a_build_makes(base, program, tiny_checkpoint, tiny_adapter, write, tmp_path, pyc):
    adapter = tiny_adapter(base)
    cases = {
        "tuned": recipe(tiny_checkpoint("llama", seed=5, **SHAPE)),
        "adapted": recipe(base, adapters=[{"path": str(adapter)}]),
        "rounded": recipe(base, quantize={**SCHEME, "algorithm": "imatrix"}),
    }
    for name, document in cases.items():
        expected = build(document, output=tmp_path / "built.pyca")
        assert expected.cache_misses < expected.cache_hits + expected.cache_misses  # the program was there
        (tmp_path / f"{name}.yaml").write_text(json.dumps(document))
        code, _, err = pyc("attach", program, tmp_path / f"{name}.yaml", "-o", tmp_path / "attached.pyca")
        assert code == 0, err
        assert (tmp_path / "attached.pyca").read_bytes() == expected.path.read_bytes(), name
    with load(tmp_path / "attached.pyca") as model:
        assert len(list(model.generate([1, 5, 9], max_tokens=4, temperature=0))) == 4


def test_a_cache_of_fp8_is_required_of_readers(base, write, tmp_path, pyc, key_home):
    document = {"quantize": {**SCHEME, "kv_cache": "fp8"}}
    program = build_programs(recipe(base, **document), output=tmp_path / "program.pyca").path
    expected = build(recipe(base, **document), output=tmp_path / "built.pyca").path
    code, _, err = pyc("attach", program, write(base, **document), "-o", tmp_path / "attached.pyca")
    assert code == 0, err
    assert (tmp_path / "attached.pyca").read_bytes() == expected.read_bytes()
    for path, features in ((program, ("kv_cache_fp8", "program_only")), (expected, ("kv_cache_fp8",))):
        with open_artifact(path) as artifact:
            assert artifact.header.requires == features


def test_no_weight_is_read(base, tmp_path, monkeypatch):
    file = next(base.glob("*.safetensors"))
    header_bytes = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    read, digest = SourceFiles.read_into, SourceFiles.digest
    def hashed(self, path):
        assert not path.endswith(".safetensors"), "weights are hashed"
        return digest(self, path)

    def checked(self, path, buffer, offset):
        assert not path.endswith(".safetensors") or offset + len(buffer) <= header_bytes, "weights are read"
        return read(self, path, buffer, offset)

    monkeypatch.setattr(SourceFiles, "digest", hashed)
    monkeypatch.setattr(SourceFiles, "read_into", checked)
    made = build_programs(recipe(base), output=tmp_path / "program.pyca")
    assert (made.tensors, made.scheme_bytes) == (12, ())


def test_commands_on_a_program(base, program, write, tmp_path, pyc):
    assert pyc("verify", program)[0] == 0
    code, out, _ = pyc("inspect", program, "--tensors")
    assert (code, "runs here    no: it has no weights; pyc attach adds them" in out) == (0, True), out
    assert "tensor      model.embed_tokens.weight" in out
    for command in (
        ("run", program, "--prompt", "x"),
        ("bench", program),
        ("bundle", program, "-o", tmp_path / "b"),
        ("report", program, base),
    ):
        code, _, err = pyc(*command)
        assert (code, "has programs and no weights; add those of a checkpoint: pyc attach" in err) == (8, True), err
    full = build(recipe(base), output=tmp_path / "full.pyca").path
    code, out, err = pyc("diff", program, full, "--json")
    assert code == 0, err
    assert (json.loads(out)["tensors"], json.loads(out)["equal_tensors"]) == ([], 12)


@pytest.mark.parametrize(
    ("more", "config", "expected"),
    [
        ({"shapes": {"tokens": [1, 4], "logits": [1], "context": 32}}, {}, "has model.context = 32; the program has"),
        ({"shapes": {"tokens": [1, 8], "logits": [1], "context": 48}}, {}, "has buckets.tokens = [1, 4, 8]; the prog"),
        ({"quantize": {"scheme": "int8"}}, {}, "int8 [128, 64]"),
        ({}, {"intermediate_size": 128}, "gate_proj+up_proj.weight = u8 [16,"),
        ({}, {"rms_norm_eps": 0.01}, "epsilon = 0.01"),
        ({}, {"vocab_size": 300}, "has model.vocab_size = 300; the program has model.vocab_size = 263"),
        ({"quantize": {"scheme": "int8", "algorithm": "gptq"}}, {}, "int8 [128, 64]"),
        ({"targets": [{"arch": "aarch64", "isa": ["armv8"]}]}, {}, "has no program for the target cpu aarch64 armv8"),
    ],
)
def test_programs_of_another_module(
    more, config, expected, program, tiny_checkpoint, write, tmp_path, pyc, monkeypatch
):
    """Which is found before anything is calibrated."""
    monkeypatch.setattr(build_calibration, "calibrate", lambda *arguments: pytest.fail("work began"))
    checkpoint = tiny_checkpoint("llama", **{**SHAPE, **config})
    code, _, err = pyc("attach", program, write(checkpoint, **more), "-o", tmp_path / "out.pyca")
    assert (code, expected in err, len(err.strip().splitlines()[-1]) < 900) == (7, True, True), err
    assert not (tmp_path / "out.pyca").exists()


SCALED = {"scheme": "int8-g32", "calibration": {"tokens": 256, "window": 32}}


@pytest.mark.parametrize("algorithm", ["awq", "awq-gptq", "smoothquant"])
def test_programs_of_a_model_whose_channels_are_scaled(
    algorithm, base, tiny_checkpoint, write, tmp_path, pyc, monkeypatch
):
    """Those of another model, and of one that is not scaled, are found before anything is calibrated."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 40)
    calibration = {**SCALED["calibration"], "text": str(text)}
    quantize = {**SCALED, "calibration": calibration, "algorithm": algorithm}
    full = build(recipe(base, quantize=quantize), output=tmp_path / "full.pyca").path
    code, _, err = pyc("attach", full, write(base, quantize=quantize), "-o", tmp_path / "again.pyca")
    assert code == 0, err
    assert (tmp_path / "again.pyca").read_bytes() == full.read_bytes()
    plain = build(recipe(base, quantize={"scheme": "int8-g32"}), output=tmp_path / "plain.pyca").path
    monkeypatch.setattr(build_calibration, "calibrate", lambda *arguments: pytest.fail("work began"))
    other = tiny_checkpoint("llama", **SHAPE, rms_norm_eps=0.01)
    alone = f"algorithm {algorithm} of this recipe alone scales channels by weights"
    for program, checkpoint, says in ((full, other, ": compiled for another model"), (plain, base, alone)):
        command = ("attach", program, write(checkpoint, quantize=quantize), "-o", tmp_path / "out.pyca")
        code, _, err = pyc(*command)
        assert (code, says in err) == (7, True), err


def test_an_artifact_with_weights_is_a_program_too(base, tiny_checkpoint, write, tmp_path, pyc):
    full = build(recipe(base), output=tmp_path / "full.pyca").path
    code, _, err = pyc("attach", full, write(base), "-o", tmp_path / "again.pyca")
    assert code == 0, err
    assert (tmp_path / "again.pyca").read_bytes() == full.read_bytes()
    cases = (
        ({}, {"vocab_size": 300}, "has model.vocab_size = 300; the program has model.vocab_size = 263"),
        ({"quantize": {"scheme": "int8"}}, {}, "; the program has weight model.layers.0"),
        ({}, {"rms_norm_eps": 0.01}, "another model of the same shapes: a value of config.json"),
    )
    for more, config, expected in cases:
        checkpoint = tiny_checkpoint("llama", **{**SHAPE, **config})
        code, _, err = pyc("attach", full, write(checkpoint, **more), "-o", tmp_path / "out.pyca")
        assert (code, expected in err) == (7, True), err
    code, _, err = pyc("attach", full, write(base), "-o", full, "--force")
    assert (code, "the program" in err) == (8, True), err


def test_programs_of_another_pyc(base, write, tmp_path, monkeypatch, pyc):
    with monkeypatch.context() as patch:
        patch.setattr(emit_programs, "own_tools", lambda *arguments: ())
        older = build_programs(recipe(base), output=tmp_path / "older.pyca").path
    with monkeypatch.context() as patch:
        patch.setattr(CpuBackend, "sources_digest", lambda self: "other")
        patch.setattr(CpuBackend, "compile", compile_nothing)
        other = build_programs(recipe(base), output=tmp_path / "other.pyca").path
    for program, expected in ((older, "recorded no digest of the module"), (other, "built by another pyc (0.1.0)")):
        code, _, err = pyc("attach", program, write(base), "-o", tmp_path / "out.pyca")
        assert (code, expected in err) == (7, True), err


def test_programs_that_are_called_otherwise_say_that_another_pyc_helps(base, write, tmp_path, monkeypatch, pyc):
    """Whatever targets the recipe names: of another pyc none fits, and it is not for the recipe to leave one out."""
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "STEP_CONVENTION", ("pyc-step", "5"))
        patch.setattr(CpuBackend, "compile", compile_nothing)
        older = build_programs(recipe(base, targets=[{"isa": [LEVELS[0]]}]), output=tmp_path / "older.pyca").path
    for isa in LEVELS:
        source = write(base, targets=[{"isa": [isa]}])
        code, _, err = pyc("attach", older, source, "-o", tmp_path / "out.pyca")
        assert code == 7, err
        assert f" {LEVELS[0]} is of another pyc (pyc-step 5); this one has pyc-step {STEP_CONVENTION[1]}, " in err, err
        assert "build it again with this pyc" in err and "leave the target out" not in err
        assert not (tmp_path / "out.pyca").exists()


def compile_nothing(self, module, buckets, isas):
    """What stands for a compiler."""
    yield from (CompiledProgram(isa, platform.machine(), (), b"library", ()) for isa in isas)


def test_only_a_trusted_program_is_taken(base, program, write, tmp_path, monkeypatch, pyc):
    source = write(base)
    data = bytearray(program.read_bytes())
    unsigned = tmp_path / "unsigned.pyca"
    unsigned.write_bytes(bytes(data[:64]) + bytes(96) + bytes(data[160:]))
    damaged = tmp_path / "damaged.pyca"
    data[-100] ^= 1
    damaged.write_bytes(data)
    for file, expected in ((unsigned, 11), (damaged, 8), (source, 8), (tmp_path / "missing.pyca", 10)):
        code, _, err = pyc("attach", file, source, "-o", tmp_path / "out.pyca")
        assert (code, "pyc: error: " in err) == (expected, True), err
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "other_home"))
    assert pyc("attach", program, source, "-o", tmp_path / "out.pyca")[0] == 12
    assert not (tmp_path / "out.pyca").exists()
    with open_artifact(program) as opened:
        signer = PublicKey(opened.signature.public_key).text()
    assert pyc("attach", program, source, "-o", tmp_path / "out.pyca", "--trust", signer)[0] == 0
    for name in ("signer.pub", "link.pub"):
        public = tmp_path / "signer.pub"
        public.write_text(signer + "\n")
        (tmp_path / "link.pub").unlink(missing_ok=True)
        (tmp_path / "link.pub").symlink_to(public)
        code, _, err = pyc("attach", program, source, "-o", public, "--trust", tmp_path / name, "--force")
        assert code == 8 and "signer.pub: is whom to trust" in err
        assert public.read_text() == signer + "\n"
    with pytest.raises(UntrustedArtifactError, match="expected key"):
        attach(program, source, output=tmp_path / "other.pyca", trust=PublicKey(bytes(range(32))).text())
    with pytest.raises(RecipeError, match="trust: got 5, expected a path"):
        attach(program, source, output=tmp_path / "other.pyca", trust=5)
    assert not (tmp_path / "other.pyca").exists()


@pytest.mark.parametrize(
    ("quantize", "expected"),
    [
        ({"bits_per_weight": 5}, "quantize.bits_per_weight: schemes would be chosen by weights"),
        ({"scheme": "int8", "algorithm": "awq"}, "quantize.algorithm: awq scales channels by weights"),
    ],
)
def test_programs_that_depend_on_weights(quantize, expected, base, write, tmp_path, pyc):
    code, _, err = pyc("build", write(base, quantize=quantize), "--program-only", "-o", tmp_path / "out.pyca")
    assert (code, expected in err) == (3, True), err
    assert not (tmp_path / "out.pyca").exists()


@pytest.mark.parametrize("name", ["text", "imatrix"])
def test_files_that_a_program_was_calibrated_by_are_not_taken_from_the_current_folder(
    name, base, tmp_path, monkeypatch, key_home, pyc
):
    quantize = {**SCHEME, "algorithm": "imatrix", "calibration": {name: "given.file"}}
    program = build_programs(recipe(base, quantize=quantize), output=tmp_path / "program.pyca").path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.file").write_text("of another model")
    code, _, err = pyc("attach", program, base, "-o", tmp_path / "out.pyca")
    said = f"its recipe has quantize.calibration.{name}, a file beside it; give the recipe itself"
    assert (code, said in err) == (3, True), err


def encoder_folder(tiny_checkpoint, tmp_path, length):
    path = tmp_path / f"reads_{length}"
    shutil.copytree(tiny_checkpoint("bert", pooling="mean"), path)
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return path


@pytest.mark.parametrize("says_context", [True, False])
def test_texts_are_cut_where_the_checkpoint_says(
    says_context, tiny_checkpoint, tmp_path, caplog, pyc, key_home
):
    """By a program for longer ones, whether its recipe or its own checkpoint says how long."""
    texts = ["the cat sat on the mat; " * 3, "the dog"]
    shapes = {"tokens": [64], "batch": [2], **({"context": 50} if says_context else {})}
    program = tmp_path / "program.pyca"
    build_programs(recipe_for(encoder_folder(tiny_checkpoint, tmp_path, 50), shapes=shapes), output=program)
    folder = encoder_folder(tiny_checkpoint, tmp_path, 16)
    code, _, err = pyc("attach", program, folder, "-o", tmp_path / "attached.pyca")
    assert (code, "texts" in caplog.text) == (0, False), err
    wanted = recipe_for(folder, shapes={**shapes, "context": 50, "text_tokens": 16})
    assert (tmp_path / "attached.pyca").read_bytes() == build(wanted, output=tmp_path / "b.pyca").path.read_bytes()
    assert "context      50 tokens, the first 16 of a text" in pyc("inspect", tmp_path / "b.pyca")[1].splitlines()
    own = build(recipe_for(folder, shapes={"tokens": [64], "batch": [2]}), output=tmp_path / "own.pyca").path
    with load(tmp_path / "attached.pyca") as attached, load(own) as built:
        assert attached.embed_max_tokens == built.embed_max_tokens == 16
        assert attached.count_cut(texts) == built.count_cut(texts) == 1
        assert (attached.embed(texts) == built.embed(texts)).all()
    for sizes in (["shapes.text_tokens=20"], ["shapes.text_tokens=null"]):
        code, _, err = pyc("attach", program, folder, "-o", tmp_path / "longer.pyca", "--set", *sizes)
        assert code == 0, err
        assert "and the checkpoint cuts them at 16; vectors of longer texts" in caplog.text
        caplog.clear()


def test_a_program_that_takes_fewer_tokens_than_the_checkpoint_reads_is_warned_of(
    tiny_checkpoint, tmp_path, caplog, pyc, key_home
):
    folders = {length: encoder_folder(tiny_checkpoint, tmp_path, length) for length in (20, 40)}
    program = tmp_path / "program.pyca"
    build_programs(recipe_for(folders[20], shapes={"tokens": [64], "batch": [2]}), output=program)
    for length, folder in folders.items():
        code, _, err = pyc("attach", program, folder, "-o", tmp_path / "attached.pyca")
        assert code == 0, err
        warned = f"texts are cut at the 20 tokens that {program} is compiled for, and the checkpoint reads 40;"
        assert (warned in caplog.text) == (length == 40)
        with load(tmp_path / "attached.pyca") as model:
            assert model.embed_max_tokens == 20
        with open_artifact(tmp_path / "attached.pyca") as artifact:
            assert artifact.header.requires == ()


@pytest.mark.parametrize(
    ("kind", "config", "differs"),
    [("llama", {}, "architecture"), ("bert", {"pooling": "mean", "vocab_size": 300}, "vocab_size")],
)
def test_a_checkpoint_of_another_model_than_an_encoders_is_refused_and_not_warned_of(
    kind, config, differs, tiny_checkpoint, tmp_path, caplog, pyc, key_home
):
    """Both read more tokens than the program takes."""
    program, other = tmp_path / "program.pyca", tiny_checkpoint(kind, **config)
    build_programs(recipe_for(encoder_folder(tiny_checkpoint, tmp_path, 20), shapes={"tokens": [64]}), output=program)
    code, out, err = pyc("attach", program, other, "-o", tmp_path / "out.pyca")
    assert (code, out, caplog.text) == (7, "", "")
    said = f"pyc: error: {program}: the code of this program does not fit: this has model.{differs} = "
    assert err.splitlines()[-1].startswith(said)
    assert not (tmp_path / "out.pyca").exists()


def test_the_tokenizer_that_a_programs_recipe_names_is_not_that_of_another_checkpoint(
    base, tiny_checkpoint, tmp_path, pyc, key_home
):
    program = build_programs(recipe(base, tokenizer=str(base)), output=tmp_path / "program.pyca").path
    tuned = Path(shutil.copytree(tiny_checkpoint("llama", seed=5, **SHAPE), tmp_path / "tuned"))
    (tuned / "chat_template.jinja").write_text("tuned {{ messages[0]['content'] }}")
    code, _, err = pyc("attach", program, tuned, "-o", tmp_path / "attached.pyca")
    assert code == 0, err
    with open_artifact(tmp_path / "attached.pyca") as artifact:
        assert bytes(artifact.blob("chat_template.jinja")).startswith(b"tuned")


def test_an_encoder_of_the_hub_is_fetched_before_it_is_looked_at(tiny_checkpoint, tmp_path, monkeypatch, pyc, key_home):
    """And it is looked at with what the overrides name."""
    fetched, length = [], {"org/model": 30, "org/tokenizer": 10}

    def fetch(name, *_, **__):
        folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(tiny_checkpoint("bert", pooling="mean"), folder / "snapshots" / ("1" * 40))
        if name == "org/tokenizer":
            settings = {"truncation_side": "left"}
            (folder / "snapshots" / ("1" * 40) / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "snapshots" / ("1" * 40) / "sentence_bert_config.json").write_text(
            json.dumps({"max_seq_length": length[name]})
        )
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("1" * 40)
        fetched.append(name)

    for kind in ("model", "tokenizer", "adapter"):
        monkeypatch.setattr(build_source, f"fetch_{kind}", fetch)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    program = tmp_path / "program.pyca"
    build_programs(recipe_for(encoder_folder(tiny_checkpoint, tmp_path, 40), shapes={"tokens": [64]}), output=program)
    command = ("attach", program, "org/model", "--download", "--set", "tokenizer=org/tokenizer")
    code, _, err = pyc(*command, "-o", tmp_path / "attached.pyca")
    assert (code, fetched) == (0, ["org/model", "org/tokenizer"]), err
    with open_artifact(tmp_path / "attached.pyca") as artifact:
        asked = json.loads(artifact.header.provenance.recipe)
    assert asked["tokenizer"] == "org/tokenizer"
    assert (asked["shapes"]["context"], asked["shapes"]["text_tokens"]) == (40, 30)


def test_the_context_of_a_program_is_kept_by_a_checkpoint_of_the_same(tiny_checkpoint, tmp_path, pyc, key_home):
    """Whatever the tokenizer that an override names says of lengths."""
    program, folder = tmp_path / "program.pyca", tiny_checkpoint("bert", pooling="mean")
    build_programs(recipe_for(folder, shapes={"tokens": [64]}), output=program)
    code, _, err = pyc("attach", program, folder, "-o", tmp_path / "attached.pyca")
    assert code == 0, err
    with open_artifact(tmp_path / "attached.pyca") as artifact:
        assert json.loads(artifact.header.provenance.recipe)["shapes"]["context"] == artifact.header.model.context


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("bert", {"max_position_embeddings": 32}, 'has model.architecture = "bert"; the program has model.archi'),
        ("llama", {"vocab_size": 300, "max_position_embeddings": 32}, "has model.vocab_size = 300; the program has"),
        ("llama", {"max_position_embeddings": 32}, "model.context = 32; the program has model.context = 48; build "),
    ],
)
def test_a_checkpoint_that_the_shapes_of_the_program_are_not_for(
    kind, config, expected, program, tiny_checkpoint, tmp_path, pyc
):
    """What differs is told, and not that a recipe has to be changed which nobody gave."""
    checkpoint = tiny_checkpoint(kind, **({} if kind == "bert" else SHAPE), **config)
    code, _, err = pyc("attach", program, checkpoint, "-o", tmp_path / "out.pyca")
    assert (code, expected in err, "lower shapes.context" in err) == (7, True, False), err
    assert not (tmp_path / "out.pyca").exists()
    (checkpoint / "model.safetensors").unlink()
    code, _, err = pyc("attach", program, checkpoint, "-o", tmp_path / "out.pyca")
    assert (code, "the program has" in err) == (4, False), err
