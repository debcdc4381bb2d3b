"""What is left of a textbook formula less the form read off code, in the form's domain."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from metacount.tracing.code_form import CodeForm
from metacount.tracing.domain import is_at_most, is_below
from metacount.tracing.run.sizes import divides, symbol


def differences(
    textbook: dict[str, sympy.Expr],
    form: CodeForm,
    put_right: dict[sympy.Symbol, sympy.Expr] | None = None,
    *,
    together: bool = False,
) -> dict[str, sympy.Expr]:
    """Subtract the code's form from the textbook's, role by role,
    where the rest is not zero in the form's domain.

    `put_right` are fields that the config's class makes of others. `together`: the sum of all roles
    alone, where one storage belongs to several and each side has its own rule of whose it is.
    """
    code = {"total": form.total} if together else form.by_role
    if together:
        textbook = {"total": sympy.Add(*map(sympy.sympify, textbook.values()))}
    known = {c.lhs: c.rhs for c in form.domain if isinstance(c, sympy.Eq) and c.lhs.is_Symbol}
    ours = put_right or {}
    sides = sides_of(textbook, form)
    equal = _equal_by_order((*form.domain, *sides.values()))
    # where chunks fill a sequence, their number is no rounded one
    divided = [c.args for c in form.domain if isinstance(c, divides)]
    whole = {sympy.floor(above / below): above / below for below, above in divided}
    found = {}
    for role in {**textbook, **code}:
        mine = sympy.sympify(textbook.get(role, 0)).xreplace(
            {least: side.lhs for least, side in sides.items()}
        )
        theirs = code.get(role, sympy.Integer(0))
        left = (mine - theirs).subs(ours).subs(known).subs(equal)
        # no chunk is full where a sequence is shorter than one
        floors = [(part, part.args[0].as_numer_denom()) for part in left.atoms(sympy.floor)]
        none = {part: sympy.Integer(0) for part, (x, y) in floors if is_below(x, y, form.domain)}
        left = left.xreplace(none).xreplace(whole)
        # and one chunk holds a sequence that is no longer than it
        above = [(part, part.args[0].as_numer_denom()) for part in left.atoms(sympy.ceiling)]
        one = {part: sympy.Integer(1) for part, (x, y) in above if is_at_most(x, y, form.domain)}
        left = left.xreplace(one)
        if any(_reduced(case) != 0 for case in _cases(left)):
            found[role] = sympy.factor(_reduced(left))
    return found


def _equal_by_order(domain: Iterable[sympy.Basic]) -> dict[sympy.Expr, sympy.Expr]:
    """Return the sizes that are another one because a domain says both S ≤ w and S ≥ w; T is S,
    seen from the last token.
    """
    found: dict[sympy.Expr, sympy.Expr] = {}
    least = set()
    for one in domain:
        if not isinstance(one, sympy.Rel) or isinstance(one, sympy.Eq | sympy.Ne):
            continue
        strict = 1 if isinstance(one, sympy.Gt | sympy.Lt) else 0
        more = one.lhs - one.rhs if isinstance(one, sympy.Ge | sympy.Gt) else one.rhs - one.lhs
        more = sympy.expand(more - strict).xreplace({symbol("T"): symbol("S")})
        least.add(more)
        if -more in least:
            lengths = {symbol("S"), symbol("T")} & (one.lhs.free_symbols | one.rhs.free_symbols)
            for other in more.free_symbols - {symbol("S")} if lengths else ():
                if sympy.expand(more - symbol("S") + other) == 0 or more == other - symbol("S"):
                    found |= {symbol("S"): other, symbol("T"): other}
    return found


def sides_of(textbook: dict[str, sympy.Expr], form: CodeForm) -> dict[sympy.Expr, sympy.Expr]:
    """Return which one is smaller where the form was read, for each smaller of two that the
    textbook has (a window, a length), as a condition `smaller ≤ larger`.
    """
    found = {}
    for expr in textbook.values():
        for least in sympy.sympify(expr).atoms(sympy.Min):
            smaller, larger = sorted(least.args, key=lambda arg: value_at(arg, form))
            found[least] = sympy.Le(smaller, larger, evaluate=False)
    return found


def said_of(side: sympy.Rel, form: CodeForm) -> sympy.Basic:
    """Say which of two is smaller, as the domain says it: 1 ≤ x - 1 as x ≥ 2."""
    known = {c.lhs: c.rhs for c in form.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer}
    if not side.free_symbols - known.keys():
        return sympy.true
    extra, rest = side.rhs.as_coeff_Add()
    if not side.lhs.is_Integer or not extra:
        return side
    return sympy.Ge(rest, side.lhs - extra, evaluate=False)


def value_at(expr: sympy.Expr, form: CodeForm) -> int:
    return int(expr.xreplace({s: sympy.Integer(form.every_number[s]) for s in expr.free_symbols}))


def _reduced(expr: sympy.Expr) -> sympy.Expr:
    return sympy.expand(sympy.cancel(sympy.expand(expr)))


def _cases(expr: sympy.Expr) -> sympy.Expr:
    """Rewrite `expr` for every remainder of the counts that it rounds parts of:
    floor(N/2), N = 2·q + r.
    """
    periods: dict[sympy.Symbol, int] = {}
    for rounded in expr.atoms(sympy.floor, sympy.ceiling):
        below = sympy.together(rounded.args[0]).as_numer_denom()[1]
        letters = rounded.free_symbols
        if below.is_Integer and len(letters) == 1:
            (letter,) = letters
            periods[letter] = sympy.ilcm(periods.get(letter, 1), int(below))
    cases = [expr]
    for letter, period in periods.items():
        whole = sympy.Symbol(f"{letter}_q", integer=True, nonnegative=True)
        cases = [c.subs(letter, period * whole + r) for c in cases for r in range(period)]
    return cases
