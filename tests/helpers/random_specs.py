"""Valid specs of every kind and structure, small enough to count by a loop."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, LatentAttention
from metacount.spec.ffn import Mixture, SharedExperts
from metacount.spec.field import Field, declared

SMALL = st.sampled_from([1, 2, 3, 5, 7, 11, 13])


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    kind = draw(st.sampled_from(["decoder", "encoder", "prefix-decoder", "encoder-decoder"]))
    flag = st.booleans()
    seq2seq = kind == "encoder-decoder"
    mla = kind in ("decoder", "prefix-decoder") and draw(flag)
    has_vocab = draw(st.integers(0, 4)) > 0
    has_head = not has_vocab or draw(flag)
    fields: dict[str, Any] = {
        "kind": kind,
        "d_model": draw(SMALL),
        "n_layers": draw(st.integers(1, 7)),
        "n_encoder_layers": draw(st.integers(1, 7)) if seq2seq else 0,
        "vocab_size": draw(st.sampled_from([17, 101])) if has_vocab else None,
        "has_head": has_head,
        "tie_embeddings": has_vocab and has_head and draw(flag),
        "head_bias": has_vocab and has_head and draw(flag),
        "n_token_types": draw(st.integers(0, 3)) if has_vocab else 0,
        "embedding_norm": has_vocab and draw(flag),
        "pooler": kind == "encoder" and draw(flag),
        "activation": "silu",
        "gated": draw(flag),
        "ffn_bias": draw(flag),
        "final_norm": draw(flag),
        "norm": "layernorm",
        "norm_affine": draw(flag),
    }
    if kind == "encoder" and has_vocab:
        fields["d_embedding"] = draw(st.none() | SMALL)
    if has_vocab and has_head:
        fields["head_transform"] = fields.get("d_embedding") is not None or draw(flag)
        fields["head_transform_bias"] = fields["head_transform"] and draw(flag)
    fields["norm_bias"] = fields["norm_affine"] and draw(flag)
    placements = ["pre", "post", "deep", "sandwich", "post_branch"]
    placements += [] if seq2seq else ["parallel", "parallel_two"]
    fields["norm_placement"] = draw(st.sampled_from(placements))
    fields["first_norm"] = fields["norm_placement"] != "pre" or draw(flag)
    fields |= draw(mla_fields() if mla else gqa_fields(kind))
    if kind == "decoder" and draw(flag):
        fields["window_kind"] = draw(st.sampled_from(["sliding", "chunked"]))
    if (kind == "encoder" and draw(flag)) or "window_kind" in fields:
        fields["window"] = draw(st.integers(2, 6))
        fields["window_pattern"] = draw(st.text("LG", min_size=1, max_size=4))
    stacks = [fields["n_layers"]] + ([fields["n_encoder_layers"]] if seq2seq else [])
    fields |= draw(ffn_fields(stacks))
    return ModelSpec(**fields)


def drawn(draw: st.DrawFn, part: type, **given: Any) -> dict[str, Any]:
    """A value for each field that a part declares, numbers apart; `given` as they are."""
    values = dict(given)
    for field in declared(part).values():
        if not isinstance(field, Field) or field.name in given:
            continue
        if field.takes == "flag":
            values[field.name] = draw(st.booleans())
        elif field.takes == "choice":
            values[field.name] = draw(st.sampled_from(field.choices))
        elif field.takes == "whole":
            values[field.name] = draw(st.none() | SMALL if field.optional else SMALL)
    return values


@st.composite
def gqa_fields(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    n_kv_heads = draw(st.integers(1, 3))
    fields = drawn(
        draw,
        Attention,
        n_kv_heads=n_kv_heads,
        n_kv_shared_layers=0,  # drawn in tests/formulas/test_modules.py
        head_dim=2 * draw(SMALL),
        n_heads=n_kv_heads * draw(st.integers(1, 3)),
    )
    positions = ["none", "sinusoidal", "rope", "alibi", "learned", "t5"]
    positions += ["transformer_xl"] * 2 if kind == "decoder" else []
    fields["position"] = draw(st.sampled_from(positions))
    if fields["position"] != "rope" and fields.get("qk_norm") == "l2":
        fields["qk_norm"] = "layernorm"
    if fields["position"] == "learned":
        fields["n_positions"] = draw(SMALL)
        fields["n_query_positions"] = draw(st.integers(0, 3)) if kind == "decoder" else 0
    if fields["position"] == "t5":
        fields |= {"n_buckets": 8, "max_distance": 19}
    return fields


@st.composite
def mla_fields(draw: st.DrawFn) -> dict[str, Any]:
    fields = drawn(draw, LatentAttention, qk_rope_head_dim=2 * draw(SMALL))
    return {"attention": "mla", "position": "rope", **fields}


@st.composite
def ffn_fields(draw: st.DrawFn, stacks: list[int]) -> dict[str, Any]:
    flag = st.booleans()
    dense, every = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    offset = draw(st.integers(0, every - 1))
    routed = [i >= dense and (i + 1 - offset) % every == 0 for n in stacks for i in range(n)]
    if not any(routed) or draw(flag):
        return {"d_ff": draw(SMALL)}
    n_experts = draw(st.integers(1, 6))
    n_shared = draw(st.integers(0, 2))
    shared = drawn(draw, SharedExperts, n_shared_experts=n_shared) if n_shared else {}
    mixture = drawn(
        draw,
        Mixture,
        n_experts=n_experts,
        top_k=draw(st.integers(1, n_experts)),
        n_dense_layers=dense,
        moe_every=every,
        moe_offset=offset,
    )
    return {"d_ff": None if all(routed) else draw(SMALL), **mixture, **shared}
