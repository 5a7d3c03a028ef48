"""fuse_merged.py and compiler/merging.py: merged adapters are those of PEFT's add_weighted_adapter, in float64.

PEFT rounds the weights of adapters and the roots of them to f32. The weights here are such numbers, so products (svd)
differ by the rounding of the result alone, and products of factors by some units of f32 of the update. DARE's draws
differ from PEFT's (its masks come from torch's generator): with our masks in the
place of PEFT's, all else is compared, and masks by their share.
"""

import math

import numpy as np
import pytest

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.merging import mixed
from pyc.compiler.operands import children
from pyc.compiler.recipe.types import Merge
from pyc.compiler.weights import Added, LowRank, Mixed, Transposed
from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.adapters import fuse_merged
from pyc.passes.adapters.fuse_merged import FuseMerged
from pyc.runtime.errors import AdapterError

HALF_UNIT = 2.0**-24
TARGETS = ["q_proj", "v_proj", "down_proj"]
WEIGHTS = (0.75, -0.5, 1.25)
METHODS = {
    "linear": {},
    "cat": {},
    "svd": {"rank": 5},
    "svd of the largest rank": {"method": "svd"},
    "ties": {"density": 0.6, "majority_sign": "total"},
    "ties by frequency": {"method": "ties", "density": 0.4, "majority_sign": "frequency"},
    "ties_svd": {"density": 0.3, "majority_sign": "total", "rank": 6},
    "magnitude_prune": {"density": 0.5},
    "magnitude_prune_svd": {"density": 0.25},
    "dare_linear": {"density": 0.7, "seed": 3},
    "dare_linear_svd": {"density": 0.7, "seed": 3},
    "dare_ties": {"density": 0.7, "seed": 4, "majority_sign": "frequency"},
    "dare_ties_svd": {"density": 0.7, "seed": 4, "majority_sign": "total", "rank": 7},
}


@pytest.fixture(scope="module")
def three(tiny_checkpoint, tiny_adapter):
    """A checkpoint and three adapters of one rank: of overlapping modules, with patterns, and of the embedding."""
    path = tiny_checkpoint("llama")
    options = (
        {"lora_alpha": 8, "target_modules": TARGETS, "alpha_pattern": {"v_proj": 3}},
        {"lora_alpha": 5, "target_modules": ["q_proj", "embed_tokens"]},
        {"lora_alpha": 2, "target_modules": [*TARGETS, "up_proj", "embed_tokens"]},
    )
    return path, [tiny_adapter(path, "lora", seed=seed, r=4, **more) for seed, more in enumerate(options)]


def merged(path, adapters, merge, weights=WEIGHTS):
    """The module with merged adapters."""
    read = tuple((read_adapter(str(each), path), weight) for each, weight in zip(adapters, weights, strict=False))
    return FuseMerged(read, merge).run(load_model(ModelSource(str(path), path)))


def merged_by_peft(path, adapters, merge, monkeypatch, module):
    """Weights before and after PEFT merged adapters into the model; DARE draws as `module` does."""
    import peft
    import torch
    import transformers
    from peft.utils import merge_utils

    masks = list(masks_of(module))

    def pruned(tensor, density, rescale):
        assert rescale
        known = tensor.numpy()
        (mask,) = (drawn for values, drawn in masks if values.shape == known.shape and np.allclose(values, known))
        return tensor * torch.from_numpy(mask.copy()) / density

    monkeypatch.setattr(merge_utils, "random_pruning", pruned)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    adapted = peft.PeftModel.from_pretrained(model, adapters[0], "a0", autocast_adapter_dtype=False)
    for index, adapter in enumerate(adapters[1:], 1):
        adapted.load_adapter(adapter, f"a{index}", autocast_adapter_dtype=False)
    chosen = {name: getattr(merge, name) for name in ("density",) if getattr(merge, name) is not None}
    if merge.majority_sign:
        chosen["majority_sign_method"] = merge.majority_sign
    names = [f"a{index}" for index in range(len(adapters))]
    method = merge.method
    adapted.base_model.add_weighted_adapter(names, list(WEIGHTS), "merged", method, svd_rank=merge.rank, **chosen)
    adapted.set_adapter("merged")
    after = adapted.merge_and_unload().state_dict()
    return before, {name: value.numpy() for name, value in after.items()}


def masks_of(module):
    """Yield tensors that draws prune, as PEFT stores them, and our masks of them."""
    with SourceFiles() as files:
        for weight in module.weights.values():
            for node in mixes(weight):
                for part, seed in zip(node.parts, node.seeds, strict=True):
                    values = evaluate_rows(part, 0, part.shape[0], files)
                    mask = mixed([np.ones(values.shape)], [1.0], node.density, [seed], "") > 0
                    yield (values.T, mask.T) if isinstance(part, Transposed) else (values, mask)


def mixes(expression):
    """The Mixed nodes of an expression that draw."""
    if isinstance(expression, Mixed) and expression.seeds:
        yield expression
    for child in children(expression):
        yield from mixes(child)


@pytest.mark.slow
@pytest.mark.parametrize("case", METHODS)
def test_a_merge_is_pefts(case, three, monkeypatch):
    path, adapters = three
    options = {"method": case} | METHODS[case]
    merge = Merge(**options)
    module = merged(path, adapters, merge)
    before, expected = merged_by_peft(path, adapters, merge, monkeypatch, module)
    changed = 0
    with SourceFiles() as files:
        for name, wanted in expected.items():
            weight = module.weights[name]
            got = evaluate_rows(weight, 0, weight.shape[0], files)
            update = np.abs(wanted - before[name]).max()
            changed += update > 1e-3
            roots = 0 if merge.method.endswith("svd") else 8 * HALF_UNIT * update
            bound = HALF_UNIT * np.abs(wanted) + roots + 1e-9
            assert (np.abs(got - wanted) <= bound).all(), (name, np.abs(got - wanted).max(), update)
    assert changed == 9  # two layers of four modules, and the embedding


def test_draws_keep_their_share_and_repeat(three):
    path, adapters = three
    module = merged(path, adapters, Merge(method="dare_linear", density=0.7, seed=3))
    masks = [mask for _, mask in masks_of(module)]
    assert len(masks) == 2 * (3 * 4 + 2 * 2 + 2 + 2 - 2)
    total = sum(mask.size for mask in masks)
    kept = sum(int(mask.sum()) for mask in masks)
    assert abs(kept - 0.7 * total) < 4 * math.sqrt(0.21 * total)
    again = merged(path, adapters, Merge(method="dare_linear", density=0.7, seed=3))
    assert again.weights == module.weights
    other = merged(path, adapters, Merge(method="dare_linear", density=0.7, seed=4))
    assert [mask.tolist() for _, mask in masks_of(other)] != [mask.tolist() for mask in masks]


def test_a_draw_is_the_same_on_every_machine():
    drawn = mixed([np.ones((2, 8))], [1.0], 0.5, [7], "")
    assert drawn.tolist() == [[0, 2, 2, 2, 2, 0, 2, 0], [2, 0, 0, 0, 2, 0, 0, 0]]


def test_slerp_goes_along_the_arc(three):
    path, adapters = three
    two = adapters[1:]
    name = "model.layers.0.self_attn.q_proj.weight"

    def values(weights):
        module = merged(path, two, Merge(method="slerp"), weights)
        with SourceFiles() as files:
            base = load_model(ModelSource(str(path), path)).weights[name]
            fused = module.weights[name]
            rows = fused.shape[0]
            return evaluate_rows(fused, 0, rows, files).astype(float) - evaluate_rows(base, 0, rows, files)

    first, second, half = values((1, 0)), values((0, 3)), values((2, 2))
    single = [merged(path, [each, each], Merge(method="cat"), (1, 0)).weights[name] for each in two]
    with SourceFiles() as files:
        base = evaluate_rows(load_model(ModelSource(str(path), path)).weights[name], 0, 48, files).astype(float)
        ends = [evaluate_rows(each, 0, 48, files) - base for each in single]
    assert np.abs(first - ends[0]).max() < 1e-7
    assert np.abs(second - ends[1]).max() < 1e-7
    angle = np.arccos((first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second))
    wanted = (first + second) * np.sin(angle / 2) / np.sin(angle)
    assert 1.4 < angle < 1.7  # nearly square on each other, as matrices drawn at random are
    assert np.abs(half - wanted).max() < 1e-6
    assert np.abs(half - (first + second) / 2).max() > 0.01


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"kind": "ia3"}, {}, ["is ia3, expected lora"]),
        ({"use_dora": True}, {}, ["is dora, expected lora"]),
        ({"r": 3}, {}, ["q_proj.lora_A.weight", "has rank 3", "choose cat"]),
        ({"modules_to_save": ["lm_head"]}, {"modules_to_save": ["lm_head"]}, ["both replace 'lm_head.weight'"]),
    ],
)
def test_what_cannot_be_merged(options, change, words, tiny_checkpoint, tiny_adapter):
    path = tiny_checkpoint("llama")
    first = tiny_adapter(path, "lora", **({"r": 4, "target_modules": ["q_proj"]} | change))
    kind = options.pop("kind", "lora")
    plain = {"target_modules": ["q_proj"], "feedforward_modules": []} if kind == "ia3" else {"r": 4}
    second = tiny_adapter(path, kind, **({"target_modules": ["q_proj"]} | plain | options))
    with pytest.raises(AdapterError) as caught:
        merged(path, [first, second], Merge(method="linear"))
    for word in words:
        assert word in str(caught.value)


def test_ranks_may_differ_on_products(tiny_checkpoint, tiny_adapter):
    path = tiny_checkpoint("llama")
    adapters = [tiny_adapter(path, "lora", r=rank, target_modules=["q_proj"]) for rank in (2, 5)]
    for method in ("cat", "svd", "slerp"):
        module = merged(path, adapters, Merge(method=method), (1, 1))
        assert any(isinstance(weight, Added | LowRank) for weight in module.weights.values())


def test_an_embedding_has_too_many_values_for_singular_ones(three, monkeypatch):
    monkeypatch.setattr(fuse_merged, "MAX_DENSE_VALUES", 48 * 200)
    path, adapters = three
    words = r"embed_tokens.weight \[263, 48\] is too large for ties_svd.*choose ties or svd"
    with pytest.raises(AdapterError, match=words):
        merged(path, adapters, Merge(method="ties_svd", density=0.5, majority_sign="total"))
