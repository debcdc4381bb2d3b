"""The small readers that the rows of model types are made of.

A part reads some keys, given the fields of the spec so far, and returns more fields. A function of
these two is a part, a call in a row makes one (`@part`), and a name in capitals is one that is
made, or several in a tuple.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.huggingface.config.keys import Keys, pairs
from metacount.huggingface.config.rope import (
    latent_scale,
    rope_by_layer_type,
    rope_object,
    rotation,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Concatenate, ParamSpec

    from metacount.files import Json

    P = ParamSpec("P")
    # Reads some keys, given the fields so far, and returns fields of the spec. It may take fields
    # away: those that no layer has.
    Part = Callable[[Keys, Json], Json]
    # Finds the layers with experts among so many; None where there are none.
    Layout = Callable[[Keys, int], Json | None]


FULL_OR_SLIDING = ("full_attention", "sliding_attention")
TORCH_EPS = 1e-5  # where a family's LayerNorm takes torch's default
OFFSET = 2  # rows of a position table before the first position (fairseq's padding)
LATENT_EPS = 1e-6  # of the norms over the latents, whatever rms_norm_eps says


@frozen
class Family:
    """One model type: the parts that read it, in order. A row has what the record lacks.

    `classes`: each class with its end: "head", "body" (no head), "pooled" (no head, a pooler),
    "encoder" (of an encoder-decoder, alone), or None: known, but no spec has it. The first is the
    one that a config without `architectures` means, `kind` in words.
    `defaults`: what is taken for a key that is left out. `aliases`: other names of keys.
    `ignored`: keys of this type that change neither a count nor the structure. `reads`: keys that
    change nothing elsewhere, but are read here.
    """

    parts: tuple[Part, ...]
    classes: dict[str, str | None]
    defaults: Json
    aliases: dict[str, str]
    ignored: tuple[str, ...]
    reads: tuple[str, ...] = ()
    kind: str = "causal-LM"

    def fields(self, keys: Keys) -> Json:
        """Read the fields of a spec."""
        fields: Json = {}
        for part in self.parts:
            fields |= part(keys, fields)
        return fields


def row(
    *parts: Part,
    ends: dict[str, str | None] | None = None,
    aliases: dict[str, str] | None = None,
    ignored: str = "",
    reads: str = "",
    **defaults: Any,
) -> Family:
    """Make a row; `defaults` are of keys that transformers' class does not declare, or derives."""
    return Family(
        parts=parts,
        classes=ends or {},
        defaults=defaults,
        aliases=aliases or {},
        ignored=tuple(ignored.split()),
        reads=tuple(reads.split()),
    )


def part(read: Callable[Concatenate[Keys, Json, P], Json]) -> Callable[P, Part]:
    """Make of a reader with further arguments a function of these that makes a part."""

    def made(*args: P.args, **options: P.kwargs) -> Part:
        return lambda keys, fields: read(keys, fields, *args, **options)

    return made


def divided(name: str, width: int, n_heads: int) -> int:
    """Compute the width of one head where heads share the model's width."""
    if rest := width % n_heads:
        rule = f"must divide the width {width}: {width} % {n_heads} = {rest}"
        raise SpecError(name, rule, n_heads, f"choose a divisor of {width}")
    return width // n_heads


def nullable_size(keys: Keys, name: str) -> int | None:
    """Read a size that may be null only where transformers' own default is."""
    return keys.optional_size(name) if keys.defaults[name] is None else keys.size(name)


def trunk(keys: Keys, layers: str = "num_hidden_layers", width: str = "hidden_size") -> Json:
    """Read what every decoder has: its width, its layers, its tables."""
    return {
        "kind": "decoder",
        "d_model": keys.size(width),
        "n_layers": keys.layers(layers),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
    }


def heads(d_model: int, n_heads: int, name: str = "num_attention_heads") -> Json:
    """Build the fields of heads that share the width, each with a key and a value of its own."""
    return {"n_heads": n_heads, "n_kv_heads": n_heads, "head_dim": divided(name, d_model, n_heads)}


def sizes(keys: Keys, _: Json) -> Json:
    """Read sizes under LLaMA's names;
    `head_dim` and `num_key_value_heads` where the family has them.

    Without `head_dim`, heads share the width; a family that has the key lets a remainder fall.
    """
    d_model, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if "head_dim" not in keys.defaults:
        head_dim = divided("num_attention_heads", d_model, n_heads)
    else:
        given = nullable_size(keys, "head_dim")
        if given is None and d_model < n_heads:  # transformers makes heads of no width
            remedy = f"choose 1 to {d_model}, or give head_dim"
            raise SpecError("num_attention_heads", "must leave a width", n_heads, remedy)
        head_dim = d_model // n_heads if given is None else given
    n_kv_heads = None
    if "num_key_value_heads" in keys.defaults:
        n_kv_heads = nullable_size(keys, "num_key_value_heads")
    added = {"n_heads": n_heads, "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads}
    return {**trunk(keys), **added, "head_dim": head_dim}


def biases(qkv: bool, o: bool) -> Json:
    """Set the same bias rule for queries, keys and values, and one for the output."""
    return {"q_bias": qkv, "k_bias": qkv, "v_bias": qkv, "o_bias": o}


def indices(name: str, value: object) -> list[int]:
    """Check that a key's value is a list of whole numbers."""
    if not isinstance(value, list) or any(type(i) is not int for i in value):
        raise SpecError(name, "must be a list of whole numbers", value, "remove it")
    return value


def shortest_period(letters: str) -> str:
    """Find the shortest text that, repeated, gives `letters` (the last repetition may be cut).

    >>> shortest_period("LLGLLGL"), shortest_period("LLLL"), shortest_period("LLG")
    ('LLG', 'L', 'LLG')
    """
    # Knuth-Morris-Pratt: the longest border of every prefix, in linear time
    border = [0] * len(letters)
    for i in range(1, len(letters)):
        length = border[i - 1]
        while length and letters[i] != letters[length]:
            length = border[length - 1]
        border[i] = length + (letters[i] == letters[length])
    return letters[: len(letters) - border[-1]]


# What older configs call a kind of layer, and transformers reads as the newer name.
RENAMED_LAYERS = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
}


def named_layers(keys: Keys) -> Any:
    """Read `layer_types` with today's names of the kinds; None when it is left out."""
    types = keys.given("layer_types")
    if not isinstance(types, list):
        return types
    return [RENAMED_LAYERS.get(t, t) if isinstance(t, str) else t for t in types]


def letters_of(keys: Keys, key: str, names: object, letters: dict[str, str], n: int) -> str:
    """Write the letter of each name in a list of `n`."""
    words = keys.listed(key, names, n)
    for name in words:
        if not isinstance(name, str) or name not in letters:
            keys.unmapped(key, name, f"choose {' or '.join(letters)}")
    return "".join(letters[name] for name in words)


def layer_types(keys: Keys, n_layers: int, default: list[str], allowed: tuple[str, ...]) -> str:
    """Write one letter a layer: L where `layer_types` has `allowed[1]`,
    G where it has `allowed[0]`.
    """
    types = named_layers(keys)
    letters = dict(zip(allowed, "GL", strict=True))
    return letters_of(keys, "layer_types", default if types is None else types, letters, n_layers)


def windows(letters: str, window: int | None, *, kind: str = "sliding") -> Json:
    """Build the spec's window fields; nothing when no layer is windowed."""
    if "L" not in letters:
        return {}
    return {"window": window, "window_kind": kind, "window_pattern": shortest_period(letters)}


def nope_every(keys: Keys, name: str, rotates: list[bool]) -> Json:
    """Express as an interval which layers go without RoPE."""
    if all(rotates):
        return {}
    first = rotates.index(False) + 1
    if first == 1 and not any(rotates):
        return {"nope_every": 1}
    if any(on == ((i + 1) % first == 0) for i, on in enumerate(rotates)):
        layers = [int(on) for on in rotates]
        keys.unmapped(name, layers, "the layers without RoPE must be every n-th one")
    return {"nope_every": first}


# ---- parts ----


def always(**fields: Any) -> Part:
    """Set fields that every config of the type has."""
    return lambda keys, _: fields


def size(names: str, *, lowest: int = 1) -> Part:
    """Read fields that are whole numbers: `field=key`, or one word for both."""
    read = pairs(names)
    return lambda keys, _: {field: keys.size(key, lowest=lowest) for field, key in read}


def number(names: str) -> Part:
    """Read fields that are positive numbers, likewise."""
    return lambda keys, _: keys.numbers(names)


@part
def optional_number(
    keys: Keys, _: Json, field: str, key: str, *, null: float | None = None
) -> Json:
    """Read a field that is a positive number, or `null` where its key is null."""
    value = keys.optional_number(key)
    return {field: null if value is None else value}


def flag(field: str, key: str, *, off: Any = False, on: Any = True) -> Part:
    """Read a field that is one of two values, by a key that is true or false."""
    return lambda keys, _: {field: on if keys.flag(key) else off}


@part
def only(keys: Keys, _: Json, /, *, why: str = "", **allowed: object) -> Json:
    """Check keys that must have one value, or one of a tuple of them."""
    for name, values in allowed.items():
        keys.only(name, *(values if isinstance(values, tuple) else (values,)), why=why)
    return {}


@part
def fixed(keys: Keys, _: Json, /, **allowed: object) -> Json:
    """Check keys that transformers computes or takes for granted, where they are written down."""
    for name, values in allowed.items():
        keys.fixed(name, *(values if isinstance(values, tuple) else (values,)))
    return {}


@part
def same_as(keys: Keys, fields: Json, /, **named: str) -> Json:
    """Check keys that say again what a field says, where they are written down."""
    for name, field in named.items():
        keys.fixed(name, fields[field])
    return {}


@part
def differs(keys: Keys, fields: Json, what: str, field: str = "", value: object = None) -> Json:
    """Note what transformers computes and no spec says; where a field is there, or has a value."""
    if not field or (field in fields and value in (None, fields[field])):
        keys.differs(what)
    return {}


@part
def root_scale(keys: Keys, fields: Json, switch: str = "") -> Json:
    """Scale the embedding by the root of the width, where a key says so."""
    scaled = not switch or keys.flag(switch)
    return {"embedding_scale": fields["d_model"] ** 0.5 if scaled else 1.0}


def activation(*, gated: bool, key: str = "hidden_act") -> Part:
    """Read the activation of a feed-forward of three matrices (gated) or of two."""
    return lambda keys, _: keys.activation(key, gated=gated)


@part
def bias(
    keys: Keys, _: Json, qkv: str | bool, *, o: str | bool | None = None, ffn: str = ""
) -> Json:
    """Read the biases of attention by the keys that switch them: the output's as the others',
    unless `o` says so; and those of the feed-forward by `ffn`.
    """
    first = keys.flag(qkv) if isinstance(qkv, str) else qkv
    last = first if o is None else keys.flag(o) if isinstance(o, str) else o
    return {**biases(first, last), **({"ffn_bias": keys.flag(ffn)} if ffn else {})}


def rms_norm(eps: str = "rms_norm_eps", **fields: Any) -> Part:
    """Read an RMSNorm, by the key of its epsilon."""
    return lambda keys, _: {"norm": "rmsnorm", "norm_eps": keys.number(eps), **fields}


@part
def layer_norm(keys: Keys, _: Json, /, eps: str | float, **fields: Any) -> Json:
    """Read a LayerNorm with weight and bias, by the key of its epsilon or with a fixed one."""
    value = keys.number(eps) if isinstance(eps, str) else eps
    return {"norm": "layernorm", "norm_bias": True, "norm_eps": value, **fields}


def rope(
    *,
    style: str = "half",
    theta: str = "rope_theta",
    partial: str = "partial_rotary_factor",
    rounds_up: bool = True,
) -> Part:
    """Read RoPE of one kind for all layers."""
    return lambda keys, fields: rotation(
        keys, fields["head_dim"], style=style, theta=theta, partial=partial, rounds_up=rounds_up
    )


def rope_by_kind(old_local: str = "rope_local_base_freq", scaled: tuple[str, ...] = ()) -> Part:
    """Read RoPE of another base or scaling in windowed layers, which are known by now."""
    return lambda keys, fields: rope_by_layer_type(
        keys,
        fields.get("window_pattern", "G"),
        old_global="rope_theta",
        old_local=old_local,
        scaled=scaled,
    )


@part
def rope_unless_given(keys: Keys, _: Json, /, **parameters: Any) -> Json:
    """Take these parameters of RoPE where a config has none."""
    if not keys.data.get("rope_scaling") and keys.data.get("rope_parameters") is None:
        keys.data["rope_parameters"] = dict(parameters)
    return {}


def all_windows(keys: Keys, _: Json) -> Json:
    """Read `sliding_window`, where it is not null, as the window of every layer."""
    window = keys.optional_size("sliding_window")
    return {} if window is None else windows("L", window)


def checked_windows(keys: Keys, letters: str, window: int | None) -> Json:
    """Build the window's fields; `layer_types` that ask for a window need one."""
    if "L" in letters and window is None:
        keys.unmapped("layer_types", "sliding_attention", "set sliding_window and use it")
    return windows(letters, window)


def letters_where(keys: Keys, fields: Json, windowed: Callable[[int], bool]) -> str:
    """Write L for a layer with a window: those that `layer_types`, or else `windowed`, names."""
    n_layers = fields["n_layers"]
    default = [FULL_OR_SLIDING[windowed(i)] for i in range(n_layers)]
    return layer_types(keys, n_layers, default, FULL_OR_SLIDING)


@part
def windows_where(
    keys: Keys, fields: Json, windowed: Callable[[int], bool], *, if_given: bool = False
) -> Json:
    """Read a window in the layers that `layer_types`, or else `windowed`, names; where it may be
    null, only `if_given`.
    """
    window = keys.optional_size("sliding_window")
    off = if_given and window is None
    letters = letters_where(keys, fields, lambda i: not off and windowed(i))
    return checked_windows(keys, letters, window)


@part
def windows_from(
    keys: Keys, fields: Json, switch: str = "use_sliding_window", *, lowest: int = 0, every: int = 0
) -> Json:
    """Apply Qwen's rule: where `switch` is on (or there is none), a window from layer
    `max_window_layers` on, or in every so many below it; or where `layer_types` has one.
    """
    first = keys.size("max_window_layers", lowest=0)
    window = keys.optional_size("sliding_window", lowest=lowest)
    if switch and not keys.flag(switch):
        window = None

    def is_windowed(i: int) -> bool:
        return window is not None and (i < first and i % every == 0 if every else i >= first)

    return checked_windows(keys, letters_where(keys, fields, is_windowed), window)


def scales(keys: Keys, _: Json) -> Json:
    """Read Granite's four multipliers; its logits are divided, ours multiplied."""
    return {**keys.numbers(MULTIPLIERS), "logit_scale": 1 / keys.number("logits_scaling")}


def latents(keys: Keys) -> Json:
    """Read the sizes of MLA, which has as many keys and values as queries."""
    n_heads, eps = keys.size("num_attention_heads"), keys.number("rms_norm_eps")
    keys.only("num_key_value_heads", None, n_heads, why="every head has a key and a value")
    return {
        "attention": "mla",
        "n_heads": n_heads,
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        **keys.sizes("kv_lora_rank qk_nope_head_dim qk_rope_head_dim"),
        "mla_bias": keys.flag("attention_bias"),
        "latent_norm_eps": None if eps == LATENT_EPS else LATENT_EPS,
    }


@part
def latent(
    keys: Keys,
    _: Json,
    *,
    interleaved: bool | str = False,
    layers: str = "num_hidden_layers",
    width: str = "intermediate_size",
) -> Json:
    """Read sizes, MLA, gated FFN and RMSNorm; `layers` and `width` are the keys of these sizes.

    Rotated values are interleaved, or in halves; `interleaved` may be the key that says so.
    """
    is_paired = keys.flag(interleaved) if isinstance(interleaved, str) else interleaved
    added = latents(keys)
    rope_dim, nope_dim = added["qk_rope_head_dim"], added["qk_nope_head_dim"]
    if keys.given("head_dim") is not None:
        keys.size("head_dim")  # written by transformers, and read for RoPE alone
    turned = rotation(keys, rope_dim, style="interleaved" if is_paired else "half")
    return {
        **trunk(keys, layers),
        **added,
        "attention_scale": latent_scale(keys, rope_object(keys), nope_dim + rope_dim),
        "d_ff": keys.size(width),
        **GATED(keys, {}),
        **RMS(keys, {}),
        **turned,
    }


MULTIPLIERS = (
    "attention_scale=attention_multiplier embedding_scale=embedding_multiplier "
    "residual_scale=residual_multiplier"
)
D_FF = size("d_ff=intermediate_size")
GATED, UNGATED = activation(gated=True), activation(gated=False)
RMS = rms_norm()
BLOCK = (sizes, D_FF, GATED, RMS)  # of LLaMA
ROPE = rope()
BIAS = bias("attention_bias")
FFN_BIAS = flag("ffn_bias", "mlp_bias")
HEAD_NORM = always(qk_norm="head")
POST_NORM = always(norm_placement="post_branch", qk_norm="full")  # of OLMo 2
V_HEAD = size("v_head_dim")


DENSE_OR_SPARSE = ("dense", "sparse")


def routed(
    keys: Keys, count: str, router: str, *, chosen: str = "num_experts_per_tok", lowest: int = 1
) -> Json:
    """Read how many experts there are and how many of them a token uses;
    `router` says how it chooses.
    """
    n_experts = keys.size(count, lowest=lowest)
    return {"n_experts": n_experts, "top_k": keys.size(chosen), "router": router}


def placed(fields: Json, layout: Json | None, fields_of_experts: Json) -> Json:
    """Return the fields of experts in the layers of `layout`; a dense width stays in `fields` where
    a layer uses it.
    """
    if layout is None:
        return {}
    if layout == {"n_dense_layers": 0, "moe_every": 1}:
        del fields["d_ff"]
    return {**layout, **fields_of_experts}


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
    fields_of_experts = routed(keys, count, router, chosen=chosen, lowest=lowest)
    for more in parts:
        fields_of_experts |= more(keys, fields)
    if layout is not None:
        return placed(fields, layers, fields_of_experts)
    return {
        **({"d_ff_expert": fields.pop("d_ff")} if "d_ff" in fields else {}),
        **fields_of_experts,
    }


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
    for layer in layers:
        if len(layer) > 1:
            step = layer[1] - layer[0]
            guesses += [(0, step, 0), (layer[0], step, 0), (0, step, (layer[0] + 1) % step)]
        elif layer:
            guesses += [(layer[0], 1, 0), (0, layer[0] + 1, 0)]
    for n_dense, step, offset in guesses:
        if all(
            on == (i >= n_dense and (i + 1 - offset) % step == 0)
            for stack in stacks
            for i, on in enumerate(stack)
        ):
            shift = {"moe_offset": offset} if offset else {}
            return {"n_dense_layers": n_dense, "moe_every": step, **shift}
    keys.unmapped(name, layers, "layers with experts must be every n-th one, after the dense ones")
