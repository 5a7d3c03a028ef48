"""Every number of config.json and generation_config.json against values that nobody means.

A typed error that names the key, or a module; never another error, in a moment, and in little memory.
"""

import json
import resource
import time
from pathlib import Path

import msgspec
import pytest

from pyc.compiler.files import source_files
from pyc.models.catalog import load_model
from pyc.models.config import HuggingFaceConfig
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import IngestError
from pyc.runtime.generation.sampling_defaults import resolve_sampling

NASTY = (
    *(0, -1, 1, 2, 0.5, -0.0, 2**31 - 1, 2**31, 10**9, 2**53, 2**60, 2**63, 2**64, 10**30, 10**400),
    *(1e-320, 1e-30, 1e20, 1e39, 1e300, 1e308, -1e308),
    *(None, "x", "", [], {}, True, False, [1], [[[]]], {"a": 1}, "1e5"),
)
CONFIG_KEYS = tuple(
    field.name
    for field in msgspec.inspect.type_info(HuggingFaceConfig).fields
    if any(kind in repr(field.type) for kind in ("IntType", "FloatType", "AnyType"))
)
ROPES = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0, "attention_factor": 1.1, "beta_fast": 32, "beta_slow": 1, "truncate": False},
    "yarn-mscale": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0},
}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample", "num_beams")
TOKENS = ("eos_token_id", "bos_token_id", "pad_token_id")


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """`sweep(file, table, key, where)`: the file with every nasty value under the key; the values that are taken."""

    monkeypatch.setattr(source_files, "_TICK_S", 0.0)
    messages = []

    def run(folder, file, table, key, within=()):
        taken = []
        for value in NASTY:
            changed = json.loads(json.dumps(table))
            inner = changed
            for name in within:
                inner = inner[name]
            inner[key] = value
            (folder / file).write_text(json.dumps(changed))
            began = time.process_time()
            try:
                module = load_model(ModelSource(str(folder), tmp_path))
            except IngestError as error:
                messages.append(str(error))
            else:
                taken.append(value)
                resolve_sampling(module.generation, {})
            assert time.process_time() - began < 1, (key, value)
        return taken

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield run
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # in KiB; loading torch counts
    assert max(map(len, messages)) < 600


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "qwen3", "bert"])
def test_numbers_of_config(model, tiny_copy, sweep):
    folder = tiny_copy(model)
    table = json.loads((folder / "config.json").read_text())
    taken = {key: sweep(folder, "config.json", table, key) for key in CONFIG_KEYS}
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"):
        assert set(map(repr, taken[key])) <= {repr(table[key])}, key
    epsilons = taken["layer_norm_eps" if model == "bert" else "rms_norm_eps"]
    assert all(value is None or 0 <= value <= 1 for value in epsilons)


@pytest.mark.slow
@pytest.mark.parametrize("rope", ROPES)
def test_numbers_of_the_rotary_embedding(rope, tiny_copy, sweep):
    folder = tiny_copy("llama")
    table = json.loads((folder / "config.json").read_text())
    keys = (*ROPES[rope], "rope_theta", "original_max_position_embeddings", "partial_rotary_factor")
    table.pop("rope_parameters")
    table["rope_scaling"] = {"rope_type": rope.split("-")[0], **ROPES[rope]}
    if rope != "linear":
        table["rope_scaling"]["original_max_position_embeddings"] = 64
    for key in keys:
        taken = sweep(folder, "config.json", table, key, ("rope_scaling",))
        numbers = [value for value in taken if isinstance(value, float | int)]
        assert all(0 <= value <= (1e15 if key == "rope_theta" else 2**31 - 1) for value in numbers), (key, numbers)


@pytest.mark.slow
def test_numbers_of_generation_config(tiny_copy, sweep):
    """What is taken is what the runtime samples with: nothing is built that then refuses to run."""
    folder = tiny_copy("llama")
    for key in (*SAMPLING, *TOKENS):
        sweep(folder, "generation_config.json", {"do_sample": True}, key)


REFUSED = {
    "rope_theta": ({"rope_theta": 1.0}, "rope_theta is 1, expected above 1, at most 1e+15"),
    "yarn factor": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 1e308}},
        "rope_parameters: factor is 1e+308, expected 1 to 1e+06 for rope type 'yarn'",
    ),
    "beta": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5}},
        "beta_fast is 0.5, expected at least beta_slow 1",
    ),
    "epsilon": ({"rms_norm_eps": 1e308}, "rms_norm_eps is 1e+308, expected a number from 0 to 1"),
    "head_dim": ({"head_dim": 2**30}, "<= 8192 - at `$.head_dim`"),
    "hidden_size": ({"hidden_size": 2**21}, "<= 1048576 - at `$.hidden_size`"),
    "heads": (
        {"num_attention_heads": 2**20, "head_dim": 16},
        "num_attention_heads 1048576 of head_dim 16 are 16777216 features, expected at most 1048576",
    ),
    "heads without head_dim": (
        {"hidden_size": 2**20, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": None},
        "give heads of 1048576 features, expected at most 8192",
    ),
    "window": ({"sliding_window": 2**31}, "<= 2147483647 - at `$.sliding_window`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_message_names_key_value_and_range(case, tiny_copy):
    folder = tiny_copy("llama")
    fields, message = REFUSED[case]
    table = json.loads((folder / "config.json").read_text())
    table.pop("rope_parameters")
    (folder / "config.json").write_text(json.dumps({**table, **fields}))
    with pytest.raises(IngestError) as caught:
        load_model(ModelSource(str(folder), Path()))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"top_p": 5}, "top_p: got 5.0, expected above 0, at most 1"),
        ({"top_p": 0}, "top_p: got 0.0, expected above 0, at most 1"),
        ({"min_p": 1.5}, "min_p: got 1.5, expected 0 to 1 "),
        ({"temperature": 1e6}, "temperature: got 1000000.0, expected 0 to 100 "),
        ({"repetition_penalty": 0}, "repetition_penalty: got 0.0, expected 0.01 to 100 "),
        ({"top_k": 2**40}, "top_k: got 1099511627776, expected 0 to 2147483648"),
    ],
)
def test_sampling_that_the_runtime_refuses(field, message, tiny_copy):
    folder = tiny_copy("llama")
    (folder / "generation_config.json").write_text(json.dumps(field))
    with pytest.raises(IngestError, match="generation_config.json: " + message):
        load_model(ModelSource(str(folder), Path()))
