"""What transformers' config classes refuse, said without importing them.

The rules are a record, `config_rules.json`, of one version: a config that breaks one can still be
counted, but nothing can be compared with code that does not take it.
"""

from __future__ import annotations

import json
import os

from metacount.errors import shown_value
from metacount.huggingface.config.keys import is_number

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.spec import ModelSpec

FILE = os.path.join(os.path.dirname(__file__), "config_rules.json")

_record: Json = {}  # read once

# In the words of a message. transformers tells 1 from 1.0, and true from 1.
WORDS = {
    "int": "a whole number",
    "float": "a number with a decimal point",
    "bool": "true or false",
    "str": "text",
    "null": "null",
    "list": "a list",
    "dict": "an object",
    "list[int]": "a list of whole numbers",
    "list[str]": "a list of texts",
}


def refusals(config: Json, spec: ModelSpec) -> tuple[str, ...]:
    """List why transformers' config class would not take `config`, as far as the record knows."""
    if not _record:
        with open(FILE, encoding="utf-8") as file:
            _record.update(json.load(file))
    rules = _record["types"].get(config["model_type"])
    if rules is None:
        return ()
    said = [
        f"{name} must be {_in_words(kind)}: got {shown_value(config[name])}"
        for name, kind in rules["keys"].items()
        if name in config and not _is_any(config[name], kind)
    ]
    said += [
        f"{name} must be 0 to 1: got {shown_value(config[name])}"
        for name in rules["shares"]
        if is_number(config.get(name)) and not 0 <= config[name] <= 1
    ]
    if rules["whole_heads"] and spec.d_model % spec.n_heads:
        rest = spec.d_model % spec.n_heads
        said.append(
            f"the width must be a multiple of the heads: {spec.d_model} % {spec.n_heads} = {rest}"
        )
    return tuple(f"transformers {_record['transformers']} refuses this config: {s}" for s in said)


def _is_any(value: object, kind: str) -> bool:
    return any(_is(value, one) for one in kind.split("|"))


def _is(value: object, kind: str) -> bool:
    if kind.startswith("'"):
        return value == kind[1:-1]
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(item, kind[5:-1]) for item in value)
    if kind == "null":
        return value is None
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(
        value, {"float": float, "bool": bool, "str": str, "list": list, "dict": dict}[kind]
    )


def _in_words(kind: str) -> str:
    kinds = kind.split("|")
    if "float" in kinds and "int" in kinds:
        kinds = [k for k in kinds if k not in ("float", "int")]
        said = ["a number"]
    else:
        said = []
    said += [WORDS.get(k, k) for k in kinds]
    return " or ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else said[0]
