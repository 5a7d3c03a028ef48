"""Chunk codecs: decoding into exactly the size the header promised, and the encoders the writer uses.

A decoder never allocates more than `raw_bytes`, whatever the compressed stream says about itself.
"""

from pyc.runtime.artifact.format import MAX_CHUNK_BYTES, CodecName
from pyc.runtime.errors import ArtifactError

ZSTD_LEVEL = 9


def decode(codec: CodecName, stored: memoryview | bytes, raw_bytes: int) -> bytes | memoryview:
    """The raw bytes of a chunk, exactly `raw_bytes` of them. Raises ArtifactError for anything else."""
    if codec == "lz4":
        raw: bytes | memoryview = _decode_lz4(stored, raw_bytes)
    elif codec == "zstd":
        raw = _decode_zstd(stored, raw_bytes)
    else:
        raw = memoryview(stored)
    if len(raw) != raw_bytes:
        raise ArtifactError(f"{codec} data decodes to {len(raw)} bytes, expected {raw_bytes}")
    return raw


def encode(codec: CodecName, raw: memoryview | bytes) -> bytes | memoryview:
    """One chunk's bytes as stored. Deterministic for a given version of the library. Raises MemoryError, which is
    what a failure means here: any bytes can be compressed."""
    if codec == "lz4":
        import lz4.block

        try:
            packed: bytes = lz4.block.compress(raw, mode="high_compression", compression=9, store_size=False)
        except lz4.block.LZ4BlockError as error:
            raise MemoryError(f"lz4: {error}") from error
        return packed
    if codec == "zstd":
        import zstandard

        try:
            return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True).compress(raw)
        except zstandard.ZstdError as error:
            raise MemoryError(f"zstd: {error}") from error
    return raw


def _decode_lz4(stored: memoryview | bytes, raw_bytes: int) -> bytes:
    import lz4.block

    try:
        raw: bytes = lz4.block.decompress(stored, uncompressed_size=raw_bytes)
    except lz4.block.LZ4BlockError as error:
        raise ArtifactError(f"lz4 data is not valid: {error}") from error
    return raw


def _decode_zstd(stored: memoryview | bytes, raw_bytes: int) -> bytes:
    import zstandard

    try:
        frame = zstandard.get_frame_parameters(stored)
        if frame.content_size != raw_bytes:
            raise ArtifactError(f"zstd frame declares {frame.content_size} bytes, expected {raw_bytes}")
        if frame.window_size > MAX_CHUNK_BYTES:
            limit = f"expected at most {MAX_CHUNK_BYTES}"
            raise ArtifactError(f"zstd frame needs a window of {frame.window_size} bytes, {limit}")
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        if "not enough memory" in str(error):
            raise MemoryError(f"zstd: {error}") from error
        raise ArtifactError(f"zstd data is not valid: {error}") from error
