"""A worksheet as JavaScript: forms, rules and proofs as functions of whole numbers.

All text goes through `literal`: a config's name is a stranger's, and stays a text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from metacount.algebra.javascript import condition, in_javascript, names_in
from metacount.algebra.writing import in_letters
from metacount.figures import FIGURES
from metacount.settings.values import LENGTHS
from metacount.spec import DTYPE_BYTES
from metacount.textbook.proven import FROM, own_type
from metacount.textbook.read_rules import ELSEWHERE
from metacount.textbook.worksheet import ALIASES, BYTES_NAME, RUN
from metacount.views.formula import in_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.textbook.closed_form import ClosedForm
    from metacount.textbook.read_rules import Rule
    from metacount.textbook.worksheet import Worksheet

UNKNOWN = "nothing is recorded of a model of this structure"
REFUSED = "transformers refuses this config, so that nothing of its code speaks of it"


class Code(str):
    """JavaScript that stands as it is."""


def literal(value: object) -> str:
    """Write plain data as JavaScript that cannot end its HTML script: whole numbers become BigInts.

    >>> literal({"a": [1, "</script>", None], "f": Code("(v) => v.d")})
    '{"a": [1n, "\\\\u003c/script\\\\u003e", null], "f": (v) => v.d}'
    """
    if isinstance(value, Code):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}n"
    text = json.dumps(value)  # ASCII alone: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def models_js(sheets: Sequence[Worksheet]) -> str:
    """Write the models of a page in JavaScript, one a line."""
    return ",\n".join(literal(_model(sheet)) for sheet in sheets)


def _model(sheet: Worksheet) -> Json:
    spec = sheet.model.spec
    return {
        "name": sheet.model.name,
        "id": sheet.model.id,
        "dtype": sheet.workload.dtype,
        "dtypes": dict(DTYPE_BYTES),
        "bytesName": BYTES_NAME,
        "aliases": ALIASES,
        "runNames": RUN,
        "sizes": [
            {
                "name": s.term.name,
                "letter": s.term.letter,
                "meaning": s.term.meaning,
                "isLength": s.term.name in (*LENGTHS, *RUN[1:]),
                "number": s.number,
                "least": s.least,
                "most": s.most,
            }
            for s in sheet.sizes
        ],
        "derived": [
            {
                "name": name,
                "letter": term.letter,
                "meaning": term.meaning,
                "value": Code(f"(v) => {in_javascript(text, _names(text))}"),
            }
            for name, (term, text) in sheet.derived.items()
        ],
        "quantities": [
            {
                "name": name,
                "meaning": FIGURES[name].meaning,
                "parts": None if form is None else _parts(form),
            }
            for name, form in sheet.forms.items()
        ],
        "elsewhere": ELSEWHERE,
        "rules": _rules(sheet.rules),
        "longest": None
        if spec.longest is None
        else _formula("n_positions - position_offset")
        if spec.position_offset
        else _formula("n_positions"),
        "chunked": _formula("window") if spec.window_kind == "chunked" and spec.window else None,
        "fixed": sheet.fixed,
        "config": {f"config_{n}": v for n, v in sheet.config.items() if type(v) is int},
        "given": list(sheet.config),
        "ownType": own_type(sheet.model),
        "from": FROM,
        "order": [*spec.to_dict(), *RUN],
        "unproven": REFUSED if sheet.model.refused else UNKNOWN,
        "proofs": None if sheet.proofs is None else _proofs(sheet.proofs),
    }


def _parts(form: ClosedForm) -> list[Json]:
    return [
        {"role": part, "letters": in_letters(expr), "value": _formula(in_python(expr, form))}
        for part, expr in form.parts.items()
    ]


def _names(text: str) -> dict[str, str]:
    """Map each name of a formula to what stands for it: a member of the setting `v`."""
    return {name: f"v.{ALIASES.get(name, name)}" for name in names_in(text)}


def _formula(text: str) -> Code:
    return Code(f"(v) => {in_javascript(text, _names(text))}")


def _test(text: str) -> Code:
    return Code(f"(v) => {condition(text, _names(text))}")


def _rules(rules: Sequence[Rule]) -> list[Json]:
    return [
        {
            "test": _test(rule.test),
            "outcome": rule.outcome,
            "message": [_formula(text) if i % 2 else text for i, text in enumerate(rule.message)],
            "otherwise": _rules(rule.otherwise),
        }
        for rule in rules
    ]


def _proofs(record: Json) -> Json:
    return {
        "transformers": record["transformers"],
        "layers": [[name, _formula(text)] for name, text in record["layers"].items()],
        "forms": {quantity: _formula(text) for quantity, text in record["forms"].items()},
        "conditions": [_condition(*condition) for condition in record["conditions"]],
        "sides": {
            side: [{"name": one["name"], "cases": _cases(one)} for one in those]
            for side, those in record["sides"].items()
        },
    }


def _condition(says: str, test: str, defaults: Json | None = None) -> Json:
    return {
        "says": says,
        "test": test,
        "names": list(names_in(test)) if test else [],
        "holds": _test(test) if test else Code("() => true"),
        "defaults": [
            [field, names, _formula(text)] for field, (text, *names) in (defaults or {}).items()
        ],
    }


def _cases(one: Json) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for case in one["cases"]:
        for quantity, recorded in case["quantities"].items():
            found.setdefault(quantity, []).append(_case(recorded))
    return found


def _case(case: Json) -> Json:
    """Copy what is recorded of a case; where something is left, write the test whether it is 0."""
    found = {key: value for key, value in case.items() if key not in ("zero", "textbook", "code")}
    if "zero" in case:
        test = case["zero"]
        found["zero"] = {"holds": _test(test), "names": list(names_in(test))}
    return found
