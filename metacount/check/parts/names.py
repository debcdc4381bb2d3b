"""What people call the tensors of a model, and which of them are often left out together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from metacount.formulas.tape import Weight

ATTENTION, FEED_FORWARD, BIASES, NORMS, PAIRS, RECURRENT, CROSS, ENDS = (
    "the attention projections",
    "the feed-forward",
    "all biases",
    "all norms",
    "the products between positions",
    "the recurrent mixers",
    "the cross-attention projections",
    "ends",
)
AROUND_BRANCHES = "AltUp, LAuReL and the layer's embedding"
TRANSFORM, POOLER = "the transform before the head", "the pooler with its bias"
AROUND = (ENDS, TRANSFORM, POOLER)  # before and after the blocks
NORMS_OF_BLOCKS = ("norms of the blocks", "norms' biases in the blocks")
# Parts of one name that are as many of one size; others of one name are added up.
COUNTED = ("matrices of the routed experts", "matrices of the shared experts")
# The order in which parts are told.
ORDER = (
    ENDS,
    TRANSFORM,
    POOLER,
    ATTENTION,
    CROSS,
    RECURRENT,
    FEED_FORWARD,
    AROUND_BRANCHES,
    BIASES,
    NORMS,
    "",
)

# A tensor's path as a pattern; what it is called, with \1 for what stands in brackets; its group.
NAMES: tuple[tuple[str, str, str], ...] = (
    (r"embed_tokens.weight", "embedding", ENDS),
    (r"embed_types.weight", "token-type table", ENDS),
    (r"embed_proj.weight", "projection of the embedding", ENDS),
    (r"embed_proj.bias", "bias of the embedding's projection", ENDS),
    (r"embed_queries.weight", "query table", ENDS),
    (r"embed_positions.weight", "position table", ""),
    (r"relative_bias\..*", "relative position biases", ""),
    (r"self_attn.relative\..*", "relative positions", ""),
    (r"lm_head.weight", "output head", ENDS),
    (r"lm_head.bias", "bias of the head", ENDS),
    (r"head_transform.dense.weight", "transform before the head", TRANSFORM),
    (r"head_transform.dense.bias", "bias of the transform before the head", TRANSFORM),
    (r"head_transform.norm\..*", "norm before the head", TRANSFORM),
    (r"pooler.dense.weight", "pooler", POOLER),
    (r"pooler.dense.bias", "bias of the pooler", POOLER),
    (r"norm.weight", "final norm", NORMS),
    (r"norm.bias", "final norm's bias", NORMS),
    (r"embed_norm.weight", "norm after the embedding", NORMS),
    (r"embed_norm.bias", "norm's bias after the embedding", NORMS),
    (r"layernorm.weight", NORMS_OF_BLOCKS[0], NORMS),
    (r"layernorm.bias", NORMS_OF_BLOCKS[1], NORMS),
    (r"self_attn.[qk]_norm\..*", "QK-norm", NORMS),
    (r"self_attn.q_a_layernorm.weight", "norm of the query latent", NORMS),
    (r"self_attn.kv_a_layernorm.weight", "norm of the key-value latent", NORMS),
    (r"self_attn.core.sinks", "attention sinks", BIASES),
    (r"self_attn.kv_a_proj_with_mqa.weight", "kv_a_proj", ATTENTION),
    (r"self_attn.(\w+_proj).weight", r"\1", ATTENTION),
    (r"self_attn.indexer.([qk]_proj).weight", r"index \1", ""),
    (r"self_attn.indexer.([qk]_norm).weight", "norms of the index", NORMS),
    (r"self_attn.(\w+?)_proj(_with_mqa)?.bias", r"\1 bias", BIASES),
    (r"shared_use.linear.weight", "linear layers behind shared blocks", ""),
    (r"shared_use.adapters.(\w+).(\w+)_proj.weight", r"adapters on \1, \2", ""),
    (r"per_layer_inputs.embed_tokens.weight", "table of each layer's own embeddings", ENDS),
    (r"per_layer_inputs.model_projection.weight", "projection to each layer's embedding", ENDS),
    (r"per_layer_inputs.projection_norm.weight", "norm of each layer's embedding", NORMS),
    (r"copies.projections.weight", "projections to copies of the stream", ENDS),
    (r"copies.unembed_projections.weight", "projections of copies before the head", ENDS),
    (
        r"(?:altup.router|laurel.post_laurel|per_layer_input.?)_?norm.weight",
        "norms of AltUp, LAuReL and the layer's embedding",
        NORMS,
    ),
    (r"per_layer_input.(gate|projection).weight", r"\1 of the layer's embedding", AROUND_BRANCHES),
    (r"altup.(\w+).weight", r"AltUp \1", AROUND_BRANCHES),
    (r"altup.correct_output_scale", "AltUp's scale", AROUND_BRANCHES),
    (r"laurel.(linear_left|linear_right).weight", r"LAuReL \1", AROUND_BRANCHES),
    (r"cross_attn.(\w+_proj).weight", r"cross-attention \1", CROSS),
    (r"cross_attn.(\w+)_proj.bias", r"cross-attention \1 bias", BIASES),
    (r"mlp.(\w+_proj).weight", r"FFN \1", FEED_FORWARD),
    (r"mlp.\w+_proj.bias", "FFN biases", BIASES),
    (r"(?:mlp|moe).gate.proj.weight", "router", FEED_FORWARD),
    (r"(?:mlp|moe).gate.proj.bias", "router bias", BIASES),
    (r"(?:mlp|moe).experts.\w+_proj_bias", "experts' biases", BIASES),
    (r"(?:mlp|moe).experts.\w+_proj", "matrices of the routed experts", FEED_FORWARD),
    (r"(?:mlp|moe).shared_experts.\w+_proj.weight", "matrices of the shared experts", FEED_FORWARD),
    (r"(?:mlp|moe).shared_experts.\w+_proj.bias", "shared experts' biases", BIASES),
    (r"(?:mlp|moe).shared_expert_gate.weight", "gate of the shared experts", FEED_FORWARD),
)
# Of a mixer with a state, by what a tensor is: no name is better known than its own.
OF_A_MIXER = r"^(mamba|linear_attn|conv)\.(forget_gate\.)?"
OF_MIXERS = ((r".*norm\w*\.(weight|bias)", NORMS), (r".*bias", BIASES), (r".*", RECURRENT))


class Called(NamedTuple):
    """The stack's word, what a tensor is called, its group, and whether it is two in one."""

    word: str
    text: str
    group: str
    fused: bool


def called(weight: Weight, word: str) -> Called:
    """Name a tensor of a stack (`word`) as people call it, with the group that it belongs to.

    >>> from metacount.formulas.tape import Weight
    >>> called(Weight(role="ffn", name="mlp.up_proj.weight", shape=(3, 2)), "decoder: ")[:3]
    ('decoder: ', 'FFN up_proj', 'the feed-forward')
    """
    for pattern, text, group in NAMES:
        found = re.fullmatch(pattern, weight.name)
        if found:
            cross = weight.name.startswith("cross_attn")
            return Called(
                "" if cross else word, found.expand(text), group, "gate_up_proj" in weight.name
            )
    group = next(group for pattern, group in OF_MIXERS if re.fullmatch(pattern, weight.name))
    own = re.sub(OF_A_MIXER, "", weight.name)
    return Called(word, own.removesuffix(".weight"), group, False)
