"""pyc init: a recipe that builds, comments that are right, and nothing overwritten."""

import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyc.cli import main
from pyc.commands.init import recipe_for, yaml_text
from pyc.compiler.recipe.api import load_recipe
from pyc.compiler.recipe.yaml import MapNode, Scalar, parse_yaml
from pyc.passes.driver.default_recipe import propose
from pyc.passes.driver.lower_recipe import lower_recipe

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "bert")


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_it_writes_can_be_planned(model_type, tiny_checkpoint, tmp_path, capsys):
    output = tmp_path / "model.yaml"
    assert main(["init", str(tiny_checkpoint(model_type)), "-o", str(output)]) == 0
    module = lower_recipe(load_recipe(output)).common
    assert module.info.architecture == model_type
    assert f"next: pyc build {output}" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["model.yaml"]


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_its_comments_are_a_recipe_too(model_type, tiny_checkpoint, tmp_path):
    """Every commented key, uncommented, gives a recipe with that key."""
    output = tmp_path / "model.yaml"
    assert main(["init", str(tiny_checkpoint(model_type)), "-o", str(output)]) == 0
    commented = re.compile(r"^( *)# ( *(?:- )?[a-z_]+:.*)$", re.MULTILINE)
    text = output.read_text()
    output.write_text(commented.sub(r"\1\2", text))
    recipe = load_recipe(output)
    assert recipe.adapters[0].path == "./adapter"
    assert recipe.quantize.overrides[0].match.startswith("re:.*")
    assert recipe.artifact.path == "model.pyca"
    assert ("kv_cache" in text) is (model_type != "bert")
    names = lower_recipe(load_recipe(output, ["adapters=[]"])).common.weights
    assert any(recipe.quantize.overrides[0].matches(name) for name in names)


def test_the_proposal_is_what_the_headers_say(tiny_checkpoint, tmp_path):
    output = tmp_path / "model.yaml"
    checkpoint = tiny_checkpoint("llama", max_position_embeddings=9000)
    assert main(["init", str(checkpoint), "-o", str(output)]) == 0
    recipe = load_recipe(output)
    assert recipe.quantize.scheme == "int8"  # small
    assert recipe.shapes.context == 4096
    text = output.read_text()
    assert "the model serves 9000" in text
    assert "A full sequence's keys and values take" in text
    # hidden_size is 48: groups of 32 do not divide it
    assert re.search(r"int4-g32 +- +does not divide", text)


def test_scheme(tiny_checkpoint, tmp_path):
    output = tmp_path / "model.yaml"
    arguments = [
        "init",
        str(tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)),
        "-o",
        str(output),
    ]
    assert main([*arguments, "--scheme", "int4-g32"]) == 0
    assert load_recipe(output).quantize.scheme == "int4-g32"


@pytest.mark.parametrize(
    ("preset", "scheme", "algorithm"),
    [("quality", "int8", "rtn"), ("balanced", "lut4-g32", "gptq"), ("small", "lut3-g32", "gptq")],
)
def test_preset(preset, scheme, algorithm, tiny_checkpoint, tmp_path):
    output, checkpoint = tmp_path / "model.yaml", tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)
    assert main(["init", str(checkpoint), "-o", str(output), "--preset", preset]) == 0
    quantize = load_recipe(output).quantize
    assert (quantize.scheme, quantize.algorithm) == (scheme, algorithm)


@pytest.mark.parametrize(
    ("architecture", "options", "code", "words"),
    [
        ("llama", ["--preset", "small"], 3, "do not divide a matrix"),  # 48 features
        ("bert", ["--preset", "small"], 3, "is for decoders"),
        ("llama", ["--preset", "tiny"], 2, "balanced"),
        ("llama", ["--preset", "small", "--scheme", "int8"], 2, "expected one of them"),
    ],
)
def test_a_preset_that_cannot_be(architecture, options, code, words, tiny_checkpoint, tmp_path, capsys):
    output = tmp_path / "model.yaml"
    assert main(["init", str(tiny_checkpoint(architecture)), "-o", str(output), *options]) == code
    assert words in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("scheme", "code", "words"),
    [("int4_g32", 3, "did you mean 'int4-g32'?"), ("int4-g32", 6, "not divisible")],
)
def test_a_scheme_that_cannot_be(scheme, code, words, tiny_checkpoint, tmp_path, capsys):
    output = tmp_path / "model.yaml"
    assert main(["init", str(tiny_checkpoint("llama")), "-o", str(output), "--scheme", scheme]) == code
    assert words in capsys.readouterr().err
    assert not output.exists()


def test_it_overwrites_only_when_told(tiny_checkpoint, tmp_path, capsys):
    output = tmp_path / "model.yaml"
    output.write_text("mine")
    arguments = ["init", str(tiny_checkpoint("llama")), "-o", str(output)]
    assert main(arguments) == 3
    assert "is there already" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main([*arguments, "--force"]) == 0
    assert load_recipe(output).quantize.scheme == "int8"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: "nowhere/at/all", "nowhere/at/all: no such directory"),
        (lambda folder: str(folder), "no config.json"),
    ],
)
def test_what_is_not_a_checkpoint(make, words, tmp_path, capsys):
    output = tmp_path / "out" / "model.yaml"
    output.parent.mkdir()
    assert main(["init", make(tmp_path), "-o", str(output)]) == 4
    assert words in capsys.readouterr().err
    assert os.listdir(output.parent) == []


def test_an_output_folder_that_is_not_there(tiny_checkpoint, tmp_path, capsys):
    assert main(["init", str(tiny_checkpoint("llama")), "-o", str(tmp_path / "no" / "model.yaml")]) == 3
    assert "does not exist" in capsys.readouterr().err


def test_a_relative_checkpoint_is_named_from_the_recipe(tiny_copy, tmp_path, monkeypatch):
    checkpoint = tiny_copy("llama")
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["init", checkpoint.name, "-o", "recipes/a.yaml"]) == 0
    assert main(["init", checkpoint.name, "-o", "b.yaml"]) == 0
    monkeypatch.chdir("/")
    first, second = load_recipe(tmp_path / "recipes/a.yaml"), load_recipe(tmp_path / "b.yaml")
    assert (first.model, second.model) == (f"../{checkpoint.name}", f"./{checkpoint.name}")
    assert first.locate(first.model).resolve() == second.locate(second.model).resolve() == checkpoint


@pytest.mark.parametrize(
    "name", ["no", "a b", "x: y", "#hash", "quote'\"s", "*star", "été", "-dash", "{a}", "12"]
)
def test_odd_names(name, tiny_copy, tmp_path, monkeypatch):
    checkpoint = tiny_copy("llama").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["init", f"./{name}"]) == 0
    recipe = load_recipe(Path("model.yaml"))
    assert recipe.locate(recipe.model).resolve() == checkpoint


def test_what_no_recipe_can_name(tiny_copy, tmp_path, monkeypatch, capsys):
    checkpoint = tiny_copy("llama")
    monkeypatch.chdir(tmp_path)
    for name in ("a\nmodel: b", "\x1b[31m", "raw\udcff"):
        checkpoint = checkpoint.rename(tmp_path / name)
        assert main(["init", name]) == 3
        err = capsys.readouterr().err
        assert "cannot name a path with control characters" in err
        assert err.count("\n") == 1 and "\x1b" not in err
        assert not Path("model.yaml").exists()


def test_in_a_folder_with_a_line_break(tiny_copy, tmp_path, monkeypatch):
    """The recipe says where the checkpoint is from itself, so the name of a folder above does not matter."""
    (tmp_path / "a\nb").mkdir()
    checkpoint = tiny_copy("llama").rename(tmp_path / "a\nb" / "checkpoint")
    monkeypatch.chdir(tmp_path / "a\nb")
    assert main(["init", "checkpoint"]) == 0
    recipe = load_recipe(Path("model.yaml"))
    assert recipe.locate(recipe.model).resolve() == checkpoint
    assert lower_recipe(recipe).common.info.architecture == "llama"


SHOWABLE = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/")


@pytest.mark.slow
def test_any_folder_is_named_so_that_it_is_found(tiny_copy, tmp_path, monkeypatch):
    """Every printable name, and those with characters that reorder or hide text, reads back as the same path."""
    checkpoint = tiny_copy("llama")
    monkeypatch.chdir(tmp_path)
    proposal = propose(str(checkpoint), Path())
    place = tmp_path / "place"

    @settings(max_examples=30)
    @given(st.text(SHOWABLE, min_size=1, max_size=40).filter(lambda name: name not in (".", "..")))
    @example("-dash")
    @example("~")
    @example("#")
    @example(" ")
    @example("\u202egnp.exe")
    @example("a: b\\\"'")
    @example("\U000e0001\ufeff")
    def check(name):
        (tmp_path / name).symlink_to(checkpoint)
        try:
            text = recipe_for(proposal, f"./{name}", Path("model.yaml"), [])
            place.write_text(text)
            assert Path(load_recipe(place).model) == Path(name)
        finally:
            (tmp_path / name).unlink()

    check()


def test_adapters(tiny_copy, tiny_adapter, tmp_path, monkeypatch, capsys):
    checkpoint = tiny_copy("llama")
    tiny_adapter(checkpoint, target_modules=["q_proj"]).rename(tmp_path / "my lora")
    tiny_adapter(checkpoint, "ia3", target_modules=["k_proj"], feedforward_modules=[]).rename(tmp_path / "ia3")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "checkpoint", "--adapter", "my lora", "--adapter", "ia3"]) == 0
    recipe = load_recipe(Path("model.yaml"))
    assert [adapter.path for adapter in recipe.adapters] == ["./my lora", "./ia3"]
    assert [record.name for record in lower_recipe(recipe).passes()][:2] == ["fuse_lora", "fuse_ia3"]


def test_an_adapter_that_does_not_fit(tiny_copy, tiny_checkpoint, tiny_adapter, tmp_path, monkeypatch, capsys):
    tiny_copy("llama")
    other = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)
    tiny_adapter(other, target_modules=["q_proj"]).rename(tmp_path / "lora")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "checkpoint", "--adapter", "lora"]) == 5
    assert main(["init", "checkpoint", "--adapter", "nowhere/at/all"]) == 5
    assert not Path("model.yaml").exists()


def test_why_the_scheme_is_what_it_is(tiny_checkpoint, tmp_path):
    output = tmp_path / "model.yaml"
    for model_type, arguments, words in (
        ("llama", [], "half the bytes of 16 bits, for next to nothing; int4 loses too much below 100"),
        ("bert", [], "# Why int8: half the bytes of 16 bits"),
        ("llama", ["--scheme", "none"], "# Why none: as --scheme asks."),
    ):
        checkpoint = str(tiny_checkpoint(model_type))
        assert main(["init", checkpoint, "-o", str(output), "--force", *arguments]) == 0
        assert words in output.read_text()


def test_the_first_line_names_the_schema_for_editors(tiny_checkpoint, tmp_path):
    output = tmp_path / "model.yaml"
    assert main(["init", str(tiny_checkpoint("llama")), "-o", str(output)]) == 0
    first = output.read_text().splitlines()[0]
    start = "# yaml-language-server: $schema="
    assert first.startswith(f"{start}file:///")
    schema = json.loads(Path(unquote(urlsplit(first.removeprefix(start)).path)).read_text())
    assert schema["title"] == "pyc recipe (model.yaml)"


def test_a_target_that_is_no_file(tiny_copy, tmp_path, monkeypatch, capsys):
    tiny_copy("llama")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    for output in ("pipe", "/dev/null", "checkpoint", "", "new/", "x" * 256):
        assert main(["init", "checkpoint", "-o", output, "--force"]) == 3
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["init", "checkpoint", "-o", "checkpoint/config.json"]) == 3
    assert main(["init", "checkpoint", "-o", "checkpoint/config.json", "--force"]) == 3
    assert "which is read here" in capsys.readouterr().err


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1))
def test_any_text_reads_back(text):
    node = parse_yaml(f"key: {yaml_text(text)}\n", "test")
    assert isinstance(node, MapNode)
    scalar = node.get("key")
    assert isinstance(scalar, Scalar)
    assert scalar.value == text


OWN_TEMPLATES = {
    "none": ((None,), None),
    "the checkpoint's": (("",), None),
    "one": (("{{ messages }}",), "adapter-0"),
    "one of two": (("", "{{ messages }}"), "adapter-1"),
    "two that agree": (("{{ messages }}", "{{ messages }}"), "adapter-0"),
    "two that do not": (("{{ messages }}", "{{ messages | length }}"), None),
}


@pytest.mark.parametrize("case", OWN_TEMPLATES)
def test_another_tokenizer_of_an_adapter_is_named(case, tiny_checkpoint, tiny_adapter, tmp_path, caplog):
    """With its chat template. Where adapters do not agree, who builds has to choose, and is told so."""
    templates, wanted = OWN_TEMPLATES[case]
    checkpoint, output, arguments = tiny_checkpoint("llama"), tmp_path / "model.yaml", []
    for index, template in enumerate(templates):
        lora = tiny_adapter(checkpoint, target_modules=["q_proj"], seed=index)
        adapter = shutil.copytree(lora, tmp_path / f"adapter-{index}")
        if template is not None:
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(checkpoint / name, adapter)
        if template:
            (adapter / "chat_template.jinja").write_text(template)
        arguments += ["--adapter", str(adapter)]
    assert main(["init", str(checkpoint), *arguments, "-o", str(output)]) == 0
    named = load_recipe(output).tokenizer
    assert (named and Path(named).name) == wanted
    warned = [record for record in caplog.records if "write `tokenizer: " in record.getMessage()]
    assert len(warned) == (2 if case == "two that do not" else 0)
