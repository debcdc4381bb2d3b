"""Configs in which a key, or two, is changed to something odd, and who makes what of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from small_configs import SMALL

from metacount.formulas import model as formulas
from metacount.huggingface.classes import config_class
from metacount.huggingface.config import Unmapped, spec_from_config
from metacount.huggingface.config_keys import HARMLESS, NEUTRAL
from metacount.huggingface.families import family_of
from metacount.huggingface.model import build_transformers
from metacount.rules import SpecError

# What any key is tried at, besides what is near its own value.
ODD: tuple[Any, ...] = (None, True, False, 0, 1, 2, 3, 6, -1, 0.5, 1.0, "", "gelu", "7", [], [1], {})
WORDS = ("relu", "silu", "gelu_new", "gated-gelu", "gated-silu", "absolute", "frobnicate")
# They choose the class, which small_configs and OTHER_CLASSES do.
NOT_CHANGED = frozenset(["architectures", "model_type", "transformers_version"])


@cache
def written(model_type: str) -> dict[str, Any]:
    """The small config of a type as `save_pretrained` writes it: derived keys as well."""
    small = {k: v for k, v in SMALL[model_type].items() if k != "architectures"}
    config = config_class(model_type)(**small)
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {**data, **SMALL[model_type], "model_type": model_type}


@cache
def source_text(model_type: str) -> str:
    """transformers' code of a type: its config class and its modules."""
    folder = Path(__import__("inspect").getfile(config_class(model_type))).parent
    files = [*folder.glob("configuration_*.py"), *folder.glob("modeling_*.py")]
    return "\n".join(file.read_text("utf-8") for file in files)


@cache
def words_near(model_type: str, key: str) -> tuple[str, ...]:
    """The words in quotes on lines of transformers' code that name `key`."""
    named = [line for line in source_text(model_type).splitlines() if re.search(rf"\b{key}\b", line)]
    found = re.findall(r"[\"']([\w-]{2,40})[\"']", "\n".join(named))
    return tuple(dict.fromkeys(word for word in found if word != key))[:8]


@cache
def keys_of(model_type: str) -> tuple[str, ...]:
    """Every key of a type's config class, and every key that our reading knows for it."""
    family, theirs = family_of(model_type), config_class(model_type)
    assert family is not None
    declared = [field.name for field in fields(theirs)]
    known = [*declared, *theirs.attribute_map, *written(model_type), *family.defaults,
             *family.aliases, *family.ignored, *NEUTRAL, *HARMLESS]  # fmt: skip
    return tuple(sorted(set(known) - NOT_CHANGED))


def odd_values(model_type: str, key: str) -> list[Any]:
    """Values to try a key at: near its own, of other types, and words that the code knows."""
    family = family_of(model_type)
    assert family is not None
    name = family.aliases.get(key, key)
    now = written(model_type).get(name, family.defaults.get(name))
    values = [*_near(now), *ODD, *words_near(model_type, key)]
    if isinstance(now, str) or now is None:
        values += WORDS
    return _distinct(values, now)


def _near(now: Any) -> Iterator[Any]:
    if isinstance(now, bool):
        yield from (not now, int(now), str(now))
    elif isinstance(now, int):
        yield from (now + 1, now * 2, now - 1, now // 2, float(now), str(now))
    elif isinstance(now, float):
        yield from (now * 2, now / 2, -now, str(now))
        if now.is_integer():
            yield int(now)
    elif isinstance(now, list):
        yield from (now[:-1], now[::-1], now + now[-1:], now[:1] * len(now), now[-1:] * len(now))
        yield from (now[1:] + now[:1], [None] * len(now), [0] * len(now), [1] * len(now))
    elif isinstance(now, dict):
        for inner, value in now.items():
            for other in (*_near(value), None, 0, 1, 0.5, "gelu"):
                yield {**now, inner: other}
            yield {k: v for k, v in now.items() if k != inner}
        yield {**now, "frobnication": 1}


def _distinct(values: Iterable[Any], now: Any) -> list[Any]:
    # True and 1 are different values of a config
    found = {json.dumps(value): value for value in values}
    found.pop(json.dumps(now), None)
    return list(found.values())


Change = tuple[tuple[str, Any], ...]


def single_changes(model_type: str) -> Iterator[Change]:
    """Every key at every odd value."""
    for key in keys_of(model_type):
        for value in odd_values(model_type, key):
            yield ((key, value),)


def pairs_of_changes(model_type: str, count: int, seed: object) -> Iterator[Change]:
    """Two keys at odd values, drawn at random."""
    draw = random.Random(f"{seed} {model_type}")
    family = family_of(model_type)
    assert family is not None
    # half of the draws are among keys that the mapping reads: the others seldom matter
    read = [k for k in keys_of(model_type) if k in {*family.defaults, *family.aliases}]
    for i in range(count):
        two = draw.sample(read if i % 2 else keys_of(model_type), 2)
        yield tuple((key, draw.choice(odd_values(model_type, key))) for key in two)


def bases(model_type: str) -> dict[str, dict[str, Any]]:
    """What is changed: a config of few keys, and one with all that `save_pretrained` writes."""
    return {"bare": {"model_type": model_type, **SMALL[model_type]}, "full": written(model_type)}


@dataclass(frozen=True)
class Answer:
    """What we and transformers say of one config: a number of parameters, or why there is none.

    `kind` is formula, left (no spec: transformers is asked) or refused.
    """

    kind: str
    ours: int | None
    our_reason: str
    theirs: int | None
    their_reason: str

    @property
    def wrong(self) -> bool:
        """Both answer, and the numbers differ."""
        return self.ours is not None and self.theirs is not None and self.ours != self.theirs

    @property
    def unbuilt(self) -> bool:
        """We answer by formula what transformers refuses."""
        return self.ours is not None and self.theirs is None


def answers(config: dict[str, Any]) -> Answer:
    """Ours and theirs for one config."""
    kind, ours, our_reason = "formula", None, ""
    try:
        mapped = spec_from_config(config)
        ours, our_reason = formulas.params(mapped.spec), "; ".join(mapped.notes)
    except Unmapped as error:
        kind, our_reason = "left", str(error)
    except SpecError as error:
        kind, our_reason = "refused", str(error)
    theirs, their_reason = None, ""
    try:
        module, _ = build_transformers(config)
        theirs = sum(p.numel() for p in module.parameters())
    except SpecError as error:
        their_reason = str(error)
    return Answer(kind, ours, our_reason, theirs, their_reason)
