"""Textbook formula against the form read off code: equal for all sizes of a domain, or not.

A proof speaks of the letters that were letters. What stayed a number (a single key/value head), the
side of a window, what torch asked of sizes: all of that is its domain, in our own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import sympy

from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.huggingface.config.record import family_of
from metacount.huggingface.module.model import running_config
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.tracing.domain import in_words, is_at_most, is_below
from metacount.tracing.forms import IDLE_OF, NotTraced, Tracer
from metacount.tracing.layers import CodeForm, counting
from metacount.tracing.sources import LAYER_PATTERNS, As
from metacount.tracing.symbols import SMALLEST, divides, symbol, unread
from metacount.verify.textbook_forms import (
    PROVEN,
    Textbook,
    spec_forms,
    textbook_forms,
    textbook_of,
)

if TYPE_CHECKING:
    from metacount.files import Json


def differences(
    textbook: dict[str, sympy.Expr],
    form: CodeForm,
    put_right: dict[sympy.Symbol, sympy.Expr] | None = None,
) -> dict[str, sympy.Expr]:
    """Subtract the code's form from the textbook's, role by role,
    where the rest is not zero in the form's domain.

    `put_right` are fields that the config's class makes of others.
    """
    code = form.by_role
    known = {c.lhs: c.rhs for c in form.domain if isinstance(c, sympy.Eq) and c.lhs.is_Symbol}
    ours = put_right or {}
    sides = sides_of(textbook, form)
    equal = _equal_by_order((*form.domain, *sides.values()))
    # where chunks fill a sequence, their number is no rounded one
    divided = [c.args for c in form.domain if isinstance(c, divides)]
    quotients = {sympy.floor(above / below): above / below for below, above in divided}
    implied = {}
    for role in {**textbook, **code}:
        mine = sympy.sympify(textbook.get(role, 0)).xreplace(
            {least: side.lhs for least, side in sides.items()}
        )
        theirs = code.get(role, sympy.Integer(0))
        left = (mine - theirs).subs(ours).subs(known).subs(equal)
        # no chunk is full where a sequence is shorter than one
        floors = [(part, part.args[0].as_numer_denom()) for part in left.atoms(sympy.floor)]
        none = {part: sympy.Integer(0) for part, (x, y) in floors if is_below(x, y, form.domain)}
        left = left.xreplace(none).xreplace(quotients)
        # and one chunk holds a sequence that is no longer than it
        above = [(part, part.args[0].as_numer_denom()) for part in left.atoms(sympy.ceiling)]
        equal_to_one = {
            part: sympy.Integer(1) for part, (x, y) in above if is_at_most(x, y, form.domain)
        }
        left = left.xreplace(equal_to_one)
        if any(_reduced(case) != 0 for case in _cases(left)):
            implied[role] = sympy.factor(_reduced(left))
    return implied


def _equal_by_order(domain: Iterable[sympy.Basic]) -> dict[sympy.Expr, sympy.Expr]:
    """Return the sizes that are another one because a domain says both S ≤ w and S ≥ w; T is S,
    seen from the last token.
    """
    equal: dict[sympy.Expr, sympy.Expr] = {}
    least = set()
    for relation in domain:
        if not isinstance(relation, sympy.Rel) or isinstance(relation, sympy.Eq | sympy.Ne):
            continue
        strict = 1 if isinstance(relation, sympy.Gt | sympy.Lt) else 0
        more = (
            relation.lhs - relation.rhs
            if isinstance(relation, sympy.Ge | sympy.Gt)
            else relation.rhs - relation.lhs
        )
        more = sympy.expand(more - strict).xreplace({symbol("T"): symbol("S")})
        least.add(more)
        if -more in least:
            lengths = {symbol("S"), symbol("T")} & (
                relation.lhs.free_symbols | relation.rhs.free_symbols
            )
            for other in more.free_symbols - {symbol("S")} if lengths else ():
                if sympy.expand(more - symbol("S") + other) == 0 or more == other - symbol("S"):
                    equal |= {symbol("S"): other, symbol("T"): other}
    return equal


def sides_of(textbook: dict[str, sympy.Expr], form: CodeForm) -> dict[sympy.Expr, sympy.Expr]:
    """Return which one is smaller where the form was read, for each smaller of two that the
    textbook has (a window, a length), as a condition `smaller ≤ larger`.
    """
    sides = {}
    for expr in textbook.values():
        for least in sympy.sympify(expr).atoms(sympy.Min):
            smaller, larger = sorted(least.args, key=lambda arg: value_at(arg, form))
            sides[least] = sympy.Le(smaller, larger, evaluate=False)
    return sides


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
    """Rewrite `expr` for every remainder: floor(N/2) with N = 2·q + r."""
    periods: dict[sympy.Symbol, int] = {}
    for rounded in expr.atoms(sympy.floor, sympy.ceiling):
        below = sympy.together(rounded.args[0]).as_numer_denom()[1]
        letters = rounded.free_symbols
        if below.is_Integer and len(letters) == 1:
            (letter,) = letters
            periods[letter] = sympy.ilcm(periods.get(letter, 1), int(below))
    cases = [expr]
    for letter, period in periods.items():
        quotient = sympy.Symbol(f"{letter}_q", integer=True, nonnegative=True)
        cases = [c.subs(letter, period * quotient + r) for c in cases for r in range(period)]
    return cases


ROUNDED = (sympy.floor, sympy.ceiling)  # which a domain may decide in ways not seen here


@frozen
class Proof:
    """One quantity of one model: the textbook's form less the code's in letters, role by role.

    `differences` has the nonzero ones; it is empty where both are the same in all of `domain`. That
    is in the spec's words (`words` has the code's letters in these), as `least` (from which number
    on each letter is; 1 where it is not named), `numbers` (what stayed a number) and `idle` (what
    the code runs besides, on experts that a token did not choose). Of a field that a config alone
    has, `config_X`, `defaults` says what it is where it is not given, and under which names it may
    be. `textbook` is the formula in the code's letters. `problem` says why nothing could be
    compared.
    """

    quantity: str
    differences: dict[str, sympy.Expr]
    form: CodeForm | None
    problem: str = ""
    domain: tuple[sympy.Basic, ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()
    idle: sympy.Expr | None = None
    words: tuple[tuple[sympy.Symbol, sympy.Expr], ...] = ()
    defaults: tuple[tuple[str, sympy.Expr, tuple[str, ...]], ...] = ()
    textbook: sympy.Expr | None = None

    @property
    def proven(self) -> bool:
        """That the formula is what the code does, for all of the domain."""
        return not self.problem and not self.differences and self.idle is None

    @property
    def of_chosen(self) -> bool:
        """That it is what the code does for the experts chosen, and that the code does more."""
        return not self.problem and not self.differences and self.idle is not None


def prove(
    model: Json | ModelSpec,
    workload: Workload,
    run_as: As = As(),
    quantities: tuple[str, ...] = (),
) -> tuple[Proof, ...]:
    """Compare every quantity by role (or those named): with transformers' code of a config, or with
    our reference modules of a spec.

    Windows and one-sided lengths are those of the workload's side: the domain says which.
    """
    tracer = Tracer(model, workload, run_as=As(**{**vars(run_as), "strict": True}))
    textbook = textbook_beside(tracer, model, workload)
    put_right = {**textbook.put_right, **_held_patterns(textbook, tracer)}
    textbook = Textbook(**{**vars(textbook), "put_right": put_right})
    names = [name for name in textbook.forms if not quantities or name in quantities]
    if textbook.spec.recurrent == "none" and "state_bytes" not in quantities:
        names = [name for name in names if name != "state_bytes"]  # nothing keeps a state
    proofs = {name: _proof(name, textbook, tracer, workload) for name in names}
    if textbook.spec.is_moe and "active_params" in proofs:
        proofs["active_params"] = _routed_as_meant(proofs, textbook, tracer, workload)
    return tuple(proofs.values())


def textbook_beside(tracer: Tracer, model: Json | ModelSpec, workload: Workload) -> Textbook:
    """Return the textbook's forms in the letters that the code of a model is read in."""
    letters: dict[str, int] = {}
    if isinstance(model, ModelSpec):
        letters = {**tracer.source.sizes(), **tracer.source.layer_fields({})}
    return textbook_of(model, letters, workload)


def _proof(quantity: str, textbook: Textbook, tracer: Tracer, workload: Workload) -> Proof:
    try:
        form = tracer.form(quantity)
        may_idle = textbook.config is not None and textbook.spec.is_moe and quantity in IDLE_OF
        extra = tracer.form(IDLE_OF[quantity]) if may_idle else None
    except (NotTraced, InputError) as error:
        return Proof(quantity=quantity, differences={}, form=None, problem=str(error))
    idle = None if extra is None or extra.total == 0 else extra.total
    if any(isinstance(c, unread) for c in form.domain):
        problem = "a condition of the code's cannot be written down"
        return Proof(quantity=quantity, differences={}, form=form, problem=problem)
    put_right, at_layers = textbook.put_right, tuple[sympy.Eq, ...]()
    left = differences(textbook.forms[quantity], form, put_right)
    if left and (layers := _numbers_of_layers(left, tracer)):
        held = {**put_right, **layers}
        if not differences(textbook.forms[quantity], form, held):
            left, at_layers = {}, tuple(sympy.Eq(x, n, evaluate=False) for x, n in layers.items())
    if left and all(expr.has(*ROUNDED) and value_at(expr, form) == 0 for expr in left.values()):
        problem = "letters do not show it, though it is so at the sizes where the code was read"
        return Proof(quantity=quantity, differences={}, form=form, problem=problem)
    sides = sides_of(textbook.forms[quantity], form)
    conditions = [
        condition for side in sides.values() if (condition := said_of(side, form)) != sympy.true
    ]
    asked = [*form.domain, *form.ratios, *conditions, *at_layers]
    # from which number on each letter is; a number of layers from its own on
    of_layers = {symbol(name) for name in counting(form.parts)}
    least: dict[sympy.Symbol, int] = dict(form.least)
    least |= {s: min(SMALLEST, form.every_number[s]) for s in of_layers}
    words = textbook.words({*least, *(s for c in asked for s in c.free_symbols)})
    asked += [
        sympy.Ge(letter, number, evaluate=False)
        for letter, number in least.items()
        if letter in textbook.implied or not words.get(letter, letter).is_Symbol
    ]
    domain = dict.fromkeys([*_in_words(asked, textbook.implied, words), *textbook.relations])
    if sympy.false in domain:
        problem = "no config that has a spec has the sizes where the code was read"
        return Proof(quantity=quantity, differences={}, form=form, problem=problem)
    named = {words.get(letter, letter): number for letter, number in least.items()}
    letters = set().union(*(expr.free_symbols for expr in (*named, *domain)))
    return Proof(
        quantity=quantity,
        differences=left,
        form=form,
        domain=tuple(domain),
        least=tuple(sorted((s.name, n) for s, n in named.items() if s.is_Symbol and n > 1)),
        numbers=(*textbook.numbers.items(), *_numbers_of_run(quantity, textbook.spec, workload)),
        idle=None if idle is None else idle.xreplace(words),
        words=tuple(words.items()),
        defaults=textbook.defaults_of(letters),
        textbook=textbook.total(quantity),
    )


def _in_words(
    asked: Iterable[sympy.Basic],
    implied: dict[sympy.Symbol, sympy.Expr],
    words: dict[sympy.Symbol, sympy.Expr],
) -> Iterator[sympy.Basic]:
    """Yield conditions in the spec's words, without letters that others imply: what is asked of
    them is asked of the others. What always is so is left out.
    """
    for letter, made in {**words, **implied}.items():
        above, below = made.xreplace(words).as_numer_denom()
        if below != 1 and not (letter in implied and below.is_Integer):
            yield divides(below, above)  # a field of a config is a whole number
    for relation in asked:
        worded = relation.xreplace(implied).xreplace(words)
        if isinstance(worded, divides) and sympy.cancel(worded.args[1] / worded.args[0]).is_integer:
            continue
        if worded != sympy.true:
            yield worded


def _held_patterns(textbook: Textbook, tracer: Tracer) -> dict[sympy.Symbol, sympy.Expr]:
    """Return the fields of a config that say which layers are of a kind, and that the spec has as a
    pattern: the structure is of their numbers alone.
    """
    letters = set().union(*(expr.free_symbols for expr in textbook.fields.values()))
    return {
        symbol(name): sympy.Integer(number)
        for name, number in tracer.source.layer_fields({}).items()
        if name in LAYER_PATTERNS and symbol(name) not in letters
    }


def _numbers_of_layers(
    left: dict[str, sympy.Expr], tracer: Tracer
) -> dict[sympy.Symbol, sympy.Integer]:
    """Return how many layers there are, where what is left rounds parts of that: a spec repeats the
    pattern of its layers, a config may go on otherwise.
    """
    asked = set().union(*(e.free_symbols for x in left.values() for e in x.atoms(*ROUNDED)))
    fields = tracer.source.layer_fields({})
    return {
        symbol(name): sympy.Integer(number)
        for name, number in fields.items()
        if name in LAYER_COUNTS and symbol(name) in asked
    }


def _routed_as_meant(
    proofs: dict[str, Proof], textbook: Textbook, tracer: Tracer, workload: Workload
) -> Proof:
    """Return the proof of `active_params`,
    which counts the experts that the config names per token.

    It is the code's only where the code's FLOPs, too, are those of so many experts.
    """
    active = proofs["active_params"]
    if active.problem or active.differences:
        return active
    flops = proofs.get("matmul_flops") or _proof("matmul_flops", textbook, tracer, workload)
    if flops.idle is not None:
        why = "the code runs every token through experts that it did not choose"
    elif "moe" in flops.differences:
        why = "the FLOPs of the code are those of another number of experts per token"
    else:
        return active
    reason = f"it counts the experts that the config names per token; {why}: see matmul_flops"
    return Proof(quantity="active_params", differences={}, form=active.form, problem=reason)


def _numbers_of_run(
    quantity: str, spec: ModelSpec, workload: Workload
) -> Iterator[tuple[str, int]]:
    """Yield what of a workload stayed a number and counts."""
    if spec.kind == "prefix-decoder" and "flops" in quantity:
        yield "prefix_len", workload.prefix_len
    if quantity == "kv_cache_bytes":
        yield "bytes_per_value", DTYPE_BYTES[workload.dtype]


__all__ = ["PROVEN", "Proof", "differences", "prove", "spec_forms", "textbook_forms"]


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
    for relation in (*proof.domain, *least):
        words = in_words(relation, write).replace("config_", "")  # fields of a config alone
        yield Condition(
            says="" if _follows(relation, proof.domain) else words,
            test=as_test(relation),
            defaults=tuple(_defaults(proof, {letter.name for letter in relation.free_symbols})),
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
