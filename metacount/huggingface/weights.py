"""transformers' weights in a reference module: each tensor of both sides used once, or an error.

What is loaded computes what transformers computes, or is refused: `Mapped.differs` says where the
reference module of a config is known to compute something else, though it counts the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metacount.huggingface.config.to_spec import Mapped
from metacount.modules.model import Model
from metacount.spec import ModelSpec
from metacount.spec.mixers import GatedDelta, NoRecurrent
from metacount.spec.stack import MAX_INPUTS, SHARING

# Where tables say the names of another placement: OPT has blocks of both kinds, mBART the names
# of BART, VaultGemma those of a sandwich.
PLACED = {
    "post": {
        "input_layernorm": "self_attention_layernorm",
        "post_attention_layernorm": "feedforward_layernorm",
    },
    "pre": {
        "self_attention_layernorm": "input_layernorm",
        "feedforward_layernorm": "post_attention_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
    },
}


# A block's number between what stands before and after it.
STACK = re.compile(r"(?:(encoder|decoder)\.)?(?:layers|layer|blocks|block|h)\.([0-9]{1,6})\.(.+)")


class WeightsError(ValueError):
    """Weights that are not those of the reference: which tensor, and why."""


def load_weights(reference: Model, theirs: Mapping[str, Tensor], mapped: Mapped) -> None:
    """Copy transformers' tensors into the reference module of a config, in the reference's dtype.

    `theirs` is a `state_dict` or a file's content, by transformers' names; tied tensors may be
    there once or under each of their names, if they are equal. `mapped` is what
    `spec_from_config` gave, and `reference` was built of its spec. Raises `WeightsError`, and loads
    nothing, when the reference would compute something else than transformers, and when a tensor is
    left over, missing on their side, given twice with different values, without values (on meta),
    or of another shape.
    """
    spec = mapped.spec
    if mapped.differs:
        raise WeightsError(f"the reference computes something else: {'; '.join(mapped.differs)}")
    if reference.spec != spec:
        raise WeightsError("the reference was built of another spec than the config's")
    ours = _tensors(reference)
    matched = _matched(theirs, ours, spec)
    missing = sorted(ours.keys() - matched.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WeightsError(f"nothing is given for {missing[0]}{more} of the reference")
    with torch.no_grad():
        for target, (_, part) in matched.items():
            ours[target].copy_(part)


@dataclass(frozen=True)
class _Name:
    """A name of theirs, split: of a block its stack and number, and the rest; else the rest."""

    whole: str
    stack: str
    number: int
    rest: str
    leaf: str


def _split(name: str, spec: ModelSpec) -> _Name:
    bare = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)
    rest, _, leaf = bare.rpartition(".")
    if leaf not in ("weight", "bias"):
        rest, leaf = bare, ""
    match = None if rest in OF_ENDS else STACK.match(rest)
    if match is None:
        return _Name(name, "", 0, rest, leaf)
    return _Name(name, match[1] or _last_stack(spec), int(match[2]), match[3], leaf)


def _last_stack(spec: ModelSpec) -> str:
    return "encoder" if spec.kind == "encoder" else "decoder"


def _matched(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], spec: ModelSpec
) -> dict[str, tuple[str, Tensor]]:
    names = [_split(name, spec) for name in theirs]
    if not any(name.rest in OF_ENDS for name in names):
        known = ", ".join(list(OF_ENDS)[:8])
        raise WeightsError(f"names of no known family: none like {known} is there")
    tables = {name.stack: BLOCK for name in names}
    for stack in tables:
        rests = {name.rest for name in names if name.stack == stack}
        for mark in VARIANTS.keys() & rests:
            tables[stack] = {**tables[stack], **VARIANTS[mark]}
    moves = [find for mark, find in ELSEWHERE.items() if any(mark == n.rest for n in names)]
    matched: dict[str, tuple[str, Tensor]] = {}
    for name in names:
        value = theirs[name.whole]
        if value.is_meta:
            raise WeightsError(f"{name.whole} is on meta: it has no values to load")
        if _is_no_weight(name, value):
            continue
        for target, part in _parts(name, value, tables[name.stack], moves, spec):
            if target == "lm_head.weight" and spec.tie_embeddings:
                target = "embed_tokens.weight"
            if target not in ours:
                raise WeightsError(f"{name.whole} is left over: the reference has no {target}")
            if part.shape != ours[target].shape:
                raise _other_shape(name.whole, value, [ours[target].shape])
            before, first = matched.setdefault(target, (name.whole, part))
            if first is not part and not torch.equal(first, part):
                raise WeightsError(f"{name.whole} differs from {before}: both are the one {target}")
    return matched


def _is_no_weight(name: _Name, value: Tensor) -> bool:
    """Tell whether a tensor only numbers positions, or holds the one number that it must."""
    if name.rest.rpartition(".")[2] in COMPUTED and not name.leaf:
        return True
    if name.rest in POSITIONS:
        _check_positions(name.whole, value)
    elif name.rest in CONSTANTS:
        constant = CONSTANTS[name.rest]
        if (value != torch.tensor(constant, dtype=value.dtype)).any():
            rule = "holds other values than"
            raise WeightsError(f"{name.whole} {rule} {constant:g}: the reference has no others")
    return name.rest in POSITIONS or name.rest in CONSTANTS


def _tensors(reference: Model) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {**dict(reference.named_parameters())}
    ours |= dict(reference.named_buffers())
    for name, tensor in ours.items():
        if tensor.is_meta:
            raise WeightsError(f"{name} of the reference is on meta: build it on a real device")
    return ours


def _parts(
    name: _Name, value: Tensor, table: Table, moves: Sequence[Elsewhere], spec: ModelSpec
) -> Iterable[tuple[str, Tensor]]:
    stem, place = _place(name, table, moves, spec)
    if isinstance(place, str):
        place = PLACED.get(spec.norm_placement, {}).get(place, place)
    if place == "input_layernorm" and _feeds_forward_alone(stem, spec):
        place = "post_attention_layernorm"
    if place is None:
        raise WeightsError(f"{name.whole} is left over: no place in a reference is known for it")
    place = Place((place,)) if isinstance(place, str) else place
    if value.dim() not in (1, 2, 3, 4):
        raise _other_shape(name.whole, value, [])
    parts = place.apart(value, spec)
    if len(parts) != len(place.modules):
        raise _other_shape(name.whole, value, [])
    leaf = f".{name.leaf}" if name.leaf else ""
    return zip((f"{stem}{target}{leaf}" for target in place.modules), parts, strict=True)


def _feeds_forward_alone(stem: str, spec: ModelSpec) -> bool:
    """Tell whether a block has no mixer: its one norm is then the feed-forward's (Nemotron-H)."""
    index = stem.removesuffix(".").rpartition(".")[2]
    return index.isdecimal() and spec.last_stack.mixer_of(int(index)) == "N"


def _place(
    name: _Name, table: Table, moves: Sequence[Elsewhere], spec: ModelSpec
) -> tuple[str, str | Place | None]:
    if not name.stack:
        end = OF_ENDS.get(name.rest)
        return "", None if end is None else end.format(_last_stack(spec))
    for find in moves:
        if (elsewhere := find(name.number, name.rest, spec)) is not None:
            return elsewhere[0], table.get(elsewhere[1])
    rest = name.rest
    if rest.startswith("self_attn.") and _is_linear(spec, name.number):
        rest = "linear_attn" + rest.removeprefix("self_attn")
    return f"{name.stack}.layers.{name.number}.", table.get(rest)


def _is_linear(spec: ModelSpec, index: int) -> bool:
    """Tell whether a layer's attention is linear (Kimi Linear and MiniMax call both alike)."""
    stack = spec.last_stack
    return stack.recurrent != NoRecurrent() and stack.mixer_of(index) == "R"


def _other_shape(name: str, value: Tensor, wanted: list[torch.Size]) -> WeightsError:
    needs = f"the reference needs {list(wanted[0])}" if wanted else "it cannot be taken apart"
    return WeightsError(f"{name} has another shape: {list(value.shape)}; {needs}")


def _check_positions(name: str, value: Tensor) -> None:
    expected = torch.arange(value.numel(), device=value.device)
    if not torch.equal(value.flatten().long(), expected):
        raise WeightsError(f"{name} holds other positions than 0, 1, 2, ...")


# ---- fused, transposed and alternating tensors, taken apart ----

# RoPE needs no permutation: the spec's `rope_style` says which columns are a pair, there as here.
Apart = Callable[[Tensor, ModelSpec], tuple[Tensor, ...]]


def as_it_is(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Return one tensor as it is: theirs is stored as ours."""
    return (tensor,)


def transposed(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Transpose [in, out], as GPT-2's Conv1D and gpt-oss's experts have it; a vector stays."""
    return (tensor.transpose(-2, -1) if tensor.dim() > 1 else tensor,)


def conv1d(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Transpose GPT-2's [in, out]; StarCoder, told by its one key/value head,
    has the names, not the form.
    """
    return (tensor,) if spec.n_kv_heads != spec.n_heads else transposed(tensor, spec)


def conv1d_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split GPT-2's [in, q + k + v] into three equal parts,
    StarCoder's into queries, one key, one value.
    """
    if spec.n_kv_heads != spec.n_heads:
        return joined_qkv(tensor, spec)
    return transposed(tensor, spec)[0].chunk(3)


def grouped_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor group by group: its R query heads, then its key, then its value.

    With G = H this is GPT-NeoX's and BLOOM's [H, 3, K], with G = 1 Falcon-7B's q, k, v.
    """
    n_groups, width = spec.n_kv_heads or spec.n_heads, spec.head_dim or 0
    per_group = spec.n_heads // n_groups + 2
    if tensor.shape[0] != n_groups * per_group * width:
        return ()
    parts = tensor.unflatten(0, (n_groups, per_group, width)).split((per_group - 2, 1, 1), dim=1)
    return tuple(part.flatten(0, 2) for part in parts)


def joined_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor that has all queries, then all keys,
    then all values (Phi-3, MPT, ModernBERT).
    """
    width = spec.head_dim or 0
    n_rows = [n * width for n in (spec.n_heads, spec.n_kv_heads or 0, spec.n_kv_heads or 0)]
    return tensor.split(n_rows) if tensor.shape[0] == sum(n_rows) else ()


def codegen_qkv(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split CodeGen's tensor: in each of four parts its queries, then its values, then its keys."""
    if tensor.shape[0] % 12:
        return ()
    q, v, k = tensor.unflatten(0, (4, 3, -1)).unbind(1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def halves(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split the rows of one matrix into gate, then up."""
    return tensor.chunk(2) if tensor.shape[0] % 2 == 0 else ()


def alternating(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """Separate gpt-oss's gate and up, which alternate in the last axis:
    ours has all of the gate first.
    """
    fused = torch.cat((tensor[..., 0::2], tensor[..., 1::2]), dim=-1)
    return (fused.transpose(-2, -1) if tensor.dim() == 3 else fused,)


def _delta(spec: ModelSpec) -> GatedDelta:
    part = spec.last_stack.recurrent
    assert isinstance(part, GatedDelta)  # the mixer of all types with these tensors
    return part


def delta_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor that has all queries, then all keys, then all values (Qwen3.5)."""
    part = _delta(spec)
    key, value = part.n_k_heads * part.k_head_dim, part.n_v_heads * part.v_head_dim
    return tensor.split((key, key, value)) if tensor.shape[0] == 2 * key + value else ()


def delta_qkvz(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head:
    its query, its key, its group's values and gates (Qwen3-Next).
    """
    part = _delta(spec)
    key, value = part.k_head_dim, part.n_v_heads // part.n_k_heads * part.v_head_dim
    return _of_groups(tensor, part.n_k_heads, (key, key, value, value))


def delta_rates(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Split a tensor key head by key head: the rates of its group, then the decays (Qwen3-Next)."""
    part = _delta(spec)
    per_group = part.n_v_heads // part.n_k_heads
    return _of_groups(tensor, part.n_k_heads, (per_group, per_group))


def _of_groups(tensor: Tensor, n_groups: int, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    if tensor.shape[0] != n_groups * sum(widths):
        return ()
    parts = tensor.unflatten(0, (n_groups, -1)).split(widths, dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


@dataclass(frozen=True)
class Place:
    """Where a tensor of theirs goes: one module of ours or more, and how it is taken apart."""

    modules: tuple[str, ...]
    apart: Apart = as_it_is


# ---- names ----

Table = Mapping[str, str | Place]

# What stands before the names of a body where there is a head.
PREFIXES = ("model.", "transformer.", "backbone.", "gpt_neox.", "biogpt.", "bert.", "roberta.",
            "electra.")  # fmt: skip

QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
SHARED_GATE_UP = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")
FFN, EXPERTS = ("gate", "up", "down"), ("gate_up_proj", "down_proj")
LINEAR = "linear_attn"  # what a block calls its mixer

# Parts of one module, the same on both sides: the role of the module and its spellings, its parts.
MODULES: tuple[tuple[str, str, str], ...] = (
    ("self_attn", "self_attn attn.attention attn temporal_block mixer shared_transformer.self_attn",
     "q_proj k_proj v_proj o_proj"),
    ("self_attn", "layer.0.SelfAttention", "q k v o"),
    ("self_attn", "self_attn", "q_norm k_norm q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa "
     "kv_a_layernorm kv_b_proj g_proj"),
    ("self_attn.indexer", "self_attn.indexer", "wq_b wk k_norm weights_proj q_proj k_proj q_norm"),
    ("cross_attn", "layer.1.EncDecAttention", "q k v o"),
    ("cross_attn", "encoder_attn", "q_proj k_proj v_proj"),
    ("mlp", "mlp mlps feed_forward mlp_block mixer", "gate_proj up_proj down_proj"),
    ("mlp.act_fn", "mlp.act_fn", "alpha_p alpha_n"),
    ("mlp.experts", "mlp.experts feed_forward.experts block_sparse_moe.experts mixer.experts",
     "gate_up_proj up_proj down_proj"),
    ("mlp.shared_experts", "mlp.shared_experts mlp.shared_expert feed_forward.shared_expert "
     "mixer.shared_experts", "gate_proj up_proj down_proj"),
    ("mlp", "mixer", "fc1_latent_proj fc2_latent_proj"),
    ("mamba", "mamba mixer mamba_decoder.mamba", "in_proj conv1d out_proj A_log D x_proj dt_proj "
     "dt_layernorm b_layernorm c_layernorm dt_bias norm"),
    (LINEAR, LINEAR, "q_proj k_proj v_proj qkv_proj a_proj b_proj g_proj g_a_proj g_b_proj "
     "output_gate conv1d A_log dt_bias o_norm o_proj forget_gate.f_a_proj forget_gate.f_b_proj "
     "forget_gate.dt_bias forget_gate.A_log"),
    ("mlstm_layer", "mlstm_layer", "q k v ogate_preact igate_preact fgate_preact multihead_norm "
     "out_proj"),
    ("conv", "conv", "in_proj conv out_proj"),
    ("temporal_block", "temporal_block", "linear_y linear_x linear_out conv_1d"),
    ("temporal_block.rg_lru", "temporal_block.rg_lru", "recurrent_param input_gate_weight "
     "input_gate_bias recurrent_gate_weight recurrent_gate_bias"),
    ("altup", "altup", "correct_output_scale correction_coefs prediction_coefs modality_router "
     "router_norm"),
    ("laurel", "laurel", "linear_left linear_right post_laurel_norm"),
)  # fmt: skip

# Role of one tensor of a block -> its spellings.
ROLES = {
    "input_layernorm": "input_layernorm ln_1 ln_attn norm_1 norm operator_norm temporal_pre_norm "
    "attn_norm self_attn_layer_norm norm_mlstm attention.output.LayerNorm layer.0.layer_norm "
    "attention_layernorm mamba_decoder.input_layernorm shared_transformer.input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm ln_2 ln_mlp norm_2 ffn_norm norm_ffn "
    "channel_pre_norm mlp_norm final_layer_norm output.LayerNorm pre_ff_layernorm "
    "feedforward_layernorm layer.1.layer_norm layer.2.layer_norm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "pre_ff_layernorm": "shared_transformer.pre_ff_layernorm",
    "cross_attention_layernorm": "encoder_attn_layer_norm",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "self_attn.dense self_attn.out_proj attn.attention.out_proj attn.out_proj "
    "attn.Wo attention.dense self_attention.dense attention.output.dense",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "self_attn.core.sinks": "self_attn.sinks",
    "cross_attn.o_proj": "encoder_attn.out_proj",
    "mlp.gate_proj": "feed_forward.w1 ffn.proj_up_gate layer.1.DenseReluDense.wi_0 "
    "layer.2.DenseReluDense.wi_0",
    "mlp.up_proj": "mlp.c_fc mlp.fc1 mlp.fc_in mlp.dense_h_to_4h feed_forward.w3 ffn.up_proj "
    "ffn.proj_up fc1 intermediate.dense layer.1.DenseReluDense.wi layer.1.DenseReluDense.wi_1 "
    "layer.2.DenseReluDense.wi layer.2.DenseReluDense.wi_1",
    "mlp.down_proj": "mlp.c_proj mlp.fc2 mlp.fc_out mlp.dense_4h_to_h mlp.Wo feed_forward.w2 "
    "ffn.down_proj ffn.proj_down fc2 output.dense shared_mlp.output_linear "
    "shared_transformer.feed_forward.down_proj layer.1.DenseReluDense.wo layer.2.DenseReluDense.wo",
    "mlp.gate.proj": "mlp.gate mlp.router feed_forward.router feed_forward.gate "
    "block_sparse_moe.router mixer.gate",
    "mlp.gate.e_score_correction_bias": "mlp.gate.e_score_correction_bias "
    "mlp.e_score_correction_bias feed_forward.expert_bias mixer.gate.e_score_correction_bias",
    "mlp.shared_expert_gate": "mlp.shared_expert_gate",
    "moe.gate.proj": "mlp.router.classifier router.proj",
    **{f"moe.gate.{name}": f"router.{name}" for name in ("scale", "per_expert_scale")},
    **{f"moe.experts.{name}": f"experts.{name}" for name in EXPERTS},
    "post_mlp_layernorm": "post_feedforward_layernorm_1",
    "pre_moe_layernorm": "pre_feedforward_layernorm_2",
    "post_moe_layernorm": "post_feedforward_layernorm_2",
    "moe.gate.e_score_correction_bias": "mlp.router.e_score_correction_bias",
    f"{LINEAR}.g_proj": f"{LINEAR}.in_proj_z",
    f"{LINEAR}.a_proj": f"{LINEAR}.in_proj_a",
    f"{LINEAR}.b_proj": f"{LINEAR}.in_proj_b",
    f"{LINEAR}.o_norm": f"{LINEAR}.norm",
    f"{LINEAR}.o_proj": f"{LINEAR}.out_proj",
    "per_layer_input.gate": "per_layer_input_gate",
    "per_layer_input.projection": "per_layer_projection",
    "per_layer_input.norm": "post_per_layer_input_norm",
    "shared_use.linear": "linear",
    "layer_scalar": "layer_scalar",
}

# Tensors of a block that are several of ours, or stored otherwise.
FUSED: Table = {
    "self_attn.qkv_proj": Place(QKV, joined_qkv),
    "attn.Wqkv": Place(QKV, joined_qkv),
    "attn.c_attn": Place(QKV, conv1d_qkv),
    "attn.c_proj": Place(("self_attn.o_proj",), conv1d),
    "attn.qkv_proj": Place(QKV, codegen_qkv),
    **dict.fromkeys(
        [f"{stem}.query_key_value" for stem in ("self_attn", "self_attention", "attention")],
        Place(QKV, grouped_qkv),
    ),
    **dict.fromkeys(
        ["mlp.gate_up_proj", "mlp.Wi", "shared_mlp.input_linear",
         "shared_transformer.feed_forward.gate_up_proj"],
        Place(GATE_UP, halves),
    ),
    "mlp.shared_experts.gate_up_proj": Place(SHARED_GATE_UP, halves),
    f"{LINEAR}.in_proj_qkv": Place(tuple(f"{LINEAR}.{p}_proj" for p in "qkv"), delta_qkv),
    f"{LINEAR}.in_proj_qkvz": Place(tuple(f"{LINEAR}.{p}_proj" for p in "qkvg"), delta_qkvz),
    f"{LINEAR}.in_proj_ba": Place(tuple(f"{LINEAR}.{p}_proj" for p in "ba"), delta_rates),
}  # fmt: skip

V4_PROJECTIONS = ("q_a_norm", "kv_proj", "kv_norm", "o_a_proj", "o_b_proj")
V4_COMPRESSOR = ("kv_proj", "gate_proj", "position_bias", "kv_norm")
V4_INDEXER = ("q_b_proj", "scorer.weights_proj")

# A tensor that tells a family by itself -> what else its blocks call otherwise.
VARIANTS: Mapping[str, Table] = {
    "post_self_attn_layernorm": {  # GLM-4
        "post_self_attn_layernorm": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "post_mlp_layernorm": "post_feedforward_layernorm",
    },
    "post_norm1": {  # HyperCLOVA X
        "post_norm1": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "post_norm2": "post_feedforward_layernorm",
    },
    "layer.1.EncDecAttention.q": {"layer.1.layer_norm": "cross_attention_layernorm"},  # T5
    "attn.c_attn": {  # GPT-2
        "mlp.c_fc": Place(("mlp.up_proj",), conv1d),
        "mlp.c_proj": Place(("mlp.down_proj",), conv1d),
    },
    "mlp.experts.gate_up_proj_bias": {  # gpt-oss
        "mlp.experts.gate_up_proj": Place(("mlp.experts.gate_up_proj",), alternating),
        "mlp.experts.gate_up_proj_bias": Place(("mlp.experts.gate_up_proj_bias",), alternating),
        "mlp.experts.down_proj": Place(("mlp.experts.down_proj",), transposed),
        "mlp.experts.down_proj_bias": "mlp.experts.down_proj_bias",
    },
    "feed_forward.shared_expert.up_proj": {  # Llama 4
        f"feed_forward.experts.{p}": Place((f"mlp.experts.{p}",), transposed) for p in EXPERTS
    },
    "block_sparse_moe.router": {  # Granite's shared expert, alone a feed-forward
        "shared_mlp.input_linear": Place(SHARED_GATE_UP, halves),
        "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
    },
    "self_attn.o_a_proj": {  # DeepSeek-V4
        "self_attn.sinks": "self_attn.sinks",
        "mlp.gate.tid2eid": "mlp.gate.token_experts",
        **{
            f"self_attn.{name}": f"self_attn.{name.replace('scorer.', '')}"
            for name in (
                *V4_PROJECTIONS,
                *(f"compressor.{n}" for n in V4_COMPRESSOR),
                *(f"compressor.indexer.{n}" for n in (*V4_COMPRESSOR, *V4_INDEXER)),
            )
        },
        **{
            f"{stem}.{name}": f"{stem}.{name}" + ".weight" * (name == "fn")
            for stem in ("attn_hc", "ffn_hc")
            for name in ("fn", "base", "scale")
        },
    },
    "mlp.router.classifier": {f"mlp.experts.{p}": f"moe.experts.{p}" for p in EXPERTS},  # LongCat
}

# Of both ends of a model; {} is its only or last stack.
ENDS = {
    "embed_tokens": "embed_tokens wte embeddings embed_in word_embeddings shared "
    "encoder.embed_tokens decoder.embed_tokens embeddings.word_embeddings "
    "embeddings.tok_embeddings",
    "embed_types": "embeddings.token_type_embeddings",
    "{}.embed_positions": "wpe embed_positions embeddings.position_embeddings",
    "{}.embed_norm": "word_embeddings_layernorm embeddings.LayerNorm embeddings.norm",
    "{}.embed_proj": "embeddings_project",
    "{}.norm": "norm final_layernorm ln_f norm_f final_norm embedding_norm layer_norm "
    "final_layer_norm out_norm",
    "lm_head": "lm_head output_projection cls.predictions.decoder cls.predictions lm_head.decoder "
    "generator_lm_head decoder",
    "head_transform.dense": "cls.predictions.transform.dense lm_head.dense head.dense "
    "generator_predictions.dense",
    "head_transform.norm": "cls.predictions.transform.LayerNorm lm_head.layer_norm head.norm "
    "generator_predictions.LayerNorm",
    "pooler.dense": "pooler.dense",
    **{
        f"{stack}.{ours}": " ".join(f"{stack}.{name}" for name in theirs.split())
        for stack in ("encoder", "decoder")
        for ours, theirs in {
            "embed_positions": "embed_positions",
            "embed_norm": "layernorm_embedding",
            "norm": "layer_norm final_layer_norm",
            "relative_bias.relative_attention_bias":
                "block.0.layer.0.SelfAttention.relative_attention_bias",
        }.items()
    },
    **{
        f"decoder.copies.{name}.{number}": f"altup_{name}.{number}"  # each copy but the first
        for name in ("projections", "unembed_projections")
        for number in range(MAX_INPUTS)
    },
    **{f"decoder.hc_head.{name}": f"hc_head.hc_{name}" for name in ("base", "scale")},
    "decoder.hc_head.fn.weight": "hc_head.hc_fn",
    "decoder.per_layer_inputs.embed_tokens": "embed_tokens_per_layer",
    "decoder.per_layer_inputs.model_projection": "per_layer_model_projection",
    "decoder.per_layer_inputs.projection_norm": "per_layer_projection_norm",
}  # fmt: skip

POSITIONS = ("embeddings.position_ids",)  # buffers that hold 0, 1, 2, ...
# Buffers that hold one number, which the reference has in its code.
CONSTANTS = {"final_logits_bias": 0.0, "mlp.act_fn.beta": 0.5, "mlp.act_fn.eps": -1e-6}
# Last names of buffers that follow from the sizes: lightning attention's.
COMPUTED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")


def _spelled(roles: Mapping[str, str]) -> dict[str, str | Place]:
    return {name: ours for ours, names in roles.items() for name in names.split()}


def _of_modules() -> dict[str, str | Place]:
    by_tensor: dict[str, str | Place] = {}
    for ours, modules, parts in MODULES:
        for part in parts.split():
            bare = part in tuple("qkvo") and ours.endswith("attn")  # T5's
            for theirs in modules.split():
                by_tensor[f"{theirs}.{part}"] = f"{ours}.{part}{'_proj' if bare else ''}"
    return by_tensor


# ---- tensors that stand in another block than their name says ----

SHARED = "shared_transformer."
# Zamba2's lists of adapters, an item a use -> ours, in the layer of that use.
ADAPTERS = {
    "feed_forward.gate_up_proj_adapter_list": "gate_up",
    **{f"self_attn.linear_{name}_adapter_list": name for name in "qkv"},
}
HALVES = {"0": "down_proj", "1": "up_proj"}


def in_shared_block(index: int, rest: str, spec: ModelSpec) -> tuple[str, str] | None:
    """Find where a shared tensor of Zamba2 stands:
    in its stored block, or, an adapter, in the layer of its use.

    Every layer that uses a block has all of its adapters under its name, numbered by use.
    """
    if not rest.startswith(SHARED):
        return None
    stack = spec.last_stack
    name, _, last = rest.rpartition(".")
    adapters, _, number = name.rpartition(".")
    if adapters.removeprefix(SHARED) not in ADAPTERS:
        return f"decoder.shared_blocks.{stack.shared_of(index)}.", rest
    using = [i for i in range(stack.n_layers) if stack.mixer_of(i) == SHARING]
    if not number.isdecimal() or int(number) >= len(using):
        return "", ""  # no use has this number
    return f"decoder.layers.{using[int(number)]}.", f"{adapters}.{last}"


def in_two_layers(index: int, rest: str, _spec: ModelSpec) -> tuple[str, str] | None:
    """Find where a tensor of LongCat's layer `index` stands:
    `self_attn.1.` in the second of two, `mlp.` in the first.
    """
    module, number, below = (*rest.split(".", 2), "", "")[:3]
    if number in ("0", "1"):
        return f"decoder.layers.{2 * index + int(number)}.", f"{module}.{below}".rstrip(".")
    return f"decoder.layers.{2 * index}.", rest


# What tells a family -> what stands before our name of a tensor, and the rest of its name; None
# where it is the block's own.
Elsewhere = Callable[[int, str, ModelSpec], tuple[str, str] | None]
ELSEWHERE: Mapping[str, Elsewhere] = {
    "mlp.router.classifier": in_two_layers,
    f"{SHARED}input_layernorm": in_shared_block,
}

BLOCK: Table = {
    **_of_modules(),
    **_spelled(ROLES),
    **FUSED,
    **{
        f"{SHARED}{theirs}.{half}": f"shared_use.adapters.{ours}.{HALVES[half]}"
        for theirs, ours in ADAPTERS.items()
        for half in HALVES
    },
}
OF_ENDS = {name: ours for ours, names in ENDS.items() for name in names.split()}
