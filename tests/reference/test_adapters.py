"""Fused adapters against PEFT's own forward, which keeps the adapter beside the weights, in float32.

A fused weight is W + s B A computed in f64 and rounded to f32 once; PEFT rounds the base's and the adapter's product
apart. Both are f32 rounding, so the bounds are those of `test_decoders`: KL at most 1e-10, the same greedy tokens
where the best logit leads by 1e-4. The factors are drawn so that the adapter changes the model: KL to the base 1e-2
and more.
"""

import re
import shutil

import numpy as np
import pytest
from adapter_cases import ADAPTED, FEED_FORWARD, KINDS, butterflies, with_adapter
from built_models import difference, margins, random_ids

from pyc.runtime.errors import AdapterError

KL_BOUND = 1e-10
MARGIN = 1e-4
F32_CACHE = {"kv_cache": "f32"}
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}


def check(model, peft_model, base_model):
    """The build computes what PEFT's forward does, and not what the base does."""
    import torch

    ids = random_ids(model, 40)
    with torch.no_grad():
        wanted = peft_model(torch.tensor([ids])).logits[0].numpy()
        unchanged = base_model(torch.tensor([ids])).logits[0].numpy()
        continued = peft_model.generate(
            input_ids=torch.tensor([ids[:16]]),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    assert difference(unchanged, wanted).mean_kl > 1e-2
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= KL_BOUND, found
    tokens = continued.sequences[0, 16:].tolist()
    rows = model.logits([*ids[:16], *tokens])[15:-1]
    decided = margins(np.stack([row[0].numpy() for row in continued.logits])) >= MARGIN
    assert len(tokens) == 64
    assert decided.sum() >= 60
    assert (rows.argmax(-1) == np.array(tokens))[decided].all()


@pytest.mark.parametrize("case", ADAPTED)
def test_a_fused_adapter_is_pefts_forward(case, tiny_checkpoint, tiny_adapter, built, reference):
    model_type, config, kind, options = ADAPTED[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **config)
    adapter = tiny_adapter(path, kind, **options)
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    check(model, with_adapter(reference(path), adapter), reference(path))


def test_a_folder_with_a_model_and_an_adapter_is_what_transformers_makes_of_it(
    tiny_checkpoint, tiny_adapter, tmp_path, built, reference
):
    """It takes the weights that lie there, whatever base model adapter_config.json names."""
    import transformers

    path = tiny_checkpoint("llama", **CONTEXT)
    both = shutil.copytree(path, tmp_path / "both")
    adapter = tiny_adapter(path, "lora", r=4, target_modules=["q_proj", "down_proj"])
    shutil.copytree(adapter, both, dirs_exist_ok=True)
    config = (both / "adapter_config.json").read_text()
    (both / "adapter_config.json").write_text(config.replace(str(path), "nobody/nothing"))
    wanted = transformers.AutoModelForCausalLM.from_pretrained(both).eval()
    check(built(both, adapters=[{"path": str(both)}], quantize=F32_CACHE), wanted, reference(path))


WHOLE = {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "post_attention_layernorm"]}
OF_KINDS = ("dora", "dora-rslora-patterns", "loha-patterns", "lokr-whole", "lokr-both", "vera", "oft")
BUILT = {
    **{name: KINDS[name] for name in (*OF_KINDS, "oft-adjusted-exact", "oft-count-shared", "boft", "boft-butterflies")},
    "lora-saved-modules": ("lora", WHOLE),
    "dora-saved-modules": ("lora", {**WHOLE, "use_dora": True}),
    "oft-saved-head": ("oft", {"oft_block_size": 8, "target_modules": ["k_proj"], "modules_to_save": ["lm_head"]}),
    "ia3-all": ("ia3", {**FEED_FORWARD, "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj", "up_proj"]}),
}


@pytest.mark.parametrize("case", BUILT)
def test_a_build_with_an_adapter_of_any_kind_is_pefts_forward(case, tiny_checkpoint, tiny_adapter, built, reference):
    """From what PEFT saved to what the runtime computes. All are of one model, whose programs are compiled once."""
    import torch

    kind, config = BUILT[case]
    path = tiny_checkpoint("llama", **CONTEXT)
    adapter = tiny_adapter(path, kind, **config)
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    ids = random_ids(model, 40)
    with torch.no_grad(), butterflies():
        wanted = with_adapter(reference(path), adapter)(torch.tensor([ids])).logits[0].numpy()
        unchanged = reference(path)(torch.tensor([ids])).logits[0].numpy()
    assert difference(unchanged, wanted).mean_kl > 1e-3
    found = difference(wanted, model.logits(ids))
    assert found.mean_kl <= KL_BOUND, found


def test_two_low_rank_adapters_with_weights(tiny_checkpoint, tiny_adapter, built, reference):
    """PEFT adds the active adapters; each has a weight of its own here, one of them negative."""
    import peft

    path = tiny_checkpoint("llama", **CONTEXT)
    first = tiny_adapter(path, "lora", r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    second = tiny_adapter(path, "lora", seed=2, r=2, use_rslora=True, target_modules=["q_proj", "v_proj"])
    peft_model = with_adapter(reference(path), first)
    peft_model.load_adapter(second, "second", autocast_adapter_dtype=False)
    peft_model.base_model.set_adapter(["default", "second"])
    scaled = 0
    for module in peft_model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            for name, weight in (("default", 0.5), ("second", -1.25)):
                if name in module.scaling:
                    module.scaling[name] *= weight
                    scaled += 1
    assert scaled == 8
    refs = [{"path": str(first), "weight": 0.5}, {"path": str(second), "weight": -1.25}]
    check(built(path, adapters=refs, quantize=F32_CACHE), peft_model.eval(), reference(path))


OWN_BASES = {
    "embedding": (["embed_tokens"], ["model.embed_tokens"]),
    "head": (["lm_head"], ["lm_head"]),
    "both": (["embed_tokens", "lm_head"], ["lm_head", "model.embed_tokens"]),
}


@pytest.mark.parametrize("case", OWN_BASES)
def test_a_base_in_an_adapter_is_that_of_both_tied_matrices(case, tiny_checkpoint, tiny_adapter, built, reference):
    """PEFT writes it into the parameter that both share, the head's after the embedding's."""
    from safetensors.torch import load_file, save_file

    targets, changed = OWN_BASES[case]
    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    adapter = tiny_adapter(path, "lora", r=2, target_modules=[*targets, "q_proj"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    for position, name in enumerate(changed):
        tensors[f"base_model.model.{name}.base_layer.weight"] *= 1.5 + position
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    check(model, with_adapter(reference(path), adapter), reference(path))


@pytest.mark.parametrize(("target", "saved"), [("lm_head", "embed_tokens"), ("embed_tokens", "lm_head")])
def test_a_base_in_an_adapter_spares_what_modules_to_save_replaces(
    target, saved, tiny_checkpoint, tiny_adapter, built, reference
):
    path = tiny_checkpoint("llama", **CONTEXT, tie_word_embeddings=True)
    adapter = tiny_adapter(path, "lora", r=2, target_modules=[target, "q_proj"], modules_to_save=[saved])
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    check(model, with_adapter(reference(path), adapter), reference(path))


@pytest.mark.parametrize("is_tied", [True, False])
def test_two_adapters_of_the_embedding(is_tied, tiny_checkpoint, tiny_adapter, built, reference):
    """The copy of the base in the second one does not undo what the first adds."""
    path = tiny_checkpoint("qwen2", **CONTEXT, tie_word_embeddings=is_tied)
    first = tiny_adapter(path, "lora", r=4, target_modules=["embed_tokens"])
    second = tiny_adapter(path, "lora", seed=2, r=2, target_modules=["embed_tokens", "q_proj"])
    peft_model = with_adapter(reference(path), first)
    peft_model.load_adapter(second, "second", autocast_adapter_dtype=False)
    peft_model.base_model.set_adapter(["default", "second"])
    refs = [{"path": str(first)}, {"path": str(second)}]
    check(built(path, adapters=refs, quantize=F32_CACHE), peft_model.eval(), reference(path))


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head", "q_proj"])
def test_adapters_of_a_tied_model_that_stores_another_head(target, tiny_copy, tiny_adapter, built, reference):
    from safetensors.torch import load_file, save_file

    path = tiny_copy("qwen3", **CONTEXT, tie_word_embeddings=True)
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = 0.7 * tensors["model.embed_tokens.weight"].flip(0)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    adapter = tiny_adapter(path, "lora", r=4, target_modules=[target])
    model = built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE)
    check(model, with_adapter(reference(path), adapter), reference(path))


def test_ia3_over_lora_in_the_recipes_order(tiny_checkpoint, tiny_adapter, built, reference):
    """IA3 at weight 0.7 scales what LoRA left; the other order is another model, and PEFT says so too."""
    import torch

    path = tiny_checkpoint("llama", **CONTEXT)
    lora = tiny_adapter(path, "lora", r=4, lora_alpha=8, target_modules=["k_proj", "down_proj"])
    ia3 = tiny_adapter(path, "ia3", **FEED_FORWARD)
    peft_model = with_adapter(with_adapter(reference(path), lora).merge_and_unload(), ia3)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "ia3_l" in name:
                parameter.copy_(1 + 0.7 * (parameter - 1))
    refs = [{"path": str(lora)}, {"path": str(ia3), "weight": 0.7}]
    model = built(path, adapters=refs, quantize=F32_CACHE)
    check(model, peft_model, reference(path))
    swapped = built(path, adapters=refs[::-1], quantize=F32_CACHE)
    ids = random_ids(model, 40)
    assert difference(model.logits(ids), swapped.logits(ids)).mean_kl > 1e-3


SAVED_BIASES = {
    "a projection": ("qwen2", {"target_modules": ["q_proj"], "modules_to_save": ["k_proj"]}),
    "all of attention": ("qwen2", {"target_modules": ["gate_proj"], "modules_to_save": ["self_attn"]}),
}


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("case", SAVED_BIASES)
def test_all_biases_beside_a_saved_module_that_has_one(
    case, is_changed, tiny_checkpoint, tiny_adapter, built, reference
):
    """PEFT stores such a bias three times and reads it under the plain name, whatever the other two are."""
    from safetensors.torch import load_file, save_file

    model_type, options = SAVED_BIASES[case]
    path = tiny_checkpoint(model_type, **CONTEXT)
    adapter = tiny_adapter(path, "lora", r=2, lora_alpha=4, bias="all", **options)
    tensors = load_file(adapter / "adapter_model.safetensors")
    second = [name for name in tensors if ".original_module." in name or ".modules_to_save." in name]
    assert len(second) >= 2
    if is_changed:
        tensors.update({name: tensors[name] + 3 for name in second})
        save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    check(built(path, adapters=[{"path": str(adapter)}], quantize=F32_CACHE), with_adapter(reference(path), adapter),
          reference(path))  # fmt: skip


def test_an_adapter_of_an_encoder(tiny_checkpoint, tiny_adapter, built):
    import torch
    import transformers

    path = tiny_checkpoint("bert", pooling="mean", normalize=True)
    targets = ["query", "value", "dense"]  # the pooler's too, which no embedding reads
    adapter = tiny_adapter(path, "lora", r=4, lora_alpha=16, target_modules=targets)
    base = transformers.AutoModel.from_pretrained(path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["the cat sat", "a dog", "log; mat, and the cat"]
    model = built(path, adapters=[{"path": str(adapter)}], shapes={"tokens": [64], "batch": [4]})

    def embedded(encoder):
        with torch.no_grad():
            rows = [encoder(**tokenizer(text, return_tensors="pt"))[0][0].mean(0) for text in texts]
        return torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy()

    unchanged = embedded(base.eval())
    wanted, got = embedded(with_adapter(base, adapter)), model.embed(texts)
    assert np.abs(wanted - unchanged).max() > 0.05
    assert np.abs(wanted - got).max() < 2e-6  # vectors of length 1, f32 sums of 80 products in two layers


@pytest.mark.parametrize(
    "options", [{"modules_to_save": ["embed_tokens", "lm_head"]}, {"target_modules": ["embed_tokens"]}]
)
def test_what_is_said_of_an_adapter_with_a_larger_vocabulary_works(
    options, tiny_checkpoint, tiny_adapter, built, reference, tmp_path
):
    """The adapter is refused; merged as the message says, the model is PEFT's."""
    import torch

    path = tiny_checkpoint("llama", **CONTEXT)
    wide = reference(path)
    wide.resize_token_embeddings(wide.config.vocab_size + 8)
    wide.save_pretrained(tmp_path / "wide")
    adapter = tiny_adapter(tmp_path / "wide", "lora", **{"r": 2, "target_modules": ["q_proj"], **options})
    with pytest.raises(AdapterError, match=r"call resize_token_embeddings\((\d+)\) on the model, load") as refused:
        built(path, adapters=[{"path": str(adapter)}])
    asked = int(re.search(r"resize_token_embeddings\((\d+)\)", str(refused.value))[1])
    model = reference(path)
    model.resize_token_embeddings(asked)
    merged = with_adapter(model, adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    found = built(tmp_path / "merged", quantize=F32_CACHE)
    ids = random_ids(found, 40)
    with torch.no_grad():
        assert difference(merged(torch.tensor([ids])).logits[0].numpy(), found.logits(ids)).mean_kl <= KL_BOUND
    assert found.info.vocab_size == asked
