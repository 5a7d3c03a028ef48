"""models/sentence.py: what the files of sentence-transformers say, and what cannot be."""

import json
import shutil

import pytest
from checkpoint_damage import refusal
from tiny_checkpoints import write_sentence_files

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelShapes, ModelSource
from pyc.runtime.artifact.format import Pooling
from pyc.runtime.errors import IngestError

SENTENCE = {
    "unknown module": (
        "modules.json",
        [{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Dense", "path": "2_Dense"}],
        "module 'Dense' is not supported (known: Transformer, Pooling, Normalize); embed with sentence-transformers",
    ),
    "modules out of order": (
        "modules.json",
        [{"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Transformer"}],
        "got ['Pooling', 'Transformer'], expected Transformer, Pooling",
    ),
    "pooling elsewhere": (
        "modules.json",
        [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "../1_Pooling"}],
        "the file name '../1_Pooling/config.json' is not a plain relative name",
    ),
    "pooling file missing": (
        "modules.json",
        [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "9_Pooling"}],
        "9_Pooling/config.json is missing",
    ),
    "pooling by maximum": (
        "1_Pooling/config.json",
        {"pooling_mode_max_tokens": True},
        "pooling mode max is not supported (known: mean, cls)",
    ),
    "two poolings": (
        "1_Pooling/config.json",
        {"pooling_mode": ["mean", "cls"]},
        "pooling mode mean + cls is not",
    ),
    "default prompt": (
        "config_sentence_transformers.json",
        {"prompts": {"query": "Query: "}, "default_prompt_name": "query"},
        "a default prompt ('query') is not supported; remove default_prompt_name, and write the prompt before",
    ),
    "lower case": (
        "sentence_bert_config.json",
        {"do_lower_case": True},
        "do_lower_case outside the tokenizer",
    ),
    "no tokens": ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0"),
    "no tokens of the tokenizer": (
        "tokenizer_config.json",
        {"model_max_length": 0},
        "tokenizer_config.json: model_max_length is 0, expected a whole number of at least 1; correct it",
    ),
    "half a token": ("tokenizer_config.json", {"max_len": 12.5}, "max_len is 12.5, expected a whole number"),
    "cut vectors": (
        "config_sentence_transformers.json",
        {"truncate_dim": 16},
        "truncate_dim is 16, expected none: vectors keep all 48 numbers; remove it",
    ),
    "vectors cut from the end": ("config_sentence_transformers.json", {"truncate_dim": -1}, "truncate_dim is -1"),
    "pooler's output": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        "modality_config.text.method_output_name is 'pooler_output', expected 'last_hidden_state'; save the model",
    ),
    "rows of another layer": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}},
        "method_output_name is ['hidden_states', -2], expected 'last_hidden_state'",
    ),
    "another method": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "get_text_features", "method_output_name": "last_hidden_state"}}},
        "modality_config.text.method is 'get_text_features', expected 'forward'",
    ),
    "messages": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {}, "message": {"format": "flat"}}},
        "modality_config has text, message, expected text and no message",
    ),
    "another task": (
        "sentence_bert_config.json",
        {"transformer_task": "fill-mask"},
        "transformer_task is 'fill-mask', expected 'feature-extraction'",
    ),
    "texts cut elsewhere": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"text": {"max_length": 5}}},
        "sentence_bert_config.json: processing_kwargs.text.max_length is 5, expected none; remove it",
    ),
    "texts that are not cut": (
        "sentence_bert_config.json",
        {"processing_kwargs": {"common": {"truncation": False}}},
        "processing_kwargs.common.truncation is False, expected none; remove it",
    ),
    "rows normalised": (
        "2_Normalize/config.json",
        {"module_input_name": "token_embeddings"},
        "2_Normalize/config.json: normalises 'token_embeddings' to 'token_embeddings', expected 'sentence_embedding'",
    ),
    "normalised elsewhere": (
        "2_Normalize/config.json",
        {"module_output_name": "normalized"},
        "2_Normalize/config.json: normalises 'sentence_embedding' to 'normalized', expected 'sentence_embedding'",
    ),
    "a file of another architecture's name": (
        "sentence_distilbert_config.json",
        {"max_seq_length": 0},
        "sentence_distilbert_config.json: max_seq_length is 0",
    ),
    "arguments of the tokenizer": (
        "sentence_bert_config.json",
        {"tokenizer_args": {"do_lower_case": True}},
        "tokenizer_args.do_lower_case is True, expected none; remove it, or save the tokenizer with it",
    ),
    "arguments of the tokenizer, new name": (
        "sentence_bert_config.json",
        {"processor_kwargs": {"padding_side": "left"}},
        "sentence_bert_config.json: processor_kwargs.padding_side is 'left', expected none; remove it",
    ),
    "no side": (
        "sentence_bert_config.json",
        {"processor_kwargs": {"truncation_side": "Left"}},
        "processor_kwargs.truncation_side is 'Left', expected 'left' or 'right'; correct it",
    ),
    "no side of the tokenizer": (
        "tokenizer_config.json",
        {"truncation_side": "middle"},
        "tokenizer_config.json: Invalid enum value 'middle' - at `$.truncation_side`",
    ),
    "a length that is text": (
        "sentence_bert_config.json",
        {"processor_kwargs": {"model_max_length": "5"}},
        "processor_kwargs.model_max_length is '5', expected a whole number of at least 1; correct it",
    ),
    "a length of half a token": (
        "sentence_bert_config.json",
        {"processor_kwargs": {"model_max_length": 0.5}},
        "processor_kwargs.model_max_length is 0.5, expected a whole number of at least 1; correct it",
    ),
    "fields of the configuration": (
        "sentence_bert_config.json",
        {"config_args": {"hidden_act": "relu"}},
        "config_args.hidden_act is 'relu', expected none; remove it, or write it into config.json",
    ),
    "fields of the configuration, new name": (
        "sentence_bert_config.json",
        {"config_kwargs": {"num_hidden_layers": 1}},
        "config_kwargs.num_hidden_layers is 1, expected none",
    ),
    "arguments of the model": (
        "sentence_bert_config.json",
        {"model_args": {"subfolder": "onnx", "variant": "fp16"}},
        "model_args.variant is 'fp16', expected none; remove it",
    ),
    "arguments of the model, new name": (
        "sentence_bert_config.json",
        {"model_kwargs": {"quantization_config": {}}},
        "model_kwargs.quantization_config is {}, expected none; remove it",
    ),
    "queries of another length": (
        "sentence_bert_config.json",
        {"query_length": 32},
        "query_length is 32, expected none: all texts are read alike; remove it",
    ),
    "expanded queries": (
        "sentence_bert_config.json",
        {"query_expansion": {"length": 32}},
        "query_expansion is {'length': 32}, expected none: all texts are read alike",
    ),
    "no room, by an argument": (
        "sentence_bert_config.json",
        {"processor_kwargs": {"model_max_length": 2}},
        "the longest text in tokens is 2, expected at least 3: tokenizer.json adds 2 special ones; raise",
    ),
    "no room, by max_seq_length": (
        "sentence_bert_config.json",
        {"max_seq_length": 2},
        "the longest text in tokens is 2, expected at least 3: tokenizer.json adds 2 special ones; raise",
    ),
    "no room, by model_max_length": (
        "tokenizer_config.json",
        {"model_max_length": 1},
        "the longest text in tokens is 1, expected at least 3: tokenizer.json adds 2 special ones; raise",
    ),
}


@pytest.mark.parametrize("case", SENTENCE)
def test_broken_sentence_files_are_refused(case, tiny_copy):
    path = tiny_copy("bert", pooling="mean", normalize=True)
    name, content, message = SENTENCE[case]
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(json.dumps(content))
    assert message in refusal(path)


def test_sentence_transformers_6_pooling_and_length(tiny_copy):
    path = tiny_copy("bert", pooling="mean", normalize=True)
    (path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 48, "pooling_mode": "cls"}')
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    info = load_model(ModelSource(str(path), path)).info
    assert (info.pooling.mode, info.pooling.normalize, info.context) == ("cls", True, 40)
    assert load_model(ModelSource(str(path), path), ModelShapes(context=64)).info.context == 64
    with pytest.raises(IngestError, match=r"shapes\.text_tokens is 41, expected at most 40, the tokens that"):
        load_model(ModelSource(str(path), path), ModelShapes(text_tokens=41))
    with pytest.raises(IngestError, match=r"the longest text in tokens is 2, expected at least 3.*shapes\.context"):
        load_model(ModelSource(str(path), path), ModelShapes(context=2))


@pytest.mark.parametrize("has_modules", [False, True])
def test_an_encoder_that_does_not_say_how_it_pools_is_warned_of(has_modules, tiny_checkpoint, caplog):
    path = tiny_checkpoint("bert", **({"pooling": "mean"} if has_modules else {}))
    assert load_model(ModelSource(str(path), path)).info.pooling.mode == "mean"
    warned = [record.message for record in caplog.records if "modules.json" in record.message]
    assert len(warned) == (0 if has_modules else 1)
    for message in warned:
        assert message.startswith(f"{path}: no modules.json, so a vector is the mean of a text's rows, not normalised;")
        assert message.endswith("copy it and its 1_Pooling folder beside the weights")


def test_settings_of_sentence_transformers_6_that_change_nothing(tiny_copy):
    path = tiny_copy("bert", pooling="mean")
    text = {"method": "forward", "method_output_name": ["last_hidden_state"]}
    calls = {"text": {"padding": True, "truncation": "longest_first"}, "audio": {"max_length": 3}, "common": {}}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},
        "processing_kwargs": calls,
    }
    (path / "sentence_bert_config.json").write_text(json.dumps(settings))
    (path / "config_sentence_transformers.json").write_text('{"truncate_dim": 48, "default_prompt_name": null}')
    assert load_model(ModelSource(str(path), path)).info.context == 64


@pytest.mark.parametrize(("sizes", "read"), [({"context": 64}, 64), ({"context": 64, "text_tokens": 50}, 50)])
def test_texts_beyond_what_the_checkpoint_reads_are_warned_of(sizes, read, tiny_copy, caplog):
    path = tiny_copy("bert", pooling="mean")
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    load_model(ModelSource(str(path), path), ModelShapes(context=64, text_tokens=40))
    load_model(ModelSource(str(path), path), ModelShapes(context=30))
    assert not caplog.records
    load_model(ModelSource(str(path), path), ModelShapes(**sizes))
    assert [record.message for record in caplog.records] == [
        f"{path}: texts of up to {read} tokens are read whole, and the checkpoint cuts them at 40; "
        "vectors of longer texts are others than those of sentence-transformers; to have them cut alike build "
        "with shapes.text_tokens=40"
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_tokenizer_says_where_texts_are_cut_only_where_the_context_does_not(side, tiny_copy):
    """So an older reader opens every artifact that it cuts texts for as they have to be cut."""
    path = tiny_copy("bert", pooling="mean")
    (path / "tokenizer_config.json").write_text(json.dumps({"truncation_side": side}))
    module = load_model(ModelSource(str(path), path))
    stored = dict(module.files)["tokenizer.json"]
    assert module.truncation == (side == "left")
    assert (stored == (path / "tokenizer.json").read_bytes()) == (side == "right")
    said = json.loads(stored)["truncation"]
    left = {"direction": "Left", "max_length": 64, "strategy": "LongestFirst", "stride": 0}
    assert said == (left if side == "left" else None)
    shorter = load_model(ModelSource(str(path), path), ModelShapes(text_tokens=20))
    assert shorter.truncation
    assert json.loads(dict(shorter.files)["tokenizer.json"])["truncation"]["max_length"] == 20


def test_a_decoder_has_no_texts_to_cut(tiny_checkpoint):
    path = tiny_checkpoint("llama")
    with pytest.raises(IngestError, match=r"shapes\.text_tokens is 5, expected null: only texts of encoders are cut"):
        load_model(ModelSource(str(path), path), ModelShapes(text_tokens=5))


def test_a_default_prompt_whose_rows_are_no_part_of_the_vector(tiny_copy):
    """To write it before each text would make another vector."""
    path = tiny_copy("bert", pooling="mean")
    prompts = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    pooling = path / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    with pytest.raises(IngestError, match=r"include_prompt\), so embed with sentence-transformers$"):
        load_model(ModelSource(str(path), path))


def test_the_way_from_the_layout_before_version_2(tiny_copy):
    """modules.json beside a folder 0_Transformer that has config.json and the weights: each step is said."""
    new = tiny_copy("bert", pooling="mean")
    old, inner = new.parent / "old", new.parent / "old" / "0_Transformer"
    old.mkdir()
    new.rename(inner)
    modules = json.loads((inner / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(modules))
    (inner / "1_Pooling").rename(old / "1_Pooling")
    (inner / "modules.json").unlink()
    with pytest.raises(IngestError, match=r"no config\.json; sentence-transformers has it in a folder of its own:"):
        load_model(ModelSource(str(old), old))
    shutil.copytree(old / "1_Pooling", inner / "1_Pooling")
    (inner / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(IngestError, match=r"set the Transformer's path in that modules\.json to '', and give that"):
        load_model(ModelSource(str(inner), inner))
    modules[0]["path"] = ""
    (inner / "modules.json").write_text(json.dumps(modules))
    assert load_model(ModelSource(str(inner), inner)).info.pooling == Pooling("mean", False)


def test_a_normalization_beside_the_model(tiny_checkpoint, tmp_path):
    """sentence-transformers takes the folder of a module from its path, and the empty one is the model's."""
    folder = shutil.copytree(tiny_checkpoint("bert", pooling="mean", normalize=True), tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["path"] = ""
    (folder / "modules.json").write_text(json.dumps(modules))
    module = load_model(ModelSource(str(folder), folder))
    assert module.info.pooling == Pooling("mean", True)
    assert [source.name for source in module.sources].count("config.json") == 1


def test_arguments_that_say_what_the_files_say(tiny_checkpoint, tiny_adapter, tmp_path):
    """Of an adapter they are those of the checkpoint that it is fused with."""
    base = tiny_checkpoint("bert", pooling="mean")
    folder = shutil.copytree(tiny_adapter(base, target_modules=["query"]), tmp_path / "adapter")
    write_sentence_files(folder, 48, "mean", True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "do_lower_case": True}))
    settings = {
        "model_args": {"use_safetensors": True},
        "config_args": {"hidden_size": 48},
        "tokenizer_args": {"do_lower_case": True},
    }
    others = {"config_args": {"hidden_size": 49}, "tokenizer_args": {"do_lower_case": False}}

    def read(settings):
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        return load_model(ModelSource(str(base), tmp_path, (str(folder),))).info

    for name, value in settings.items():
        assert read({name: value}).pooling == Pooling("mean", True)
    for name, value in others.items():
        with pytest.raises(IngestError, match=rf"{name}\.\w+ is \w+, expected none"):
            read({name: value})
