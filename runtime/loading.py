"""An artifact to what runs it: trust, which program, the executor with its weights, and what reads and writes text."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyc.runtime import arguments
from pyc.runtime.artifact.format import KV_PREFIX, TRUNCATION, Generation, ModelInfo, Program
from pyc.runtime.artifact.prefix import virtual_tokens
from pyc.runtime.artifact.program_only import require_weights
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.policy import REQUIRED, asked_policy
from pyc.runtime.artifact.trust.subjects import artifact_digest
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.protocol import Executor, ExecutorOptions, RandomWeights
from pyc.runtime.generation.kv_blocks import blocks_for
from pyc.runtime.sources.protocol import Mode
from pyc.runtime.text.chat.template_files import DEFAULT, TOOL_USE, file_of
from pyc.runtime.text.counted import counted
from pyc.runtime.text.special_tokens import CONFIG, MAP, MODEL
from pyc.runtime.text.text_cut import read_text_cut
from pyc.runtime.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_TEXT_BLOBS = ("tokenizer.json", CONFIG, MAP, MODEL, file_of(DEFAULT), file_of(TOOL_USE))


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What `pyc.runtime.model.load` is told; `random_weights` take the place of the artifact's, which may have none."""

    threads: int | None = None
    isa: str | None = None
    backend: str | None = None
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = ()
    context: int | None = None
    trust: str = REQUIRED
    mode: Mode = "mmap"
    random_weights: RandomWeights | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a model is made of."""

    info: ModelInfo
    generation: Generation
    executor: Executor
    tokenizer: Tokenizer | None
    chat_templates: Mapping[str, str]
    program: Program | None
    kv_blocks: int
    context: int
    virtual_tokens: int
    digest: str


def load_executor(path: str | os.PathLike[str] | Artifact, options: LoadOptions) -> Loaded:
    """Verify an artifact, a file or one that is open already, and load what runs it. Raises as `model.load` does."""
    from pyc.runtime.executors.registry import find_entry

    threads, isa = options.threads, options.isa
    _check_arguments(path, isa, options.backend, options.trust, options.mode)
    if threads is not None:
        threads = arguments.integer(threads, "threads", "an integer from 1 to 65536, or None", 1, 1 << 16)
    with nullcontext(path) if isinstance(path, Artifact) else open_artifact(path, mode=options.mode) as artifact:
        require_trusted(artifact, asked_policy(options.trust))
        header = artifact.header
        reads_weights = options.random_weights is None
        if reads_weights:
            require_weights(header, artifact.path)
        entry, candidates = find_entry(header.programs, isa, options.backend)
        if reads_weights and not entry.streams:
            artifact.verify_ahead()
        if reads_weights and artifact.is_remote and not entry.streams:
            chosen = entry.choose(candidates, isa)
            weights = {name for function in chosen.functions for name in function.weights}
            weights |= {KV_PREFIX} & {*header.requires}
            artifact.fetch_ahead(weights, [*(b.name for b in header.blobs if b.name in _TEXT_BLOBS), chosen.library])
        info, before = header.model, virtual_tokens(header)
        context = arguments.checked_context(options.context, info.context - before)
        kv_blocks = 0
        if info.kv_cache is not None:
            kv_blocks = info.max_sequences * blocks_for(before + context, info.kv_cache.block_tokens)
        tokenizer, templates = _text_of(artifact)
        # Last, since it waits until the weights are verified.
        providers = arguments.providers(options.providers)
        executor = entry.create(artifact, ExecutorOptions(isa, threads, kv_blocks, providers, options.random_weights))
    program = next((program for program in header.programs if program.isa == executor.isa), None)
    loaded = f"{artifact.path}: {artifact.size_bytes} bytes, {info.architecture} for {executor.isa}"
    logger.info("%s, %s, context %d", loaded, counted(executor.threads, "thread"), context)
    digest = artifact_digest(artifact.prelude.header_sha256)
    return Loaded(info, header.generation, executor, tokenizer, templates, program, kv_blocks, context, before, digest)


def _check_arguments(path: object, isa: object, backend: object, trust: object, mode: object) -> None:
    if not isinstance(path, (str, os.PathLike, Artifact)):
        raise RunError(f"path: got {arguments.shown(path)}, expected the path of an artifact")
    for name, value in (("isa", isa), ("backend", backend), ("trust", trust)):
        if not isinstance(value, str) and not (name != "trust" and value is None):
            raise RunError(f"{name}: got {arguments.shown(value)}, expected text")
    if not isinstance(mode, str) or mode not in ("mmap", "pread"):
        raise RunError(f"mode: got {arguments.shown(mode)}, expected 'mmap' or 'pread'")


def _text_of(artifact: Artifact) -> tuple[Tokenizer | None, dict[str, str]]:
    """Return the tokenizer that an artifact has, and the chat templates that render messages, by name."""
    names = {blob.name for blob in artifact.header.blobs}
    tokenizer = None
    if "tokenizer.json" in names:
        config, special_map, model = (artifact.blob(file) if file in names else None for file in (CONFIG, MAP, MODEL))
        document = artifact.blob("tokenizer.json")
        cut = read_text_cut(document) if TRUNCATION in artifact.header.requires else None
        tokenizer = Tokenizer(document, config, map_json=special_map, model_json=model, cut=cut)
    files = {name: file_of(name) for name in (DEFAULT, TOOL_USE)}
    return tokenizer, {name: _text(artifact.blob(file), file) for name, file in files.items() if file in names}


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{name}: not UTF-8 at byte {error.start}") from error
