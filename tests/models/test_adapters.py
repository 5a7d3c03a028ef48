"""models/adapters.py: adapters made with PEFT say what PEFT does; broken ones are refused by name."""

import json
import math
import re
import shutil
import struct

import msgspec
import numpy as np
import pytest
from graph_interpreter import value_of

from pyc.models.adapter_config import AdapterConfig, check_adapter_config
from pyc.models.adapters import read_adapter
from pyc.runtime.errors import AdapterError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ATTENTION = ["q_proj", "v_proj"]
Q = "base_model.model.model.layers.0.self_attn.q_proj"

ADAPTED = {
    "lora": ("llama", "lora", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "all-linear": ("qwen3", "lora", {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"}),
    "some-layers": (
        "llama",
        "lora",
        {"r": 2, "target_modules": [*ATTENTION, "lm_head"], "layers_to_transform": [1], "layers_pattern": "layers"},
    ),
    "excluded": ("bert", "lora", {"r": 2, "target_modules": ["dense"], "exclude_modules": ["pooler.dense"]}),
    "regex": ("qwen2", "lora", {"r": 2, "target_modules": r".*\.1\..*(k|up)_proj"}),
    "rslora": ("mistral", "lora", {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ATTENTION}),
    "patterns": (
        "llama",
        "lora",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": [*ATTENTION, "down_proj"],
            "rank_pattern": {"down_proj": 6, r"^model.layers.1.*v_proj": 3},
            "alpha_pattern": {"layers.0.self_attn.q_proj": 20},
        },
    ),
    "embedding": ("llama", "lora", {"r": 4, "target_modules": ["embed_tokens", "lm_head", "o_proj"]}),
    "biases": ("qwen2", "lora", {"r": 4, "bias": "all", "target_modules": ATTENTION}),
    "target-biases": ("qwen2", "lora", {"r": 4, "bias": "lora_only", "target_modules": ["q_proj"]}),
    "whole": (
        "llama",
        "lora",
        {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]},
    ),
    "fan-in-fan-out": ("llama", "lora", {"r": 4, "target_modules": ["q_proj"], "fan_in_fan_out": True}),
    "bert": ("bert", "lora", {"r": 4, "target_modules": ["query", "word_embeddings"]}),
    "ia3": (
        "llama",
        "ia3",
        {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
    "ia3-bias": ("qwen2", "ia3", {"target_modules": ["k_proj", "up_proj"], "feedforward_modules": []}),
    "ia3-regex": (
        "qwen3",
        "ia3",
        {"target_modules": r".*\.(v_proj|gate_proj)", "feedforward_modules": r".*\.0\.mlp\.gate_proj"},
    ),
}


def merged_by_peft(checkpoint, adapter):
    """Names and float64 values of the model's parameters after PEFT merged the adapter."""
    import peft
    import torch
    import transformers

    kind = json.loads((checkpoint / "config.json").read_text())["model_type"]
    auto = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(checkpoint, dtype=torch.float64)
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    peft_model = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    merged = peft_model.merge_and_unload()
    return before, {name: value.numpy() for name, value in merged.state_dict().items()}


def merged_by_us(before, adapter):
    """The same, from what read_adapter says."""
    after = dict(before)
    for name, source in adapter.replacements:
        after[name] = value_of(source)
    for update in adapter.low_rank:
        name = update.module + ".weight"
        after[name] = after[name] + update.scale * (value_of(update.b) @ value_of(update.a))
    for scale in adapter.scales:
        vector, name = value_of(scale.vector), scale.module + ".weight"
        after[name] = after[name] * (vector if scale.side == "input" else vector[:, None])
        bias = scale.module + ".bias"
        if scale.side == "output" and bias in after:
            after[bias] = after[bias] * vector
    return after


@pytest.mark.slow
@pytest.mark.parametrize("case", ADAPTED)
def test_an_adapter_means_what_peft_merges(case, tiny_checkpoint, tiny_adapter):
    model_type, kind, config = ADAPTED[case]
    checkpoint = tiny_checkpoint(model_type)
    path = tiny_adapter(checkpoint, kind, **config)
    adapter = read_adapter(path.name, path.parent)
    before, expected = merged_by_peft(checkpoint, path)
    got = merged_by_us(before, adapter)
    assert set(got) == set(expected)
    changed = [name for name in got if not np.array_equal(expected[name], before[name])]
    assert changed
    for name, value in expected.items():
        assert np.abs(got[name] - value).max() < 1e-6, name  # PEFT computes factors in float32
    assert adapter.kind == kind
    assert [source.name for source in adapter.sources] == [f"{path.name}/{CONFIG}", f"{path.name}/{WEIGHTS}"]


@pytest.mark.slow
def test_scales_of_patterns(tiny_checkpoint, tiny_adapter):
    path = tiny_adapter(tiny_checkpoint("llama"), **ADAPTED["patterns"][2])
    scales = {update.module: update.scale for update in read_adapter(str(path), path).low_rank}
    assert scales["model.layers.0.self_attn.q_proj"] == 20 / 4
    assert scales["model.layers.1.self_attn.q_proj"] == 8 / 4
    assert scales["model.layers.0.self_attn.v_proj"] == 8 / 4
    assert scales["model.layers.1.self_attn.v_proj"] == 8 / 3
    assert scales["model.layers.1.mlp.down_proj"] == 8 / 6
    path = tiny_adapter(tiny_checkpoint("mistral"), **ADAPTED["rslora"][2])
    assert {update.scale for update in read_adapter(str(path), path).low_rank} == {8 / math.sqrt(4)}


def test_names_with_the_adapters_name_in_them(lora):
    rename(lora, lambda name: name.replace(".weight", ".default.weight"))
    assert len(read_adapter(str(lora), lora).low_rank) == 4


def test_names_without_the_prefix(lora):
    rename(lora, lambda name: name.removeprefix("base_model.model."))
    assert read_adapter(str(lora), lora).low_rank[0].module == "model.layers.0.self_attn.q_proj"


@pytest.fixture
def lora(tiny_checkpoint, tiny_adapter):
    return tiny_adapter(tiny_checkpoint("llama"), r=4, target_modules=ATTENTION)


@pytest.fixture
def ia3(tiny_checkpoint, tiny_adapter):
    return tiny_adapter(tiny_checkpoint("llama"), **{"kind": "ia3", **ADAPTED["ia3"][2]})


def set_config(path, **fields):
    table = json.loads((path / CONFIG).read_text())
    table.update(fields)
    (path / CONFIG).write_text(json.dumps({key: value for key, value in table.items() if value != "absent"}))


def edit(path, change):
    """Apply `change` to {name: (dtype, shape, bytes)} of the adapter's tensors."""
    data = (path / WEIGHTS).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    tensors = {n: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for n, e in header.items()}
    change(tensors)
    header, body = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(body), len(body) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += content
    text = json.dumps(header).encode()
    (path / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + body)


def rename(path, change):
    def apply(tensors):
        renamed = {change(name): value for name, value in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    edit(path, apply)


def refusal(path):
    with pytest.raises(AdapterError) as caught:
        read_adapter(path.name, path.parent)
    assert str(caught.value).startswith(f"{path.name}: ")
    return str(caught.value)


def extra(name, shape=(4,)):
    content = bytes(4 * math.prod(shape))
    return lambda path: edit(path, lambda t: t.update({name: ("F32", list(shape), content)}))


BROKEN_LORA = {
    "no config": (lambda p: (p / CONFIG).unlink(), f"no {CONFIG}; this is not a PEFT adapter"),
    "config is not JSON": (lambda p: (p / CONFIG).write_text("{"), f"{CONFIG}: not valid JSON"),
    "no weights": (lambda p: (p / WEIGHTS).unlink(), f"no {WEIGHTS}; save it with PEFT"),
    "pickle": (
        lambda p: (p / WEIGHTS).rename(p / "adapter_model.bin"),
        "found adapter_model.bin, but only safetensors are read (pickle can run code)",
    ),
    "truncated": (
        lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:-1]),
        f"{WEIGHTS}: truncated: got ",
    ),
    "no tensors": (lambda p: edit(p, lambda t: t.clear()), f"{WEIGHTS} has no lora tensors"),
    "no type": (
        lambda p: set_config(p, peft_type=None),
        "peft_type None is not supported (known: LORA, IA3, LOHA, LOKR, VERA, OFT, BOFT, TRAINABLE_TOKENS, PROMPT_",
    ),
    "other type": (
        lambda p: set_config(p, peft_type="ADAPTION_PROMPT"),
        "peft_type 'ADAPTION_PROMPT' is not supported",
    ),
    "a type that PEFT merges": (
        lambda p: set_config(p, peft_type="ADALORA"),
        "PREFIX_TUNING); merge it into the model with PEFT, by merge_and_unload, and build what save_pretrained writes",
    ),
    "a type that PEFT does not merge": (
        lambda p: set_config(p, peft_type="XLORA"),
        "PREFIX_TUNING); use PEFT with the checkpoint",
    ),
    "a field that PEFT merges": (
        lambda p: set_config(p, lora_bias=True),
        "a bias on lora_B cannot be fused; merge it into the model with PEFT, by merge_and_unload",
    ),
    "a field that PEFT does not merge": (
        lambda p: set_config(p, use_qalora=True),
        "QALoRA adapters cannot be fused; use PEFT with the checkpoint",
    ),
    "no rank": (lambda p: set_config(p, r="absent"), f"{CONFIG}: r is missing"),
    "no alpha": (lambda p: set_config(p, lora_alpha="absent"), f"{CONFIG}: lora_alpha is missing"),
    "rank is text": (lambda p: set_config(p, r="four"), "Expected `int | null`, got `str` - at `$.r`"),
    "other rank": (
        lambda p: set_config(p, r=8),
        f"tensor '{Q}.lora_A.weight' has shape [4, 48], expected [rank, in] with rank 8",
    ),
    "halves of two ranks": (
        lambda p: edit(p, lambda t: t.update({f"{Q}.lora_B.weight": ("F32", [64, 3], bytes(768))})),
        f"tensor '{Q}.lora_B.weight' has shape [64, 3], expected [out, rank] with rank 4",
    ),
    "half is missing": (
        lambda p: edit(p, lambda t: t.pop(f"{Q}.lora_B.weight")),
        f"has '{Q}.lora_A.weight' but no lora_B tensor",
    ),
    "half is double": (
        lambda p: edit(p, lambda t: t.update({f"{Q}.lora_B.other.weight": t[f"{Q}.lora_B.weight"]})),
        "are the same half",
    ),
    "name with and without prefix": (
        lambda p: edit(p, lambda t: t.update({f"{Q}.lora_A.weight"[17:]: t[f"{Q}.lora_A.weight"]})),
        "are the same",
    ),
    "not in target_modules": (
        lambda p: set_config(p, target_modules=["v_proj"]),
        "belongs to model.layers.0.self_attn.q_proj, which target_modules does not name",
    ),
    "excluded": (
        lambda p: set_config(p, exclude_modules=["q_proj"]),
        "belongs to model.layers.0.self_attn.q_proj, which exclude_modules leaves out",
    ),
    "excluded by a pattern": (
        lambda p: set_config(p, exclude_modules=r".*\.1\..*"),
        "belongs to model.layers.1.self_attn.q_proj, which exclude_modules leaves out",
    ),
    "another layer": (
        lambda p: set_config(p, layers_to_transform=[0]),
        "belongs to model.layers.1.self_attn.q_proj, which is in no layer of layers_to_transform",
    ),
    "one layer, by its number": (
        lambda p: set_config(p, layers_to_transform=1, layers_pattern="layers"),
        "belongs to model.layers.0.self_attn.q_proj, which is in no layer of layers_to_transform",
    ),
    "layers by another name": (
        lambda p: set_config(p, layers_to_transform=[0, 1], layers_pattern=["blocks"]),
        "belongs to model.layers.0.self_attn.q_proj, which is in no layer of layers_to_transform",
    ),
    "adapted and replaced": (
        lambda p: set_config(p, modules_to_save=["q_proj"]),
        "belongs to model.layers.0.self_attn.q_proj, which modules_to_save replaces as a whole",
    ),
    "no target_modules": (
        lambda p: set_config(p, target_modules=None),
        "target_modules is missing",
    ),
    "an output head is no linear layer to PEFT": (
        lambda p: (
            set_config(p, target_modules="all-linear"),
            extra("base_model.model.lm_head.lora_A.weight", (4, 48))(p),
            extra("base_model.model.lm_head.lora_B.weight", (263, 4))(p),
        ),
        "belongs to lm_head, which target_modules does not name",
    ),
    "factors of an embedding on a linear layer": (
        lambda p: rename(p, lambda name: re.sub(r"lora_([AB])\.weight", r"lora_embedding_\1", name)),
        "a linear layer: expected lora_A",
    ),
    "factors of a linear layer on an embedding": (
        lambda p: (
            set_config(p, target_modules=[*ATTENTION, "embed_tokens"]),
            extra("base_model.model.model.embed_tokens.lora_A.weight", (4, 48))(p),
            extra("base_model.model.model.embed_tokens.lora_B.weight", (263, 4))(p),
        ),
        "belongs to model.embed_tokens, an embedding: expected lora_embedding_A",
    ),
    "target_modules is not a pattern": (
        lambda p: set_config(p, target_modules="(q_proj"),
        "is not a regular expr",
    ),
    "pattern that looks behind": (
        lambda p: set_config(p, target_modules="(?<=a)q_proj"),
        "is not a regular expression that is read: '(?<=' is not supported",
    ),
    "more patterns than modules": (
        lambda p: set_config(p, rank_pattern={f"m{number}": 3 for number in range(3000)}),
        "rank_pattern has 3000 entries, expected at most 2048",
    ),
    "evil pattern": (
        lambda p: set_config(p, target_modules="(([a-z._0-9]+)+)+!"),
        "which target_modules does not name",
    ),
    "endless pattern": (
        lambda p: set_config(p, rank_pattern={"q" * 2000: 3}),
        "it has 2010 characters, expected at most 1024",
    ),
    "integers": (
        lambda p: edit(p, lambda t: t.update({f"{Q}.lora_A.weight": ("I32", [4, 48], bytes(768))})),
        f"tensor '{Q}.lora_A.weight' is stored as i32",
    ),
    "left-over tensor": (
        extra(f"{Q}.lora_C.weight"),
        f"tensor '{Q}.lora_C.weight' is neither part of lora nor in",
    ),
    "left-over bias": (extra(f"{Q}.bias"), f"tensor '{Q}.bias' is neither part of lora"),
    "left-over magnitude": (
        extra(f"{Q}.lora_magnitude_vector"),
        "lora_magnitude_vector' is neither part of lora",
    ),
    "saved module is missing": (
        lambda p: set_config(p, modules_to_save=["lm_head"]),
        f"modules_to_save names 'lm_head', but {WEIGHTS} has no such tensor",
    ),
    "DoRA without lengths": (
        lambda p: set_config(p, use_dora=True),
        "use_dora is set, but model.layers.0.self_attn.q_proj has no lora_magnitude_vector tensor",
    ),
    "bias on B": (lambda p: set_config(p, lora_bias=True), "lora_bias is set"),
    "aLoRA": (lambda p: set_config(p, alora_invocation_tokens=[1, 2]), "alora_invocation_tokens is set"),
    "layer replication": (lambda p: set_config(p, layer_replication=[[0, 1]]), "layer_replication is set"),
    "bare parameters": (lambda p: set_config(p, target_parameters=["mlp.w"]), "target_parameters is set"),
    "PiSSA": (
        lambda p: set_config(p, init_lora_weights="pissa_niter_4"),
        "'pissa_niter_4' also changes the base",
    ),
    "LoftQ": (lambda p: set_config(p, init_lora_weights="loftq"), "path_initial_model_for_weight_conversion"),
}
BROKEN_IA3 = {
    "no feedforward_modules": (
        lambda p: set_config(p, feedforward_modules=None),
        "feedforward_modules, which says",
    ),
    "input side by config, output by shape": (
        lambda p: set_config(p, feedforward_modules=["down_proj", "k_proj"]),
        "k_proj.ia3_l' has shape [24, 1], expected [1, in], as feedforward_modules names",
    ),
    "output side by config, input by shape": (
        lambda p: set_config(p, feedforward_modules=[]),
        "down_proj.ia3_l' has shape [1, 80], expected [out, 1], as feedforward_modules does not name",
    ),
    "feed-forward modules that are no targets": (
        lambda p: set_config(p, target_modules=["k_proj", "v_proj", "mlp.down_proj"]),
        "feedforward_modules has 'down_proj', which target_modules does not have, and PEFT refuses that",
    ),
    "LoRA tensor": (
        extra(f"{Q}.lora_A.weight", (4, 4)),
        f"tensor '{Q}.lora_A.weight' is neither part of ia3 nor in modules_to_save",
    ),
    "excluded": (
        lambda p: set_config(p, exclude_modules=["down_proj"]),
        "down_proj, which exclude_modules leaves out",
    ),
    "double vector": (
        lambda p: edit(p, lambda t: t.update({f"{n}.other": v for n, v in list(t.items())[:1]})),
        "has two ia3_l tensors",
    ),
    "not in target_modules": (
        lambda p: set_config(p, target_modules=["k_proj", "down_proj"]),
        "v_proj, which target_modules does not name",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN_LORA)
def test_a_broken_lora_is_refused(case, lora):
    damage, message = BROKEN_LORA[case]
    damage(lora)
    assert message in refusal(lora)


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN_IA3)
def test_a_broken_ia3_is_refused(case, ia3):
    damage, message = BROKEN_IA3[case]
    damage(ia3)
    assert message in refusal(ia3)


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_git_lfs_pointer_in_place_of_a_file(file, lora):
    (lora / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert f"{file}: this is a Git LFS pointer in place of the file; fetch the file itself: git" in refusal(lora)


LISTS = [
    (["k_proj", "down_proj"], ["down_proj"]),
    (["k_proj"], ["down_proj"]),
    (["k_proj", "mlp.down_proj"], ["down_proj"]),
    (["k_proj"], []),
    (r".*k_proj", ["down_proj"]),
    (["k_proj"], r".*down_proj"),
]


@pytest.mark.parametrize(("targets", "feedforward"), LISTS)
def test_feedforward_modules_are_refused_where_peft_refuses_them(targets, feedforward):
    import peft

    given = {"target_modules": targets, "feedforward_modules": feedforward}
    try:
        peft.IA3Config(**given)
    except ValueError:
        with pytest.raises(AdapterError, match="feedforward_modules has 'down_proj'"):
            check_adapter_config(msgspec.convert({"peft_type": "IA3", **given}, AdapterConfig), "adapter")
    else:
        assert check_adapter_config(msgspec.convert({"peft_type": "IA3", **given}, AdapterConfig), "adapter") == "ia3"


def test_a_folder_of_named_adapters_says_their_paths(lora, tmp_path):
    """As PEFT's save_pretrained writes it for adapters with names."""
    folder = tmp_path / "many"
    (folder / "notes").mkdir(parents=True)
    (folder / "README.md").write_text("")
    for name in ("sft", "dpo"):
        shutil.copytree(lora, folder / name)
    with pytest.raises(AdapterError) as caught:
        read_adapter("many", tmp_path)
    assert str(caught.value) == f"many: no {CONFIG}, but folders in it are adapters: name one of many/dpo, many/sft"
    assert read_adapter("many/dpo", tmp_path).low_rank


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(AdapterError, match=r"\./none: no such directory"):
        read_adapter("./none", tmp_path)


def test_a_link_that_leads_out_is_refused(lora, tmp_path):
    (lora / WEIGHTS).rename(tmp_path / "elsewhere")
    (lora / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link that leads out" in refusal(lora)
