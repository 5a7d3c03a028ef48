"""Files that are not a recipe: each is refused at its line and column, in words, within half a second."""

import re
import time
from pathlib import Path

import pytest
import yaml

from pyc.compiler.recipe import yaml as recipe_yaml
from pyc.compiler.recipe.api import load_recipe
from pyc.compiler.recipe.yaml import MAX_BYTES, Mark, parse_yaml, resolve_plain
from pyc.runtime.errors import RecipeError

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"

# name: (text, line, column, words of the message)
BAD: dict[str, tuple[str | bytes, int, int, str]] = {
    "empty file": ("", 1, 1, "empty"),
    "only comments": ("# nothing\n# here\n", 1, 1, "empty"),
    "top level list": ("- model: x\n", 1, 1, "got a list, expected a mapping"),
    "top level text": ("model\n", 1, 1, "expected a mapping"),
    "null document": ("---\n~\n", 2, 1, "got nothing (null)"),
    "missing model": ("quantize: {scheme: int8}\n", 1, 1, "the key model is missing"),
    # YAML that is more than data
    "billion laughs": (LAUGHS, 1, 4, "anchor &a is not accepted"),
    "alias": ("model: x\nadapters: *a\n", 2, 11, "alias *a is not accepted"),
    "anchor on scalar": ("model: &m x\n", 1, 8, "anchor &m"),
    "anchor on key": ("&m model: x\n", 1, 1, "anchors and tags are not accepted"),
    "alias as key": ("model: x\n*m : y\n", 2, 1, "alias *m"),
    "merge key": ("model: x\nshapes:\n  <<: {context: 5}\n", 3, 3, "merge key <<"),
    "python object tag": ("model: !!python/object:os.system x\n", 1, 8, "tag 'tag:yaml.org"),
    "python apply tag": ("model: x\nadapters: !!python/object/apply:os.system [ls]\n", 2, 11, "tag"),
    "core tag": ("model: x\nshapes: {context: !!int '5'}\n", 2, 19, "tag 'tag:yaml.org,2002:int'"),
    "local tag": ("model: !env HOME\n", 1, 8, "tag '!env'"),
    "set tag": ("!!set {model}\n", 1, 1, "tag"),
    "binary tag": ("model: !!binary aGk=\n", 1, 8, "tag"),
    "tag on key": ("!!str model: x\n", 1, 1, "anchors and tags"),
    "yaml directive": ("%YAML 1.1\n---\nmodel: x\n", 1, 1, "directives"),
    "tag directive": ("%TAG ! tag:example.com,2000:\n---\nmodel: x\n", 1, 1, "directives"),
    "two documents": ("model: x\n---\nmodel: y\n", 2, 1, "second document"),
    "complex key": ("? [a, b]\n: c\n", 1, 3, "a key must be a word"),
    "empty key": ('model: x\n"": z\n', 2, 1, "empty key"),
    # keys
    "unknown key": ("model: x\nquantise: {}\n", 2, 1, "did you mean 'quantize'?"),
    "unknown nested key": ("model: x\nquantize:\n  schem: int8\n", 3, 3, "did you mean 'scheme'?"),
    "key of another mapping": ("model: x\nscheme: int8\n", 2, 1, "did you mean 'quantize.scheme'?"),
    "key of another list": ("model: x\nbackend: cpu\n", 2, 1, "did you mean 'targets[].backend'?"),
    "key of two others": (
        "model: x\nquantize: {context: 9}\n", 2, 12, "did you mean 'shapes.context' or 'quality.context'?",
    ),
    "key that stands deeper": ("model: x\nquantize: {text: t}\n", 2, 12, "did you mean 'quantize.calibration.text'?"),
    "unknown key in list": ("model: x\nadapters:\n - path: a\n   wieght: 1\n", 4, 4, "mean 'weight'?"),
    "unknown key flow": ("model: x\nshapes: {token: [1]}\n", 2, 10, "did you mean 'tokens'?"),
    "number as key": ("model: x\n3: z\n", 2, 1, "unknown key '3'"),
    "duplicate key": ("model: x\nquantize: {}\nmodel: y\n", 3, 1, "'model' (first given at line 1)"),
    "duplicate nested": ("model: x\nshapes:\n context: 1\n context: 2\n", 4, 2, "duplicate key"),
    "duplicate in list": ("model: x\nadapters:\n - {path: a, path: b}\n", 3, 14, "duplicate key 'path'"),
    "duplicate quoted": ('model: x\n"model": y\n', 2, 1, "duplicate key 'model'"),
    # types
    "text for integer": ('model: x\nshapes: {context: "5"}\n', 2, 19, "expected a whole number"),
    "decimal for integer": ("model: x\nshapes: {context: 5.0}\n", 2, 19, "the number 5.0"),
    "bool for integer": ("model: x\nshapes: {context: true}\n", 2, 19, "got true"),
    "integer for text": ("model: 17\n", 1, 8, 'quote it ("17")'),
    "bool for text": ("model: true\n", 1, 8, "got true, expected text"),
    "null for text": ("model:\n", 1, 7, "got nothing (null), expected text"),
    "list for text": ("model: [x]\n", 1, 8, "got a list, expected text"),
    "empty text": ('model: ""\n', 1, 8, "text of 1 to 4096 characters"),
    "scalar for list": ("model: x\nshapes: {tokens: 16}\n", 2, 18, "expected a list; write [16]"),
    "text for adapters": ("model: x\nadapters: chat-lora\n", 2, 11, "a list; write [{path: chat-lora}]"),
    "text for overrides": (
        'model: x\nquantize: {overrides: "re:.*[ab]"}\n', 2, 23, 'a list; write [{match: "re:.*[ab]", scheme: ...}]'
    ),
    "text for isa": ("model: x\ntargets: [{isa: x86-64}]\n", 2, 17, "a list; write [x86-64]"),
    "null for list": ("model: x\nadapters:\nshapes: {}\n", 2, 10, "write [] or leave the key out"),
    "mapping for list": ("model: x\nadapters: {path: a}\n", 2, 11, "got a mapping, expected a list"),
    "list for mapping": ("model: x\nquantize: [int8]\n", 2, 11, "got a list, expected a mapping"),
    "text in a list": ("model: x\nadapters:\n  - ./a\n", 3, 5, "with keys path, weight; write {path: ./a}"),
    "adapter without path": ("model: x\nadapters:\n  - weight: 1\n", 3, 5, "the key path is missing"),
    # values
    "unknown scheme": ("model: x\nquantize: {scheme: int4_g32}\n", 2, 20, "did you mean 'int4-g32'?"),
    "llama.cpp's scheme": ("model: x\nquantize: {scheme: Q4_K_M}\n", 2, 20, "of llama.cpp's, take 'lut4-g32'"),
    "bitsandbytes' scheme": ("model: x\nquantize: {scheme: NF4}\n", 2, 20, "of other tools', take 'lut4-g32'"),
    "ModelOpt's scheme": ("model: x\nquantize: {scheme: fp8_e4m3}\n", 2, 20, "take 'fp8'"),
    "optimum's scheme": ("model: x\nquantize: {scheme: int4_sym}\n", 2, 20, "take 'int4-g32'"),
    "lower case alias": ("model: x\nquantize: {scheme: w4a16}\n", 2, 20, "did you mean 'W4A16'?"),
    "unknown backend": ("model: x\ntargets:\n  - backend: metal\n", 3, 14, "expected one of cpu, onnx"),
    "unknown device": ("model: x\ntargets: [{device: tpu}]\n", 2, 20, "expected one of cpu, cuda"),
    "device of another backend": ("model: x\ntargets: [{device: cuda}]\n", 2, 20, "'cuda' for backend cpu, expected"),
    "unknown algorithm": ("model: x\nquantize: {algorithm: aqw}\n", 2, 23, "did you mean"),
    "two texts": ("model: x\nquantize: {calibration: {generate: 512, text: a}}\n", 2, 36, "there is a text already"),
    "importance for nothing": ("model: x\nquantize: {calibration: {imatrix: a}}\n", 2, 35, "no matrix is rounded by"),
    "a gpu": ("model: x\ntargets: [{backend: gpu}]\n", 2, 21, "did you mean 'cuda'?"),
    "wrong isa": ("model: x\ntargets: [{isa: [avx512]}]\n", 2, 18, "did you mean 'avx512-vnni'?"),
    "isa of another arch": ("model: x\ntargets: [{arch: aarch64, isa: [x86-64]}]\n", 2, 33, "for aarch"),
    "same isa twice": ("model: x\ntargets: [{isa: [x86-64]}, {isa: [x86-64]}]\n", 2, 35, "listed twice"),
    "no targets": ("model: x\ntargets: []\n", 2, 10, "got 0 entries, expected 1 to 16"),
    "zero tokens": ("model: x\nshapes: {tokens: [0]}\n", 2, 19, "from 1 to 65536"),
    "negative context": ("model: x\nshapes:\n  context: -1\n", 3, 12, "the number -1"),
    "huge context": ("model: x\nshapes:\n  context: 99999999999999999999\n", 3, 12, "out of range"),
    "bucket twice": ("model: x\nshapes: {tokens: [1, 16, 1]}\n", 2, 26, "listed twice"),
    "batch over tokens": ("model: x\nshapes: {tokens: [4], batch: [8]}\n", 2, 30, "lower batch"),
    "adapter twice": ("model: x\nadapters: [{path: a}, {path: a}]\n", 2, 30, "names already"),
    "bad regex": ('model: x\nquantize: {overrides: [{match: "re:(", scheme: f16}]}\n', 2, 32, "regular"),
    "algorithm without codes": (
        "model: x\nquantize:\n  overrides: [{match: a, scheme: bf16, algorithm: gptq}]\n", 3, 51, "no codes to choose"
    ),
    "unknown algorithm of an override": (
        "model: x\nquantize:\n  overrides: [{match: a, scheme: int8, algorithm: gptqq}]\n", 3, 51, "expected one of"
    ),
    "two ways of scaling": (
        "model: x\nquantize:\n  algorithm: awq\n  overrides: [{match: a, scheme: int8, algorithm: smoothquant}]\n",
        4, 51, "one way: awq or smoothquant",
    ),
    "empty regex": ('model: x\nquantize: {overrides: [{match: "re:", scheme: f16}]}\n', 2, 32, "empty"),
    "alias against activations": (
        "model: x\nquantize:\n  scheme: W4A16\n  activations: int8\n", 4, 16, "scheme W4A16 means f32",
    ),
    "alias of f32 against bf16": (
        "model: x\nquantize:\n  scheme: W8A16\n  activations: bf16\n", 4, 16, "scheme W8A16 means f32",
    ),
    "alias in an override": (
        "model: x\nquantize:\n  overrides: [{match: a, scheme: W8A16}]\n", 3, 34, "write int8",
    ),
    "key with a path": ("model: x\nartifact: {key: ../id}\n", 2, 17, "expected text that matches"),
    # numbers that YAML versions read differently
    "norway": ("model: no\n", 1, 8, "write false, or quote it"),
    "yes": ("model: x\nartifact: {path: Yes}\n", 2, 18, "write true, or quote it"),
    "underscores": ("model: x\nshapes: {context: 4_096}\n", 2, 19, "without underscores"),
    "yaml 1.2 octal": ("model: x\nshapes: {context: 0o17}\n", 2, 19, "without leading zeros"),
    "yaml 1.1 octal": ("model: x\nshapes: {context: 017}\n", 2, 19, "without leading zeros"),
    "hexadecimal": ("model: x\nshapes: {context: 0x10}\n", 2, 19, "write a decimal number"),
    "sexagesimal": ("model: x\nshapes:\n  context: 1:30\n", 3, 12, "write one decimal number"),
    "not a number": ("model: x\nadapters:\n  - path: a\n    weight: .nan\n", 4, 13, "only finite numbers"),
    "infinity": ("model: x\nadapters:\n  - path: a\n    weight: -.inf\n", 4, 13, "only finite numbers"),
    "overflowing decimal": ("model: x\nadapters: [{path: a, weight: 1e999}]\n", 2, 30, "out of range"),
    "weight too large": ("model: x\nadapters: [{path: a, weight: 101}]\n", 2, 30, "from -100 to 100"),
    # characters
    "tab indent": ("model: x\nquantize:\n\tscheme: int8\n", 3, 1, "indent with spaces, not tabs"),
    "byte order mark": (b"\xef\xbb\xbfmodel: x\n", 1, 1, "byte order mark"),
    "utf-16": ("model: x\n".encode("utf-16"), 1, 1, "byte order mark"),
    "not utf-8": (b"model: x\n# caf\xe9\n", 2, 6, "not UTF-8 (byte 0xe9)"),
    "cut utf-8": ("model: x\n# café".encode()[:-1], 2, 6, "not UTF-8"),
    "nul": (b"model: x\nshapes: {\0}\n", 2, 10, "character U+0000"),
    "escape character": ("model: x\n# \x1b[31m\n", 2, 3, "character U+001B"),
    "line separator": ("model: x\n# a\u2028b\n", 2, 4, "character U+2028"),
    "reversed text": ("model: x\n# \u202eabc\n", 2, 3, "character U+202E"),
    "lone carriage return": ("model: x\rquantize: {}\n", 1, 9, "character U+000D"),
    "escaped nul": ('model: "a\\0b"\n', 1, 8, "without control characters"),
    # syntax
    "unclosed bracket": ("model: x\nshapes: {tokens: [1, 2}\n", 2, 23, "not valid YAML"),
    "unclosed quote": ('model: "x\n', 2, 1, "not valid YAML"),
    "two colons": ("model: a: b\n", 1, 9, "mapping values are not allowed"),
    "bad indent": ("model: x\n  quantize: {}\n", 2, 11, "not valid YAML"),
    "bad escape": ('model: "\\q"\n', 1, 9, "not valid YAML"),
    # size
    "too large": ("#" * MAX_BYTES + "\n", 1, 1, "larger than 1048576 bytes"),
    "deep flow": ("model: " + "[" * 100_000, 1, 39, "nested deeper than 32 levels"),
    "deep block": ("".join(f"{' ' * depth}a:\n" for depth in range(400)), 33, 33, "nested deeper"),
    "many values": ("model: x\nadapters: [" + "1," * 20_000 + "]\n", 2, 20_006, "more than 10000 values"),
    "long key": ("x" * 1000 + ": z\n", 1, 1, "unknown key 'xxx"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refused_with_place(name: str, tmp_path: Path) -> None:
    text, line, column, words = BAD[name]
    path = tmp_path / "model.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    started_s = time.process_time()  # of this process: other work on the machine does not count
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    elapsed_s = time.process_time() - started_s
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}:{column}: "), message
    assert words in message
    assert len(message) < 1000
    assert elapsed_s < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BAD if name not in ("too large", "unclosed quote", "bad escape")])
def test_the_python_parser_agrees_on_the_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libyaml is missing PyYAML parses in Python: the same lines (columns may differ)."""
    monkeypatch.setattr(recipe_yaml, "_LOADER", yaml.SafeLoader)
    text, line, _, _ = BAD[name]
    path = tmp_path / "model.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(f"{path}:{line}:")


def test_a_list_of_bad_files_long_enough() -> None:
    assert len(BAD) >= 60


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("adapters", ["chat-lora", "../a b", '"a, b"', '"5"', "5", '"no"', '"~"', "org/name@1", "'a: {b} #c'", "ü"]),
        ("targets", ["cpu", "cuda", "onnx", "aarch64"]),
    ],
)
def test_what_is_said_to_write_in_place_of_a_list_is_taken(key: str, texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    for text in texts:
        for given, form in ((text, r"\[(.*)\]"), (f"[{text}]" if text[0] != "'" else f"\n  - {text}", "(.*)")):
            path.write_text(f"model: x\n{key}: {given}\n", "utf-8")
            with pytest.raises(RecipeError) as caught:
                load_recipe(path)
            entry = re.search(f"; write {form}$", str(caught.value))
            assert entry is not None, caught.value
            path.write_text(f"model: x\n{key}: [{entry[1]}]\n", "utf-8")
            recipe = load_recipe(path)
            meant = text.strip("\"'")
            target = recipe.targets[0]
            assert meant in ([recipe.adapters[0].path] if key == "adapters" else [target.backend, target.arch])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("False", False),
        ("0", 0), ("-7", -7), ("+5", 5), ("4096", 4096),
        ("0.5", 0.5), ("1e-3", 1e-3), ("-.5", -0.5), ("1.", 1.0),
        ("./path", "./path"), ("2024-01-01", "2024-01-01"), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("1.2.3", "1.2.3"), ("none", "none"), ("nan", "nan"), ("e5", "e5"), ("v1_0", "v1_0"),
        ("y", "y"), ("N", "N"),
    ],
)  # fmt: skip
def test_plain_scalars(text: str, value: object) -> None:
    resolved = resolve_plain(text, Mark("test"))
    assert resolved == value
    assert type(resolved) is type(value)


@pytest.mark.parametrize("text", ["no", "Off", "YES", "on", "017", "0x1F", "0b1", "0o7", "1_0", "1:30", "1:2:3.4"])
def test_ambiguous_scalars_are_text_when_quoted(text: str) -> None:
    with pytest.raises(RecipeError, match="read differently"):
        parse_yaml(text, "test")
    node = parse_yaml(f'"{text}"', "test")
    assert isinstance(node, recipe_yaml.Scalar)
    assert node.value == text


def test_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_bytes(b"---\r\nmodel: x\r\nquantize:\r\n  scheme: int8\r\n...\r\n")
    assert load_recipe(path).quantize.scheme == "int8"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "no such file"),
        (lambda path: __import__("os").mkfifo(path), "not a regular file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_what_is_not_a_file(make: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    assert callable(make)
    make(path)
    with pytest.raises(RecipeError, match=words):
        load_recipe(path)
