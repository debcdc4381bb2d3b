"""The domain of a proof, each condition in words and as a text that is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import sympy

from metacount.frozen import frozen
from metacount.huggingface.config.families import family_of
from metacount.huggingface.module.model import running_config
from metacount.tracing.domain import in_words
from metacount.tracing.symbols import SMALLEST, divides, symbol
from metacount.verify.for_all_sizes import Proof

if TYPE_CHECKING:
    from metacount.files import Json


@frozen
class Condition:
    """What it says (nothing, where all sizes from 3 on fulfil it), and as text (none: always).

    `defaults` has for a field that a config alone has what it is where the config does not give it,
    as text, and the names under which a config may.
    """

    says: str
    test: str
    defaults: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


def conditions_of(proof: Proof, write: Callable[[sympy.Expr], str]) -> tuple[Condition, ...]:
    """Return the whole domain of a proof."""
    return tuple(dict.fromkeys(_conditions(proof, write)))


def _conditions(proof: Proof, write: Callable[[sympy.Expr], str]) -> Iterator[Condition]:
    for name, number in proof.numbers:
        yield Condition(says=f"{name} = {number}", test=f"{name} == {number}")
    least = [sympy.Ge(symbol(name), number, evaluate=False) for name, number in proof.least]
    for one in (*proof.domain, *least):
        words = in_words(one, write).replace("config_", "")  # fields of a config alone
        yield Condition(
            says="" if _follows(one, proof.domain) else words,
            test=as_test(one),
            defaults=tuple(_defaults(proof, {letter.name for letter in one.free_symbols})),
        )
    for text in () if proof.form is None else proof.form.solved:
        yield Condition(says=text, test="")


def _defaults(proof: Proof, names: set[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the defaults of these fields, each after those that it follows from."""
    asked = set(names)
    for name, made, _ in proof.defaults[::-1]:
        asked |= {letter.name for letter in made.free_symbols} if name in asked else set()
    for name, made, other in proof.defaults:
        if name in asked:
            yield name.replace(".", "__"), whole_text(made), other


def _follows(condition: sympy.Basic, domain: tuple[sympy.Basic, ...]) -> bool:
    """Tell whether a condition says less than another one: a ≥ 3·b beside a ≥ 4·b."""
    if not isinstance(condition, sympy.Ge) or not condition.lhs.is_Symbol:
        return False
    times, rest = condition.rhs.as_coeff_Mul()
    if rest == 1 and times <= SMALLEST:
        return True
    if rest == 1 and times <= SMALLEST + 1 and divides(sympy.Integer(2), condition.lhs) in domain:
        return True
    return any(
        isinstance(c, sympy.Ge)
        and c.lhs == condition.lhs
        and c.rhs.as_coeff_Mul()[1] == rest
        and c.rhs.as_coeff_Mul()[0] > times
        for c in domain
    )


def as_test(condition: sympy.Basic) -> str:
    """Write a condition as a comparison of whole numbers, for `proof_domain.holds`.

    >>> d, h = sympy.symbols("d h", integer=True, positive=True)
    >>> as_test(divides(2 * h, d)), as_test(sympy.Gt(d / h, 3, evaluate=False))
    ('(d) % (2*h) == 0', '-1*3*h + d > 0')
    """
    if isinstance(condition, divides):
        below, above = condition.args
        top, bottom = sympy.together(above / below).as_numer_denom()
        return f"({whole_text(top)}) % ({whole_text(bottom)}) == 0"
    if isinstance(condition, sympy.Ge) and condition.lhs.is_Symbol and condition.rhs.is_Integer:
        return f"{whole_text(condition.lhs)} >= {condition.rhs}"
    difference = sympy.together(condition.lhs - condition.rhs)
    top, bottom = difference.as_numer_denom()
    if not bottom.is_positive:
        raise ValueError(f"no whole numbers: {condition}")
    return f"{whole_text(sympy.expand(top))} {condition.rel_op} 0"


def whole_text(expr: sympy.Expr) -> str:
    """Write an expression of whole numbers in Python, quotients rounded down or up alone.

    What is divided without rounding is divided last: its result is a whole number.
    """
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name).replace(".", "__")
    if isinstance(expr, sympy.floor | sympy.ceiling):
        top, bottom = sympy.together(expr.args[0]).as_numer_denom()
        sign = "-" if isinstance(expr, sympy.ceiling) else ""
        return f"({sign}({sign}({whole_text(top)})//({whole_text(bottom)})))"
    if isinstance(expr, sympy.Mod):
        above, below = expr.args
        return f"(({whole_text(above)}) % ({whole_text(below)}))"
    if isinstance(expr, sympy.Min):
        return f"min({', '.join(sorted(map(whole_text, expr.args)))})"
    top, bottom = sympy.together(expr).as_numer_denom()
    if bottom != 1:
        return f"(({whole_text(top)})//({whole_text(bottom)}))"
    if isinstance(expr, sympy.Add):
        return " + ".join(whole_text(term) for term in expr.as_ordered_terms()[::-1])
    if isinstance(expr, sympy.Mul):
        return "*".join(_factor(factor) for factor in expr.as_ordered_factors())
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return f"{_factor(expr.base)}**{int(expr.exp)}"
    raise ValueError(f"no whole numbers: {expr}")


def _factor(expr: sympy.Expr) -> str:
    text = whole_text(expr)
    return f"({text})" if isinstance(expr, sympy.Add) else text


def of_type(model_type: str) -> Json:
    """Return the default config of a type: of its first class that has a spec."""
    config = running_config(model_type)
    family = family_of(model_type)
    assert family is not None  # the type is mapped
    known = [name for name, end in family.classes.items() if end is not None]
    if "architectures" not in config and next(iter(family.classes)) not in known:
        config = {**config, "architectures": known[:1]}  # BartForCausalLM has none
    return config
