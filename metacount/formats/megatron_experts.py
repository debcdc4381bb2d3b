"""What Megatron-LM's arguments say of experts: how many, in which layers, chosen how."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.experts import moe_layout, placed

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys

EXPERTS = (
    "--moe-router-topk",
    "--moe-ffn-hidden-size",
    "--moe-layer-freq",
    "--moe-shared-expert-intermediate-size",
    "--moe-router-score-function",
    "--moe-router-topk-scaling-factor",
    "--moe-router-num-groups",
    "--moe-router-group-topk",
    "--moe-router-pre-softmax",
    "--moe-router-enable-expert-bias",
    "--moe-shared-expert-gate",
)


def with_experts(keys: Keys, fields: Json, bias: bool) -> Json:
    """Return the fields with the experts of --num-experts;
    a dense width stays where a layer uses it.
    """
    if keys.raw("--num-experts") is None:
        for name in EXPERTS:
            if name in keys.data:
                raise SpecError(
                    name, "has no effect without --num-experts", keys.data[name], "add it"
                )
        return fields
    n_experts, top_k = keys.size("--num-experts"), keys.size("--moe-router-topk")
    if bias:
        raise SpecError(
            "--num-experts",
            "is read with experts without biases alone",
            n_experts,
            "add --disable-bias-linear",
        )
    layout = _layout(keys, fields["n_layers"])
    width = keys.optional_size("--moe-ffn-hidden-size") or fields["d_ff"]
    scale = keys.optional_number("--moe-router-topk-scaling-factor")
    experts: Json = {
        "n_experts": n_experts,
        "top_k": top_k,
        "d_ff_expert": width,
        "router": _router(keys, top_k),
        "selection_bias": keys.flag("--moe-router-enable-expert-bias"),
        **({"routed_scale": scale} if scale else {}),
        **_shared(keys),
        **_grouped(keys, top_k),
    }
    found = placed(fields, layout, experts)
    return {**fields, **found}


def _layout(keys: Keys, n_layers: int) -> Json:
    """Read which layers have experts:
    every n-th from the first, or dense ones first: `[0]*1+[1]*60`.
    """
    import re

    name, given = "--moe-layer-freq", keys.raw("--moe-layer-freq")
    pattern = re.fullmatch(r"\(?\[0\]\*(\d{1,5})\+\[1\]\*(\d{1,5})\)?", str(given).replace(" ", ""))
    if pattern is None:
        every = keys.layers(name)
        stack, first = [i % every == 0 for i in range(n_layers)], 0
    else:
        first, rest, every = int(pattern[1]), int(pattern[2]), 1
        stack = [i >= first for i in range(n_layers)]
        if first + rest != n_layers or not rest:
            raise SpecError(
                name, f"must name {n_layers} layers, some with experts", given, "see --num-layers"
            )
    layout = moe_layout(keys, name, [stack], first=first, every=every)
    assert layout is not None  # at least one layer has experts
    return layout


def _router(keys: Keys, top_k: int) -> str:
    score = keys.only("--moe-router-score-function", "softmax", "sigmoid")
    if score == "sigmoid":
        return "sigmoid_renorm" if top_k > 1 else "sigmoid"
    return "softmax" if keys.flag("--moe-router-pre-softmax") else "topk_softmax"


def _shared(keys: Keys) -> Json:
    width = keys.optional_size("--moe-shared-expert-intermediate-size")
    gate = keys.flag("--moe-shared-expert-gate")
    if width is None:
        return {}
    return {"n_shared_experts": 1, "d_ff_shared": width, "shared_expert_gate": gate}


def _grouped(keys: Keys, top_k: int) -> Json:
    groups = keys.optional_size("--moe-router-num-groups")
    if groups is None:
        return {}
    chosen = keys.size("--moe-router-group-topk")
    scores = {1: "max", 2: "top2_sum"}
    if top_k % chosen or top_k // chosen not in scores:
        raise SpecError(
            "--moe-router-group-topk",
            f"must leave one or two experts a group of --moe-router-topk {top_k}",
            chosen,
            "choose another",
        )
    return {"n_groups": groups, "top_groups": chosen, "group_score": scores[top_k // chosen]}
