"""The architectures that pyc knows, and `load_model`: from a reference to a complete Module."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module, SourcePath
from pyc.compiler.weights import Expression
from pyc.models import bert, bitnet, generation, llama, mistral, qwen2, qwen3, tokenizer_files
from pyc.models.adapter_tokenizers import warn_of_tokenizers
from pyc.models.chat_checks import check_chat_templates
from pyc.models.chat_templates import template_files
from pyc.models.checkpoint import Checkpoint, open_checkpoint
from pyc.models.companions import Companions, find_companions, read_vectors
from pyc.models.config import DecoderTraits, HuggingFaceConfig
from pyc.models.decoder import BLOCK_TOKENS, OUTPUT, build_decoder, rotary_weights, weight_shapes
from pyc.models.decoder_config import read_decoder_config
from pyc.models.files import Directory
from pyc.models.licence_files import read_licence_files
from pyc.models.matching import NameRules, match_tensors
from pyc.models.messages import quoted, shown
from pyc.models.model_source import OWN_SHAPES, ModelShapes, ModelSource
from pyc.models.quantized.checkpoint import with_weights, without_method
from pyc.models.sentence import require_no_pooling
from pyc.models.text_length import cut_of, is_default
from pyc.models.tied_head import tied_head
from pyc.models.tokenizer_checks import check_room, check_tokenizer
from pyc.runtime.artifact.format import KvCache, ModelInfo
from pyc.runtime.errors import IngestError
from pyc.runtime.text.special_tokens import TOKENIZER
from pyc.runtime.text.text_cut import with_text_cut


@dataclass(frozen=True, slots=True)
class Architecture:
    """The classes of transformers that a `model_type` covers, and the traits of a decoder (None: BERT)."""

    classes: tuple[str, ...]
    decoder: DecoderTraits | None


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(llama.CLASSES, llama.TRAITS),
    "mistral": Architecture(mistral.CLASSES, mistral.TRAITS),
    "qwen2": Architecture(qwen2.CLASSES, qwen2.TRAITS),
    "qwen3": Architecture(qwen3.CLASSES, qwen3.TRAITS),
    "bitnet": Architecture(bitnet.CLASSES, bitnet.TRAITS),
    "bert": Architecture(bert.CLASSES, None),
}
"""Every supported architecture by the `model_type` of its config.json."""

CONFIG = "config.json"
"""Carried in the artifact for exports; what runs it reads the header."""

_ROTARY_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
_NO_HEAD = (
    "a decoder without a head, as models for embeddings and classification are, or an incomplete one; pyc generates "
    "text with decoders, and embeds with BERT encoders only"
)
_UNTIED = NameRules(re.compile(_ROTARY_BUFFERS), add="model.", optional=(OUTPUT, _NO_HEAD))
_TIED = NameRules(re.compile(rf"{_ROTARY_BUFFERS}|lm_head\.weight"), add="model.")


def find_architecture(config: HuggingFaceConfig, where: str) -> Architecture:
    """Return the architecture of a checkpoint; IngestError lists those that are supported."""
    found = ARCHITECTURES.get(config.model_type or "")
    wrong = [name for name in config.architectures or () if found is None or name not in found.classes]
    if found is None or wrong:
        known = ", ".join(f"{kind} ({', '.join(entry.classes)})" for kind, entry in ARCHITECTURES.items())
        got = shown(wrong[0]) if wrong else f"model_type {quoted(config.model_type)}"
        beside = f" with model_type {quoted(config.model_type)}" if wrong and found is not None else ""
        raise IngestError(f"{where}: architecture {got} is not supported{beside}; supported: {known}")
    return found


def load_model(
    source: ModelSource,
    shapes: ModelShapes = OWN_SHAPES,
    *,
    files: SourceFiles | None = None,
    cache: Cache | None = None,
) -> Module:
    """Return the model at `source`, for sequences of `shapes`.

    Only headers and configuration files are read: weights are `Source` expressions under the names that
    Hugging Face gives them. Adapters' weights are not read here: a checkpoint with an adapter in its folder that is
    none of them is refused. What was read stays open in `files`; without them nothing does. A tokenizer whose trial is
    in `cache` is not tried again. Raises IngestError when the checkpoint is malformed or not supported.
    """
    if files is None:
        with SourceFiles() as files:
            return load_model(source, shapes, files=files, cache=cache)
    cache = cache or Cache(None)
    checkpoint = with_weights(open_checkpoint(source.checkpoint, source.base_dir, files))
    companions = find_companions(source, checkpoint.directory)
    architecture = find_architecture(checkpoint.config, checkpoint.label)
    if architecture.decoder is None:
        module = _load_encoder(checkpoint, companions, shapes, cache)
    elif shapes.text_tokens is not None:
        raise IngestError(
            f"{checkpoint.label}: shapes.text_tokens is {shapes.text_tokens}, expected null: only texts of encoders "
            "are cut, and this is a decoder; remove it"
        )
    else:
        for folder in (checkpoint.directory, *companions.adapters):
            require_no_pooling(folder)
        module = _decoder(checkpoint, architecture.decoder, shapes)
        module = _with_files(module, checkpoint, companions.tokenizer(checkpoint.directory), (), cache)
    if source.tokenizer is None:  # else somebody has chosen
        warn_of_tokenizers(companions.adapters, dict(module.files), module.info.vocab_size)
    return module


def _decoder(checkpoint: Checkpoint, traits: DecoderTraits, wanted: ModelShapes) -> Module:
    config = read_decoder_config(checkpoint.config, traits, checkpoint.label)
    context = _context(wanted.context, config.context, config.max_context, checkpoint.label, wanted.virtual_tokens)
    block_tokens = wanted.block_tokens or BLOCK_TOKENS
    if config.tied:
        checkpoint, is_tied = tied_head(checkpoint)
        config = replace(config, tied=is_tied)
    expected = weight_shapes(config)
    sources = match_tensors(checkpoint, expected, _TIED if config.tied else _UNTIED)
    constants = rotary_weights(config)
    shapes = expected | {name: constant.shape for name, constant in constants.items()}
    weights: dict[str, Expression] = {**constants, **sources}
    kv_cache = KvCache(len(config.windows), config.kv_heads, config.head_dim, wanted.kv_dtype, block_tokens)
    info = ModelInfo(
        architecture=config.architecture,
        kind="decoder",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context=context,
        max_sequences=wanted.max_sequences,
        kv_cache=kv_cache,
        pooling=None,
    )
    graph = build_decoder(config, shapes, context, wanted.max_sequences, block_tokens)
    return Module(graph, {name: weights[name] for name in graph.weight_names()}, info)


def _load_encoder(checkpoint: Checkpoint, companions: Companions, wanted: ModelShapes, cache: Cache) -> Module:
    config = bert.read_config(checkpoint.config, checkpoint.label)
    vectors = read_vectors(companions, config.hidden_size, config.positions)
    sentence, label = vectors.config, checkpoint.label
    own = min(config.positions, sentence.max_tokens or config.positions)
    context = _context(wanted.context, own, config.positions, label)
    cut = cut_of(wanted.text_tokens, context, own, sentence.side, label, checkpoint.directory.files)
    expected = bert.weight_shapes(config)
    sources = match_tensors(checkpoint, expected, bert.NAME_RULES)
    info = ModelInfo(
        architecture=config.architecture,
        kind="encoder",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context=context,
        max_sequences=wanted.max_sequences,
        kv_cache=None,
        pooling=sentence.pooling,
    )
    graph = bert.build_encoder(config, expected, sentence.pooling)
    module = Module(graph, {name: sources[name] for name in graph.weight_names()}, info)
    module = _with_files(module, checkpoint, vectors.tokenizer, vectors.folder.source_paths(sentence.files), cache)
    check_room(dict(module.files), cut.max_length, label)
    if is_default(cut, context) or all(name != TOKENIZER for name, _ in module.files):
        return module
    files = ((name, with_text_cut(data, cut) if name == TOKENIZER else data) for name, data in module.files)
    return replace(module, files=tuple(files), truncation=True)


def _with_files(
    module: Module, checkpoint: Checkpoint, tokenizer: Directory, read: tuple[SourcePath, ...], cache: Cache
) -> Module:
    """Return the module with generation defaults, tokenizer and the list of every file that was read, `read` among
    them. Files are listed by their names alone, whatever folder they are from."""
    licences = read_licence_files(checkpoint.directory)
    of_tokenizer = tokenizer.source_paths((*tokenizer_files.FILES, *template_files(tokenizer)))
    of_model = checkpoint.source_paths((generation.FILE, *(name for name, _ in licences)))
    files = tokenizer_files.read_tokenizer_files(tokenizer, module.info.vocab_size)
    config = without_method(checkpoint.directory.read(CONFIG) or b"{}")
    given = checkpoint.directory.read(generation.FILE)
    defaults = generation.read_generation(checkpoint.directory, checkpoint.config, module.info.vocab_size)
    label, opened = tokenizer.label, checkpoint.directory.files
    info = module.info
    check_tokenizer(
        dict(files), info.architecture, info.vocab_size, defaults.eos_token_ids, label, opened, cache
    )
    if module.info.kind == "decoder":
        check_chat_templates(dict((*files, (CONFIG, config))), label, opened)
    return Module(
        graph=module.graph,
        weights=module.weights,
        info=module.info,
        generation=defaults,
        files=(*files, (CONFIG, config), *(() if given is None else ((generation.FILE, given),)), *licences),
        sources=tuple(sorted((*of_model, *of_tokenizer, *read), key=lambda source: source.name)),
    )


def _context(asked: int | None, default: int, limit: int, where: str, virtual_tokens: int = 0) -> int:
    """Return the positions of a sequence, virtual tokens among them."""
    if virtual_tokens >= limit:
        raise IngestError(f"{where}: {virtual_tokens} virtual tokens leave no room in a context of {limit}")
    if asked is None:
        return max(default, virtual_tokens + 1)
    if not 1 <= asked <= limit - virtual_tokens:
        beside = f" beside {virtual_tokens} virtual ones" if virtual_tokens else ""
        raise IngestError(
            f"{where}: context is {asked} tokens, the model serves 1 to {limit - virtual_tokens}{beside}; lower "
            "shapes.context"
        )
    return asked + virtual_tokens
