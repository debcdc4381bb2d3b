"""Rules between parts of a model; what one part may be, it says itself."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.index_rules import check_block_index
from metacount.spec.law import Law
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Learned, NoPositions, Rope, Sinusoidal, TransformerXL
from metacount.spec.rope_scaling import check_pairs
from metacount.spec.rules_of_layers import check_patterns
from metacount.spec.stack import WITH_DENSE, WITH_EXPERTS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.stack import Stack

MAX_TENSOR = 2**62  # torch counts the elements of one tensor in a signed 64-bit integer


def check_goes_with(stack: Stack, kind: str, position: str) -> None:
    """Raise `SpecError` for an attention that no model of that kind and those positions has."""
    mla = isinstance(stack.attention, LatentAttention)
    if mla and (kind not in ("decoder", "prefix-decoder") or position not in ("rope", "none")):
        raise SpecError(
            "attention",
            "mla needs a decoder with position rope or none",
            "mla",
            "choose gqa, or kind decoder and position rope",
        )


def check_model(spec: ModelSpec) -> None:
    """Raise `SpecError` for the first rule between parts that a model breaks."""
    stack = spec.last_stack
    _check_ends(spec)
    check_patterns(spec, stack)
    _check_mixer(spec, stack)
    _check_experts(stack)
    _check_window(spec, stack)
    _check_mixture(spec, stack)
    if spec.has_encoder and stack.norms.placement in ("parallel", "parallel_two"):
        raise SpecError(
            "norm_placement",
            "parallel is not defined with cross-attention",
            stack.norms.placement,
            "choose pre or post",
        )
    _check_positions(spec, stack)
    check_block_index(spec, stack)
    _check_tensors(spec, stack)


def _check_ends(spec: ModelSpec) -> None:
    if spec.encoder is not None and spec.encoder.n_layers == 0:
        raise SpecError(
            "n_encoder_layers", "is needed by an encoder-decoder", 0, "choose 1 or more"
        )
    embedding, head = spec.embedding, spec.head
    if embedding is None and head is not None:
        given = {
            "tie_embeddings": head.tied,
            "head_bias": head.bias,
            "logit_scale": head.scale != 1.0 and head.scale,
            "logit_softcap": head.softcap,
            "head_transform": head.transform is not None,
        }
        for name, value in given.items():
            if value:
                raise SpecError(
                    name, "has no meaning without vocab_size", value, f"leave {name} out"
                )
    if head is not None and head.transform is not None and spec.last_stack.feed_forward is None:
        raise SpecError("activation", "is needed by head_transform", None, "set activation")
    if embedding is not None and embedding.width is not None:
        if spec.kind != "encoder":
            raise SpecError(
                "d_embedding", "belongs to an encoder", embedding.width, "leave d_embedding out"
            )
        if head is not None and head.transform is None:
            raise SpecError(
                "d_embedding",
                "with a head needs head_transform, which leads back to it",
                embedding.width,
                "set head_transform",
            )
    if spec.pooler and spec.kind != "encoder":
        raise SpecError("pooler", "belongs to an encoder", True, "leave pooler out")


def _check_experts(stack: Stack) -> None:
    """Raise `SpecError` for feed-forward factors in a model of experts, which would ignore them."""
    part = stack.feed_forward
    if stack.mixture is None or part is None:
        return
    for name, value in (("gate_scale", part.gate_scale), ("ffn_scale", part.scale)):
        if value != 1.0:
            raise SpecError(name, "has no meaning for experts", value, "leave it out")


def _check_mixer(spec: ModelSpec, stack: Stack) -> None:
    mixer, positions = stack.attention, spec.positions
    if isinstance(mixer, NoAttention):
        if not isinstance(positions, NoPositions | Learned | Sinusoidal):
            raise SpecError(
                "position",
                "belongs to attention, which no layer has",
                vars(type(positions))["word"],
                "choose none",
            )
        return
    if isinstance(mixer, LatentAttention):
        if isinstance(positions, Rope):
            given = {
                "rotary_dim": positions.rotary_dim,
                "nope_every": positions.nope_every,
                "query_growth": positions.growth,
            }
            for name, value in given.items():
                if value is not None:
                    raise SpecError(
                        name, "has no meaning with attention mla", value, f"leave {name} out"
                    )
        elif mixer.indexer is not None:
            raise SpecError(
                "index_top_k",
                "belongs to an indexer, which needs position rope",
                mixer.indexer.top_k,
                "choose position rope",
            )
        return
    if mixer.qk_norm == "l2" and not isinstance(positions, Rope):
        raise SpecError(
            "qk_norm", "l2 norms what RoPE rotated", "l2", "choose head, or position rope"
        )
    if mixer.softcap is not None and isinstance(positions, TransformerXL):
        raise SpecError(
            "attention_softcap",
            "is not defined with position transformer_xl",
            mixer.softcap,
            "leave attention_softcap out",
        )


def _check_window(spec: ModelSpec, stack: Stack) -> None:
    window = stack.attention.window
    if window is None:
        if isinstance(spec.positions, Rope) and spec.positions.windowed is not None:
            raise SpecError(
                "rope_theta_windowed",
                "has no meaning without a window",
                spec.positions.windowed.theta,
                "leave rope_theta_windowed out",
            )
    elif spec.kind == "prefix-decoder":
        raise SpecError(
            "window", "is not defined for a prefix-decoder", window.size, "leave window out"
        )
    elif spec.kind != "decoder" and window.kind == "chunked":
        raise SpecError("window_kind", "chunked needs a decoder", "chunked", "choose sliding")
    elif spec.has_encoder:
        raise SpecError(
            "window", "is not defined for an encoder-decoder", window.size, "leave window out"
        )


def _check_mixture(spec: ModelSpec, stack: Stack) -> None:
    mixture = stack.mixture
    if stack.feed_forward is None:
        return
    d_ff = stack.feed_forward.d_ff
    if mixture is None:
        if d_ff is None:
            raise SpecError("d_ff", "is needed by a dense feed-forward", None, "set d_ff")
        return
    layers = [each.n_layers for each in spec.stacks]
    if stack.names_experts:
        letters = stack.ffn_pattern
        routed = [Law(letters=letters, letter=WITH_EXPERTS).count(n) for n in layers]
        dense = [Law(letters=letters, letter=WITH_DENSE).count(n) for n in layers]
    else:
        routed = [mixture.law.count(n) for n in layers]
        dense = [n - with_experts for n, with_experts in zip(layers, routed, strict=True)]
    if not any(routed):
        raise SpecError(
            "n_dense_layers",
            "and moe_every leave no layer to the experts",
            mixture.n_dense_layers,
            "lower them, or leave n_experts out",
        )
    needed = any(dense) or (spec.prediction is not None and spec.prediction.dense)
    if not needed and d_ff is not None:
        raise SpecError("d_ff", "has no meaning when every layer is MoE", d_ff, "leave d_ff out")
    if needed and d_ff is None:
        raise SpecError("d_ff", "is needed by the dense layers", None, "set d_ff")


def _check_positions(spec: ModelSpec, stack: Stack) -> None:
    positions = spec.positions
    if isinstance(positions, Learned) and positions.n_query_positions and spec.kind != "decoder":
        raise SpecError(
            "n_query_positions",
            "belongs to a decoder",
            positions.n_query_positions,
            "leave n_query_positions out",
        )
    if isinstance(positions, TransformerXL) and spec.kind != "decoder":
        raise SpecError("position", "transformer_xl needs a decoder", "transformer_xl", "choose t5")
    if not isinstance(positions, Rope):
        return
    mixer = stack.attention
    assert not isinstance(mixer, NoAttention)  # RoPE without attention was refused
    rotated = mixer.qk_rope_head_dim if isinstance(mixer, LatentAttention) else mixer.head_dim
    if isinstance(mixer, Attention):
        rotated = mixer.head_dim if positions.rotary_dim is None else positions.rotary_dim
        if rotated > mixer.head_dim:
            raise SpecError(
                "rotary_dim",
                f"must be at most head_dim = {mixer.head_dim}",
                rotated,
                f"choose 2 to {mixer.head_dim}",
            )
        if rotated % 2:
            name = "head_dim" if positions.rotary_dim is None else "rotary_dim"
            raise SpecError(
                name,
                "must be even for RoPE",
                rotated,
                f"choose {rotated + 1}, or an even rotary_dim",
            )
    check_pairs("rope_scaling", positions.scaling, rotated)
    if positions.windowed is not None:
        check_pairs("rope_scaling_windowed", positions.windowed.scaling, rotated)


def _check_tensors(spec: ModelSpec, stack: Stack) -> None:
    mixer, mixture, d = stack.attention, stack.mixture, spec.d_model
    sizes = {}
    if isinstance(mixer, LatentAttention):
        head = max(mixer.v_head_dim, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
        expanded = mixer.n_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        sizes["kv_lora_rank"] = mixer.kv_lora_rank, mixer.kv_lora_rank * expanded
        sizes["n_heads"] = mixer.n_heads, mixer.n_heads * head * max(d, mixer.q_lora_rank or 0)
    elif isinstance(mixer, Attention):
        sizes["n_heads"] = mixer.n_heads, mixer.n_heads * mixer.head_dim * d
    if mixture is not None:
        sizes["n_experts"] = mixture.n_experts, mixture.n_experts * 2 * d * mixture.d_ff
        if mixture.zero is not None and mixture.zero.rows:
            values = mixture.n_scores * 2 * d * mixture.d_ff
            sizes["n_zero_experts"] = mixture.zero.n_experts, values
        if mixture.shared is not None:
            n_shared = mixture.shared.n_experts
            width = mixture.shared.d_ff or mixture.d_ff
            sizes["n_shared_experts"] = n_shared, n_shared * d * width
    for name, (value, numel) in sizes.items():
        if numel > MAX_TENSOR:
            raise SpecError(
                name, "makes one tensor of more than 2^62 values", value, f"lower {name}"
            )
