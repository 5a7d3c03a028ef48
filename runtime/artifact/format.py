"""The artifact's bytes: prelude, signature record and the records of the header (docs/artifact-format.md).

    file = prelude 64 B | signature record 96 B | header JSON | zeros to 4096 | payload
    payload = chunks, each 4096-aligned, zeros between them, nothing after the last

Chunk offsets count from the payload's first byte, so they do not depend on the header's own size.
Everything here is pure: bytes in, frozen values out. `header_text.py` reads and writes the
header's JSON, `validate.py` holds the rules that span fields.
"""

import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Meta, Struct

from pyc.runtime.artifact.dtypes import DtypeName
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.rounding import round_up

MAGIC = b"\x93PYCA\r\n\x1a"
MAJOR, MINOR = 1, 1
PRELUDE_BYTES = 64
SIGNATURE_RECORD_BYTES = 96
HEADER_OFFSET = PRELUDE_BYTES + SIGNATURE_RECORD_BYTES
ALIGNMENT = 4096
MAX_HEADER_BYTES = 16 << 20
MAX_HEADER_COMMAS = MAX_HEADER_BRACKETS = 1 << 19
"""Each bounds the values of a header: those of a list or an object, and those that are nested without a comma."""
MAX_CHUNK_BYTES = 16 << 20
MAX_EXPANSION = 256
MAX_NAME_BYTES = 512
MAX_INTEGER = (1 << 53) - 1
SIGNATURE_DOMAIN = b"pyc artifact signature v1\0"
REQUIRED_BITS: dict[str, int] = {"lz4": 1, "zstd": 2}
"""What a reader has to know before it parses the header, or to decode any chunk."""
KV_PREFIX = "kv_prefix"
"""The feature of artifacts with virtual tokens, and the name of the tensor that has them (`prefix.py`)."""
PROGRAM_ONLY = "program_only"
"""The feature of artifacts that have programs and no weights (`program_only.py`)."""
KV_CACHE_FP8 = "kv_cache_fp8"
"""The feature of artifacts whose keys and values are e4m3."""
TRUNCATION = "truncation"
"""The feature of encoders whose texts are cut as `truncation` of tokenizer.json says (`runtime.text.text_cut`)."""
FEATURES: frozenset[str] = frozenset({KV_PREFIX, PROGRAM_ONLY, KV_CACHE_FP8, TRUNCATION})
"""The names in a header's `requires` that this reader knows."""

_PRELUDE = struct.Struct("<8sHHIQQ32s")

CodecName = Literal["none", "lz4", "zstd"]
KvDtype = Literal["f16", "f32", "int8", "fp8"]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Dimension = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=8)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
DecimalText = Annotated[str, Meta(max_length=400, pattern=r"\A(0|[1-9][0-9]*)(\.[0-9]+)?\Z")]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Record(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of every header record: immutable, and no field that this version does not know."""


class Chunk(Record, frozen=True):
    """Bytes `[offset, offset + stored_bytes)` of the payload; `blake3` is the digest of those bytes."""

    offset: Count
    stored_bytes: Positive
    raw_bytes: Annotated[int, Meta(ge=1, le=MAX_CHUNK_BYTES)]
    codec: CodecName
    blake3: Digest


class Span(Record, frozen=True):
    """Chunks `[first_chunk, first_chunk + chunk_count)`: their raw bytes, concatenated, are the content."""

    first_chunk: Count
    chunk_count: Count


class Tensor(Record, frozen=True):
    """A C-contiguous little-endian array; dimensions are at least 1, and `()` is a scalar."""

    name: Name
    dtype: DtypeName
    shape: Shape
    span: Span


class Blob(Record, frozen=True):
    """A named byte string: tokenizer.json, a compiled library, a licence."""

    name: Name
    raw_bytes: Count
    span: Span


class Function(Record, frozen=True):
    """A compiled entry point for a bucket of `tokens` rows: takes `inputs`, then the tensors `weights`."""

    name: Name
    tokens: Positive
    symbol: Name
    inputs: tuple[Name, ...]
    weights: tuple[Name, ...]


class Tool(Record, frozen=True):
    """A component and its version, such as `apache-tvm 0.27.0`."""

    name: Name
    version: Name


class Program(Record, frozen=True):
    """One compiled variant; `features` are what it needs of the device. `library`, a blob, is the compiled code.

    What runs it is the matter of its backend's executor: a reader takes programs of backends that it does not know.
    """

    backend: Name
    device: Name
    arch: Name
    system: Name
    isa: Name
    features: tuple[Name, ...]
    library: Name
    abi: tuple[Tool, ...]
    functions: tuple[Function, ...]


class KvCache(Record, frozen=True):
    """Paged cache: `heads` are key/value heads, a block holds `block_tokens` positions, `dtype` how wide a value is."""

    layers: Positive
    heads: Positive
    head_dim: Positive
    dtype: KvDtype
    block_tokens: Positive


class Pooling(Record, frozen=True):
    """How an encoder's rows become one vector a text."""

    mode: Literal["mean", "cls"]
    normalize: bool


class ModelInfo(Record, frozen=True):
    """What the model is: `context` in tokens a sequence, `max_sequences` in one step."""

    architecture: Name
    kind: Literal["decoder", "encoder"]
    vocab_size: Positive
    hidden_size: Positive
    context: Positive
    max_sequences: Positive
    kv_cache: KvCache | None
    pooling: Pooling | None


class Generation(Record, frozen=True):
    """Generation defaults; decimals are text, such as "0.7" (see `decimal_text`)."""

    eos_token_ids: tuple[TokenId, ...] = ()
    bos_token_id: TokenId | None = None
    pad_token_id: TokenId | None = None
    temperature: DecimalText | None = None
    top_k: Count | None = None
    top_p: DecimalText | None = None
    min_p: DecimalText | None = None
    repetition_penalty: DecimalText | None = None
    do_sample: bool | None = None


class SourceFile(Record, frozen=True):
    """A file of the checkpoint; `name` is relative to it, `blake3` the digest of the whole file."""

    name: Name
    size_bytes: Count
    blake3: Digest


class PassRecord(Record, frozen=True):
    """A pass that ran; `options` is canonical JSON text."""

    name: Name
    version: Count
    options: str


class Provenance(Record, frozen=True):
    """Where the artifact comes from; `recipe` is the normalised recipe as JSON text."""

    recipe: str
    sources: tuple[SourceFile, ...]
    tools: tuple[Tool, ...]
    passes: tuple[PassRecord, ...]


class Header(Record, frozen=True):
    """The root of the artifact. It lists every chunk's digest, so its own hash covers the whole payload.

    `requires` names what a reader has to know beyond its version (`FEATURES`), in order.
    """

    model: ModelInfo
    tensors: tuple[Tensor, ...]
    blobs: tuple[Blob, ...]
    programs: tuple[Program, ...]
    chunks: tuple[Chunk, ...]
    generation: Generation
    provenance: Provenance
    requires: tuple[Name, ...] = ()
    format: Literal["pyca"] = "pyca"


@dataclass(frozen=True, slots=True)
class Prelude:
    """The first 64 bytes. `required` has a bit for each codec in use; `header_sha256` is 32 bytes."""

    required: int
    header_size: int
    header_sha256: bytes
    major: int = MAJOR
    minor: int = MINOR

    def pack(self) -> bytes:
        """The 64 bytes of this prelude."""
        fields = (self.major, self.minor, 0, self.required, self.header_size, self.header_sha256)
        return _PRELUDE.pack(MAGIC, *fields)


@dataclass(frozen=True, slots=True)
class SignatureRecord:
    """An ed25519 public key (32 bytes) and its signature (64 bytes) over `signed_message(prelude)`."""

    public_key: bytes
    signature: bytes

    def pack(self) -> bytes:
        """The 96 bytes of this record."""
        return self.public_key + self.signature


UNSIGNED = bytes(SIGNATURE_RECORD_BYTES)

_unsafe_name = re.compile(r"[\x00-\x1f\x7f\\]")


def align(size: int) -> int:
    """`size` rounded up to a multiple of 4096."""
    return round_up(size, ALIGNMENT)


def payload_offset(header_size: int) -> int:
    """Position in the file of the payload's first byte."""
    return align(HEADER_OFFSET + header_size)


def payload_size(header: Header) -> int:
    """Bytes from the payload's first to the file's last."""
    return header.chunks[-1].offset + header.chunks[-1].stored_bytes if header.chunks else 0


def file_size(header: Header, header_size: int) -> int:
    """The exact size of the file. Without a payload it ends with the header, unpadded."""
    if not header.chunks:
        return HEADER_OFFSET + header_size
    return payload_offset(header_size) + payload_size(header)


def is_plain_name(name: str) -> bool:
    """Whether `name` is a relative name that cannot leave its directory.

    At most 512 bytes of UTF-8, no control character, no backslash; parts between "/" are not empty, "." or
    "..".
    """
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if not 1 <= size_bytes <= MAX_NAME_BYTES or _unsafe_name.search(name):
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def decimal_text(value: float) -> str:
    """A finite float >= 0 as the header writes it: shortest digits, no exponent (1e-05 becomes "0.00001").

    Raises ValueError when `value` is negative or not finite.
    """
    number = abs(Decimal(repr(float(value)))) if value == 0 else Decimal(repr(float(value)))
    if not number.is_finite() or number < 0:
        raise ValueError(f"not a finite number of at least 0: {value!r}")
    return f"{number:f}".removesuffix(".0")


def parse_prelude(data: bytes) -> Prelude:
    """Read the 64-byte prelude: magic, version, reserved field, required bits and the header's size limit.

    Any minor version passes: a newer one adds what a reader may pass over, or else says what it requires. Raises
    ArtifactError on a foreign file, another major version or a feature this reader lacks.
    """
    if len(data) < PRELUDE_BYTES:
        raise ArtifactError(f"too short: {len(data)} bytes, an artifact has at least {HEADER_OFFSET}")
    magic, major, minor, reserved, required, header_size, digest = _PRELUDE.unpack(data[:PRELUDE_BYTES])
    if magic != MAGIC:
        raise ArtifactError(f"not a pyc artifact: magic {magic.hex()}, expected {MAGIC.hex()}")
    if major != MAJOR:
        remedy = "install a newer pyc" if major > MAJOR else "build the artifact again"
        raise ArtifactError(f"unsupported version {major}.{minor}: this pyc reads {MAJOR}.x; {remedy}")
    if reserved:
        raise ArtifactError(f"reserved field is {reserved:#x}, expected 0")
    unknown = required & ~sum(REQUIRED_BITS.values())
    if unknown:
        raise ArtifactError(f"unsupported required feature bits {unknown:#x}; install a newer pyc")
    if header_size > MAX_HEADER_BYTES:
        raise ArtifactError(f"header size {header_size} is above the limit of {MAX_HEADER_BYTES} bytes")
    return Prelude(required, header_size, digest, major, minor)


def parse_signature_record(data: bytes) -> SignatureRecord | None:
    """Split the 96-byte record; None when it is all zero, which means unsigned."""
    if len(data) != SIGNATURE_RECORD_BYTES:
        raise ArtifactError(f"signature record has {len(data)} bytes, expected {SIGNATURE_RECORD_BYTES}")
    return None if data == UNSIGNED else SignatureRecord(data[:32], data[32:])


def signed_message(prelude: bytes) -> bytes:
    """What the signature covers: a domain tag and the prelude, which holds the header's hash."""
    return SIGNATURE_DOMAIN + prelude


def required_bits(header: Header) -> int:
    """The prelude's feature bits for this header: one for each codec that some chunk uses."""
    used = {chunk.codec for chunk in header.chunks}
    return sum(bit for codec, bit in REQUIRED_BITS.items() if codec in used)
