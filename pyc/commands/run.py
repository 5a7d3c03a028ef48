"""`pyc run`: generate text with an artifact."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from pyc.commands.opening import mmap_option, mode_of, open_ahead

if TYPE_CHECKING:
    from pyc.runtime.generate import Token
    from pyc.runtime.model import Message, Model


class _SamplingOptions(TypedDict):
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    seed: int | None
    stop: tuple[str, ...]
    logprobs: int | None
    ignore_eos: bool


@dataclass(slots=True)
class _Result:
    """What one generation gave, and how long it took (seconds from the start of generate)."""

    text: str
    prompt_tokens: int
    tokens: list["Token"]
    first_token_s: float
    total_s: float


@click.command("run")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="The prompt; without it and --prompt-file it is read from standard input.")
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the prompt.",
)
@click.option("--chat", is_flag=True, help="Talk through the model's chat template; with a prompt, one turn.")
@click.option("--system", help="The system message of --chat.")
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Tokens to generate at most.",
)
@click.option("--temperature", type=float, help="0 is greedy.  [default: the model's own]")
@click.option("--top-k", type=int, help="Keep the k likeliest tokens; 0 keeps all.  [default: the model's own]")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this mass.  [default: the model's own]")
@click.option(
    "--min-p",
    type=float,
    help="Keep tokens at least this likely relative to the likeliest.  [default: the model's own]",
)
@click.option(
    "--repetition-penalty",
    type=float,
    help="Divide the logits of tokens seen; 1 is none.  [default: the model's own]",
)
@click.option("--frequency-penalty", type=float, default=0.0, help="Subtract this for each time a token was generated.")
@click.option("--presence-penalty", type=float, default=0.0, help="Subtract this once from tokens that were generated.")
@click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same tokens.")
@click.option("--stop", multiple=True, help="End before this text; may be given several times.")
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    help="Report log-probabilities with this many alternatives (with --json).",
)
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-sequence token.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a token, then one with the whole.")
@click.option("--echo", is_flag=True, help="Print the prompt before what follows it.")
@click.option("--stats", is_flag=True, help="Print a line with timings to standard error.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use.  [default: the best this CPU runs]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of context.  [default: as compiled]")
@mmap_option
def command(
    artifact: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    frequency_penalty: float,
    presence_penalty: float,
    seed: int | None,
    stop: tuple[str, ...],
    logprobs: int | None,
    ignore_eos: bool,
    as_json: bool,
    echo: bool,
    stats: bool,
    threads: int | None,
    isa: str | None,
    context: int | None,
    mmap: bool,
) -> None:
    """Generate text with ARTIFACT.

    \b
    pyc run model.pyca -p "def fibonacci(n):" --max-tokens 64
    pyc run model.pyca --chat
    """
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("give --prompt or --prompt-file, not both")
    if system is not None and not chat:
        raise click.UsageError("--system is for --chat")
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs is for --json")
    if echo and (as_json or chat):
        raise click.UsageError("--echo is for plain text, without --json and --chat")
    options = _SamplingOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
        ignore_eos=ignore_eos,
    )
    interactive = chat and prompt is None and prompt_file is None and sys.stdin.isatty()
    with open_ahead(artifact, mode_of(mmap)) as opened:
        text = None if interactive else _read_prompt(prompt, prompt_file)
        from pyc.runtime.model import load

        loaded = load(opened, threads=threads, isa=isa, context=context)
    with loaded as model:
        history: list[Message] = [{"role": "system", "content": system}] if system is not None else []
        if interactive:
            _converse(model, history, options, stats)
            return
        assert text is not None
        if echo:
            print(text, end="", flush=True)
        asked: str | list[Message] = [*history, {"role": "user", "content": text}] if chat else text
        result = _generate(model, asked, options, as_json=as_json, is_conversation=False)
    if as_json:
        _print_result(result)
    if stats:
        _print_stats(result)


def _read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    if prompt is not None:
        return prompt
    try:
        return prompt_file.read_text("utf-8") if prompt_file is not None else sys.stdin.read()
    except UnicodeDecodeError as error:
        where = prompt_file if prompt_file is not None else "standard input"
        raise click.UsageError(f"{where}: not UTF-8 text at byte {error.start}") from error


def _converse(model: "Model", history: list["Message"], options: _SamplingOptions, stats: bool) -> None:
    """Turns until end of input. Ctrl-C ends an answer; at the prompt it ends the command."""
    print("Ctrl-D ends the conversation, Ctrl-C an answer.", file=sys.stderr)
    while True:
        try:
            question = input("> ")
        except EOFError:
            print()
            return
        if not question.strip():
            continue
        history.append({"role": "user", "content": question})
        result = _generate(model, history, options, as_json=False, is_conversation=True)
        history.append({"role": "assistant", "content": result.text})
        if stats:
            _print_stats(result)


def _generate(
    model: "Model",
    prompt: "str | list[Message]",
    options: _SamplingOptions,
    *,
    as_json: bool,
    is_conversation: bool,
) -> _Result:
    """Generates and prints as it goes: text, or a JSON line a token. In a conversation Ctrl-C only ends the answer."""
    prompt_tokens = len(model.prompt_ids(prompt))
    start = time.perf_counter()
    first_token_s = 0.0
    tokens: list[Token] = []
    try:
        for token in model.generate(prompt, **options, reuse_prefix=is_conversation):
            if not tokens:
                first_token_s = time.perf_counter() - start
            tokens.append(token)
            if as_json:
                print(json.dumps(_token_json(token), ensure_ascii=False), flush=True)
            elif token.text:
                print(token.text, end="", flush=True)
    except KeyboardInterrupt as error:
        if not is_conversation or type(error) is not KeyboardInterrupt:  # SIGTERM always ends the command
            raise
    total_s = time.perf_counter() - start
    if not as_json:
        print(flush=True)
    return _Result("".join(token.text for token in tokens), prompt_tokens, tokens, first_token_s, total_s)


def _token_json(token: "Token") -> dict[str, object]:
    document: dict[str, object] = {"id": token.id, "text": token.text}
    if token.logprob is not None:
        document["logprob"] = token.logprob
        document["top_logprobs"] = [{"id": top.id, "logprob": top.logprob} for top in token.top_logprobs]
    return document


def _print_result(result: _Result) -> None:
    document = {
        "text": result.text,
        "finish_reason": result.tokens[-1].finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": len(result.tokens),
        "ttft_s": round(result.first_token_s, 6),
        "total_s": round(result.total_s, 6),
    }
    print(json.dumps(document, ensure_ascii=False))


def _print_stats(result: _Result) -> None:
    decoded = len(result.tokens) - 1
    decode_s = result.total_s - result.first_token_s
    speed = f", {decoded / decode_s:.1f} tokens/s" if decoded > 0 and decode_s > 0 else ""
    print(
        f"prompt {result.prompt_tokens} tokens, first token after {result.first_token_s * 1000:.0f} ms; "
        f"{len(result.tokens)} tokens in {result.total_s:.2f} s{speed}",
        file=sys.stderr,
    )
