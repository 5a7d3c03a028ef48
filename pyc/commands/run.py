"""`pyc run`: generate text with an artifact, once or in a conversation."""

import shlex
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pyc.commands.generation_options import generation_options
from pyc.commands.many_prompts import generate_all, read_prompts
from pyc.commands.opening import (
    ArtifactPlace,
    backend_option,
    mmap_option,
    mode_of,
    open_ahead,
    provider_option,
    require_kind,
    require_other_input,
    trust_option,
)
from pyc.commands.reading import check_text, read_text
from pyc.commands.screen import Screen, is_terminal, tell
from pyc.commands.streaming import Answer, generate_into, print_json_line, token_document
from pyc.runtime.host.files_read import note_file

if TYPE_CHECKING:
    from pyc.runtime.generation.prompts import Prompt
    from pyc.runtime.generation.settings import GenerateSettings
    from pyc.runtime.model import Model
    from pyc.runtime.sources.places import Place
    from pyc.runtime.text.chat.template import JsonValue


@click.command("run", context_settings={"allow_extra_args": True})  # they are refused below, with what to write
@click.argument("artifact", type=ArtifactPlace(reads_stdin=True))
@click.option(
    "-p",
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="The prompt; without it and --prompt-file it is read from standard input.",
)
@click.option(
    "--prompt-file",
    "prompt_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file with the prompt; - is standard input.",
)
@click.option(
    "--prompts",
    "prompts_file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file of prompts, one a line (JSON in *.jsonl, *.ndjson); several run at a time. - is standard input.",
)
@click.option("--chat", is_flag=True, help="Talk through the model's chat template; with a prompt, one turn.")
@click.option("--system", help="The system message of --chat.")
@click.option("--thinking/--no-thinking", default=None, help="Ask a thinking model to think or not (with --chat).")
@click.option("--history/--no-history", default=True, help="Keep what is typed in --chat for the arrow keys.")
@generation_options
@click.option("--json", "as_json", is_flag=True, help="One JSON line a token, then one with the whole.")
@click.option("--echo", is_flag=True, help="Print the prompt before what follows it.")
@click.option("--stats", is_flag=True, help="Print a line with timings to standard error.")
@click.option("-t", "--threads", type=click.IntRange(min=1), help="Threads for the kernels.  [default: one a core]")
@click.option("--isa", help="The compiled variant to use; `pyc inspect` lists them.  [default: the best this CPU runs]")
@click.option("--context", type=click.IntRange(min=1), help="Tokens of context.  [default: as compiled]")
@trust_option
@backend_option
@provider_option
@mmap_option
def command(
    artifact: "Place",
    prompts: tuple[str, ...],
    prompt_files: tuple[Path, ...],
    prompts_file: Path | None,
    chat: bool,
    system: str | None,
    thinking: bool | None,
    history: bool,
    as_json: bool,
    echo: bool,
    stats: bool,
    threads: int | None,
    isa: str | None,
    context: int | None,
    trust: str,
    backend: str | None,
    providers: tuple[tuple[str, dict[str, str]], ...],
    mmap: bool,
    **options: "Unpack[GenerateSettings]",
) -> None:
    """Generate text with ARTIFACT: a file, a URL (https, http, oci, s3, gs, az), or - for standard input.

    \b
    pyc run model.pyca -p "def fibonacci(n):" --max-tokens 64
    pyc run model.pyca --chat
    pyc run model.pyca --prompts questions.txt --stats
    pyc run https://models.example.com/model.pyca -p "def "

    Text goes to standard output as the model gives it. A terminal gets control characters spelt out (\\x1b), so that
    no text takes it over.
    """
    _refuse_words(prompts, click.get_current_context().args)
    _check_usage(prompts, prompt_files, prompts_file, chat, system, thinking, options, as_json, echo)
    is_asked = bool(prompts or prompt_files or prompts_file)
    if not prompts:
        read = prompts_file or next(iter(prompt_files), None)
        require_other_input(artifact, read, "give the prompt with -p, or prompts in a file")
    converses = chat and not is_asked and is_terminal(sys.stdin)
    if converses and as_json:
        raise click.UsageError("--json is for one generation; give --chat a prompt with it")
    if isinstance(artifact, Path):
        note_file(artifact, "the artifact")
    with open_ahead(artifact, mode_of(mmap)) as opened:
        require_kind(opened, "decoder")
        entries = [] if prompts_file is None else read_prompts(prompts_file, chat=chat, system=system)
        is_piped = chat and not is_asked and not converses  # a model that cannot chat says so before it waits for that
        text = None if converses or entries or is_piped else _read_prompt(prompts, prompt_files)
        from pyc.runtime.model import load

        loaded = load(
            opened, threads=threads, isa=isa, trust=trust, backend=backend, providers=providers, context=context
        )
    with loaded as model:
        variables: dict[str, JsonValue] = {}
        if thinking is not None:
            variables = _thinking_variables(model, thinking)
        if entries:
            generate_all(model, entries, options, variables, as_json=as_json, echo=echo, stats=stats)
            return
        if is_piped:
            _ = model.chat_template
            text = _read_prompt(prompts, prompt_files)
        if text is None:
            from pyc.commands.chat import converse

            converse(model, options, system=system, variables=variables, stats=stats, keeps_history=history)
            return
        asked: Prompt = text
        if chat:
            asked = [{"role": "system", "content": system}] if system is not None else []
            asked.append({"role": "user", "content": text})
        _generate(model, asked, options, variables, as_json=as_json, echoed=text if echo else "", stats=stats)


def _refuse_words(prompts: tuple[str, ...], words: list[str]) -> None:
    """Raise click.UsageError for words that belong to no option: a prompt, or the rest of one without quotes."""
    if words:
        prompt = shlex.quote(" ".join((*prompts[:1], *words)))
        raise click.UsageError(f"Got unexpected extra argument ({words[0]}); a prompt is one argument: -p {prompt}")


def _check_usage(
    prompts: tuple[str, ...],
    prompt_files: tuple[Path, ...],
    prompts_file: Path | None,
    chat: bool,
    system: str | None,
    thinking: bool | None,
    options: "GenerateSettings",
    as_json: bool,
    echo: bool,
) -> None:
    """Raise click.UsageError for options that do not go together."""
    if (bool(prompts), bool(prompt_files), prompts_file is not None).count(True) > 1:
        raise click.UsageError("give one of --prompt, --prompt-file and --prompts")
    if len(prompts) > 1 or len(prompt_files) > 1:
        name, count = ("--prompt", len(prompts)) if prompts else ("--prompt-file", len(prompt_files))
        raise click.UsageError(f"{name}: given {count} times, expected once")
    if system is not None and not chat:
        raise click.UsageError("--system is for --chat")
    if thinking is not None and not chat:
        raise click.UsageError("--thinking and --no-thinking are for --chat")
    stop = tuple(options["stop"] or ())
    if "" in stop:
        raise click.UsageError("--stop: got an empty text, expected at least one character")
    if options["logprobs"] is not None and (not as_json or prompts_file is not None):
        raise click.UsageError("--logprobs is for --json with one prompt")
    if echo and (as_json or chat):
        raise click.UsageError("--echo is for plain text, without --json and --chat")
    for name, texts in (("--prompt", prompts), ("--system", (system or "",)), ("--stop", stop)):
        for text in texts:
            check_text(text, name)


def _read_prompt(prompts: tuple[str, ...], prompt_files: tuple[Path, ...]) -> str:
    file = prompt_files[0] if prompt_files else None
    text = prompts[0] if prompts else read_text(file, waits_for="the prompt")
    if not text:
        where = "--prompt" if prompts else "standard input" if file is None or str(file) == "-" else str(file)
        raise click.UsageError(f"{where}: the prompt is empty; give at least one character")
    return text


def _thinking_variables(model: "Model", thinking: bool) -> dict[str, "JsonValue"]:
    from pyc.runtime.text.chat.thinking import SWITCH, has_switch

    if not has_switch(model.chat_template):
        option = "--thinking" if thinking else "--no-thinking"
        tell(f"pyc: {option} changes nothing: the model's chat template has no switch for it ({SWITCH})")
    return {SWITCH: thinking}


def _generate(
    model: "Model",
    prompt: "Prompt",
    options: "GenerateSettings",
    variables: "Mapping[str, JsonValue]",
    *,
    as_json: bool,
    echoed: str,
    stats: bool,
) -> None:
    """Generate once and print as it goes: text, or a JSON line a token. What was printed ends with a newline, come
    what may."""
    screen = Screen()
    answer = Answer(len(model.prompt_ids(prompt, chat_variables=variables)))
    try:
        if not as_json:
            screen.show(echoed)
        with closing(generate_into(answer, model, prompt, options, variables=variables)) as tokens:
            for token in tokens:
                if as_json:
                    print_json_line(token_document(token))
                else:
                    screen.show(token.text)
    finally:
        if (answer.tokens and not as_json) or echoed:
            screen.show("\n")
    if as_json:
        print_json_line(answer.as_document())
    if stats:
        tell(answer.statistics())
