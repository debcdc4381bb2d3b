"""What transformers' config classes take, so that `count` can say without them what they refuse.

python benchmarks/config_rules.py [--check]

Writes metacount/huggingface/config/config_rules.json: for each mapped model type the kind of value
that its config class takes for each key (its annotations), the keys that must be a share from 0 to
1 and whether heads must divide the width (both tried). --check writes nothing and exits with 1
when the file is not what the installed transformers says.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parent.parent
FILE = ROOT / "metacount" / "huggingface" / "config" / "config_rules.json"
sys.path.insert(0, str(ROOT / "tests"))  # for the small configs

PLAIN = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    type(None): "null",
    list: "list",
    dict: "dict",
}


def kind_of(annotation: Any) -> str | None:
    """`int | None` as "int|null"; None for what is not plain data, or of a form of its own."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        parts = [kind_of(arg) for arg in args]
        return None if None in parts else "|".join(sorted(part for part in parts if part))
    if origin is Literal:
        return "|".join(sorted(f"'{arg}'" for arg in args))
    if origin is list and args[0] in (int, str):
        return f"list[{PLAIN[args[0]]}]"
    return None


def kinds(config_class: Any) -> dict[str, str]:
    """The keys of a config class whose kind is plain, in order."""
    from metacount.huggingface.config.limits import DROPPED

    found = {field.name: kind_of(field.type) for field in fields(config_class)}
    # num_labels is a property, which makes a range of it
    found["num_labels"] = "bool|int"
    return {k: kind for k, kind in sorted(found.items()) if kind is not None and k not in DROPPED}


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


def shares(small: dict[str, Any], keys: dict[str, str]) -> list[str]:
    """The keys that may be a half but neither below 0 nor above 1."""
    numbers = [name for name, kind in keys.items() if "float" in kind.split("|")]
    return [
        name
        for name in numbers
        if builds({**small, name: 0.5})
        and not any(builds({**small, name: value}) for value in (-0.5, 1.5))
    ]


def whole_heads(config_class: Any) -> bool:
    """Whether the class itself wants a width that its heads divide."""
    try:
        config_class(hidden_size=256, num_attention_heads=7)
    except Exception as error:
        return "multiple of the num" in str(error) or "not divisible" in str(error)
    return False


def rules() -> dict[str, Any]:
    """All of it, from the installed transformers."""
    from helpers.small_configs import SMALL

    from metacount.huggingface.config.families import family_of
    from metacount.huggingface.config.to_spec import mapped_types
    from metacount.huggingface.module.classes import config_class, version

    found: dict[str, Any] = {}
    for model_type in mapped_types():
        family = family_of(model_type)
        assert family is not None
        own = kinds(config_class(model_type))
        if "cache_implementation" in family.ignored:
            own["cache_implementation"] = cache_implementation()
        found[model_type] = {
            "keys": own,
            "shares": shares({"model_type": model_type, **SMALL[model_type]}, own),
            "whole_heads": whole_heads(config_class(model_type)),
        }
    return {"made_by": "benchmarks/config_rules.py", "transformers": version(), "types": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    found = rules()
    if args.check:
        same = json.loads(FILE.read_text("utf-8")) == found
        print("the file is what transformers says" if same else "the file is out of date")
        return 0 if same else 1
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{FILE.name}: {len(found['types'])} types of transformers {found['transformers']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
