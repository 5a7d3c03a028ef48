"""The GitHub action and the GitLab job: they parse, and name steps, inputs, commands and options that exist.

`.ci/check_users_ci` runs the steps.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from pyc.cli import cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "actions" / "pyc"
ACTION = FOLDER / "action.yml"
GITLAB = ROOT / "docs" / "ci" / "gitlab.yml"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
COMMAND = re.compile(r"^\s*(?:.*[({;]\s*)?(pyc [a-z].*)$", re.MULTILINE)
SET = re.compile(r"\bset -- (.*)$", re.MULTILINE)


def words(line: str) -> list[str]:
    return shlex.split(re.split(r"\s(?:[|]|>|\d>|&&|[|][|])|;", line)[0], comments=True)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `pyc` command line of the scripts and of docs/ci.md; "$@" stands for what `set --` gives before it."""
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        given = [word for match in SET.finditer(text) for word in words(match[1].partition("; fi")[0]) if word != "$@"]
        for match in COMMAND.finditer(text):
            found = words(match[1])
            yield path.name, [each for word in found for each in (given if word == "$@" else [word])]
    for match in re.finditer(r"^ +(?:- run: |\$ )?(pyc [a-z].*)$", (ROOT / "docs" / "ci.md").read_text("utf-8"), re.M):
        yield "ci.md", words(match[1])


def check(arguments: list[str]) -> None:
    """Fails for a command or an option that click does not know."""
    group: click.Command = cli
    context = click.Context(cli, info_name="pyc")
    rest = arguments[1:]
    while isinstance(group, click.Group) and rest and not rest[0].startswith("-"):
        found = group.get_command(context, rest[0])
        assert found is not None, arguments
        group, rest = found, rest[1:]
        context = click.Context(group, parent=context, info_name=rest[0] if rest else None)
    known = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known | {"--version", "--help"}, (word, arguments)


def test_every_command_and_option_exists():
    found = list(commands())
    names = {arguments[1] for _, arguments in found}
    assert {"plan", "build", "verify", "keygen", "trust", "eval", "attest", "bundle", "diff"} <= names
    for where, arguments in found:
        try:
            check(arguments)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
    with pytest.raises(AssertionError, match="--sings"):
        check(["pyc", "attest", "model.pyca", "--sings"])
    with pytest.raises(AssertionError, match="attst"):
        check(["pyc", "attst"])


def test_the_action():
    action = yaml.safe_load(ACTION.read_text("utf-8"))
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    named = re.findall(r"inputs\.([a-z-]+)", ACTION.read_text("utf-8"))
    assert set(named) == set(action["inputs"]), "each input is used, and each that is used is declared"
    assert all(each.get("description") and "default" in each for each in action["inputs"].values())
    ids = {step["id"]: step for step in steps if "id" in step}
    for output in action["outputs"].values():
        step, name = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"]).groups()
        script = re.search(r"/(\w+\.sh)", ids[step]["run"])[1]
        assert f"result {name} " in (FOLDER / script).read_text("utf-8"), output
    for step in steps:
        if "run" in step:
            assert step["shell"] == "sh", step
            assert "${{" not in step["run"], "an input is never part of a script"
    with_key = [step["name"] for step in steps if "PYC_SIGNING_KEY" in step.get("env", {})]
    assert with_key == ["Build", "Verify", "Attest"]


def test_both_run_every_step_and_set_what_it_reads():
    texts = {path: path.read_text("utf-8") for path in (ACTION, GITLAB)}
    scripts = {path.name for path in SCRIPTS} - {"settings.sh"}
    for path, text in texts.items():
        assert set(re.findall(r"/(\w+\.sh)\"", text)) == scripts, path
    read = {name for path in SCRIPTS for name in re.findall(r"\$\{?(PYC_CI_\w+)", path.read_text("utf-8"))}
    page = (ROOT / "docs" / "ci.md").read_text("utf-8")
    assert read <= set(re.findall(r"PYC_CI_\w+", page)), "docs/ci.md lists every setting"
    assert read - {"PYC_CI_NOTE_TOKEN"} == set(re.findall(r"PYC_CI_\w+", texts[ACTION]))


def test_the_gitlab_job():
    document = yaml.safe_load(GITLAB.read_text("utf-8"))
    job = document["pyc-model"]
    assert job["extends"] in document
    lines = [*document[".pyc"]["before_script"], *job["script"]]
    assert all(isinstance(line, str) for line in lines)
    for line in lines:
        subprocess.run(["sh", "-n", "-c", line], check=True)
    assert job["artifacts"]["reports"]["dotenv"] in job["artifacts"]["paths"][-1] + "/results.env"


class Machine:
    """A runner that a job has to itself: it runs the action's steps as GitHub does, but for `uses` and the install.

    `pyc` is a double that notes its arguments, and of its environment the home and whether a key is there; it says that
    no artifact is up to date, and builds one.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.workspace, self.temp, self.calls = folder / "workspace", folder / "temp", folder / "calls"
        for each in (self.workspace, self.temp, folder / "bin", folder / "user"):
            each.mkdir()
        pyc = folder / "bin" / "pyc"
        note = f'echo "$1 $2 ${{PYC_HOME:-none}} ${{PYC_SIGNING_KEY:+key}}" >>{self.calls}\n'
        pyc.write_text(f'#!/bin/sh\n{note}case "$*" in *--check*) exit 1;; build*) echo artifact >model.pyca;; esac\n')
        pyc.chmod(0o755)
        path = f"{pyc.parent}:/usr/bin:/bin"
        self.environment = {"PATH": path, "HOME": str(folder / "user"), "RUNNER_TEMP": str(self.temp), **environment}
        self.environment["GITHUB_ACTION_PATH"] = str(FOLDER)
        self.outputs: dict[tuple[str, str], str] = {}

    def run(self, **inputs: str) -> list[str]:
        """Run the action; return the names of the steps that ran."""
        action, ran = yaml.safe_load(ACTION.read_text("utf-8")), []
        given = {name: each["default"] for name, each in action["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        for step in action["runs"]["steps"]:
            if "uses" in step or "install.sh" in step["run"] or not self._holds(step.get("if", "'' == ''"), given):
                continue
            written = {name: self.temp / name for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
            for path in written.values():
                path.write_text("")
            own = {name: self._value(value[4:-3], given) for name, value in step.get("env", {}).items()}
            environment = {**self.environment, **own, **{name: str(path) for name, path in written.items()}}
            subprocess.run(["sh", "-e", "-c", step["run"]], cwd=self.workspace, env=environment, check=True)
            self.environment |= dict(line.split("=", 1) for line in written["GITHUB_ENV"].read_text().splitlines())
            for line in written["GITHUB_OUTPUT"].read_text().splitlines():
                name, _, value = line.partition("=")
                self.outputs[step["id"], name] = value
            ran.append(step["name"])
        return ran

    def _holds(self, condition: str, given: dict[str, str]) -> bool:
        alternatives = [[part.split() for part in each.split(" && ")] for each in condition.split(" || ")]
        return any(
            all((self._value(left, given) == right.strip("'")) == (sign == "==") for left, sign, right in each)
            for each in alternatives
        )

    def _value(self, expression: str, given: dict[str, str]) -> str:
        kind, *names = expression.strip().split(".")
        if kind == "inputs":
            return given[names[0]]
        return self.outputs.get((names[0], names[2]), "") if kind == "steps" else expression.strip("'")


def test_keys_of_the_action_are_the_jobs_own(tmp_path):
    """Who is trusted is known to later steps of the job, and to no later job; the signing key is in no file."""
    machine = Machine(tmp_path)
    ran = machine.run(signing_key="SECRET", public_key="ci.pub", eval_text="t.txt", last_release="last.pyca")
    compared = "Compare with the last release"
    assert ran[1:] == ["Check", "Plan", "Build", "Verify", "Evaluate", compared, "Attest", "Bundle"]
    home = Path(machine.environment["PYC_HOME"])
    calls = [line.split(" ") for line in machine.calls.read_text().splitlines()]
    assert {home_of for _, _, home_of, _ in calls} == {str(home)}, "of every step, and of those behind the action"
    assert home.is_relative_to(machine.temp), "the runner clears it behind the job"
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    cached = next(step for step in steps if "uses" in step)["with"]["path"]
    assert not home.is_relative_to(cached.replace("${{ runner.temp }}", str(machine.temp)))
    assert {(name, what) for name, what, _, key in calls if key} == {
        ("build", "model.yaml"),
        ("verify", "model.pyca"),
        ("trust", "add"),
        ("inspect", "model.pyca"),
        ("attest", "model.pyca"),
    }
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"SECRET" in path.read_bytes() for path in files)
    assert not list((tmp_path / "user").iterdir())


def test_a_home_that_a_job_has_is_taken(tmp_path):
    machine = Machine(tmp_path, PYC_HOME="/its/own")
    machine.run(signing_key="SECRET")
    assert machine.environment["PYC_HOME"] == "/its/own"


def test_what_nobody_is_said_to_have_signed_is_not_evaluated(tmp_path):
    """As in a pull request of a fork, which has no secrets: an evaluation would run the artifact's code."""
    asked = {"only_check": "false", "signing_key": "SECRET", "eval_text": "t.txt"}
    assert "Evaluate" in Machine(tmp_path).run(**asked)
    other = tmp_path / "fork"
    other.mkdir()
    machine = Machine(other)
    (other / "bin" / "pyc").write_text("#!/bin/sh\n")
    assert machine.run(only_check="true", eval_text="t.txt")[1:] == ["Check", "Plan"]


def test_keys_of_the_gitlab_job_are_its_own(tmp_path):
    document = yaml.safe_load(GITLAB.read_text("utf-8"))
    line = next(each for each in document[".pyc"]["before_script"] if "PYC_HOME" in each)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "CI_PROJECT_DIR": "/project"}
    command = ["sh", "-c", f'{line}; printf %s "$PYC_HOME"']
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert Path(made).parent == tmp_path and Path(made).stat().st_mode & 0o077 == 0
    given = subprocess.run(command, env={**environment, "PYC_HOME": "/its"}, check=True, capture_output=True, text=True)
    assert given.stdout == "/its"


@pytest.fixture
def job(tmp_path):
    """`job(script, code=0, **variables)`: the exit code of a step beside a `pyc` and a `curl` that note their
    arguments, and standard input of the latter, in tmp_path/calls; `pyc` exits with `code`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, more in (("pyc", "echo changed; exit $CODE"), ("curl", f"cat >>{tmp_path}/calls")):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n{more}\n')
        (programs / name).chmod(0o755)

    def run(script, code=0, **variables):
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "CODE": str(code), **variables}
        return subprocess.run(["sh", FOLDER / script], cwd=tmp_path, env=environment, capture_output=True).returncode

    return run


def test_a_note_of_a_merge_request(job, tmp_path):
    of_gitlab = {"CI_MERGE_REQUEST_IID": "7", "CI_API_V4_URL": "https://gitlab.example/api/v4", "CI_PROJECT_ID": "3"}
    assert job("diff.sh", PYC_CI_LAST_RELEASE="last.pyca", PYC_CI_NOTE_TOKEN="secret", **of_gitlab) == 0
    compared, noted, header = (tmp_path / "calls").read_text().splitlines()
    assert compared == "pyc diff last.pyca model.pyca --markdown"
    assert "https://gitlab.example/api/v4/projects/3/merge_requests/7/notes" in noted
    assert "body@pyc-ci/diff.md" in noted and "secret" not in noted and header == "PRIVATE-TOKEN: secret"
    assert (tmp_path / "pyc-ci" / "diff.md").read_text() == "changed\n"
    (tmp_path / "calls").unlink()
    assert job("diff.sh", PYC_CI_LAST_RELEASE="last.pyca", **of_gitlab) == 0
    assert "curl" not in (tmp_path / "calls").read_text()
    assert job("diff.sh", code=10, PYC_CI_LAST_RELEASE="last.pyca") == 10


def test_a_build_without_a_key_is_refused(job, tmp_path):
    """In shells and in GitLab a secret that a job has not is no variable at all, and pyc would make a key."""
    homes = {"PYC_HOME": str(tmp_path / "home")}, {"HOME": str(tmp_path)}, {}
    for home in homes:
        assert job("build.sh", **home) == 8
    assert not (tmp_path / "calls").exists()
    for name in ("PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE", "PYC_SIGNER"):
        assert job("build.sh", **{name: "a key"}) == 0
        assert job("build.sh", code=8, **{name: ""}) == 8, "pyc says so itself"
    (tmp_path / "home" / "keys").mkdir(parents=True)
    (tmp_path / "home" / "keys" / "release.pem").touch()
    assert job("build.sh", **homes[0]) == 0
    assert len((tmp_path / "calls").read_text().splitlines()) == 7


def test_what_a_check_says(job, tmp_path):
    results = tmp_path / "pyc-ci" / "results.env"
    for code, only, expected, said in (
        (0, "false", 0, "up_to_date=true\n"),
        (1, "false", 0, "up_to_date=false\n"),
        (1, "true", 1, "up_to_date=false\n"),
        (3, "false", 3, ""),
    ):
        assert job("check.sh", code=code, PYC_CI_ONLY_CHECK=only) == expected
        assert results.read_text() == said, "of this run alone"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path):
    subprocess.run(["sh", "-n", path], check=True)


def test_the_example_of_the_page_is_a_workflow():
    page = (ROOT / "docs" / "ci.md").read_text("utf-8")
    inputs = yaml.safe_load(ACTION.read_text("utf-8"))["inputs"]
    used = []
    for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for job in yaml.safe_load(block).get("jobs", {}).values():
            used += [step for step in job["steps"] if "/.github/actions/pyc" in step.get("uses", "")]
    assert used and all(set(step["with"]) <= set(inputs) for step in used)
