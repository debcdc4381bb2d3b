"""Find every field that a model still needs, not only the first."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec import FIELDS, ModelSpec
from metacount.spec.model import REQUIRED_NAMES

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.files import Json

NEEDED = "is needed"  # how the rule begins that asks for a field
# Values with which nothing else is asked for, to go on looking with.
GUESSES: Json = {
    "kind": "decoder",
    "vocab_size": None,
    "position": "none",
    "activation": "relu",
    "gated": False,
    "norm": "layernorm",
}


def missing_fields(data: Mapping[str, object]) -> list[str]:
    """List the fields that `data` lacks to be a model, the required ones first.

    >>> missing_fields({"kind": "decoder", "d_model": 8, "n_layers": 2, "vocab_size": 9,
    ...                 "n_heads": 2, "norm": "rmsnorm", "position": "learned"})
    ['n_kv_heads', 'head_dim', 'n_positions', 'activation', 'gated', 'd_ff']
    """
    missing = [name for name in REQUIRED_NAMES if name not in data]
    filled = {**data, **{name: GUESSES.get(name, 2) for name in missing}}
    for _ in FIELDS:
        try:
            ModelSpec.from_dict(filled)
        except SpecError as error:
            if not error.rule.startswith(NEEDED) or not error.remedy.startswith("set "):
                break
            name = error.remedy.split()[1].rstrip(",")
            if name not in FIELDS or filled.get(name) is not None:
                break
            missing.append(name)
            filled[name] = filled["n_heads"] if name == "n_kv_heads" else GUESSES.get(name, 2)
        else:
            break
    return missing


def several_missing(data: Mapping[str, object], error: SpecError) -> list[str]:
    """List every field that is missing where an error names the first of several; else none."""
    if error.rule != "is missing" and not error.rule.startswith(NEEDED):
        return []
    fields = missing_fields(data)
    return fields if len(fields) > 1 else []


def named(fields: list[str]) -> str:
    """Describe fields by what each may be.

    >>> named(["norm", "gated", "d_ff"])
    'norm (layernorm or rmsnorm), gated (true or false), d_ff (a number)'
    """
    return ", ".join(f"{name} ({_takes(name)})" for name in fields)


def _takes(name: str) -> str:
    field = FIELDS[name]
    if field.choices:
        return " or ".join((", ".join(field.choices[:-1]), field.choices[-1]))
    return "true or false" if field.takes == "flag" else "a number"
