"""What `pyc inspect` says: a screen about the artifact, and the lists of all that is in it.

Lines are not escaped here: who prints them does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pyc.backends.stored_weights import StoredWeight, scheme_bytes, stored_weights, weights_of
from pyc.commands.tables import entry_lines
from pyc.models.files import MAX_BYTES
from pyc.runtime.artifact.format import MAJOR, MINOR, TRUNCATION, Header, KvCache
from pyc.runtime.artifact.prefix import virtual_tokens
from pyc.runtime.artifact.program_only import is_program_only
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.small_blobs import small_blob
from pyc.runtime.artifact.trust.counting_keys import REVOKED, UNKNOWN, held_key, why_no_signature
from pyc.runtime.artifact.trust.decision import require_trusted, signers_of
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.artifact.trust.policy import Rule, machine_policy
from pyc.runtime.artifact.trust.signature_file import read_signatures, signature_file
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.errors import ArtifactError, RunError, UntrustedArtifactError
from pyc.runtime.executors.cpu.kv_cache import head_bytes
from pyc.runtime.executors.protocol import OWN_CACHES
from pyc.runtime.executors.registry import choose_program
from pyc.runtime.host.sizes import human_bytes, human_count
from pyc.runtime.text.counted import counted
from pyc.runtime.text.text_cut import TextCut, read_text_cut

INDENT = 13
LICENCES = ("license", "licence", "copying", "notice")
KV_TOKENS = 1000
FEW = 8
ADAPTERS = ("lora", "dora", "ia3", "loha", "lokr", "vera", "oft", "boft", "trainable_tokens", "merged")
"""Kinds of adapters, by the names of the passes that fuse them without fuse_; those of backends fuse other things."""


def summary(opened: Artifact) -> Iterator[str]:
    """Yield the lines that fit a screen, none longer than 80 columns but for names that are."""
    header = opened.header
    weights = weights_of(header)
    first = next(iter(weights.values()))
    values = sum(weight.values for weight in first)
    model = header.model
    yield f"{opened.path}: {human_bytes(opened.size_bytes)}"
    if opened.version > (MAJOR, MINOR):
        newer = f"{opened.version[0]}.{opened.version[1]}"
        yield from _entry("format", [newer, f"of which this pyc knows what {MAJOR}.{MINOR} has"])
    yield from _entry("model", [f"{model.architecture} {model.kind}", f"{human_count(values)} parameters"])
    yield from _entry("signature", [_signature(opened)])
    yield from _entry("runs here", _verdict(opened).split(" "), "")
    yield from _entry("compiled for", _few([program.isa for program in header.programs]) or ["nothing"])
    sequences = f"{counted(model.max_sequences, 'sequence')} at a time"
    before = virtual_tokens(header)
    tokens = f"{model.context - before} tokens{f' behind {before} virtual ones' if before else ''}"
    yield from _entry("context", [tokens, *([sequences] if model.kv_cache else ()), *_cut(opened)])
    has_weights = not is_program_only(header)
    yield from _entry("weights" if has_weights else "for weights", list(_weights(first)))
    above = list(first)
    for backend, others in list(weights.items())[1:]:
        own = [weight for weight in others if weight not in above]
        yield from _entry(f"for {backend}", [*_weights(own), *_shared(others, above)])
        above += own
    yield from _entry("sizes", [f"hidden {model.hidden_size}", f"vocabulary {model.vocab_size}", *_layers(header)])
    if model.kv_cache is not None:
        yield from _entry("kv cache", list(_caches(header, model.kv_cache)))
    if model.pooling is not None:
        yield from _entry("pooling", [model.pooling.mode, *(["normalised"] if model.pooling.normalize else ())])
    yield from _entry("text", list(_text(header)))
    adapters = list(_adapters(header))
    if adapters:
        yield from _entry("adapters", _few(adapters))
    licences = [blob.name for blob in header.blobs if blob.name.lower().startswith(LICENCES)]
    if licences:
        yield from _entry("licence", _few(licences))
    sources = header.provenance.sources
    total = human_bytes(sum(source.size_bytes for source in sources))
    yield from _entry("made from", [f"{counted(len(sources), 'file')} of {total}"])
    yield from _entry("made by", list(_makers(header)))


def listing(header: Header) -> Iterator[str]:
    """Yield what is in the header, but for its tensors: types, blobs, codecs, programs, sources, passes, tools."""
    yield ""
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
    if header.model.kv_cache is not None:
        cache = header.model.kv_cache
        layers, heads = counted(cache.layers, "layer"), counted(cache.heads, "head")
        yield f"kv cache    {layers}, {heads} of {cache.head_dim}, {cache.dtype}"
    yield f"recipe      {header.provenance.recipe}"
    for source in header.provenance.sources:
        yield f"source      {source.name}: {source.size_bytes:,} bytes, blake3 {source.blake3[:16]}"
    for step in header.provenance.passes:
        yield f"pass        {step.name} {step.version} {step.options}"
    for tool in header.provenance.tools:
        yield f"tool        {tool.name} {tool.version}"


def tensor_lines(header: Header) -> Iterator[str]:
    """Yield a line for each tensor: its name, type, shape and scheme."""
    yield ""
    for tensor, weight in zip(header.tensors, stored_weights(header), strict=True):
        scheme = "" if weight.scheme == tensor.dtype else f" {weight.scheme}"
        yield f"tensor      {tensor.name}  {tensor.dtype} {list(tensor.shape)}{scheme}"


def _entry(name: str, parts: list[str], joint: str = ",") -> Iterator[str]:
    return entry_lines(name, parts, indent=INDENT, joint=joint)


def _few(names: list[str]) -> list[str]:
    """So many of the names that they take a line or two."""
    return names if len(names) <= FEW else [*names[: FEW - 1], f"and {len(names) - FEW + 1} more"]


def _signature(opened: Artifact) -> str:
    if opened.signature is None:
        return f"none{_beside(opened).replace(', and', ', but', 1)}"
    raw = opened.signature.public_key
    try:
        policy = machine_policy()
        refusal = why_no_signature(raw, policy)
        key = held_key(raw, policy) if refusal is None else None
    except ArtifactError:  # of the policy or the key store; the verdict says what is wrong with it
        trust = "not known whether trusted"
    else:
        trust = "trusted" if refusal is None else refusal.removeprefix("is ")
        if key is not None and key.comment:
            trust += f", {key.comment}"
    return f"{PublicKey(opened.signature.public_key).fingerprint} ({trust}){_beside(opened)}"


def _further(opened: Artifact) -> tuple[int, str]:
    """How many signatures there are beside the artifact; 0, and why, where a server does not tell."""
    try:
        return len(read_signatures(opened.path)), ""
    except ArtifactError as error:
        return 0, str(error)


def _beside(opened: Artifact) -> str:
    """How many signatures there are beside the artifact, and which keys of them were revoked."""
    more, problem = _further(opened)
    if not more:
        return f"; further ones are not known: {problem}" if problem else ""
    text = f", and {more} in {signature_file(opened.path).name}"
    try:
        signers = tuple(signers_of(opened, machine_policy(), Rule()))
    except ArtifactError:  # the verdict says what is wrong
        return text
    inside = None if opened.signature is None else opened.signature.public_key
    revoked = [each for each in signers if each.key.raw != inside and (each.refusal or "").startswith(REVOKED)]
    said = "; ".join(f"{each.key.fingerprint} {each.refusal}" for each in revoked)
    return f"{text}, of which {said}" if said else text


def _verdict(opened: Artifact) -> str:
    """Whether this machine runs the artifact, by which program, or why not."""
    try:
        program = choose_program(opened.header.programs, None)
        if is_program_only(opened.header):
            return f"no: it has no weights; pyc attach adds them, for {program.isa} here"
    except RunError as error:
        return f"no: {error}"
    try:
        require_trusted(opened)
    except ArtifactError as error:
        if isinstance(error, UntrustedArtifactError) and _lacks_its_key(opened) and not _further(opened)[0]:
            return "no: its key is not trusted here; `pyc trust add` it if you trust its owner with running code"
        return f"no: {str(error).removeprefix(f'{opened.path}: ').replace('not signed', 'it is not signed')}"
    return f"yes, as {program.isa}"


def _lacks_its_key(opened: Artifact) -> bool:
    """Whether the key store decides which keys count, and lacks the one in the artifact."""
    policy = machine_policy()
    return (
        policy.keys is None
        and opened.signature is not None
        and why_no_signature(opened.signature.public_key, policy) == UNKNOWN
    )


def _shared(weights: Sequence[StoredWeight], first: Sequence[StoredWeight]) -> Iterator[str]:
    """A phrase for what a further program reads that the first reads too."""
    shared = sum(weight.size_bytes for weight in weights if weight in first)
    if shared:
        yield f"{human_bytes(shared)} of the above"


def _weights(weights: Sequence[StoredWeight]) -> Iterator[str]:
    """A phrase for each scheme; what is no matrix is not worth one of its own."""
    matrices = tuple(weight for weight in weights if weight.is_matrix)
    for name, count, size_bytes in scheme_bytes(matrices):
        yield f"{name} {human_bytes(size_bytes)} ({count} {'matrices' if count > 1 else 'matrix'})"
    rest = [weight.size_bytes for weight in weights if not weight.is_matrix]
    if rest:
        yield f"vectors {human_bytes(sum(rest))}"


def _caches(header: Header, cache: KvCache) -> Iterator[str]:
    """A phrase for each dtype that keys and values have: those of ONNX graphs are f32, whatever the header says."""
    dtypes = {program.backend: OWN_CACHES.get(program.backend, cache.dtype) for program in header.programs}
    for dtype in dict.fromkeys(dtypes.values() or [cache.dtype]):
        stored = msgspec.structs.replace(cache, dtype=dtype)
        size_bytes = KV_TOKENS * cache.layers * 2 * cache.heads * head_bytes(stored) // cache.block_tokens
        those = [backend for backend, its in dtypes.items() if its == dtype]
        where = f" for {' and '.join(those)}" if len(set(dtypes.values())) > 1 else ""
        yield f"{dtype}, {human_bytes(size_bytes)} for {KV_TOKENS} tokens{where}"


def _layers(header: Header) -> Iterator[str]:
    if header.model.kv_cache is not None:
        yield counted(header.model.kv_cache.layers, "layer")


def _text(header: Header) -> Iterator[str]:
    names = {blob.name for blob in header.blobs}
    yield "tokenizer" if "tokenizer.json" in names else "no tokenizer: token ids only"
    if "chat_template.jinja" in names:
        yield "chat template"


def _cut(opened: Artifact) -> Iterator[str]:
    """What of a text is read, where the context does not say so. Of an artifact elsewhere the header alone is fetched.
    """
    if TRUNCATION not in opened.header.requires:
        return
    if opened.is_remote:
        yield "fewer of a text (see its tokenizer.json)"
    elif (content := small_blob(opened, "tokenizer.json", MAX_BYTES["tokenizer.json"])) is None:
        yield "fewer of a text (tokenizer.json is too large)"
    else:
        yield cut_words(read_text_cut(content))


def cut_words(cut: TextCut) -> str:
    """What of a text is read, in words."""
    return f"the {'last' if cut.direction == 'Left' else 'first'} {cut.max_length} of a text"


def _adapters(header: Header) -> Iterator[str]:
    """The adapters that were fused, or whose virtual tokens are there, as their passes recorded them."""
    for step in header.provenance.passes:
        if step.name.removeprefix("fuse_") in ADAPTERS or step.name == "compute_prefix":
            try:
                options = msgspec.json.decode(step.options, type=dict[str, str])
            except (msgspec.DecodeError, ValueError, RecursionError):
                options = {}
            kind = step.name.removeprefix("fuse_").replace("_", " ")
            kind = f"merged by {options.get('method', '?')}" if kind == "merged" else kind
            how = f"{kind} x {options.get('weight', '?')}"
            if step.name == "compute_prefix":
                how = f"{options.get('kind', '?')}, {options.get('tokens', '?')} tokens".replace("_", " ")
            yield f"{options.get('adapter', '?')} ({how})"


def _makers(header: Header) -> Iterator[str]:
    """The tools that anybody asks for; all are in the long list."""
    versions = {tool.name: tool.version for tool in header.provenance.tools}
    for name in ("pyc-compiler", "apache-tvm", "ziglang", "onnx", "nvidia-cuda-nvrtc"):
        if name in versions:
            yield f"{name} {versions[name]}"


def _contents(header: Header) -> Iterator[str]:
    sizes: dict[str, list[int]] = {}
    for tensor in header.tensors:
        sizes.setdefault(tensor.dtype, []).append(tensor_bytes(tensor.dtype, tensor.shape))
    for dtype in sorted(sizes):
        yield f"tensors     {dtype}: {len(sizes[dtype])}, {sum(sizes[dtype]):,} bytes"
    for blob in header.blobs:
        yield f"blob        {blob.name}: {blob.raw_bytes:,} bytes"
    for codec in sorted({chunk.codec for chunk in header.chunks}):
        chunks = [chunk for chunk in header.chunks if chunk.codec == codec]
        raw, stored = sum(x.raw_bytes for x in chunks), sum(x.stored_bytes for x in chunks)
        yield f"codec       {codec}: {counted(len(chunks), 'chunk')}, {raw:,} bytes stored as {stored:,}"
