"""What was meant by a command or an option that pyc has not."""

from collections.abc import Collection, Sequence

import click

_NO_LIST = "pyc keeps no list of models: each is a file, which `pyc inspect` shows. `pyc cache` shows the build cache."
_NO_SERVER = "pyc has no server; `pyc.load` in Python serves several requests together: docs/python.md."

COMMANDS_ELSEWHERE = {
    "chat": "`pyc run MODEL.pyca --chat` chats.",
    "compile": "`pyc build` compiles.",
    "convert": "`pyc build` makes an artifact of a checkpoint, `pyc export` writes one for other tools.",
    "create": "`pyc build` makes an artifact of a recipe, which `pyc init` writes.",
    "download": "`pyc build ORG/NAME --download` fetches a model and builds it, `pyc pull` fetches an artifact.",
    "generate": "`pyc run MODEL.pyca` generates text.",
    "help": "`pyc --help` and `pyc COMMAND --help` print help.",
    "imatrix": "quantize.calibration of the recipe takes a text: docs/which-scheme.md.",
    "images": _NO_LIST,
    "list": _NO_LIST,
    "login": "Logins of a registry are those of `docker login`, of a server in $PYC_HTTP_TOKEN or a netrc file.",
    "ls": _NO_LIST,
    "perplexity": "`pyc eval MODEL.pyca --text FILE` measures it.",
    "ps": _NO_LIST,
    "quantize": "`pyc build` quantizes, by quantize.scheme of the recipe.",
    "rm": _NO_LIST,
    "serve": _NO_SERVER,
    "server": _NO_SERVER,
    "show": "`pyc inspect MODEL.pyca` shows what is in it.",
    "version": "`pyc --version` prints it.",
}
"""What there is of commands that other tools have."""

OPTIONS_ELSEWHERE = {
    "--chat": ("-i", "-cnv", "--interactive", "--conversation"),
    "--context": ("-c", "--ctx-size", "--n-ctx", "--max-model-len", "--num-ctx", "--num_ctx"),
    "--json": ("--format", "--output-format"),
    "--max-tokens": ("--n-predict", "--predict", "--num-predict"),
    "--npy": ("--format", "--output", "-o"),
    "--prompt-file": ("-f", "--file"),
    "--repetition-penalty": ("--repeat-penalty",),
    "--scheme": ("-q", "--quantization", "--quantize", "--quant", "--bits", "--dtype", "--type"),
    "--seed": ("-s",),
    "--system": ("-sys", "--system-prompt"),
    "--text": ("-f", "--file"),
    "--threads": ("--n-threads", "--num-threads"),
    "--workers": ("-j", "--parallel"),
}
"""Options of ours, and what other tools call them."""

_WORDS = ("-cnv", "-ngl", "-sys", "-hf", "-md", "-fa", "-ctk", "-ctv")
_BEFORE = {
    **dict.fromkeys(("-v", "--verbose"), "-v COMMAND ..."),
    **dict.fromkeys(("-q", "--quiet", "--silent"), "-q COMMAND ..."),
    **dict.fromkeys(("-V", "--version"), "--version"),
}
_OF_ANY: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--lora", "--lora-scaled", "--adapter"),
     "Adapters are fused by a build: pyc init CHECKPOINT --adapter FOLDER; docs/adapters.md."),
    (("-hf", "--hf-repo"), "A model of the hub is built first: pyc build ORG/NAME --download."),
)  # fmt: skip
"""Options of other tools, and what to do."""
_OF_RUNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--grammar", "--grammar-file", "--json-schema", "-j", "--format"),
     "Nothing forces an answer to follow a grammar or a schema: check what you parse."),
    (("--draft", "--draft-max", "--draft-model", "--model-draft", "-md"), "There is no speculative decoding yet."),
    (("-fa", "--flash-attn"), "Attention needs no option."),
    (("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"),
     "How keys and values are stored is chosen by the build: --set quantize.kv_cache=int8."),
    (("--chat-template", "--jinja"), "The chat template is the checkpoint's: build with another."),
    (("--color", "--colour"), "A terminal has colours without an option, unless NO_COLOR is set."),
    (("--image", "--mmproj"), "Images are not read."),
    (("--mlock", "--keep-alive", "--keepalive"), "Weights are mapped: they stay in memory while there is room."),
)  # fmt: skip
"""The same of commands that take a prompt."""
_MODEL, _GPU = ("-m", "--model"), ("-ngl", "--n-gpu-layers", "--gpu-layers", "--device", "--gpus")


def meant_by_command(name: str, commands: Collection[str]) -> str:
    """A sentence, behind a space, for a word that is none of `commands`: the nearest of them, or one for a file."""
    import difflib

    if name.lower() in COMMANDS_ELSEWHERE:
        return f" {COMMANDS_ELSEWHERE[name.lower()]}"
    close = difflib.get_close_matches(name.lower(), commands, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    if name.endswith(".pyca"):
        return f" Did you mean 'pyc run {name}'?"
    if name.endswith((".yaml", ".yml")):
        return f" Did you mean 'pyc build {name}'?"
    return " `pyc --help` lists the commands."


def meant_by_option(error: click.ClickException, typed: Sequence[str]) -> click.ClickException:
    """The error; one of an option that is not there names what was meant, where letters do not tell.

    Of a word of several letters behind one dash, which is among those `typed`, the error has the first letter alone, or
    the others as what is given to it.
    """
    if isinstance(error, click.BadParameter) and error.param is not None and error.ctx is not None:
        # Of `-ngl 99` click takes `gl` as what is given to -n.
        named = (each.rstrip("0123456789") for each in typed)
        word = next((each for each in named if each in _WORDS and each[:2] in error.param.opts), None)
        if word is not None:
            error = click.NoSuchOption(word, ctx=error.ctx)
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    letter = error.option_name.lstrip("-")
    word = next((each for each in typed if each in _WORDS and letter in each), error.option_name)
    sentence = _sentence(word, error.ctx.command)
    if sentence is None:
        return error
    return click.NoSuchOption(error.option_name, f"{error.message} {sentence}", ctx=error.ctx)


def _sentence(name: str, command: click.Command) -> str | None:
    options = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
    argument = next((each for each in command.params if isinstance(each, click.Argument)), None)
    named = [option for option in options if option.startswith(name)]
    named = named or [option for option in options if name in OPTIONS_ELSEWHERE.get(option, ())]
    if named:
        return f"Did you mean {' or '.join(map(repr, named))}?"
    if name in _BEFORE:
        return f"It goes before the command: pyc {_BEFORE[name]}"
    if name in ("--scheme", *OPTIONS_ELSEWHERE["--scheme"]) and "--set" in options:
        return "How weights are stored is set so: --set quantize.scheme=int4-g32."
    for names, sentence in (*_OF_ANY, *(_OF_RUNS if "--prompt" in options else ())):
        if name in names:
            return sentence
    if name in _MODEL and argument is not None:
        return f"{(argument.metavar or argument.human_readable_name).strip('[].')} is named without an option."
    if name in _GPU and "--backend" in options:
        return "A GPU runs all layers of an artifact that was built for it: --backend cuda."
    return None
