"""Textbook formula against the form read off code: equal for all sizes, or not.

Of transformers' code both are expressions in the config's own fields: the textbook's come from the
mapping of a config to a spec, run with numbers that remember where they are from; the code's from
tracing. Of our reference modules both are in the fields of the spec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from .closed_form import QUANTITIES as TEXTBOOK
from .figures import fitted
from .frozen import frozen
from .huggingface.config import spec_from_config
from .huggingface.model import chosen_class
from .spec import DTYPE_BYTES, ModelSpec, SpecError, Workload
from .tracing.build import configs_of, layer_fields, size_values, with_fields
from .tracing.code_form import CodeForm
from .tracing.domain import is_below
from .tracing.forms import Tracer
from .tracing.sizes import symbol

PROVEN = ("params", "active_params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes")
# Sizes of two stacks, of which a spec has one.
TOGETHER = {"decoder_ffn_dim": "encoder_ffn_dim"}
OF_A_DECODER = frozenset(["decode_matmul_flops", "kv_cache_bytes"])


class Named(int):
    """A number of a config that remembers the expression it is, through + - * // of numbers."""

    expr: Any

    def __new__(cls, value: int, expr: Any) -> Named:
        """The number `value`, which is `expr`."""
        made = super().__new__(cls, value)
        made.expr = expr
        return made

    def __add__(self, other: Any) -> Any:
        return _named(int(self) + _bare(other), self, other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return _named(int(self) - _bare(other), self, other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _named(int(self) * _bare(other), self, other, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Any:
        exact = isinstance(other, int) and int(self) % int(other) == 0
        divided = (lambda a, b: a / b) if exact else (lambda a, b: sympy.floor(a / b))
        return _named(int(self) // _bare(other), self, other, divided)

    def __radd__(self, other: Any) -> Any:
        return _named(_bare(other) + int(self), other, self, lambda a, b: a + b)

    def __rsub__(self, other: Any) -> Any:
        return _named(_bare(other) - int(self), other, self, lambda a, b: a - b)

    def __rmul__(self, other: Any) -> Any:
        return _named(_bare(other) * int(self), other, self, lambda a, b: a * b)

    def __deepcopy__(self, _memo: Any) -> Named:
        return self


def _bare(value: Any) -> Any:
    return int(value) if isinstance(value, Named) else value


def _named(value: Any, left: Any, right: Any, combine: Any) -> Any:
    if type(value) is not int or isinstance(left, bool) or isinstance(right, bool):
        return value  # a float, or nothing that is a size
    return Named(value, combine(_expr(left), _expr(right)))


def _expr(value: Any) -> Any:
    return value.expr if isinstance(value, Named) else sympy.Integer(int(value))


@frozen
class Proof:
    """One quantity of one model: the textbook's form less the code's, role by role, in letters.

    `differences` has what is not zero; it is empty where both are the same for all sizes of
    `domain`. `problem` says why nothing could be compared.
    """

    quantity: str
    proven: bool
    differences: dict[str, Any]
    form: CodeForm | None
    problem: str = ""


def textbook_forms(
    config: dict[str, Any], workload: Workload
) -> tuple[ModelSpec, dict[str, dict[str, Any]]]:
    """Every textbook quantity by role, in the fields of `config` and B, S, S_e.

    Raises what the mapping raises for a config without a spec.
    """
    named = _named_config(config)
    spec = spec_from_config(named).spec
    fitted(spec, workload)
    fields = {name: value for name, value in spec.to_dict().items() if isinstance(value, Named)}
    in_fields = spec.substituted(**{name: value.expr for name, value in fields.items()})
    run = _run_letters(spec, workload)
    names = _quantities(spec, PROVEN)
    if spec.attention == "mla":
        names.remove("decode_matmul_flops")  # transformers decodes in another form than we count
    return spec, {name: TEXTBOOK[name](in_fields, run) for name in names}


def spec_forms(spec: ModelSpec, sizes: Iterable[str], workload: Workload) -> dict[str, Any]:
    """Every textbook quantity by role, in the fields of `spec` named in `sizes` and B, S, S_e."""
    in_fields = spec.substituted(**{name: symbol(name) for name in sizes})
    run = _run_letters(spec, workload)
    return {name: TEXTBOOK[name](in_fields, run) for name in _quantities(spec, TEXTBOOK)}


def _quantities(spec: ModelSpec, names: Iterable[str]) -> list[str]:
    return [name for name in names if spec.kind != "encoder" or name not in OF_A_DECODER]


def _run_letters(spec: ModelSpec, workload: Workload) -> dict[str, Any]:
    return {
        "batch_size": symbol("B"),
        "seq_len": symbol("S"),
        "kv_len": symbol("T"),
        "source_len": symbol("S_e") if spec.has_encoder else 0,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }


def _named_config(config: dict[str, Any]) -> dict[str, Any]:
    """The whole config, defaults put in, its sizes as numbers that know their names."""
    _, made, choice = chosen_class(config)
    values = {**size_values(config), **layer_fields(config, {})}
    whole = {**config, "architectures": [choice.class_name]}
    for owner, prefix in configs_of(made):
        if prefix:
            continue
        for name in vars(owner):
            if name in values:
                whole[name] = Named(values[name], symbol(name))
    return whole


def _put_right(config: dict[str, Any]) -> dict[Any, Any]:
    """Sizes that the mapping refuses to have other than another one, in that one.

    hidden_size as heads times their width, where no other width is taken: either the config's class
    sets the width itself, or the mapping refuses another. So for a pair of sizes that are equal.
    """
    values = size_values(config)
    found = {}
    width, heads, d = (values.get(n) for n in ("head_dim", "num_attention_heads", "hidden_size"))
    if width and heads and d == heads * width and not _free(config, {"head_dim": 2 * width}):
        found[symbol("hidden_size")] = symbol("num_attention_heads") * symbol("head_dim")
    for name, other in TOGETHER.items():
        value = values.get(name)
        if value and value == values.get(other) and not _free(config, {name: 2 * value}):
            found[symbol(name)] = symbol(other)
    return found


def _free(config: dict[str, Any], change: dict[str, int]) -> bool:
    """Whether a config with other sizes has a spec, and still has them."""
    changed = with_fields(config, change)
    try:
        spec_from_config(changed)
    except SpecError:
        return False
    return change.items() <= size_values(changed).items()


def prove(model: dict[str, Any] | ModelSpec, workload: Workload) -> tuple[Proof, ...]:
    """Compare every quantity by role, for all sizes: with transformers' code of a config, or with
    our reference modules of a spec.

    Windows and one-sided lengths are those of the workload's side: the domain says which.
    """
    tracer = Tracer(model, workload)
    if isinstance(model, ModelSpec):
        source = tracer.source
        textbook = spec_forms(model, {**source.sizes(), **source.layer_fields({})}, workload)
        known: dict[Any, Any] = {}
    else:
        _, textbook = textbook_forms(model, workload)
        known = _put_right(model)
    return tuple(_proof(name, textbook[name], tracer, known) for name in textbook)


def _proof(quantity: str, textbook: dict[str, Any], tracer: Tracer, known: dict[Any, Any]) -> Proof:
    try:
        form = tracer.form(quantity)
    except Exception as error:  # somebody else's code: the reason is given
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return Proof(quantity=quantity, proven=False, differences={}, form=None, problem=problem)
    if form.how != "traced":
        problem = f"the code's form is only {form.how}"
        return Proof(quantity=quantity, proven=False, differences={}, form=form, problem=problem)
    return Proof(
        quantity=quantity,
        proven=not (left := differences(textbook, form, known)),
        differences=left,
        form=form,
    )


def differences(
    textbook: dict[str, Any], form: CodeForm, put_right: dict[Any, Any] | None = None
) -> dict[str, Any]:
    """Textbook less code, role by role, where it is not zero in the form's domain.

    `put_right` are fields that the config's class makes of others.
    """
    known = {c.lhs: c.rhs for c in form.domain if isinstance(c, sympy.Eq) and c.lhs.is_Symbol}
    ours = put_right or {}
    found = {}
    for role in {**textbook, **form.by_role}:
        mine = sympy.sympify(textbook.get(role, 0))
        for least in mine.atoms(sympy.Min):
            # the side of a window that the form is of: its domain says so
            mine = mine.xreplace({least: min(least.args, key=lambda arg: _at(arg, form))})
        theirs = form.by_role.get(role, sympy.Integer(0))
        left = (mine - theirs).subs(ours).subs(known)
        # no chunk is full where a sequence is shorter than one
        floors = [(part, part.args[0].as_numer_denom()) for part in left.atoms(sympy.floor)]
        none = {part: sympy.Integer(0) for part, (x, y) in floors if is_below(x, y, form.domain)}
        left = left.xreplace(none)
        if any(_reduced(case) != 0 for case in _cases(left)):
            found[role] = sympy.factor(_reduced(left))
    return found


def _at(expr: Any, form: CodeForm) -> int:
    return int(expr.xreplace({s: sympy.Integer(form.every_number[s]) for s in expr.free_symbols}))


def _reduced(expr: Any) -> Any:
    return sympy.expand(sympy.cancel(sympy.expand(expr)))


def _cases(expr: Any) -> Any:
    """`expr` for every remainder of the counts that it rounds parts of: floor(N/2), N = 2·q + r."""
    periods: dict[Any, int] = {}
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
