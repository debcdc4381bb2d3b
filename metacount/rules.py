"""What makes a spec valid: every rule, each in one place, and the error that names a broken one."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import fields

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec, Workload

# Largest values accepted. A larger one is a typing error, not a model.
MAX_WIDTH = 2**24
MAX_LAYERS = 100_000
MAX_EXPERTS = 2**16
MAX_VOCAB = 2**30
MAX_TOKENS = 2**40
MAX_TENSOR = 2**62  # torch counts the elements of one tensor in a signed 64-bit integer

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}

CHOICES: dict[str, tuple[str, ...]] = {
    "kind": ("decoder", "encoder", "prefix-decoder", "encoder-decoder"),
    "attention": ("gqa", "mla"),
    "qk_norm": ("none", "head", "full", "l2", "layernorm"),
    "window_kind": ("sliding", "chunked"),
    "activation": (
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "relu2",
        "sigmoid",
        "identity",
        "clamped_swiglu",
    ),
    "router": ("softmax", "softmax_renorm", "topk_softmax", "sigmoid", "sigmoid_renorm"),
    "group_score": ("max", "top2_sum"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_placement": (
        "pre",
        "post",
        "sandwich",
        "deep",
        "parallel",
        "parallel_two",
        "post_branch",
    ),
    "position": ("none", "learned", "sinusoidal", "rope", "alibi", "t5", "transformer_xl"),
    "rope_style": ("half", "interleaved"),
    "sinusoid_style": ("alternating", "halves"),
}

WIDTHS = (
    "d_model", "n_heads", "n_kv_heads", "head_dim", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_ff", "d_ff_expert", "d_ff_shared",
    "rotary_dim", "n_buckets", "max_distance", "d_embedding",
)  # fmt: skip

LIMITS: dict[str, int] = {
    **dict.fromkeys(WIDTHS, MAX_WIDTH),
    **dict.fromkeys(("n_layers", "n_encoder_layers", "n_dense_layers", "moe_every", "moe_offset",
                     "nope_every"), MAX_LAYERS),
    **dict.fromkeys(("n_experts", "n_shared_experts", "top_k", "n_groups", "top_groups"),
                    MAX_EXPERTS),
    **dict.fromkeys(("vocab_size", "n_positions", "n_query_positions", "n_token_types",
                     "position_offset"), MAX_VOCAB),
    "window": MAX_TOKENS,
}  # fmt: skip

MAY_BE_ZERO = ("n_encoder_layers", "n_dense_layers", "n_shared_experts", "n_token_types",
               "n_query_positions", "position_offset", "moe_offset")  # fmt: skip

NUMBERS = ("embedding_scale", "residual_scale", "logit_scale", "logit_softcap", "attention_scale",
           "attention_softcap", "swish_beta", "routed_scale", "norm_eps", "rope_theta",
           "rope_theta_windowed", "latent_norm_eps", "mixer_jitter", "alibi_scale")  # fmt: skip


def check_model(spec: ModelSpec) -> None:
    """Raise `SpecError` for the first rule that a model breaks."""
    _check_types(spec)
    _check_ends(spec)
    _check_attention(spec)
    _check_window(spec)
    _check_ffn(spec)
    _check_norms(spec)
    _check_positions(spec)
    _check_tensors(spec)


def check_workload(run: Workload) -> None:
    """Raise `SpecError` for the first rule that a workload breaks."""
    for name, lowest in (("batch_size", 1), ("seq_len", 1), ("prefix_len", 0)):
        check_int(name, getattr(run, name), lowest, MAX_TOKENS)
    if run.source_len is not None:
        check_int("source_len", run.source_len, 1, MAX_TOKENS)
    if run.prefix_len > run.seq_len:
        raise SpecError("prefix_len", "must be at most seq_len", run.prefix_len,
                        f"choose 0 to {run.seq_len}")  # fmt: skip
    if not isinstance(run.dtype, str) or run.dtype not in DTYPE_BYTES:
        raise SpecError("dtype", "is unknown", run.dtype,
                        f"choose one of {', '.join(DTYPE_BYTES)}")  # fmt: skip


def check_int(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(name, "must be a whole number", value, f"choose {lowest} to {highest}")
    if not lowest <= value <= highest:
        rule = f"must be at least {lowest}" if value < lowest else f"must be at most {highest}"
        raise SpecError(name, rule, value, f"choose {lowest} to {highest}")


def _check_types(spec: ModelSpec) -> None:
    optional = {name for name, kind in type(spec).__annotations__.items() if "None" in kind}
    for name, value in spec.to_dict().items():
        if value is None and name in optional:
            continue
        if name in LIMITS:
            check_int(name, value, 0 if name in MAY_BE_ZERO else 1, LIMITS[name])
        elif name in CHOICES:
            if value not in CHOICES[name]:
                raise SpecError(name, "is unknown", value,
                                f"choose one of {', '.join(CHOICES[name])}")  # fmt: skip
        elif name in NUMBERS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < 1e12:
                raise SpecError(name, "must be a positive number", value, "choose one below 1e12")
        elif isinstance(value, dict):
            continue  # a part, checked when it was made
        elif name == "window_pattern":
            if not isinstance(value, str) or not value or set(value) - {"L", "G"}:
                raise SpecError(name, "must be letters L (windowed) and G (global)", value,
                                "for example LLLLLG")  # fmt: skip
        elif not isinstance(value, bool):
            raise SpecError(name, "must be true or false", value, "choose true or false")


def _require(spec: ModelSpec, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(spec, name) is None:
            raise SpecError(name, f"is needed {why}", None, f"set {name}")


def _forbid(spec: ModelSpec, names: tuple[str, ...], why: str) -> None:
    defaults = fields(type(spec))
    for name in names:
        if getattr(spec, name) != defaults[name]:
            raise SpecError(name, f"has no meaning {why}", getattr(spec, name), f"leave {name} out")


def _at_most(spec: ModelSpec, small: str, large: str) -> None:
    low, high = getattr(spec, small), getattr(spec, large)
    if low > high:
        raise SpecError(small, f"must be at most {large} = {high}", low, f"choose 1 to {high}")


def _divides(spec: ModelSpec, small: str, large: str) -> None:
    part, whole = getattr(spec, small), getattr(spec, large)
    if whole % part:
        divisors = [n for n in range(1, min(whole, 4096) + 1) if whole % n == 0]
        choices = ", ".join(map(str, divisors[:12])) + (", ..." if len(divisors) > 12 else "")
        raise SpecError(small, f"must divide {large}: {whole} % {part} = {whole % part}", part,
                        f"choose {choices}")  # fmt: skip


def _check_ends(spec: ModelSpec) -> None:
    if spec.has_encoder and spec.n_encoder_layers == 0:
        raise SpecError("n_encoder_layers", "is needed by an encoder-decoder", 0,
                        "choose 1 or more")  # fmt: skip
    if not spec.has_encoder:
        _forbid(spec, ("n_encoder_layers",), f"in a model of kind {spec.kind}")
    if spec.vocab_size is None:
        _forbid(spec, ("tie_embeddings", "head_bias", "n_token_types", "embedding_norm",
                       "embedding_scale", "logit_scale", "logit_softcap", "d_embedding",
                       "head_transform"), "without vocab_size")  # fmt: skip
    elif not spec.has_head:
        _forbid(spec, ("tie_embeddings", "head_bias", "logit_scale", "logit_softcap",
                       "head_transform"), "without a head")  # fmt: skip
    if not spec.head_transform:
        _forbid(spec, ("head_transform_bias",), "without head_transform")
    if spec.d_embedding is not None:
        if spec.kind != "encoder":
            raise SpecError("d_embedding", "belongs to an encoder", spec.d_embedding,
                            "leave d_embedding out")  # fmt: skip
        if spec.has_head and not spec.head_transform:
            raise SpecError("d_embedding", "with a head needs head_transform, which leads back to "
                            "it", spec.d_embedding, "set head_transform")  # fmt: skip
    if spec.pooler and spec.kind != "encoder":
        raise SpecError("pooler", "belongs to an encoder", True, "leave pooler out")


def _check_attention(spec: ModelSpec) -> None:
    mla = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
           "mla_bias", "latent_norm_eps")  # fmt: skip
    if spec.attention == "gqa":
        _require(spec, ("n_kv_heads", "head_dim"), "by attention gqa")
        _forbid(spec, mla, "with attention gqa")
        _at_most(spec, "n_kv_heads", "n_heads")
        _divides(spec, "n_kv_heads", "n_heads")
        if spec.qk_norm == "l2" and spec.position != "rope":
            raise SpecError("qk_norm", "l2 norms what RoPE rotated", "l2",
                            "choose head, or position rope")  # fmt: skip
        if spec.attention_softcap is not None and spec.position == "transformer_xl":
            raise SpecError("attention_softcap", "is not defined with position transformer_xl",
                            spec.attention_softcap, "leave attention_softcap out")  # fmt: skip
        return
    _require(spec, mla[1:5], "by attention mla")
    only_gqa = ("n_kv_heads", "head_dim", "q_bias", "k_bias", "v_bias", "o_bias", "qk_norm",
                "attention_sinks", "rotary_dim", "nope_every", "query_growth")  # fmt: skip
    _forbid(spec, only_gqa, "with attention mla")
    if spec.kind not in ("decoder", "prefix-decoder") or spec.position != "rope":
        raise SpecError("attention", "mla needs a decoder with position rope", spec.attention,
                        "choose gqa, or kind decoder and position rope")  # fmt: skip
    if spec.qk_rope_head_dim is not None and spec.qk_rope_head_dim % 2:
        raise SpecError("qk_rope_head_dim", "must be even", spec.qk_rope_head_dim,
                        f"choose {spec.qk_rope_head_dim + 1}")  # fmt: skip


def _check_window(spec: ModelSpec) -> None:
    if spec.window is None:
        _forbid(spec, ("window_kind", "window_pattern", "rope_theta_windowed"), "without a window")
    elif spec.window < 2:
        raise SpecError("window", "must be at least 2 (a token and one before it)", spec.window,
                        f"choose 2 to {MAX_TOKENS}")  # fmt: skip
    elif spec.kind == "prefix-decoder":
        raise SpecError("window", "is not defined for a prefix-decoder", spec.window,
                        "leave window out")  # fmt: skip
    elif spec.kind != "decoder" and spec.window_kind == "chunked":
        raise SpecError("window_kind", "chunked needs a decoder", "chunked", "choose sliding")
    elif spec.kind == "encoder-decoder":
        raise SpecError("window", "is not defined for an encoder-decoder", spec.window,
                        "leave window out")  # fmt: skip


def _check_ffn(spec: ModelSpec) -> None:
    if spec.activation == "clamped_swiglu" and not spec.gated:
        raise SpecError("activation", "clamped_swiglu is a gated form", "clamped_swiglu",
                        "set gated")  # fmt: skip
    if spec.activation == "identity" and not spec.gated:
        raise SpecError("activation", "identity without a gate is one linear map", "identity",
                        "set gated (bilinear)")  # fmt: skip
    if spec.swish_beta != 1.0 and spec.activation != "silu":
        raise SpecError(
            "swish_beta", "belongs to activation silu", spec.swish_beta, "leave swish_beta out"
        )
    moe_only = ("top_k", "d_ff_expert", "n_dense_layers", "moe_every", "moe_offset",
                "n_shared_experts", "d_ff_shared", "shared_expert_gate", "router", "router_bias",
                "selection_bias", "n_groups", "top_groups", "group_score", "routed_scale",
                "router_scales_input", "expert_bias", "mixer_jitter")  # fmt: skip
    if not spec.is_moe:
        _forbid(spec, moe_only, "without n_experts")
        _require(spec, ("d_ff",), "by a dense feed-forward")
        return
    _require(spec, ("top_k", "d_ff_expert"), "with n_experts")
    _at_most(spec, "top_k", "n_experts")
    if spec.n_shared_experts == 0:
        _forbid(spec, ("d_ff_shared", "shared_expert_gate"), "without shared experts")
    if (spec.n_groups is None) != (spec.top_groups is None):
        _require(spec, ("n_groups", "top_groups"), "by group-limited routing")
    if spec.n_groups is None:
        _forbid(spec, ("group_score",), "without groups of experts")
    if spec.mixer_jitter is not None:
        _forbid(spec, ("router", "selection_bias", "n_groups"), "with mixer_jitter")
    if spec.n_groups is not None and spec.top_groups is not None and spec.n_experts is not None:
        _divides(spec, "n_groups", "n_experts")
        _at_most(spec, "top_groups", "n_groups")
        reachable = spec.top_groups * (spec.n_experts // spec.n_groups)
        if spec.top_k is not None and spec.top_k > reachable:
            rule = f"must be at most the {reachable} experts of the chosen groups"
            raise SpecError("top_k", rule, spec.top_k, f"choose 1 to {reachable}")
        if spec.group_score == "top2_sum" and spec.n_experts // spec.n_groups < 2:
            raise SpecError("group_score", "top2_sum needs groups of two experts or more",
                            spec.group_score, "choose max")  # fmt: skip
    if spec.moe_offset >= spec.moe_every:
        raise SpecError("moe_offset", f"must be below moe_every = {spec.moe_every}",
                        spec.moe_offset, f"choose 0 to {spec.moe_every - 1}")  # fmt: skip
    stacks = [spec.n_layers] + ([spec.n_encoder_layers] if spec.has_encoder else [])
    moe_layers = [sum(spec.is_moe_layer(i) for i in range(n)) for n in stacks]
    if not any(moe_layers):
        raise SpecError("n_dense_layers", "and moe_every leave no layer to the experts",
                        spec.n_dense_layers, "lower them, or leave n_experts out")  # fmt: skip
    if moe_layers == stacks:
        _forbid(spec, ("d_ff",), "when every layer is MoE")
    else:
        _require(spec, ("d_ff",), "by the dense layers")


def _check_norms(spec: ModelSpec) -> None:
    if spec.norm == "rmsnorm" and spec.norm_bias:
        raise SpecError("norm_bias", "has no meaning with rmsnorm", True, "leave norm_bias out")
    if spec.norm == "layernorm" and spec.norm_unit_offset:
        raise SpecError(
            "norm_unit_offset", "belongs to rmsnorm", True, "leave norm_unit_offset out"
        )
    if not spec.first_norm and spec.norm_placement != "pre":
        raise SpecError("first_norm", "can only be left out of placement pre", False,
                        "leave first_norm out")  # fmt: skip
    if not spec.norm_affine:
        _forbid(spec, ("norm_bias", "norm_unit_offset"), "without norm_affine")
    if spec.has_encoder and spec.norm_placement in ("parallel", "parallel_two"):
        raise SpecError("norm_placement", "parallel is not defined with cross-attention",
                        spec.norm_placement, "choose pre or post")  # fmt: skip


def _check_positions(spec: ModelSpec) -> None:
    fields = {
        "learned": ("n_positions", "n_query_positions"),
        "rope": (
            "rotary_dim",
            "rope_theta",
            "rope_theta_windowed",
            "rope_style",
            "nope_every",
            "rope_scaling",
            "rope_scaling_windowed",
            "query_growth",
        ),
        "t5": ("n_buckets", "max_distance"),
        "alibi": ("alibi_scale",),
        "sinusoidal": ("sinusoid_style",),
    }
    for position, names in fields.items():
        if spec.position != position:
            _forbid(spec, names, f"with position {spec.position}")
    if spec.position not in ("learned", "sinusoidal"):
        _forbid(spec, ("position_offset",), f"with position {spec.position}")
    if spec.position == "learned":
        _require(spec, ("n_positions",), "by a learned position table")
        if spec.n_positions is not None and spec.position_offset >= spec.n_positions:
            raise SpecError("position_offset", f"must be below n_positions = {spec.n_positions}",
                            spec.position_offset,
                            f"choose 0 to {spec.n_positions - 1}")  # fmt: skip
    if spec.n_query_positions and spec.kind != "decoder":
        raise SpecError("n_query_positions", "belongs to a decoder", spec.n_query_positions,
                        "leave n_query_positions out")  # fmt: skip
    if spec.position == "t5":
        _require(spec, fields["t5"], "by T5's relative buckets")
        if spec.n_buckets is not None and (spec.n_buckets % 4 or spec.n_buckets < 4):
            raise SpecError("n_buckets", "must be a multiple of 4", spec.n_buckets, "choose 32")
        if (spec.max_distance or 0) <= (spec.n_buckets or 0):
            raise SpecError("max_distance", "must be larger than n_buckets", spec.max_distance,
                            "choose 128")  # fmt: skip
    if spec.position == "transformer_xl" and spec.kind != "decoder":
        raise SpecError("position", "transformer_xl needs a decoder", spec.position, "choose t5")
    if spec.position == "rope" and spec.attention == "gqa" and spec.head_dim is not None:
        rotated = spec.head_dim if spec.rotary_dim is None else spec.rotary_dim
        if rotated > spec.head_dim:
            raise SpecError("rotary_dim", f"must be at most head_dim = {spec.head_dim}", rotated,
                            f"choose 2 to {spec.head_dim}")  # fmt: skip
        if rotated % 2:
            name = "head_dim" if spec.rotary_dim is None else "rotary_dim"
            raise SpecError(name, "must be even for RoPE", rotated,
                            f"choose {rotated + 1}, or an even rotary_dim")  # fmt: skip


def _check_tensors(spec: ModelSpec) -> None:
    qk_head_dim = (spec.qk_nope_head_dim or 0) + (spec.qk_rope_head_dim or 0)
    heads = spec.n_heads * max(spec.head_dim or 0, spec.v_head_dim or 0, qk_head_dim)
    expanded = spec.n_heads * ((spec.qk_nope_head_dim or 0) + (spec.v_head_dim or 0))
    sizes = {
        "kv_lora_rank": (spec.kv_lora_rank or 0) * expanded,
        "n_heads": heads * max(spec.d_model, spec.q_lora_rank or 0),
        "n_experts": (spec.n_experts or 0) * 2 * spec.d_model * (spec.d_ff_expert or 0),
        "n_shared_experts": spec.n_shared_experts
        * spec.d_model
        * (spec.d_ff_shared or spec.d_ff_expert or 0),
    }
    for name, numel in sizes.items():
        if numel > MAX_TENSOR:
            raise SpecError(name, "makes one tensor of more than 2^62 values", getattr(spec, name),
                            f"lower {name}")  # fmt: skip
