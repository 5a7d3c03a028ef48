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
