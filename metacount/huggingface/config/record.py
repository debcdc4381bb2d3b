"""What transformers itself says of each model type, recorded: nothing of it is imported to count.

`types.jsonl` has a line a type: the file of its row, its classes, the defaults of its keys, their
other names, and what its code refuses: the kind of value of each key, the kinds that were tried and
refused, the keys that are shares, and whether heads must divide the width.
`benchmarks/config_rules.py` writes it from the installed transformers. A config that breaks a rule
can still be counted, but not compared with code that does not take it.
"""

from __future__ import annotations

import json
import os
from importlib import import_module

from metacount.errors import shown_value
from metacount.files import untagged
from metacount.huggingface.config.keys import HARMLESS, NEUTRAL, is_number
from metacount.huggingface.config.parts import Family

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.spec import ModelSpec

FILE = os.path.join(os.path.dirname(__file__), "types.jsonl")

_lines: dict[str, str] = {}  # read once: the text of each type's line
_first: Json = {}  # read once: the record of all types

# In the words of a message. transformers tells 1 from 1.0, and true from 1.
WORDS = {
    "int": "a whole number",
    "float": "a number with a decimal point",
    "bool": "true or false",
    "str": "text",
    "null": "null",
    "list": "a list",
    "dict": "an object",
    "list[float]": "a list of numbers with a decimal point",
    "list[int]": "a list of whole numbers",
    "list[number]": "a list of numbers",
    "list[str]": "a list of texts",
}
# Of all types, though no size depends on them, and none is given to a module that is built here.
KINDS = {
    "dtype": "str|null",
    "id2label": "dict|null",
    "quantization_config": "dict|null",
    "torch_dtype": "str|null",
}
# Of a type, inside an object of its config that transformers reads into a class of its own.
INSIDE = {
    "mpt": {
        "attn_config": {
            "alibi": "bool",
            "alibi_bias_max": "int",
            "attn_impl": "str",
            "attn_pdrop": "int",
            "attn_type": "'multihead_attention'|'multiquery_attention'",
            "attn_uses_sequence_id": "bool",
            "clip_qkv": "float|null",
            "prefix_lm": "bool",
            "qk_ln": "bool",
            "softmax_scale": "float|null",
        }
    }
}
# Types of which head_dim, which sizes nothing, must go in pairs: transformers rotates so many.
PAIRED = ("deepseek_v3", "longcat_flash", "youtu")
# Types whose code reads rope_parameters as they are written, without defaults.
READ_BY_THEMSELVES = ("cohere2_moe",)
TYPES = {"float": float, "bool": bool, "str": str, "list": list, "dict": dict}


def recorded(model_type: str) -> Json:
    """Return what transformers says of a type."""
    record: Json = json.loads(_read()[model_type])
    return record


def mapped_types() -> tuple[str, ...]:
    """List the types in the record."""
    return tuple(_read())


def recorded_version() -> str:
    """Return the version of transformers that the record is made of."""
    _read()
    version: str = _first["transformers"]
    return version


def recorded_texts() -> dict[str, Json]:
    """Return what types of text have for defaults that differ from those of the type that they are
    like.
    """
    _read()
    texts: dict[str, Json] = _first["texts"]
    return texts


def is_known(model_type: str) -> bool:
    """Tell whether that version of transformers has a type, mapped or not."""
    _read()
    return model_type in _first["known"]


def _read() -> dict[str, str]:
    if not _lines:
        with open(FILE, encoding="utf-8") as file:
            _first.update(json.loads(next(file)))
            _lines.update((line.split('"', 4)[3], line) for line in file)
    return _lines


FILES = ("dense", "mixtures", "hybrids", "older", "encoders")


def rows_of(file: str) -> dict[str, Family]:
    """Load the rows of one file."""
    rows: dict[str, Family] = import_module(f"metacount.huggingface.config.families.{file}").ROWS
    return rows


def family_of(model_type: str, text: str = "") -> Family | None:
    """Find the mapping of a model type, if there is one; with the defaults of a type of `text`."""
    if model_type not in mapped_types():
        return None
    record = recorded(model_type)
    row = rows_of(record["file"])[model_type]
    passed = (HARMLESS | NEUTRAL.keys() | {*row.ignored, "is_encoder_decoder"}) - {*row.reads}
    own = {key: value for key, value in record["defaults"].items() if key not in passed}
    defaults = {**own, **row.defaults}
    aliases = {name: key for name, key in record["aliases"].items() if key in defaults}
    return Family(
        parts=row.parts,
        classes={**record["classes"], **row.classes},
        defaults={**defaults, **recorded_texts().get(text, {})},
        aliases={**aliases, **row.aliases},
        ignored=row.ignored,
        kind=record["kind"],
    )


def refusals(config: Json, spec: ModelSpec, known: list[str]) -> tuple[str, ...]:
    """List why transformers would not take `config`, as far as the record knows; and what of it is
    `known` from reading it.
    """
    rules, version = recorded(config["model_type"]), recorded_version()
    broken = _broken_kinds(config, {**KINDS, **rules["kinds"]}, "")
    for key, kinds in INSIDE.get(config["model_type"], {}).items():
        if isinstance(config.get(key), dict):
            broken += _broken_kinds(config[key], kinds, f"{key}.")
    broken += [
        f"{name} must be 0 to 1: got {shown_value(config[name])}"
        for name in rules["shares"]
        if is_number(config.get(name)) and not 0 <= config[name] <= 1
    ]
    if rules["whole_heads"] and spec.d_model % spec.n_heads:
        rest = spec.d_model % spec.n_heads
        broken.append(
            f"the width must be a multiple of the heads: {spec.d_model} % {spec.n_heads} = {rest}"
        )
    broken += [
        f"{name} must not be {kind}: got {shown_value(config[name])}"
        for name, kinds in rules["refuses"].items()
        if name in config and (kind := kind_of(config[name])) in kinds
    ]
    width = config.get("head_dim")
    if config["model_type"] in PAIRED and isinstance(width, int) and width > 4 and width % 2:
        broken.append(f"head_dim must be even for RoPE: got {width}")
    padding = config.get("pad_token_id", rules["padding"])
    if rules["pads"] and is_number(padding) and not -spec.vocab_size <= padding < spec.vocab_size:
        broken.append(f"pad_token_id must be below the vocabulary's {spec.vocab_size}: {padding}")
    name = "ignore_keys_at_rope_validation"
    own_reading = config["model_type"] in READ_BY_THEMSELVES
    rotates = own_reading or "rope_parameters" in rules["defaults"]
    if rotates and isinstance(config.get(name), int | float):
        broken.append(f"{name} must be a list: got {shown_value(config[name])}")
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    broken += _broken_rope(key, config.get(key) or {}, rules["scalings"], config)
    given = config.get("rope_parameters", {"rope_theta": None})
    if own_reading and "rope_theta" not in (given or {}):
        broken.append("rope_parameters must have rope_theta")
    lines = dict.fromkeys([*broken, *known])
    return tuple(f"transformers {version} refuses this config: {rule}" for rule in lines)


def _broken_kinds(values: Json, kinds: dict[str, str], path: str) -> list[str]:
    return [
        f"{path}{name} must be {_in_words(kind)}: got {shown_value(values[name])}"
        for name, kind in kinds.items()
        if name in values and not _is_any(values[name], kind)
    ]


def _broken_rope(key: str, value: object, scalings: Json, config: Json) -> list[str]:
    if not isinstance(value, dict):
        return [f"{key} must be an object: got {shown_value(value)}"]
    broken = []
    for each in (value, *value.values()):  # or one for each kind of layer
        kind = each.get("rope_type") or each.get("type") if isinstance(each, dict) else None
        when = scalings.get(kind, "") if isinstance(kind, str) else ""
        if when == "at all":
            broken.append(f"its code has no RoPE of type {kind}")
        elif when and config.get("head_dim") is None:
            broken.append(f"head_dim must be a whole number for RoPE of type {kind}: got null")
    return broken


def kind_of(value: object) -> str:
    """Name the kind of a value, as fine as what transformers' code refuses.

    >>> [kind_of(value) for value in (None, True, -1, 2.5, [1])]
    ['null', 'true', 'a whole number below 0', 'a number with a decimal point', 'a list']
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    assert is_number(value)  # JSON has nothing else
    kind = "a whole number" if isinstance(value, int) else "a number with a decimal point"
    return f"{kind} below 0" if value < 0 else kind if value else "0"


def _is_any(value: object, kind: str) -> bool:
    return any(_is(value, name) for name in kind.split("|"))


def _is(value: object, kind: str) -> bool:
    if kind.startswith("'"):
        return value == kind[1:-1]
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(item, kind[5:-1]) for item in value)
    if kind == "null":
        return value is None
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return is_number(value)
    return isinstance(untagged(value), TYPES[kind])


def _in_words(kind: str) -> str:
    kinds = kind.split("|")
    numbers = ["a number"] if {"int", "float"} <= set(kinds) else []
    if numbers:
        kinds = [k for k in kinds if k not in ("float", "int")]
    names = numbers + [WORDS.get(k, k) for k in kinds]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
