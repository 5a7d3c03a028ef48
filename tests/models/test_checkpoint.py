"""models/checkpoint.py and what it stands on: checkpoints that are broken, and messages that say how."""

import json
import os
import struct
import subprocess
import sys

import pytest

from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.hub_cache import cache_root, is_cached
from pyc.runtime.errors import AdapterError, IngestError

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-"


def refusal(path, **options):
    with pytest.raises(IngestError) as caught:
        load_model(path.name, base_dir=path.parent, **options)
    assert str(caught.value).startswith("checkpoint: ")
    return str(caught.value)


def edit_json(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (entry, data) in tensors.items():
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def edit_tensors(path, change):
    tensors = read_tensors(path)
    change(tensors)
    write_tensors(path, tensors)


def shard_of(path, prefix=SHARD):
    return next(file for file in sorted(path.iterdir()) if file.name.startswith(prefix))


# A process of its own: a limit that was lowered for good cannot be raised again.
LOADS = """
import os, resource, sys
sys.path[:] = eval(sys.argv[1])
from pathlib import Path
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.runtime.errors import IngestError

folder, limit = Path(sys.argv[2]), sys.argv[3]
load_model(str(folder), base_dir=folder)  # what is imported on the way is open from then on
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
lowest = os.open(os.devnull, os.O_RDONLY)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 6, hard if limit == "soft" else lowest + 6))
with SourceFiles() as files:
    try:
        load_model(str(folder), base_dir=folder, files=files)
    except IngestError as error:
        print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard, lowest + 6)
"""


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_more_shards_than_descriptors(tiny_checkpoint, limit):
    """The limit is raised as far as it may be."""
    path = tiny_checkpoint("llama", sharded=True)
    arguments = [sys.executable, "-c", LOADS, repr(sys.path), str(path), limit]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300)
    *errors, last = done.stdout.splitlines()
    is_raised, allowed = last.split()
    assert is_raised == str(limit == "soft")
    if limit == "soft":
        assert errors == []
    else:
        (error,) = errors
        assert "cannot be read: Too many open files; raise the limit, " in error
        assert error.endswith(f"{allowed} (ulimit -n as root, or LimitNOFILE= of a service)")


def test_no_directory(tmp_path):
    with pytest.raises(IngestError, match=r"\./checkpoint: no such directory"):
        load_model("./checkpoint", base_dir=tmp_path)


LONG = "x" * 3000
ODD_REFERENCES = ("~nosuchuser/x", LONG, f"org/{LONG}", f"org/n@{LONG}", "/dev/null", "/dev/null/x", "a\nb")


@pytest.mark.parametrize("reader", [load_model, read_adapter])
@pytest.mark.parametrize("reference", ODD_REFERENCES)
def test_references_that_name_nothing(reference, reader, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises((IngestError, AdapterError), match=r"no such directory|cannot be opened|is a file"):
        reader(reference, base_dir=tmp_path)


def test_a_checkpoint_in_a_folder_with_an_odd_name(tiny_checkpoint, tmp_path):
    path = tmp_path / "a\nb \u202e%s~$x"
    path.symlink_to(tiny_checkpoint("llama"))
    assert load_model(path.name, base_dir=tmp_path).weights


def test_a_file_instead_of_a_directory(tmp_path):
    (tmp_path / "checkpoint").write_text("")
    assert "this is a file; give the directory" in refusal(tmp_path / "checkpoint")


SINGLE_FILE = {
    "no config.json": (lambda p: (p / "config.json").unlink(), "no config.json; this is not a Hugging Face"),
    "config.json is not JSON": (lambda p: (p / "config.json").write_text("{"), "config.json: not valid JSON"),
    "config.json repeats a key": (
        lambda p: (p / "config.json").write_text('{"model_type":"llama","model_type":"llama"}'),
        "the name 'model_type' occurs twice",
    ),
    "other architecture": (
        lambda p: (p / "config.json").write_text('{"model_type":"gpt2","architectures":["GPT2LMHeadModel"]}'),
        "architecture GPT2LMHeadModel is not supported; supported: llama (LlamaForCausalLM, LlamaModel)",
    ),
    "classifier of a known type": (
        lambda p: edit_json(
            p / "config.json", lambda t: t.update(architectures=["LlamaForSequenceClassification"])
        ),
        "architecture LlamaForSequenceClassification is not supported",
    ),
    "no model type": (
        lambda p: edit_json(p / "config.json", lambda t: (t.pop("model_type"), t.pop("architectures"))),
        "architecture model_type None is not supported",
    ),
    "an adapter": (
        lambda p: (p / "config.json").rename(p / "adapter_config.json"),
        "no config.json; this is a PEFT adapter; name its base model, and the adapter under `adapters`",
    ),
    "no weights": (
        lambda p: (p / "model.safetensors").unlink(),
        f"neither model.safetensors nor {INDEX} is there",
    ),
    "pickle only": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"),
        "found pytorch_model.bin, but only safetensors are read (pickle can run code)",
    ),
    "weights of another name": (
        lambda p: (p / "model.safetensors").rename(p / "model.fp16.safetensors"),
        "; found model.fp16.safetensors; if these are all weights of the model, rename the file to model.safetensors",
    ),
    "truncated weights": (
        lambda p: os.truncate(p / "model.safetensors", (p / "model.safetensors").stat().st_size - 10),
        "model.safetensors: truncated: got ",
    ),
    "weights are a directory": (
        lambda p: ((p / "model.safetensors").unlink(), (p / "model.safetensors").mkdir()),
        "model.safetensors is not a regular file",
    ),
    "index beside a single file": (
        lambda p: (p / INDEX).write_text("{}"),
        "remove the one that is not meant",
    ),
    "missing tensor": (
        lambda p: edit_tensors(p / "model.safetensors", lambda t: t.pop("model.norm.weight")),
        "tensor 'model.norm.weight' of shape [48] is missing;",
    ),
    "untied without a head": (
        lambda p: edit_tensors(p / "model.safetensors", lambda t: t.pop("lm_head.weight")),
        "tensor 'lm_head.weight' of shape [263, 48] is missing",
    ),
    "unknown tensor": (
        lambda p: edit_tensors(
            p / "model.safetensors", lambda t: t.update({"model.extra.weight": t["model.norm.weight"]})
        ),
        "tensor 'model.extra.weight' is not part of the architecture",
    ),
    "a layer too many": (
        lambda p: edit_json(p / "config.json", lambda t: t.update(num_hidden_layers=1)),
        "tensor 'model.layers.1.input_layernorm.weight' is not part of the architecture as config.json "
        "describes it (and 8 others)",
    ),
    "a bias that config.json does not have": (
        lambda p: edit_tensors(
            p / "model.safetensors",
            lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": t["model.norm.weight"]}),
        ),
        "tensor 'model.layers.0.self_attn.o_proj.bias' is not part of the architecture",
    ),
    "wrong shape": (
        lambda p: edit_json(p / "config.json", lambda t: t.update(vocab_size=264)),
        "tensor 'model.embed_tokens.weight' has shape [263, 48], expected [264, 48] by config.json",
    ),
    "quantized weights": (
        lambda p: edit_tensors(
            p / "model.safetensors",
            lambda t: t["lm_head.weight"][0].update(dtype="F8_E4M3", shape=[263, 192]),
        ),
        "tensor 'lm_head.weight' has shape [263, 192], expected [263, 48]",
    ),
    "integer weights": (
        lambda p: edit_tensors(
            p / "model.safetensors", lambda t: t["model.norm.weight"][0].update(dtype="I32")
        ),
        "tensor 'model.norm.weight' is stored as i32, expected one of f64, f32, f16, bf16",
    ),
    "the same weight under two names": (
        lambda p: edit_tensors(
            p / "model.safetensors", lambda t: t.update({"norm.weight": t["model.norm.weight"]})
        ),
        "tensors 'model.norm.weight' and 'norm.weight' are the same weight",
    ),
    "slow tokenizer only": (
        lambda p: ((p / "tokenizer.json").unlink(), (p / "tokenizer.model").write_bytes(b"x")),
        "found tokenizer.model but no tokenizer.json; write one with AutoTokenizer",
    ),
    "chat template that is not UTF-8": (
        lambda p: (p / "chat_template.jinja").write_bytes(b"\xff"),
        "chat_template.jinja is not UTF-8",
    ),
    "a template named as no file can be": (
        lambda p: edit_json(
            p / "tokenizer_config.json",
            lambda t: (
                (p / "chat_template.jinja").unlink(),
                t.update(chat_template={"default": "x", "../rag": "x"}),
            ),
        ),
        "the chat template '../rag' is not named as a file can be; rename it",
    ),
    "additional templates without a default": (
        lambda p: (
            (p / "chat_template.jinja").unlink(),
            (p / "additional_chat_templates").mkdir(),
            (p / "additional_chat_templates" / "tool_use.jinja").write_text("x"),
        ),
        "additional_chat_templates: chat templates tool_use, none is called 'default'",
    ),
    "named templates without a default": (
        lambda p: (
            (p / "chat_template.jinja").unlink(),
            edit_json(
                p / "tokenizer_config.json",
                lambda t: t.update(chat_template=[{"name": "rag", "template": "x"}]),
            ),
        ),
        "chat templates rag, none is called 'default'",
    ),
    "negative temperature": (
        lambda p: edit_json(p / "generation_config.json", lambda t: t.update(temperature=-1.0)),
        "generation_config.json: temperature: got -1.0, expected 0 to 100 ",
    ),
    "negative top_k": (
        lambda p: edit_json(p / "generation_config.json", lambda t: t.update(top_k=-3)),
        "generation_config.json: top_k: got -3, expected 0 to 2147483648",
    ),
    "link that leads out": (
        lambda p: (
            (p / "config.json").rename(p.parent / "outside.json"),
            (p / "config.json").symlink_to("../outside.json"),
        ),
        "config.json is a symbolic link that leads out",
    ),
    "link that leads nowhere": (
        lambda p: ((p / "config.json").unlink(), (p / "config.json").symlink_to("blob")),
        "config.json is a link to a file that is not there",
    ),
}
SHARDED = {
    "missing shard": (lambda p: shard_of(p).unlink(), "is missing (model.safetensors.index.json lists "),
    "extra shard": (
        lambda p: (p / "model-00099-of-00099.safetensors").write_bytes(shard_of(p).read_bytes()),
        "shard model-00099-of-00099.safetensors is there, but",
    ),
    "truncated shard": (
        lambda p: os.truncate(shard_of(p), shard_of(p).stat().st_size - 1),
        ".safetensors: truncated: got ",
    ),
    "shard elsewhere": (
        lambda p: edit_json(
            p / INDEX, lambda t: t["weight_map"].update({"lm_head.weight": "../x.safetensors"})
        ),
        "shard '../x.safetensors' is not the base name of a safetensors file",
    ),
    "shard of pickle": (
        lambda p: edit_json(p / INDEX, lambda t: t["weight_map"].update({"lm_head.weight": "x.bin"})),
        "shard 'x.bin' is not the base name of a safetensors file",
    ),
    "tensor in another shard": (
        lambda p: edit_json(
            p / INDEX,
            lambda t: t["weight_map"].update(
                {next(iter(read_tensors(shard_of(p)))): shard_of(p, "model-00001").name}
            ),
        ),
        f"but {INDEX} places it in model-00001-of-",
    ),
    "tensor that the index lacks": (
        lambda p: edit_json(p / INDEX, lambda t: t["weight_map"].pop(next(iter(read_tensors(shard_of(p)))))),
        f"but {INDEX} does not list it",
    ),
    "tensor in two shards": (
        lambda p: edit_tensors(
            shard_of(p), lambda t: t.update(list(read_tensors(shard_of(p, "model-00001")).items())[:1])
        ),
        f"but {INDEX} places it in model-00001-of-",
    ),
    "tensor that no shard has": (
        lambda p: edit_json(p / INDEX, lambda t: t["weight_map"].update(ghost=shard_of(p).name)),
        "tensor 'ghost' is not in model-00002-of-",
    ),
    "empty index": (lambda p: (p / INDEX).write_text('{"weight_map":{}}'), "the weight map is empty"),
    "index of numbers": (
        lambda p: (p / INDEX).write_text('{"weight_map":{"a":1}}'),
        f"{INDEX}: Expected `str`, got `int`",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SINGLE_FILE)
def test_a_broken_checkpoint_is_refused(case, tiny_copy):
    path = tiny_copy("llama")
    damage, message = SINGLE_FILE[case]
    damage(path)
    assert message in refusal(path)


@pytest.mark.parametrize("total", [12, -1, 1e308, 10**400, "12", None])
def test_a_wrong_total_is_warned_of(total, tiny_copy, caplog):
    """transformers does not look at it, and several tools write another one."""
    path = tiny_copy("llama", sharded=True)
    before = load_model(path.name, base_dir=path.parent).weights
    edit_json(path / INDEX, lambda t: t["metadata"].update(total_size=total))
    assert load_model(path.name, base_dir=path.parent).weights.keys() == before.keys()
    warned = [r.message for r in caplog.records if "the shards hold" in r.message]
    expected = [True] if total is not None else []
    assert [f"{INDEX}: total_size is {str(total)[:20]}" in message for message in warned] == expected


@pytest.mark.parametrize("case", SHARDED)
def test_broken_shards_are_refused(case, tiny_copy):
    path = tiny_copy("llama", sharded=True)
    damage, message = SHARDED[case]
    damage(path)
    assert message in refusal(path)


@pytest.mark.parametrize("context", [0, -1, 65])
def test_a_context_that_the_model_does_not_serve(context, tiny_copy):
    assert f"context is {context} tokens, the model serves 1 to 64" in refusal(
        tiny_copy("llama"), context=context
    )


SENTENCE = {
    "unknown module": (
        "modules.json",
        [{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Dense", "path": "2_Dense"}],
        "module 'Dense' is not supported",
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
        "a default prompt ('query') is not supported",
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
    path = tiny_copy("bert", pooling="mean")
    name, content, message = SENTENCE[case]
    (path / name).write_text(json.dumps(content))
    assert message in refusal(path)


def test_sentence_transformers_6_pooling_and_length(tiny_copy):
    path = tiny_copy("bert", pooling="mean", normalize=True)
    (path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 48, "pooling_mode": "cls"}')
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    info = load_model(str(path), base_dir=path).info
    assert (info.pooling.mode, info.pooling.normalize, info.context) == ("cls", True, 40)
    assert load_model(str(path), base_dir=path, context=64).info.context == 64
    with pytest.raises(IngestError, match=r"the longest text in tokens is 2, expected at least 3.*shapes\.context"):
        load_model(str(path), base_dir=path, context=2)


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
    assert load_model(str(path), base_dir=path).info.context == 64


def test_old_names_of_bert_are_understood(tiny_copy):
    path = tiny_copy("bert")
    renamed = {}
    for name, entry in read_tensors(path / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        renamed[f"bert.{old}"] = entry
    renamed["bert.embeddings.position_ids"] = ({"dtype": "I64", "shape": [1]}, bytes(8))
    renamed["cls.predictions.bias"] = ({"dtype": "F32", "shape": [1]}, bytes(4))
    expected = load_model(str(path), base_dir=path)
    write_tensors(path / "model.safetensors", renamed)
    module = load_model(str(path), base_dir=path)
    assert module.graph == expected.graph
    assert module.weights["embeddings.LayerNorm.weight"].tensor == "bert.embeddings.LayerNorm.gamma"


def test_harmless_extras_of_decoders_are_left_out(tiny_copy):
    path = tiny_copy("llama", tie_word_embeddings=True)

    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ({"dtype": "F32", "shape": [1]}, bytes(4))
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    edit_tensors(path / "model.safetensors", add)
    module = load_model(str(path), base_dir=path)
    assert "lm_head.weight" not in module.weights
    assert module.graph.function("logits").operations[-1].weights == ("model.embed_tokens.weight", "")


def test_a_base_model_without_prefix(tiny_copy):
    path = tiny_copy("llama", tie_word_embeddings=True)
    edit_json(path / "config.json", lambda t: t.update(architectures=["LlamaModel"]))
    tensors = read_tensors(path / "model.safetensors")
    write_tensors(path / "model.safetensors", {name.removeprefix("model."): t for name, t in tensors.items()})
    assert "model.norm.weight" in load_model(str(path), base_dir=path).weights


def test_chat_template_json_is_behind_tokenizer_config(tiny_copy):
    path = tiny_copy("llama")
    (path / "chat_template.jinja").unlink()
    (path / "chat_template.json").write_text('{"chat_template": "of a processor"}')
    assert dict(load_model(str(path), base_dir=path).files)["chat_template.jinja"] == b"of a processor"
    edit_json(path / "tokenizer_config.json", lambda t: t.update(chat_template="of the tokenizer"))
    assert dict(load_model(str(path), base_dir=path).files)["chat_template.jinja"] == b"of the tokenizer"


def test_what_the_artifact_carries(tiny_copy):
    path = tiny_copy("llama", sharded=True)
    (path / "chat_template.jinja").rename(path / "template")
    template = (path / "template").read_text()
    edit_json(
        path / "tokenizer_config.json",
        lambda t: t.update(
            chat_template=[{"name": "rag", "template": "x"}, {"name": "default", "template": template}]
        ),
    )
    edit_json(
        path / "generation_config.json",
        lambda t: t.update(
            eos_token_id=[2, 5, 2, 999], temperature=0.7, top_p=0.95, top_k=20, do_sample=True
        ),
    )
    module = load_model(path.name, base_dir=path.parent)
    files = dict(module.files)
    assert files["chat_template.jinja"].decode() == template
    assert files["tokenizer.json"] == (path / "tokenizer.json").read_bytes()
    defaults = module.generation
    assert (defaults.eos_token_ids, defaults.bos_token_id, defaults.temperature) == ((2, 5), 1, "0.7")
    assert (defaults.top_p, defaults.top_k, defaults.do_sample) == ("0.95", 20, True)
    names = [source.name for source in module.sources]
    assert names == sorted(names)
    assert {"config.json", INDEX, "tokenizer.json", "generation_config.json"} <= set(names)
    assert sum(name.startswith("model-") for name in names) > 3
    assert not any("/" in name for name in names)


@pytest.mark.slow
def test_special_tokens_fall_back_to_config(tiny_copy):
    path = tiny_copy("qwen3")
    (path / "generation_config.json").unlink()
    edit_json(path / "config.json", lambda t: t.update(eos_token_id=[2, 3], pad_token_id=-1))
    defaults = load_model(str(path), base_dir=path).generation
    assert (defaults.eos_token_ids, defaults.pad_token_id) == ((2, 3), None)


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_git_lfs_pointer_in_place_of_a_file(file, tiny_copy):
    path = tiny_copy("llama")
    (path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert f"{file}: this is a Git LFS pointer in place of the file; fetch the file itself: git" in refusal(path)


def test_no_tokenizer_at_all_is_fine_but_said(tiny_checkpoint, caplog):
    path = tiny_checkpoint("llama", tokenizer=False)
    assert [name for name, _ in load_model(str(path), base_dir=path).files] == ["config.json"]
    (warning,) = caplog.messages
    assert "there is no tokenizer.json, so the artifact will take no text" in warning


@pytest.fixture
def hub(tmp_path, tiny_checkpoint, monkeypatch):
    """A cache as huggingface_hub lays it out, with one model, org/name, at one commit."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "models--org--name"
    (folder / "blobs").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(tiny_checkpoint("llama").iterdir())):
        (folder / "blobs" / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    return folder, snapshot, commit


def test_a_hub_id_is_found_in_the_cache(hub, tmp_path):
    folder, snapshot, commit = hub
    for reference in ("org/name", f"org/name@{commit}", "org/name@main", str(snapshot)):
        module = load_model(reference, base_dir=tmp_path)
        assert module.sources[0].name == "chat_template.jinja"
        assert all(str(folder / "blobs") in source.path for source in module.sources)


def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch, tmp_path):
    from pathlib import Path

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_root() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / "hub"


HUB_REFUSALS = {
    "org/other": "no model of this name in the cache",
    "org/name@v2": "has no revision 'v2' of this model; pyc init, build and attach fetch it with --download",
    "org/name@" + "f" * 40: "the cache has no snapshot ffff",
    "../org/name": "no such directory",
    "org/name@../../refs/main": "no such directory",
    "https://huggingface.co/org/name": "no such directory",
    "": "is not a path or hub id",
}


@pytest.mark.parametrize("reference", HUB_REFUSALS)
def test_a_reference_that_leads_nowhere(reference, hub, tmp_path):
    with pytest.raises(IngestError) as caught:
        load_model(reference, base_dir=tmp_path)
    assert HUB_REFUSALS[reference] in str(caught.value)


def test_a_link_out_of_the_cache_is_refused(hub, tmp_path):
    _, snapshot, _ = hub
    (tmp_path / "canary.json").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "canary.json")
    with pytest.raises(IngestError, match=r"config\.json is a symbolic link that leads out"):
        load_model("org/name", base_dir=tmp_path)


def test_a_ref_that_is_not_a_commit(hub, tmp_path):
    folder, _, _ = hub
    (folder / "refs" / "main").write_text("../../..")
    with pytest.raises(
        IngestError, match=r"refs/main in the cache holds '\.\./\.\./\.\.', expected a commit"
    ):
        load_model("org/name", base_dir=tmp_path)


def test_a_name_too_long_for_the_cache_is_not_in_it() -> None:
    assert not is_cached("x" * 5000)
