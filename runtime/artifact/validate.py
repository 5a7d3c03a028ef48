"""The rules of a header that span its fields. They need the header and the file's size, nothing else.

Each check raises ArtifactError naming the record that is wrong, with what it got and what it expected.
A reader calls `check_header` before it allocates or reads any payload.
"""

import re
from collections.abc import Iterable

from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import (
    ALIGNMENT,
    KV_CACHE_FP8,
    MAX_EXPANSION,
    MAX_INTEGER,
    TRUNCATION,
    Blob,
    Chunk,
    Header,
    ModelInfo,
    Prelude,
    Program,
    Tensor,
    align,
    file_size,
    is_plain_name,
    required_bits,
)
from pyc.runtime.artifact.prefix import check_prefix
from pyc.runtime.artifact.program_only import check_empty, is_program_only
from pyc.runtime.errors import ArtifactError

_word = re.compile(r"[!-~]{1,200}")


def check_header(header: Header, prelude: Prelude, size_bytes: int) -> None:
    """Apply every rule to a decoded header, given its prelude and the file's size in bytes."""
    check_chunks(header.chunks)
    expected = file_size(header, prelude.header_size)
    if size_bytes != expected:
        what = "truncated" if size_bytes < expected else "has bytes after its end"
        raise ArtifactError(f"file {what}: {size_bytes} bytes, the header says {expected}")
    if prelude.required != required_bits(header):
        expected_bits = required_bits(header)
        raise ArtifactError(
            f"required feature bits are {prelude.required:#x}, the codecs say {expected_bits:#x}"
        )
    check_requires(header.requires)
    check_names(header)
    check_spans(header)
    if is_program_only(header):
        check_empty(header)
    else:
        for tensor in header.tensors:
            check_tensor(tensor, header.chunks)
    for blob in header.blobs:
        check_blob(blob, header.chunks)
    check_model(header.model)
    check_cache_feature(header)
    check_prefix(header)
    check_truncation(header)
    check_programs(header)


def check_requires(names: tuple[str, ...]) -> None:
    """The features a reader has to know are words, each once, in order."""
    for name in names:
        check_word("requires", name)
    if list(names) != sorted(set(names)):
        raise ArtifactError("requires: expected each feature once, sorted")


def check_chunks(chunks: Iterable[Chunk]) -> None:
    """File order, contiguous, sizes consistent with the codec, bounded expansion."""
    offset = 0
    for index, chunk in enumerate(chunks):
        if chunk.offset != offset:
            raise ArtifactError(f"chunk {index}: offset {chunk.offset}, expected {offset}")
        expected = _size_rule_broken(chunk)
        if expected:
            sizes = f"codec {chunk.codec}, stored_bytes {chunk.stored_bytes}, raw_bytes {chunk.raw_bytes}"
            raise ArtifactError(f"chunk {index}: {sizes}: expected {expected}")
        offset = align(offset + chunk.stored_bytes)


def _size_rule_broken(chunk: Chunk) -> str:
    """What was expected of the chunk's two sizes, or nothing when they are right."""
    if chunk.codec == "none":
        return "" if chunk.raw_bytes == chunk.stored_bytes else "equal sizes"
    if chunk.stored_bytes >= chunk.raw_bytes:
        return "fewer bytes stored than raw"
    if chunk.raw_bytes > chunk.stored_bytes * MAX_EXPANSION:
        return f"an expansion of at most {MAX_EXPANSION}:1"
    return ""


def check_names(header: Header) -> None:
    """Tensors and blobs share one namespace of unique plain names; source files have plain names too."""
    seen: set[str] = set()
    for kind, records in (("tensor", header.tensors), ("blob", header.blobs)):
        for record in records:
            check_plain(kind, record.name)
            if record.name in seen:
                raise ArtifactError(f"{kind} {record.name!r}: the name is used twice")
            seen.add(record.name)
    for source in header.provenance.sources:
        check_plain("source", source.name)


def check_plain(kind: str, name: str) -> None:
    """Raise ArtifactError unless `name` is plain (`format.is_plain_name`)."""
    if not is_plain_name(name):
        raise ArtifactError(
            f"{kind} {name!r}: not a plain name: relative, at most 512 bytes, no '..', no backslash, "
            "no control character"
        )


def check_word(kind: str, word: str) -> None:
    """Raise ArtifactError unless `word` is 1 to 200 printable characters of ASCII, none of them a space."""
    if not _word.fullmatch(word):
        raise ArtifactError(f"{kind} {word[:60]!a}: expected 1 to 200 printable ASCII characters without a space")


def check_spans(header: Header) -> None:
    """Every chunk belongs to exactly one span; tensors and blobs are each listed in file order."""
    for records in (header.tensors, header.blobs):
        least = 0
        for record in records:
            first = record.span.first_chunk
            if first < least:
                raise ArtifactError(
                    f"{record.name!r}: first_chunk {first} is out of order, expected >= {least}"
                )
            least = first + record.span.chunk_count
    items = [(record.span, record.name) for records in (header.tensors, header.blobs) for record in records]
    items.sort(key=lambda item: (item[0].first_chunk, item[0].chunk_count))
    expected = 0
    for span, name in items:
        if span.first_chunk != expected:
            raise ArtifactError(f"{name!r}: first_chunk {span.first_chunk}, expected {expected}")
        expected += span.chunk_count
        if expected > len(header.chunks):
            raise ArtifactError(f"{name!r}: ends at chunk {expected}, the file has {len(header.chunks)}")
    if expected != len(header.chunks):
        raise ArtifactError(f"chunks {expected} to {len(header.chunks) - 1} belong to no tensor or blob")


def check_raw_bytes(where: str, chunks: tuple[Chunk, ...], expected: int) -> None:
    """The chunks of one span: the raw sizes add up, and all but the last are multiples of 4096."""
    total = sum(chunk.raw_bytes for chunk in chunks)
    if total != expected:
        raise ArtifactError(f"{where}: its chunks hold {total} bytes, expected {expected}")
    for chunk in chunks[:-1]:
        if chunk.raw_bytes % ALIGNMENT:
            raise ArtifactError(
                f"{where}: an inner chunk has raw_bytes {chunk.raw_bytes}, expected a multiple of {ALIGNMENT}"
            )


def tensor_bytes(dtype: str, shape: tuple[int, ...], where: str = "tensor") -> int:
    """Size in bytes of a tensor. Raises ArtifactError as soon as the product exceeds 2**53 - 1."""
    size = DTYPES[dtype].itemsize
    for dimension in shape:
        size *= dimension
        if size > MAX_INTEGER:
            raise ArtifactError(f"{where}: shape {list(shape)} of {dtype} is larger than {MAX_INTEGER} bytes")
    return size


def check_tensor(tensor: Tensor, chunks: tuple[Chunk, ...]) -> None:
    """The shape and dtype give exactly the span's bytes."""
    where = f"tensor {tensor.name!r}"
    size = tensor_bytes(tensor.dtype, tensor.shape, where)
    first = tensor.span.first_chunk
    check_raw_bytes(where, chunks[first : first + tensor.span.chunk_count], size)


def check_blob(blob: Blob, chunks: tuple[Chunk, ...]) -> None:
    """The blob's size is its span's bytes."""
    first = blob.span.first_chunk
    check_raw_bytes(f"blob {blob.name!r}", chunks[first : first + blob.span.chunk_count], blob.raw_bytes)


def check_model(model: ModelInfo) -> None:
    """A decoder has a cache; an encoder has pooling and no cache."""
    check_word("model: architecture", model.architecture)
    if model.kind == "decoder" and model.kv_cache is None:
        raise ArtifactError("model: kind decoder without kv_cache")
    if model.kind == "encoder" and (model.kv_cache is not None or model.pooling is None):
        raise ArtifactError("model: kind encoder needs pooling and no kv_cache")


def check_cache_feature(header: Header) -> None:
    """A cache of fp8 is announced, for readers that do not know the dtype."""
    is_fp8 = header.model.kv_cache is not None and header.model.kv_cache.dtype == "fp8"
    if is_fp8 != (KV_CACHE_FP8 in header.requires):
        there = "kv_cache is fp8 and `requires` does not name it" if is_fp8 else "kv_cache is not fp8"
        raise ArtifactError(f"{KV_CACHE_FP8}: {there}")


def check_truncation(header: Header) -> None:
    """Texts are cut as the tokenizer says only where there are texts and a tokenizer."""
    if TRUNCATION not in header.requires:
        return
    if header.model.kind != "encoder" or all(blob.name != "tokenizer.json" for blob in header.blobs):
        raise ArtifactError(f"{TRUNCATION}: expected an encoder with a blob 'tokenizer.json'")


def check_programs(header: Header) -> None:
    """Programs name blobs and tensors that exist, and each (function, bucket) once."""
    tensors = {tensor.name for tensor in header.tensors}
    blobs = {blob.name for blob in header.blobs}
    for index, program in enumerate(header.programs):
        check_program(f"program {index}", program, tensors, blobs)


def check_program(where: str, program: Program, tensors: set[str], blobs: set[str]) -> None:
    """One program's references, given the names of the tensors and blobs that exist."""
    for tool in program.abi:
        check_word(f"{where}: abi", tool.name)
        check_word(f"{where}: abi", tool.version)
    for kind in ("backend", "device", "arch", "system", "isa"):
        check_word(f"{where}: {kind}", getattr(program, kind))
    for feature in program.features:
        check_word(f"{where}: features", feature)
    if program.library not in blobs:
        raise ArtifactError(f"{where}: library {program.library!r} is not a blob of the file")
    if len({version.name for version in program.abi}) != len(program.abi):
        raise ArtifactError(f"{where}: abi lists a component twice")
    seen: set[tuple[str, int]] = set()
    for function in program.functions:
        if (function.name, function.tokens) in seen:
            raise ArtifactError(
                f"{where}: function {function.name}, {function.tokens} tokens, is listed twice"
            )
        seen.add((function.name, function.tokens))
        for weight in function.weights:
            if weight not in tensors:
                raise ArtifactError(
                    f"{where}: {function.name}: weight {weight!r} is not a tensor of the file"
                )
    functions = program.functions
    for word in dict.fromkeys(word for each in functions for word in (each.name, each.symbol, *each.inputs)):
        check_word(f"{where}: names, symbols and inputs of functions", word)
