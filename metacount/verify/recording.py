"""Proofs as plain data for the record: expressions, and conditions in words and as texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import sympy

from metacount.frozen import frozen
from metacount.huggingface.config.families import family_of
from metacount.huggingface.module.model import running_config
from metacount.spec import ModelSpec, Workload
from metacount.textbook.closed_form import LAYERS, named_layers
from metacount.textbook.proven import structure, value
from metacount.tracing.count import As
from metacount.tracing.domain import in_words
from metacount.tracing.forms import Tracer
from metacount.tracing.symbols import SMALLEST, divides, symbol
from metacount.verify.cases import Case, cases, cases_at_a_limit, cases_at_own_layers, spec_of
from metacount.verify.for_all_sizes import Proof, prove, textbook_beside
from metacount.verify.textbook_forms import sizes_of, spec_forms

if TYPE_CHECKING:
    from metacount.files import Json

LONGEST = 240.0  # seconds that a forward with symbols may take: what is recorded is done once
LARGEST_SIZES = (7, 12, 40, 200, 1000, 10_000)  # of each setting at which a digest is taken


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


def closed_forms(spec: ModelSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Write the textbook's quantities of a structure, each in total, in all sizes of its spec and
    B, S, T, S_e; and before them the numbers of layers of a kind, which they name.
    """
    letters = {name: symbol(name) for name in sizes_of(spec)}
    names = {term.letter: symbol(term.name) for term in LAYERS}
    kinds = {
        expr: names[letter.name]
        for expr, letter in named_layers(spec, symbol("n_layers")).items()
        if len(str(expr)) > len(names[letter.name].name)
    }
    run = {"bytes_per_value": symbol("bytes_per_value")}
    if spec.kind == "prefix-decoder":
        run["prefix_len"] = symbol("prefix_len")
    forms = {}
    for quantity, by_role in spec_forms(spec, letters, Workload(), run=run).items():
        total = sympy.Add(*map(sympy.sympify, by_role.values()))
        named = total.subs(kinds)
        texts = [whole_text(form) for form in (named, sympy.factor_terms(named))]
        forms[quantity] = min(texts, key=len)
    used = " ".join(forms.values())
    layers = {s.name: whole_text(expr) for expr, s in kinds.items() if s.name in used}
    return layers, forms


def form_values(layers: dict[str, str], forms: dict[str, str]) -> dict[str, list[int]]:
    """Evaluate forms at fixed sizes: what is equal has equal values, however written."""
    found: dict[str, list[int]] = {quantity: [] for quantity in forms}
    for largest in LARGEST_SIZES:
        words = set(re.findall(r"[A-Za-z_]\w*", " ".join([*layers.values(), *forms.values()])))
        at = {name: _size(name, largest) for name in words - layers.keys()}
        for name, text in layers.items():
            at[name] = value(text, at)
        for quantity, text in forms.items():
            found[quantity].append(value(text, at))
    return found


def digest(expr: sympy.Expr) -> str:
    """Write a digest of an expression: of its values at fixed sizes, as `form_values` has them.

    >>> d, h = sympy.symbols("d h", integer=True, positive=True)
    >>> digest(d * (d + h)) == digest(d**2 + d * h) != digest(d**2 + d * h + 1)
    True
    """
    values = []
    for largest in LARGEST_SIZES:
        at = {s: sympy.Integer(_size(s.name, largest)) for s in expr.free_symbols}
        values.append(str(expr.xreplace(at).doit()))
    return _hash(" ".join(values))


def _size(name: str, largest: int) -> int:
    """Draw a size from 1 to `largest` by its name."""
    return int(_hash(f"{name} {largest}"), 16) % largest + 1


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


def textbook_digests(case: Case) -> dict[str, str]:
    """Write the digest of each formula in the letters of a case, without a look at the code."""
    tracer = Tracer(case.model, case.workload, run_as=case.run_as)
    textbook = textbook_beside(tracer, case.model, case.workload)
    names = (name for name in case.quantities if name in textbook.forms)
    return {name: digest(textbook.total(name)) for name in names}


def digest_of(structure: Json) -> str:
    """Write a digest of all that is recorded of a structure, but for itself."""
    kept = {name: found for name, found in structure.items() if name != "digest"}
    return _hash(json.dumps(kept, sort_keys=True))


def recorded(case: Case, write: Callable[[sympy.Expr], str]) -> Json:
    """Write one case as plain data: equal, or what is left, or why not."""
    run_as = As(**{**vars(case.run_as), "seconds": LONGEST})
    found = prove(case.model, case.workload, run_as, case.quantities)
    return {
        "name": case.name,
        "quantities": {proof.quantity: _plain(proof, write) for proof in found},
    }


def _plain(proof: Proof, write: Callable[[sympy.Expr], str]) -> Json:
    if proof.problem or proof.form is None or proof.textbook is None:
        return {"problem": proof.problem}
    try:
        where = [
            [one.says, one.test]
            + ([{name: [text, *names] for name, text, names in one.defaults}] * bool(one.defaults))
            for one in conditions_of(proof, write)
        ]
    except ValueError as error:
        return {"problem": str(error)}
    found: Json = {"where": where}
    if proof.differences:
        words = dict(proof.words)
        left = {role: expr.xreplace(words) for role, expr in proof.differences.items()}
        found["differs"] = {role: write(expr) for role, expr in left.items()}
        found["zero"] = as_test(sympy.Eq(sum(left.values()), 0, evaluate=False))
    elif proof.idle is not None:
        found["more"] = write(sympy.factor(proof.idle))
    return {**found, "textbook": digest(proof.textbook), "code": digest(proof.form.total)}


def of_type(model_type: str) -> Json:
    """Return the default config of a type: of its first class that has a spec."""
    config = running_config(model_type)
    family = family_of(model_type)
    assert family is not None  # the type is mapped
    known = [name for name, end in family.classes.items() if end is not None]
    if "architectures" not in config and next(iter(family.classes)) not in known:
        config = {**config, "architectures": known[:1]}  # BartForCausalLM has none
    return config


def record_of(
    model: Json | ModelSpec, others: tuple[ModelSpec, ...], write: Callable[[sympy.Expr], str]
) -> Json:
    """Record all that was shown of one model's structure: of a config's type, or of our modules.

    `others` are specs of the same structure.
    """
    layers, forms = closed_forms(spec_of(model))
    found = [recorded(case, write) for case in cases(model, others)]
    conditions = {
        (says, test)
        for case in found
        for one in case["quantities"].values()
        for says, test, *_ in one.get("where", ())
    }
    limits = [re.fullmatch(r"-1\*(?:config_)?(\w+) \+ S < 0", test) for _, test in conditions]
    names = [f"S = {limit[1]}" for limit in limits if limit and limit[1] != "window"]
    if any(re.fullmatch(r"n_layers = \d+", says) for says, _ in conditions):
        names.append("n_layers = ")
    found += [recorded(case, write) for case in further_cases(model, others, sorted(names))]
    return {
        "structure": structure(spec_of(model)),
        "layers": layers,
        "forms": forms,
        "cases": found,
    }


def further_cases(
    model: Json | ModelSpec, others: tuple[ModelSpec, ...], names: Iterable[str]
) -> Iterator[Case]:
    """Yield the cases of a record that not every structure has: at its own numbers of layers, where
    few stayed a number, and with sequences as long as a size that they were shorter than.

    `names` are names of cases, or their beginnings.
    """
    limits = (re.match(r"S = (\w+)", name) for name in names)
    for limit in dict.fromkeys(limit[1] for limit in limits if limit):
        yield from cases_at_a_limit(model, limit)
    if any("n_layers = " in name for name in names):
        yield from cases_at_own_layers(model, others)
