"""Adapters that are damaged or do not fit: `pyc plan` ends with code 5, and its message names the tensor or field."""

import json
import shutil

import numpy as np
import pytest
from adapter_cases import KINDS
from safetensors.numpy import load_file, save_file

from pyc.cli import main

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"
DOWN = "base_model.model.model.layers.0.mlp.down_proj"


def fields(**changes):
    """A damage that sets fields of the configuration."""

    def damage(folder):
        table = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(table | changes))

    return damage


def tensors(change):
    """A damage that calls `change` with the adapter's tensors by name."""

    def damage(folder):
        stored = load_file(folder / WEIGHTS)
        change(stored)
        save_file(stored, folder / WEIGHTS, {"format": "pt"})

    return damage


def without(name):
    return tensors(lambda stored: stored.pop(name))


def shaped(name, *shape):
    return tensors(lambda stored: stored.update({name: np.ones(shape, np.float32)}))


def spoiled(name, value):
    return tensors(lambda stored: stored[name].reshape(-1).__setitem__(3, value))


def scaled(factor, *endings):
    def change(stored):
        for name in stored:
            if name.endswith(endings):
                stored[name] *= np.float32(factor)

    return tensors(change)


def text(change):
    """A damage that changes the configuration's text."""

    def damage(folder):
        (folder / CONFIG).write_text(change((folder / CONFIG).read_text()))

    return damage


def header(change):
    """A damage that changes the text of the weights' header, and says how long it is then."""

    def damage(folder):
        data = (folder / WEIGHTS).read_bytes()
        size = int.from_bytes(data[:8], "little")
        made = change(data[8 : 8 + size].rstrip())
        (folder / WEIGHTS).write_bytes(len(made).to_bytes(8, "little") + made + data[8 + size :])

    return damage


def first_name(stored):
    return next(name for name in json.loads(stored) if name != "__metadata__").encode()


FILES = {
    "config: not JSON": (text(lambda old: old[:-3]), [CONFIG, "not valid JSON"]),
    "config: not an object": (text(lambda old: "[1]"), [CONFIG, "Expected `object`"]),
    "config: not UTF-8": (lambda p: (p / CONFIG).write_bytes(b'{"r": "\xff"}'), [CONFIG, "not valid JSON"]),
    "config: huge": (text(lambda old: old + " " * (5 << 20)), [CONFIG, "expected at most 4194304"]),
    "config: many values": (text(lambda old: "[" + "1," * 200_000 + "1]"), [CONFIG, "values, expected at most"]),
    "config: nested": (text(lambda old: "[" * 5000 + "]" * 5000), [CONFIG, "not valid JSON"]),
    "config: a field twice": (text(lambda old: old.replace('"r":', '"r": 2, "r":')), [CONFIG, "'r' occurs twice"]),
    "config: alpha is NaN": (fields(lora_alpha=float("nan")), [CONFIG, "NaN is not JSON"]),
    "config: alpha is infinite": (text(lambda old: old.replace('_alpha": 8', '_alpha": 1e999')), ["beyond float64"]),
    "config: alpha is huge": (fields(lora_alpha=1e7), [CONFIG, "alpha of", "expected at most 1e+06"]),
    "config: rank is 0": (fields(r=0), ["q_proj has rank 0, expected 1 to"]),
    "config: rank is negative": (fields(r=-4), ["q_proj has rank -4, expected 1 to"]),
    "config: rank of a pattern is 0": (fields(rank_pattern={"q_proj": 0}), ["q_proj has rank 0, expected 1 to"]),
    "config: a pattern without end": (fields(target_modules="(q_proj"), ["is not a regular expression"]),
    "config: no targets": (fields(target_modules=None), ["target_modules is missing"]),
    "config: other targets": (fields(target_modules=["k_proj"]), [Q, "which target_modules does not name"]),
    "config: missing": (lambda p: (p / CONFIG).unlink(), [f"no {CONFIG}; this is not a PEFT adapter"]),
    "weights: missing": (lambda p: (p / WEIGHTS).unlink(), [f"no {WEIGHTS}; save it with PEFT's save_pretrained"]),
    "weights: pickled": (
        lambda p: (p / WEIGHTS).rename(p / "adapter_model.bin"),
        ["found adapter_model.bin, but only safetensors are read"],
    ),
    "weights: empty": (lambda p: (p / WEIGHTS).write_bytes(b""), [WEIGHTS, "0 bytes"]),
    "weights: cut": (lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:-1]), [WEIGHTS, "truncated"]),
    "weights: cut in the header": (lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:99]), [WEIGHTS]),
    "weights: a name twice": (
        header(lambda old: b'{"' + first_name(old) + b'":{"dtype":"F32","shape":[],"data_offsets":[0,0]},' + old[1:]),
        [WEIGHTS, "lora_A.weight' occurs twice"],
    ),
    "weights: a dtype that is none": (header(lambda old: old.replace(b'"F32"', b'"F99"', 1)), [WEIGHTS, "F99"]),
    "weights: integers": (header(lambda old: old.replace(b'"F32"', b'"I32"', 1)), ["tensor", "is stored as i32"]),
    "weights: two names of one": (
        tensors(lambda stored: stored.update({f"{Q}.lora_A.weight"[17:]: stored[f"{Q}.lora_A.weight"].copy()})),
        [f"{Q}.lora_A.weight", "are the same"],
    ),
    "weights: left over": (shaped(f"{Q}.lora_C.weight", 4), [f"{Q}.lora_C.weight", "neither part of lora"]),
    "weights: another base": (shaped(f"{Q}.lora_A.weight", 4, 40), [f"{Q}.lora_A.weight", "[48, 40]", "another model"]),
    "weights: a module that is not there": (
        tensors(
            lambda stored: [
                stored.update({n.replace("layers.1", "layers.7"): stored.pop(n)})
                for n in list(stored)
                if "layers.1" in n
            ]
        ),
        ["layers.7.self_attn.q_proj"],
    ),
}
"""Damages of a LoRA adapter's files."""

PROMPTS = {
    "no tensor": ("prompt_tuning", without("prompt_embeddings"), ["'prompt_embeddings' is missing"]),
    "another tensor": ("prompt_tuning", shaped("prompt_encoder.w", 3), ["'prompt_encoder.w' is no part of virtual"]),
    "NaN": ("prompt_tuning", spoiled("prompt_embeddings", np.nan), ["prompt_embeddings", "NaN"]),
    "infinity": ("prefix_tuning", spoiled("prompt_embeddings", -np.inf), ["prompt_embeddings", "infinity"]),
    "one dimension": ("prompt_tuning", shaped("prompt_embeddings", 240), ["'prompt_embeddings' has shape [240]"]),
    "fewer tokens": ("p_tuning", shaped("prompt_embeddings", 4, 48), ["[4, 48], expected [5, 48]", "num_virtual"]),
    "no tokens": ("prompt_tuning", fields(num_virtual_tokens=0), ["num_virtual_tokens is 0, expected 1 to 8192"]),
    "unknown tokens": ("prompt_tuning", fields(num_virtual_tokens=None), ["num_virtual_tokens is missing"]),
    "half a token": ("prompt_tuning", fields(num_virtual_tokens=2.5), ["$.num_virtual_tokens"]),
    "other hidden size": (
        "prompt_tuning",
        lambda p: (shaped("prompt_embeddings", 5, 40)(p), fields(token_dim=40)(p)),
        ["'prompt_embeddings' has shape [5, 40], expected [5, 48]", "another model"],
    ),
    "other layers": (
        "prefix_tuning",
        lambda p: (shaped("prompt_embeddings", 5, 144)(p), fields(num_layers=3)(p)),
        ["num_layers is 3 for tensor 'prompt_embeddings', the model has 2 layers", "another model"],
    ),
    "other heads": ("prefix_tuning", fields(num_attention_heads=4), ["num_attention_heads is 4", "2 key/value heads"]),
    "other width": (
        "prefix_tuning",
        lambda p: (shaped("prompt_embeddings", 5, 80)(p), fields(num_layers=None)(p)),
        ["'prompt_embeddings' has shape [5, 80], expected [5, 96], 2 layers, keys and values of 2 heads of 12"],
    ),
    "two models in one": ("prompt_tuning", fields(num_transformer_submodules=2), ["num_transformer_submodules is 2"]),
    "a classifier": ("prompt_tuning", fields(task_type="SEQ_CLS"), ["task_type is 'SEQ_CLS', expected CAUSAL_LM"]),
    "a module beside": ("prompt_tuning", fields(modules_to_save=["lm_head"]), ["modules_to_save names 'lm_head'"]),
    "unknown field": ("prefix_tuning", fields(use_magic=1), ["use_magic", "PREFIX_TUNING"]),
    "prompts of tasks": ("prompt_tuning", fields(peft_type="MULTITASK_PROMPT_TUNING"), ["no fixed prefix"]),
    "pickled": ("prompt_tuning", lambda p: (p / WEIGHTS).rename(p / "adapter_model.bin"), ["found adapter_model.bin"]),
}

BROKEN = {
    "lora: NaN": ("lora", spoiled(f"{Q}.lora_B.weight", np.nan), [f"{Q}.lora_B.weight", "NaN"]),
    "lora: infinity": ("lora", spoiled(f"{Q}.lora_A.weight", np.inf), [f"{Q}.lora_A.weight", "infinity"]),
    "lora: A is zero": ("lora", scaled(0, "lora_A.weight"), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: alpha is zero": ("lora", fields(lora_alpha=0), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: below the precision": ("lora", scaled(1e-18, "lora_B.weight"), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: unknown field": ("lora", fields(use_magic=True), ["use_magic", "no field that pyc knows", "LORA"]),
    "lora: unknown type": ("lora", fields(peft_type="XLORA"), ["peft_type 'XLORA' is not supported", "known: LORA"]),
    "lora: type is a list": ("lora", fields(peft_type=["LORA"]), ["adapter_config.json", "at `$.peft_type`"]),
    "lora: read as a prefix": (
        "lora",
        fields(peft_type="PREFIX_TUNING"),
        ["is no field that pyc knows of PREFIX_TUNING adapters, and it is set"],
    ),
    "dora: no lengths": ("dora", without(f"{Q}.lora_magnitude_vector"), ["q_proj", "no lora_magnitude_vector"]),
    "dora: too many": ("dora", shaped(f"{Q}.lora_magnitude_vector", 49), [f"{Q}.lora_magnitude_vector", "[49]"]),
    "dora: NaN": ("dora", spoiled(f"{Q}.lora_magnitude_vector", np.nan), [f"{Q}.lora_magnitude_vector", "NaN"]),
    "dora: lengths alone": (
        "dora",
        tensors(lambda stored: [stored.pop(f"{Q}.lora_{half}.weight") for half in "AB"]),
        [f"{Q}.lora_magnitude_vector", "without lora_A"],
    ),
    "loha: half is missing": ("loha", without(f"{Q}.hada_w1_b"), ["q_proj", "no hada_w1_b tensor"]),
    "loha: rank": ("loha", fields(r=5), ["hada_w1_a", "expected [out, rank] with rank 5"]),
    "loha: convolution": ("loha", shaped(f"{Q}.hada_t1", 4, 4), [f"{Q}.hada_t1", "convolution"]),
    "loha: other model": ("loha", shaped(f"{Q}.hada_w1_a", 40, 4), [f"{Q}.hada_w1_a", "[40, 48]", "one shape"]),
    "loha: alpha": ("loha", fields(alpha=None), ["alpha is missing"]),
    "lokr: both forms": (
        "lokr",
        shaped(f"{Q}.lokr_w1_a", 6, 2),
        [f"{Q}.lokr_w1'", f"{Q}.lokr_w1_a", "expected one or the other"],
    ),
    "lokr: factors": ("lokr", fields(decompose_factor=2), ["lokr_w1", "decompose_factor 2", "expected one matrix"]),
    "lokr: nothing": ("lokr", scaled(0, "lokr_w2_b"), ["lokr_w1", "changes no value"]),
    "vera: no shared matrix": ("vera", without("base_model.vera_A"), ["0 tensors base_model.vera_A"]),
    "vera: not saved": ("vera", fields(save_projection=False), ["save_projection is false", "merge_and_unload"]),
    "vera: shared matrix too small": ("vera", shaped("base_model.vera_B", 40, 12), ["base_model.vera_B", "too small"]),
    "vera: vector": ("vera", shaped(f"{Q}.vera_lambda_b", 47), [f"{Q}.vera_lambda_b", "[47]", "expected [48]"]),
    "vera: ranks": ("vera", shaped(f"{Q}.vera_lambda_d", 11), [f"{Q}.vera_lambda_d", "with rank 12"]),
    "vera: left over": ("vera", shaped(f"{Q}.vera_lambda_e", 3), [f"{Q}.vera_lambda_e", "neither part of vera"]),
    "oft: two sizes": ("oft", fields(r=4), ["r is 4 and oft_block_size 8"]),
    "oft: other size": ("oft", fields(oft_block_size=4), ["oft_R.weight", "[10, 28]", "expected [20, 6]"]),
    "oft: old": ("oft", fields(oft_block_size=None), ["oft_block_size is missing", "before 0.14"]),
    "oft: old series": ("oft", fields(peft_version="0.17.1"), ["use_cayley_neumann of PEFT 0.17.1"]),
    "oft: no terms": ("oft", fields(num_cayley_neumann_terms=0), ["num_cayley_neumann_terms is 0"]),
    "oft: an embedding": (
        "oft",
        shaped("base_model.model.model.embed_tokens.oft_embedding_R.weight", 6, 28),
        ["embed_tokens", "which target_modules does not name"],
    ),
    "oft: a target embedding": (
        "oft",
        lambda folder: (
            fields(target_modules=["q_proj", "down_proj", "embed_tokens"])(folder),
            shaped("base_model.model.model.embed_tokens.oft_embedding_R.weight", 6, 28)(folder),
        ),
        ["embed_tokens.oft_embedding_R.weight", "an embedding, where only LoRA can be fused"],
    ),
    "boft: no scale": ("boft", without(f"{Q}.boft_s"), ["q_proj", "no boft_s tensor"]),
    "boft: not square": ("boft", shaped(f"{Q}.boft_R", 1, 12, 4, 3), [f"{Q}.boft_R", "[factors, blocks, size, size]"]),
    "boft: other blocks": ("boft", fields(boft_block_size=7), ["boft_R", "80 inputs", "blocks of 7"]),
    "boft: factors": ("boft", shaped(f"{Q}.boft_R", 3, 12, 4, 4), [f"{Q}.boft_R", "with 1 factors"]),
    "boft: scale": ("boft", shaped(f"{Q}.boft_s", 48), [f"{Q}.boft_s", "expected [out, 1]"]),
    "boft: neither size": ("boft", fields(boft_block_size=0), ["boft_block_size is 0 and boft_block_num 0"]),
}


@pytest.fixture(scope="module")
def originals(tiny_checkpoint, tiny_adapter):
    checkpoint = tiny_checkpoint("llama")
    kinds = KINDS | {"lora": ("lora", {"r": 4, "target_modules": ["q_proj"]})}
    names = ("lora", "dora", "loha", "lokr", "vera", "oft", "boft")
    made = {name: tiny_adapter(checkpoint, kinds[name][0], **kinds[name][1]) for name in names}
    prompts = ("prompt_tuning", "p_tuning", "prefix_tuning")
    options = {"num_virtual_tokens": 5, "task_type": "CAUSAL_LM"}
    return checkpoint, made | {name: tiny_adapter(checkpoint, name, **options) for name in prompts}


@pytest.fixture
def plan(originals, tmp_path, capsys):
    """`plan(kind, damage, weight)`: the exit code and what a plan of a damaged copy prints on stderr."""
    checkpoint, adapters = originals

    def run(kind, damage=lambda folder: None, weight=1.0):
        shutil.copytree(adapters[kind], tmp_path / "adapter")
        damage(tmp_path / "adapter")
        recipe = tmp_path / "model.yaml"
        recipe.write_text(f"model: {checkpoint}\nadapters: [{{path: ./adapter, weight: {weight}}}]\n")
        capsys.readouterr()
        code = main(["plan", str(recipe)])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_adapter_is_refused(case, plan):
    kind, damage, words = BROKEN[case]
    code, message = plan(kind, damage)
    assert code == 5, message
    assert "adapter" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("case", FILES)
def test_a_broken_file_is_refused(case, plan):
    damage, words = FILES[case]
    code, message = plan("lora", damage)
    assert code == 5, message
    assert message.count("\n") == 1, message
    for word in words:
        assert word in message


@pytest.mark.parametrize("case", PROMPTS)
def test_broken_virtual_tokens_are_refused(case, plan):
    kind, damage, words = PROMPTS[case]
    code, message = plan(kind, damage)
    assert code == 5, message
    assert message.count("\n") == 1, message
    for word in words:
        assert word in message


REFUSED = {
    "in part": ("adapters=[{path: A, weight: 0.5}]", ["weight is 0.5, but virtual tokens are there or not"]),
    "twice": ("adapters=[{path: A}, {path: B}]", ["has virtual tokens, too"]),
    "merged": ("merge={method: linear}", ["`merge` is of LoRA adapters, and it has virtual tokens"]),
    "no room": ("shapes={context: 60}", ["context is 60 tokens, the model serves 1 to 59 beside 5 virtual ones"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_virtual_tokens_that_a_recipe_cannot_have(case, originals, tmp_path, capsys):
    setting, words = REFUSED[case]
    checkpoint, adapters = originals
    prompt, other = adapters["prompt_tuning"], adapters["prefix_tuning"]
    recipe = tmp_path / "model.yaml"
    beside = f", {{path: {adapters['lora']}}}" if case == "merged" else ""
    recipe.write_text(f"model: {checkpoint}\nadapters: [{{path: {prompt}}}{beside}]\n")
    setting = setting.replace("path: A", f"path: {prompt}").replace("path: B", f"path: {other}")
    capsys.readouterr()
    code = main(["plan", str(recipe), "--set", setting])
    message = capsys.readouterr().err
    assert code == (4 if case == "no room" else 5), message
    for word in words:
        assert word in message


def test_virtual_tokens_of_an_encoder(originals, tiny_checkpoint, tmp_path, capsys):
    recipe = tmp_path / "model.yaml"
    adapter = originals[1]["prompt_tuning"]
    recipe.write_text(f"model: {tiny_checkpoint('bert')}\nadapters: [{{path: {adapter}}}]\n")
    capsys.readouterr()
    assert main(["plan", str(recipe)]) == 5
    assert "is an encoder; virtual tokens stand in front of a decoder's text" in capsys.readouterr().err


KINDS_HERE = ["lora", "dora", "loha", "lokr", "vera", "oft", "boft", "prompt_tuning", "p_tuning", "prefix_tuning"]


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_whole_one_is_planned(kind, plan):
    code, message = plan(kind)
    assert code == 0, message


@pytest.mark.parametrize("kind", ["oft", "boft"])
def test_rotations_have_no_parts(kind, plan):
    code, message = plan(kind, weight=0.5)
    assert code == 5
    assert f"weight is 0.5, but {kind} multiplies weights" in message


def test_an_adapter_at_weight_zero(plan):
    code, message = plan("lora", weight=0.0)
    assert code == 5
    assert "changes no value" in message
    assert "adapters[0].weight is 0; leave the adapter out, or raise its weight" in message


def test_errors_name_the_adapter_as_the_recipe_does(originals, tmp_path, capsys):
    """Two in folders of one name, as trainers make them: the message says which it is."""
    checkpoint, adapters = originals
    for run in ("a", "b"):
        shutil.copytree(adapters["lora"], tmp_path / run / "final")
    scaled(0, "lora_A.weight")(tmp_path / "b" / "final")
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {checkpoint}\nadapters: [{{path: ./a/final}}, {{path: ./b/final}}]\n")
    capsys.readouterr()
    assert main(["plan", str(recipe)]) == 5
    assert "adapter './b/final': tensor" in capsys.readouterr().err


def test_a_merged_adapter_at_weight_zero(originals, tmp_path, caplog):
    checkpoint, adapters = originals
    shutil.copytree(adapters["lora"], tmp_path / "other")
    recipe = tmp_path / "model.yaml"
    recipe.write_text(
        f"model: {checkpoint}\nadapters: [{{path: {adapters['lora']}}}, {{path: ./other, weight: 0}}]\n"
        "merge: {method: linear}\n"
    )
    assert main(["plan", str(recipe)]) == 0
    assert "adapter ./other: adapters[1].weight is 0, so it has no part in the merge" in caplog.text


def test_an_adapter_that_was_never_trained(plan):
    """Its B is zero still: it changes nothing, and says so itself."""
    code, message = plan("lora", scaled(0, "lora_B.weight"))
    assert code == 0, message


def test_factors_of_an_output_whose_bias_is_zero_are_taken(tiny_checkpoint, tiny_adapter, tmp_path, capsys):
    """As a model has them that was made with attention_bias and not trained: the weight changes, the bias cannot."""
    original = tiny_checkpoint("llama", attention_bias=True)
    targets = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    adapter = tiny_adapter(original, "ia3", **targets)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(original, checkpoint)
    stored = load_file(checkpoint / "model.safetensors")
    biases = [name for name in stored if name.endswith("_proj.bias")]
    assert biases
    save_file(
        stored | {name: np.zeros_like(stored[name]) for name in biases},
        checkpoint / "model.safetensors",
        {"format": "pt"},
    )
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {checkpoint}\nadapters: [{{path: {adapter}}}]\n")
    code = main(["plan", str(recipe)])
    assert code == 0, capsys.readouterr().err
    save_file(
        stored | {name: np.zeros_like(stored[name]) for name in stored if "k_proj" in name},
        checkpoint / "model.safetensors",
        {"format": "pt"},
    )
    assert main(["plan", str(recipe)]) == 5
    assert "k_proj.weight and model.layers.0.self_attn.k_proj.bias" in capsys.readouterr().err
