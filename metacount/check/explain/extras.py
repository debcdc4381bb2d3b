"""What a model does not have, or a quantity does not count, and people count all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from metacount.check.condition import named
from metacount.check.given.vocabulary import BYTES_LETTER
from metacount.check.parts.names import BIASES, NORMS
from metacount.check.parts.params import Letters, Part, parameter_parts
from metacount.formulas import pieces, sublayers

if TYPE_CHECKING:
    from collections.abc import Iterator

TIED = "embedding counted twice; the output head shares it"
LOOKED_UP = "embedding counted as a matrix product; it is looked up"
TOO_MANY, TOO_FEW = (f"one expert too {word} in each MoE layer" for word in ("many", "few"))
LIKELY = (TIED, LOOKED_UP, TOO_MANY, TOO_FEW)


def extras(letters: Letters, quantity: str, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    """Yield what is often counted in a quantity that does not hold it: words, and what it adds."""
    if quantity in ("params", "active_params"):
        yield from _extra_parameters(letters, parts)
    elif quantity == "kv_cache_bytes":
        yield from _extra_cache(letters, parts)
    else:
        yield from _extra_products(letters, quantity)


def _extra_parameters(letters: Letters, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    none = "counted; the model has none"
    for n in (stack.n_layers for stack in o.stacks):
        n_moe = pieces.moe_layers(o, n)
        if o.attention == "gqa":
            q, kv, d = n * o.n_heads * o.head_dim, n * o.n_kv_heads * o.head_dim, n * o.d_model
            if not (o.q_bias or o.k_bias or o.v_bias):
                yield f"biases on q, k and v {none}", q + 2 * kv
                if not o.o_bias:
                    yield f"biases on q, k, v and o {none}", q + 2 * kv + d
            for name, flag, size in (
                ("q", o.q_bias, q),
                ("k", o.k_bias, kv),
                ("v", o.v_bias, kv),
                ("o", o.o_bias, d),
            ):
                if not flag:
                    yield f"a bias on {name} {none}", size
            if o.qk_norm == "none":
                yield f"a QK-norm {none}", 2 * n * o.head_dim
        if o.d_ff is not None:
            dense = n - n_moe
            if not o.ffn_bias:
                inner = 2 if o.gated else 1
                yield f"biases of the FFN {none}", dense * (inner * o.d_ff + o.d_model)
            if not o.gated:
                yield (
                    "a third matrix of the FFN counted; it is not gated",
                    dense * o.d_model * o.d_ff,
                )
        if o.is_moe:
            if letters.spec.selection_bias:
                yield (
                    "the selection bias counted; it is a buffer, no parameter",
                    n_moe * (o.n_experts + o.n_zero_experts),
                )
            one = n_moe * (3 if o.gated else 2) * o.d_model * o.d_ff_expert
            yield TOO_MANY, one
            yield TOO_FEW, -one
            yield from _of_zero_experts(letters, n_moe)
            if not o.router_bias:
                yield f"a bias of the router {none}", n_moe * (o.n_experts + o.n_zero_experts)
    norms = [part.total for part in parts if part.group == NORMS and part.name != "QK-norm"]
    if norms and o.norm_affine and not o.norm_bias:
        yield "norms counted with a bias, or twice; these have no bias", sympy.Add(*norms)
    if not o.final_norm:
        yield f"a final norm {none}", o.d_model
    if not o.embedding_norm:
        yield f"a norm after the embedding {none}", o.d_model
    if o.has_head and o.tie_embeddings:
        yield TIED, sublayers.token_table_params(o)
    if o.vocab_size is not None and not o.head_bias:
        yield f"a bias of the head {none}", o.vocab_size


def _of_zero_experts(letters: Letters, n_moe: sympy.Expr) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    if not o.n_zero_experts:
        return
    rows = n_moe * o.n_zero_experts * o.d_model
    matrices = 3 if o.gated else 2
    yield "zero experts counted like others; they have no matrices", matrices * rows * o.d_ff_expert
    if not o.zero_expert_rows:
        yield (
            "rows for zero experts counted, which transformers' class stores and no token reads",
            (matrices - 1) * rows * o.d_ff_expert,
        )
    yield "the router's rows for zero experts left out", -rows


def _extra_products(letters: Letters, quantity: str) -> Iterator[tuple[str, sympy.Expr]]:
    tokens = letters.batch * (1 if quantity == "decode_matmul_flops" else letters.seq)
    parameters = parameter_parts(letters, active=True)
    for group, words in ((NORMS, "norms"), (BIASES, "biases")):
        total = sympy.Add(*(part.total for part in parameters if part.group == group))
        yield f"{words} counted as if they were matrix products", 2 * tokens * total
    for part in parameters:
        if part.name in ("embedding", "position table", "token-type table"):
            yield (
                f"{part.name} counted as a matrix product; it is looked up",
                2 * tokens * part.total,
            )


def _extra_cache(letters: Letters, parts: list[Part]) -> Iterator[tuple[str, sympy.Expr]]:
    o = letters.of
    if o.attention != "mla":
        return
    whole = sympy.Add(*(part.total for part in parts))
    scale = letters.batch * letters.seq * BYTES_LETTER * o.n_layers * o.n_heads
    words = "keys and values of all heads counted, not the latent"
    key, value = o.qk_nope_head_dim + o.qk_rope_head_dim, o.v_head_dim
    for width in (key + value, o.qk_nope_head_dim + value, 2 * value, 2 * o.qk_nope_head_dim):
        yield f"{words} (width {named(width)})", scale * width - whole
