"""What lessons count of a model by formulas, as plain values: functions that a page calls."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount import catalog
from metacount.algebra.text import in_letters
from metacount.errors import SpecError
from metacount.formulas import ends, masks, model, sublayers
from metacount.formulas.sublayers import block_params
from metacount.formulas.tape import params_of
from metacount.package import table_of_package
from metacount.spec import FIELDS, SEQ_LEN, ModelSpec, Request, legend
from metacount.spec.attention import LatentAttention
from metacount.spec.position import Rope
from metacount.teaching.parts import letters, without_biases
from metacount.teaching.texts import evaluated
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted
from metacount.units import exact, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.formulas.dim import Dim

    Row = dict[str, Any]

causal_pairs = masks.causal_pairs
formula = in_letters


def sizes_by_letter(spec: ModelSpec) -> dict[str, Dim]:
    """Return the model's sizes under their letters."""
    return {t.letter: getattr(spec, t.name) for t in legend.MODEL_TERMS}


def sizes(spec: ModelSpec, names: Sequence[str]) -> list[Row]:
    """List the sizes of these names that the model has, with what the legend says of them."""
    rows = ((legend.by_name(name), getattr(spec, name)) for name in names)
    return [{**vars(term), "value": value} for term, value in rows if value]


def meaning(name: str) -> str:
    """Say what a size is, as the legend does."""
    return legend.by_name(name).meaning


def form(spec: ModelSpec, part: str) -> str:
    """Write a part of the model in letters."""
    return in_letters(letters(spec, part))


# The matrices of a block: name -> shape in letters.
GROUPED = {
    "q_proj": ("h*h_d", "d"),
    "k_proj": ("h_kv*h_d", "d"),
    "v_proj": ("h_kv*h_d", "d"),
    "o_proj": ("d", "h*h_d"),
}
GATED_QUERY = {"q_proj": ("2*h*h_d", "d")}  # each head's queries, and a gate of its output
LATENT = {
    "q_a_proj": ("r_q", "d"),
    "q_b_proj": ("h*(d_n + d_r)", "r_q"),
    "kv_a_proj": ("d_c + d_r", "d"),
    "kv_b_proj": ("h*(d_n + d_v)", "d_c"),
    "o_proj": ("d", "h*d_v"),
}
WHOLE_QUERY = {"q_proj": ("h*(d_n + d_r)", "d")}  # MLA without a bottleneck for its queries


def matrices(spec: ModelSpec) -> list[Row]:
    """List the matrices of the attention and the feed-forward of a model's last block.

    They must come to what the formulas count, biases and vectors apart.
    """
    known = sizes_by_letter(spec)
    known["m_s"] = known["m_s"] or known["m_e"]
    rows: list[Row] = []
    for part, shapes in {"attention": _attention(spec), "ffn": _feed_forward(spec)}.items():
        for name, shape in shapes.items():
            sides = [int(evaluated(side, known)) for side in shape]
            rows.append(
                {
                    "part": part,
                    "name": name,
                    "letters": f"[{', '.join(shape)}]".replace("*", "·"),
                    "shape": str(sides),
                    "params": sides[0] * sides[1],
                    "qkv": name in ("q_proj", "k_proj", "v_proj") and "v_proj" in shapes,
                }
            )
    bare = vectors_left_out(spec)
    counted = sublayers.self_attention_params(bare) + (
        sublayers.moe_layer_params(bare, active=False)
        if has_experts(spec)
        else sublayers.dense_ffn_params(bare)
    )
    if sum(matrix["params"] for matrix in rows) != counted:
        raise AssertionError(f"the matrices of a block are not the {counted} that formulas count")
    return rows


def vectors_left_out(spec: ModelSpec) -> ModelSpec:
    """Return the same sizes without biases, sinks and shared experts' gates."""
    return without_biases(spec).substituted(mla_bias=False, shared_expert_gate=False)


def has_experts(spec: ModelSpec) -> bool:
    """Tell whether the last block is a mixture of experts."""
    return spec.is_moe_layer(spec.last_stack.n_layers - 1)


def _attention(spec: ModelSpec) -> dict[str, tuple[str, str]]:
    mixer = spec.last_stack.attention
    if not isinstance(mixer, LatentAttention):
        return {**GROUPED, **GATED_QUERY} if spec.output_gate else GROUPED
    if mixer.q_lora_rank is not None:
        return LATENT
    return {**WHOLE_QUERY, **{n: s for n, s in LATENT.items() if not n.startswith("q_")}}


def _feed_forward(spec: ModelSpec) -> dict[str, tuple[str, str]]:
    names = ("gate", "up") if spec.gated else ("up",)
    if not has_experts(spec):
        return {**{f"{n}_proj": ("m", "d") for n in names}, "down_proj": ("d", "m")}
    shapes = {"router": ("E", "d"), **{f"experts.{n}": ("E*m_e", "d") for n in names}}
    shapes["experts.down"] = ("E*d", "m_e")
    if spec.n_shared_experts:
        shapes |= {f"shared.{n}": ("E_s*m_s", "d") for n in names}
        shapes["shared.down"] = ("d", "E_s*m_s")
    return shapes


def shows_last_block(spec: ModelSpec) -> bool:
    """Tell whether a hybrid has a block of attention with the feed-forward of the last block."""
    mixers, ffns, n = spec.mixer_pattern, spec.ffn_pattern, spec.last_stack.n_layers
    return any(
        mixers[i % len(mixers)] == "A"
        and ffns[i % len(ffns)] != "N"
        and spec.is_moe_layer(i) == has_experts(spec)
        for i in range(n)
    )


def last_block(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters of the last block by role, without the cross-attention of a decoder."""
    return block_params(spec, moe=has_experts(spec))


def grown(spec: ModelSpec, factors: Sequence[int]) -> list[Row]:
    """Count the parameters that a block of this kind has when it is so many times as wide."""
    wide = "d_model d_ff d_ff_expert n_heads n_kv_heads q_lora_rank kv_lora_rank d_ff_shared"
    block = sum(last_block(spec).values())
    rows = []
    for factor in factors:
        own = {name: getattr(spec, name) for name in wide.split()}
        larger = spec.substituted(**{name: n * factor for name, n in own.items() if n})
        params = sum(block_params(larger, moe=has_experts(spec)).values())
        row = {"factor": factor, "d_model": larger.d_model, "params": params}
        rows.append({**row, "ratio": Fraction(params, block)})
    return rows


# Both ends of a model.


def learned_params(spec: ModelSpec) -> int:
    """Count the parameters of the tables of positions, one in each stack."""
    if spec.position != "learned" or spec.n_positions is None:
        return 0
    each = sublayers.learned_table_params(spec.n_positions, ends.table_width(spec))
    return int(each * len(spec.stacks))


# Roles.


def roles(spec: ModelSpec, *, active: bool = False) -> dict[str, Dim]:
    """Count all parameters by role, or those that a token uses."""
    return (model.active_params_by_role if active else model.params_by_role)(spec)


def costs(spec: ModelSpec) -> list[Row]:
    """List role by role the parameters that a token uses, and its FLOPs in a whole sequence."""
    n = fitted(spec, Request()).seq_len
    flops = model.matmul_flops_by_role(spec, batch_size=1, seq_len=n)
    rows = []
    for role, count in model.active_params_by_role(spec).items():
        each = Fraction(int(flops[role]), n)
        if count or each:
            row = {"role": role, "params": int(count), "flops": each, "rounded": round(each)}
            rows.append({**row, "ratio": f"{float(each / count):.2f}" if count else "–"})
    return rows


def closed_parts(spec: ModelSpec) -> list[Row]:
    """List each role's parameters and their closed form."""
    form = closed_form(spec, fitted(spec, Request()), "params")
    return [
        {"role": role, "params": int(form.values[role]), "form": in_letters(expr)}
        for role, expr in form.parts.items()
    ]


def beside_roles(spec: ModelSpec, base: ModelSpec) -> list[Row]:
    """List the parameters role by role: another model's, this one's, and the difference."""
    theirs, own = model.params_by_role(base), model.params_by_role(spec)
    rows = [(role, int(theirs[role]), int(own[role])) for role in own if own[role] or theirs[role]]
    return [{"role": r, "base": a, "own": b, "more": signed(b - a)} for r, a, b in rows]


# Attention.

GROUP = 4  # query heads for each pair of key and value, at least, where the model has no groups
# MLA of a model with heads of h_d, in the proportions of DeepSeek-V2
LATENT_HEADS, ROTATED = 4, Fraction(1, 2)


def attention_of_block(spec: ModelSpec) -> int:
    """Count the parameters of a block's attention, with its biases, norms and sinks."""
    return int(params_of(sublayers.attention_tape(spec).weights))


def variants(spec: ModelSpec) -> list[Row]:
    """Count parameters and cached values of a block's attention as variants: MHA, GQA, MQA, MLA.

    With the biases, norms and sinks that the model's attention has, where its kind is the model's.
    """
    d, h, width = spec.d_model, spec.n_heads, int(spec.head_dim or spec.v_head_dim)
    mla, own = spec.kv_lora_rank is not None, spec.n_kv_heads
    fewer = (n for n in range(2, h) if h % n == 0 and GROUP * n <= h)
    between = own if own and 1 < own < h else max(fewer, default=1)
    heads = {"MHA": h, **({"GQA": between} if between > 1 else {}), "MQA": 1}
    rows: list[Row] = []
    for name, n in heads.items():
        params = (
            sublayers.attention_params(d, h, n, width)
            if mla
            else attention_of_block(spec.substituted(n_kv_heads=n))
        )
        values = sublayers.kv_cache_values(n, width)
        rows.append({"name": name, "h_kv": n, "params": int(params), "values": int(values)})
    latent = spec.kv_lora_rank or LATENT_HEADS * width
    rotated = spec.qk_rope_head_dim or int(ROTATED * width)
    sizes = {"q_lora_rank": spec.q_lora_rank, "kv_lora_rank": latent, "v_head_dim": width}
    sizes |= {
        "qk_nope_head_dim": spec.qk_nope_head_dim or width,
        "qk_rope_head_dim": rotated,
    }
    params = attention_of_block(spec) if mla else sublayers.mla_params(d, h, **sizes)
    values = sublayers.mla_kv_cache_values(latent, rotated)
    row = {"name": "MLA", "h_kv": "–", "params": int(params), "values": int(values)}
    return [*rows, {**row, "latent": latent, "rotated": rotated}]


def attention_flops(spec: ModelSpec, n: int, pairs: int) -> int:
    """Count the FLOPs of one block's attention over n tokens and so many pairs."""
    by_role = sublayers.self_attention_flops(
        spec, batch_size=1, n_queries=n, n_keys=n, n_pairs=pairs, absorbed=False
    )
    return int(sum(by_role.values()))


def symbolic(name: str, *names: str) -> str:
    """Write a formula of sublayers in letters."""
    import sympy

    return in_letters(getattr(sublayers, name)(*map(sympy.Symbol, names)))


# Mixtures of experts.


def dense_twin(spec: ModelSpec) -> int:
    """Count the model with one dense feed-forward, as wide as an expert, for every mixture."""
    gone = (
        "n_experts top_k d_ff_expert n_dense_layers moe_every moe_offset n_shared_experts "
        "d_ff_shared shared_expert_gate router router_bias selection_bias n_groups top_groups "
        "group_score routed_scale mixer_jitter router_scales_input scaled_router "
        "expert_bias"
    )
    flat = spec.to_dict() | {name: FIELDS[name].absent for name in gone.split()}
    flat |= {"ffn_pattern": spec.ffn_pattern.replace("E", "F"), "d_ff": spec.d_ff_expert}
    return int(model.params(type(spec).from_dict(flat)))


# Positions.

LEFT_BEHIND = """
    rotary_dim rope_theta rope_theta_windowed rope_style nope_every rope_scaling
    rope_scaling_windowed query_growth alibi_scale sinusoid_style n_positions position_offset
    n_query_positions
"""


def rotates(spec: ModelSpec) -> bool:
    """Tell whether the model turns queries and keys."""
    return isinstance(spec.positions, Rope)


def rotary_width(spec: ModelSpec) -> int:
    """Return the width that is rotated, or that would be in a model without RoPE."""
    return int(spec.qk_rope_head_dim or spec.rotary_dim or spec.head_dim)


def theta_of(spec: ModelSpec, base: int) -> float:
    """Return the base of the model's angles, or the paper's for a model without RoPE."""
    return float(spec.positions.theta) if isinstance(spec.positions, Rope) else float(base)


def other_position(spec: ModelSpec) -> dict[str, object]:
    """Return the fields to change for another kind of position; none where only its own fits."""
    tied = spec.position in ("t5", "transformer_xl") or spec.qk_norm == "l2"
    if spec.kv_lora_rank is not None or tied:
        return {}
    new: dict[str, object] = {"position": "learned", "n_positions": SEQ_LEN}
    if spec.position == "learned":
        new = {"position": "rope"}
    # what belonged to the old kind goes back to what a model without it has
    for name in LEFT_BEHIND.split():
        if name not in new and getattr(spec, name) != FIELDS[name].absent:
            new[name] = FIELDS[name].absent
    return _allowed(spec, new)


def other_placement(spec: ModelSpec) -> dict[str, object]:
    """Return the fields to change for norms that stand elsewhere; none where they cannot."""
    placement = "pre" if spec.norm_placement == "sandwich" else "sandwich"
    return _allowed(spec, {"norm_placement": placement})


def _allowed(spec: ModelSpec, changes: dict[str, object]) -> dict[str, object]:
    """Return `changes`, without prediction modules; nothing if a rule forbids what they make."""
    if spec.n_mtp_layers is not None:
        gone = {"n_mtp_layers": None} | ({"mtp_dense": False} if spec.mtp_dense else {})
        changes = {**changes, **gone}
    try:
        spec.replace(**changes)
    except SpecError:
        return {}
    return changes


# A config and its parts, a paper and its choices.

# every part of a Qwen3 from the outside in, in letters
QWEN3 = {
    "ForCausalLM": "V*d + Model",
    "Model": "V*d + N*Layer + d",
    "Layer": "2*d + Attention + MLP",
    "Attention": "2*d*h*h_d + 2*d*h_kv*h_d + 2*h_d",
    "MLP": "3*d*m",
}
OF_EXPERTS = {"Layer": "2*d + Attention + MoE", "MoE": "E*d + 3*E*d*m_e"}


def qwen3_parts(spec: ModelSpec, *, active: bool = False) -> list[Row]:
    """List the parts of a Qwen3, each in letters and numbers, the whole first."""
    forms = {**QWEN3, **({"ForCausalLM": "Model"} if spec.tie_embeddings else {})}
    if spec.is_moe:
        del forms["MLP"]
        forms |= OF_EXPERTS | ({"MoE": "E*d + 3*k*d*m_e"} if active else {})
    known = sizes_by_letter(spec)
    for name, text in reversed(forms.items()):
        known[name] = int(evaluated(text, known))
    counted = model.active_params(spec) if active else model.params(spec)
    if known["ForCausalLM"] != counted:
        raise AssertionError(f"the parts give {known['ForCausalLM']}, the model has {counted}")
    return [
        {"name": name, "form": in_letters(text), "params": known[name]}
        for name, text in forms.items()
    ]


def config_keys(spec: ModelSpec, keys: Sequence[str]) -> list[Row]:
    """List those keys of a config that the model has a size for."""
    names = ((key, legend.ours(key)) for key in keys)
    rows = [{"key": key, **row} for key, ours in names for row in sizes(spec, ours)]
    return rows


def names_elsewhere(spec: ModelSpec, names: Sequence[str], room: int) -> list[Row]:
    """List sizes of the model with some of the names that papers and configs give them."""
    rows = []
    for row in sizes(spec, names):
        others = ", ".join([word for word in row["elsewhere"] if word != row["name"]][:2])
        if len(others) > room:
            others = others.partition(",")[0]
        rows.append({**row, "others": others or row["name"]})
    return rows


def choice(spec: ModelSpec, name: str) -> str:
    """Say in a word what a model chose."""
    if name != "attention":
        return str(getattr(spec, name)).lower()
    if spec.kv_lora_rank is not None:
        return "MLA"
    return {1: "MQA", spec.n_heads: "MHA"}.get(spec.n_kv_heads, "GQA")


def beside_published(spec: ModelSpec, entry: catalog.CatalogEntry | None) -> Row:
    """Lay the count beside what was published: status, number, difference and what is known."""
    if entry is None:
        return {"status": "", "published": "", "difference": "", "explanation": ""}
    result = catalog.compare_published(entry, int(model.params(spec)))
    printed = entry.published.params
    return {
        "status": "" if result is None else result.status,
        "published": str(entry.published.label) if printed is None else exact(printed),
        "difference": (
            "" if result is None or result.difference is None else signed(result.difference)
        ),
        "explanation": getattr(result, "explanation", ""),
    }


# The steps of a forward.

WORDS = re.compile(r"[a-z]{3,},? [a-z]{2,}")  # an equation with a sentence in it
# how a step's equation begins -> the same without words, which need no translation
SHORT = table_of_package("teaching/data/steps.tsv")


def short(equation: str | None) -> str:
    """Shorten a step's equation to one line without words, or to nothing for mere bookkeeping.

    >>> short("y = x / √(mean(x²) + ε) · w"), short("rows sorted by expert, k of them a token")
    ('y = RMSNorm(x)', '')
    """
    for start, (text,) in SHORT.items():
        if equation and equation.startswith(start):
            return text
    return "" if equation is None or WORDS.search(equation) else equation


def flipped_ffn(spec: ModelSpec) -> dict[str, object]:
    """Return the fields of the other kind of feed-forward, at the width of as many parameters."""
    field = "d_ff" if spec.d_ff else "d_ff_expert"
    width = getattr(spec, field)
    width = width * 3 // 2 if spec.gated else width * 2 // 3
    changes: dict[str, object] = {field: width, "gated": not spec.gated}
    if spec.activation == "clamped_swiglu":  # there only is a gated one
        changes["activation"] = "silu"
    return changes
