"""The data of the demo model, Python's standard library, and of the prose model, docstrings of packages: each split by
file, and a byte-level BPE tokenizer for it.

A file is held back when a hash of its name says so, so the split depends on neither the order of the
directory listing nor a seed, and the same file stays held back under another Python version.
"""

import ast
import hashlib
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # the trainer numbers special tokens first
VOCAB_SIZE = 4096
HELD_BACK_PERCENT = 3

# Tests and demos are another kind of text, the rest is generated tables or somebody else's code.
EXCLUDED_FOLDERS = frozenset(
    {
        *("test", "tests", "idlelib", "lib2to3", "turtledemo", "__phello__"),
        *("site-packages", "dist-packages", "ensurepip"),
        *("encodings", "pydoc_data", "lib-dynload", "__pycache__"),
    }
)
EXCLUDED_PREFIXES = ("_sysconfigdata", "stringprep")

PROSE_PACKAGES = (
    *("accelerate", "compressed_tensors", "huggingface_hub", "networkx", "numpy", "peft", "scipy"),
    *("sentence_transformers", "sklearn", "sympy", "torch"),
)
"""Packages under BSD or Apache licences whose docstrings are prose; those of transformers repeat one another."""
PROSE_LEAST_CHARACTERS = 200

# One alternative a line. Words (underscores included) and signs take one leading space; a sign also takes
# the line end after it (`):\n`); runs of spaces stay whole, so any indentation is one token.
PRE_TOKENIZER_PATTERN = "|".join(
    (
        r" {2,}",
        r" ?[\p{L}\p{M}_]+",
        r" ?\p{N}{1,3}",
        r" ?[^\s\p{L}\p{M}\p{N}_]+\n*",
        r"\n+",
        r"\s",
    )
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source file: its path below the standard library, in POSIX form, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """The two parts of the data, each sorted by name."""

    training: tuple[SourceFile, ...]
    held_back: tuple[SourceFile, ...]


def is_held_back(name: str) -> bool:
    """Whether the file of this relative POSIX name is kept out of training."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "little") % 100 < HELD_BACK_PERCENT


def read_corpus(stdlib: Path | None = None) -> Corpus:
    """Read every standard library module that is kept, as UTF-8; a file in another encoding is left out."""
    root = stdlib or Path(sysconfig.get_paths()["stdlib"])
    training: list[SourceFile] = []
    held_back: list[SourceFile] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.intersection(relative.parts[:-1]) or relative.name.startswith(EXCLUDED_PREFIXES):
            continue
        try:
            text = path.read_text(encoding="utf-8").strip("\n") + "\n"
        except UnicodeDecodeError:
            continue
        if len(text) < 64:
            continue
        part = held_back if is_held_back(relative.as_posix()) else training
        part.append(SourceFile(relative.as_posix(), text))
    return Corpus(tuple(training), tuple(held_back))


def read_prose(packages: Path | None = None) -> Corpus:
    """Read the longer docstrings of installed `PROSE_PACKAGES`, each once, joined by file."""
    root = packages or Path(sysconfig.get_paths()["purelib"])
    training: list[SourceFile] = []
    held_back: list[SourceFile] = []
    seen: set[str] = set()
    for path in sorted(path for package in PROSE_PACKAGES for path in (root / package).rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.intersection(relative.parts[:-1]):
            continue
        found = [text for text in _docstrings(path) if text not in seen]
        seen.update(found)
        if found:
            part = held_back if is_held_back(relative.as_posix()) else training
            part.append(SourceFile(relative.as_posix(), "\n\n\n".join(found) + "\n"))
    return Corpus(tuple(training), tuple(held_back))


def _docstrings(path: Path) -> list[str]:
    """Return the docstrings of a module, its classes and functions that are long enough, in the order of `ast.walk`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            module = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(module) if isinstance(node, documented)]
    return [text for text in dict.fromkeys(texts) if len(text) >= PROSE_LEAST_CHARACTERS]


def train_tokenizer(files: tuple[SourceFile, ...], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the byte-level BPE tokenizer; END_OF_TEXT_ID is 0, ids 1 to 256 are the single bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=32,
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.text for file in files), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, files: tuple[SourceFile, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the token ids of all files in one row, int64 `[tokens]`, each file closed by END_OF_TEXT_ID."""
    encodings = tokenizer.encode_batch([file.text for file in files])
    rows = [np.asarray([*encoding.ids, END_OF_TEXT_ID], dtype=np.int64) for encoding in encodings]
    return np.concatenate(rows)


def held_back_sample(files: tuple[SourceFile, ...], limit_bytes: int = 90_000) -> str:
    """Return the held-back modules of 1 to 30 kB, joined by blank lines, `limit_bytes` of UTF-8 at most."""
    chosen: list[str] = []
    size_bytes = 0
    for file in files:
        file_bytes = len(file.text.encode())
        if 1_000 <= file_bytes <= 30_000 and size_bytes + file_bytes + 1 <= limit_bytes:
            chosen.append(file.text)
            size_bytes += file_bytes + 1
    return "\n".join(chosen)
