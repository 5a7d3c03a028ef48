"""Writes the golden artifact of this format version: `python tests/golden/make_v1.py OUT`.

tests/golden/v1.0.pyca and v1.1.pyca are never written again: every later release must open them. The script stays as
the record of what is in them; the program of v1.0 has a `runtime_library` too. The signing key is made of 32 bytes
known to all: it is worth nothing and trusted nowhere.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from nacl.signing import SigningKey as PrivateKey

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact.format import (
    Function,
    Generation,
    KvCache,
    ModelInfo,
    PassRecord,
    Pooling,
    Program,
    Provenance,
    SourceFile,
    Tool,
)
from pyc.runtime.artifact.trust.keys import PublicKey, SigningKey


def tensors() -> dict[str, tuple[str, "np.ndarray"]]:
    """One tensor of each dtype, a scalar, and two of several chunks; "packed" compresses, "noise" not."""
    return {
        "f32": ("f32", (np.arange(12, dtype="<f4") / 8 - 0.5).reshape(3, 4)),
        "f16": ("f16", (np.arange(6, dtype="<f2") / 4).reshape(1, 2, 3)),
        "bf16": ("bf16", np.array([0x3F80, 0xBF80, 0x0000, 0x7F80], dtype="<u2")),
        "i32": ("i32", np.array([-(2**31), -1, 0, 2**31 - 1], dtype="<i4")),
        "u8": ("u8", np.arange(256, dtype="u1").reshape(16, 16)),
        "i8": ("i8", np.arange(-128, 128, dtype="i1")),
        "scalar": ("f32", np.array(2.5, dtype="<f4")),
        "packed": ("u8", (np.arange(40000) * 7919 >> 5).astype("u1").reshape(200, 200)),
        "noise": ("u8", np.frombuffer(hashlib.shake_256(b"golden").digest(20000), dtype="u1")),
    }


def blobs() -> dict[str, bytes]:
    """An empty blob, one that zstd shrinks, and one that only lz4 may hold (zstd would exceed 256:1)."""
    numbers = " ".join(str(number * number) for number in range(2000))
    return {"empty": b"", "numbers.txt": numbers.encode(), "zeros": bytes(32768), "lib.so": b"not code"}


def write(path: Path) -> None:
    """Writes the golden artifact."""
    private = PrivateKey(b"pyc golden key, trusted nowhere!")
    key = SigningKey(PublicKey(bytes(private.verify_key), "golden"), lambda message: private.sign(message).signature)
    functions = (
        Function("forward", 1, "forward_1", ("token_ids", "positions"), ("f32", "i8")),
        Function("forward", 16, "forward_16", ("token_ids", "positions"), ("f32", "i8")),
        Function("logits", 1, "logits_1", ("hidden",), ("bf16",)),
    )
    program = Program(
        backend="tvm",
        device="cpu",
        arch="x86_64",
        system="linux",
        isa="x86-64-v3",
        features=("avx2", "fma"),
        library="lib.so",
        abi=(Tool("tvm_ffi", "0.1.15"),),
        functions=functions,
    )
    provenance = Provenance(
        recipe='{"model":"golden"}',
        sources=(SourceFile("weights/model-00001-of-00001.safetensors", 12345, "ab" * 32),),
        tools=(Tool("pyc-compiler", "0.1.0"),),
        passes=(PassRecord("quantize_int8", 1, '{"clip":0.95,"note":"é 模型 \\u0007"}'),),
    )
    cache = KvCache(layers=2, heads=4, head_dim=16, dtype="f16", block_tokens=16)
    with ArtifactWriter(path, "zstd", chunk_bytes=16384) as writer:
        for name, data in list(blobs().items())[:2]:
            writer.add_blob(name, data)
        for name, (dtype, array) in tensors().items():
            writer.add_tensor(name, dtype, array.shape, [array.tobytes()])  # type: ignore[arg-type]
        for name, data in list(blobs().items())[2:]:
            writer.add_blob(name, data)
        writer.finish(
            model=ModelInfo("llama", "decoder", 32000, 64, 128, 4, cache, Pooling("mean", True)),
            generation=Generation(
                eos_token_ids=(2, 7),
                bos_token_id=1,
                temperature="0.7",
                top_k=40,
                top_p="0.95",
                do_sample=True,
            ),
            provenance=provenance,
            programs=(program,),
            signing_key=key,
        )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
