"""Formulas for a part of a model: compared for all sizes, then with the models of the catalog.

The difference of both, as a sum of products of sizes, decides. Sizes are positive: a difference
whose terms all have one sign is zero for no sizes, the formula is wrong. With both signs it is
zero for some sizes: the formula holds under that condition. Nothing left: equal for all sizes.
"""

from __future__ import annotations

import ast
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from metacount import catalog, symbols
from metacount.claims import parts
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import computation, letters, percent, spec_of, value
from metacount.units import exact, relative

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.catalog import CatalogEntry
    from metacount.spec import ModelSpec

Number = Any  # int, Fraction or SymPy expression

OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: a**b,
}


def dense(spec: ModelSpec) -> bool:
    return spec.d_ff is not None and not spec.is_moe


def is_silu(spec: ModelSpec) -> bool:
    # with another β it is Swish, the gate of Phi-3-small
    return spec.activation == "silu" and spec.swish_beta == 1.0


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
    "gelu_blocks": lambda e, s: AMONG["gelu"](e, s) and not s.has_encoder,
    "swiglu_blocks": lambda e, s: AMONG["swiglu"](e, s) and AMONG["attention"](e, s),
    "original": lambda e, _: e.family == family("transformer-base"),
    "qwen2": lambda e, _: e.family == family("qwen2-7b"),
    "qwen3_dense": lambda e, s: dense(s) and e.family == family("qwen3-32b"),
}


def evaluated(formula: str, sizes: dict[str, Number]) -> Number:
    """A formula in our names with `sizes` put in: ints, or symbols.

    >>> evaluated("4*d_model**2", {"d_model": 3})
    36
    """

    def walk(node: ast.expr) -> Number:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in sizes:
            return sizes[node.id]
        raise ValueError(f"a formula is made of sizes, whole numbers, + - * **: got {formula!r}")

    return walk(ast.parse(formula, mode="eval").body)


def part_formula(claim: Claim) -> Finding:
    """A formula for a part. Options: `formula`, `part`, `counts` (the part in words), `among`."""
    from metacount.views.formula import in_letters

    options = claim.options
    spec = spec_of(claim)
    named = symbols.sympy_symbols(term.name for term in symbols.MODEL_TERMS)
    said = evaluated(options["formula"], named)
    truth = letters(spec, options["part"])
    difference, verdict = compared(truth, said)
    in_catalog = _in_catalog(claim)
    equal = [name for name, ratio in in_catalog.items() if ratio == 0]
    if verdict == RIGHT and len(equal) < len(in_catalog):
        verdict = CONDITIONAL
    sizes = {term.name: getattr(spec, term.name) for term in symbols.MODEL_TERMS}
    stated = evaluated(options["formula"], sizes)
    lines = [f"exact, {options['counts']}: {in_letters(truth)}", f"stated: {in_letters(said)}"]
    if difference != 0:
        lines.append(f"exact - stated = {in_letters(difference)}")
    lines += [
        f"{spec_name(claim)}: {computation(spec, options['part']).rpartition(' = ')[0]}"
        f" = {exact(value(spec, options['part']))}, stated {exact(int(stated))}",
        *_told(in_catalog),
    ]
    zero = ""
    if verdict == CONDITIONAL and difference != 0:
        zero = f"equal exactly where {_zero(difference)}"
    says = {
        RIGHT: "Equal for all sizes.",
        WRONG: f"Exact is {in_letters(truth)}: the stated formula gives {_apart(difference)}, "
        "whatever the sizes.",
        CONDITIONAL: f"Exact is {in_letters(truth)}.",
    }[verdict]
    if zero:
        lines.insert(3, zero)
    if len(in_catalog) > 1:
        n = "none" if not equal else "all" if len(equal) == len(in_catalog) else len(equal)
        says += f" In the catalog it holds for {n} of {len(in_catalog)} models"
        says += _farthest(in_catalog) + "."
    return Finding(
        verdict=verdict,
        says=says,
        correct=in_letters(truth),
        computation=tuple(lines),
        values={"here": exact(value(spec, options["part"])), "stated": exact(int(stated))},
        witness="formula, for all sizes; catalog",
    )


def spec_name(claim: Claim) -> str:
    """The name of the claim's model."""
    assert claim.model is not None
    return catalog.entry(claim.model).name


def compared(truth: Number, said: Number) -> tuple[Number, str]:
    """The difference of two closed forms, and the verdict that the signs of its terms give."""
    import sympy

    from metacount.closed_form import readable

    expanded = sympy.expand(truth - said)
    if expanded == 0:
        return expanded, RIGHT
    signs = {term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(expanded)}
    return readable(expanded), CONDITIONAL if len(signs) == 2 else WRONG


def _apart(difference: Number) -> str:
    """How far the stated formula is from the exact one, where the terms have one sign."""
    import sympy

    from metacount.views.formula import in_letters

    first = sympy.Add.make_args(sympy.expand(difference))[0]
    few = first.as_coeff_Mul()[0] > 0
    return f"{in_letters(difference if few else -difference)} too {'few' if few else 'many'}"


def _zero(difference: Number) -> str:
    """The equation that makes a difference zero, without the factors that cannot be."""
    import sympy

    from metacount.views.formula import in_letters

    mixed = [
        factor
        for factor in sympy.factor(difference).as_ordered_factors()
        if compared(factor, sympy.Integer(0))[1] == CONDITIONAL
    ]
    terms = [t for f in mixed for t in sympy.Add.make_args(sympy.expand(f))]
    left = sum(t for t in terms if t.as_coeff_Mul()[0] > 0)
    right = -sum(t for t in terms if t.as_coeff_Mul()[0] < 0)
    return f"{in_letters(sympy.factor(left))} = {in_letters(sympy.factor(right))}"


def _in_catalog(claim: Claim) -> dict[str, Fraction]:
    """By model, (stated - exact) / exact, for the models that the statement is about."""
    options = claim.options
    found = {}
    for entry, spec in parts.models():
        if not AMONG[options["among"]](entry, spec):
            continue
        sizes = {term.name: getattr(spec, term.name) for term in symbols.MODEL_TERMS}
        truth = value(spec, options["part"])
        found[entry.id] = Fraction(int(evaluated(options["formula"], sizes)) - truth, truth)
    return found


def _farthest(in_catalog: dict[str, Fraction]) -> str:
    low, high = (pick(in_catalog, key=lambda m: in_catalog[m]) for pick in (min, max))
    ends = [f"{_off(in_catalog[m])} for {m}" for m in dict.fromkeys((low, high)) if in_catalog[m]]
    return f"; it is off by {' and by '.join(ends)}" if ends else ""


def _off(ratio: Fraction) -> str:
    return relative(ratio.numerator, ratio.denominator)


def _told(in_catalog: dict[str, Fraction]) -> list[str]:
    equal = [name for name, ratio in in_catalog.items() if ratio == 0]
    lines = [f"equal in the catalog: {', '.join(equal) or 'none'}"]
    others = sorted((name for name in in_catalog if name not in equal), key=lambda n: in_catalog[n])
    if others:
        told = ", ".join(f"{name} {_off(in_catalog[name])}" for name in others)
        lines.append(f"stated less exact, of exact: {told}")
    return lines


def dense_flops(claim: Claim) -> Finding:
    """An MoE layer with one expert per token takes the FLOPs of a dense layer of that width."""
    from metacount.formulas.ffn import ffn_matmul_flops
    from metacount.views.formula import in_letters

    spec = spec_of(claim)
    moe = value(spec, "moe_flops")
    d, m = spec.d_model, spec.d_ff_expert
    dense_ = int(ffn_matmul_flops(1, d, m, gated=spec.gated))
    truth = letters(spec, "moe_flops").subs(symbols.sympy_symbols(["top_k"])["top_k"], spec.top_k)
    named = symbols.sympy_symbols(["d_model", "d_ff_expert"])
    said = ffn_matmul_flops(1, named["d_model"], named["d_ff_expert"], gated=spec.gated)
    difference, verdict = compared(truth, said)
    more = exact(moe - dense_)
    return Finding(
        verdict=verdict,
        says=f"{exact(moe)} FLOPs per token against {exact(dense_)} at d = {d}, m = {m}: "
        f"{more} more, or {percent(Fraction(moe - dense_, dense_), 3)}.",
        correct=in_letters(truth),
        computation=(
            f"MoE, k = {spec.top_k}: {in_letters(truth)} = "
            f"{parts.in_numbers(in_letters(truth), spec)} = {exact(moe)}",
            f"dense: {in_letters(said)} = {parts.in_numbers(in_letters(said), spec)}"
            f" = {exact(dense_)}",
            f"difference: {in_letters(difference)} = "
            f"{parts.in_numbers(in_letters(difference), spec)} = {more}",
        ),
        values={},
        witness="formula",
    )
