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
    are the worker's. `maker` is the peer that makes the weights, where that is another. Ratios are of engines that
    share one of `groups`. `fills` says that the worker can fill a long context in seconds, so that long contexts
    take part in every round.
    """

    name: str
    peer: str
    worker: str
    groups: tuple[str, ...]
    weights: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    maker: str | None = None
    fills: bool = False


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
    "pyc-int4.pyca": {"scheme": "int4-g32", "embeddings": "int4-g32"},
    "pyc-int4-kv8.pyca": {"scheme": "int4-g32", "embeddings": "int4-g32", "kv_cache": "int8"},
    "pyc-int4-int8.pyca": {"scheme": "int4-g32", "embeddings": "int8"},
    "pyc-int8.pyca": {"scheme": "int8", "embeddings": "int8"},
    "pyc-int8-kv8.pyca": {"scheme": "int8", "embeddings": "int8", "kv_cache": "int8"},
    "pyc-bf16.pyca": {"scheme": "none"},
    "pyc-bf16-bf16.pyca": {"scheme": "none", "activations": "bf16"},
}
"""`quantize` of the recipes, by the artifact's name."""
AVX2 = "x86-64-v3"
"""A lesser variant, measured beside the best; the peers use all that the machine has."""
LONG_CONTEXT = 2048
"""Contexts above it take turns of their own; as in workers/job.py, which has Python alone."""
GGUF_TYPES = ("q4_0", "q4_k_m", "q8_0", "bf16", "f16")

FOUR, FOUR_AVX2 = "4 bits", "4 bits, pyc held to AVX2"
FOUR_CACHE_16, FOUR_CACHE_8 = "4 bits, cache of 16", "4 bits, cache of 8"
EIGHT, EIGHT_CACHE_8 = "8 bits", "8 bits, cache of 8"
SIXTEEN, FOUR_TO_SIXTEEN = "16 bits", "4 bits beside 16"


def _pyc(name: str, weights: str, *groups: str, isa: str | None = None) -> Engine:
    options = {"isa": isa} if isa else {}
    return Engine(f"pyc {name}", PYC, "pyc_artifact.py", groups, weights, options, fills=True)


def _llama(name: str, kind: str, *groups: str, cache: str = "f16", flash: bool = False) -> Engine:
    """Flash attention makes llama.cpp faster at short contexts and slower at long ones; a q8_0 cache needs it."""
    options = {"cache": cache, "flash": "on" if flash else "off"}
    return Engine(
        f"llama.cpp {name}", "llama.cpp", "llama_cpp_gguf.py", groups, f"gguf-{kind}.gguf", options, fills=True
    )


def _ik_llama(name: str, kind: str, *groups: str, cache: str = "f16") -> Engine:
    options = {"cache": cache}
    return Engine(
        f"ik_llama.cpp {name}",
        "ik_llama.cpp",
        "ik_llama_bench.py",
        groups,
        f"gguf-{kind}.gguf",
        options,
        maker="llama.cpp",
    )


def _mistral(name: str, *groups: str, gguf: str | None = None, **options: str) -> Engine:
    """A GGUF file, or the checkpoint as `options` say."""
    weights, maker = (f"gguf-{gguf}.gguf", "llama.cpp") if gguf else (None, None)
    return Engine(f"mistral.rs {name}", "mistral.rs", "mistral_rs.py", groups, weights, options, maker=maker)


def _openvino(name: str, *groups: str, cache: str | None = None) -> Engine:
    """Its cache has 8 bits where nothing is said."""
    options = {"precision": "bf16"} | ({"cache": cache} if cache else {})
    return Engine(f"openvino-genai {name}", "openvino-genai", "openvino_int4.py", groups, "openvino-int4", options)


ENGINES = (
    _pyc("int4-g32", "pyc-int4.pyca", FOUR, FOUR_CACHE_16, FOUR_TO_SIXTEEN),
    _pyc("int4-g32 with AVX2", "pyc-int4.pyca", FOUR_AVX2, isa=AVX2),
    _llama("Q4_0", "q4_0", FOUR, FOUR_CACHE_16, FOUR_AVX2),
    _llama("Q4_0, flash attention", "q4_0", FOUR, FOUR_CACHE_16, flash=True),
    _ik_llama("Q4_0", "q4_0", FOUR, FOUR_CACHE_16),
    _mistral("Q4K in place", FOUR, FOUR_CACHE_16, in_situ_quant="Q4K"),
    _pyc("int4-g32, int8 cache", "pyc-int4-kv8.pyca", FOUR, FOUR_CACHE_8),
    _llama("Q4_0, q8_0 cache", "q4_0", FOUR, FOUR_CACHE_8, cache="q8_0", flash=True),
    _ik_llama("Q4_0, q8_0 cache", "q4_0", FOUR, FOUR_CACHE_8, cache="q8_0"),
    _pyc("int4-g32, int8 embeddings", "pyc-int4-int8.pyca", FOUR, FOUR_CACHE_16),
    _llama("Q4_K_M", "q4_k_m", FOUR, FOUR_CACHE_16),
    _llama("Q4_K_M, flash attention", "q4_k_m", FOUR, FOUR_CACHE_16, flash=True),
    _ik_llama("Q4_K_M", "q4_k_m", FOUR, FOUR_CACHE_16),
    _mistral("Q4_K_M", FOUR, FOUR_CACHE_16, gguf="q4_k_m"),
    Engine(
        "onnxruntime-genai int4 g32",
        "onnxruntime-genai",
        "onnxruntime_int4.py",
        (FOUR, FOUR_CACHE_16),
        "onnxruntime-int4",
    ),
    _openvino("int4 g32", FOUR, FOUR_CACHE_8),
    _openvino("int4 g32, f16 cache", FOUR, FOUR_CACHE_16, cache="f16"),
    _pyc("int8", "pyc-int8.pyca", EIGHT),
    _llama("Q8_0", "q8_0", EIGHT),
    _llama("Q8_0, flash attention", "q8_0", EIGHT, flash=True),
    _ik_llama("Q8_0", "q8_0", EIGHT),
    _mistral("Q8_0 in place", EIGHT, in_situ_quant="Q8_0"),
    _pyc("int8, int8 cache", "pyc-int8-kv8.pyca", EIGHT, EIGHT_CACHE_8),
    _llama("Q8_0, q8_0 cache", "q8_0", EIGHT, EIGHT_CACHE_8, cache="q8_0", flash=True),
    _pyc("bf16, bf16 activations", "pyc-bf16-bf16.pyca", SIXTEEN),
    _pyc("bf16", "pyc-bf16.pyca", SIXTEEN),
    _llama("BF16", "bf16", SIXTEEN),
    _llama("BF16, flash attention", "bf16", SIXTEEN, flash=True),
    _llama("F16", "f16", SIXTEEN),
    _ik_llama("BF16", "bf16", SIXTEEN),
    _mistral("bf16", SIXTEEN, dtype="BF16"),
    Engine("transformers bf16", "transformers", "transformers_bf16.py", (SIXTEEN, FOUR_TO_SIXTEEN)),
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
