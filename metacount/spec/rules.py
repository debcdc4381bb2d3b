"""Rules between parts of a model; what one part may be, it says itself."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Law,
    NoAttention,
)
from metacount.spec.field import MAX_LAYERS, at_most, below, check_plain, short
from metacount.spec.mixers import NoRecurrent
from metacount.spec.position import (
    Learned,
    NoPositions,
    RelativeBuckets,
    Rope,
    RopeScaling,
    Sinusoidal,
    TransformerXL,
)
from metacount.spec.stack import (
    BESIDE,
    SHARING,
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_FFN,
    WITH_STATE,
    common_period,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.stack import SharedBlock, Stack


MAX_TENSOR = 2**62  # torch counts the elements of one tensor in a signed 64-bit integer


def check_goes_with(stack: Stack, kind: str, position: str) -> None:
    """Raise `SpecError` for an attention that no model of that kind and those positions has."""
    mla = isinstance(stack.attention, LatentAttention)
    if mla and (kind not in ("decoder", "prefix-decoder") or position not in ("rope", "none")):
        rule = "mla needs a decoder with position rope or none"
        raise SpecError("attention", rule, "mla", "choose gqa, or kind decoder and position rope")


def check_model(spec: ModelSpec) -> None:
    """Raise `SpecError` for the first rule between parts that a model breaks."""
    stack, placement = spec.last_stack, spec.last_stack.norms.placement
    _check_shared(spec, stack)
    _check_ends(spec)
    _check_patterns(spec, stack)
    _check_mixer(spec, stack)
    part = stack.feed_forward
    if stack.mixture is not None and part is not None:  # of experts, which would ignore them
        for name, value in (("gate_scale", part.gate_scale), ("ffn_scale", part.scale)):
            if value != 1.0:
                raise SpecError(name, "has no meaning for experts", value, "leave it out")
    transform = spec.head is not None and spec.head.transform is not None
    if part is not None and part.activation == "xielu" and (stack.mixture or transform):
        rule = "xielu is not defined for experts and before a head"
        raise SpecError("activation", rule, "xielu", "choose another")
    _check_window(spec, stack)
    _check_mixture(spec, stack)
    if spec.has_encoder and placement in ("parallel", "parallel_two"):
        rule = "parallel is not defined with cross-attention"
        raise SpecError("norm_placement", rule, placement, "choose pre or post")
    _check_positions(spec, stack)
    _check_block_index(spec, stack)
    _check_tensors(spec, stack)
    _check_altup(spec, stack)
    _check_mtp(spec, stack)


def _check_ends(spec: ModelSpec) -> None:
    if spec.encoder is not None and spec.encoder.n_layers == 0:
        rule = "is needed by an encoder-decoder"
        raise SpecError("n_encoder_layers", rule, 0, "choose 1 or more")
    embedding, head = spec.embedding, spec.head
    if embedding is None and head is not None:
        given = {
            "tie_embeddings": head.tied,
            "head_bias": head.bias,
            "logit_scale": head.scale != 1.0 and head.scale,
            "logit_softcap": head.softcap,
            "head_transform": head.transform is not None,
        }
        for name, value in given.items():
            if value:
                raise SpecError(name, "has no meaning without vocab_size", value)
    if head is not None and head.transform is not None and spec.last_stack.feed_forward is None:
        raise SpecError("activation", "is needed by head_transform", None)
    if embedding is not None and embedding.width is not None:
        if spec.kind != "encoder":
            raise SpecError("d_embedding", "belongs to an encoder", embedding.width)
        if head is not None and head.transform is None:
            rule = "with a head needs head_transform, which leads back to it"
            raise SpecError("d_embedding", rule, embedding.width, "set head_transform")
    if spec.pooler and spec.kind != "encoder":
        raise SpecError("pooler", "belongs to an encoder", True)


def _check_mixer(spec: ModelSpec, stack: Stack) -> None:
    mixer, positions = stack.attention, spec.positions
    attends = set(stack.mixer_pattern[: stack.n_layers]) & set(WITH_ATTENTION)
    # of T5's buckets a table is made, which a layer has to read
    unread = isinstance(positions, RelativeBuckets) and not attends
    of_attention = not isinstance(positions, NoPositions | Learned | Sinusoidal)
    if unread or (isinstance(mixer, NoAttention) and of_attention):
        word, rule = vars(type(positions))["word"], "belongs to attention, which no layer has"
        raise SpecError("position", rule, word, "choose none")
    if isinstance(mixer, NoAttention):
        return
    if isinstance(mixer, CompressedAttention):
        _check_beside(spec, "compression_pattern", mixer.pattern, BESIDE_COMPRESSED)
        return
    if isinstance(mixer, LatentAttention):
        if isinstance(positions, Rope):
            given = {
                "rotary_dim": positions.rotary_dim,
                "rotary_dim_windowed": positions.windowed and positions.windowed.rotary_dim,
                "nope_every": positions.nope_every,
                "query_growth": positions.growth,
            }
            with_plain = {name: (value, None) for name, value in given.items()}
            check_plain(with_plain, "has no meaning with attention mla")
        elif mixer.indexer is not None:
            rule = "belongs to an indexer, which needs position rope"
            raise SpecError("index_top_k", rule, mixer.indexer.top_k, "choose position rope")
        return
    if mixer.qk_norm == "l2" and not isinstance(positions, Rope):
        remedy = "choose head, or position rope"
        raise SpecError("qk_norm", "l2 norms what RoPE rotated", "l2", remedy)
    if mixer.softcap is not None and isinstance(positions, TransformerXL):
        rule = "is not defined with position transformer_xl"
        raise SpecError("attention_softcap", rule, mixer.softcap)


def _check_window(spec: ModelSpec, stack: Stack) -> None:
    window = stack.attention.window
    if window is None:
        if isinstance(spec.positions, Rope) and spec.positions.windowed is not None:
            theta = spec.positions.windowed.theta
            raise SpecError("rope_theta_windowed", "has no meaning without a window", theta)
        return
    if stack.windows_differ and not window.own:
        _check_beside(spec, "values_of_keys", True, BESIDE_WINDOWED)
    for name, value in window.own.items():
        field = f"{name}_windowed"
        _check_beside(spec, field, value, BESIDE_WINDOWED)
    if spec.kind == "prefix-decoder":
        raise SpecError("window", "is not defined for a prefix-decoder", window.size)
    elif spec.kind != "decoder" and window.kind == "chunked":
        raise SpecError("window_kind", "chunked needs a decoder", "chunked", "choose sliding")
    elif spec.has_encoder:
        raise SpecError("window", "is not defined for an encoder-decoder", window.size)


def _check_mixture(spec: ModelSpec, stack: Stack) -> None:
    mixture = stack.mixture
    if stack.feed_forward is None:
        return
    d_ff = stack.feed_forward.d_ff
    if mixture is None:
        if d_ff is None:
            raise SpecError("d_ff", "is needed by a dense feed-forward", None)
        return
    layers = [each.n_layers for each in spec.stacks]
    if stack.names_experts:
        letters = stack.ffn_pattern
        routed = [Law(letters=letters, letter=WITH_EXPERTS).count(n) for n in layers]
        dense = [Law(letters=letters, letter=WITH_DENSE).count(n) for n in layers]
    else:
        routed = [mixture.law.count(n) for n in layers]
        dense = [n - with_experts for n, with_experts in zip(layers, routed, strict=True)]
    if mixture.scaled_router and BESIDE not in stack.ffn_pattern:
        rule = "belongs to experts beside a feed-forward"
        raise SpecError("scaled_router", rule, True, "write B for them in ffn_pattern")
    if not any(routed):
        rule, remedy = (
            "and moe_every leave no layer to the experts",
            "lower them, or leave n_experts out",
        )
        raise SpecError("n_dense_layers", rule, mixture.n_dense_layers, remedy)
    if mixture.n_hash_layers:
        _check_hashed(spec, stack, mixture.n_hash_layers, sum(routed))
    needed = any(dense) or (spec.prediction is not None and spec.prediction.dense)
    if not needed and d_ff is not None:
        raise SpecError("d_ff", "has no meaning when every layer is MoE", d_ff)
    if needed and d_ff is None:
        raise SpecError("d_ff", "is needed by the dense layers", None)


def _check_hashed(spec: ModelSpec, stack: Stack, n_hashed: int, n_routed: int) -> None:
    """Raise `SpecError` unless MoE layers come first, all read tokens, and a table is a choice."""
    at_most("n_hash_layers", n_hashed, "the number of MoE layers", n_routed)
    mixture = stack.mixture
    assert mixture is not None  # which has the layers
    known = {
        "kind": (spec.kind, "decoder"),
        "ffn_pattern": ("F" if set(stack.ffn_pattern) == {"F"} else stack.ffn_pattern, "F"),
        "n_dense_layers": (mixture.n_dense_layers, 0),
        "moe_every": (mixture.every, 1),
        "n_groups": (mixture.groups and mixture.groups.n_groups, None),
        "mixer_jitter": (mixture.mixer_jitter, None),
        "selection_bias_param": (mixture.bias_is_param, False),
        "n_zero_experts": (mixture.zero and mixture.zero.n_experts, None),
    }
    check_plain(known, "is not defined with n_hash_layers")
    if mixture.router not in ("sqrtsoftplus_renorm", "sigmoid_renorm"):
        remedy = "choose sqrtsoftplus_renorm or sigmoid_renorm"
        raise SpecError("router", "has no scores for a table's choice", mixture.router, remedy)
    if spec.embedding is None:
        rule = "needs an embedding: each layer looks up the token"
        raise SpecError("n_hash_layers", rule, n_hashed, "set vocab_size")


def _check_positions(spec: ModelSpec, stack: Stack) -> None:
    positions = spec.positions
    if isinstance(positions, Learned) and positions.n_query_positions and spec.kind != "decoder":
        value = positions.n_query_positions
        raise SpecError("n_query_positions", "belongs to a decoder", value)
    if isinstance(positions, TransformerXL) and spec.kind != "decoder":
        raise SpecError("position", "transformer_xl needs a decoder", "transformer_xl", "choose t5")
    if not isinstance(positions, Rope):
        return
    mixer = stack.attention
    assert not isinstance(mixer, NoAttention)  # RoPE without attention was refused
    for windowed in (False, True):
        if isinstance(mixer, LatentAttention):
            rotated = mixer.qk_rope_head_dim
        else:
            rotated = _rotated_width(positions, mixer, windowed)
        if not windowed:
            _check_pairs("rope_scaling", positions.scaling, rotated)
        elif positions.windowed is not None:
            _check_pairs("rope_scaling_windowed", positions.windowed.scaling, rotated)


def _rotated_width(positions: Rope, mixer: Attention | CompressedAttention, windowed: bool) -> int:
    """Return how many values of a head are rotated; raise `SpecError` for none that a head has."""
    head_dim = mixer.of_layer(windowed).head_dim
    rotated = positions.width_of(windowed, head_dim)
    own = windowed and positions.windowed is not None and positions.windowed.rotary_dim is not None
    name = "rotary_dim_windowed" if own else "rotary_dim"
    if isinstance(mixer, CompressedAttention) and mixer.indexer is not None:
        at_most(name, rotated, "index_head_dim", mixer.indexer.head_dim)
    of_head = "head_dim" if head_dim == mixer.head_dim else "head_dim_windowed"
    if rotated > head_dim:
        rule, remedy = f"must be at most {of_head} = {head_dim}", f"choose 2 to {head_dim}"
        raise SpecError(name, rule, rotated, remedy)
    if rotated % 2:
        remedy = f"choose {rotated + 1}, or an even {name}"
        field = of_head if not own and positions.rotary_dim is None else name
        raise SpecError(field, "must be even for RoPE", rotated, remedy)
    return rotated


def _check_pairs(name: str, scaling: RopeScaling | None, rotated: int) -> None:
    """Raise `SpecError` for a scaling that does not go with so many rotated values."""
    if scaling is None:
        return
    if scaling.kind == "dynamic" and rotated < 4:
        raise SpecError(name, "dynamic needs more than 2 rotated values", rotated)
    for factors in (scaling.short_factors, scaling.long_factors):
        if factors is not None and len(factors) != rotated // 2:
            rule = f"needs one factor for each of the {rotated // 2} pairs"
            raise SpecError(name, rule, len(factors), "give as many")


def _check_tensors(spec: ModelSpec, stack: Stack) -> None:
    mixer, mixture, d = stack.attention, stack.mixture, spec.d_model
    sizes = {}
    if isinstance(mixer, LatentAttention):
        head = max(mixer.v_head_dim, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
        expanded = mixer.n_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        sizes["kv_lora_rank"] = mixer.kv_lora_rank, mixer.kv_lora_rank * expanded
        sizes["n_heads"] = mixer.n_heads, mixer.n_heads * head * max(d, mixer.q_lora_rank or 0)
    elif isinstance(mixer, Attention):
        sizes["n_heads"] = mixer.n_heads, mixer.n_heads * mixer.head_dim * d
        near = mixer.of_layer(True)
        sizes["n_heads_windowed"] = near.n_heads, near.n_heads * near.head_dim * d
    elif isinstance(mixer, CompressedAttention):
        groups = mixer.o_groups * mixer.o_lora_rank
        width = max(mixer.q_rank, groups // mixer.o_groups)
        sizes["n_heads"] = mixer.n_heads, mixer.n_heads * mixer.head_dim * width
        sizes["o_lora_rank"] = mixer.o_lora_rank, groups * d
    if stack.hyper is not None:
        n = stack.hyper.n_streams
        sizes["n_streams"] = n, (2 + n) * n * n * d
    if mixture is not None:
        sizes["n_experts"] = mixture.n_experts, mixture.n_experts * 2 * d * mixture.d_ff
        if mixture.zero is not None and mixture.zero.rows:
            values = mixture.n_scores * 2 * d * mixture.d_ff
            sizes["n_zero_experts"] = mixture.zero.n_experts, values
        if mixture.shared is not None:
            n_shared = mixture.shared.n_experts
            width = mixture.shared.d_ff or mixture.d_ff
            sizes["n_shared_experts"] = n_shared, n_shared * d * width
    for name, (value, numel) in sizes.items():
        _fits_a_tensor(name, value, numel)


def _fits_a_tensor(name: str, value: int, numel: int) -> None:
    if numel > MAX_TENSOR:
        raise SpecError(name, "makes one tensor of more than 2^62 values", value, f"lower {name}")


def _check_patterns(spec: ModelSpec, stack: Stack) -> None:
    """Check the letters of the two patterns against the parts that they speak of."""
    mixers, ffns = stack.mixer_pattern, stack.ffn_pattern
    has_attention = not isinstance(stack.attention, NoAttention)
    has_state = not isinstance(stack.recurrent, NoRecurrent)
    rows = (
        ("attention", has_attention, "mixer_pattern", mixers, WITH_ATTENTION),
        ("recurrent", has_state, "mixer_pattern", mixers, WITH_STATE),
        ("activation", stack.feed_forward and not stack.shared, "ffn_pattern", ffns, WITH_FFN),
        ("n_experts", stack.mixture is not None, "ffn_pattern", ffns, WITH_EXPERTS),
    )
    for name, given, pattern, letters, meant in rows:
        asks = bool(set(letters) & set(meant))
        if asks and not given:
            rule = f"is needed by {pattern} {short(letters)}"
            raise SpecError(name, rule, None, f"set {name}, or another {pattern}")
        if given and not asks and name != "n_experts":
            remedy = f"put one of the letters {' and '.join(meant)} in, or leave {name} out"
            raise SpecError(pattern, f"has no layer for {name}", letters, remedy)
    if not stack.uniform:
        _check_layers_that_differ(spec, stack)


def _check_layers_that_differ(spec: ModelSpec, stack: Stack) -> None:
    mixers, ffns, norms = stack.mixer_pattern, stack.ffn_pattern, stack.norms
    if spec.kind != "decoder":
        name, letters = ("mixer_pattern", mixers) if set(mixers) != {"A"} else ("ffn_pattern", ffns)
        rule = "of layers that differ needs a decoder"
        raise SpecError(name, rule, short(letters), "choose kind decoder")
    if norms.placement in ("post", "deep", "parallel", "parallel_two") or not norms.first:
        rule = "is not defined for layers that differ in their mixers"
        raise SpecError("norm_placement", rule, norms.placement, "choose pre")
    window = stack.attention.window
    period = common_period(len(mixers), len(ffns))
    longest = max(period, common_period(len(mixers), len(window.pattern) if window else 1))
    if longest > MAX_LAYERS:
        rule = f"and the other patterns repeat together only after {longest} layers"
        raise SpecError("mixer_pattern", rule, short(mixers), "write them equally long")
    n = min(period, stack.n_layers) if isinstance(stack.n_layers, int) else period
    if any(mixers[i % len(mixers)] == ffns[i % len(ffns)] == "N" for i in range(n)):
        rule = "leaves a layer with neither mixer nor feed-forward"
        raise SpecError("ffn_pattern", rule, short(ffns), "put F in, or a mixer")
    if BESIDE in ffns:
        _check_experts_beside(stack)
    mixture = stack.mixture
    if mixture is None:
        return
    if stack.names_experts and (mixture.n_dense_layers, mixture.every, mixture.offset) != (0, 1, 0):
        rule = "has no meaning where ffn_pattern names the layers of experts"
        remedy = "leave it out, and n_dense_layers and moe_offset"
        raise SpecError("moe_every", rule, mixture.every, remedy)
    if "N" in ffns and not stack.names_experts:
        rule = "with N must name the layers of experts"
        raise SpecError("ffn_pattern", rule, short(ffns), "write E for them")


def _check_experts_beside(stack: Stack) -> None:
    """Check experts beside a feed-forward: a later layer adds what they give; or, between norms of
    their own and with a router that reads the stream, their own layer does.
    """
    ffns, last, placement = stack.ffn_pattern, stack.n_layers - 1, stack.norms.placement
    if "E" in ffns:
        rule = "has experts beside a feed-forward and in the place of one"
        raise SpecError("ffn_pattern", rule, short(ffns), "choose one of the letters B and E")
    assert stack.mixture is not None  # experts have one
    if placement != ("sandwich" if stack.mixture.scaled_router else "pre"):
        rule = "of experts beside a feed-forward is pre, or sandwich with scaled_router"
        raise SpecError("norm_placement", rule, placement, "choose one of the two")
    if placement == "sandwich":
        return
    for place, letter in enumerate(ffns):
        # that the last layer has this letter, as a comparison of numbers, which others read
        if letter == BESIDE and stack.n_layers % len(ffns) == (place + 1) % len(ffns):
            rule = f"leaves nobody to add what the experts of the last layer, {last}, give"
            remedy = "choose another n_layers, or another letter than B for the last one"
            raise SpecError("ffn_pattern", rule, short(ffns), remedy)


def _check_block_index(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for a model that a block indexer does not go with."""
    mixer, positions = stack.attention, spec.positions
    if not isinstance(mixer, Attention) or mixer.indexer is None:
        return
    index = mixer.indexer
    if not isinstance(positions, Rope):
        rule = "belongs to a block indexer, which needs position rope"
        raise SpecError("index_block_len", rule, index.block_len, "choose position rope")
    letters = "A" if set(stack.mixer_pattern) == {"A"} else stack.mixer_pattern
    known = {
        "kind": (spec.kind, "decoder"),
        "mixer_pattern": (letters, "A"),
        "window": (mixer.window and mixer.window.size, None),
        "n_kv_shared_layers": (mixer.n_kv_shared_layers, 0),
        "nope_every": (positions.nope_every, None),
        "n_mtp_layers": (spec.prediction and spec.prediction.n_modules, None),
    }
    check_plain(known, "is not defined with a block indexer")
    rotated = mixer.head_dim if positions.rotary_dim is None else positions.rotary_dim
    if index.head_dim < rotated:
        rule = f"must be at least the {rotated} values of a head that RoPE rotates"
        remedy = f"choose {rotated} or more, or a smaller rotary_dim"
        raise SpecError("index_head_dim", rule, index.head_dim, remedy)
    first = index.pattern.find("I")
    if first < 0 or stack.n_layers <= first:
        rule, remedy = (
            "leaves no layer to the indexer",
            "put I in for one, or leave index_block_len out",
        )
        raise SpecError("index_pattern", rule, index.pattern, remedy)


# What the attention and the norms of a shared block are; other values were never seen in one.
BESIDE_SHARED = {
    "attention": "gqa",
    "qk_norm": "none",
    "output_gate": False,
    "head_gate": "none",
    "value_head_dim": None,
    "attention_sinks": False,
    "window": None,
    "attention_out_scale": 1.0,
    "norm_placement": "pre",
    "residual_scale": 1.0,
    "residual_weight": 1.0,
    "n_experts": None,
    "values_of_keys": False,
}


def _check_shared(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for what does not go with shared blocks, and for layers without them."""
    letters, shared = stack.mixer_pattern, stack.shared
    if shared is not None:
        _check_shared_parts(spec, stack, shared)
    elif SHARING in letters:
        rule = f"is needed by mixer_pattern {short(letters)}"
        remedy = "set n_shared_blocks, or another mixer_pattern"
        raise SpecError("n_shared_blocks", rule, None, remedy)


def _check_shared_parts(spec: ModelSpec, stack: Stack, shared: SharedBlock) -> None:
    letters = stack.mixer_pattern
    if set(letters) - {"R", SHARING}:
        rule = "of a model with shared blocks has letters R and S alone: attention is in the blocks"
        remedy = "write S where a shared block is used, else R"
        raise SpecError("mixer_pattern", rule, short(letters), remedy)
    if set(stack.ffn_pattern) != {"N"}:
        rule = "of a model with shared blocks is N: the feed-forward is in the blocks"
        raise SpecError("ffn_pattern", rule, stack.ffn_pattern, "choose N")
    if stack.feed_forward is None:
        raise SpecError("activation", "is needed by shared blocks", None)
    known = {name: (getattr(spec, name), plain) for name, plain in BESIDE_SHARED.items()}
    check_plain(known, "is not defined for a model with shared blocks")
    if spec.position not in ("rope", "none"):
        rule = "of a model with shared blocks is rope or none"
        raise SpecError("position", rule, spec.position, "choose rope or none")
    uses = Law(letters=letters, letter=SHARING).count(stack.n_layers)
    if shared.n_blocks > uses:
        rule = f"must be at most the {uses} layers of letter S that use one"
        remedy = f"choose 1 to {uses}" if uses else "put S into mixer_pattern, below n_layers"
        raise SpecError("n_shared_blocks", rule, shared.n_blocks, remedy)
    # the query projection reads both inputs
    _fits_a_tensor("n_heads", spec.n_heads, 2 * spec.d_model * spec.n_heads * spec.head_dim)


# What Gemma 3n and DeepSeek-V4 have in and around their blocks: of each field the value that says
# that there is none.
AROUND: dict[str, object] = {
    "n_altup_inputs": None,
    "laurel_rank": None,
    "d_per_layer": None,
    "n_kv_shared_layers": 0,
    "v_norm": False,
    "values_of_keys": False,
    "layer_scalar": False,
    "scaled_router": False,
    "d_ff_second": None,
    "activation_sparsity": None,
    "n_streams": None,
    "compression_pattern": None,
}
# Values of these fields that go with one of them; any other is refused.
BESIDE_STREAMS: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "attention": ("gqa",),
    "mixer_pattern": ("A",),
    "ffn_pattern": ("F",),
    "n_experts": (None,),
    "n_mtp_layers": (None,),
    "norm_placement": ("sandwich", "pre"),
    "residual_scale": (1.0,),
    "residual_weight": (1.0,),
}
# The same of several residual streams, and of compressed attention.
BESIDE_HYPER: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "attention": ("compressed", "gqa"),
    "mixer_pattern": ("A",),
    "ffn_pattern": ("F",),
    "n_mtp_layers": (None,),
    "norm_placement": ("pre",),
    "first_norm": (True,),
    "residual_scale": (1.0,),
    "residual_weight": (1.0,),
    "n_altup_inputs": (None,),
    "laurel_rank": (None,),
    "d_per_layer": (None,),
    "layer_scalar": (False,),
    "position": ("rope", "none"),
    "n_kv_shared_layers": (0,),
}
BESIDE_COMPRESSED: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "mixer_pattern": ("A",),
    "position": ("rope",),
    "nope_every": (None,),
    "query_growth": (None,),
    "rotary_dim_windowed": (None,),
    "n_mtp_layers": (None,),
}
# The same of layers that borrow keys and values: those of an earlier layer were made alike.
BESIDE_BORROWED: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "mixer_pattern": ("A",),
    "position": ("rope", "learned", "sinusoidal", "alibi", "none"),
    "nope_every": (None,),
    "n_query_positions": (0,),
    "n_mtp_layers": (None,),
}
# The same of feed-forwards of two widths, and of those that keep the top values of their gate.
BESIDE_WIDTHS: dict[str, tuple[object, ...]] = {
    "ffn_pattern": ("F",),
    "n_experts": (None,),
    "n_shared_blocks": (None,),
    "n_mtp_layers": (None,),
    "kind": ("decoder",),
}
# The same of heads that layers with a window have for themselves.
BESIDE_WINDOWED: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "attention": ("gqa",),
    "mixer_pattern": ("A",),
    "position": ("rope", "none"),
    "nope_every": (None,),
    "index_block_len": (None,),
}
# The same of prediction modules.
BESIDE_PREDICTION: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "norm_placement": ("pre",),
    "position": ("rope", "none"),
}


def beyond_branches(spec: ModelSpec) -> str:
    """Name the first field of what Gemma 3n has in and around its blocks; empty in other models."""
    for name, none in AROUND.items():
        value = getattr(spec, name)
        if value is not none and not (isinstance(value, int) and value == none):
            return name
    return ""


def _check_altup(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for what does not go with what stands around and in the blocks."""
    known = {**BESIDE_STREAMS}
    for name in ("ffn_pattern", "n_experts") if spec.scaled_router else ():
        del known[name]
    for name in ("n_altup_inputs", "laurel_rank", "d_per_layer", "layer_scalar"):
        _check_beside(spec, name, getattr(spec, name), known)
    _check_beside(spec, "n_streams", spec.n_streams, BESIDE_HYPER)
    for name in ("d_ff_second", "activation_sparsity"):
        _check_beside(spec, name, getattr(spec, name), BESIDE_WIDTHS)
    _check_inputs(spec, stack)
    if isinstance(stack.attention, Attention) and stack.attention.n_kv_shared_layers:
        _check_borrowed(spec, stack, stack.attention.n_kv_shared_layers)


def _check_beside(
    spec: ModelSpec, name: str, value: object, known: dict[str, tuple[object, ...]]
) -> None:
    if not value:
        return
    for other, plain in known.items():
        found = getattr(spec, other)
        alike = isinstance(found, str) and found and set(found) == set(str(plain[0]))
        if found in plain or (alike and len(str(plain[0])) == 1):
            continue
        words = " or ".join(str(word) for word in plain)
        raise SpecError(
            other,
            f"of a model with {name} {'is left out' if plain == (None,) else f'is {words}'}",
            short(found) if isinstance(found, str) else found,
            f"{f'leave {other} out' if plain[0] in (None, 0) else f'choose {words}'}, or leave"
            f" {name} out",
        )


def _check_inputs(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` unless one table can give each layer's embeddings, looked up by token."""
    inputs = stack.layer_inputs
    if inputs is None:
        return
    if spec.embedding is None:
        rule = "needs an embedding: each layer looks up the token"
        remedy = "set vocab_size, or leave d_per_layer out"
        raise SpecError("d_per_layer", rule, inputs.width, remedy)
    _fits_a_tensor("d_per_layer", inputs.width, inputs.vocab_size * stack.n_layers * inputs.width)


def _check_borrowed(spec: ModelSpec, stack: Stack, n_borrowing: int) -> None:
    """Raise `SpecError` unless borrowing layers follow one that makes keys for what they see."""
    name, n_layers = "n_kv_shared_layers", stack.n_layers
    below(name, n_borrowing, "n_layers", n_layers, "one has to make keys and values")
    _check_beside(spec, name, n_borrowing, BESIDE_BORROWED)
    law, making = stack.windowed, n_layers - n_borrowing
    if law is None:
        return
    near = (law.count(making), law.count(n_layers) - law.count(making))
    kinds = {"a window": near, "everything": (making - near[0], n_borrowing - near[1])}
    for sees, (makers, borrowers) in kinds.items():
        if borrowers and not makers:
            rule = f"leaves {borrowers} blocks that see {sees} and none before them that does"
            remedy = "choose fewer, or another window_pattern"
            raise SpecError(name, rule, n_borrowing, remedy)


def _check_mtp(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for a model that its prediction modules do not go with."""
    modules = spec.prediction
    if modules is None:
        return
    _check_beside(spec, "n_mtp_layers", modules.n_modules, BESIDE_PREDICTION)
    missing = "activation" if stack.feed_forward is None else "attention"
    broken = {
        "is not defined for a model with shared blocks": stack.shared is not None,
        "needs an embedding and a head, which its modules share": (
            spec.embedding is None or spec.head is None
        ),
        f"needs {missing}: a prediction module has a layer with it": (
            isinstance(stack.attention, NoAttention) or stack.feed_forward is None
        ),
    }
    for rule, is_broken in broken.items():
        if is_broken:
            raise SpecError("n_mtp_layers", rule, modules.n_modules)
    if BESIDE in stack.ffn_pattern and not modules.dense:
        rule = f"must be true where experts stand beside a feed-forward ({BESIDE} in ffn_pattern)"
        raise SpecError("mtp_dense", rule, False, "set mtp_dense")
    if modules.dense and stack.mixture is None:
        raise SpecError("mtp_dense", "has no meaning without n_experts", True)
