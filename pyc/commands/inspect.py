"""`pyc inspect`: what an artifact holds. Nothing in it is executed, and no key is needed.

The header comes from anybody, so nothing of it reaches the terminal unescaped.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pyc.runtime.format import Header
    from pyc.runtime.reader import Artifact


@click.command("inspect")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole header and the signature as JSON.")
@click.option("--tensors", "with_tensors", is_flag=True, help="List every tensor.")
def command(artifact: Path, as_json: bool, with_tensors: bool) -> None:
    """Show what ARTIFACT holds.

    Checks the header and the signature, not the contents: `pyc verify` does that.
    """
    from pyc.runtime.reader import open_artifact

    with open_artifact(artifact) as opened:
        if as_json:
            click.echo(json.dumps(as_document(opened), indent=2).replace("\x7f", "\\u007f"))
            return
        for line in describe(opened, with_tensors=with_tensors):
            click.echo("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line))


def as_document(opened: "Artifact") -> dict[str, object]:
    """The JSON document: path, size_bytes, signature (or null) and the header as it stands in the file."""
    import msgspec

    from pyc.runtime.trust import PublicKey, is_trusted

    signature: dict[str, object] | None = None
    if opened.signature is not None:
        key = PublicKey(opened.signature.public_key)
        signature = {"fingerprint": key.fingerprint, "public_key": key.text(), "trusted": is_trusted(key.raw)}
    return {
        "path": str(opened.path),
        "size_bytes": opened.size_bytes,
        "signature": signature,
        "header": msgspec.to_builtins(opened.header),
    }


def describe(opened: "Artifact", *, with_tensors: bool) -> Iterator[str]:
    """The lines for a reader's eyes."""
    from pyc.runtime.trust import PublicKey, find_trusted

    header = opened.header
    yield f"{opened.path}: {opened.size_bytes:,} bytes"
    if opened.signature is None:
        yield "signature   none"
    else:
        key = find_trusted(opened.signature.public_key)
        fingerprint = PublicKey(opened.signature.public_key).fingerprint
        trust = f"trusted, {key.comment or 'no comment'}" if key else "not trusted here"
        yield f"signature   {fingerprint} ({trust})"
    yield from _model(header)
    yield from _contents(header)
    for program in header.programs:
        yield f"program     {program.backend} {program.device} {program.system} {program.arch} {program.isa}"
        yield f"            needs CPU features: {' '.join(program.features) or 'none'}"
        for tool in program.abi:
            yield f"            built against {tool.name} {tool.version}"
        buckets: dict[str, list[int]] = {}
        for function in program.functions:
            buckets.setdefault(function.name, []).append(function.tokens)
        for name, tokens in buckets.items():
            yield f"            {name} for {', '.join(map(str, tokens))} tokens"
    yield from _provenance(header)
    if with_tensors:
        for tensor in header.tensors:
            yield f"tensor      {tensor.name}  {tensor.dtype} {list(tensor.shape)}"


def _model(header: "Header") -> Iterator[str]:
    model = header.model
    yield f"model       {model.architecture}, {model.kind}"
    yield f"sizes       hidden {model.hidden_size}, vocabulary {model.vocab_size}"
    yield f"limits      {model.context} tokens a sequence, {model.max_sequences} sequences"
    if model.kv_cache is not None:
        cache = model.kv_cache
        yield f"kv cache    {cache.layers} layers, {cache.heads} heads of {cache.head_dim}, {cache.dtype}"
    if model.pooling is not None:
        yield f"pooling     {model.pooling.mode}{', normalised' if model.pooling.normalize else ''}"


def _contents(header: "Header") -> Iterator[str]:
    from pyc.runtime.validate import tensor_bytes

    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for tensor in header.tensors:
        count[tensor.dtype] += 1
        size[tensor.dtype] += tensor_bytes(tensor.dtype, tensor.shape)
    for dtype in sorted(count):
        yield f"tensors     {dtype}: {count[dtype]}, {size[dtype]:,} bytes"
    for blob in header.blobs:
        yield f"blob        {blob.name}: {blob.raw_bytes:,} bytes"
    for codec in sorted({chunk.codec for chunk in header.chunks}):
        chunks = [chunk for chunk in header.chunks if chunk.codec == codec]
        raw, stored = sum(x.raw_bytes for x in chunks), sum(x.stored_bytes for x in chunks)
        yield f"codec       {codec}: {len(chunks)} chunks, {raw:,} bytes stored as {stored:,}"


def _provenance(header: "Header") -> Iterator[str]:
    for source in header.provenance.sources:
        yield f"source      {source.name}: {source.size_bytes:,} bytes, blake3 {source.blake3[:16]}"
    for step in header.provenance.passes:
        yield f"pass        {step.name} {step.version} {step.options}"
    for tool in header.provenance.tools:
        yield f"tool        {tool.name} {tool.version}"
