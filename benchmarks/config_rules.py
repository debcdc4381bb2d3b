"""What transformers says of each model type, so that `count` need not import it.

python benchmarks/config_rules.py [TYPE…] [--check]

Writes metacount/huggingface/config/types.jsonl, a line for each mapped model type: its classes, the
defaults of its keys, their other names, and what it refuses: the kind of value that its config
class takes for each key (its annotations), and, by trial, the kinds of value of which no module is
built, the keys that must be a share from 0 to 1 and whether heads must divide the width. --check
writes nothing and exits with 1 when the file is not what the installed transformers says.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parent.parent
FILE = ROOT / "metacount" / "huggingface" / "config" / "types.jsonl"
sys.path.insert(0, str(ROOT / "tests"))  # for the small configs

PLAIN = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    type(None): "null",
    list: "list",
    tuple: "list",
    dict: "dict",
}


def kind_of(annotation: Any) -> str | None:
    """`int | None` as "int|null"; None for what is not plain data, or of a form of its own."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        parts = [kind_of(arg) for arg in args]
        return None if None in parts else "|".join(sorted({*parts} - {None}))
    if origin is Literal:
        return "|".join(sorted(f"'{arg}'" for arg in args))
    if origin in (list, tuple) and args[0] in (int, float, str):  # JSON has no tuples
        return f"list[{PLAIN[args[0]]}]"
    return "list[number]" if origin is list and set(get_args(args[0])) == {int, float} else None


def kinds(config_class: Any) -> dict[str, str]:
    """The keys of a config class whose kind is plain, in order."""
    from metacount.huggingface.config.limits import DROPPED

    found = {field.name: kind_of(field.type) for field in fields(config_class)}
    # num_labels is a property, which makes a range of it
    found["num_labels"] = "bool|int"
    passed = DROPPED - {"use_cache", "use_mamba_kernels"}
    return {k: kind for k, kind in sorted(found.items()) if kind is not None and k not in passed}


def cache_implementation() -> str:
    """What a generation config takes for it: a model makes one of its config when it is built."""
    from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

    return "|".join([*sorted(f"'{name}'" for name in ALL_CACHE_IMPLEMENTATIONS), "null"])


def builds(config: dict[str, Any]) -> bool:
    """Whether transformers makes a model of a config."""
    from metacount.errors import SpecError
    from metacount.huggingface.module.model import build_transformers

    try:
        build_transformers(config)
    except SpecError:
        return False
    return True


# Of each kind of value, as `record.kind_of` names it, some that it is tried by.
TRIED: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "true": (True,),
    "false": (False,),
    "0": (0, 0.0),
    "a whole number": (1, 2, 3, 64),
    "a whole number below 0": (-1, -2),
    "a number with a decimal point": (0.5, 2.0),
    "a number with a decimal point below 0": (-0.5, -2.0),
    "text": ("gelu", "auto", "M", "none"),
    "an empty list": ([],),
    "an empty object": ({},),
}
# Keys that have rules of their own.
RULED = ("rope_parameters", "rope_scaling", "pad_token_id", "ignore_keys_at_rope_validation")


def refuses(model_type: str, own: dict[str, Any]) -> dict[str, list[str]]:
    """The kinds of value of each key that are counted, and that no config of the type may have:
    tried for each of its classes. `own` is what the record says of the type besides.
    """
    from helpers.mutated_configs import bases, keys_of, source_text, words_near

    code, configs, found = source_text(model_type), [*bases(model_type).values()], {}
    named = [key for key in keys_of(model_type) if key in own["aliases"] or key in words_of(code)]
    keys = [key for key in named if key not in RULED and key not in own["shares"]]
    for kind, values in TRIED.items():
        # of a key that has a kind, one of these is as good as another
        tried = [key for key in keys if kind != "a whole number" or key not in own["kinds"]]
        first = {
            key: value
            for key in tried
            for value in values[:1]
            if is_counted({**configs[0], key: value})
        }
        for key in failing(configs[0], first):
            more = words_near(model_type, key) if kind == "text" else ()
            changed = ({**base, key: value} for base in configs for value in (*values, *more))
            if not any(builds(config) for config in changed if is_counted(config)):
                found.setdefault(key, []).append(kind)
    return dict(sorted(found.items()))


@cache
def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(re.findall(r"\w+", text))


def failing(base: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    """The keys whose changes leave no module to build, each alone; tried together as long as one is
    built.
    """
    if not changes or builds({**base, **changes}):
        return []
    if len(changes) == 1:
        return [*changes]
    items = [*changes.items()]
    half = len(items) // 2
    return failing(base, dict(items[:half])) + failing(base, dict(items[half:]))


# the last two are Phi-MoE's, of any kind
TRAINED = {"original_max_position_embeddings": 32, "short_mscale": 1.0, "long_mscale": 1.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0, **TRAINED},
    "dynamic": {"factor": 2.0, **TRAINED},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED},
    "yarn": {"factor": 2.0, **TRAINED},
    "longrope": {"factor": 2.0, **TRAINED},
}


def scalings(small: dict[str, Any]) -> dict[str, str]:
    """The kinds of scaled RoPE that are counted, and of which a type builds no module: without
    head_dim, or whatever else there is.
    """
    from metacount.huggingface.config.to_spec import spec_from_config

    wide = {**small, "head_dim": 16}  # of a half or a quarter, whole pairs
    has_heads = "head_dim" in small and "qk_rope_head_dim" not in small
    small = wide if has_heads and is_counted(wide) else small
    spec, found = spec_from_config(small).spec, {}
    for kind, numbers in SCALINGS.items():
        rotated = spec.rotary_dim or spec.head_dim or spec.qk_rope_head_dim or 0
        factors = [1.0] * (rotated // 2)
        lists = {"short_factor": factors, "long_factor": factors} if kind == "longrope" else {}
        theta = {"rope_type": kind, "rope_theta": 1e4}
        plain = {**small, "rope_parameters": {**theta, **numbers, **lists}}
        if is_counted(plain) and not builds(plain):
            headed = builds({**plain, "head_dim": spec.head_dim})
            found[kind] = "without head_dim" if headed else "at all"
    return found


def is_counted(config: dict[str, Any]) -> bool:
    """Whether there is a count of a config, and no rule against it."""
    from metacount.errors import SpecError
    from metacount.huggingface.config.to_spec import spec_from_config

    try:
        return not spec_from_config(config).refused
    except SpecError:
        return False


def shares(small: dict[str, Any], keys: dict[str, str]) -> list[str]:
    """The keys that may be a half but neither below 0 nor above 1."""
    numbers = [name for name, kind in keys.items() if "float" in kind.split("|")]
    return [
        name
        for name in numbers
        if builds({**small, name: 0.5})
        and not any(builds({**small, name: value}) for value in (-0.5, 1.5))
    ]


def pads(small: dict[str, Any]) -> bool:
    """Whether the token of padding must be one of the vocabulary."""
    return builds({**small, "pad_token_id": 0}) and not builds({**small, "pad_token_id": 2**30})


def whole_heads(config_class: Any) -> bool:
    """Whether the class itself wants a width that its heads divide."""
    try:
        config_class(hidden_size=256, num_attention_heads=7)
    except Exception as error:
        return "multiple of the num" in str(error) or "not divisible" in str(error)
    return False


def classes(model_type: str) -> tuple[dict[str, str], str]:
    """The classes of a type, each with its end, and what the first of them is for."""
    from metacount.huggingface.module.model import MAPPINGS, TEXT_KINDS, model_types

    kinds = {kind: model_types(kind).get(model_type) for kind, _ in MAPPINGS}
    heads = {name: "head" for kind in TEXT_KINDS if (name := kinds[kind])}
    return {**heads, str(kinds["base"]): "body"}, next(kind for kind in TEXT_KINDS if kinds[kind])


def defaults(config_class: Any) -> dict[str, Any]:
    """What a config class takes for each key of its own, by the first of the key's names.

    The base of RoPE is no key of a class, but an attribute of it, where all layers have the same.
    """
    from transformers.configuration_utils import PreTrainedConfig

    from metacount.huggingface.config.keys import HARMLESS
    from metacount.huggingface.config.limits import DROPPED

    passed = DROPPED | (HARMLESS & {field.name for field in fields(PreTrainedConfig)})
    found: dict[str, Any] = {}
    for field in fields(config_class):
        if field.name not in passed:
            value = field.default_factory() if field.default is MISSING else field.default
            found[config_class.attribute_map.get(field.name, field.name)] = value
    if "rope_parameters" in found and isinstance(config_class.default_theta, float):
        found["rope_theta"] = config_class.default_theta
    return dict(sorted(found.items()))


def differing(model_type: str, like: str) -> dict[str, Any]:
    """The defaults of a type of text that the type that it is like has otherwise, or not at all."""
    from metacount.huggingface.module.model import config_class

    own, others = defaults(config_class(model_type)), defaults(config_class(like))
    return {
        key: value
        for key, value in own.items()
        if key not in ("bos_token_id", "eos_token_id") and others.get(key, ...) != value
    }


def plain(value: Any) -> Any:
    """A value as JSON has it, infinity as transformers writes it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {"__float__": "Infinity"} if value == float("inf") else value


def records(types: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """All of it, or of some types, from the installed transformers; the first says which, and all
    types it knows.
    """
    from helpers.small_configs import SMALL

    from metacount.huggingface.config.record import FILES, _read, rows_of
    from metacount.huggingface.config.to_spec import LIKE
    from metacount.huggingface.module.model import config_class, config_names, version

    first = {"made_by": "benchmarks/config_rules.py", "transformers": version()}
    texts = {name: differing(name, like) for name, like in LIKE.items()}
    yield {**first, "known": sorted(config_names()), "texts": texts}
    rows = {name: (file, row) for file in FILES for name, row in rows_of(file).items()}
    for model_type, (file_name, row) in rows.items():
        if types is not None and model_type not in types:
            continue
        theirs = config_class(model_type)
        own = kinds(theirs)
        if "cache_implementation" in row.ignored:
            own["cache_implementation"] = cache_implementation()
        ends, kind = classes(model_type)
        padding = [each.default for each in fields(theirs) if each.name == "pad_token_id"]
        record = {
            "type": model_type,
            "file": file_name,
            "kind": kind,
            "classes": ends,
            "defaults": defaults(theirs),
            "aliases": dict(theirs.attribute_map),
            "kinds": own,
            "shares": shares({"model_type": model_type, **SMALL[model_type]}, own),
            "whole_heads": whole_heads(theirs),
            "pads": pads({"model_type": model_type, **SMALL[model_type]}),
            "padding": next(iter(padding), None),
        }
        record |= {"scalings": {}, "refuses": {}}
        _read()[model_type] = json.dumps(plain(record))  # what is tried now has no rules yet
        if "rope_parameters" in record["defaults"]:
            record["scalings"] = scalings({"model_type": model_type, **SMALL[model_type]})
        yield {**record, "refuses": refuses(model_type, record)}


def text_of(records: Iterable[dict[str, Any]]) -> str:
    """The text of the file: a line each."""
    return "".join(json.dumps(plain(record)) + "\n" for record in records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="renew the lines of these alone")
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    old = FILE.read_text("utf-8")
    lines = text_of(records(args.types or None)).splitlines(keepends=True)
    if args.types:
        new = {name_of(line): line for line in lines}
        names = dict.fromkeys([*map(name_of, old.splitlines()), *new])
        kept = {name_of(line): line for line in old.splitlines(keepends=True)}
        lines = [new.get(name, kept.get(name, "")) for name in names]
    text = "".join(lines)
    if args.check:
        print("the file is what transformers says" if old == text else "the file is out of date")
        return 0 if old == text else 1
    FILE.write_text(text, "utf-8")
    print(f"{FILE.name}: {len(lines) - 1} types")
    return 0


def name_of(line: str) -> str:
    """The type of a line of the file; the first line's is its maker."""
    return line.split('"', 4)[3]


if __name__ == "__main__":
    sys.exit(main())
