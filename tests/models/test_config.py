"""models/config.py and decoder_config.py: the old form and that of transformers 5 say the same."""

import json

import msgspec
import pytest

from pyc.models import bert, bitnet, llama, mistral, qwen2, qwen3
from pyc.models.config import HuggingFaceConfig
from pyc.models.decoder_config import read_decoder_config
from pyc.models.strict_json import decode
from pyc.runtime.errors import IngestError

TRAITS = {module.TRAITS.architecture: module.TRAITS for module in (llama, mistral, qwen2, qwen3, bitnet)}
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
# What transformers 4 wrote, and the fields with which transformers 5 is asked for the same model.
FORMS = {
    "llama": (
        {"hidden_act": "silu", "rope_theta": 500000.0, "rope_scaling": None, "torch_dtype": "bfloat16"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "dtype": "bfloat16"},
    ),
    "llama-3.1": (
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {
            "rope_parameters": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
                "rope_theta": 500000.0,
            },
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "mistral": (
        {"sliding_window": 32, "rope_theta": 10000.0, "head_dim": 24},
        {"sliding_window": 32, "head_dim": 24},
    ),
    "mistral-full": (
        {"sliding_window": None, "rope_theta": 1e6},
        {"sliding_window": None, "rope_theta": 1e6},
    ),
    "qwen2": (
        {
            "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 2,
        },
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 2,
        },
    ),
    "qwen2-off": (
        {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 0},
        {"sliding_window": 32},
    ),
    "bitnet": (
        {"hidden_act": "relu2", "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
        {"hidden_act": "relu2", "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    ),
    "qwen3": (
        {"head_dim": 32, "rope_theta": 1e6, "rope_scaling": None, "attention_bias": False},
        {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
}


def parse(table, kind):
    raw = decode(json.dumps(table).encode(), HuggingFaceConfig, "config.json")
    return read_decoder_config(raw, TRAITS[kind], "model")


def saved_by_transformers(kind, fields, path):
    import transformers

    transformers.AutoConfig.for_model(kind, **SIZES, **fields).save_pretrained(path)
    table = json.loads((path / "config.json").read_text())
    assert "rope_parameters" in table
    assert "rope_theta" not in table
    return table


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_the_same_configuration(form, tmp_path):
    kind = form.split("-")[0]
    old, new = FORMS[form]
    expected = parse({"model_type": kind, **SIZES, **old}, kind)
    assert parse(saved_by_transformers(kind, new, tmp_path), kind) == expected


@pytest.mark.parametrize("kind", TRAITS)
def test_absent_fields_have_the_defaults_of_transformers(kind):
    import transformers

    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    heads = 20 if kind == "bitnet" else 32
    table = {"model_type": kind, **{name: SIZES[name] for name in needed}, "num_attention_heads": heads}
    table["hidden_size"] = 4 * heads
    theirs = transformers.AutoConfig.for_model(**table)
    ours = parse(table, kind)
    assert ours.kv_heads == theirs.num_key_value_heads
    assert (
        ours.head_dim == getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    )
    assert ours.context == theirs.max_position_embeddings
    assert ours.epsilon == theirs.rms_norm_eps
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.rope.base == theirs.rope_parameters["rope_theta"]
    assert ours.windows[0] == (4096 if kind == "mistral" else 0)


def test_windows_by_layer():
    qwen = {**SIZES, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3}
    assert parse(qwen, "qwen2").windows == (0, 0, 0, 32)
    types = ["sliding_attention", "full_attention", "sliding_attention", "attention"]
    assert parse({**qwen, "layer_types": types}, "qwen3").windows == (32, 0, 32, 0)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("with_types", [True, False])
def test_rotary_parameters_by_layer_type_are_refused(kind, with_types):
    """transformers takes its default base for llama and mistral, and fails for qwen."""
    table = {
        **SIZES,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    }
    if with_types and kind in ("qwen2", "qwen3"):
        table |= {"use_sliding_window": True, "sliding_window": 32}
        table |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
    with pytest.raises(IngestError, match=r"rope_parameters has a table for full_attention; transformers"):
        parse(table, kind)


def test_explicit_null_heads_mean_as_many_as_query_heads():
    for kind in TRAITS:
        assert parse({**SIZES, "num_key_value_heads": None}, kind).kv_heads == 4


def test_remote_code_is_not_even_a_field():
    assert "auto_map" not in HuggingFaceConfig.__struct_fields__
    table = {**SIZES, "auto_map": {"AutoModel": "evil.Model"}}
    assert parse(table, "llama") == parse(SIZES, "llama")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama", {"vocab_size": None}, "config.json has no vocab_size"),
        ("llama", {"hidden_size": 65}, "hidden_size 65 is not a multiple of 4 attention heads"),
        ("llama", {"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act 'xielu' is not supported"),
        ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps is -1, expected a number from 0 to 1"),
        ("llama", {"sliding_window": 16}, "llama has no sliding window"),
        ("llama", {"partial_rotary_factor": 0.5}, "sets partial_rotary_factor"),
        ("llama", {"is_causal": False}, "sets is_causal"),
        ("llama", {"hidden_size": "64"}, "Expected `int | null`, got `str` - at `$.hidden_size`"),
        ("llama", {"hidden_size": 0}, "Expected `int` >= 1 - at `$.hidden_size`"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        (
            "mistral",
            {"layer_types": ["full_attention"] * 4},
            "layer_types has another kind than sliding_attention",
        ),
        ("qwen2", {"use_mrope": True}, "sets use_mrope"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "but use_sliding_window is not true"),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 4 layers"),
        (
            "qwen3",
            {"layer_types": ["linear_attention"] * 4},
            "layer type 'linear_attention' is not supported",
        ),
    ],
)
def test_what_is_refused(kind, fields, message):
    with pytest.raises(IngestError) as caught:
        parse({**SIZES, **fields}, kind)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_decoder_that_says_so_is_one(kind):
    """transformers reads the field for models that may be either, such as BERT."""
    assert parse({**SIZES, "is_decoder": True}, kind) == parse(SIZES, kind)


def test_bert(tmp_path):
    import transformers

    fields = {**SIZES, "layer_norm_eps": 1e-7, "hidden_act": "gelu"}
    transformers.BertConfig(**fields).save_pretrained(tmp_path)
    saved = decode((tmp_path / "config.json").read_bytes(), HuggingFaceConfig, "config.json")
    old = msgspec.convert({**fields, "position_embedding_type": "absolute"}, HuggingFaceConfig)
    expected = bert.read_config(old, "model")
    assert bert.read_config(saved, "model") == expected
    assert (expected.epsilon, expected.positions, expected.token_types) == (1e-7, 256, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "'relative_key' is not supported"),
        ({"is_decoder": True}, "sets is_decoder"),
        ({"add_cross_attention": True}, "sets add_cross_attention"),
        ({"num_attention_heads": 5}, "hidden_size 64 is not a multiple of 5"),
    ],
)
def test_what_bert_refuses(fields, message):
    with pytest.raises(IngestError, match=message):
        bert.read_config(msgspec.convert({**SIZES, **fields}, HuggingFaceConfig), "model")
