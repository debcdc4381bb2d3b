"""Proofs as plain data for the record: each condition in words, and as a text to be asked later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import sympy

from metacount.frozen import frozen
from metacount.huggingface.config.families import family_of
from metacount.huggingface.module.model import running_config
from metacount.spec import ModelSpec
from metacount.textbook.fingerprints import PACKAGE
from metacount.textbook.proof_record import structure
from metacount.tracing.condition import in_words
from metacount.tracing.run.sizes import SMALLEST, divides
from metacount.tracing.run.source import As
from metacount.verify.cases import Case, cases, spec_of
from metacount.verify.for_all_sizes import Proof, prove

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from metacount.files import Json
    from metacount.formulas.dim import Dim

# What the two sides of a proof are made of; fingerprints of other files are not kept.
RESTS_ON = ("formulas/", "modules/", "huggingface/config/", "spec/", "textbook/closed_form.py")
# what is refused, and how it is called
NOTHING_RESTS_ON = ("spec/rules.py", "spec/rules_of_layers.py", "spec/legend.py")
# Of every proof, though no call leads there: what is declared, and what all go through.
ALWAYS = (
    "formulas/dim.py",
    "spec/model.py",
    "spec/flat.py",
    "spec/stack.py",
    "spec/embedding.py",
    "textbook/closed_form.py",
)
LONGEST = 240.0  # seconds that a forward with symbols may take: what is recorded is done once
SIGNS = {"==": "==", "!=": "!=", ">=": ">=", "<=": "<=", ">": ">", "<": "<"}


@frozen
class Condition:
    """What it says (nothing, where all sizes from 3 on fulfil it), and as text (none: always)."""

    says: str
    test: str


def conditions_of(proof: Proof, write: Callable[[sympy.Expr], str]) -> tuple[Condition, ...]:
    """Return the whole domain of a proof."""
    return tuple(dict.fromkeys(_conditions(proof, write)))


def _conditions(proof: Proof, write: Callable[[sympy.Expr], str]) -> Iterator[Condition]:
    for name, number in proof.numbers:
        yield Condition(says=f"{name} = {number}", test=f"{name} == {number}")
    for one in proof.domain:
        words = in_words(one, write).replace("config_", "")  # fields of a config alone
        yield Condition(says="" if _follows(one, proof.domain) else words, test=as_test(one))
    for name, number in proof.least:
        says = f"{name} ≥ {number}" if number > SMALLEST else ""
        yield Condition(says=says, test=f"{name} >= {number}")
    for text in () if proof.form is None else proof.form.solved:
        yield Condition(says=text, test="")


def _follows(condition: sympy.Basic, domain: tuple[sympy.Basic, ...]) -> bool:
    """Tell whether a condition says less than another one:
    a ≥ 3·b beside a ≥ 4·b, a ≥ 4 of an even size.
    """
    if not isinstance(condition, sympy.Ge) or not condition.lhs.is_Symbol:
        return False
    times, rest = condition.rhs.as_coeff_Mul()
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
        return f"({_whole(top)}) % ({_whole(bottom)}) == 0"
    difference = sympy.together(condition.lhs - condition.rhs)
    top, bottom = difference.as_numer_denom()
    if not bottom.is_positive:
        raise ValueError(f"no whole numbers: {condition}")
    return f"{_whole(sympy.expand(top))} {SIGNS[condition.rel_op]} 0"


def _whole(expr: sympy.Expr) -> str:
    """Write an expression of whole numbers in Python, quotients rounded down or up alone."""
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name).replace(".", "__")
    if isinstance(expr, sympy.Add):
        return " + ".join(_whole(term) for term in expr.as_ordered_terms()[::-1])
    if isinstance(expr, sympy.Mul):
        return "*".join(_factor(factor) for factor in expr.as_ordered_factors())
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
        return f"{_factor(expr.base)}**{int(expr.exp)}"
    if isinstance(expr, sympy.floor | sympy.ceiling):
        top, bottom = sympy.together(expr.args[0]).as_numer_denom()
        sign = "-" if isinstance(expr, sympy.ceiling) else ""
        return f"({sign}({sign}({_whole(top)})//({_whole(bottom)})))"
    if isinstance(expr, sympy.Mod):
        above, below = expr.args
        return f"(({_whole(above)}) % ({_whole(below)}))"
    raise ValueError(f"no whole numbers: {expr}")


def _factor(expr: sympy.Expr) -> str:
    text = _whole(expr)
    return f"({text})" if isinstance(expr, sympy.Add) else text


def recorded(case: Case, write: Callable[[sympy.Expr], str]) -> Json:
    """Write one case as plain data: for each quantity where it is equal,
    or what is left, or why not.
    """
    run_as = As(**{**vars(case.run_as), "seconds": LONGEST})
    found = prove(case.model, case.workload, run_as, case.quantities)
    return {
        "name": case.name,
        "quantities": {proof.quantity: _plain(proof, write) for proof in found},
    }


def _plain(proof: Proof, write: Callable[[sympy.Expr], str]) -> Json:
    if proof.problem:
        return {"problem": proof.problem}
    try:
        where = [[one.says, one.test] for one in conditions_of(proof, write)]
    except ValueError as error:
        return {"problem": str(error)}
    if proof.differences:
        ours = dict(proof.ours)
        left = {role: expr.xreplace(ours) for role, expr in proof.differences.items()}
        return {
            "differs": {role: write(expr) for role, expr in left.items()},
            "zero": as_test(sympy.Eq(sum(left.values()), 0, evaluate=False)),
            "where": where,
        }
    if proof.idle is not None:
        return {"more": write(sympy.factor(proof.idle)), "where": where}
    return {"where": where}


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
    name: str,
    model: Json | ModelSpec,
    others: tuple[ModelSpec, ...],
    write: Callable[[sympy.Expr], str],
) -> Json:
    """Record all that was shown of one model's structure: of a config's type, or of our modules."""
    return {
        "name": name,
        "structure": structure(spec_of(model)),
        "files": rests_on(model),
        "cases": [recorded(case, write) for case in cases(model, others)],
    }


def rests_on(model: Json | ModelSpec) -> list[str]:
    """List the files of this package that a proof of the model rests on."""
    with Watched() as watched:
        _run_both(model)
    return sorted(watched.files)


def _run_both(model: Json | ModelSpec) -> None:
    """Run what a proof of the model rests on: its mapping and formulas; of a spec, our modules."""
    from metacount.measure.ours.forward import measure_forward
    from metacount.measure.ours.params import measure_params
    from metacount.modules.build import build
    from metacount.textbook.closed_form import QUANTITIES, run_sizes

    for case in cases(model):
        spec = spec_of(case.model)
        run: dict[str, Dim] = run_sizes(spec, case.workload)
        for name, count in QUANTITIES.items():
            if spec.kind != "encoder" or name not in ("decode_matmul_flops", "kv_cache_bytes"):
                count(spec, run)
        if isinstance(case.model, ModelSpec):
            module = build(spec)
            measure_params(module)
            measure_forward(module, case.workload)


class Watched:
    """Which of this package's files run inside `with`: those that a proof rests on."""

    def __init__(self) -> None:
        self.files: set[str] = set(ALWAYS)
        self._seen: set[CodeType] = set()

    def __enter__(self) -> Watched:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        file = os.path.relpath(code.co_filename, PACKAGE).replace(os.sep, "/")
        rests = file.startswith(RESTS_ON) and file not in NOTHING_RESTS_ON
        if rests and file.endswith(".py"):
            self.files.add(file)
