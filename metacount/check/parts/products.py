"""The matrix products that a FLOP count is the sum of, each in letters with a name for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.check.parts.names import PAIRS as BETWEEN_POSITIONS
from metacount.check.parts.params import Letters, Part, matrices, merged
from metacount.formulas import masks, model
from metacount.formulas.tape import (
    CROSS_PAIRS,
    OF_PAIRS,
    PAIRS,
    SOURCE,
    SOURCE_PAIRS,
    WINDOWED_PAIRS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy

    from metacount.formulas.tape import Product, Weight

CAUSAL = "attention is counted over the causal pairs only"
WORDS = {
    PAIRS: "",
    WINDOWED_PAIRS: "windowed ",
    CROSS_PAIRS: "cross-attention ",
    SOURCE_PAIRS: "encoder: ",
}


def flop_parts(letters: Letters, quantity: str) -> list[Part]:
    """List every part of `matmul_flops`, `causal_matmul_flops` or `decode_matmul_flops`."""
    o, decode = letters.of, quantity == "decode_matmul_flops"
    run = _run(letters, quantity)
    found = []
    for part, rows, word in matrices(letters, active=True):
        tokens = 2 * run[SOURCE if word == "encoder: " else rows]
        variants = tuple((words, tokens * expr) for words, expr in part.variants)
        found.append(
            Part(
                name=part.name,
                expr=tokens * part.expr,
                count=part.count,
                group=part.group,
                variants=variants,
            )
        )
    for product in model.products(o, decode=decode):
        if product.per in OF_PAIRS:
            found.append(_between(letters, quantity, product, run))
        elif product.role != "head":
            found.append(Part(name=product.name, expr=product.flops(run)))
    terms: tuple[Weight | Product, ...] = (*model.weights(o), *model.products(o, decode=decode))
    for term in terms:
        name = _ENDS.get(term.name)
        if name is not None:
            found.append(Part(name=name, expr=term.flops(run)))
    return merged(found)


_ENDS = {
    "lm_head.weight": "output head",
    "tied head": "output head",
    "embed_proj.weight": "projection of the embedding",
    "head_transform.dense.weight": "transform before the head",
    "pooler.dense.weight": "pooler",
}


def _run(letters: Letters, quantity: str) -> dict[str, sympy.Expr]:
    """Express the numbers of a run in letters."""
    o = letters.of
    if quantity == "decode_matmul_flops":
        return model.decode_run(
            o, batch_size=letters.batch, kv_len=letters.kv_len, source_len=letters.source
        )
    pairs = None
    if quantity == "causal_matmul_flops":
        pairs = model.kept_pairs(o, letters.seq, letters.prefix)
    return model.forward_run(
        o, batch_size=letters.batch, seq_len=letters.seq, source_len=letters.source, pairs=pairs
    )


def _between(letters: Letters, quantity: str, product: Product, run: dict[str, sympy.Expr]) -> Part:
    """Make the part of a product between positions,
    with the same over other pairs as its variants.
    """
    each = 2 * product.times * product.width  # 2 FLOPs per multiply-add
    other = {
        words: letters.batch * each * pairs
        for words, pairs in _other_pairs(letters, quantity, product.per, run)
    }
    named = product.name if product.name.startswith("projection") else f"attention {product.name}"
    return Part(
        name=WORDS[product.per] + named,
        expr=each * run[product.per],
        group=BETWEEN_POSITIONS,
        variants=tuple(other.items()),
    )


def _other_pairs(
    letters: Letters, quantity: str, per: str, run: dict[str, sympy.Expr]
) -> Iterator[tuple[str, sympy.Expr]]:
    """Yield other ways to count the pairs of one sequence."""
    o, s = letters.of, letters.seq
    if per in (CROSS_PAIRS, SOURCE_PAIRS):
        return
    half = masks.causal_pairs(s)
    if quantity == "decode_matmul_flops":
        if per == WINDOWED_PAIRS:
            yield "the window is ignored", letters.kv_len
    elif quantity == "matmul_flops":
        yield CAUSAL, half
        yield "attention is halved for the mask", s * s / 2
    else:
        yield "attention is counted over all pairs, masked ones too", s * s
        if run[per] != letters.batch * half:
            yield "attention is counted over all causal pairs, without its window or prefix", half
        if o.kind != "encoder":
            yield (
                "attention is halved for the mask; the diagonal makes it a little more",
                s * s / 2,
            )
