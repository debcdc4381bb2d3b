"""How a config says which layers have experts, how many, and how a token chooses among them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import moe_layout

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def with_experts(fields: Json, layout: Json | None, experts: Json) -> Json:
    """Return `fields` with the experts of `layout`; a dense width stays where a layer uses it."""
    if layout is None:
        return fields
    kept = dict(fields)
    if layout == {"n_dense_layers": 0, "moe_every": 1}:
        del kept["d_ff"]
    return {**kept, **layout, **experts}


def all_experts(fields: Json, experts: Json) -> Json:
    """Return `fields` with experts in every layer; `d_ff` is the width of one."""
    kept = {name: value for name, value in fields.items() if name != "d_ff"}
    return {**kept, "d_ff_expert": fields["d_ff"], **experts}


def routed(keys: Keys, count: str, router: str, *, chosen: str = "num_experts_per_tok") -> Json:
    """Read how many experts there are and how many of them a token uses;
    `router` says how it chooses.
    """
    return {
        "n_experts": keys.size(count),
        "top_k": keys.size(chosen),
        "router": router,
    }


def grouped(keys: Keys, score: str) -> Json:
    """Read the group-limited choice of experts; one group is no limit."""
    n_groups, top_groups = keys.size("n_group"), keys.size("topk_group")
    if n_groups == 1:
        return {}
    return {"n_groups": n_groups, "top_groups": top_groups, "group_score": score}


def dense_first(keys: Keys, n_layers: int) -> Json | None:
    """Apply DeepSeek's rule: dense layers first, then experts in all."""
    first = keys.size("first_k_dense_replace", lowest=0)
    keys.fixed("moe_layer_freq", 1)
    stack = [i >= first for i in range(n_layers)]
    return moe_layout(keys, "first_k_dense_replace", [stack], first=first)


def sigmoid_or_softmax(keys: Keys, scoring: str) -> str:
    """Name the router; `norm_topk_prob` divides the chosen weights by their sum."""
    return f"{scoring}_renorm" if keys.flag("norm_topk_prob") else scoring


def qwen_experts(keys: Keys, fields: Json, count: str) -> Json:
    """Apply Qwen's rule: experts in every `decoder_sparse_step`-th layer
    that `mlp_only_layers` does not name.
    """
    step, n_layers = keys.layers("decoder_sparse_step"), fields["n_layers"]
    dense = keys.raw("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(i) is not int for i in dense):
        raise SpecError("mlp_only_layers", "must be a list of whole numbers", dense, "remove it")
    excluded = frozenset(dense)
    some = keys.size(count, lowest=0) > 0
    stack = [some and i not in excluded and (i + 1) % step == 0 for i in range(n_layers)]
    router = sigmoid_or_softmax(keys, "softmax")
    width = keys.size("moe_intermediate_size")
    layout = moe_layout(keys, "mlp_only_layers", [stack], every=step)
    if layout is None:
        keys.size("num_experts_per_tok")
        return fields
    return with_experts(fields, layout, {**routed(keys, count, router), "d_ff_expert": width})


def deepseek_experts(keys: Keys, fields: Json, scoring: str) -> Json:
    """Read DeepSeek-V3's experts (arXiv:2412.19437): dense first, groups, a bias for the choice."""
    layout = dense_first(keys, fields["n_layers"])
    experts = {
        **routed(keys, "n_routed_experts", sigmoid_or_softmax(keys, scoring)),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", lowest=0),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
        **grouped(keys, "top2_sum"),
    }
    return {**with_experts(fields, layout, experts), **prediction(keys)}


def prediction(keys: Keys, name: str = "num_nextn_predict_layers") -> Json:
    """Read the number of multi-token-prediction modules,
    which are in the checkpoint, not in the class.
    """
    if name not in keys.data and name not in keys.defaults:
        return {}
    n_modules = keys.raw(name) and keys.layers(name, lowest=0)
    if not n_modules:
        return {}
    apart = "; they are counted apart, as mtp_params" if keys.end == "head" else ""
    keys.notes.append(
        f"{name}: {n_modules} prediction layers are in the checkpoint, not in the class{apart}"
    )
    return {"n_mtp_layers": n_modules}
