"""models/checkpoint.py and what it stands on: checkpoints that are broken, and messages that say how."""

import os
import shutil
import subprocess
import sys

import pytest
from checkpoint_damage import INDEX, edit_json, edit_tensors, read_tensors, refusal, write_tensors

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import IngestError

SHARD = "model-00002-of-"


def shard_of(path, prefix=SHARD):
    return next(file for file in sorted(path.iterdir()) if file.name.startswith(prefix))


# A process of its own: a limit that was lowered for good cannot be raised again.
LOADS = """
import os, resource, sys
sys.path[:] = eval(sys.argv[1])
from pathlib import Path
from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import IngestError

folder, limit = Path(sys.argv[2]), sys.argv[3]
load_model(ModelSource(str(folder), folder))  # what is imported on the way is open from then on
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
lowest = os.open(os.devnull, os.O_RDONLY)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 6, hard if limit == "soft" else lowest + 6))
with SourceFiles() as files:
    try:
        load_model(ModelSource(str(folder), folder), files=files)
    except IngestError as error:
        print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard, lowest + 6)
"""


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "_fsdp_wrapped_module._checkpoint_wrapped_module."])
def test_names_that_a_wrapper_gives_are_told_as_such(wrapper, tiny_copy):
    path = tiny_copy("llama")

    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace("model.", f"model.{wrapper}", 1)] = tensors.pop(name)

    edit_tensors(path / "model.safetensors", rename)
    said = refusal(path)
    assert "'model.embed_tokens.weight'" in said
    assert f"; 'model.{wrapper}embed_tokens.weight' is there, as a trainer's wrapper names it; save the" in said


@pytest.mark.parametrize("prefix", ["model.", "language_model.", "transformer."])
def test_names_of_a_model_within_another_are_told_as_such(prefix, tiny_copy):
    path = tiny_copy("llama")

    def rename(tensors):
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    edit_tensors(path / "model.safetensors", rename)
    said = refusal(path)
    assert f"'{prefix}model.embed_tokens.weight' is there, as where the model is a part of another; save that" in said


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
        load_model(ModelSource("./checkpoint", tmp_path))


def test_a_checkpoint_in_a_folder_with_an_odd_name(tiny_checkpoint, tmp_path):
    path = tmp_path / "a\nb \u202e%s~$x"
    path.symlink_to(tiny_checkpoint("llama"))
    assert load_model(ModelSource(path.name, tmp_path)).weights


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
    "an adapter beside its base's configuration": (
        lambda p: (
            (p / "model.safetensors").rename(p / "adapter_model.safetensors"),
            (p / "adapter_config.json").write_text("{}"),
        ),
        f"neither model.safetensors nor {INDEX} is there; this is a PEFT adapter; name its base model",
    ),
    "no weights": (
        lambda p: (p / "model.safetensors").unlink(),
        f"neither model.safetensors nor {INDEX} is there",
    ),
    "state of FSDP": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model_fsdp.bin"),
        "found pytorch_model_fsdp.bin, the state of a trainer, and no model.safetensors; `accelerate merge-weights`",
    ),
    "state of DeepSpeed": (
        lambda p: ((p / "model.safetensors").unlink(), (p / "global_step500").mkdir()),
        "found global_step500, the state of a trainer, and no model.safetensors; ",
    ),
    "checkpoints of a run": (
        lambda p: (
            [shutil.copytree(p, p.parent / "copy" / f"checkpoint-{n}") for n in (500, 1000)],
            (p / "config.json").unlink(),
            [shutil.move(each, p) for each in (p.parent / "copy").iterdir()],
        ),
        "no config.json; a trainer's checkpoints are in folders of it; name one: checkpoint-1000",
    ),
    "adapters of a run": (
        lambda p: (
            (p / "config.json").unlink(),
            (p / "checkpoint-70").mkdir(),
            (p / "checkpoint-70" / "adapter_config.json").write_text("{}"),
        ),
        "no config.json; a trainer's checkpoints are in folders of it, and are adapters; name their base model, and "
        "one as its adapter: checkpoint-70",
    ),
    "pickle only": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"),
        "found pytorch_model.bin, but only safetensors are read (pickle can run code)",
    ),
    "GGUF beside config.json": (
        lambda p: (p / "model.safetensors").rename(p / "model.gguf"),
        "found model.gguf, a GGUF file, which pyc does not read; take the model's safetensors: pyc build",
    ),
    "GGUF alone": (
        lambda p: ((p / "model.safetensors").rename(p / "Model-Q4.GGUF"), (p / "config.json").unlink()),
        "no config.json; found Model-Q4.GGUF, a GGUF file, which pyc does not read; take the model's safetensors",
    ),
    "weights of another framework": (
        lambda p: (p / "model.safetensors").rename(p / "tf_model.h5"),
        "found tf_model.h5, but only safetensors are read (pickle can run code); download the model's model.safetens"
        "ors, or, if it is yours, load it in Python and call save_pretrained",
    ),
    "parts without an index": (
        lambda p: (p / "model.safetensors").rename(p / "model-00001-of-00002.safetensors"),
        f"; found parts, model-00001-of-00002.safetensors, without the index that lists them; download the checkpoint "
        f"again, with {INDEX}",
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
        "there is no tensor 'lm_head.weight': a decoder without a head, as models for embeddings and",
    ),
    "a decoder whose rows are pooled": (
        lambda p: (p / "modules.json").write_text(
            '[{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}]'
        ),
        "modules.json makes this decoder a model for embeddings, and pyc embeds with BERT encoders only",
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
    "shard of a long name": (
        lambda p: edit_json(p / INDEX, lambda t: t["weight_map"].update({"lm_head.weight": "x" * 5000})),
        f"shard '{'x' * 100}...' is not the base name of a safetensors file; download the checkpoint again, or",
    ),
    "long name outside": (
        lambda p: edit_json(p / INDEX, lambda t: t["weight_map"].update(ghost="x" * 5000 + ".safetensors")),
        f"the file name '{'x' * 100}...' is not a plain relative name",
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
    before = load_model(ModelSource(path.name, path.parent)).weights
    edit_json(path / INDEX, lambda t: t["metadata"].update(total_size=total))
    assert load_model(ModelSource(path.name, path.parent)).weights.keys() == before.keys()
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


def test_old_names_of_bert_are_understood(tiny_copy):
    path = tiny_copy("bert")
    renamed = {}
    for name, entry in read_tensors(path / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        renamed[f"bert.{old}"] = entry
    renamed["bert.embeddings.position_ids"] = ({"dtype": "I64", "shape": [1]}, bytes(8))
    renamed["cls.predictions.bias"] = ({"dtype": "F32", "shape": [1]}, bytes(4))
    expected = load_model(ModelSource(str(path), path))
    write_tensors(path / "model.safetensors", renamed)
    module = load_model(ModelSource(str(path), path))
    assert module.graph == expected.graph
    assert module.weights["embeddings.LayerNorm.weight"].tensor == "bert.embeddings.LayerNorm.gamma"


def test_harmless_extras_of_decoders_are_left_out(tiny_copy):
    path = tiny_copy("llama", tie_word_embeddings=True)

    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ({"dtype": "F32", "shape": [1]}, bytes(4))
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    edit_tensors(path / "model.safetensors", add)
    module = load_model(ModelSource(str(path), path))
    assert "lm_head.weight" not in module.weights
    assert module.graph.function("logits").operations[-1].weights == ("model.embed_tokens.weight", "")


def test_a_base_model_without_prefix(tiny_copy):
    path = tiny_copy("llama", tie_word_embeddings=True)
    edit_json(path / "config.json", lambda t: t.update(architectures=["LlamaModel"]))
    tensors = read_tensors(path / "model.safetensors")
    write_tensors(path / "model.safetensors", {name.removeprefix("model."): t for name, t in tensors.items()})
    assert "model.norm.weight" in load_model(ModelSource(str(path), path)).weights


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json", "model.safetensors"])
def test_a_git_lfs_pointer_in_place_of_a_file(file, tiny_copy):
    path = tiny_copy("llama")
    (path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert f"{file}: this is a Git LFS pointer in place of the file; fetch the file itself: git" in refusal(path)
