"""Recipes of features drawn together: what each command says of one is what the others do, and what PEFT computes.

Two in each run; PYC_DRAWN=N (`make test-long`) for N of them, PYC_DRAWN=FROM-TO for those from FROM on.
"""

import json
import os

import numpy as np
import pytest
from adapter_cases import butterflies
from built_models import difference, random_ids
from drawn_recipes import TEXT, draw

from pyc import cli
from pyc.runtime.model import load

KL_BOUND = 1e-9
"""Of f32 against f32 (tests/reference/test_adapters.py), a digit more: weights of -1.25 take more from each other."""


def seeds():
    first, _, end = os.environ.get("PYC_DRAWN", "2").rpartition("-")
    return range(int(first or 0), int(end))


@pytest.fixture
def pyc(tmp_path, monkeypatch, capfd):
    """Runs a command that has to succeed, and returns its JSON, if it prints one."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert code == 0, (arguments, captured.err)
        return json.loads(captured.out) if "--json" in arguments or "--recipe" in arguments else captured.out

    return run


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds())
def test_commands_agree_with_each_other_and_with_peft(seed, pyc, tmp_path, tiny_checkpoint, tiny_adapter):
    drawn = draw(seed)
    checkpoint = tiny_checkpoint(drawn.model_type, **drawn.checkpoint)
    adapters = [tiny_adapter(checkpoint, kind, seed=n + 1, **config) for n, (kind, config) in enumerate(drawn.adapters)]
    (tmp_path / "text.txt").write_text(TEXT)
    document = drawn.document(checkpoint, adapters, tmp_path / "text.txt")
    recipe = tmp_path / "model.yaml"
    recipe.write_text(json.dumps(document))

    planned = pyc("plan", recipe, "--json")
    built = pyc("build", recipe, "-o", tmp_path / "a.pyca", "--json")
    assert pyc("build", recipe, "-o", tmp_path / "a.pyca", "--check", "--json")["is_up_to_date"]
    names = {tensor["name"] for tensor in pyc("inspect", tmp_path / "a.pyca", "--json")["header"]["tensors"]}
    check_sizes(drawn, planned, built, names)
    matrices = pyc("report", tmp_path / "a.pyca", recipe, "--json")["matrices"]
    check_goal(drawn, built, matrices)

    # The recipe that it records, and the recipe, make the same again.
    again = pyc("inspect", tmp_path / "a.pyca", "--recipe")
    again |= {key: document[key] for key in ("model", "adapters") if key in document}
    if again["quantize"]["calibration"]["text"]:
        again["quantize"]["calibration"]["text"] = str(tmp_path / "text.txt")
    (tmp_path / "again.yaml").write_text(json.dumps(again))
    pyc("build", tmp_path / "again.yaml", "-o", tmp_path / "again.pyca")
    first, second = (pyc("inspect", tmp_path / name, "--json") for name in ("a.pyca", "again.pyca"))
    assert second["header"] == first["header"]
    assert (tmp_path / "again.pyca").read_bytes() == (tmp_path / "a.pyca").read_bytes()

    check_values(drawn, document, checkpoint, adapters, matrices, pyc, tmp_path)


def check_sizes(drawn, planned, built, names):
    """What a plan says is built; with a goal, it is a guess."""
    if "bits_per_weight" in drawn.quantize:
        return
    assert planned["scheme_bytes"] == built["scheme_bytes"]
    assert names >= {tensor["name"] for tensor in planned["tensors"]}


def check_goal(drawn, built, matrices):
    if "bits_per_weight" not in drawn.quantize:
        return
    weights = sum(np.prod(matrix["shape"]) for matrix in matrices)
    bits = sum(matrix["bits"] * np.prod(matrix["shape"]) for matrix in matrices) / weights
    assert bits <= drawn.quantize["bits_per_weight"]
    assert bits == pytest.approx(built["mixture"]["bits_per_weight"], abs=0.2)


def check_values(drawn, document, checkpoint, adapters, matrices, pyc, folder):
    """Unquantized, it is PEFT's model; quantized, each matrix is as far from that as the report says, and the runtime
    computes with those."""
    whole = {key: value for key, value in document.items() if key != "quantize"}
    whole |= {"quantize": {"scheme": "f32", "embeddings": "f32"}}
    (folder / "whole.yaml").write_text(json.dumps(whole))
    if any(kind in ("prompt_tuning", "prefix_tuning") for kind, _ in drawn.adapters):
        return
    pyc("export", folder / "whole.yaml", "--to", "hf", folder / "whole", "--dtype", "f32")
    pyc("export", folder / "a.pyca", "--to", "hf", folder / "stored", "--dtype", "f32")
    exported, stored = causal(folder / "whole"), causal(folder / "stored")
    with load(folder / "a.pyca") as model:
        ids = random_ids(model, 40)
        got = model.logits(ids)
    reference = peft_logits(checkpoint, adapters, drawn.weights, ids)
    assert difference(reference, logits(exported, ids)).mean_kl <= KL_BOUND
    assert difference(logits(stored, ids), got).mean_kl <= KL_BOUND
    values, exact = values_of(stored), values_of(exported)
    for matrix in matrices:
        if matrix["relative_error"] is None or drawn.quantize.get("algorithm") == "awq":  # scaled from one to another
            continue
        wanted, found = exact[matrix["name"]], values[matrix["name"]]
        error = np.sqrt(((found - wanted) ** 2).sum() / (wanted**2).sum())
        # Where gains are no part of the matrix in the artifact, they weigh its errors here alone.
        assert error == pytest.approx(matrix["relative_error"], rel=0.1, abs=1e-6), matrix


def causal(folder):
    import torch
    import transformers

    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def values_of(model):
    """Matrices with the gains of norms before them, which some schemes have multiplied in."""
    values = {name: value.double().numpy() for name, value in model.state_dict().items()}
    for name in values:
        layer, _, kind = name.removesuffix("_proj.weight").rpartition(".")
        norm = "none"
        if kind in ("q", "k", "v"):
            norm = layer.removesuffix("self_attn") + "input_layernorm.weight"
        elif kind in ("gate", "up"):
            norm = layer.removesuffix("mlp") + "post_attention_layernorm.weight"
        elif name == "lm_head.weight" and not model.config.tie_word_embeddings:
            norm = "model.norm.weight"
        if norm in values:
            values[name] = values[name] * values[norm]
    return values


def logits(model, ids):
    import torch

    with torch.no_grad(), butterflies():
        return model(torch.tensor([ids])).logits[0].numpy()


def peft_logits(checkpoint, adapters, weights, ids):
    import peft

    model = causal(checkpoint)
    if not adapters:
        return logits(model, ids)
    with butterflies():
        model = peft.PeftModel.from_pretrained(model, adapters[0], autocast_adapter_dtype=False)
    for path in adapters[1:]:
        model.load_adapter(path, "second", autocast_adapter_dtype=False)
        model.base_model.set_adapter(["default", "second"])
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            for name, weight in zip(("default", "second"), weights, strict=False):
                if name in module.scaling:
                    module.scaling[name] *= weight
    return logits(model.eval(), ids)
