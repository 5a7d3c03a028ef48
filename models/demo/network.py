"""A decoder of Qwen3's or Mistral's type in plain torch, written for training speed on a CPU.

Parameter names and arithmetic are those of transformers' `Qwen3ForCausalLM`, or without norms of heads those of its
`MistralForCausalLM`, so `state_dict()` holds a checkpoint's tensors:

    h = x + o_proj(attention(rope(q_norm(q)), rope(k_norm(k)), v))     q, k, v from rms_norm(x); Mistral: no q_norm
    y = h + down_proj(silu(gate_proj(n)) * up_proj(n))                 n = rms_norm(h)
    logits = rms_norm(y_last) @ embed_tokens.T                         or lm_head.T where the head is not tied

Shapes: B sequences, T tokens, D hidden size, H query heads, G key/value heads, E head size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The model's dimensions; the defaults are the demo model's."""

    vocab_size: int = 4096
    hidden_size: int = 256
    layers: int = 5
    heads: int = 8
    kv_heads: int = 4
    head_size: int = 32
    ffn_size: int = 640
    context: int = 1024
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    head_norm: bool = True
    tied: bool = True


class Norm(nn.Module):
    """RMS norm over the last axis, with a weight `[size]`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x `[B, T, heads, E]`; cos and sin are `[T, 1, E / 2]`, float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention, with a norm on each query and key head if asked: `[B, T, D]` to `[B, T, D]`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_size, kv_size = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.q_proj = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)
        self.q_norm = Norm(shape.head_size, shape.norm_eps) if shape.head_norm else nn.Identity()
        self.k_norm = Norm(shape.head_size, shape.norm_eps) if shape.head_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            proj(x).view(batch, tokens, -1, self.shape.head_size) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = rotate(self.k_norm(k), cos, sin).transpose(1, 2)
        group = self.shape.heads // self.shape.kv_heads
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v.transpose(1, 2)))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU: `[B, T, D]` to `[B, T, D]`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.down_proj = nn.Linear(shape.ffn_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        residual: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return residual


class Decoder(nn.Module):
    """Everything below the logits; named `model` in a checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape.norm_eps)


class LanguageModel(nn.Module):
    """The causal language model; its forward pass returns the loss, because training needs nothing else."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.tied = shape.tied
        half = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rope_theta**-half)
        self.register_buffer("cos", angles.cos().float()[:, None, :], persistent=False)
        self.register_buffer("sin", angles.sin().float()[:, None, :], persistent=False)
        residual_std = 0.02 / (2 * shape.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual_std if into_residual else 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy in nats, float32 scalar; ids and targets are int64 `[B, T]`."""
        tokens = ids.shape[1]
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        head = self.model.embed_tokens if self.tied else self.lm_head
        logits = functional.linear(self.model.norm(x), head.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
