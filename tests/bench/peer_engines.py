"""Who is measured: pyc in several storages, and every peer in those that compare with them. Data only."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """A package in a virtual environment of its own. `module` tells whether an environment has it.

    A peer without a module is a program: what stands for its interpreter on the command line is the program.
    """

    name: str
    module: str | None


@dataclass(frozen=True)
class Engine:
    """One row of the table: a peer with one storage of the weights and of the cache.

    `worker` is a script in workers/, `weights` a name in the work folder (None: the checkpoint itself), `options`
    are the worker's. `maker` is the peer that makes the weights, where that is another. `cache_bits` are of a key or
    a value. `quality` is the script in workers/ that scores the same storage, `fills` says that the worker can fill a
    long context in seconds, so that long contexts take part in every round. `headline`: measured unless the command
    line says otherwise.
    """

    name: str
    peer: str
    worker: str
    weights: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    maker: str | None = None
    cache_bits: int = 16
    quality: str | None = None
    fills: bool = False
    headline: bool = False


PYC = "pyc"
PEERS = (
    Peer("llama.cpp", "llama_cpp"),
    Peer("ik_llama.cpp", None),
    Peer("mistral.rs", "mistralrs"),
    Peer("transformers", "transformers"),
    Peer("onnxruntime-genai", "onnxruntime_genai"),
    Peer("openvino-genai", "openvino_genai"),
)
PYC_STORAGES = {
    "pyc-int4.pyca": {"scheme": "int4-g32"},
    "pyc-int4-kv8.pyca": {"scheme": "int4-g32", "kv_cache": "int8"},
    "pyc-int4-int4.pyca": {"scheme": "int4-g32", "embeddings": "int4-g32"},
    "pyc-int4-int4-kv8.pyca": {"scheme": "int4-g32", "embeddings": "int4-g32", "kv_cache": "int8"},
    "pyc-int8.pyca": {"scheme": "int8"},
    "pyc-int8-kv8.pyca": {"scheme": "int8", "kv_cache": "int8"},
    "pyc-bf16.pyca": {"scheme": "none"},
    "pyc-bf16-bf16.pyca": {"scheme": "none", "activations": "bf16"},
}
"""`quantize` of the recipes, by the artifact's name. The first is what `pyc init` writes for a model of this size."""
AVX2 = "x86-64-v3"
"""A lesser variant, measured beside the best; the peers use all that the machine has."""
LONG_CONTEXT = 2048
"""Contexts above it take turns of their own; as in workers/job.py, which has Python alone."""
GGUF_TYPES = ("q4_0", "q4_k_m", "q8_0", "bf16", "f16")
IK_GGUF_TYPES = ("iq4_k", "iq4_ks")
"""Storages that ik_llama.cpp alone has; its own program makes them from f16."""


def _pyc(name: str, weights: str, *, cache_bits: int = 16, isa: str | None = None, headline: bool = False) -> Engine:
    options = {"isa": isa} if isa else {}
    return Engine(
        f"pyc {name}",
        PYC,
        "pyc_artifact.py",
        weights,
        options,
        cache_bits=cache_bits,
        quality="quality_pyc.py",
        fills=True,
        headline=headline,
    )


def _llama(name: str, kind: str, *, cache: str = "f16", flash: bool = False, headline: bool = False) -> Engine:
    """Flash attention makes llama.cpp faster at short contexts and slower at long ones; a q8_0 cache needs it."""
    return Engine(
        f"llama.cpp {name}",
        "llama.cpp",
        "llama_cpp_gguf.py",
        f"gguf-{kind}.gguf",
        {"cache": cache, "flash": "on" if flash else "off"},
        cache_bits=8 if cache == "q8_0" else 16,
        quality="quality_llama_cpp.py",
        fills=True,
        headline=headline,
    )


def _ik_llama(name: str, kind: str, *, cache: str = "f16", headline: bool = False) -> Engine:
    return Engine(
        f"ik_llama.cpp {name}",
        "ik_llama.cpp",
        "ik_llama_bench.py",
        f"gguf-{kind}.gguf",
        {"cache": cache},
        maker=None if kind in IK_GGUF_TYPES else "llama.cpp",
        cache_bits=8 if cache == "q8_0" else 16,
        quality="quality_ik_llama.py",
        headline=headline,
    )


def _mistral(name: str, *, gguf: str | None = None, headline: bool = False, **options: str) -> Engine:
    """A GGUF file, or the checkpoint as `options` say. It gives no log-probabilities of a prompt: no quality."""
    weights, maker = (f"gguf-{gguf}.gguf", "llama.cpp") if gguf else (None, None)
    return Engine(
        f"mistral.rs {name}", "mistral.rs", "mistral_rs.py", weights, options, maker=maker, headline=headline
    )


def _openvino(name: str, *, cache: str | None = None, headline: bool = False) -> Engine:
    """Its cache has 8 bits where nothing is said."""
    options = {"precision": "bf16"} | ({"cache": cache} if cache else {})
    return Engine(
        f"openvino-genai {name}",
        "openvino-genai",
        "openvino_int4.py",
        "openvino-int4",
        options,
        cache_bits=16 if cache else 8,
        quality="quality_openvino.py",
        headline=headline,
    )


ENGINES = (
    _pyc("int4-g32", "pyc-int4.pyca", headline=True),
    _pyc("int4-g32 with AVX2", "pyc-int4.pyca", isa=AVX2),
    _llama("Q4_0", "q4_0"),
    _llama("Q4_0, flash attention", "q4_0", flash=True, headline=True),
    _ik_llama("Q4_0", "q4_0", headline=True),
    _pyc("int4-g32, int8 cache", "pyc-int4-kv8.pyca", cache_bits=8, headline=True),
    _llama("Q4_0, q8_0 cache", "q4_0", cache="q8_0", flash=True),
    _ik_llama("Q4_0, q8_0 cache", "q4_0", cache="q8_0", headline=True),
    _ik_llama("Q4_K_M, q8_0 cache", "q4_k_m", cache="q8_0", headline=True),
    _llama("Q4_K_M", "q4_k_m"),
    _llama("Q4_K_M, flash attention", "q4_k_m", flash=True, headline=True),
    _ik_llama("Q4_K_M", "q4_k_m", headline=True),
    _ik_llama("IQ4_K", "iq4_k", headline=True),
    _ik_llama("IQ4_KS", "iq4_ks", headline=True),
    _mistral("Q4_K_M", gguf="q4_k_m", headline=True),
    _mistral("Q4K in place", in_situ_quant="Q4K"),
    Engine("onnxruntime-genai int4 g32", "onnxruntime-genai", "onnxruntime_int4.py", "onnxruntime-int4"),
    _openvino("int4 g32", headline=True),
    _openvino("int4 g32, f16 cache", cache="f16", headline=True),
    _pyc("int4-g32, embeddings int4-g32", "pyc-int4-int4.pyca", headline=True),
    _pyc("int4-g32, embeddings int4-g32, int8 cache", "pyc-int4-int4-kv8.pyca", cache_bits=8, headline=True),
    _pyc("int8", "pyc-int8.pyca", headline=True),
    _llama("Q8_0", "q8_0"),
    _llama("Q8_0, flash attention", "q8_0", flash=True),
    _ik_llama("Q8_0", "q8_0", headline=True),
    _mistral("Q8_0 in place", in_situ_quant="Q8_0"),
    _pyc("int8, int8 cache", "pyc-int8-kv8.pyca", cache_bits=8),
    _llama("Q8_0, q8_0 cache", "q8_0", cache="q8_0", flash=True),
    _pyc("none, bf16 activations", "pyc-bf16-bf16.pyca"),
    _pyc("none", "pyc-bf16.pyca"),
    _llama("BF16", "bf16"),
    _llama("BF16, flash attention", "bf16", flash=True),
    _llama("F16", "f16"),
    _ik_llama("BF16", "bf16"),
    _mistral("bf16", dtype="BF16"),
    Engine("transformers bf16", "transformers", "transformers_bf16.py"),
)
"""In the order in which they take turns."""
LONG_ENGINES = (
    "pyc *",
    "llama.cpp *[!n]",  # not those that end with "flash attention"
    "ik_llama.cpp Q4_0*",
    "mistral.rs Q4_K_M",
    "mistral.rs Q8_0 in place",
)
"""Whose long contexts are measured unless the command line says otherwise: patterns of names."""
