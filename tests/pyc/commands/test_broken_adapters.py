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


BROKEN = {
    "lora: NaN": ("lora", spoiled(f"{Q}.lora_B.weight", np.nan), [f"{Q}.lora_B.weight", "NaN"]),
    "lora: infinity": ("lora", spoiled(f"{Q}.lora_A.weight", np.inf), [f"{Q}.lora_A.weight", "infinity"]),
    "lora: A is zero": ("lora", scaled(0, "lora_A.weight"), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: alpha is zero": ("lora", fields(lora_alpha=0), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: below the precision": ("lora", scaled(1e-18, "lora_B.weight"), [f"{Q}.lora_B.weight", "changes no value"]),
    "lora: unknown field": ("lora", fields(use_magic=True), ["use_magic", "no field that pyc knows", "LORA"]),
    "lora: unknown type": ("lora", fields(peft_type="XLORA"), ["peft_type 'XLORA' is not supported", "known: LORA"]),
    "lora: type is a list": ("lora", fields(peft_type=["LORA"]), ["adapter_config.json", "at `$.peft_type`"]),
    "prompt tuning": ("lora", fields(peft_type="PREFIX_TUNING"), ["PREFIX_TUNING", "virtual tokens"]),
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
    "vera: not saved": ("vera", fields(save_projection=False), ["save_projection is false", "save it again"]),
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
    return checkpoint, {name: tiny_adapter(checkpoint, kinds[name][0], **kinds[name][1]) for name in names}


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


@pytest.mark.parametrize("kind", ["lora", "dora", "loha", "lokr", "vera", "oft", "boft"])
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


def test_an_adapter_that_was_never_trained(plan):
    """Its B is zero still: it changes nothing, and says so itself."""
    code, message = plan("lora", scaled(0, "lora_B.weight"))
    assert code == 0, message
