"""Decoders with experts: who routes how, which layers, shared experts."""

from __future__ import annotations

from metacount.errors import SpecError, shown_name
from metacount.huggingface.config.families.dense import (
    GRANITE_SWA,
    HUNYUAN,
    exaone_layers,
    rotating_layers,
    turning_windows,
    windows_that_rotate,
)
from metacount.huggingface.config.keys import Keys, is_number, words
from metacount.huggingface.config.parts import (
    BIAS,
    BLOCK,
    CHOICE_BIAS,
    D_FF,
    DENSE_OR_SPARSE,
    EXPERT_WIDTH,
    FULL_OR_SLIDING,
    GATED,
    HEAD_NORM,
    POST_NORM,
    RMS,
    ROPE,
    ROUTED_SCALE,
    V_HEAD,
    after,
    all_windows,
    always,
    bias,
    checked_windows,
    dense_first,
    differs,
    experts,
    fixed,
    flag,
    grouped,
    indices,
    latent,
    layer_types,
    letters_of,
    letters_where,
    moe_layout,
    named_layers,
    noaux,
    nope_every,
    number,
    only,
    optional_number,
    placed,
    prediction,
    qwen_experts,
    qwen_shared,
    rms_norm,
    root_scale,
    rope,
    rope_by_kind,
    rope_unless_given,
    routed,
    row,
    same_as,
    scales,
    shared_experts,
    shortest_period,
    size,
    sizes,
    sparse_layers,
    trunk,
    windows,
    windows_from,
    windows_where,
)
from metacount.huggingface.config.rope import (
    kind_of,
    rope_object,
    rope_of_entries,
    rope_of_kinds,
    rotation,
)
from metacount.spec.field import MAX_TOKENS, check_int
from metacount.spec.position import QueryGrowth
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


# ---- windows and positions ----


def qwen3_moe_windows(keys: Keys, _: Json) -> Json:
    """Read a window in all layers, where it is used."""
    window = keys.optional_size("sliding_window", lowest=0)
    used = keys.flag("use_sliding_window") and window is not None
    keys.given("max_window_layers")
    return windows("L", window) if used else {}


def phimoe_rope(keys: Keys, _: Json) -> Json:
    """Say that RoPE's scaling, where there is one, is another in transformers."""
    parameters = rope_object(keys)
    if kind_of(parameters) != "default":
        keys.differs("Phi-MoE in transformers takes RoPE's short factors at any length")
        for name in ("short_mscale", "long_mscale"):
            if not isinstance(parameters.get(name), int | float):
                keys.refused.append(
                    f"{name} of RoPE must be a number: got {parameters.get(name)!r}"
                )
    return {}


def gpt_oss_windows(keys: Keys, fields: Json) -> Json:
    """Read a window in every second layer."""
    letters = letters_where(keys, fields, lambda i: i % 2 == 0)
    return windows(letters, keys.size("sliding_window"))


def rotated_part(keys: Keys, fields: Json) -> Json:
    """Read the rotated part of a head as a number of values (MiniMax-M2)."""
    if keys.given("rotary_dim") is not None and "partial_rotary_factor" not in keys.data:
        keys.defaults["partial_rotary_factor"] = keys.size("rotary_dim") / fields["head_dim"]
    return {}


def kolibri_layers(keys: Keys, fields: Json) -> Json:
    """Read windows in four layers of five; the others go without RoPE."""
    letters = letters_where(keys, fields, lambda i: (i + 1) % 5 != 0)
    return windows_that_rotate(keys, letters)


def mellum_rope(keys: Keys, fields: Json) -> Json:
    """Read a RoPE for each kind of layer, which stands in `rope_parameters` alone."""
    turned = rope_by_kind()(keys, fields)
    for name in ("rope_theta", "rope_local_base_freq"):
        keys.only(name, keys.defaults[name], why="transformers reads it in rope_parameters only")
    given = keys.data.get("rope_parameters")
    for kind, letter in zip(FULL_OR_SLIDING, "GL", strict=True):
        used = letter in fields.get("window_pattern", "G")
        if used and isinstance(given, dict) and "rope_theta" not in (given.get(kind) or {}):
            keys.refused.append(f"rope_parameters must have rope_theta of {kind}")
    if "ignore_keys_at_rope_validation" in keys.data:
        keys.refused.append("ignore_keys_at_rope_validation must be left out")
    for name in ("num_mtp_layers", "num_nextn_predict_layers"):
        if is_number(count := keys.given(name)) and count > 1:
            keys.refused.append(f"{name} must be at most 1: got {count}")
    return turned


def llama4_layers(keys: Keys, fields: Json) -> Json:
    """Read Llama 4's attention: in chunks and rotated, but for every fourth layer."""
    n_layers = fields["n_layers"]
    rotates = rotating_layers(keys, n_layers, empty_is_default=True)
    allowed = ("full_attention", "chunked_attention")
    letters = layer_types(keys, n_layers, [allowed[on] for on in rotates], allowed)
    chunk = (
        keys.size("attention_chunk_size") if "L" in letters else keys.raw("attention_chunk_size")
    )
    growth: Json = {}
    if keys.raw("attn_temperature_tuning") and keys.raw("attn_scale"):
        weight, step = keys.number("attn_scale"), keys.number("floor_scale")
        growth["query_growth"] = QueryGrowth(weight=weight, step=step, shift=1, nope_only=True)
    return {
        **growth,
        **windows(letters, chunk, kind="chunked"),
        **nope_every(keys, "no_rope_layers", rotates),
    }


def mimo_windows(keys: Keys, fields: Json) -> Json:
    """Read MiMo-V2's windows: twice the keys and values, and sinks, in their layers alone.

    Its first configs say in words of their own what transformers computes, and one position less.
    """
    letters = letters_where(keys, fields, lambda i: i > 0 and (i + 1) % 6 != 0)
    pattern, window = keys.given("hybrid_layer_pattern"), keys.size("sliding_window")
    if pattern is not None and pattern != [int(letter == "L") for letter in letters]:
        keys.unmapped("hybrid_layer_pattern", pattern, "transformers does not read it: remove it")
    if keys.given("sliding_window_size") is not None:
        window = keys.size("sliding_window_size") + 1
    fixed(add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)(keys, fields)
    own: Json = {"n_kv_heads_windowed": 2 * fields["n_kv_heads"], "sinks_windowed": True}
    same_as(swa_num_key_value_heads="n_kv_heads_windowed")(keys, own)
    same_as(
        swa_num_attention_heads="n_heads",
        swa_head_dim="head_dim",
        swa_v_head_dim="value_head_dim",
        layernorm_epsilon="norm_eps",
    )(keys, fields)
    theta, near = MIMO_ROPE.values()
    fixed(rope_theta=theta[0], swa_rope_theta=near[0], partial_rotary_factor=near[1])(keys, fields)
    added = {**windows(letters, window), **(own if "L" in letters else {})}
    return {**added, **rope_of_kinds(keys, {**fields, **added}, MIMO_ROPE)}


def mimo_sparse(keys: Keys, n_layers: int) -> Json | None:
    """Read which layers have experts: all but the first, unless they are named."""
    freq, words = keys.given("moe_layer_freq"), keys.given("mlp_layer_types")
    if freq is not None and words is None and freq != [int(i > 0) for i in range(n_layers)]:
        keys.unmapped("moe_layer_freq", freq, "transformers does not read it: remove it")
    return sparse_layers(1)(keys, n_layers)


def laguna_layers(keys: Keys, fields: Json) -> Json:
    """Read Laguna's windows, and how many heads the layers of each kind have."""
    n_layers = fields["n_layers"]
    letters = letters_where(keys, fields, lambda _: False)
    added = windows(letters, keys.size("sliding_window"))
    given = keys.given("num_attention_heads_per_layer")
    if given is not None:
        name = "num_attention_heads_per_layer"
        of_layers = indices(name, keys.listed(name, given, n_layers, "numbers"))
        kinds = {letter: set() for letter in letters}  # type: dict[str, set[int]]
        for letter, n_heads in zip(letters, of_layers, strict=True):
            kinds[letter].add(n_heads)
        if any(len(counts) > 1 for counts in kinds.values()):
            keys.unmapped(name, given, "layers of one kind must have the same number")
        counts = {letter: min(numbers) for letter, numbers in kinds.items()}
        added["n_heads"] = counts.get("G", counts.get("L"))
        if counts.get("L", added["n_heads"]) != added["n_heads"]:
            added["n_heads_windowed"] = counts["L"]
    only(gating=(True, "per-head"), why="a gate of each value has no spec")(keys, fields)
    return {**added, **rope_of_kinds(keys, {**fields, **added}, LAGUNA_ROPE)}


def step_lists(keys: Keys, fields: Json) -> Json:
    """Take the first layers of lists that have an item for each prediction module as well, and the
    layers with experts from a list of numbers (Step 3.5's first configs).
    """
    n_layers = fields["n_layers"]
    padded = n_layers + (keys.layers("num_nextn_predict_layers", lowest=0))
    for name in STEP_LISTS:
        given = keys.data.get(name)
        if isinstance(given, list) and len(given) == padded:
            keys.data[name] = given[:n_layers]
    named = keys.given("moe_layers_enum")
    if named is not None and keys.data.get("mlp_layer_types") is None:
        words = named.split(",") if isinstance(named, str) else named
        chosen = {int(word) for word in words if str(word).strip().isdecimal()}
        keys.data["mlp_layer_types"] = [DENSE_OR_SPARSE[i in chosen] for i in range(n_layers)]
    if padded > n_layers:
        keys.notes.append("num_nextn_predict_layers: prediction layers are not in these figures")
    return {}


def step_scale(keys: Keys, _: Json) -> Json:
    """Read the number whose root the scores are divided by; null: as wide as a head."""
    scalar = keys.optional_number("query_pre_attn_scalar")
    return {} if scalar is None else {"attention_scale": scalar**-0.5}


def step_layers(keys: Keys, fields: Json) -> Json:
    """Read Step 3.5's windows, whose layers may have more heads, and RoPE by layers or by kinds."""
    letters = letters_where(keys, fields, lambda _: False)
    added = checked_windows(keys, letters, keys.optional_size("sliding_window"))
    others, near = keys.given("attention_other_setting"), keys.given("num_sliding_attention_heads")
    if near is None and isinstance(others, dict):
        near = keys.data["num_sliding_attention_heads"] = others.get("num_attention_heads")
        for name, field in (("num_attention_groups", "n_kv_heads"), ("head_dim", "head_dim")):
            if others.get(name, fields[field]) != fields[field]:
                keys.unmapped(
                    f"attention_other_setting.{name}", others[name], "not read by the code"
                )
    if (
        near is not None
        and "L" in letters
        and keys.size("num_sliding_attention_heads") != fields["n_heads"]
    ):
        added["n_heads_windowed"] = near
    kinds = {FULL_OR_SLIDING[letter == "L"]: i for i, letter in reversed([*enumerate(letters)])}
    bases, shares = keys.data.get("rope_theta"), keys.given("partial_rotary_factors")
    scaling = keys.given("rope_scaling")
    given = keys.data.get("rope_parameters")
    if not isinstance(given, dict) or not kinds.keys() <= given.keys():
        keys.data["rope_parameters"] = parameters = {}
        for kind, i in kinds.items():
            base = (
                bases[i]
                if isinstance(bases, list)
                else keys.defaults["rope_theta"]
                if bases is None
                else bases
            )
            parameters[kind] = {"rope_theta": base}
            if shares:
                parameters[kind]["partial_rotary_factor"] = shares[i]
            if scaling and kind == FULL_OR_SLIDING[0]:
                parameters[kind] |= scaling
    keys.raw("rope_theta")
    limits = [keys.given(name) for name in ("swiglu_limits", "swiglu_limits_shared")]
    if any(isinstance(values, list) and any(values) for values in limits):
        keys.differs("Step 3.5 limits what gates give in some layers")
    return {**added, **rope_of_kinds(keys, {**fields, **added}, STEP_ROPE)}


# ---- experts ----


def llama4_sparse(keys: Keys, n_layers: int) -> Json | None:
    """Read which layers have experts: every n-th, or those of a list."""
    step = keys.layers("interleave_moe_layer_step")
    named = keys.given("moe_layers")
    named = range(step - 1, n_layers, step) if named is None else indices("moe_layers", named)
    chosen = frozenset(named)
    return moe_layout(keys, "moe_layers", [[i in chosen for i in range(n_layers)]], every=step)


def ernie_sparse(keys: Keys, n_layers: int) -> Json | None:
    """Read which layers have experts: every n-th between the first and the last."""
    first, step = keys.size("moe_layer_start_index", lowest=0), keys.layers("moe_layer_interval")
    last = keys.size("moe_layer_end_index", lowest=-1)
    last = n_layers - 1 if last == -1 else last
    stack = [first <= i <= last and (i + 1) % step == 0 for i in range(n_layers)]
    return moe_layout(keys, "moe_layer_end_index", [stack], first=first, every=step)


def one_for_all_layers(keys: Keys, fields: Json) -> Json:
    """Take a list of equal values, one a layer, as that value (Hunyuan)."""
    for name in ("num_experts", "moe_topk"):
        values = keys.data.get(name)
        if isinstance(values, list):
            if len(set(map(str, values))) != 1 or len(values) != fields["n_layers"]:
                keys.unmapped(name, values, "every layer must have the same")
            keys.data[name] = values[0]
    return {}


def cohere_norm(keys: Keys, _: Json) -> Json:
    """Read one norm before both branches: an RMSNorm where it has an epsilon, else a LayerNorm."""
    if keys.raw("rms_norm_eps") is not None:
        return RMS(keys, {}) | {"norm_placement": "parallel"}
    eps = keys.number("layer_norm_eps")
    return {"norm": "layernorm", "norm_eps": eps, "norm_placement": "parallel"}


def cohere_windows(keys: Keys, fields: Json) -> Json:
    """Read windows in layers that rotate but for every n-th; dense layers first have another n,
    and rotate all where that is 1.
    """
    first = keys.size("first_k_dense_replace", lowest=0)
    of_dense = keys.layers("prefix_dense_sliding_window_pattern")
    every, words = keys.layers("sliding_window_pattern"), keys.given("mlp_layer_types")
    letters = letters_where(
        keys,
        fields,
        lambda i: (i + 1) % of_dense != 0 if i < first else (i + 1 - first) % every != 0,
    )
    n_layers = fields["n_layers"]
    dense = [i < first for i in range(n_layers)]
    if isinstance(words, list) and len(words) == n_layers:
        dense = [word == "dense" for word in words]
    rotates = [
        letter == "L" or (of_dense == 1 and is_dense)
        for letter, is_dense in zip(letters, dense, strict=True)
    ]
    return {
        **windows(letters, keys.size("sliding_window")),
        **nope_every(keys, "layer_types", rotates),
    }


def cohere_experts(keys: Keys, fields: Json) -> Json:
    """Read experts chosen by their logits, weighted by a softmax over these or by sigmoids."""
    function = keys.only("expert_selection_fn", "softmax", "sigmoid")
    width, of_dense = keys.size("intermediate_size"), "prefix_dense_intermediate_size"
    fields["d_ff"] = keys.optional_size(of_dense) or width
    joined = keys.only("shared_expert_combination_strategy", "average", "sum")
    if keys.size("num_shared_experts", lowest=0) and joined == "average":
        keys.differs("Cohere halves the sum of routed and shared experts")
    more = (always(d_ff_expert=width), shared_experts("num_shared_experts"))
    sparse = sparse_layers("first_k_dense_replace")
    if function == "softmax":
        keys.flag("norm_topk_prob")
        return experts("num_experts", "topk_softmax", *more, layout=sparse)(keys, fields)
    return experts("num_experts", "sigmoid", *more, renorm=True, layout=sparse)(keys, fields)


def granite_shared(keys: Keys, _: Json) -> Json:
    """Read one shared expert of a width of its own."""
    shared = keys.size("shared_intermediate_size", lowest=0)
    return {"n_shared_experts": 1, "d_ff_shared": shared} if shared else {}


def deepseek_v2_experts(keys: Keys, fields: Json) -> Json:
    """Read DeepSeek-V2's experts: softmax scores; a group scores its best expert."""
    layout = dense_first(keys, fields["n_layers"])
    value = {"v_head_dim": keys.size("v_head_dim"), "ffn_bias": keys.flag("mlp_bias")}
    keys.fixed("scoring_func", "softmax")
    keys.only("norm_topk_prob", False, why="transformers does not divide by the sum here")
    method = keys.only("topk_method", "greedy", "group_limited_greedy")
    groups: Json = {}
    keys.raw("n_group"), keys.raw("topk_group")
    if method == "group_limited_greedy":
        n_groups, top_groups = keys.size("n_group"), keys.size("topk_group")
        if n_groups > 1:
            groups = {"n_groups": n_groups, "top_groups": top_groups, "group_score": "max"}
    added = {
        **routed(keys, "n_routed_experts", "softmax"),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", lowest=0),
        "routed_scale": keys.number("routed_scaling_factor"),
        **groups,
    }
    return {**value, **placed(fields, layout, added)}


def indexed_layers(keys: Keys, fields: Json) -> Json:
    """Check that every layer of DeepSeek-V3.2 has an indexer."""
    n_layers, types = fields["n_layers"], named_layers(keys)
    if types is not None and types != ["indexed_attention"] * n_layers:
        keys.unmapped("layer_types", types, "every layer is indexed_attention: remove it")
    return {}


INDEXERS = {"full": "I", "F": "I", "shared": "S", "S": "S"}


def own_indexers(keys: Keys, fields: Json) -> Json:
    """Read which layers of GLM-5 have an indexer of their own, where others choose as the last of
    these: by `indexer_types`, or a pattern of F and S, or one layer in so many after the first.
    """
    n_layers, names = fields["n_layers"], ("indexer_types", "index_topk_pattern")
    every = keys.size("index_topk_freq", lowest=0) or 1
    first = keys.size("index_skip_topk_offset", lowest=0)
    kinds: list[str] = [
        "full" if max(i - first + 1, 0) % every == 0 else "shared" for i in range(n_layers)
    ]
    for name in reversed(names):
        value = keys.given(name)
        if value is not None:
            kinds = keys.listed(name, [*value] if isinstance(value, str) else value, n_layers)
            if any(kind not in INDEXERS for kind in map(str, kinds)):
                keys.unmapped(name, value, "choose full or shared for each layer")
    return {"index_sharing": shortest_period("".join(INDEXERS[kind] for kind in kinds))}


COMPRESSIONS = {  # DeepSeek-V4's kinds of layer -> the letter, and the number in older configs
    "sliding_attention": ("L", 0),
    "compressed_sparse_attention": ("S", 4),
    "heavily_compressed_attention": ("H", 128),
}
V4_SCORES = {"sqrtsoftplus": "sqrtsoftplus_renorm", "sigmoid": "sigmoid_renorm"}


def compressed_layers(keys: Keys, fields: Json) -> Json:
    """Read DeepSeek-V4's attention: its sizes, the kind of each layer, tokens of an entry."""
    n, head_dim = fields["n_layers"], keys.size("head_dim")
    kinds = [*COMPRESSIONS]
    names, numbers = keys.given("layer_types"), keys.given("compress_ratios")
    if names is None and numbers is not None:
        of_number = {number: kind for kind, (_, number) in COMPRESSIONS.items()}
        names = [of_number.get(i, i) for i in indices("compress_ratios", numbers)]
    if names is None:
        names = [kinds[2]] * 2 + [kinds[1 + (i + 1) % 2] for i in range(n - 2)]
    key = "layer_types" if keys.data.get("layer_types") is not None else "compress_ratios"
    names = names[:n] if isinstance(names, list) else names  # one more is the prediction module's
    letters = {kind: letter for kind, (letter, _) in COMPRESSIONS.items()}
    pattern = shortest_period(letters_of(keys, key, names, letters, n))
    rates = keys.given("compress_rates")
    if rates is not None and (not isinstance(rates, dict) or {*rates} != {*kinds[1:]}):
        keys.unmapped("compress_rates", rates, f"give {' and '.join(kinds[1:])}, or leave it out")
    rates = dict(zip(kinds[1:], (4, 128), strict=True)) if rates is None else dict(rates)
    for kind, old in zip(kinds[1:], ("compress_rate_csa", "compress_rate_hca"), strict=True):
        rates[kind] = rates[kind] if keys.given(old) is None else keys.given(old)
        check_int("compress_rates", rates[kind], 1, MAX_TOKENS)
    index = keys.sizes("index_top_k=index_topk n_index_heads=index_n_heads index_head_dim")
    return {
        "attention": "compressed",
        "head_dim": head_dim,
        **keys.sizes("n_heads=num_attention_heads q_lora_rank o_groups o_lora_rank"),
        "window": keys.size("sliding_window"),
        "compression_pattern": pattern,
        **({"sparse_ratio": rates[kinds[1]], **index} if "S" in pattern else {}),
        **({"heavy_ratio": rates[kinds[2]]} if "H" in pattern else {}),
        **rope_of_entries(keys, head_dim, pattern),
    }


def hashed_experts(keys: Keys, fields: Json) -> Json:
    """Read DeepSeek-V4's experts, which a table chooses in the first layers."""
    n, named, old = fields["n_layers"], keys.given("mlp_layer_types"), keys.given("num_hash_layers")
    n_hashed = 3 if old is None else keys.size("num_hash_layers", lowest=0)
    if named is not None:
        named = named[:n] if isinstance(named, list) else named
        letters = letters_of(keys, "mlp_layer_types", named, {"hash_moe": "H", "moe": "M"}, n)
        n_hashed = letters.count("H")
        if "H" in letters[n_hashed:]:
            keys.unmapped("mlp_layer_types", named, "layers of hash_moe come first")
    score = keys.raw("scoring_func")
    if not isinstance(score, str) or score not in V4_SCORES:
        keys.unmapped("scoring_func", score, f"choose {' or '.join(V4_SCORES)}")
    if n_modules := keys.raw("num_nextn_predict_layers"):
        keys.notes.append(
            f"num_nextn_predict_layers: {n_modules} prediction layers are in the checkpoint, not "
            "in the class, and in no figure"
        )
    return {
        **routed(keys, "n_routed_experts", V4_SCORES[score]),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": 1,
        "selection_bias": n_hashed < n,
        "n_hash_layers": min(n, n_hashed),
        "routed_scale": keys.number("routed_scaling_factor"),
    }


FULL_OR_INDEXED = ("full_attention", "minimax_m3_sparse")
SPARSE = {  # of an object in the published config -> the key
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
SPARSE_TOO = (  # which layers have it; how scores and values are taken, which no count shows
    "sparse_attention_freq",
    "sparse_disable_index_value",
    "sparse_init_block",
    "sparse_score_type",
    "use_sparse_attention",
)


def minimax_m3_published(keys: Keys, _: Json) -> Json:
    """Read what the published config has as an object and as lists of 0 and 1."""
    inside, freq = keys.given("sparse_attention_config"), keys.given("moe_layer_freq")
    if isinstance(freq, list) and keys.data.get("mlp_layer_types") is None:
        keys.data["mlp_layer_types"] = [DENSE_OR_SPARSE[bool(on)] for on in freq]
    if not isinstance(inside, dict):
        return {}
    for key, value in inside.items():
        if (key not in SPARSE and key not in SPARSE_TOO) or (key == "sparse_init_block" and value):
            keys.unmapped(f"sparse_attention_config.{shown_name(key)}", value, "remove it")
    keys.data |= {SPARSE[key]: value for key, value in inside.items() if key in SPARSE}
    on = inside.get("sparse_attention_freq")
    if isinstance(on, list) and keys.data.get("layer_types") is None:
        keys.data["layer_types"] = [FULL_OR_INDEXED[bool(item)] for item in on]
    return {}


def minimax_m3_index(keys: Keys, fields: Json) -> Json:
    """Read MiniMax-M3's positions, and the index of blocks that some layers have.

    The class reads neither hidden_act nor rotary_dim: its gate is written out, and what it rotates
    of a head is partial_rotary_factor alone.
    """
    head_dim, n_layers = fields["head_dim"], fields["n_layers"]
    turned = rotation(keys, head_dim)
    rotated, written = turned.get("rotary_dim") or head_dim, keys.given("rotary_dim")
    if written is not None and written != rotated:
        keys.notes.append(
            f"rotary_dim {written} is not read by transformers, which rotates {rotated} of "
            f"{head_dim} values of a head, by partial_rotary_factor"
        )
    letters = layer_types(keys, n_layers, [FULL_OR_INDEXED[0]] * n_layers, FULL_OR_INDEXED)
    index = keys.sizes(
        "index_block_len=index_block_size index_top_blocks=index_topk_blocks "
        "n_index_heads=index_n_heads index_head_dim"
    )
    index["index_local_blocks"] = keys.size("index_local_blocks", lowest=0)
    if "L" not in letters:
        return turned
    _check_index(keys, index, rotated)
    return {**turned, **index, "index_pattern": shortest_period(letters.replace("L", "I"))}


def _check_index(keys: Keys, index: Json, rotated: int) -> None:
    """Raise `UnmappedKey` for an index that transformers runs and no spec says."""
    if index["index_local_blocks"] == 0:
        why = "without a local block what a query reads depends on its scores: choose 1 or more"
        keys.unmapped("index_local_blocks", 0, why)
    if index["index_local_blocks"] > index["index_top_blocks"]:
        most = index["index_top_blocks"]
        why = f"which of them a query reads is open: choose at most index_topk_blocks = {most}"
        keys.unmapped("index_local_blocks", index["index_local_blocks"], why)
    if index["index_head_dim"] < rotated:
        why = f"transformers cuts the angles of {rotated} values: choose {rotated} or more"
        keys.unmapped("index_head_dim", index["index_head_dim"], why)


# ---- LongCat-Flash: two of our layers are one of theirs, with experts beside them ----


def longcat_layers(keys: Keys, fields: Json) -> Json:
    """Read the number of layers: twice `num_layers`, or num_hidden_layers, which transformers
    halves; and check what the class takes for granted.
    """
    fields = {**fields, "n_layers": _longcat_depth(keys), "q_lora_rank": keys.size("q_lora_rank")}
    rope_dim = fields["qk_rope_head_dim"]
    keys.fixed("qk_head_dim", fields["qk_nope_head_dim"] + rope_dim)
    if (turned := keys.size("head_dim")) != rope_dim:
        keys.differs(
            f"transformers rotates head_dim = {turned}, not qk_rope_head_dim = {rope_dim} values"
        )
    return fields


def _longcat_depth(keys: Keys) -> int:
    given, n_layers = keys.given("num_hidden_layers"), 2 * keys.layers("num_layers")
    if given is None and "num_hidden_layers" not in keys.data:
        return n_layers
    if "num_layers" not in keys.data:
        n_layers = keys.layers("num_hidden_layers")
        if n_layers % 2:
            rule = "must be even: it is twice num_layers"
            raise SpecError("num_hidden_layers", rule, n_layers, "give num_layers")
    elif type(given) is not int or given != n_layers:
        rule = f"must be twice num_layers: 2 · {n_layers // 2} = {n_layers}"
        raise SpecError("num_hidden_layers", rule, given, "remove one of them")
    return n_layers


def longcat_experts(keys: Keys, fields: Json) -> Json:
    """Read the experts that compute, and zero experts.

    transformers' class stores the first matrix of every zero expert, which no token reads: the spec
    of a config has these rows, that of the catalog has not.
    """
    if keys.given("num_nextn_predict_layers"):
        keys.notes.append("num_nextn_predict_layers: prediction layers are not in the class")
    value_dim, kind = keys.size("v_head_dim"), keys.given("zero_expert_type")
    if kind not in (None, "identity"):
        rule = "must be identity: a zero expert gives back what it gets"
        raise SpecError("zero_expert_type", rule, kind, "remove it, or choose identity")
    added = {
        "v_head_dim": value_dim,
        "scaled_latents": True,
        "ffn_pattern": "BF",
        **routed(keys, "n_routed_experts", "softmax", chosen="moe_topk"),
        "d_ff_expert": keys.size("expert_ffn_hidden_size"),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
    }
    if added["top_k"] > added["n_experts"]:
        keys.unmapped("moe_topk", added["top_k"], "choose at most n_routed_experts")
    if added["top_k"] == 1:
        keys.differs("transformers' code fails where each token has one expert")
    n_zero = keys.optional_size("zero_expert_num", lowest=0)
    if not n_zero:
        return added
    unread = fields["n_layers"] // 2 * n_zero * 2 * added["d_ff_expert"] * fields["d_model"]
    keys.notes.append(
        f"zero_expert_num: transformers' class stores {exact(unread)} parameters that no token "
        "reads, rows for zero experts in gate_up_proj; without them: --set zero_expert_rows=false"
    )
    return {**added, "n_zero_experts": n_zero, "zero_expert_rows": True}


# ---- rows ----

GRANITE_MOE = (
    fixed(position_embedding_type="rope"),
    *BLOCK,
    scales,
    BIAS,
    ROPE,
    experts("num_local_experts", "topk_softmax"),
)
PARAMETER = "adds its router's bias to the probabilities, for the choice only"
CLAMPED_GATE: Json = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
NOT_READ = "head_dim qk_head_dim ep_size"
V3_CHOICE = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
V32 = (  # arXiv:2512.02556
    latent(interleaved=True),
    V_HEAD,
    indexed_layers,
    only(mlp_bias=False),
    fixed(**V3_CHOICE, moe_layer_freq=1, rope_interleave=True),
    size("index_top_k=index_topk n_index_heads=index_n_heads index_head_dim"),
    noaux(layout=sparse_layers("first_k_dense_replace")),
    prediction(),
)

# Base and rotated share of a head, by default; of layers that see everything, and a window.
MIMO_ROPE = {"full_attention": (5000000.0, 0.334), "sliding_attention": (10000.0, 0.334)}
LAGUNA_ROPE = {"full_attention": (500000.0, 0.5), "sliding_attention": (10000.0, 1.0)}

STEP_ROPE = {"full_attention": (10000.0, 1.0), "sliding_attention": (10000.0, 1.0)}
STEP_LISTS = words(
    "layer_types mlp_layer_types swiglu_limits swiglu_limits_shared rope_theta "
    "partial_rotary_factors use_rope_layers"
)

# Types of text that transformers has inside another model alone: their defaults stand with them.
TEXT_ROWS = {
    # StepFun 2026: heads and rotated share by kind of layer, a gate of each head
    "step3p5": row(
        sizes,
        D_FF,
        step_lists,
        always(activation="silu", gated=True, head_gate="sigmoid"),
        rms_norm(norm_unit_offset=True, qk_norm="head"),
        bias("attention_bias", ffn="mlp_bias"),
        step_layers,
        fixed(gating=True, use_bidirectional_attention=False, use_head_wise_attn_gate=True),
        fixed(use_qk_norm=True, use_moe=True, use_moe_router_bias=True, norm_expert_weight=True),
        fixed(moe_router_activation="sigmoid", zero_centered=True, sink=False),
        fixed(yarn_only_types=list(FULL_OR_SLIDING[:1]), att_impl_type="GQA", moe_every_n_layer=1),
        step_scale,
        experts(
            "n_routed_experts",
            "sigmoid_renorm",
            EXPERT_WIDTH,
            always(n_shared_experts=1, selection_bias=True),
            size("d_ff_shared=share_expert_dim"),
            number("routed_scale=moe_router_scaling_factor"),
            layout=sparse_layers(3),
        ),
        ends={"Step3p5ForCausalLM": "head"},
        aliases={
            "num_local_experts": "n_routed_experts",
            "num_attention_groups": "num_key_value_heads",
            "moe_num_experts": "n_routed_experts",
            "moe_top_k": "num_experts_per_tok",
            "share_expert_dims": "share_expert_dim",
            "num_mtp_layers": "num_nextn_predict_layers",
        },
        ignored="hidden_act max_seq_len mtp_layer_types mtp_mlp_layer_types need_fp32_gate "
        "use_mfa use_rope_layers per_layer_config",
        vocab_size=128815,
        hidden_size=4096,
        intermediate_size=11264,
        num_hidden_layers=45,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        num_experts_per_tok=8,
        moe_intermediate_size=1280,
        n_routed_experts=288,
        share_expert_dim=1280,
        sliding_window=None,
        num_sliding_attention_heads=None,
        attention_bias=False,
        mlp_bias=False,
        query_pre_attn_scalar=None,
        moe_router_scaling_factor=1.0,
        num_nextn_predict_layers=0,
        rope_theta=10000.0,
    ),
}

ROWS = {
    # arXiv:2401.04088: softmax, top-k, divided by its sum
    "mixtral": row(*BLOCK, all_windows, experts("num_local_experts", "softmax_renorm"), ROPE),
    "qwen2_moe": row(
        *BLOCK,
        windows_from(every=2),
        bias("qkv_bias", o=False),
        ROPE,
        qwen_experts("num_experts", qwen_shared),
        head_dim=None,
    ),
    # arXiv:2505.09388: no shared expert, QK-norm
    "qwen3_moe": row(
        *BLOCK,
        BIAS,
        qwen3_moe_windows,
        HEAD_NORM,
        ROPE,
        qwen_experts("num_local_experts"),
        head_dim=None,
    ),
    # arXiv:2409.02060
    "olmoe": row(
        *BLOCK,
        BIAS,
        only(clip_qkv=None),
        always(qk_norm="full"),
        ROPE,
        experts("num_experts", "softmax", renorm=True),
    ),
    # Phi-3.5-MoE, arXiv:2404.14219: its router samples one expert after the other, two in all
    "phimoe": row(
        *BLOCK,
        BIAS,
        phimoe_rope,
        always(norm="layernorm", norm_bias=True),
        flag("head_bias", "lm_head_bias"),
        all_windows,
        ROPE,
        fixed(num_experts_per_tok=2),
        experts("num_local_experts", "softmax", number("mixer_jitter=router_jitter_noise")),
        ignored="original_max_position_embeddings",
        reads="router_jitter_noise",
        head_dim=None,
    ),
    "granitemoe": row(*GRANITE_MOE, head_dim=None),
    # arXiv:2508.10925: sinks, biases everywhere, a clamped gate, windows
    "gpt_oss": row(
        *BLOCK,
        only(hidden_act="silu", **CLAMPED_GATE),
        BIAS,
        gpt_oss_windows,
        rope_unless_given(
            rope_type="yarn", factor=32.0, truncate=False, original_max_position_embeddings=4096
        ),
        always(attention_sinks=True, activation="clamped_swiglu"),
        ROPE,
        experts("num_local_experts", "topk_softmax", always(router_bias=True, expert_bias=True)),
        same_as(experts_per_token="top_k"),
        ignored="initial_context_length",
    ),
    "minimax_m2": row(
        *BLOCK,
        rotated_part,
        fixed(
            use_qk_norm=True,
            qk_norm_type="per_layer",
            scoring_func="sigmoid",
            use_routing_bias=True,
            shared_intermediate_size=0,
        ),
        always(qk_norm="full"),
        ROPE,
        experts("num_local_experts", "sigmoid_renorm", CHOICE_BIAS),
        ignored="use_mtp num_mtp_modules mtp_transformer_layers",
        partial_rotary_factor=1.0,
    ),
    # GLM-4.5, arXiv:2508.06471
    "glm4_moe": row(
        *BLOCK,
        bias("attention_bias", o=False),
        flag("qk_norm", "use_qk_norm", off="none", on="head"),
        ROPE,
        noaux(layout=dense_first),
        prediction(),
        head_dim=None,
        partial_rotary_factor=0.5,
    ),
    # chunked attention, one shared expert, sigmoid routing
    "llama4_text": row(
        sizes,
        RMS,
        BIAS,
        llama4_layers,
        size("d_ff=intermediate_size_mlp"),
        GATED,
        flag("qk_norm", "use_qk_norm", off="none", on="l2"),
        rope(style="interleaved"),
        experts(
            "num_local_experts",
            "sigmoid",
            size("d_ff_expert=intermediate_size"),
            always(n_shared_experts=1, router_scales_input=True),
            layout=llama4_sparse,
        ),
        ignored="cache_implementation for_llm_compressor",
    ),
    # arXiv:2506.05767: Qwen3's attention, DeepSeek-V3's experts
    "dots1": row(
        *BLOCK, BIAS, HEAD_NORM, ROPE, windows_from("", lowest=1), noaux(layout=dense_first)
    ),
    "solar_open": row(
        sizes,
        GATED,
        RMS,
        bias("attention_bias", o=False),
        fixed(first_k_dense_replace=0, use_qk_norm=False),
        noaux(),
        ROPE,
        ignored="intermediate_size num_nextn_predict_layers",
    ),
    # arXiv:2507.07024
    "flex_olmo": row(*BLOCK, BIAS, POST_NORM, ROPE, experts("num_experts", "softmax", renorm=True)),
    "ernie4_5_moe": row(
        *BLOCK,
        bias("use_bias", ffn="use_bias"),
        flag("head_bias", "use_bias"),
        rope(style="interleaved"),
        experts(
            "moe_num_experts",
            "softmax_renorm",
            EXPERT_WIDTH,
            shared_experts("moe_num_shared_experts"),
            always(router_bias=True),
            layout=ernie_sparse,
            chosen="moe_k",
        ),
        differs(f"ERNIE {PARAMETER}", "n_experts"),
        ignored="moe_norm_min",
    ),
    # Trinity (Arcee 2025): attention behind a gate, windows that rotate
    "afmoe": row(
        *BLOCK,
        only(attention_bias=False, why="the gate of attention has none: no spec says that"),
        always(norm_placement="sandwich", qk_norm="head", output_gate=True),
        root_scale("mup_enabled"),
        turning_windows("global_attn_every_n_layers"),
        ROPE,
        experts(
            "num_experts",
            "sigmoid_renorm",
            EXPERT_WIDTH,
            shared_experts("num_shared_experts"),
            number("routed_scale=route_scale"),
            always(router_bias=True),
            layout=after("num_dense_layers"),
        ),
        differs(f"AFMoE {PARAMETER}", "n_experts"),
    ),
    # Cohere 2 with experts: both branches behind one norm, windows that rotate
    "cohere2_moe": row(
        sizes,
        GATED,
        BIAS,
        optional_number("logit_scale", "logit_scale", null=1.0),
        cohere_norm,
        rope(style="interleaved"),
        cohere_windows,
        cohere_experts,
        first_k_dense_replace=0,
    ),
    # GLM-4.7-Flash
    "glm4_moe_lite": row(
        latent(interleaved="rope_interleave"),
        V_HEAD,
        noaux(layout=sparse_layers(1)),
        ignored="qk_head_dim",
    ),
    # Qwen3's attention and experts, another RoPE in its windowed layers
    "mellum": row(
        *BLOCK,
        BIAS,
        HEAD_NORM,
        windows_where(lambda _: False),
        mellum_rope,
        experts("num_local_experts", "softmax", EXPERT_WIDTH, renorm=True, layout=sparse_layers(0)),
        ignored="mtp_layer_types mtp_mlp_layer_types",
        rope_theta=500000.0,
        rope_local_base_freq=10000.0,
    ),
    "granitemoeshared": row(*GRANITE_MOE, granite_shared, head_dim=None),
    "granitemoe_swa": row(*GRANITE_MOE, granite_shared, *GRANITE_SWA, head_dim=None),
    # Hunyuan-A13B: a shared expert as wide as the others
    "hunyuan_v1_moe": row(
        *HUNYUAN,
        one_for_all_layers,
        experts("num_experts", "softmax_renorm", always(n_shared_experts=1), chosen="moe_topk"),
        ignored="eod_token_id",
    ),
    "hy_v3": row(
        *BLOCK,
        bias("attention_bias", ffn="mlp_bias"),
        HEAD_NORM,
        ROPE,
        experts(
            "num_experts",
            "sigmoid_renorm",
            EXPERT_WIDTH,
            shared_experts("num_shared_experts", lowest=1),
            CHOICE_BIAS,
            number("routed_scale=router_scaling_factor"),
            layout=sparse_layers(1),
        ),
        ignored="enable_moe_fp32_combine",
    ),
    # K-EXAONE: EXAONE 4's hybrid attention with norms before
    "exaone_moe": row(
        *BLOCK,
        HEAD_NORM,
        exaone_layers,
        ROPE,
        noaux("num_experts", "num_shared_experts", sparse_layers("first_k_dense_replace")),
        head_dim=None,
    ),
    "kolibri1": row(
        sizes,
        GATED,
        rms_norm(norm_placement="sandwich", qk_norm="head"),
        kolibri_layers,
        differs("Kolibri adds its bias for the choice to the logits, not to the probabilities"),
        ROPE,
        experts(
            "num_local_experts",
            "sigmoid",
            EXPERT_WIDTH,
            CHOICE_BIAS,
            always(n_shared_experts=1),
            size("d_ff_shared=shared_expert_intermediate_size"),
            renorm=True,
        ),
        ignored="intermediate_size",
    ),
    "deepseek_v2": row(latent(interleaved=True), deepseek_v2_experts, ignored=NOT_READ),
    "deepseek_v3": row(  # arXiv:2412.19437
        latent(interleaved="rope_interleave"),
        fixed(**V3_CHOICE),
        V_HEAD,
        noaux(layout=dense_first),
        prediction(),
        ignored=NOT_READ,
    ),
    "deepseek_v32": row(*V32, aliases={"num_experts": "n_routed_experts"}, ignored=NOT_READ),
    "glm_moe_dsa": row(  # GLM-5, arXiv:2602.15763
        *V32,
        own_indexers,
        differs("GLM-5's indexer rotates pairs of values, here halves"),
        aliases={"num_experts": "n_routed_experts"},
        ignored=f"{NOT_READ} indexer_rope_interleave moe_router_dtype "
        "index_share_for_mtp_iteration",
        index_topk_freq=1,
        index_skip_topk_offset=2,
    ),
    # DeepSeek 2026: a window and compressed entries, several streams, experts by token
    "deepseek_v4": row(
        lambda keys, _: trunk(keys),
        compressed_layers,
        GATED,
        RMS,
        number("gate_limit=swiglu_limit stream_eps=hc_eps"),
        size("n_streams=hc_mult n_sinkhorn_rounds=hc_sinkhorn_iters"),
        fixed(num_key_value_heads=1, n_shared_experts=1, norm_topk_prob=True),
        fixed(attention_bias=False, topk_method="noaux_tc"),
        only(mlp_bias=False, why="the class has it in shared experts alone: no spec says that"),
        hashed_experts,
        ignored="expert_dtype",
    ),
    # gpt-oss' gate, DeepSeek-V3's choice, an index in some layers
    "minimax_m3_vl_text": row(
        minimax_m3_published,
        only(**CLAMPED_GATE),
        sizes,
        size("d_ff=dense_intermediate_size"),
        always(activation="clamped_swiglu", gated=True),
        rms_norm(norm_unit_offset=True, qk_norm="head"),
        minimax_m3_index,
        experts(
            "num_local_experts",
            "sigmoid_renorm",
            size("d_ff_expert=intermediate_size d_ff_shared=shared_intermediate_size"),
            always(n_shared_experts=1, selection_bias=True),
            ROUTED_SCALE,
            layout=sparse_layers(0),
        ),
        ignored="hidden_act num_mtp_modules num_nextn_predict_layers",
        partial_rotary_factor=1.0,
    ),
    # arXiv:2601.02780: narrow values, other keys and values in windows, with sinks
    "mimo_v2_flash": row(
        *BLOCK,
        bias("attention_bias", o=False),
        size("value_head_dim=v_head_dim"),
        optional_number("attention_out_scale", "attention_value_scale", null=1.0),
        mimo_windows,
        fixed(**V3_CHOICE, n_shared_experts=0),
        experts(
            "n_routed_experts",
            "sigmoid",
            EXPERT_WIDTH,
            CHOICE_BIAS,
            optional_number("routed_scale", "routed_scaling_factor", null=1.0),
            grouped,
            renorm=True,
            layout=mimo_sparse,
        ),
        ignored="attention_chunk_size hybrid_block_size",
    ),
    # Poolside 2026: heads and rotated share by kind of layer, a gate of each head
    "laguna": row(
        *BLOCK,
        BIAS,
        HEAD_NORM,
        laguna_layers,
        always(head_gate="softplus"),
        only(moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0),
        experts(
            "num_experts",
            "sigmoid_renorm",
            EXPERT_WIDTH,
            always(n_shared_experts=1, selection_bias=True, selection_bias_param=True),
            size("d_ff_shared=shared_expert_intermediate_size"),
            number("routed_scale=moe_routed_scaling_factor"),
            layout=sparse_layers(1),
        ),
        ignored="rope_theta",
    ),
    # arXiv:2509.01322: zero experts, and a shortcut around the second attention
    "longcat_flash": row(
        latent(interleaved=True, layers="num_layers", width="ffn_hidden_size"),
        longcat_layers,
        fixed(
            attention_method="MLA",
            mla_scale_q_lora=True,
            mla_scale_kv_lora=True,
            norm_topk_prob=False,
            router_bias=False,  # the class stores one and adds none
        ),
        longcat_experts,
        ignored="ep_size topk_method nextn_use_scmoe router_dtype params_dtype",
    ),
}
