"""What the formulas of training are refused for: ways to run attention, and structures."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.forward import EAGER, FLASH, SDPA, Pass, attention_of
from metacount.spec import ModelSpec
from metacount.spec.altup_rules import AROUND, beyond_branches
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Alibi, RelativeBuckets, TransformerXL

# One kind of layer, with attention and nothing beside it: of each field the value that says so.
ALIKE = {
    "recurrent": "none",
    "mixer_pattern": "A",
    "ffn_pattern": "F",
    "n_zero_experts": 0,
    "output_gate": False,
    "index_top_k": None,
    "index_block_len": None,
    "attention_out_scale": 1.0,
    "gate_scale": 1.0,
    "ffn_scale": 1.0,
    "residual_weight": 1.0,
    **AROUND,
}
NORMS_AFTER = ("post", "deep", "sandwich", "post_branch")  # a norm after each branch
PLACEMENTS = ("pre", "post", "deep", "post_branch", "sandwich", "parallel", "parallel_two")


def check_alike(spec: ModelSpec, what: str = "for training", *, but: tuple[str, ...] = ()) -> None:
    """Raise `SpecError` unless every layer has attention and a feed-forward, and no more.

    Conventions of training are of such models alone; `what` has no formula of others. The fields
    of `but` may have any value.
    """
    for name, plain in ALIKE.items():
        value = plain if name in but else getattr(spec, name)
        # a pattern may be longer
        same = set(str(value)) == set(str(plain)) if name.endswith("_pattern") else value == plain
        if not same:
            raise SpecError(name, f"has no formula {what}", value, "measure it instead")
    if spec.norm_placement not in PLACEMENTS:
        raise SpecError(
            "norm_placement",
            f"has no formula {what}",
            spec.norm_placement,
            "measure it instead",
        )


def check_around(spec: ModelSpec) -> None:
    """Raise `SpecError` for what Gemma 3n has, whose kept bytes and repeated FLOPs are measured."""
    name = beyond_branches(spec)
    if name:
        rule = "has no formula for what training keeps"
        raise SpecError(name, rule, getattr(spec, name), "measure it instead")


def check_reached(spec: ModelSpec) -> None:
    """Raise `SpecError` where the loss does not see all parameters: of embeddings that go nowhere.

    Each layer's own embedding is added to all copies of the stream but the first.
    """
    part = spec.last_stack.altup
    alone = part is not None and isinstance(part.n_inputs, int) and part.n_inputs == 1
    if alone and spec.last_stack.layer_inputs is not None:
        raise SpecError(
            "n_altup_inputs",
            "has no formula for training: of one copy, d_per_layer is added to none",
            1,
            "measure it instead, or choose 2 or more",
        )


def check_fused_run(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for attention that a fused kernel is asked for and does not compute."""
    mixer, positions = attention_of(spec), spec.positions
    if run.attention == EAGER or mixer is None:
        return
    check_fused(mixer, wide=run.attention == FLASH)
    if run.attention == SDPA:
        return
    chunked = mixer.window is not None and mixer.window.kind == "chunked"
    if chunked or spec.kind == "prefix-decoder":
        name, value = ("window_kind", "chunked") if chunked else ("kind", spec.kind)
        raise SpecError(
            name,
            "has no formula with fused attention: it needs a mask",
            value,
            "choose attention eager",
        )
    if isinstance(positions, Alibi | RelativeBuckets | TransformerXL):
        raise SpecError(
            "position",
            "has no formula with fused attention: it adds to scores",
            spec.position,
            "choose attention eager",
        )


def check_kept_run(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` where what a step keeps has no formula: Gemma 3n, some fused kernels."""
    check_fused_run(spec, run)
    check_around(spec)


def check_fused(part: Attention | LatentAttention, *, wide: bool = True) -> None:
    """Raise `SpecError` for what a fused kernel does not compute: a cap on scores, sinks, ...

    `wide`: values that are wider than the keys, too.
    """
    sinks = isinstance(part, Attention) and part.sinks
    widest = None
    if wide and isinstance(part, LatentAttention) and isinstance(part.v_head_dim, int):
        # wider than the keys it is no such kernel's; of one value torch need not copy the result
        keys = part.qk_nope_head_dim + part.qk_rope_head_dim
        beyond = part.v_head_dim > keys or part.v_head_dim == 1
        widest = part.v_head_dim if beyond else None
    chosen = None
    if isinstance(part, LatentAttention) and part.indexer is not None:
        chosen = part.indexer.top_k  # a mask, which the kernel does not take
    known = {"attention_softcap": part.softcap, "attention_sinks": sinks or None}
    if isinstance(part, Attention) and part.indexer is not None:
        known["index_block_len"] = part.indexer.block_len  # likewise
    for name, value in {**known, "v_head_dim": widest, "index_top_k": chosen}.items():
        if value is not None:
            raise SpecError(
                name, "has no formula with fused attention", value, "choose attention eager"
            )
