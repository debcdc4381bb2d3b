"""The parts that a count is the sum of, each in letters and with a name for people.

They are the formulas' own terms; what is added here are names, and the other ways in which people
count a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from metacount.check.given.vocabulary import LETTERS
from metacount.check.parts.names import (
    AROUND,
    COUNTED,
    ENDS,
    FEED_FORWARD,
    NORMS_OF_BLOCKS,
    ORDER,
    Called,
    called,
)
from metacount.formulas import pieces
from metacount.formulas.ends import OF_MODEL
from metacount.formulas.pieces import counted_weights, nominal_pieces
from metacount.frozen import frozen
from metacount.spec.field import altered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.formulas.tape import Weight
    from metacount.spec import ModelSpec, Workload

    Variants = tuple[tuple[str, sympy.Expr], ...]


@frozen
class Part:
    """One part: its name, its share of the count, and other ways in which it is often counted.

    There are `count` of it, each `expr`. Parts of one `group` are often left out together.
    """

    name: str
    expr: sympy.Expr
    count: int = 1
    group: str = ""
    variants: tuple[tuple[str, sympy.Expr], ...] = ()

    @property
    def total(self) -> sympy.Expr:
        """All of it."""
        return self.count * self.expr


EVERY = "MoE is counted in every layer, the dense ones too"
DENSE_EVERYWHERE = "the dense FFN is counted in every layer"
ROUTER_OF_ACTIVE = "the router is counted for the active experts only"


class Letters:
    """A spec with letters for its sizes, and the layer counts that several parts need."""

    def __init__(self, spec: ModelSpec, workload: Workload) -> None:
        self.spec = spec
        sizes = {
            name: letter
            for name, letter in LETTERS.items()
            if getattr(spec, name, None) and (name != "moe_every" or spec.moe_every > 1)
        }
        self.of = spec.substituted(**sizes)
        self.batch, self.seq = LETTERS["batch_size"], LETTERS["seq_len"]
        self.kv_len, self.source = LETTERS["kv_len"], LETTERS["source_len"]
        self.prefix = LETTERS["prefix_len"] if workload.prefix_len else 0
        self.pieces = nominal_pieces(self.of)

    @property
    def windowed_and_full(self) -> tuple[sympy.Expr, sympy.Expr]:
        """Layers that see a window only, layers that see everything."""
        windowed, full = pieces.attention_layers(self.of)
        return sympy.sympify(windowed), sympy.sympify(full)

    def weights(
        self, *, multiplied: bool = False
    ) -> Iterator[tuple[Called, Weight, sympy.Expr, sympy.Expr]]:
        """Yield every tensor with what people call it, how many blocks have it, and of how many.

        `multiplied`: how many blocks multiply with it, where stored blocks are shared.
        """
        known: set[str] = set()
        for each in self.of.stacks:
            of_encoder = self.of.has_encoder and each is not self.of.decoder
            word = ("encoder: " if of_encoder else "decoder: ") if self.of.has_encoder else ""
            pieces = [piece for piece in self.pieces if piece.of_encoder == of_encoder]
            for n, weight in counted_weights(self.of, pieces):
                of_model = weight.name.startswith(OF_MODEL)
                if of_model and weight.name in known:  # the encoder has it too
                    continue
                known.add(weight.name)
                if weight.uses is not None:
                    n = weight.uses if multiplied else weight.times
                    weight = altered(weight, times=1)
                yield called(weight, "" if of_model else word), weight, n, each.n_layers


def matrices(letters: Letters, *, active: bool) -> Iterator[tuple[Part, str, str]]:
    """Yield every matrix that tokens are multiplied with:
    the part, what multiplies it, its stack.
    """
    for name, weight, n, n_layers in letters.weights(multiplied=True):
        if not weight.rows or name.group in AROUND:
            continue
        for part in _shares(letters, name, weight, n, n_layers, active=active):
            yield part, weight.rows, name.word


def parameter_parts(letters: Letters, *, active: bool) -> list[Part]:
    """List every part of `params`, or of `active_params`."""
    found: list[Part] = []
    for name, weight, n, n_layers in letters.weights():
        found += _shares(letters, name, weight, n, n_layers, active=active)
    return merged(sorted(found, key=lambda part: ORDER.index(kind_of(part))))


def kind_of(part: Part) -> str:
    """Return the group of a part where `ORDER` has it, an empty string otherwise."""
    return part.group if part.group in ORDER else ""


def merged(parts: list[Part]) -> list[Part]:
    """Merge the parts of one name into one: so many of it, or added up."""
    found: dict[str, Part] = {}
    for part in parts:
        if part.expr == 0:
            continue
        other = found.get(part.name)
        if other is None:
            found[part.name] = part
            continue
        # of unread rows for zero experts, the first matrices are more than the second
        alike = any(part.name.endswith(name) for name in COUNTED) and other.expr == part.expr
        found[part.name] = Part(
            name=part.name,
            expr=other.expr if alike else other.total + part.total,
            count=other.count + part.count if alike else 1,
            group=part.group,
            variants=other.variants,
        )
    return list(found.values())


def _shares(
    letters: Letters,
    name: Called,
    weight: Weight,
    n: sympy.Expr,
    n_layers: sympy.Expr,
    *,
    active: bool,
) -> Iterator[Part]:
    """Yield a tensor as parts: whole, or split by what its values are for."""
    each = weight.active if active else weight.params
    count = 1
    if name.text.endswith("routed experts") and name.fused:
        each, count = sympy.sympify(each) / 2, 2  # gate and up in one tensor
    if name.text.endswith(NORMS_OF_BLOCKS):
        per_block = sympy.simplify(sympy.sympify(n) / n_layers)
        if per_block.is_Integer:
            n, count = n_layers, int(per_block)
    group = "" if name.group == ENDS else name.group
    if not weight.split:
        yield Part(
            name=name.word + name.text,
            expr=sympy.sympify(n * each),
            count=count,
            group=group,
            variants=_variants(letters, name, weight, n, n_layers, active),
        )
    for what, size in weight.split:
        yield Part(
            name=f"{name.word}{name.text} ({what})", expr=sympy.sympify(n * size), group=group
        )


def _variants(
    letters: Letters,
    name: Called,
    weight: Weight,
    n: sympy.Expr,
    n_layers: sympy.Expr,
    active: bool,
) -> Variants:
    """List other ways in which a part is often counted."""
    o, text = letters.of, name.text
    if text == "QK-norm":
        return {
            "head": (("QK-norm counted as d_model", 2 * n * o.d_model),),
            "full": (("QK-norm counted for one head, not for all", 2 * n * o.head_dim),),
        }.get(o.qk_norm, ())
    if name.group != FEED_FORWARD or not o.is_moe:
        return ()
    if text.startswith("FFN "):
        return ((DENSE_EVERYWHERE, n_layers * weight.size),)
    some_dense = sympy.expand(n_layers - n) != 0

    def every(size: sympy.Expr) -> Variants:
        return ((EVERY, n_layers * size),) if some_dense else ()

    if text == "router":
        return ((ROUTER_OF_ACTIVE, n * o.d_model * o.top_k), *every(weight.size))
    if text == "matrices of the shared experts":
        return every(weight.size)
    if text != "matrices of the routed experts":
        return ()
    one = weight.size / (2 if name.fused else 1)
    words, other, used = (
        ("all experts are counted, not the active ones only", weight.times, weight.used)
        if active
        else ("the experts are counted for the active ones only", weight.used, weight.times)
    )
    return ((words, n * one * other), *every(one * used))
