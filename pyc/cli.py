"""The `pyc` command: a click group whose commands are imported when they are used.

Exit codes: 0 success, 2 wrong usage, 3 to 16 one for each class of `pyc.runtime.errors`, 69 an extra is not
installed, 70 a fault in pyc itself, 74 the operating system refused (no space, no permission), 129 SIGHUP, 130 SIGINT,
141 the reader of standard output went away, 143 SIGTERM. docs/troubleshooting.md has the table.
"""

import contextlib
import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click
from click.shell_completion import shell_complete

from pyc import __version__, signals
from pyc.runtime.errors import PycError
from pyc.runtime.host.extras import interruption, missing_extra
from pyc.runtime.host.files_read import files_read
from pyc.runtime.host.native_modules import unloadable_remedy
from pyc.runtime.sources.places import without_credentials
from pyc.runtime.text.printable import printable
from pyc.suggestions import meant_by_command, meant_by_option

EXIT_INTERNAL = 70
EXIT_SYSTEM = 74
EXIT_HUNG_UP = signals.EXIT_HUNG_UP
EXIT_INTERRUPTED = signals.EXIT_INTERRUPTED
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = signals.EXIT_TERMINATED
MOST_SHOWN = 2000
"""Characters of an error message that are shown: names in files may have megabytes."""


class Command(NamedTuple):
    """Where a command lives (`module:attribute`) and the line that `pyc --help` shows for it."""

    target: str
    summary: str


COMMANDS = {
    "init": Command("pyc.commands.init:command", "Write a commented model.yaml for a checkpoint."),
    "plan": Command("pyc.commands.plan:command", "Show what a build would do; reads headers and a few rows."),
    "build": Command("pyc.commands.build:command", "Compile a recipe into an artifact."),
    "attach": Command("pyc.commands.attach:command", "Add a checkpoint's weights to compiled programs."),
    "export": Command("pyc.commands.export:command", "Write an artifact or a recipe's model for other tools."),
    "diff": Command("pyc.commands.diff:command", "Show what is different in a second artifact."),
    "attest": Command("pyc.commands.attest:command", "Write a bill of materials, or provenance."),
    "bundle": Command("pyc.commands.bundle:command", "Put an artifact and all that it needs to run together."),
    "inspect": Command("pyc.commands.inspect:command", "Show what an artifact holds."),
    "verify": Command("pyc.commands.verify:command", "Check the signature and every byte of an artifact."),
    "push": Command("pyc.commands.push:command", "Send an artifact or a bundle to an OCI registry."),
    "pull": Command("pyc.commands.pull:command", "Fetch an artifact from another machine into a file."),
    "install": Command("pyc.commands.install:command", "Build an artifact's TensorRT engines for this machine."),
    "run": Command("pyc.commands.run:command", "Generate text with an artifact."),
    "embed": Command("pyc.commands.embed:command", "Turn texts into vectors with an encoder artifact."),
    "eval": Command("pyc.commands.eval:command", "Measure perplexity, and the distance from a reference."),
    "report": Command("pyc.commands.report:command", "Show what rounding cost each matrix of an artifact."),
    "bench": Command("pyc.commands.bench:command", "Measure load time, latency and throughput."),
    "tune": Command("pyc.commands.tune:command", "Measure how far ahead to prefetch weights on this CPU."),
    "schema": Command("pyc.commands.schema:command", "Print the JSON schema of model.yaml, or of results."),
    "keygen": Command("pyc.commands.keygen:command", "Make a signing key."),
    "sign": Command("pyc.commands.sign:command", "Sign an artifact with one more key."),
    "cache": Command("pyc.commands.cache:command", "Show the build cache, or make it smaller."),
    "doctor": Command("pyc.commands.doctor:command", "Check this machine: CPU, keys, cache, compilers, space."),
    "trust": Command("pyc.commands.trust:command", "Say whose artifacts may run: trust, revoke, announce."),
}


class LazyGroup(click.Group):
    """A group over the COMMANDS table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command), f"{entry.target} is not a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that is not there is wrong usage, and the nearest is named."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}.{meant_by_command(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `pyc --help`, out of the table: no command is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pyc", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log what happens to standard error; -vv logs more.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress; notes, warnings and errors stay.")
def cli(verbose: int, quiet: bool) -> None:
    """Compile a Hugging Face checkpoint into one artifact, and run it.

    \b
    pyc init CHECKPOINT          write model.yaml
    pyc build model.yaml         compile it
    pyc run model.pyca           generate text
    """
    if quiet:
        from pyc.commands.status_line import set_quiet

        set_quiet(True)
        click.get_current_context().call_on_close(lambda: set_quiet(False))
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level, handlers=[handler])


class OneLine(logging.Formatter):
    """A message of the log as a terminal may have it: names of files and tokens may be in it.

    Warnings of pyc read as its errors do; what -v shows, and what libraries say, names who says it.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line, without the traceback that may follow."""
        kind = record.levelname.lower()
        is_told = record.levelno >= logging.WARNING and record.name.partition(".")[0] == "pyc"
        who = f"pyc: {kind}" if is_told else f"{record.name}: {kind}"
        return printable(f"{who}: {record.message}")


def entry() -> None:
    """The process `pyc`, for scripts that were installed when it began here: see `pyc.process`."""
    from pyc.process import entry as begin

    begin()


@contextlib.contextmanager
def _memory_errors_told_once() -> Iterator[None]:
    """Python prints a traceback of an exception that nobody can be given, as in a thread before it begins. Where that
    is a lack of memory, what it stopped says so in one line."""
    former = sys.unraisablehook

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, MemoryError) and unraisable.exc_type is not MemoryError:
            former(unraisable)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = former


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's own) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    verbose = _asks_for_traceback(arguments)
    with signals.handled(), _memory_errors_told_once():
        try:
            completion = os.environ.get("_PYC_COMPLETE")
            code = _complete(completion) if completion else _run(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            # What is still buffered would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_BROKEN_PIPE
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 -- the last resort; describe() tells them apart
            if isinstance(error, ImportError):
                error = interruption(error) or error
            if isinstance(error, KeyboardInterrupt):
                signals.settle()
            message, code = describe(error)
            if isinstance(error, KeyboardInterrupt) and not signals.may_tell():
                return code
            if verbose:
                traceback.print_exception(error)
            with contextlib.suppress(OSError):  # the verdict is the exit code, whoever reads the rest
                print(message, file=sys.stderr)
            return code


def describe(error: BaseException) -> tuple[str, int]:
    """The line to print for an error that ended a command, and the exit code.

    Line ends and other control characters, as names of files may have them, are escaped: it stays one line, and a
    terminal obeys none of them. Of more than MOST_SHOWN characters those in the middle are left out.
    """
    if isinstance(error, KeyboardInterrupt):
        return signals.message_and_code(error)
    if isinstance(error, PycError):
        return _line(f"pyc: error: {error}"), error.exit_code
    if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error)):
        return _line(f"pyc: error: {missing}"), missing.exit_code
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError) and not _is_ours(error.name):
        return _line(f"pyc: error: {_unloadable(error)}"), EXIT_SYSTEM
    if isinstance(error, SystemError) and str(error).startswith("execution of module "):  # numpy's, without memory
        return _line(f"pyc: error: {_unloadable(error)}"), EXIT_SYSTEM
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_folder_gone():
        return "pyc: error: the current folder was deleted; change to one that is there (cd)", EXIT_SYSTEM
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        reason = str(error.strerror or error)
        remedy = "; raise the limit (ulimit -n)" if error.errno == errno.EMFILE and "ulimit" not in reason else ""
        return _line(f"pyc: error: {where}{reason}{remedy}"), EXIT_SYSTEM
    if isinstance(error, MemoryError):
        return _line(f"pyc: error: out of memory{f': {error}' if str(error) else ''}"), EXIT_SYSTEM
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return "pyc: error: no more threads may be started; raise the limit (ulimit -u), or end some", EXIT_SYSTEM
    return (
        f"pyc: internal error: {type(error).__name__}: {error}\n"
        f"This is a fault in pyc {__version__}, not in your input. Please report it with the traceback that "
        "`pyc -v ...` shows."
    ), EXIT_INTERNAL


def _is_folder_gone() -> bool:
    """Whether the current folder is no more, so that relative paths lead nowhere."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "pyc"


def _unloadable(error: ImportError | SystemError) -> str:
    """What to say of a package that is there and cannot be loaded: its file system is noexec, say, or memory short."""
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    reason = str(cause).strip().partition("\n")[0]
    return f"a package cannot be loaded: {reason}; {unloadable_remedy(error)}"


def _line(text: str) -> str:
    """One line of a message, as a terminal may have it: what a URL has of a user is not in it."""
    text = without_credentials(text)
    if len(text) > MOST_SHOWN:
        text = f"{text[: MOST_SHOWN // 2]} ... {text[-MOST_SHOWN // 2 :]}"
    return printable(text)


def _run(arguments: Sequence[str]) -> int:
    """Parse and invoke. A command returns None for success; `ctx.exit(code)` sets another code."""
    try:
        with files_read(), cli.make_context("pyc", list(arguments)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.exceptions.Abort:
        print("pyc: aborted", file=sys.stderr)
        return 1
    except click.ClickException as error:
        text = io.StringIO()
        meant_by_option(error, arguments).show(text)
        with contextlib.suppress(OSError):
            print("\n".join(map(_line, text.getvalue().expandtabs(2).splitlines())), file=sys.stderr)
        return error.exit_code
    return 0


def _complete(instruction: str) -> int:
    """Tell a shell what may stand next. What has no answer, a mistyped command say, ends with 1 and nothing said: any
    word would stand in the middle of the line that is being typed."""
    try:
        return shell_complete(cli, {}, "pyc", "_PYC_COMPLETE", instruction)
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 -- COMP_WORDS and COMP_CWORD of the environment may be anything, or lack
        return 1


def _asks_for_traceback(arguments: Sequence[str]) -> bool:
    """Whether -v stands among the options before the command. Read here, since parsing itself may fail."""
    for argument in arguments:
        if not argument.startswith("-"):
            return False
        if argument == "--verbose" or (argument[1:2] != "-" and "v" in argument):
            return True
    return False
