"""A loaded artifact: logits, generation, embeddings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack, cast, overload

import numpy as np

from pyc.runtime import arguments
from pyc.runtime.artifact.format import Generation, ModelInfo, Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import Executor, FloatArray
from pyc.runtime.generation.embedding import Embedder
from pyc.runtime.generation.given_ids import TokenIds, shown_count
from pyc.runtime.generation.prompts import Message, Prompt, PromptEncoder, Prompts, messages_of, several
from pyc.runtime.generation.request import Request, RequestParams
from pyc.runtime.generation.sampling_defaults import resolve_sampling
from pyc.runtime.generation.scheduler import Scheduler
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.settings import DEFAULT_MAX_TOKENS, GenerateSettings
from pyc.runtime.generation.token_stream import Batch, TokenStream
from pyc.runtime.host.handle import ClosingHandle
from pyc.runtime.loading import Loaded, LoadOptions, load_executor
from pyc.runtime.sources.protocol import Mode
from pyc.runtime.text.chat.template import ChatTemplate, JsonValue
from pyc.runtime.text.counted import counted
from pyc.runtime.text.detokenizer import NoText
from pyc.runtime.text.stopping import MAX_STOP_STRINGS
from pyc.runtime.text.tokenizer import Tokenizer

CLOSED = "this model is closed; load the artifact again"


class Model(ClosingHandle):
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
        chat_template: str | Mapping[str, str] | None = None,
        *,
        program: Program | None = None,
        kv_blocks: int = 0,
        context: int | None = None,
        virtual_tokens: int = 0,
        digest: str = "",
    ) -> None:
        """`executor` runs `program` and has `kv_blocks` cache blocks; `context` may lower what is left to a sequence
        behind `virtual_tokens`. `chat_template` is one, or several by name. `digest` is the artifact's, as
        `pyc verify --json` prints it and `pyc trust revoke` takes it. See `load`."""
        self.info = info
        self.digest = digest
        self.program = program
        self.generation = generation
        self._tokenizer = tokenizer
        self._prompts = PromptEncoder(tokenizer, chat_template, info.context - virtual_tokens)
        work: Scheduler | Embedder = (
            Scheduler(Session(executor, info, kv_blocks=kv_blocks, context=context, virtual_tokens=virtual_tokens))
            if info.kind == "decoder"
            else Embedder(executor, info, tokenizer.cut if tokenizer is not None else None)
        )
        self._open: _Open | None = _Open(executor, work)

    # --- what it is

    def __repr__(self) -> str:
        info, parts = self.info, self._open
        about = [f"{info.architecture} {info.kind}", f"vocabulary {info.vocab_size}"]
        if parts is None:
            about.append("closed")
        else:
            context = parts.work.session.context if isinstance(parts.work, Scheduler) else info.context
            about += [f"context {context}", parts.executor.isa, counted(parts.executor.threads, "thread")]
        return f"<pyc.Model {', '.join(about)}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer. Raises RunError when it has none."""
        return self._prompts.tokenizer

    @property
    def executor(self) -> Executor:
        """What executes the compiled functions. Raises RunError after `close`."""
        return self._parts.executor

    @property
    def session(self) -> Session:
        """The decoder's sequences. Raises RunError for an encoder, and after `close`."""
        return self.scheduler.session

    @property
    def scheduler(self) -> Scheduler:
        """What runs the decoder's requests. Raises RunError as `session` does."""
        work = self._parts.work
        if not isinstance(work, Scheduler):
            raise RunError(f"{self.info.architecture} is an encoder: it embeds text and does not generate; use embed")
        return work

    @property
    def _embedder(self) -> Embedder:
        """What runs the encoder. Raises RunError for a decoder, and after `close`."""
        work = self._parts.work
        if not isinstance(work, Embedder):
            raise RunError(f"{self.info.architecture} is a decoder: it generates text; use generate")
        return work

    @property
    def _parts(self) -> _Open:
        """Asked for once by whatever uses several of them: another thread may close the model between two looks."""
        parts = self._open
        if parts is None:
            raise RunError(CLOSED)
        return parts

    @property
    def chat_template(self) -> ChatTemplate:
        """The compiled chat template "default", which renders messages without tools.

        Raises RunError when the artifact has none or it is not acceptable.
        """
        return self._prompts.chat_template

    # --- what it does

    def logits(self, token_ids: TokenIds) -> FloatArray:
        """Logits f32[tokens, vocab]: row t scores the token after token_ids[: t + 1].

        `token_ids` are integers, or an array of them, as `generate` takes them. Open streams are waited for as
        `generate` waits: while all sequences of the artifact are in use, what is behind them runs on until one ends.
        Raises RunError for no tokens, ids outside the vocabulary, or more tokens than the context.
        """
        scheduler = self.scheduler
        given: object = token_ids
        if isinstance(given, str):
            raise RunError("token_ids: got text, expected token ids; write model.tokenizer.encode(text)")
        if not arguments.is_sequence(given):
            raise RunError(f"token_ids: got {arguments.shown(given)}, expected a sequence of token ids")
        is_array = isinstance(given, np.ndarray) and given.dtype.kind in "iu"
        if is_array or arguments.is_tensor(given):
            return scheduler.logits(token_ids)  # a tensor of another library is an array, too
        context = self.session.context
        ids = arguments.integers(arguments.first_of(token_ids, context), "token_ids")
        if len(ids) > context:
            raise self.session.no_room(0, shown_count(token_ids, context))
        return scheduler.logits(ids)

    def prompt_ids(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Message] | None = None,
        chat_variables: Mapping[str, JsonValue] | None = None,
    ) -> list[int]:
        """The token ids that `generate` feeds for `prompt`. Raises RunError, also for more ids than the context.

        Control tokens such as `<|im_end|>` are recognised in a prompt that is text. What messages, tools and
        chat_variables contain is always plain text: there only the chat template writes control tokens. With `tools`
        it is the template "tool_use" where the model has one, as in transformers.
        """
        return self._prompts.encode(prompt, tools=tools, chat_variables=chat_variables)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of texts, too
        self, prompt: Prompt, **settings: Unpack[GenerateSettings]
    ) -> TokenStream: ...
    @overload
    def generate(self, prompt: Prompts, **settings: Unpack[GenerateSettings]) -> Batch: ...
    def generate(
        self,
        prompt: Prompt | Prompts,
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
        stop: str | Sequence[str] | None = (),
        logprobs: int | None = None,
        tools: Sequence[Message] | None = None,
        chat_variables: Mapping[str, JsonValue] | None = None,
        ignore_eos: bool = False,
        reuse_prefix: bool = False,
    ) -> TokenStream | Batch:
        """The tokens that follow `prompt`: text, token ids, or messages ({"role": ..., "content": ...}).

        A list of prompts gives a list of streams, each with the tokens that its prompt has alone (on amx-bf16 only
        while at most 16 decode together, see docs/python.md). They run together, as do streams that threads or
        coroutines read: as many at a time as the artifact has sequences, the others wait.

        max_tokens None goes on to the end of the context. What sampling parameters are left None come from
        the model's own defaults (see resolve_sampling); temperature 0 is greedy. numpy's numbers are numbers.
        `stop` are strings that end the text before them; one that is a special token, such as `<|im_end|>`, which no
        text has, ends it at that token, too, with `ignore_eos` as well; None is none. `logprobs` reports each token's
        log-probability and that many alternatives. `tools` are JSON schemas for the chat template, `chat_variables`
        further names for it, such as enable_thinking. `reuse_prefix` skips what an earlier generation left in the
        cache, at the price that rounding may then depend on history.

        Arguments are checked now, the work is done while iterating. Raises RunError.
        """
        scheduler = self.scheduler
        settings: GenerateSettings = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "seed": seed,
            "logprobs": logprobs,
        }
        ends = () if arguments.flag(ignore_eos, "ignore_eos") else self.generation.eos_token_ids
        given = [stop] if isinstance(stop, str) else [] if stop is None else stop
        stops = tuple(arguments.texts(given, "stop", most=MAX_STOP_STRINGS))
        if stops and self._tokenizer is not None:
            ends = (*ends, *self._tokenizer.special_ids(stops))
        params = RequestParams(
            sampling=resolve_sampling(self.generation, settings),
            max_tokens=max_tokens,
            stop=stops,
            eos_token_ids=frozenset(ends),
            reuse_prefix=arguments.flag(reuse_prefix, "reuse_prefix"),
        )
        prompts = several(prompt)
        requests: list[Request] = []
        for number, one in enumerate([cast("Prompt", prompt)] if prompts is None else prompts):
            try:
                requests.append(self._request(one, params, tools, chat_variables, scheduler.session))
            except RunError as error:
                if prompts is None:
                    raise
                said = str(error).removeprefix("prompt: ")
                raise RunError(f"prompt {number}: {said}", prompt=number) from error
        batch = Batch(scheduler, requests)
        return batch[0] if prompts is None else batch

    def _request(
        self,
        prompt: Prompt,
        params: RequestParams,
        tools: Sequence[Message] | None,
        chat_variables: Mapping[str, JsonValue] | None,
        session: Session,
    ) -> Request:
        ids = self.prompt_ids(prompt, tools=tools, chat_variables=chat_variables)
        if not ids:
            raise RunError(
                "prompt: got no tokens, expected at least one; give a character of text, a token id or a message"
            )
        return Request(
            ids,
            params,
            self._tokenizer if self._tokenizer is not None else NoText(),
            continues_text=messages_of(prompt) is None,
            context=session.context,
            vocab_size=session.vocab_size,
        )

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Vectors f32[texts, hidden], pooled and normalised as the model's header says. On amx-bf16 a text's vector
        depends on the texts beside it (docs/python.md).

        Texts of more than `embed_max_tokens` are cut; `count_cut` says how many. Raises RunError for a decoder.
        """
        given = arguments.texts(texts, "texts")
        embedder = self._embedder
        return embedder.embed(self.tokenizer.encode_batch(given, max_tokens=embedder.max_tokens))

    @property
    def embed_max_tokens(self) -> int:
        """Tokens of a text, special ones included, that `embed` reads. Raises RunError for a decoder."""
        return self._embedder.max_tokens

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many of `texts` have more tokens than `embed` reads. Raises RunError for a decoder."""
        return self.tokenizer.count_longer(arguments.texts(texts, "texts"), self.embed_max_tokens)

    # --- end

    def wait(self) -> None:
        """Return when all weights are here and verified, as they are but for those of a URL. Raises ArtifactError."""
        self.executor.wait()

    def close(self) -> None:
        """Lets weights and cache go. Any thread may do so. Everything but `close` raises RunError from now on; streams
        that are not at their end do, too, after the tokens that are ready. A run that waits for weights of another
        machine ends with ArtifactError."""
        parts, self._open = self._open, None
        if parts is None:
            return
        if isinstance(parts.work, Scheduler):
            parts.work.close(CLOSED)
        parts.executor.stop_arriving()


class _Open(NamedTuple):
    """What a model has until it is closed."""

    executor: Executor
    work: Scheduler | Embedder


def load(
    path: str | os.PathLike[str] | Artifact,
    *,
    threads: int | None = None,
    isa: str | None = None,
    backend: str | None = None,
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = (),
    context: int | None = None,
    trust: str | os.PathLike[str] = "required",
    mode: Mode = "mmap",
) -> Model:
    """Verify an artifact, a file or one that is open already (and stays so), and make it ready to run.

    `path` may be a URL, given as text (http, https, oci, s3, gs, az; docs/streaming.md). Only what this machine needs
    is fetched then, and while weights are on their way the CPU's executor runs a prompt's first layers already, so
    that what goes wrong with them is an error of the first run; `Model.wait` waits for all of them.

    `threads` for the kernels (default: one for each core that this process may use), `isa` the compiled variant
    (default: the best this CPU runs), `backend` "cpu", "onnx", "tensorrt" or "cuda" (default: the first in the artifact
    that runs here), `providers` execution providers of ONNX Runtime, names or pairs of name and options, `context`
    tokens a sequence may have (at most what was compiled; the cache takes memory for no more). `trust`: "required", as
    this machine's policy asks, by default a signature by a trusted key; or a public key ("pyc-ed25519 ..."), which has
    to have signed; or the file of a policy or of a key. `mode` "pread" copies
    weights into memory of the process's own, in huge pages, instead of mapping the file; an artifact that is open
    already has a mode. Raises ArtifactError for an artifact that is malformed, altered, unsigned or not trusted,
    RunError when it cannot run here, FetchError when another machine does not give it.
    """
    given = os.fspath(trust) if isinstance(trust, os.PathLike) else trust
    options = LoadOptions(threads, isa, backend, providers, context, given, mode)
    return model_of(load_executor(path, options))


def model_of(loaded: Loaded) -> Model:
    """Return the model of what was loaded."""
    return Model(
        loaded.info,
        loaded.generation,
        loaded.executor,
        loaded.tokenizer,
        loaded.chat_templates,
        program=loaded.program,
        kv_blocks=loaded.kv_blocks,
        context=loaded.context,
        virtual_tokens=loaded.virtual_tokens,
        digest=loaded.digest,
    )
