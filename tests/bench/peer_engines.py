"""Who is measured: pyc in three storages, and every peer in those that compare with them. Data only."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """A package in a virtual environment of its own. `module` tells whether an environment has it."""

    name: str
    module: str


@dataclass(frozen=True)
class Engine:
    """One row of the table: a peer with one storage of the weights.

    `worker` is a script in workers/, `weights` a name in the work folder (None: the checkpoint itself), `options`
    are the worker's. `maker` is the peer that makes the weights, where that is another.
    """

    name: str
    peer: str
    worker: str
    weights: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    maker: str | None = None


PYC = "pyc"
PEERS = (
    Peer("llama.cpp", "llama_cpp"),
    Peer("mistral.rs", "mistralrs"),
    Peer("transformers", "transformers"),
    Peer("onnxruntime-genai", "onnxruntime_genai"),
    Peer("openvino-genai", "openvino_genai"),
)
PYC_STORAGES = {
    "pyc-int4.pyca": {"scheme": "int4-g32", "embeddings": "int4-g32"},
    "pyc-int4-int8.pyca": {"scheme": "int4-g32", "embeddings": "int8"},
    "pyc-int8.pyca": {"scheme": "int8", "embeddings": "int8"},
}
GGUF_TYPES = ("q4_0", "q4_k_m", "q8_0")
ENGINES = (
    Engine("pyc int4-g32", PYC, "pyc_artifact.py", "pyc-int4.pyca"),
    Engine("llama.cpp Q4_0", "llama.cpp", "llama_cpp_gguf.py", "gguf-q4_0.gguf"),
    Engine("mistral.rs Q4K in place", "mistral.rs", "mistral_rs.py", None, {"in_situ_quant": "Q4K"}),
    Engine("pyc int4-g32, int8 embeddings", PYC, "pyc_artifact.py", "pyc-int4-int8.pyca"),
    Engine("llama.cpp Q4_K_M", "llama.cpp", "llama_cpp_gguf.py", "gguf-q4_k_m.gguf"),
    Engine("mistral.rs Q4_K_M", "mistral.rs", "mistral_rs.py", "gguf-q4_k_m.gguf", maker="llama.cpp"),
    Engine("onnxruntime-genai int4 g32", "onnxruntime-genai", "onnxruntime_int4.py", "onnxruntime-int4"),
    Engine("openvino-genai int4 g32", "openvino-genai", "openvino_int4.py", "openvino-int4", {"precision": "bf16"}),
    Engine("pyc int8", PYC, "pyc_artifact.py", "pyc-int8.pyca"),
    Engine("llama.cpp Q8_0", "llama.cpp", "llama_cpp_gguf.py", "gguf-q8_0.gguf"),
    Engine("mistral.rs Q8_0 in place", "mistral.rs", "mistral_rs.py", None, {"in_situ_quant": "Q8_0"}),
    Engine("transformers bf16", "transformers", "transformers_bf16.py"),
)
"""In the order in which they take turns."""
