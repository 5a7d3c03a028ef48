"""What the base install can do, tried in an environment that holds the base dependencies and nothing else.

The environment is made of links into the one the tests run in, so no network is needed; `.ci/run` makes a
real one.
"""

import os
import pty
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ABSENT = ("torch", "transformers", "peft", "safetensors", "ml_dtypes", "tvm", "tvm_ffi")
NOT_RUNTIME = ("pyc.compiler", "pyc.passes", "pyc.models", "pyc.backends")
ROOT = Path(__file__).parents[2]
HEAVY = ("tokenizers", "jinja2", "nacl", "lz4", "backports.zstd", "pyc.compiler")
COMPILING = ("build",)
RUNNING = (
    "init", "plan", "inspect", "verify", "run", "embed", "bench", "schema", "keygen", "trust", "cache", "doctor"
)


def base_distributions() -> set[str]:
    """Names of the distributions that `pip install pyc-compiler` brings, dependencies of dependencies too."""
    found: set[str] = set()
    waiting = ["pyc-compiler"]
    while waiting:
        name = waiting.pop()
        for text in distribution(name).requires or []:
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name.lower() not in found:
                found.add(requirement.name.lower())
                waiting.append(requirement.name)
    return found


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path: the wheel, unpacked, beside links to the base dependencies."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in base_distributions():
        for entry in distribution(name).files or []:
            top = entry.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(distribution(name).locate_file(top))
    return folder


def python(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code with nothing but the standard library and `site` on the path."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(site)!r})\n{code}"]
    environment = {**os.environ, "HOME": str(site), "PYC_HOME": str(site)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site, env=environment)


def test_the_environment_holds_nothing_of_the_extras(site):
    probe = f"import importlib.util; print(*[n for n in {ABSENT} if importlib.util.find_spec(n)])"
    assert python(site, probe).stdout.strip() == ""


def test_every_module_of_the_runtime_imports(site):
    probe = (
        "import importlib, pkgutil, pyc.runtime as r\n"
        "for m in pkgutil.walk_packages(r.__path__, 'pyc.runtime.'): importlib.import_module(m.name)\n"
        f"print(*[n for n in {NOT_RUNTIME} if n in sys.modules])"
    )
    result = python(site, probe)
    assert (result.stdout.strip(), result.stderr) == ("", "")


def test_a_checkout_runs_its_own_rooms(site):
    """In the root `import pyc` finds ./pyc, whose rooms lie beside it, before the installed package."""
    probe = (
        "import sys, pyc; pyc.load; import pyc.cli\n"
        "print(*{module.__file__ for name, module in sys.modules.items() if name.startswith('pyc.')})"
    )
    command = [sys.executable, "-S", "-c", probe]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    files = result.stdout.split()
    assert str(ROOT / "runtime" / "model.py") in files
    assert all(Path(file).is_relative_to(ROOT) for file in files)


def test_importing_the_runtime_imports_nothing_heavy(site):
    probe = f"import pyc.runtime; print(*[n for n in {HEAVY} if n in sys.modules])"
    result = python(site, probe)
    assert (result.stdout.strip(), result.stderr) == ("", "")


@pytest.mark.parametrize("name", RUNNING)
def test_commands_that_need_no_compiler_work(site, name):
    result = python(site, f"from pyc.cli import main; sys.exit(main([{name!r}, '--help']))")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: pyc {name}")


def test_a_plan_needs_no_code_generator(site, tmp_path):
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {ROOT}/models/demo/checkpoint\n")
    result = python(site, f"from pyc.cli import main; sys.exit(main(['plan', {str(recipe)!r}]))")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tmp_path}/model.pyca: qwen3 decoder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", str(ROOT / "models" / "demo" / "model.yaml")], b"layers.*.mlp.down_proj"),
        (["inspect", str(ROOT / "tests" / "golden" / "v1.0.pyca"), "--all"], b"runs here"),
    ],
    ids=["plan", "inspect"],
)
def test_what_shows_tables_shows_them_on_a_terminal(site, arguments, words):
    """There is no rich in a base install."""
    ours, theirs = pty.openpty()
    code = f"import sys; sys.path.append({str(site)!r}); from pyc.cli import main; sys.exit(main({arguments!r}))"
    command = [sys.executable, "-I", "-S", "-c", code]
    environment = {"HOME": str(site), "PYC_HOME": str(site), "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    assert words in text and b"\x1b" not in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("name", COMPILING)
def test_commands_of_the_compiler_name_the_extra(site, name, tmp_path):
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {ROOT}/models/demo/checkpoint\n")
    result = python(site, f"from pyc.cli import main; sys.exit(main([{name!r}, {str(recipe)!r}]))")
    assert result.returncode == 69
    assert "pip install -c constraints.txt '.[compiler]'" in result.stderr


def test_the_machine_and_the_cache_are_shown(site, tmp_path):
    result = python(site, "from pyc.cli import main; sys.exit(main(['doctor']))")
    assert "warn  compilers" in result.stdout
    assert "pip install -c constraints.txt '.[compiler]'" in result.stdout
    assert (result.returncode, result.stderr) == (0, "")
    result = python(site, "from pyc.cli import main; sys.exit(main(['cache', '--json']))")
    assert (result.returncode, result.stderr) == (0, "")


def test_missing_compilers_are_missed_before_the_checkpoint_is_read(site, tmp_path):
    recipe = tmp_path / "model.yaml"
    recipe.write_text("model: nowhere\n")
    code = f"""
import types, sys
sys.path.append({str(Path(__import__('yaml').__file__).parents[1])!r})
import yaml
sys.path.pop()
from pyc.cli import main
sys.exit(main(['build', {str(recipe)!r}]))"""
    result = python(site, code)
    assert result.returncode == 69, result.stderr
    assert "apache-tvm, which is not installed" in result.stderr
    assert "pip install -c constraints.txt '.[compiler]'" in result.stderr


def test_python_is_told_of_missing_compilers_by_an_error_of_pyc(site, tmp_path):
    recipe = {"model": f"{ROOT}/models/demo/checkpoint"}
    code = f"""
import pyc
for progress in (None, True):
    try:
        pyc.build({recipe!r}, output={str(tmp_path / "a.pyca")!r}, progress=progress)
    except pyc.MissingExtraError as error:
        assert isinstance(error, pyc.PycError)
        print(error)"""
    result = python(site, code)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all("which is not installed" in line for line in lines), lines
    assert all("pip install -c constraints.txt '.[compiler]'" in line for line in lines)
    assert not (tmp_path / "a.pyca").exists()
