"""Reference modules: readable, runnable on meta, CPU and CUDA; they import no formula.

Tensors end in their shape. One legend for all files:
B sequences, S query positions, T positions attended to, D `d_model`, M `d_ff`, H query heads,
G key/value heads, R query heads per key/value head (H = G·R), K `head_dim` of queries and keys,
U head width of values, C `kv_lora_rank`, P rotated width, E experts, N tokens (B·S), V vocabulary.
"""

from __future__ import annotations

from metacount.modules.attention import Attention, ScaledDotProduct, Visibility
from metacount.modules.block import Block
from metacount.modules.cache import Cache, LayerCache
from metacount.modules.ffn import FeedForward, GatedFeedForward, gated_d_ff
from metacount.modules.mla import LatentAttention
from metacount.modules.model import Model, MultiTokenPrediction, Output, PredictionModule
from metacount.modules.moe import Experts, MixtureOfExperts, Router, load_balancing_loss
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import (
    RelativeBias,
    RelativeProjection,
    alibi_bias,
    apply_rope,
    sinusoid,
)

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Experts",
    "FeedForward",
    "GatedFeedForward",
    "LatentAttention",
    "LayerCache",
    "LayerNorm",
    "MixtureOfExperts",
    "Model",
    "MultiTokenPrediction",
    "Output",
    "PredictionModule",
    "RMSNorm",
    "RelativeBias",
    "RelativeProjection",
    "Router",
    "ScaledDotProduct",
    "Visibility",
    "alibi_bias",
    "apply_rope",
    "gated_d_ff",
    "load_balancing_loss",
    "sinusoid",
]
