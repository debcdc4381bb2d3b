"""Formulas for a part of a model: compared for all sizes, then with the models of the catalog.

The difference of both, as a sum of products of sizes, decides. Sizes are positive: a difference
whose terms all have one sign is zero for no sizes, the formula is wrong. With both signs it holds
under a condition, if a model of the catalog or small sizes that were tried make it zero. Nothing
left: equal for all sizes.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import islice, product
from typing import TYPE_CHECKING

from metacount import catalog
from metacount.algebra.exact import value_at
from metacount.claims import parts
from metacount.claims.facts import computed, evaluated
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import number
from metacount.claims.parts import computation, letters, spec_of, value
from metacount.claims.text import Said, Words, listed, say
from metacount.frozen import frozen
from metacount.spec import legend
from metacount.spec.rules import beyond_branches
from metacount.units import exact, relative

if TYPE_CHECKING:
    from collections.abc import Callable

    import sympy

    from metacount.catalog import CatalogEntry
    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

SMALL_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
TRIED = 5000


def dense(spec: ModelSpec) -> bool:
    return spec.d_ff is not None and not spec.is_moe


def is_silu(spec: ModelSpec) -> bool:
    # with another β it is Swish, the gate of Phi-3-small
    return bool(spec.activation == "silu" and spec.swish_beta == 1.0)


def alike(spec: ModelSpec) -> bool:
    """Tell whether every block is attention and a feed-forward: no hybrid."""
    return spec.last_stack.uniform and not beyond_branches(spec)


@lru_cache
def family(id: str) -> str:
    return catalog.entry(id).family


# which models of the catalog a statement is about
AMONG: dict[str, Callable[[CatalogEntry, ModelSpec], bool]] = {
    "attention": lambda _, s: s.attention == "gqa",
    "mla": lambda _, s: s.attention == "mla",
    "gelu": lambda _, s: dense(s) and not s.gated and s.activation.startswith("gelu"),
    "swiglu": lambda _, s: dense(s) and s.gated and is_silu(s),
    "swiglu_moe": lambda _, s: s.is_moe and s.gated and is_silu(s),
    "gelu_blocks": lambda e, s: AMONG["gelu"](e, s) and alike(s) and not s.has_encoder,
    "swiglu_blocks": lambda e, s: AMONG["swiglu"](e, s) and alike(s) and s.attention == "gqa",
    "original": lambda e, _: e.family == family("transformer-base"),
    "qwen2": lambda e, _: e.family == family("qwen2-7b"),
    "qwen3_dense": lambda e, s: dense(s) and e.family == family("qwen3-32b"),
}


@frozen
class Beside:
    """A part of a model as it is, by the exact formula of the claim's model, and as stated."""

    count: int
    exact: Fraction
    stated: Fraction

    @property
    def is_counted_so(self) -> bool:
        """Whether the exact formula counts this model too: it has nothing besides."""
        return self.exact == self.count

    @property
    def off(self) -> Fraction:
        """The stated formula less the exact one, of the exact one."""
        return (self.stated - self.exact) / self.exact


def part_formula(claim: Claim) -> Finding:
    """Judge a formula for a part. Options:
    `formula`, `part`, `counts` (the part in words), `among`.

    `where` are equations between sizes that are tried as a reason; `only_where`, a condition on a
    model's fields that is tried as what decides in the catalog.
    """
    from metacount.algebra.writing import in_letters

    options = claim.options
    spec = spec_of(claim)
    named = legend.sympy_symbols(term.name for term in legend.MODEL_TERMS)
    said = evaluated(options["formula"], named)
    truth = letters(spec, options["part"])
    difference, verdict = compared(truth, said)
    in_catalog = _in_catalog(claim, truth)
    equal = [name for name, one in in_catalog.items() if one.stated == one.count]
    if verdict == RIGHT and len(equal) < len(in_catalog):
        verdict = CONDITIONAL
    if verdict == CONDITIONAL and not equal and not _zero_somewhere(difference):
        verdict = WRONG
    sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    here, stated = value(spec, options["part"]), Fraction(evaluated(options["formula"], sizes))
    exact_text = in_letters(truth)
    lines: list[Words] = [
        say("exact, {part}: {formula}", part=say(options["counts"]), formula=exact_text),
        say("stated: {formula}", formula=in_letters(said)),
    ]
    condition: Words = say("the model is one of {models}", models=listed(equal))
    if difference != 0:
        lines.append(say("exact - stated = {formula}", formula=in_letters(difference)))
    if verdict == CONDITIONAL and difference != 0:
        condition = zero(difference)
        lines.append(say("equal exactly where {equation}", equation=condition))
        condition = _as_where(claim, difference, condition)
    elif verdict == CONDITIONAL:
        condition = _only_where(claim, equal, in_catalog) or condition
    lines += [
        say(
            "{model}: {steps} = {exact}, stated {stated}",
            model=spec_name(claim),
            steps=computation(spec, options["part"]).rpartition(" = ")[0],
            exact=exact(here),
            stated=number(stated),
        ),
        *_told(in_catalog, equal),
    ]
    says: list[Words] = []
    if verdict == RIGHT:
        says.append(say("Equal for all sizes."))
    elif verdict == CONDITIONAL:
        says.append(say("Exact is {formula}.", formula=exact_text))
    else:
        says.append(
            say(
                "Exact is {formula}: the stated formula gives {apart}.",
                formula=exact_text,
                apart=_apart(difference),
            )
        )
    if len(in_catalog) > 1:
        how_many = (
            "In the catalog it holds for none of {all} models{farthest}."
            if not equal
            else "In the catalog it holds for all of {all} models{farthest}."
            if len(equal) == len(in_catalog)
            else "In the catalog it holds for {n} of {all} models{farthest}."
        )
        says.append(
            say(how_many, n=len(equal), all=len(in_catalog), farthest=_farthest(in_catalog))
        )
    return Finding(
        verdict=verdict,
        says=listed(says, " "),
        correct=exact_text,
        computation=tuple(lines),
        values={"here": here, "stated": number(stated)},
        witness=say("formula, for all sizes; catalog"),
        condition=condition,
    )


def _as_where(claim: Claim, difference: Dim, condition: Words) -> Words:
    """Add the claim's equations to the condition, where they make the difference zero."""
    import sympy

    from metacount.algebra.writing import in_letters

    named = legend.sympy_symbols(term.name for term in legend.MODEL_TERMS)
    pairs = [(evaluated(a, named), evaluated(b, named)) for a, b in claim.options.get("where", [])]
    left = difference
    for one, other in reversed(pairs):
        left = left.subs(one, other)
    if not pairs or sympy.expand(left) != 0:
        return condition
    equations = listed(f"{in_letters(a)} = {in_letters(b)}" for a, b in pairs)
    return say("{condition}, as where {equations}", condition=condition, equations=equations)


def _only_where(claim: Claim, equal: list[str], in_catalog: dict[str, Beside]) -> Words:
    """Return the claim's condition on fields if, of `in_catalog`,
    it holds for just the models in `equal`.
    """
    tried = claim.options.get("only_where")
    if tried is None:
        return ""
    true = [id for id in in_catalog if computed(tried["is"], catalog.entry(id).spec().to_dict())]
    return say(tried["say"]) if true == equal else ""


def spec_name(claim: Claim) -> str:
    """Return the name of the claim's model."""
    return parts.model_of(claim).name


def compared(truth: Dim, said: Dim) -> tuple[Dim, str]:
    """Compute the difference of two closed forms,
    and the verdict that the signs of its terms give.
    """
    import sympy

    from metacount.textbook.closed_form import readable

    expanded = sympy.expand(truth - said)
    if expanded == 0:
        return expanded, RIGHT
    signs = {term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(expanded)}
    return readable(expanded), CONDITIONAL if len(signs) == 2 else WRONG


def _apart(difference: Dim) -> Said:
    """Say how far the stated formula is from the exact one;
    at any sizes, if the difference has one sign.
    """
    import sympy

    from metacount.algebra.writing import in_letters

    if _mixed(difference):
        return say(
            "{formula} more, which no sizes that were tried make zero",
            formula=in_letters(-difference),
        )
    first = sympy.Add.make_args(sympy.expand(difference))[0]
    few = first.as_coeff_Mul()[0] > 0
    told = in_letters(difference if few else -difference)
    apart = say("{number} too few" if few else "{number} too many", number=told)
    return say("{apart}, whatever the sizes", apart=apart)


def _mixed(difference: Dim) -> list[Dim]:
    """Find the factors of a difference that are not of one sign for all positive sizes."""
    import sympy

    return [
        base
        for base, _ in sympy.factor_list(difference)[1]
        if compared(base, sympy.Integer(0))[1] == CONDITIONAL
    ]


def zero(difference: Dim) -> Words:
    """Write the equations, any one of which makes a difference zero."""
    import sympy

    from metacount.algebra.writing import in_letters

    told = []
    for factor in _mixed(difference):
        terms = sympy.Add.make_args(sympy.expand(factor))
        left = sum(t for t in terms if t.as_coeff_Mul()[0] > 0)
        right = -sum(t for t in terms if t.as_coeff_Mul()[0] < 0)
        told.append(f"{in_letters(sympy.factor(left))} = {in_letters(sympy.factor(right))}")
    return listed(told, " or ")


def _zero_somewhere(difference: Dim) -> bool:
    """Tell whether a difference is zero at some of the small whole sizes that are tried."""
    for factor in _mixed(difference):
        free = sorted(factor.free_symbols, key=str)
        sizes = SMALL_SIZES if len(free) <= 4 else SMALL_SIZES[::2]
        for picked in islice(product(sizes, repeat=len(free)), TRIED):
            if factor.subs(dict(zip(free, picked, strict=True))) == 0:
                return True
    return False


def _in_catalog(claim: Claim, truth: sympy.Expr) -> dict[str, Beside]:
    """Compute the part and both formulas by model, for the models that the statement is about."""
    options, found = claim.options, {}
    for entry, spec in parts.models():
        if AMONG[options["among"]](entry, spec):
            sizes = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
            named = legend.sympy_symbols(sizes)
            found[entry.id] = Beside(
                count=value(spec, options["part"]),
                exact=value_at(truth, {named[name]: n or 0 for name, n in sizes.items()}),
                stated=Fraction(evaluated(options["formula"], sizes)),
            )
    return found


def _farthest(in_catalog: dict[str, Beside]) -> Words:
    off = {name: one.off for name, one in in_catalog.items() if one.is_counted_so}
    ends = [
        say("by {percent} for {model}", percent=_percent(off[m]), model=m)
        for m in dict.fromkeys(pick(off, key=lambda m: off[m]) for pick in (min, max) if off)
        if off[m]
    ]
    if not ends:
        return ""
    joined = listed(ends, " and ")
    if len(off) == len(in_catalog):
        return say("; it is off {ends}", ends=joined)
    return say(
        "; of the {n} that the exact formula counts, it is off {ends}", n=len(off), ends=joined
    )


def _percent(ratio: Fraction) -> str:
    return relative(ratio.numerator, ratio.denominator)


def _told(in_catalog: dict[str, Beside], equal: list[str]) -> list[Words]:
    lines: list[Words] = [
        say("equal in the catalog: {models}", models=listed(equal or [say("none")]))
    ]
    off = {m: one.off for m, one in in_catalog.items() if one.is_counted_so and m not in equal}
    if off:
        told = listed(f"{m} {_percent(off[m])}" for m in sorted(off, key=lambda m: off[m]))
        lines.append(say("stated less exact, of exact: {models}", models=told))
    more = [m for m, one in in_catalog.items() if not one.is_counted_so and m not in equal]
    if more:
        lines.append(say("counted by another formula: {models}", models=listed(more)))
    return lines
