"""A home for keys of its own, the command line run in this process, and checkpoints to compile."""

from collections.abc import Callable
from pathlib import Path

import pytest
from built_models import artifacts
from bundles import installable, make_local_artifact, wheels
from compiled_objects import compiled_once, suite_cache
from running_models import decoder_artifact, encoder_artifact
from stopped_clock import stopped_clock
from tiny_checkpoints import tiny_adapter, tiny_checkpoint, tiny_copy

from pyc import cli
from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact.format import (
    Function,
    Generation,
    KvCache,
    ModelInfo,
    PassRecord,
    Program,
    Provenance,
    SourceFile,
    Tool,
)
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.executors.protocol import STEP_CONVENTION

__all__ = [
    "artifacts",
    "compiled_once",
    "decoder_artifact",
    "encoder_artifact",
    "installable",
    "make_local_artifact",
    "stopped_clock",
    "suite_cache",
    "tiny_adapter",
    "tiny_checkpoint",
    "tiny_copy",
    "wheels",
]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for the session: a program is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_home(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty key store and the session's build cache, never the user's."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PYC_HOME", str(home))
    monkeypatch.setenv("PYC_CACHE_DIR", str(shared_cache))
    return home


@pytest.fixture
def key_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$PYC_HOME, empty."""
    home = tmp_path / "pyc_home"
    monkeypatch.setenv("PYC_HOME", str(home))
    return home


@pytest.fixture
def pyc(key_home: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line: (exit code, standard output, standard error)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def make_artifact(tmp_path: Path, key_home: Path) -> Callable[..., Path]:
    """Writes a small artifact for CPUs of `arch` and steps of version `step`, signed by the default key unless `signed`
    is false."""

    def make(
        *, signed: bool = True, version: str = "0.1", arch: str = "x86_64", step: str = STEP_CONVENTION[1]
    ) -> Path:
        path = tmp_path / "model.pyca"
        cache = KvCache(layers=2, heads=4, head_dim=16, dtype="f16", block_tokens=16)
        forward = [Function("forward", tokens, f"f{tokens}", ("token_ids",), ("w",)) for tokens in (1, 16)]
        program = Program(
            backend="cpu",
            device="cpu",
            arch=arch,
            system="linux",
            isa="x86-64-v3",
            features=("avx2", "fma"),
            library="lib.so",
            abi=(Tool("tvm_ffi", "0.1.15"), Tool(STEP_CONVENTION[0], step)),
            functions=tuple(forward),
        )
        provenance = Provenance(
            recipe='{"model":"demo"}',
            sources=(SourceFile("model.safetensors", 1234, "0" * 64),),
            tools=(Tool("pyc-compiler", version),),
            passes=(PassRecord("fuse_lora", 1, "{}"),),
        )
        with ArtifactWriter(path) as writer:
            writer.add_tensor("w", "bf16", (3, 5), [bytes(range(30))])
            writer.add_blob("lib.so", b"\x7fELF code")
            writer.finish(
                model=ModelInfo("llama", "decoder", 32, 8, 64, 2, cache, None),
                generation=Generation(temperature="0.7"),
                provenance=provenance,
                programs=(program,),
                signing_key=signing_key() if signed else None,
            )
        return path

    return make
