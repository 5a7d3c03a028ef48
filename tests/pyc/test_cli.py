"""pyc/cli.py: exit codes, messages, lazy imports, signals."""

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import click
import pytest

from pyc import cli
from pyc.cli import main
from pyc.runtime import errors

PYC = (sys.executable, "-m", "pyc")

# A command line that stays busy until a signal comes, and says what it cleaned up.
BUSY = """
import signal, sys, types, time, click
from pyc import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits that it is ignored

@click.command()
def command():
    try:
        print("ready", flush=True)
        for _ in range(6000):  # a signal just before a long sleep would not end it
            time.sleep(0.01)
    finally:
        print("cleaned", flush=True)

module = types.ModuleType("busy")
module.command = command
sys.modules["busy"] = module
cli.COMMANDS["busy"] = cli.Command("busy:command", "")
sys.exit(cli.main(["busy"]))
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes `pyc probe` call a function."""

    def put(action: Callable[[], object]) -> None:
        module = ModuleType("probe_command")
        module.command = click.Command("probe", callback=action)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe_command:command", "A probe."))

    return put


def raiser(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def every_error() -> list[type[errors.PycError]]:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in kinds if issubclass(kind, errors.PycError)]


def test_success_is_zero_and_silent_on_standard_error(install, capsys):
    install(lambda: print("out"))
    assert cli.main(["probe"]) == 0
    assert capsys.readouterr() == ("out\n", "")


@pytest.mark.parametrize("kind", every_error())
def test_each_error_class_leaves_with_its_code(kind, install, capsys):
    install(raiser(kind("layer 3: got 5, expected 4")))
    assert cli.main(["probe"]) == kind.exit_code
    assert capsys.readouterr().err == "pyc: error: layer 3: got 5, expected 4\n"


@pytest.mark.parametrize(("name", "level", "start"), [
    ("pyc.models", logging.WARNING, "pyc: warning"),
    ("pyc.models", logging.INFO, "pyc.models: info"),
    ("urllib3", logging.WARNING, "urllib3: warning"),
    ("pycache", logging.ERROR, "pycache: error"),
])
def test_a_message_of_the_log_is_one_printable_line(name, level, start):
    record = logging.LogRecord(name, level, "f", 1, "%s: odd", ("a\nb\x1b[31m",), None)
    assert cli.OneLine().format(record) == f"{start}: a\\nb\\x1b[31m: odd"


def test_exit_codes_are_distinct():
    codes = [kind.exit_code for kind in every_error()]
    codes += [value for name, value in vars(cli).items() if name.startswith("EXIT_")]
    assert len(set(codes)) == len(codes)
    assert not {0, 2} & set(codes)


def test_a_fault_of_pyc_is_named_as_one_and_shows_no_traceback(install, capsys):
    install(raiser(KeyError("weights")))
    assert cli.main(["probe"]) == cli.EXIT_INTERNAL
    err = capsys.readouterr().err
    assert "internal error: KeyError: 'weights'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("flag", ["-v", "-vv", "--verbose"])
def test_verbose_shows_the_traceback(flag, install, capsys, monkeypatch):
    monkeypatch.setattr("logging.basicConfig", lambda **options: None)
    install(raiser(errors.LowerError("no kernel")))
    assert cli.main([flag, "probe"]) == errors.LowerError.exit_code
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("pyc: error: no kernel\n")


def test_refusals_of_the_system_name_the_file(install, capsys):
    install(raiser(OSError(errno.ENOSPC, "No space left on device", "model.pyca")))
    assert cli.main(["probe"]) == cli.EXIT_SYSTEM
    assert capsys.readouterr().err == "pyc: error: model.pyca: No space left on device\n"


def test_a_current_folder_that_was_deleted_is_named_as_such(install, capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    install(lambda: os.getcwd())
    assert cli.main(["probe"]) == cli.EXIT_SYSTEM
    assert capsys.readouterr().err == (
        "pyc: error: the current folder was deleted; change to one that is there (cd)\n"
    )


@pytest.mark.parametrize("text", ["", "Unable to allocate 9 TiB"])
def test_too_little_memory_is_no_fault_of_pyc(text, install, capsys):
    install(raiser(MemoryError(*filter(None, [text]))))
    assert cli.main(["probe"]) == cli.EXIT_SYSTEM
    assert capsys.readouterr().err == f"pyc: error: out of memory{text and ': ' + text}\n"


@pytest.mark.parametrize(("error", "is_told"), [(MemoryError(), False), (ValueError("a fault"), True)])
def test_of_exceptions_that_nobody_is_given_those_of_memory_are_silent(error, is_told, install, capsys, monkeypatch):
    """As in a thread that had no memory to begin: what it stopped says so, in one line."""

    class Fails:
        def __del__(self):
            raise error

    install(lambda: Fails() and None)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # not pytest's
    assert cli.main(["probe"]) == 0
    assert ("Traceback" in capsys.readouterr().err) is is_told
    assert sys.unraisablehook is sys.__unraisablehook__


def test_too_few_threads_are_no_fault_of_pyc(install, capsys):
    install(raiser(RuntimeError("can't start new thread")))
    assert cli.main(["probe"]) == cli.EXIT_SYSTEM
    assert "raise the limit (ulimit -u)" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "extra"), [("tvm", "compiler"), ("huggingface_hub", "hub"), ("onnx", "onnx")])
def test_a_missing_extra_is_named(module, extra, install, capsys):
    install(raiser(ModuleNotFoundError(f"No module named '{module}.x'", name=f"{module}.x")))
    assert cli.main(["probe"]) == errors.MissingExtraError.exit_code
    assert f"in a checkout of pyc: pip install -c constraints.txt '.[{extra}]'" in capsys.readouterr().err


def test_a_package_that_cannot_be_loaded_is_the_systems_refusal(install, capsys):
    """numpy under a limit of memory: a text of many lines, around what the linker said."""
    error = ImportError("\n\nIMPORTANT: PLEASE READ THIS\nfor advice\n", name="numpy")
    error.__cause__ = ImportError("libblas.so: failed to map segment from shared object\n")
    install(raiser(error))
    assert cli.main(["probe"]) == 74
    err = capsys.readouterr().err
    assert err.startswith("pyc: error: a package cannot be loaded: libblas.so: failed to map segment")
    assert err.count("\n") == 1
    install(raiser(ImportError("cannot import name 'x' from 'pyc.cli'", name="pyc.cli")))
    assert cli.main(["probe"]) == 70


def test_numpy_without_memory_is_the_systems_refusal(install, capsys):
    """Its module then fails without saying why; any other SystemError is a fault."""
    module = "numpy._core._multiarray_umath"
    install(raiser(SystemError(f"execution of module {module} failed without setting an exception")))
    assert cli.main(["probe"]) == 74
    assert "too little memory" in capsys.readouterr().err
    install(raiser(SystemError("bad argument to internal function")))
    assert cli.main(["probe"]) == 70


def test_a_missing_distribution_names_its_extra(install, capsys):
    install(raiser(PackageNotFoundError("apache-tvm")))
    assert cli.main(["probe"]) == errors.MissingExtraError.exit_code
    assert "needs apache-tvm, which is not installed" in capsys.readouterr().err


def test_a_module_missing_from_pyc_itself_is_a_fault(install, capsys):
    install(raiser(ModuleNotFoundError("No module named 'pyc.nowhere'", name="pyc.nowhere")))
    assert cli.main(["probe"]) == cli.EXIT_INTERNAL
    assert "internal error" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"]])
def test_wrong_usage_is_two(arguments, capsys):
    assert cli.main(arguments) == 2
    assert "Usage: pyc" in capsys.readouterr().err


def test_choices_of_a_missing_option_are_indented(capsys):
    assert cli.main(["export", "a", "b"]) == 2
    err = capsys.readouterr().err
    assert "\n  onnx,\n" in err and "\\t" not in err


def test_a_command_can_choose_its_exit_code(install):
    install(lambda: click.get_current_context().exit(5))
    assert cli.main(["probe"]) == 5


@pytest.mark.parametrize("arguments", [[], ["trust"], ["cache"]])
def test_no_description_in_a_list_of_commands_is_cut(arguments, capsys, monkeypatch):
    """On 80 columns, where click ends one that is too long with three dots."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*arguments, "--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert commands and not [line for line in commands if line.endswith("...") or not line.startswith("  ")]
    assert all(line[2] != " " and line.endswith(".") for line in commands)


def test_help_lists_every_command_and_imports_none():
    probe = (
        "import sys; from pyc import cli; code = cli.main(['--help'])\n"
        "print('LOADED', *sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} ", result.stdout, re.MULTILINE)
    loaded = result.stdout.partition("LOADED")[2].split()
    assert "pyc.cli" in loaded
    assert not [name for name in loaded if name.startswith("pyc.commands")]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_exists_and_documents_itself(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert f"Usage: pyc {name}" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"pyc \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, cli.EXIT_INTERRUPTED), (signal.SIGTERM, cli.EXIT_TERMINATED)]
)
def test_signals_clean_up_and_leave_with_their_code(number, code):
    command = [sys.executable, "-c", BUSY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began_s = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert out == "cleaned\n"
    assert "Traceback" not in err
    assert time.monotonic() - began_s < 5


def test_main_puts_the_sigterm_handler_back(install):
    before = signal.getsignal(signal.SIGTERM)
    install(lambda: None)
    cli.main(["probe"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_goes_away_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*PYC, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (cli.EXIT_BROKEN_PIPE, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "arguments", "code", "shown"),
    [
        (">&-", "--version", 74, "standard output: "),
        (">&-", "inspect none", 10, "none: "),
        ("2>&-", "inspect none", 10, ""),
        ("2>/dev/full", "inspect none", 10, ""),
        ("2>/dev/full", "inspect", 2, ""),
        ("<&- >&- 2>&-", "inspect none", 10, ""),
    ],
)
def test_closed_and_full_streams_change_no_verdict(streams, arguments, code, shown):
    command = f"{sys.executable} -m pyc {arguments} {streams}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout == "", "an error is not printed among results"
    assert shown in done.stderr and "internal" not in done.stderr


def test_the_installed_command_is_this_one():
    script = Path(sys.executable).with_name("pyc")
    result = subprocess.run([script, "--version"], check=True, capture_output=True, text=True)
    assert result.stdout.startswith("pyc ")


NASTY_NAME = "a\nb\x1b[31m\u202e\u200f\x85\udcff"


@pytest.mark.parametrize("command", ["init", "plan", "build", "inspect", "verify", "run", "bench"])
def test_a_name_with_control_characters_stays_on_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, NASTY_NAME]) not in (0, 1, 2, cli.EXIT_INTERNAL)
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert said[:-1].isprintable(), said
    assert r"a\nb\x1b[31m\u202e\u200f\x85\udcff" in said


def test_a_wrong_word_with_control_characters_reaches_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["doctor", NASTY_NAME], [NASTY_NAME], ["cache", "prune", "--max-size", NASTY_NAME]):
        assert cli.main(arguments) == 2
        assert not {"\x1b", "\u202e", "\x85"} & set(capsys.readouterr().err)


@pytest.mark.parametrize("error", [OSError(5, "bad", NASTY_NAME), MemoryError(NASTY_NAME), errors.RunError(NASTY_NAME)])
def test_errors_are_one_printable_line(error: BaseException) -> None:
    assert cli.describe(error)[0].isprintable()


def test_too_many_open_files_says_what_to_raise() -> None:
    line, code = cli.describe(OSError(errno.EMFILE, "Too many open files", "codes"))
    assert (line, code) == ("pyc: error: codes: Too many open files; raise the limit (ulimit -n)", 74)
    assert cli.describe(OSError(errno.EMFILE, "no; raise the limit (ulimit -n)"))[0].count("ulimit") == 1


def test_an_interrupted_import_is_an_interruption(monkeypatch, capsys) -> None:
    def stopped(arguments: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    monkeypatch.setattr(cli, "_run", stopped)
    assert cli.main(["doctor"]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "pyc: interrupted\n"


def test_a_message_of_megabytes_keeps_its_ends():
    message, code = cli.describe(errors.IngestError(f"w.safetensors: type {'A' * 5_000_000} is unknown; convert it"))
    assert code == errors.IngestError.exit_code
    assert message.startswith("pyc: error: w.safetensors: type AAA")
    assert message.endswith("AAA is unknown; convert it")
    assert len(message) < 2100


@pytest.mark.parametrize(
    "environment",
    [
        {"COMP_WORDS": "pyc buidl mo", "COMP_CWORD": "2"},
        {"COMP_CWORD": "1"},
        {"COMP_WORDS": "pyc b", "COMP_CWORD": "x"},
        {"COMP_WORDS": "pyc b"},
    ],
    ids=["mistyped command", "no words", "no number", "no index"],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_that_has_no_answer_is_silent(shell, environment, monkeypatch, capfd) -> None:
    for name in ("COMP_WORDS", "COMP_CWORD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"_PYC_COMPLETE": f"{shell}_complete", **environment}.items():
        monkeypatch.setenv(name, value)
    assert main([]) in (0, 1)
    out, err = capfd.readouterr()
    assert (out if shell != "fish" else "", err) == ("", "")  # fish gives no index: its words are whole without it


@pytest.mark.parametrize(
    "words",
    ["build mo", "build model.yaml -o mo", "plan mo", "init mo", "attach mo", "attach a.pyca mo", "export mo",
     "report a.pyca mo", "run mo", "verify mo", "pull https://h/m -o mo", "bundle a.pyca -o mo"],
)  # fmt: skip
def test_completion_has_the_shell_look_for_files(words, monkeypatch, capfd) -> None:
    monkeypatch.setenv("_PYC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"pyc {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert main([]) == 0
    assert capfd.readouterr() == ("file,mo\n", "")


def test_bash_completes_commands_and_options_as_the_quickstart_says(tmp_path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text("utf-8")
    line = re.search(r'eval "\$\(_PYC_COMPLETE=bash_source pyc\)"', page)
    assert line is not None
    (tmp_path / "pyc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pyc "$@"\n')
    (tmp_path / "pyc").chmod(0o755)
    script = line[0] + (
        '; for words in "pyc bui" "pyc build --progr" "pyc buidl mo"; do COMPREPLY=(); COMP_WORDS=($words); '
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pyc_completion pyc; echo "[${COMPREPLY[*]}]"; done'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["[build]", "[--program-only]", "[]"], "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run m.pyca --backend vulkan", "Invalid value for '--backend': 'vulkan' is not one of"),
        ("build m.yaml --jobs slurm", "Invalid value for '--jobs': got 'slurm', expected \"ray\" or"),
    ],
)
def test_a_value_out_of_an_options_range_is_wrong_usage(words, said, capsys):
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_options_name_the_engines_that_there_are():
    from pyc.commands.opening import BACKENDS
    from pyc.runtime.executors.registry import EXECUTORS

    assert list(BACKENDS) == [name for name in EXECUTORS if name != "tvm"]  # what the CPU's was called
