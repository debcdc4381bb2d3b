"""The matrix products that a FLOP count is the sum of, each in letters with a name for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacount.check.parts.params import PAIRS, Letters, Part, matrices
from metacount.formulas import attention, ends, position

if TYPE_CHECKING:
    from collections.abc import Iterator

CAUSAL = "attention is counted over the causal pairs only"


def flop_parts(letters: Letters, quantity: str) -> list[Part]:
    """Every part of `matmul_flops`, `causal_matmul_flops` or `decode_matmul_flops`."""
    o, decode = letters.of, quantity == "decode_matmul_flops"
    n = letters.batch if decode else letters.batch * letters.seq
    source = 0 if decode else letters.batch * letters.source
    found = []
    for part, _, whose in matrices(letters, active=True):
        tokens = 2 * (n if whose == "self" else source)  # 2 FLOPs per multiply-add
        variants = tuple((words, tokens * expr) for words, expr in part.variants)
        found.append(Part(name=part.name, expr=tokens * part.expr, count=part.count,
                          group=part.group, variants=variants))  # fmt: skip
    for name, n_layers, pairs, other in _pairs(letters, quantity):
        found += _pair_products(letters, name, n_layers, pairs, other, decode=decode)
    e = ends.table_width(o)
    square = 2 * n * o.d_model * e
    if o.has_head:
        found.append(Part(name="output head", expr=2 * n * ends.token_table_params(o)))
    if o.d_embedding is not None:
        found.append(Part(name="projection of the embedding", expr=square))
    if o.head_transform:
        found.append(Part(name="transform before the head", expr=square))
    if o.pooler and not decode:
        found.append(Part(name="pooler", expr=2 * letters.batch * o.d_model * o.d_model))
    return [part for part in found if part.expr != 0]


def _pairs(letters: Letters, quantity: str) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Each kind of attention: a word, its layers, its pairs of one sequence, other countings."""
    o, s = letters.of, letters.seq
    windowed, full = letters.windowed_and_full
    half = attention.causal_pairs(s)
    for word, n_layers, window in (("windowed ", windowed, o.window), ("", full, None)):
        if n_layers == 0:
            continue
        if quantity == "decode_matmul_flops":
            pairs = attention.attended_positions(letters.kv_len, window)
            other = {} if window is None else {"the window is ignored": letters.kv_len}
        elif quantity == "matmul_flops":
            pairs = s * s
            other = {
                CAUSAL: half,
                "attention is halved for the mask": s * s / 2,
            }
        else:
            pairs = attention.self_attention_pairs(
                o.kind, s, window=window, chunked=o.window_kind == "chunked",
                prefix_len=letters.prefix,
            )  # fmt: skip
            other = {"attention is counted over all pairs, masked ones too": s * s}
            if pairs != half:
                other[
                    "attention is counted over all causal pairs, without its window or prefix"
                ] = half
            if o.kind != "encoder":
                other["attention is halved for the mask; the diagonal makes it a little more"] = (
                    s * s / 2
                )
        yield word, n_layers, pairs, other
    if o.has_encoder:
        if quantity != "decode_matmul_flops":
            yield "encoder: ", o.n_encoder_layers, letters.source**2, {}
        n = 1 if quantity == "decode_matmul_flops" else s
        yield "cross-attention ", o.n_layers, n * letters.source, {}


def _pair_products(
    letters: Letters,
    word: str,
    n_layers: Any,
    pairs: Any,
    variants: dict[str, Any],
    *,
    decode: bool,
) -> Iterator[Part]:
    o = letters.of
    if o.attention == "mla":
        score = o.kv_lora_rank if decode else o.qk_nope_head_dim
        value = o.kv_lora_rank if decode else o.v_head_dim
        widths = {
            "scores": score,
            "scores of the rotated keys": o.qk_rope_head_dim,
            "sums of values": value,
        }
    else:
        widths = {"scores": o.head_dim, "sums of values": o.head_dim}
    if o.position == "transformer_xl" and not word.startswith("cross"):
        n_keys = letters.kv_len if decode else letters.seq
        projection = position.transformer_xl_projection_flops(
            n_keys, o.d_model, o.n_heads, o.head_dim
        )
        yield Part(name="projection of the relative positions", expr=n_layers * projection)
        widths["scores of the relative positions"] = o.head_dim
    for name, width in widths.items():
        # 2 FLOPs per multiply-add
        scale = 2 * letters.batch * n_layers * o.n_heads * width
        other = tuple((words, scale * pairs) for words, pairs in variants.items())
        yield Part(name=f"{word}attention {name}", expr=scale * pairs, group=PAIRS, variants=other)
