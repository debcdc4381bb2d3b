"""How a config says which layers have experts, how many, and how a token chooses among them."""

from __future__ import annotations

from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import always, indices, letters_of, number, part, size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.huggingface.config.row import Part

    # Finds the layers with experts among so many; None where there are none.
    Layout = Callable[[Keys, int], Json | None]

DENSE_OR_SPARSE = ("dense", "sparse")


def routed(
    keys: Keys, count: str, router: str, *, chosen: str = "num_experts_per_tok", lowest: int = 1
) -> Json:
    """Read how many experts there are and how many of them a token uses;
    `router` says how it chooses.
    """
    n_experts = keys.size(count, lowest=lowest)
    return {"n_experts": n_experts, "top_k": keys.size(chosen), "router": router}


def placed(fields: Json, layout: Json | None, found: Json) -> Json:
    """Return the fields of experts in the layers of `layout`; a dense width stays in `fields` where
    a layer uses it.
    """
    if layout is None:
        return {}
    if layout == {"n_dense_layers": 0, "moe_every": 1}:
        del fields["d_ff"]
    return {**layout, **found}


@part
def experts(
    keys: Keys,
    fields: Json,
    count: str,
    router: str,
    *parts: Part,
    renorm: bool | str = False,
    layout: Layout | None = None,
    chosen: str = "num_experts_per_tok",
    lowest: int = 1,
) -> Json:
    """Read experts, and what more `parts` say of them, in the layers of `layout`; without one in
    every layer, each as wide as the feed-forward was said to be.

    `renorm`: whether weights are divided by their sum is a key, norm_topk_prob or this one.
    """
    layers = None if layout is None else layout(keys, fields["n_layers"])
    if renorm and keys.flag(renorm if isinstance(renorm, str) else "norm_topk_prob"):
        router = f"{router}_renorm"
    found = routed(keys, count, router, chosen=chosen, lowest=lowest)
    for more in parts:
        found |= more(keys, fields)
    if layout is not None:
        return placed(fields, layers, found)
    return {**({"d_ff_expert": fields.pop("d_ff")} if "d_ff" in fields else {}), **found}


def shared_experts(key: str, *, lowest: int = 0) -> Part:
    """Read how many experts every token uses."""
    return size(f"n_shared_experts={key}", lowest=lowest)


@part
def groups(keys: Keys, _: Json, key: str) -> Json:
    """Read the group-limited choice of experts; one group is no limit."""
    n_groups, top_groups = keys.size(key), keys.size("topk_group")
    if n_groups == 1:
        return {}
    return {"n_groups": n_groups, "top_groups": top_groups, "group_score": "top2_sum"}


EXPERT_WIDTH = size("d_ff_expert=moe_intermediate_size")
ROUTED_SCALE = number("routed_scale=routed_scaling_factor")
CHOICE_BIAS = always(selection_bias=True)
grouped = groups("n_group")


def noaux(
    count: str = "n_routed_experts",
    shared: str = "n_shared_experts",
    layout: Layout | None = None,
) -> Part:
    """Read DeepSeek-V3's experts (arXiv:2412.19437): groups, and a bias for the choice."""
    more = (EXPERT_WIDTH, shared_experts(shared), CHOICE_BIAS, ROUTED_SCALE, grouped)
    return experts(count, "sigmoid", *more, renorm=True, layout=layout)


@part
def prediction(keys: Keys, _: Json, key: str = "num_nextn_predict_layers") -> Json:
    """Read the number of multi-token-prediction modules,
    which are in the checkpoint, not in the class.
    """
    if key not in keys.data and key not in keys.defaults:
        return {}
    n_modules = keys.raw(key) and keys.layers(key, lowest=0)
    if not n_modules:
        return {}
    apart = "; they are counted apart, as mtp_params" if keys.end == "head" else ""
    keys.notes.append(
        f"{key}: {n_modules} prediction layers are in the checkpoint, not in the class{apart}"
    )
    return {"n_mtp_layers": n_modules}


# ---- which layers have experts ----


def dense_first(keys: Keys, n_layers: int) -> Json | None:
    """Apply DeepSeek's rule: dense layers first, then experts in all."""
    keys.fixed("moe_layer_freq", 1)
    return after("first_k_dense_replace")(keys, n_layers)


def after(name: str) -> Layout:
    """Read how many dense layers come first, before experts in all."""

    def layout(keys: Keys, n_layers: int) -> Json | None:
        first = keys.size(name, lowest=0)
        return moe_layout(keys, name, [[i >= first for i in range(n_layers)]], first=first)

    return layout


def sparse_layers(first: int | str) -> Layout:
    """Read the layers with experts from `mlp_layer_types`, a word a layer;
    by default the first few, or as many as a key says, are dense.
    """

    def layout(keys: Keys, n_layers: int) -> Json | None:
        n_dense = keys.size(first, lowest=0) if isinstance(first, str) else first
        name, words = "mlp_layer_types", keys.given("mlp_layer_types")
        if words is None:
            words = [DENSE_OR_SPARSE[i >= n_dense] for i in range(n_layers)]
        letters = letters_of(keys, name, words, {"dense": "D", "sparse": "S"}, n_layers)
        return moe_layout(keys, name, [[letter == "S" for letter in letters]], first=n_dense)

    return layout


def sparse_steps(count: str) -> Layout:
    """Apply Qwen's rule: experts in every `decoder_sparse_step`-th layer
    that `mlp_only_layers` does not name.
    """

    def layout(keys: Keys, n_layers: int) -> Json | None:
        step = keys.layers("decoder_sparse_step")
        dense = keys.raw("mlp_only_layers")
        excluded = frozenset([] if dense is None else indices("mlp_only_layers", dense))
        some = keys.size(count, lowest=0) > 0
        stack = [some and i not in excluded and (i + 1) % step == 0 for i in range(n_layers)]
        return moe_layout(keys, "mlp_only_layers", [stack], every=step)

    return layout


def qwen_experts(count: str, *parts: Part) -> Part:
    """Read Qwen's experts: softmax, whose weights may be divided by their sum."""
    more = (EXPERT_WIDTH, *parts)
    return experts(count, "softmax", *more, renorm=True, layout=sparse_steps(count), lowest=0)


def qwen_shared(keys: Keys, _: Json) -> Json:
    """Read Qwen's one shared expert behind a gate."""
    width = keys.size("shared_expert_intermediate_size")
    return {"n_shared_experts": 1, "d_ff_shared": width, "shared_expert_gate": True}


def moe_layout(
    keys: Keys, name: str, stacks: list[list[bool]], *, first: int = 0, every: int = 1
) -> Json | None:
    """Find `n_dense_layers`, `moe_every`,
    `moe_offset` of the layers with experts; None without any.

    `first` and `every` are tried before others, so that a regular config keeps its own numbers.
    """
    if not any(map(any, stacks)):
        return None
    layers = [[i for i, on in enumerate(stack) if on] for stack in stacks]
    guesses = [(first, every, 0)]
    for found in layers:
        if len(found) > 1:
            step = found[1] - found[0]
            guesses += [(0, step, 0), (found[0], step, 0), (0, step, (found[0] + 1) % step)]
        elif found:
            guesses += [(found[0], 1, 0), (0, found[0] + 1, 0)]
    for n_dense, step, offset in guesses:
        if all(
            on == (i >= n_dense and (i + 1 - offset) % step == 0)
            for stack in stacks
            for i, on in enumerate(stack)
        ):
            shift = {"moe_offset": offset} if offset else {}
            return {"n_dense_layers": n_dense, "moe_every": step, **shift}
    keys.unmapped(name, layers, "layers with experts must be every n-th one, after the dense ones")
