"""models/rope.py against transformers' ROPE_INIT_FUNCTIONS.

transformers computes in float32, where a power, a division and a product are each rounded: 8 ulp (1e-6)
covers them; the ramp of yarn and the smoothing of llama3 subtract nearly equal numbers and get 4e-6.
"""

import numpy as np
import pytest

from pyc.models.config import HuggingFaceConfig
from pyc.models.rope import RopeConfig, angle_attributes, attention_scale, inverse_frequencies
from pyc.models.rope_config import rope_of
from pyc.runtime.errors import IngestError

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "llama3-narrow": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.5, "factor": 32.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-betas": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 48,
        "beta_slow": 2,
    },
    "yarn-no-truncate": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 1.2,
    },
    "yarn-mscale-alone": {
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 64,
        "mscale": 2.0,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.3,
    },
    "yarn-factor-1": {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 8192},
}


def reference(parameters, head_dim, context, seq_len=None):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=context, rope_parameters={"rope_theta": 1e6, **parameters}
    )
    if parameters["rope_type"] == "default":
        values, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        values, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=seq_len)
    return values.numpy().astype(np.float64), scale


def parse(parameters, head_dim=64, context=131072, **fields):
    raw = HuggingFaceConfig(rope_parameters=parameters, **fields)
    return rope_of(raw, head_dim, context, "model")


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128, 10, 6])
@pytest.mark.parametrize("case", CASES)
def test_frequencies_and_scale_equal_those_of_transformers(case, head_dim):
    parameters = {"rope_theta": 1e6, **CASES[case]}
    rope = parse(dict(parameters), head_dim)
    expected, scale = reference(parameters, head_dim, 131072)
    got = np.array(inverse_frequencies(rope))
    assert got.shape == (head_dim // 2,)
    assert np.abs(got / expected - 1).max() < (4e-6 if case.startswith(("yarn", "llama3")) else 1e-6)
    assert attention_scale(rope) == pytest.approx(scale, rel=1e-12)
    assert [float(np.float32(value)) for value in got] == list(got)


@pytest.mark.parametrize("position", [16, 17, 40, 1000])
def test_the_attributes_of_dynamic_ntk_reproduce_its_growing_base(position):
    rope = parse({"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0}, 64, 16)
    at = angle_attributes(rope)
    d = 2 * len(inverse_frequencies(rope))
    growth = at["factor"] * (position + 1) / at["original_context"] - (at["factor"] - 1)
    base = at["base"] * growth ** (d / (d - 2))
    expected, _ = reference({"rope_type": "dynamic", "factor": 4.0}, 64, 16, seq_len=position + 1)
    assert at["dynamic"] == 1
    assert (
        np.abs(base ** (-np.arange(0, d, 2) / d) / expected - 1).max() < 1e-5
    )  # a float32 base to the 62/64


def test_attributes_of_a_static_embedding():
    at = angle_attributes(
        parse({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096})
    )
    assert at["dynamic"] == 0
    assert at["scale"] == pytest.approx(0.1 * np.log(4) + 1)


@pytest.mark.parametrize(
    ("rope", "reach"),
    [
        (RopeConfig(64), 4096),
        (RopeConfig(64, "linear", factor=4.0), 16384),
        (RopeConfig(64, "dynamic", factor=2.0, original_context=4096), 8192),
        (RopeConfig(64, "yarn", factor=4.0, original_context=4096), 16384),
        (RopeConfig(64, "yarn", factor=4.0, original_context=512), 4096),
        (RopeConfig(64, "llama3", factor=8.0, original_context=512), 4096),
    ],
)
def test_reach(rope, reach):
    assert rope.reach(4096) == reach


def test_missing_yarn_factor_is_the_ratio_of_the_contexts():
    rope = parse({"rope_type": "yarn", "original_max_position_embeddings": 32768})
    assert rope.factor == 4.0


def test_the_field_beside_the_table_has_priority_as_in_transformers():
    table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parse(table, original_max_position_embeddings=32).original_context == 32


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "longrope"}, "rope type 'longrope' is not supported (known: default, linear, dynamic"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5, expected 1 to 1e+06 for rope type 'linear'"),
        (
            {"rope_type": "linear", "factor": 2, "beta_fast": 4},
            "'beta_fast' is not a parameter of rope type 'linear'",
        ),
        (
            {"rope_type": "default", "mrope_section": [8]},
            "'mrope_section' is not a parameter of rope type 'default'",
        ),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor is 1, expected above low"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.5}, "beta_fast is 0.5, expected at least beta_slow 1"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_type": "linear", "type": "dynamic", "factor": 2.0},
            "type 'dynamic' and rope_type 'linear' differ",
        ),
        ({"rope_type": "default", "rope_theta": 1.0}, "rope_theta is 1, expected above 1"),
        ({"rope_type": "default", "rope_theta": "big"}, "Expected `float | null`, got `str`"),
        ({"full_attention": {"rope_type": "default"}, "other": {}}, "has a table for full_attention; transform"),
        ({"sliding_attention": {"rope_type": "default"}}, "has a table for sliding_attention; transformers reads none"),
        ({"full_attention": None}, "has a table for full_attention; transformers reads none by layer type"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64},
            "dynamic scaling with original_max_position_embeddings 64",
        ),
        ([1], "rope_parameters is list, expected an object"),
    ],
)
def test_what_is_refused(parameters, message):
    with pytest.raises(IngestError) as caught:
        parse(parameters)
    assert message in str(caught.value)


def test_an_odd_head_is_refused():
    with pytest.raises(IngestError, match="head_dim 7 is odd"):
        parse({"rope_type": "default"}, head_dim=7)


def test_two_forms_that_differ_are_refused():
    differ = "both rope_scaling and rope_parameters, and they mean different things"
    scaled = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(IngestError, match=differ):
        parse(scaled, rope_scaling={"type": "linear", "factor": 3.0})
    with pytest.raises(IngestError, match=differ):  # transformers takes rope_scaling, and 10000
        parse({**scaled, "rope_theta": 500000.0}, rope_scaling=scaled)


@pytest.mark.parametrize(("given", "expected"), [({}, True), ({"truncate": None}, False), ({"truncate": False}, False)])
def test_truncate_is_read_as_transformers_reads_it(given, expected):
    """Which asks `get("truncate", True)`: null is false."""
    table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert parse({**table, **given}).truncate is expected


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_two_forms_that_say_the_same_are_one(kind):
    """As publishers write them for transformers 4 and 5 together."""
    table = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    new = {"rope_type": "llama3", **table, "rope_theta": 500000.0}
    assert parse(new, rope_scaling={kind: "llama3", **table}, rope_theta=500000.0) == parse(new)
