"""A loaded artifact: logits, generation, embeddings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Self, cast

import numpy as np

from pyc.runtime import arguments
from pyc.runtime.artifact.format import Generation, ModelInfo, Program
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.sources import Mode
from pyc.runtime.artifact.trust import parse_public_key, require_signed_by, require_trusted
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.protocol import Executor, FloatArray
from pyc.runtime.generation.embedding import Embedder
from pyc.runtime.generation.generate import Request, SamplingOverrides, Token, generate_tokens, resolve_sampling
from pyc.runtime.generation.kv_blocks import blocks_for
from pyc.runtime.generation.session import Session, SlotOwner, TokenIds
from pyc.runtime.text.chat.template import ChatTemplate, JsonValue
from pyc.runtime.text.tokenizer import Tokenizer, longest_text

Message = Mapping[str, JsonValue]
Prompt = str | Sequence[int] | Sequence[Message]

DEFAULT_MAX_TOKENS = 256


class Model:
    """An artifact ready to run. Close it, or use it as a context manager, to give its memory back.

    What it is asked for and cannot do is a RunError: text for a model without a tokenizer, messages for one without a
    chat template, a prompt that fills the context, generation with an encoder, vectors from a decoder, and anything
    after `close`. A tokenizer.json that is found to be damaged at first use is an ArtifactError.
    """

    def __init__(
        self,
        info: ModelInfo,
        generation: Generation,
        executor: Executor,
        tokenizer: Tokenizer | None,
        chat_template: str | None = None,
        *,
        program: Program | None = None,
        kv_blocks: int = 0,
        context: int | None = None,
    ) -> None:
        """`executor` runs `program` and has `kv_blocks` cache blocks; `context` may lower info.context. See
        `load`."""
        self.info = info
        self.program = program
        self.generation = generation
        self._tokenizer = tokenizer
        self._chat_source = chat_template or (tokenizer.chat_template if tokenizer else None)
        self._chat: ChatTemplate | None = None
        self._executor: Executor | None = executor
        self._session: Session | None = None
        self._embedder: Embedder | None = None
        if info.kind == "decoder":
            self._session = Session(executor, info, kv_blocks=kv_blocks, context=context)
        else:
            self._embedder = Embedder(executor, info)

    # --- what it is

    def __repr__(self) -> str:
        info, executor = self.info, self._executor
        about = [f"{info.architecture} {info.kind}", f"vocabulary {info.vocab_size}"]
        if executor is None:
            about.append("closed")
        else:
            context = info.context if self._session is None else self._session.context
            about += [f"context {context}", executor.isa, f"{executor.threads} threads"]
        return f"<pyc.Model {', '.join(about)}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer. Raises RunError when it has none."""
        if self._tokenizer is None:
            raise RunError("this artifact has no tokenizer; pass token ids instead of text")
        return self._tokenizer

    @property
    def executor(self) -> Executor:
        """What executes the compiled functions. Raises RunError after `close`."""
        if self._executor is None:
            raise RunError("this model is closed; load the artifact again")
        return self._executor

    @property
    def session(self) -> Session:
        """The decoder's sequences. Raises RunError for an encoder, and after `close`."""
        if self._executor is not None and self._session is None:
            raise RunError(f"{self.info.architecture} is an encoder: it embeds text and does not generate; use embed")
        if self._session is None:
            raise RunError("this model is closed; load the artifact again")
        return self._session

    @property
    def chat_template(self) -> ChatTemplate:
        """The compiled chat template. Raises RunError when the artifact has none or it is not acceptable."""
        if self._chat is None:
            if self._chat_source is None:
                raise RunError(
                    "this model has no chat template, so it takes no messages; give it a text to continue "
                    "(pyc run: without --chat)"
                )
            self._chat = ChatTemplate(self._chat_source, self._special_tokens())
        return self._chat

    def _special_tokens(self) -> dict[str, str]:
        """Special tokens by name; the header's ids fill in for names that tokenizer_config.json lacks."""
        named = dict(self.tokenizer.special_tokens)
        eos_ids = self.generation.eos_token_ids
        by_id = {
            "bos_token": self.generation.bos_token_id,
            "eos_token": eos_ids[0] if eos_ids else None,
            "pad_token": self.generation.pad_token_id,
        }
        for name, token_id in by_id.items():
            token = self.tokenizer.token(token_id) if token_id is not None else None
            if name not in named and token is not None:
                named[name] = token
        return named

    # --- what it does

    def logits(self, token_ids: TokenIds) -> FloatArray:
        """Logits f32[tokens, vocab]: row t scores the token after token_ids[: t + 1].

        Raises RunError for no tokens, ids outside the vocabulary, or more tokens than the context.
        """
        session = self.session
        given: object = token_ids
        if isinstance(given, str):
            raise RunError("token_ids: got text, expected token ids; write model.tokenizer.encode(text)")
        owner = SlotOwner()
        with session.lock:
            slot = session.acquire(owner=owner)
            try:
                session.begin(owner)
                try:
                    hidden = session.prefill(token_ids, slot, keep="all")
                    return np.array(session.logits(hidden), dtype=np.float32)
                finally:
                    session.end()
            finally:
                session.release(slot)

    def prompt_ids(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Message] | None = None,
        chat_variables: Mapping[str, JsonValue] | None = None,
    ) -> list[int]:
        """The token ids that `generate` feeds for `prompt`. Raises RunError.

        Control tokens such as `<|im_end|>` are recognised in a prompt that is text. What messages, tools and
        chat_variables contain is always plain text: there only the chat template writes control tokens.
        """
        messages = _messages(prompt)
        most = longest_text(self.info.context)
        if messages is not None:
            text = self.chat_template.render(messages, tools=tools, variables=chat_variables)
            return self.tokenizer.encode_chat(text, max_characters=most)
        if tools is not None or chat_variables is not None:
            from pyc.runtime.text.chat.plain_input import plain_tools, plain_variables

            meant_for_messages = {"tools": plain_tools(tools), "chat_variables": plain_variables(chat_variables)}
        else:
            meant_for_messages = {}
        for name, value in meant_for_messages.items():
            if value:
                raise RunError(f"{name}: got {len(value)} with a prompt that is not a list of messages; leave them out")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, max_characters=most)
        if isinstance(prompt, list | tuple) and any(isinstance(item, str) for item in prompt[:1]):
            raise RunError(
                "prompt: got a list of texts, expected one text; generate once for each, "
                "in as many threads at a time as the largest of shapes.batch"
            )
        return arguments.integers(prompt, "prompt")

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        tools: Sequence[Message] | None = None,
        chat_variables: Mapping[str, JsonValue] | None = None,
        ignore_eos: bool = False,
        reuse_prefix: bool = False,
    ) -> Iterator[Token]:
        """The tokens that follow `prompt`: text, token ids, or messages ({"role": ..., "content": ...}).

        max_tokens None goes on to the end of the context. What sampling parameters are left None come from
        the model's own defaults (see resolve_sampling); temperature 0 is greedy. numpy's numbers are numbers.
        `stop` are strings that end the text before them. `logprobs` reports each token's log-probability and that
        many alternatives. `tools` are JSON schemas for the chat template, `chat_variables` further names for it,
        such as enable_thinking. `reuse_prefix` skips what an earlier generation left in the cache, at the price
        that rounding may then depend on history.

        Arguments are checked now, the work is done while iterating. Raises RunError.
        """
        session = self.session
        overrides = SamplingOverrides(
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            seed,
            logprobs,
        )
        ends = () if arguments.flag(ignore_eos, "ignore_eos") else self.generation.eos_token_ids
        request = Request(
            sampling=resolve_sampling(self.generation, overrides),
            max_tokens=max_tokens,
            stop=tuple(arguments.texts([stop] if isinstance(stop, str) else stop, "stop")),
            eos_token_ids=frozenset(ends),
            continues_text=_messages(prompt) is None,
            reuse_prefix=arguments.flag(reuse_prefix, "reuse_prefix"),
        )
        ids = self.prompt_ids(prompt, tools=tools, chat_variables=chat_variables)
        if not ids:
            raise RunError("prompt: it has no tokens; pass at least one character of text")
        decoder = self._tokenizer if self._tokenizer is not None else _NoText()
        return generate_tokens(session, decoder, ids, request)

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Vectors f32[texts, hidden], pooled and normalised as the model's header says.

        Texts of more than `embed_max_tokens` are cut; `count_cut` says how many. Raises RunError for a decoder.
        """
        given = arguments.texts(texts, "texts")
        limit = self.embed_max_tokens
        assert self._embedder is not None  # or there would be no limit
        return self._embedder.embed(self.tokenizer.encode_batch(given, max_tokens=limit))

    @property
    def embed_max_tokens(self) -> int:
        """Tokens of a text, special ones included, that `embed` reads. Raises RunError for a decoder."""
        _ = self.executor
        if self._embedder is None:
            raise RunError(f"{self.info.architecture} is a decoder: it generates text; use generate")
        return self._embedder.max_tokens

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many of `texts` have more tokens than `embed` reads. Raises RunError for a decoder."""
        return self.tokenizer.count_longer(arguments.texts(texts, "texts"), self.embed_max_tokens)

    # --- end

    def close(self) -> None:
        """Lets weights and cache go. Everything but `close` raises RunError from now on."""
        self._executor = None
        self._session = None
        self._embedder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _NoText:
    """Stands in for the tokenizer of an artifact that has none: tokens without text."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """No text."""
        return ""


def load(
    path: str | os.PathLike[str] | Artifact,
    *,
    threads: int | None = None,
    isa: str | None = None,
    context: int | None = None,
    trust: str = "required",
    mode: Mode = "mmap",
) -> Model:
    """Verifies an artifact, a file or one that is open already (and stays so), and makes it ready to run.

    `threads` for the kernels (default: one for each core that this process may use), `isa` the compiled variant
    (default: the best this CPU runs), `context` tokens a sequence may have (at most what was compiled; the cache takes
    memory for no more). `trust` is "required", signed by a key among the trusted ones, or a public key
    ("pyc-ed25519 ..."): signed by exactly that one. `mode` "pread" copies weights into memory of the process's own, in
    huge pages, instead of mapping the file; an artifact that is open already has a mode. Raises ArtifactError for an
    artifact that is malformed, altered, unsigned or not trusted, RunError when it cannot run here.
    """
    from pyc.runtime.executors.cpu.executor import create_executor

    _check_arguments(path, isa, trust, mode)
    if threads is not None:
        threads = arguments.integer(threads, "threads", "an integer from 1 to 65536, or None", 1, 1 << 16)
    with nullcontext(path) if isinstance(path, Artifact) else open_artifact(path, mode=mode) as artifact:
        _check_trust(artifact, trust)
        artifact.verify_ahead()
        info = artifact.header.model
        context = _checked_context(context, info)
        kv_blocks = 0
        if info.kv_cache is not None:
            kv_blocks = info.max_sequences * blocks_for(context, info.kv_cache.block_tokens)
        names = {blob.name for blob in artifact.header.blobs}
        tokenizer = None
        if "tokenizer.json" in names:
            config = artifact.blob("tokenizer_config.json") if "tokenizer_config.json" in names else None
            tokenizer = Tokenizer(artifact.blob("tokenizer.json"), config)
        template = None
        if "chat_template.jinja" in names:
            template = _text(artifact.blob("chat_template.jinja"), "chat_template.jinja")
        header = artifact.header
        # Last, since it waits until the weights are verified.
        executor = create_executor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)
    program = next((program for program in header.programs if program.isa == executor.isa), None)
    return Model(
        info,
        header.generation,
        executor,
        tokenizer,
        template,
        program=program,
        kv_blocks=kv_blocks,
        context=context,
    )


def _check_arguments(path: object, isa: object, trust: object, mode: object) -> None:
    if not isinstance(path, (str, os.PathLike, Artifact)):
        raise RunError(f"path: got {arguments.shown(path)}, expected the path of an artifact")
    for name, value in (("isa", isa), ("trust", trust)):
        if not isinstance(value, str) and not (name == "isa" and value is None):
            raise RunError(f"{name}: got {arguments.shown(value)}, expected text")
    if not isinstance(mode, str) or mode not in ("mmap", "pread"):
        raise RunError(f"mode: got {arguments.shown(mode)}, expected 'mmap' or 'pread'")


def _check_trust(artifact: Artifact, trust: str) -> None:
    if trust == "required":
        require_trusted(artifact.signature, str(artifact.path))
        return
    key = parse_public_key(trust)
    require_signed_by(artifact.signature, key, str(artifact.path))


def _checked_context(context: int | None, info: ModelInfo) -> int:
    if context is None:
        return info.context
    context = arguments.integer(context, "context", f"an integer from 1 to {info.context}, or None")
    if not 1 <= context <= info.context:
        raise RunError(
            f"context: got {arguments.shown(context)}, expected 1 to {info.context}, which the artifact was compiled "
            "for; build with a larger shapes.context"
        )
    return context


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{name}: not UTF-8 at byte {error.start}") from error


def _messages(prompt: object) -> Sequence[Message] | None:
    """The prompt as messages, or None when it is text or token ids. Raises RunError when it is neither."""
    expected = "expected text, token ids, or messages"
    if isinstance(prompt, str):
        return None
    if not arguments.is_sequence(prompt):
        raise RunError(f"prompt: got {arguments.shown(prompt)}, {expected}")
    items = cast("Sequence[object]", prompt)
    if len(items) == 0 or not isinstance(items[0], Mapping):
        return None
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise RunError(f"prompt[{index}]: got {arguments.shown(item)}, expected a message as prompt[0] is")
    return cast("Sequence[Message]", items)
