"""Dense decoders: LLaMA's block and what others changed in it."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import (
    BIAS,
    BLOCK,
    D_FF,
    FFN_BIAS,
    FULL_OR_SLIDING,
    GATED,
    HEAD_NORM,
    MULTIPLIERS,
    POST_NORM,
    ROPE,
    UNGATED,
    V_HEAD,
    activation,
    all_windows,
    always,
    bias,
    checked_windows,
    differs,
    fixed,
    flag,
    latent,
    layer_norm,
    letters_where,
    nope_every,
    only,
    optional_number,
    part,
    rms_norm,
    root_scale,
    rope,
    rope_by_kind,
    rope_unless_given,
    row,
    same_as,
    scales,
    shortest_period,
    size,
    sizes,
    windows,
    windows_from,
    windows_where,
)
from metacount.huggingface.config.rope import rope_object, rope_of_kinds, rotation
from metacount.spec.position import QueryGrowth, record_from

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

OLMO_EPS = 1e-5  # fixed in OLMo's LayerNorm
OLMO3_THETA = 500000.0
SPARSE, SPARSITY = 10, 0.95  # leading layers of Gemma 3n that are sparse, and how, by default


def query_growth(keys: Keys, _: Json) -> Json:
    """Read the growth of queries with the logarithm of far positions (Ministral 3)."""
    parameters = rope_object(keys)
    beta, step = (
        parameters.get("llama_4_scaling_beta"),
        parameters.get("original_max_position_embeddings"),
    )
    if not beta or not step:
        return {}
    try:
        growth = record_from("query_growth", QueryGrowth, {"weight": beta, "step": step})
    except SpecError as error:
        keys.differs(f"the growth of queries is not in the spec, for {error}")
        return {}
    return {"query_growth": growth}


def one_bias(keys: Keys, fields: Json) -> Json:
    """Check that the feed-forward has biases where attention has them (InternLM3)."""
    keys.only("mlp_bias", fields["q_bias"], why="qkv_bias and bias must be equal")
    return {}


def rotating_layers(keys: Keys, n_layers: int, *, empty_is_default: bool) -> list[bool]:
    """Read `no_rope_layers`, one number a layer, where 1 means that the layer does rotate."""
    given = keys.given("no_rope_layers")
    every = keys.layers("no_rope_layer_interval")
    if given is None or (given == [] and empty_is_default):
        return [(i + 1) % every != 0 for i in range(n_layers)]
    for item in keys.listed("no_rope_layers", given, n_layers, "numbers"):
        if item not in (0, 1):
            raise SpecError("no_rope_layers", "must hold 0 and 1 only", item, "remove it")
    return [bool(item) for item in given]


def smollm3_layers(keys: Keys, fields: Json) -> Json:
    """Read which layers go without RoPE, every fourth; those may have a window."""
    rotates = rotating_layers(keys, fields["n_layers"], empty_is_default=False)
    window = keys.optional_size("sliding_window")
    window = window if keys.flag("use_sliding_window") else None
    keys.given("max_window_layers")
    letters = letters_where(keys, fields, lambda i: window is not None and not rotates[i])
    return {
        **nope_every(keys, "no_rope_layers", rotates),
        **checked_windows(keys, letters, window),
    }


def square_output(keys: Keys, fields: Json) -> Json:
    """Check that heads fill the width: Helium's output projection is square."""
    if fields["n_heads"] * fields["head_dim"] != fields["d_model"]:
        keys.unmapped("head_dim", fields["head_dim"], "heads must fill hidden_size exactly")
    return {}


@part
def turning_windows(keys: Keys, fields: Json, name: str) -> Json:
    """Read layers with a window and RoPE, but for every n-th, which sees all without RoPE."""
    every = keys.layers(name)
    letters = letters_where(keys, fields, lambda i: (i + 1) % every != 0)
    return {
        **windows(letters, keys.size("sliding_window")),
        **nope_every(keys, "layer_types", [letter == "L" for letter in letters]),
    }


def exaone_layers(keys: Keys, fields: Json) -> Json:
    """Read windows in all layers but every n-th,
    and RoPE in windowed layers only, where there are any.
    """
    keys.raw("sliding_window_pattern")
    every = keys.layers("sliding_window_pattern") if keys.given("layer_types") is None else 1
    letters = letters_where(keys, fields, lambda i: (i + 1) % every != 0)
    return windows_that_rotate(keys, letters)


def windows_that_rotate(keys: Keys, letters: str) -> Json:
    """Read windows in layers of letter L; others go without RoPE, where there is a window."""
    window = keys.optional_size("sliding_window")
    rotates = [letter == "L" or window is None for letter in letters]
    return {**checked_windows(keys, letters, window), **nope_every(keys, "layer_types", rotates)}


def granite_windows(keys: Keys, fields: Json) -> Json:
    """Read a base of RoPE for each layer (0: none), where there is a list of them."""
    thetas, n_layers = keys.given("layer_rope_theta"), fields["n_layers"]
    if thetas is None:
        return {}
    name = "layer_rope_theta"
    for theta in keys.listed(name, thetas, n_layers, "numbers"):
        if not is_number(theta) or not 0 <= theta < 1e12:
            raise SpecError(name, "must hold numbers from 0 to 1e12", thetas, "remove it")
    turned = {theta for theta in thetas if theta}
    if len(turned) != 1:
        keys.unmapped(name, sorted(turned), "one base for all layers that rotate")
    nope = nope_every(keys, name, [bool(theta) for theta in thetas])
    return {"rope_theta": float(turned.pop()), **nope}


GRANITE_SWA = (windows_where(lambda i: i % 4 > 0), always(attention_sinks=True), granite_windows)


def hyperclovax_scales(keys: Keys, fields: Json) -> Json:
    """Read Granite's multipliers as HyperCLOVA X has them: logits are multiplied."""
    if keys.raw("attention_multiplier") is None:
        keys.data["attention_multiplier"] = fields["head_dim"] ** -0.5
    return keys.numbers(f"{MULTIPLIERS} logit_scale=logits_scaling")


def hunyuan_rope(keys: Keys, fields: Json) -> Json:
    """Read a RoPE whose base `alpha` raises once and for all, unless its `type` is yarn."""
    head_dim = fields["head_dim"]
    for name in ("rope_scaling", "rope_parameters"):
        parameters = keys.data.get(name)
        if (
            isinstance(parameters, dict)
            and parameters.get("alpha")
            and parameters.get("type") != "yarn"
        ):
            alpha, theta = (
                parameters["alpha"],
                parameters.get("rope_theta", keys.number("rope_theta")),
            )
            if not is_number(alpha) or not is_number(theta) or not 0 < alpha < 1e12:
                raise SpecError(name, "must have a positive alpha", alpha, "remove it")
            raised = float(theta * alpha ** (head_dim / (head_dim - 2)))
            keys.data[name] = {"rope_type": "default", "rope_theta": raised}
    return rotation(keys, head_dim)


HUNYUAN = (
    *BLOCK,
    BIAS,
    differs("Hunyuan norms queries and keys after RoPE, not before"),
    HEAD_NORM,
    hunyuan_rope,
)


# ---- Gemma ----


def gemma_activation(keys: Keys, fields: Json) -> Json:
    """Read Gemma's first configs, which say gelu where the tanh form is meant."""
    keys.fixed("hidden_activation", "gelu_pytorch_tanh")
    return {"activation": "gelu_tanh"} if fields["activation"] == "gelu" else {}


@part
def gemma_windows(keys: Keys, fields: Json, every: int | str) -> Json:
    """Read windows in all layers but every n-th, a number or the key of one."""
    step = keys.layers(every) if isinstance(every, str) else every
    letters = letters_where(keys, fields, lambda i: (i + 1) % step != 0)
    window = keys.optional_size("sliding_window")
    keys.fixed("sliding_window_size", window)
    if "L" in letters and window is None:
        keys.unmapped("sliding_window", None, "give its size")
    return {
        "norm_placement": "sandwich",
        "attention_scale": keys.number("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": keys.optional_number("attn_logit_softcapping"),
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        **windows(letters, window),
    }


def gemma3_norms(keys: Keys, fields: Json) -> Json:
    """Leave out the cap of the scores, which Gemma 3 does not use."""
    if fields["attention_softcap"] is not None:
        keys.notes.append("attn_logit_softcapping: transformers' Gemma 3 does not use it")
    return {"attention_softcap": None, "qk_norm": "head"}


UNIT = rms_norm(norm_unit_offset=True)
GEMMA_BASE = (sizes, BIAS, fixed(use_bidirectional_attention=False), root_scale(), D_FF)
GEMMA = (*GEMMA_BASE, activation(gated=True, key="hidden_act"), UNIT)
GEMMA2 = (*GEMMA_BASE, activation(gated=True, key="hidden_activation"), UNIT)
IGNORED = "hidden_act cache_implementation"


def gemma3n_windows(keys: Keys, fields: Json) -> Json:
    """Read windows in four layers of five, and check what limits training alone."""
    if fields["d_model"] % fields["n_heads"]:
        keys.notes.append("num_attention_heads: transformers wants a divisor of hidden_size")
    letters = letters_where(keys, fields, lambda i: (i + 1) % 5 != 0)
    seen = windows(letters, keys.size("sliding_window"))
    keys.number("altup_coef_clip")  # it limits training alone
    if not keys.flag("altup_correct_scale"):
        keys.differs("altup_correct_scale: transformers stores the scale and leaves it out")
    return seen


def gemma3n_borrowing(keys: Keys, fields: Json) -> Json:
    """Read how many of the last layers make no keys and values."""
    n_layers, n_borrowing = fields["n_layers"], keys.layers("num_kv_shared_layers", lowest=0)
    if n_borrowing > n_layers:
        rule = f"must be below num_hidden_layers = {n_layers}"
        raise SpecError("num_kv_shared_layers", rule, n_borrowing, f"choose 0 to {n_layers - 1}")
    return {"n_kv_shared_layers": n_borrowing}


def gemma3n_widths(keys: Keys, fields: Json) -> Json:
    """Read one width of the feed-forward, or two and which layer has which."""
    name, n_layers = "intermediate_size", fields["n_layers"]
    given = keys.raw(name)
    given = given if isinstance(given, list) else [given] * n_layers
    of_layers = keys.listed(name, given, n_layers, "numbers")
    for width in of_layers:
        if type(width) is not int or width < 1:
            raise SpecError(name, "must be a whole number for each", width, "choose 1 or more")
    widths = list(dict.fromkeys(of_layers))
    if len(widths) > 2:
        keys.unmapped(name, widths, "choose at most two widths")
    if len(widths) == 1:
        return {"d_ff": widths[0]}
    letters = "".join("MW"[width == widths[1]] for width in of_layers)
    pattern = shortest_period(letters)
    return {"d_ff": widths[0], "d_ff_second": widths[1], "d_ff_pattern": pattern}


def gemma3n_sparsity(keys: Keys, fields: Json) -> Json:
    """Read the share of a gate's values that are set to zero, and in which layers."""
    name, n_layers = "activation_sparsity_pattern", fields["n_layers"]
    given = keys.given(name)
    if given is None:
        n_sparse = SPARSE if n_layers > SPARSE else 0
        given = [SPARSITY if i < n_sparse else 0.0 for i in range(n_layers)]
    elif not isinstance(given, list):
        keys.unmapped(name, given, "give a list with one number a layer")
    of_layers = keys.listed(name, given, n_layers, "numbers")
    for share in of_layers:
        if not is_number(share) or not 0 <= share < 1:
            raise SpecError(name, "must be 0, or a share below 1, for each", share, "choose 0 to 1")
    shares = sorted({share for share in of_layers if share > 0})
    if len(shares) > 1:
        keys.unmapped(name, shares, "choose one share, or 0, for each layer")
    if not shares:
        return {}
    letters = shortest_period("".join("T" if share else "F" for share in of_layers))
    return {"activation_sparsity": float(shares[0]), "sparsity_pattern": letters}


def gemma4_turns(keys: Keys, _: Json) -> Json:
    """Take Gemma 4's RoPE where a config has none: a quarter of the pairs of wide heads turn."""
    if keys.data.get("rope_parameters") is None:
        full, near = FULL_OR_SLIDING
        turned = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        keys.data["rope_parameters"] = {full: turned, near: {"rope_theta": 10000.0}}
    return {}


def own_layers(keys: Keys, fields: Json, letters: str) -> Json:
    """Read the heads of layers that see everything as transformers writes them: an object for each
    of these layers, by its number; all must be alike.
    """
    name = "per_layer_config"
    given = keys.given(name)
    if given is None:
        return {}
    numbers = [i for i, letter in enumerate(letters) if letter == "G"]
    words = [str(key) for key in given] if isinstance(given, dict) else []
    named = sorted(int(word) for word in words if word.isdecimal())
    if not words or len(named) < len(words) or named != numbers:
        keys.unmapped(name, given, "an object for each layer of full_attention: remove it")
    first, *others = given.values()
    names = {"head_dim": "head_dim", "num_key_value_heads": "n_kv_heads"}
    if not isinstance(first, dict) or set(first) - set(names) or any(o != first for o in others):
        keys.unmapped(name, given, "head_dim and num_key_value_heads alone, alike in all layers")
    return {field: first.get(key, fields[field]) for key, field in names.items()}


def gemma4_heads(keys: Keys, fields: Json) -> Json:
    """Read Gemma 4's windows, in all layers but every sixth and the last, and wider heads without a
    projection of values in layers that see everything.
    """
    n_layers = fields["n_layers"]
    types = keys.given("layer_types")
    if isinstance(types, list) and types and types[-1] == FULL_OR_SLIDING[1]:
        keys.data["layer_types"] = [*types[:-1], FULL_OR_SLIDING[0]]
        keys.notes.append("layer_types: transformers makes the last layer full_attention")
    letters = letters_where(keys, fields, lambda i: (i + 1) % 6 != 0 and i < n_layers - 1)
    seen, near = windows(letters, keys.size("sliding_window")), dict(fields)
    equal, given = keys.flag("attention_k_eq_v"), keys.optional_size("num_global_key_value_heads")
    added = {"head_dim": keys.size("global_head_dim"), "values_of_keys": equal, **seen}
    added["n_kv_heads"] = given if equal and given is not None else near["n_kv_heads"]
    added |= own_layers(keys, near, letters)
    for name in ("head_dim", "n_kv_heads") if seen else ():
        if near[name] != added[name]:
            added[f"{name}_windowed"] = near[name]
    return {**added, **rope_of_kinds(keys, {**fields, **added}, GEMMA4_ROPE)}


def gemma4_layers(keys: Keys, fields: Json) -> Json:
    """Read which layers borrow keys and values, perhaps with a feed-forward of twice the width, the
    width of each layer's own embedding of the token, and experts beside the feed-forward.
    """
    added = gemma3n_borrowing(keys, fields)
    n_borrowing, n_layers = added["n_kv_shared_layers"], fields["n_layers"]
    if keys.flag("use_double_wide_mlp") and n_borrowing:
        pattern = "M" * (n_layers - n_borrowing) + "W" * n_borrowing
        added |= {"d_ff_second": 2 * fields["d_ff"], "d_ff_pattern": pattern}
    if keys.flag("enable_moe_block"):
        added |= size(
            "n_experts=num_experts top_k=top_k_experts d_ff_expert=moe_intermediate_size"
        )(keys, fields)
        added |= {"router": "softmax_renorm", "scaled_router": True, "ffn_pattern": "B"}
    width = keys.optional_size("hidden_size_per_layer_input", lowest=0)
    n_rows = keys.size("vocab_size_per_layer_input")
    return {**added, **({"d_per_layer": width, "vocab_size_per_layer": n_rows} if width else {})}


# ---- latent attention, dense ----


def minicpm3_scales(keys: Keys, fields: Json) -> Json:
    """Read the multipliers of μP (arXiv:2404.06395), and values narrower than keys."""
    value_dim, base = keys.optional_size("v_head_dim"), keys.optional_size("dim_model_base")
    depth, d_model = keys.optional_number("scale_depth"), fields["d_model"]
    return {
        "v_head_dim": d_model // fields["n_heads"] if value_dim is None else value_dim,
        "ffn_bias": keys.flag("mlp_bias"),
        "embedding_scale": keys.number("scale_emb"),
        "residual_scale": 1.0 if depth is None else depth / fields["n_layers"] ** 0.5,
        "logit_scale": 1.0 if base is None else base / d_model,
    }


# ---- rows ----

# Base, and rotated share of a head, by default; of layers that see everything, and a window.
GEMMA4_ROPE = {"full_attention": (1000000.0, 1.0), "sliding_attention": (10000.0, 1.0)}
LLAMA = (*BLOCK, BIAS, FFN_BIAS, ROPE)  # arXiv:2302.13971; the bias is on all four matrices
MISTRAL = (*BLOCK, all_windows, ROPE)  # arXiv:2310.06825: no biases, a window in every layer
GRANITE = (*LLAMA, scales)
GLM = (*BLOCK, bias("attention_bias", o=False), rope(style="interleaved"))
# attention and feed-forward side by side behind one LayerNorm without bias
COHERE = (
    sizes,
    D_FF,
    GATED,
    BIAS,
    fixed(use_qk_norm=False),  # theirs has a weight for every head
    optional_number("logit_scale", "logit_scale", null=1.0),
    layer_norm("layer_norm_eps", norm_bias=False, norm_placement="parallel"),
    rope(style="interleaved"),
)

ROWS = {
    "llama": row(*LLAMA),
    "mistral": row(*MISTRAL),
    "ministral3": row(
        rope_unless_given(
            rope_type="yarn",
            rope_theta=1000000.0,
            factor=16.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            original_max_position_embeddings=16384,
            llama_4_scaling_beta=0.1,
        ),
        *MISTRAL,
        query_growth,
    ),
    # arXiv:2407.10671
    "qwen2": row(*BLOCK, bias(True, o=False), windows_from(), ROPE, head_dim=None),
    # arXiv:2505.09388: an RMSNorm over each head instead of biases
    "qwen3": row(*BLOCK, BIAS, HEAD_NORM, windows_from(), ROPE),
    "phi3": row(
        *MISTRAL,
        reads="original_max_position_embeddings",
        head_dim=None,
        partial_rotary_factor=1.0,
    ),
    "granite": row(*GRANITE, head_dim=None),
    "smollm3": row(*LLAMA, smollm3_layers, head_dim=None),
    "seed_oss": row(*BLOCK, bias("attention_bias", o="attention_out_bias", ffn="mlp_bias"), ROPE),
    "internlm3": row(*LLAMA, one_bias, aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"}),
    "helium": row(
        *BLOCK,
        square_output,
        bias("attention_bias", o=False, ffn="mlp_bias"),
        rope(style="interleaved"),
    ),
    # arXiv:2402.00838: LayerNorm without weight and bias
    "olmo": row(
        sizes,
        D_FF,
        GATED,
        BIAS,
        only(clip_qkv=None),
        layer_norm(OLMO_EPS, norm_bias=False, norm_affine=False),
        ROPE,
        ignored="rms_norm_eps",
        head_dim=None,
    ),
    "olmo2": row(*BLOCK, BIAS, POST_NORM, ROPE, head_dim=None),  # arXiv:2501.00656
    "cohere": row(*COHERE, head_dim=None),
    "cohere2": row(
        *COHERE,
        fixed(
            use_gated_activation=True,
            use_parallel_block=True,
            position_embedding_type="rope_gptj",
            rotary_pct=1.0,
        ),
        same_as(head_dim="head_dim", use_embedding_sharing="tie_embeddings"),
        turning_windows("sliding_window_pattern"),
        ignored="_sliding_window_pattern cache_implementation layer_switch "
        "order_of_interleaved_layers use_parallel_embedding",
        sliding_window_pattern=4,
    ),
    "glm": row(*GLM, partial_rotary_factor=0.5),
    "glm4": row(*GLM, always(norm_placement="sandwich"), partial_rotary_factor=0.5),
    # arXiv:2402.19173
    "starcoder2": row(
        sizes,
        bias("use_bias", ffn="use_bias"),
        D_FF,
        UNGATED,
        layer_norm("norm_epsilon"),
        all_windows,
        ROPE,
        head_dim=None,
    ),
    "stablelm": row(
        sizes,
        D_FF,
        GATED,
        only(qk_layernorm=False, why="theirs has a norm of its own for every head"),
        flag("norm_placement", "use_parallel_residual", off="pre", on="parallel"),
        bias("use_qkv_bias", o=False),
        layer_norm("layer_norm_eps"),
        rope(rounds_up=False),
        partial_rotary_factor=0.25,
    ),
    "gemma": row(*GEMMA, gemma_activation, ROPE),  # arXiv:2403.08295
    "gemma2": row(*GEMMA2, gemma_windows(2), ROPE, ignored=IGNORED),  # arXiv:2408.00118
    # arXiv:2503.19786
    "gemma3_text": row(
        *GEMMA2,
        gemma_windows("sliding_window_pattern"),
        rope_by_kind(scaled=FULL_OR_SLIDING[:1]),
        gemma3_norms,
        ignored=f"{IGNORED} _sliding_window_pattern",
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        sliding_window_pattern=6,
    ),
    "vaultgemma": row(
        *GEMMA2, gemma_windows(2), ROPE, always(norm_placement="pre"), ignored=IGNORED
    ),
    # Google 2025, its model card and released code; there is no paper of it
    "gemma3n_text": row(
        sizes,
        BIAS,
        root_scale(),
        gemma3n_windows,
        activation(gated=True, key="hidden_activation"),
        rms_norm(norm_placement="sandwich", qk_norm="head", v_norm=True, attention_scale=1.0),
        optional_number("logit_softcap", "final_logit_softcapping"),
        rope_by_kind(scaled=FULL_OR_SLIDING[:1]),
        gemma3n_widths,
        gemma3n_sparsity,
        gemma3n_borrowing,
        size("n_altup_inputs=altup_num_inputs laurel_rank d_per_layer=hidden_size_per_layer_input"),
        size("vocab_size_per_layer=vocab_size_per_layer_input"),
        size("altup_active=altup_active_idx", lowest=0),
        ignored="default_theta",
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
    ),
    # Google 2026, its released code: wider heads where everything is seen, keys that are values
    "gemma4_text": row(
        gemma4_turns,
        sizes,
        BIAS,
        only(use_bidirectional_attention=(None, "vision"), why="a causal mask is read"),
        root_scale(),
        D_FF,
        activation(gated=True, key="hidden_activation"),
        rms_norm(norm_placement="sandwich", qk_norm="head", v_norm=True, attention_scale=1.0),
        always(layer_scalar=True),
        optional_number("logit_softcap", "final_logit_softcapping"),
        gemma4_heads,
        gemma4_layers,
        ignored="moe_intermediate_size num_experts top_k_experts rope_theta",
        global_head_dim=512,
        num_global_key_value_heads=None,
    ),
    "arcee": row(*LLAMA, UNGATED),
    # arXiv:2509.14233: xIELU, QK-norm
    "apertus": row(
        rope_unless_given(
            rope_type="llama3",
            rope_theta=12000000.0,
            factor=8.0,
            original_max_position_embeddings=8192,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
        *BLOCK,
        BIAS,
        UNGATED,
        HEAD_NORM,
        ROPE,
        head_dim=None,
    ),
    "ernie4_5": row(*BLOCK, bias("use_bias", ffn="use_bias"), rope(style="interleaved")),
    "iquestcoder": row(fixed(clip_qkv=None, use_sliding_window=False), *LLAMA),
    "jais2": row(
        sizes,
        BIAS,
        D_FF,
        UNGATED,
        FFN_BIAS,
        layer_norm("layer_norm_eps"),
        ROPE,
        ignored="rms_norm_eps",
    ),
    # arXiv:2402.16819
    "nemotron": row(
        sizes,
        BIAS,
        differs("Nemotron's LayerNorm adds 1 to its stored weights"),
        D_FF,
        UNGATED,
        FFN_BIAS,
        layer_norm("norm_eps"),
        ROPE,
        partial_rotary_factor=0.5,
    ),
    "nanochat": row(
        *BLOCK,
        BIAS,
        differs("nanochat turns queries and keys by the negative angles"),
        UNGATED,
        always(qk_norm="l2", norm_affine=False, embedding_norm=True),
        optional_number("logit_softcap", "final_logit_softcapping"),
        ROPE,
    ),
    # Code World Model: a window in three layers of four, the first sees everything
    "cwm": row(
        rope_unless_given(
            rope_type="llama3",
            rope_theta=1000000.0,
            factor=16.0,
            high_freq_factor=4.0,
            low_freq_factor=1.0,
            original_max_position_embeddings=8192,
        ),
        *BLOCK,
        FFN_BIAS,
        ROPE,
        windows_where(lambda i: i % 4 > 0),
    ),
    "ministral": row(*BLOCK, windows_where(lambda _: True, if_given=True), ROPE),
    "olmo3": row(
        *BLOCK,
        BIAS,
        POST_NORM,
        windows_where(lambda i: (i + 1) % 4 != 0),
        only(rope_theta=OLMO3_THETA, why="transformers gives it to unwindowed layers only"),
        rope_by_kind("rope_theta", scaled=FULL_OR_SLIDING[:1]),
        head_dim=None,
    ),
    # HyperCLOVA X SEED: Granite with norms after the branches
    "hyperclovax": row(
        *LLAMA,
        hyperclovax_scales,
        flag("norm_placement", "use_post_norm", off="pre", on="sandwich"),
    ),
    "granite_swa": row(*GRANITE, *GRANITE_SWA, head_dim=None),
    "hunyuan_v1_dense": row(*HUNYUAN, ignored="eod_token_id"),
    # arXiv:2507.11407: norms at the end of each branch, QK-norm
    "exaone4": row(
        *BLOCK,
        always(norm_placement="post_branch", qk_norm="head"),
        exaone_layers,
        ROPE,
        head_dim=None,
    ),
    "minicpm3": row(latent(), minicpm3_scales, ignored="head_dim qk_head_dim"),
    "youtu": row(
        latent(interleaved="rope_interleave"),
        V_HEAD,
        ignored="head_dim qk_head_dim embedding_initializer_range",
    ),
}
