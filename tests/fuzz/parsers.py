"""What reads bytes of others, each as a function of bytes that ends with a value or with an error of its own.

Anything else that it raises, more than a few seconds and more than a gigabyte are a fault. `PARSERS` is the table; the
folder of the same name in corpus/ has inputs to begin with, those that fuzzing found, and those that were a fault.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import cast
from unittest.mock import patch

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.name_patterns import PatternError, name_pattern
from pyc.compiler.recipe.api import load_recipe, recipe_from, recipe_text
from pyc.models import bert
from pyc.models.adapters import read_adapter
from pyc.models.catalog import find_architecture
from pyc.models.config import HuggingFaceConfig
from pyc.models.decoder_config import read_decoder_config
from pyc.models.safetensors_header import read_header
from pyc.models.strict_json import decode
from pyc.models.tokenizer_files import TokenizerConfig
from pyc.runtime.artifact.format import Prelude, SignatureRecord, file_size, required_bits
from pyc.runtime.artifact.header_text import decode_header, encode_header
from pyc.runtime.artifact.trust.keys import SigningKey, parse_public_key, parse_signing_key
from pyc.runtime.artifact.trust.policy import parse_policy
from pyc.runtime.artifact.trust.signature_file import read_signatures
from pyc.runtime.artifact.trust.updates import _DOMAIN, _signature_line, parse_update
from pyc.runtime.artifact.validate import check_header
from pyc.runtime.errors import PycError
from pyc.runtime.sources.address import parse_address, redirected
from pyc.runtime.sources.registry_session import parse_reference
from pyc.runtime.text.regex_shape import RegexError, check_regex
from pyc.runtime.text.tokenizer import Tokenizer
from pyc.runtime.text.tokenizer_rules import TokenizerRuleError, check_tokenizer_json

FOUND = "found.txt"
FOLDER = "PYC_FUZZ_FOLDER"
EXPECTED = (PycError, TokenizerRuleError, RegexError, PatternError)


class Memory:
    """A file that lies in memory, as `SourceFiles` gives one out."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size_bytes(self, path: str) -> int:
        return len(self._data)

    def read_into(self, path: str, target: memoryview, offset: int) -> int:
        part = self._data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


@cache
def _folder() -> Path:
    """A folder of this process for those that read files."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    made = tempfile.TemporaryDirectory(prefix="pyc-fuzz-")
    weakref.finalize(_folder, made.cleanup)
    return Path(made.name)


def header(data: bytes) -> None:
    """An artifact's header, whose digest is right, of this version and of another."""
    for minor in (0, 2, 1):
        with contextlib.suppress(*EXPECTED if minor != 1 else ()):
            prelude = Prelude(0, len(data), hashlib.sha256(data).digest(), minor=minor)
            found = decode_header(data, prelude)
            prelude = Prelude(required_bits(found), len(data), prelude.header_sha256, minor=minor)
            check_header(found, prelude, file_size(found, len(data)))
            text = encode_header(found)
            assert decode_header(text, Prelude(0, len(text), hashlib.sha256(text).digest())) == found


def safetensors(data: bytes) -> None:
    """A file of weights: its header, and sizes that have to be those of the file."""
    found = read_header(cast(SourceFiles, Memory(data)), Path("model.safetensors"), "model.safetensors")
    assert sum(source.size_bytes for source in found.tensors.values()) == found.tensor_bytes <= len(data)


def recipe(data: bytes) -> None:
    """A model.yaml; what is recorded of it is a recipe that says the same."""
    path = _folder() / "model.yaml"
    path.write_bytes(data)
    found = load_recipe(path)
    text = recipe_text(found)
    assert recipe_text(recipe_from(json.loads(text), folder=path.parent)) == text


def adapter(data: bytes) -> None:
    """adapter_config.json, a zero byte, and the header of the weights, behind which come as many bytes as it says."""
    config, _, weights = data.partition(b"\0")
    folder = _folder() / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config)
    with open(folder / "adapter_model.safetensors", "wb") as file:
        file.write(len(weights).to_bytes(8, "little") + weights)
        file.truncate(8 + len(weights) + _end_of(weights))
    with patch("pyc.compiler.files.source_files._outwait"):  # nobody else writes here
        read_adapter(str(folder), _folder())


def _end_of(text: bytes) -> int:
    """Where the last tensor of a header ends, as far as one can tell."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
        table = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"]
        return min(max([0, *(end for end in ends if type(end) is int)]), 1 << 16)
    return 0


def tokenizer(data: bytes) -> None:
    """tokenizer.json: the rules that it has to keep before foreign code sees it."""
    check_tokenizer_json(data)


def tokenizer_config(data: bytes) -> None:
    """tokenizer_config.json, as a build and as a run read it."""
    with contextlib.suppress(PycError):
        decode(data, TokenizerConfig, "tokenizer_config.json")
    Tokenizer(b"{}", data)


def config(data: bytes) -> None:
    """config.json of a checkpoint, as far as the model that it means."""
    raw = decode(data, HuggingFaceConfig, "config.json")
    traits = find_architecture(raw, "here").decoder
    if traits is None:
        bert.read_config(raw, "here")
    else:
        read_decoder_config(raw, traits, "here")


def patterns(data: bytes) -> None:
    """A tokenizer's and an adapter's patterns."""
    text = data.decode("utf-8", "surrogatepass" if data.isascii() else "replace")
    with contextlib.suppress(RegexError):
        check_regex(text)
    name_pattern(text).matches("model.layers.3.self_attn.q_proj")


def policy(data: bytes) -> None:
    """A policy of trust."""
    parse_policy(data.decode("utf-8", "replace"), "policy.toml")


def signatures(data: bytes) -> None:
    """A file of signatures, and lines of public keys."""
    with contextlib.suppress(PycError):
        parse_public_key(data.decode("utf-8", "replace"))
    path = _folder() / "model.pyca.sig"
    path.write_bytes(data)
    read_signatures(path.with_name("model.pyca"))


def announcement(data: bytes) -> None:
    """An announcement, signed rightly by some key."""
    key = _key()
    body = data.decode("utf-8", "replace").rstrip("\n").encode() + b"\n"
    line = _signature_line(SignatureRecord(key.public.raw, key.sign_message(_DOMAIN + body)))
    parse_update(body.decode() + line + "\n", "here")


@cache
def _key() -> SigningKey:
    from pyc.runtime.artifact.trust.keys import new_key_text

    return parse_signing_key(new_key_text(), "here")


def address(data: bytes) -> None:
    """A URL, and where it redirects to; none of a password is shown."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(PycError):
        parse_reference(text)
    found = parse_address("http://user:se%cret@host/" + text)
    assert "se%cret" not in str(found)
    redirected(found, text)
    parse_address(text)


PARSERS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        header,
        safetensors,
        recipe,
        adapter,
        tokenizer,
        tokenizer_config,
        config,
        patterns,
        policy,
        signatures,
        announcement,
        address,
    )
}


def check(parser: str, data: bytes) -> bool:
    """Give one input to a parser; whether it was right. Raises what is a fault."""
    said = ""
    try:
        PARSERS[parser](data)
    except EXPECTED as error:
        said = str(error)
    assert len(said) < 5000, "an error of more than 5,000 characters"
    return not said


def corpus(parser: str) -> Iterator[bytes]:
    """The inputs that are kept: files, and in base64, a line each, what fuzzing found and what reaches new lines."""
    for path in sorted((Path(__file__).parent / "corpus" / parser).iterdir()):
        if path.name == FOUND:
            yield from (base64.b64decode(line) for line in path.read_text().split())
        else:
            yield path.read_bytes()

