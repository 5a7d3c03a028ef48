"""Which fields of adapter_config.json mean something, by kind of adapter.

Every field is one that a build honours, one that only training reads, or one that is refused when it is set. A field
that no kind here has is refused as well, unless it is empty: it may change what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pyc.models.messages import quoted, shown
from pyc.runtime.errors import AdapterError

PromptKind = Literal["prompt_tuning", "p_tuning", "prefix_tuning"]
Kind = Literal["lora", "dora", "ia3", "loha", "lokr", "vera", "oft", "boft", "trainable_tokens"] | PromptKind

PROMPTS: Mapping[str, PromptKind] = {
    "PROMPT_TUNING": "prompt_tuning",
    "P_TUNING": "p_tuning",
    "PREFIX_TUNING": "prefix_tuning",
}
"""Kinds that put virtual tokens in front of the input and change no weight."""
PEFT_TYPES = ("LORA", "IA3", "LOHA", "LOKR", "VERA", "OFT", "BOFT", "TRAINABLE_TOKENS", *PROMPTS)
_OTHER_PROMPTS = ("MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "CPT", "CARTRIDGE")
"""Further ones, which depend on more than that."""
_NEVER_MERGED = (
    *("LILY", "POLY", "SHADOW", "XLORA"),
    *("alora_invocation_tokens", "arrow_config", "layer_replication", "use_qalora"),
)
"""Types, and fields of LoRA, that PEFT's merge_and_unload does not support."""
MERGE = "merge it into the model with PEFT, by merge_and_unload, and build what save_pretrained writes of that"

_OF_ALL = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules "
    "modules_to_save fan_in_fan_out"
)
_LAYERS = "exclude_modules layers_to_transform layers_pattern init_weights"
_LYCORIS = (
    f"{_LAYERS} r alpha rank_pattern alpha_pattern rank_dropout rank_dropout_scale module_dropout use_effective_conv2d"
)
_OF_PROMPTS = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode modules_to_save "
    "num_virtual_tokens token_dim num_transformer_submodules num_attention_heads num_layers"
)
_KNOWN: Mapping[str, str] = {
    "LORA": f"{_OF_ALL} exclude_modules layers_to_transform layers_pattern r lora_alpha lora_dropout bias use_rslora "
    "init_lora_weights rank_pattern alpha_pattern megatron_config megatron_core trainable_token_indices loftq_config "
    "eva_config corda_config lora_ga_config use_dora velora_config alora_invocation_tokens use_qalora "
    "qalora_group_size monteclora_config layer_replication runtime_config lora_bias target_parameters use_bdlora "
    "arrow_config kasa_config ensure_weight_tying enable_lora",
    "IA3": f"{_OF_ALL} exclude_modules feedforward_modules init_ia3_weights",
    "LOHA": _OF_ALL + " " + _LYCORIS,
    "LOKR": f"{_OF_ALL} {_LYCORIS} decompose_both decompose_factor",
    "VERA": f"{_OF_ALL} {_LAYERS} r projection_prng_key save_projection vera_dropout d_initial bias",
    "OFT": f"{_OF_ALL} {_LAYERS} r oft_block_size module_dropout bias coft eps block_share use_cayley_neumann "
    "num_cayley_neumann_terms",
    "TRAINABLE_TOKENS": "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode "
    "target_modules token_indices init_weights",
    "PROMPT_TUNING": f"{_OF_PROMPTS} prompt_tuning_init prompt_tuning_init_text tokenizer_name_or_path "
    "tokenizer_kwargs",
    "P_TUNING": f"{_OF_PROMPTS} encoder_reparameterization_type encoder_hidden_size encoder_num_layers encoder_dropout",
    "PREFIX_TUNING": f"{_OF_PROMPTS} encoder_hidden_size prefix_projection init_weights",
    "BOFT": f"{_OF_ALL} {_LAYERS} boft_block_size boft_block_num boft_n_butterfly_factor boft_dropout bias",
}
_VARIANTS: Mapping[str, str] = {
    "lora_bias": "a bias on lora_B",
    "use_qalora": "QALoRA adapters",
    "alora_invocation_tokens": "activated LoRA, which depends on the tokens,",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA adapters",
    "layer_replication": "layer replication",
    "monteclora_config": "Monte Carlo LoRA",
    "target_parameters": "LoRA on bare parameters",
    "use_bdlora": "block-diagonal LoRA",
}


def check_fields(fields: Mapping[str, object], where: str) -> None:
    """Refuse a type of adapter, or a field that is set, with which the tensors mean what no build can fuse."""
    peft_type = fields.get("peft_type")
    if peft_type in _OTHER_PROMPTS:
        raise AdapterError(
            f"{where}: peft_type {quoted(str(peft_type))} is not supported: its virtual tokens are no fixed prefix "
            f"(known: {', '.join(PEFT_TYPES)}); use PEFT with the checkpoint"
        )
    if not isinstance(peft_type, str) or peft_type not in _KNOWN:
        shape = quoted(peft_type) if isinstance(peft_type, str | None) else repr(type(peft_type).__name__)
        remedy = f"; {_way_on(peft_type)}" if isinstance(peft_type, str) else ""
        raise AdapterError(f"{where}: peft_type {shape} is not supported (known: {', '.join(PEFT_TYPES)}){remedy}")
    if peft_type == "LORA":
        for name, meaning in _VARIANTS.items():
            if fields.get(name):
                raise AdapterError(f"{where}: {name} is set: {meaning} cannot be fused; {_way_on(name)}")
    known = _KNOWN[peft_type].split()
    for name, value in fields.items():
        if name not in known and value:
            raise AdapterError(
                f"{where}: {shown(name)} is no field that pyc knows of {peft_type} adapters, and it is set; remove it "
                "if it only concerns training, or merge with PEFT first"
            )


def _way_on(what: str) -> str:
    return "use PEFT with the checkpoint" if what in _NEVER_MERGED else MERGE
