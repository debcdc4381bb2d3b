"""Sentences that stand only where what they say was computed: conditions and numbers in the data.

A sentence of the data has conditions beside it; it is printed when all of them hold for the claim
as it is judged now. Between braces stands what is computed when it is printed. Both are made of

    d_model, n_experts          sizes and fields of the claim's model
    norms(), ffn("llama-7b")    a part of it, or of another model; a size of another model
    stated("qwen3-0.6b")        the claim's formula at the sizes of a model
    right, conditional, wrong   the verdict
    here, rest, ...             what the judge found

and of whole numbers, texts, + - * // % **, comparisons, and, or, not.
"""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction
from typing import TYPE_CHECKING

from metacount import catalog
from metacount.claims.finding import VERDICTS
from metacount.claims.parts import PARTS, spec_of, value
from metacount.claims.text import Listed, Said, in_language, translated
from metacount.errors import SpecError
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metacount.claims.finding import Claim, Finding, Sentence
    from metacount.formulas.dim import Dim

OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a, b) if isinstance(a, int | Fraction) else a / b,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
BRACES = re.compile(r"\{([^{}]*)\}")


def sentences(claim: Claim, finding: Finding, texts: tuple[Sentence, ...], lang: str) -> str:
    """Write those of the sentences whose conditions hold, with their numbers put in."""
    known = Known(claim, {**{v: v == finding.verdict for v in VERDICTS}, **finding.values})
    return translated(" ", lang).join(
        BRACES.sub(lambda found: shown(computed(found[1], known), lang), sentence.said(lang))
        for sentence in texts
        if all(computed(condition, known) is True for condition in sentence.where)
    )


def shown(number: object, lang: str = "en") -> str:
    """Format a value as it stands in a text.

    >>> shown(14336), shown("63.96 %")
    ('14,336', '63.96 %')
    """
    if isinstance(number, Said | Listed):
        return in_language(number, lang)
    return exact(number) if type(number) is int else str(number)


def named(claim: Claim) -> Known:
    """Return the sizes and parts of a claim's model under their names."""
    return Known(claim, {})


class Known:
    """What the names in a claim's sentences stand for."""

    def __init__(self, claim: Claim, values: Mapping[str, object]) -> None:
        self.claim = claim
        self.values: dict[str, object] = {}
        if claim.model is not None:
            self.values |= spec_of(claim).to_dict()
            self.values["name"] = catalog.entry(claim.model).name
        self.values |= values

    def name(self, name: str) -> object:
        """Look up a size, a field, a verdict, or what the judge found."""
        if name not in self.values:
            raise SpecError(
                "claim",
                "has a sentence with a name that was not computed",
                name,
                f"known are {', '.join(self.values)}",
            )
        return self.values[name]

    def call(self, name: str, id: str | None) -> object:
        """Compute a part, or look up a size, of the claim's model or of another one."""
        spec = spec_of(self.claim) if id is None else catalog.entry(id).spec()
        if name == "stated":
            return evaluated(self.claim.options["formula"], spec.to_dict())
        return value(spec, name) if name in PARTS else getattr(spec, name)


def computed(text: str, known: Known | Mapping[str, Dim]) -> object:
    """Compute the value of one expression of the data.

    >>> computed("4*d**2 == 64 and not (d > 4)", {"d": 4})
    True
    """
    return _walk(ast.parse(text.strip(), mode="eval").body, known)


def evaluated(formula: str, sizes: Mapping[str, Dim]) -> Dim:
    """Evaluate a formula in our names with `sizes` put in: ints, or symbols.

    >>> evaluated("4*d_model**2", {"d_model": 3})
    36
    """
    try:
        return computed(formula, sizes)
    except (KeyError, SyntaxError, SpecError) as error:
        raise ValueError(
            f"a formula is made of sizes, whole numbers, + - * / **: {error}"
        ) from None


def _walk(node: ast.expr, known: Known | Mapping[str, Dim]) -> object:
    if isinstance(node, ast.Constant) and type(node.value) in (int, str, bool):
        return node.value
    if isinstance(node, ast.Name):
        return known.name(node.id) if isinstance(known, Known) else known[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_walk(node.left, known), _walk(node.right, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_walk(node.operand, known))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        left, right = _walk(node.left, known), _walk(node.comparators[0], known)
        return OPERATORS[type(node.ops[0])](left, right)
    if isinstance(node, ast.BoolOp):
        found = (bool(_walk(part, known)) for part in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and isinstance(known, Known):
        arguments = [str(_walk(argument, known)) for argument in node.args]
        return known.call(node.func.id, *arguments) if arguments else known.call(node.func.id, None)
    raise SpecError(
        "claim",
        "has an expression that is not understood",
        ast.unparse(node),
        "see metacount/claims/facts.py",
    )
