"""Configs in which a key, or two, is changed to something odd, and who makes what of them."""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from helpers.small_configs import SMALL
from metacount.errors import SpecError
from metacount.formulas import model as formulas
from metacount.huggingface.config.keys import HARMLESS, NEUTRAL
from metacount.huggingface.config.record import family_of
from metacount.huggingface.config.to_spec import Unmapped, spec_from_config
from metacount.huggingface.module.model import build_transformers, config_class

# What any key is tried at, besides what is near its own value; and one that no type depends on.
ODD: tuple[Any, ...] = (None, True, 0, 1, 2, 3, -1, 0.5, "gelu", [], {})
# Their windowed layers keep and multiply all positions, then mask.
KEEPS_ALL = frozenset(["gpt_neo"])

FEW: tuple[Any, ...] = (None, True, 2, "gelu")
WORDS = ("relu", "gelu_new", "gated-gelu", "absolute", "frobnicate")
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
    folder = Path(inspect.getfile(config_class(model_type))).parent
    files = [*folder.glob("configuration_*.py"), *folder.glob("modeling_*.py")]
    return "\n".join(file.read_text("utf-8") for file in files)


@cache
def words_near(model_type: str, key: str) -> tuple[str, ...]:
    """The words in quotes on lines of transformers' code that name `key`."""
    lines = source_text(model_type).splitlines()
    named = [line for line in lines if re.search(rf"\b{key}\b", line)]
    found = re.findall(r"[\"']([\w-]{2,40})[\"']", "\n".join(named))
    return tuple(dict.fromkeys(word for word in found if word != key))[:8]


@cache
def keys_of(model_type: str) -> tuple[str, ...]:
    """Every key of a type's config class, and every key that our reading knows for it."""
    family, theirs = family_of(model_type), config_class(model_type)
    assert family is not None
    declared = [field.name for field in fields(theirs)]
    known = [
        *declared,
        *theirs.attribute_map,
        *written(model_type),
        *family.defaults,
        *family.aliases,
        *family.ignored,
        *NEUTRAL,
        *HARMLESS,
    ]
    return tuple(sorted(set(known) - NOT_CHANGED))


def odd_values(model_type: str, key: str) -> list[Any]:
    """Values to try a key at: near its own, of other types, and words that the code knows."""
    family = family_of(model_type)
    assert family is not None
    name = family.aliases.get(key, key)
    now = written(model_type).get(name, family.defaults.get(name))
    values = [*_near(now), *words_near(model_type, key)]
    values += FEW if key in HARMLESS else ODD
    if isinstance(now, str):
        values += WORDS
    return _distinct(values, now)


def _near(now: Any) -> Iterator[Any]:
    if isinstance(now, bool):
        yield from (not now, int(now), str(now))
    elif isinstance(now, int):
        yield from (now + 1, now * 2, now - 1, float(now), str(now))
    elif isinstance(now, float):
        yield from (now * 2, -now, str(now))
        if now.is_integer():
            yield int(now)
    elif isinstance(now, list):
        yield from (now[:-1], now[::-1], now + now[-1:], now[:1] * len(now), now[-1:] * len(now))
        yield from (now[1:] + now[:1], [None] * len(now), [1] * len(now))
    elif isinstance(now, dict):
        for inner, value in now.items():
            for other in (*_near(value), None, 1, "gelu"):
                yield {**now, inner: other}
            yield {k: v for k, v in now.items() if k != inner}
        yield {**now, "frobnication": 1}


def _distinct(values: Iterable[Any], now: Any) -> list[Any]:
    # True and 1 are different values of a config
    found = {json.dumps(value): value for value in values}
    found.pop(json.dumps(now), None)
    return list(found.values())


Change = tuple[tuple[str, Any], ...]


def single_changes(model_type: str, *, all_keys: bool = True) -> Iterator[Change]:
    """Every key at every odd value; without `all_keys`, those that no type depends on stay."""
    written_too = written(model_type)
    for key in keys_of(model_type):
        if all_keys or (key in written_too and key not in HARMLESS):
            for value in odd_values(model_type, key):
                yield ((key, value),)


def random_changes(model_type: str, count: int, seed: object, keys: int = 2) -> Iterator[Change]:
    """Some keys at odd values, drawn at random."""
    draw = random.Random(f"{seed} {model_type}")
    family = family_of(model_type)
    assert family is not None
    # half of the draws are among keys that the mapping reads: the others seldom matter
    read = [k for k in keys_of(model_type) if k in {*family.defaults, *family.aliases}]
    for i in range(count):
        chosen = draw.sample(read if i % 2 else keys_of(model_type), keys)
        yield tuple((key, draw.choice(odd_values(model_type, key))) for key in chosen)


def bases(model_type: str) -> dict[str, dict[str, Any]]:
    """What is changed: few keys; all that `save_pretrained` writes; other names; other classes."""
    family = family_of(model_type)
    assert family is not None
    bare = {"model_type": model_type, **SMALL[model_type]}
    found = {"bare": bare, "full": written(model_type)}
    other = {name: alias for alias, name in config_class(model_type).attribute_map.items()}
    renamed = {other.get(key, key): value for key, value in bare.items()}
    if renamed != bare and model_type != "zamba2":  # which finds its layers under one name alone
        found["other names"] = renamed
    if model_type == "falcon_h1":  # its channels are given, or follow from the width
        found["expanded"] = {**bare, "mamba_d_ssm": None, "mamba_expand": 2, "mamba_d_head": "auto"}
    default = bare.get("architectures", list(family.classes)[:1])
    for name, end in family.classes.items():
        if end is not None and [name] != default:
            found[name] = {**bare, "architectures": [name]}
    return found


def mutants(model_type: str, draws: int, seed: object) -> Iterator[tuple[str, Change]]:
    """Every single change of every base, and `draws` random ones of two and of three keys."""
    for name in bases(model_type):
        yield name, ()
        for change in single_changes(model_type, all_keys=name == "bare"):
            yield name, change
    for name in ("bare", "full"):
        for keys in (2, 3):
            for change in random_changes(model_type, draws, (seed, name), keys):
                yield name, change


VERDICTS = (
    "equal",
    "wrong",
    "refused by transformers, and we say so",
    "refused, not said",
    "said to be refused, but built",
    "left, transformers builds",
    "left, transformers refuses",
    "refused, transformers builds",
    "refused, transformers refuses",
    "left, transformers not asked",
    "refused, transformers not asked",
)


@dataclass(frozen=True)
class Answer:
    """What we and transformers say of one config: a number of parameters, or why there is none.

    `kind` is formula, left (no spec: transformers is asked) or refused; `warned`: counted by
    formula, and said that transformers refuses it.
    """

    kind: str
    warned: bool
    ours: int | None
    our_reason: str
    theirs: int | None
    their_reason: str

    @property
    def wrong(self) -> bool:
        """Both answer, and the numbers differ."""
        return self.ours is not None and self.theirs is not None and self.ours != self.theirs

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.ours is None and self.their_reason == "not asked":
            return f"{self.kind}, transformers not asked"
        if self.ours is None:
            return f"{self.kind}, transformers {'builds' if self.theirs is not None else 'refuses'}"
        if self.wrong:
            return "wrong"
        if self.theirs is None:
            return "refused by transformers, and we say so" if self.warned else "refused, not said"
        return "said to be refused, but built" if self.warned else "equal"


TAKEN = ("use_cache", "id2label", "use_mamba_kernels")  # out of a config, before a module is built


def refused_of_taken(config: dict[str, Any]) -> str:
    """Why transformers refuses a key that our build takes out, or gives itself; "" where not."""
    types = (config.get(key) for key in ("dtype", "torch_dtype"))
    if not all(one is None or isinstance(one, str) for one in types):
        return "from_config reads a dtype as text"
    if not isinstance(config.get("quantization_config"), dict | None):
        return "what loads weights reads quantization_config as an object"
    try:
        config_class(config["model_type"])(**{key: config[key] for key in TAKEN if key in config})
    except Exception as error:  # whatever a validator raises
        return str(error)
    return ""


def answers(config: dict[str, Any], *, ask_always: bool = True) -> Answer:
    """Ours and theirs for one config; theirs only where there is a formula, unless `ask_always`."""
    kind, warned, ours, our_reason = "formula", False, None, ""
    try:
        mapped = spec_from_config(config)
        ours, our_reason = formulas.params(mapped.spec), "; ".join(mapped.notes)
        warned = bool(mapped.refused)
    except Unmapped as error:
        kind, our_reason = "left", str(error)
    except SpecError as error:
        kind, our_reason = "refused", str(error)
    theirs, their_reason = None, ""
    if ours is None and not ask_always:
        return Answer(kind, warned, ours, our_reason, None, "not asked")
    try:
        module, _ = build_transformers(config)
        theirs = sum(p.numel() for p in module.parameters())
    except SpecError as error:
        their_reason = str(error)
    if warned and theirs is not None and (reason := refused_of_taken(config)):
        theirs, their_reason = None, reason
    return Answer(kind, warned, ours, our_reason, theirs, their_reason)


def figures_differ(config: dict[str, Any]) -> tuple[str, ...]:
    """Where active parameters, FLOPs, decode and KV cache of the formula and the code differ."""
    from metacount.huggingface.module.witness import transformers_witness
    from metacount.spec import Workload
    from metacount.verify.compare import differences, formula_witness

    workload = Workload(batch_size=2, seq_len=24)
    theirs = transformers_witness(config, workload)
    found = differences((formula_witness(spec_from_config(config).spec, workload), theirs))
    if config["model_type"] in KEEPS_ALL:
        return tuple(line for line in found if not line.startswith(("decode", "kv_cache")))
    return found
