"""What a token of an artifact reads of its weights."""

from pyc.runtime.artifact.reader import open_artifact

EMBEDDING = "model.embed_tokens.weight"


def bytes_a_token(path: str) -> int:
    """Bytes of weights that one decode step reads: all but an embedding that is not the output matrix as well."""
    with open_artifact(path) as artifact:
        header = artifact.header
    first = {function.name: function for function in reversed(header.programs[0].functions)}
    logits = set(first["logits"].weights)
    read = {name for name in first["forward"].weights if name != EMBEDDING} | logits
    sizes = {}
    for tensor in header.tensors:
        chunks = header.chunks[tensor.span.first_chunk : tensor.span.first_chunk + tensor.span.chunk_count]
        sizes[tensor.name] = sum(chunk.raw_bytes for chunk in chunks)
    return sum(sizes[name] for name in read)
