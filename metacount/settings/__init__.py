"""What `--set FIELD=VALUE` says: sizes by any of their names, as numbers or as arithmetic."""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.settings.values import (
    BIAS,
    GATED,
    MULTIPLE_OF,
    QKV_BIAS,
    Arithmetic,
    biases,
    field_of,
    flag,
    flat_name,
    known,
    meant,
    multiple,
    value_of,
)
from metacount.spec import FIELDS, ModelSpec
from metacount.spec.model import REQUIRED_NAMES

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from metacount.files import Json


SIZES = tuple(name for name, field in FIELDS.items() if field.takes == "whole")
WIDTHS = ("d_ff", "d_ff_expert", "d_ff_shared")  # what `multiple_of` rounds


def parse_settings(settings: Sequence[str]) -> Json:
    """Parse `FIELD=VALUE` texts into values of the fields' types; FIELD is any name of a field.

    >>> parse_settings(["n_layers=1_000", "tie_embeddings=true", "window=none"])
    {'n_layers': 1000, 'tie_embeddings': True, 'window': None}
    >>> parse_settings(["num_hidden_layers=2", "activation=swiglu", "n_positions=128k"])
    {'n_layers': 2, 'activation': 'silu', 'gated': True, 'n_positions': 131072}
    """
    changes: Json = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"--set needs FIELD=VALUE: got '{shown(setting)}'")
        for key, value in _parsed(name, text.strip()).items():
            if key in changes:
                raise InputError(f"--set: {key} is given twice; leave one out")
            changes[key] = value
    if MULTIPLE_OF in changes and not any(isinstance(v, Arithmetic) for v in changes.values()):
        raise InputError(
            f"--set {MULTIPLE_OF} rounds a width that is given as arithmetic; "
            "add one, such as d_ff=8/3*d_model"
        )
    return changes


def _parsed(name: str, text: str) -> Json:
    if name == MULTIPLE_OF:
        return {name: multiple(text)}
    if name == BIAS:
        return {name: flag(name, text)}
    if name in QKV_BIAS:
        return dict.fromkeys(("q_bias", "k_bias", "v_bias"), flag(name, text))
    names, field = meant(name), field_of(name)
    key = names[0] if len(names) == 1 else name
    if field.name == "activation" and text.lower() in GATED:
        return {key: GATED[text.lower()], "gated": True}
    value = value_of(field, name, text)
    if isinstance(value, Arithmetic):
        for word in value.words:
            if not known(word) or field_of(word).takes != "whole":
                remedy = nearest(word, SIZES, "see `metacount models --fields`")
                raise InputError(f"--set {name}: '{shown(word)}' is no size of a model; {remedy}")
    return {key: value}


def by_flat_name(spec: ModelSpec, typed: Json) -> tuple[Json, list[str]]:
    """Return what was set, by flat name,
    and how what was given as arithmetic came about, in words.
    """
    words = {name: value for name, value in typed.items() if name in FIELDS}
    paths = spec.paths(**words)
    changes: Json = {}
    for name, value in typed.items():
        if name not in (BIAS, MULTIPLE_OF):
            flat = flat_name(spec, name, paths)
            if flat in changes:
                raise InputError(f"--set: {flat} is given twice; leave one out")
            changes[flat] = value
    if BIAS in typed:
        changes = dict.fromkeys(biases(spec, changes), typed[BIAS]) | changes
    return _computed(spec, paths, changes, typed.get(MULTIPLE_OF))


def _computed(
    spec: ModelSpec, paths: Mapping[str, str], changes: Json, step: int | None
) -> tuple[Json, list[str]]:
    """Compute the changes given as arithmetic: each after the sizes that it speaks of."""
    from_here = {**spec.to_dict(), **changes}
    notes: list[str] = []
    waiting = [name for name, value in changes.items() if isinstance(value, Arithmetic)]
    while waiting:
        for name in waiting:
            it = changes[name]
            flat = {word: flat_name(spec, word, paths) for word in it.words}
            # a size in its own arithmetic is what it was
            sizes = {
                word: getattr(spec, field) if field == name else from_here[field]
                for word, field in flat.items()
            }
            if any(isinstance(value, Arithmetic) for value in sizes.values()):
                continue
            for word, value in sizes.items():
                if value is None:
                    raise InputError(f"--set {name}: this model has no {word}")
            changes[name] = from_here[name] = _rounded(name, it, sizes, step, notes)
            break
        else:
            raise InputError(
                f"--set: {' and '.join(waiting)} depend on each other; give one as a number"
            )
        waiting = [n for n, value in changes.items() if isinstance(value, Arithmetic)]
    return changes, notes


def _rounded(
    name: str, it: Arithmetic, sizes: Mapping[str, int], step: int | None, notes: list[str]
) -> int:
    """Compute arithmetic; a width is cut and rounded up to a multiple, where one is given."""
    from metacount.algebra.text import at

    try:
        exact = at(it.tree, sizes)
    except InputError as error:
        raise InputError(f"--set {name}: {error}") from None
    if step is not None and name in WIDTHS:
        rounded = -(-int(exact) // step) * step
        cut = "" if exact == int(exact) else f", cut to {int(exact):,}"
        notes.append(
            f"{name} = {it.text} = {_written(exact)}{cut}, up to a multiple of {step}: {rounded:,}"
        )
        return rounded
    if exact != int(exact):
        remedy = (
            f"add --set {MULTIPLE_OF}=256 to round as LLaMA does, or " if name in WIDTHS else ""
        )
        raise InputError(
            f"--set {name}: {shown(it.text)} is {_written(exact)}, no whole number; "
            f"{remedy}use floor(...) or ceil(...)"
        )
    notes.append(f"{name} = {it.text} = {int(exact):,}")
    return int(exact)


def _written(value: int | Fraction) -> str:
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.2f}"


def replaced(spec: ModelSpec, changes: Mapping[str, object]) -> ModelSpec:
    """Return the spec with other values; an error tells what to type."""
    try:
        return ModelSpec.from_dict({**spec.to_dict(), **changes})
    except SpecError as error:
        from metacount.settings import named, several_missing

        missing = several_missing({**spec.to_dict(), **changes}, error)
        if missing:
            give = " ".join(f"`--set {name}={_placeholder(name)}`" for name in missing)
            raise InputError(f"--set: missing: {named(missing)}; add {give}") from None
        raise error.reworded(
            unset=lambda name: (
                f"leave out `--set {name}`"
                if name in changes or name not in FIELDS
                else f"add `--set {name}={_typed(FIELDS[name].absent)}`"
            ),
            give=lambda name: f"add `--set {name}={_placeholder(name)}`",
        ) from None


def _typed(value: object) -> str:
    """Write a field's value as --set takes it.

    >>> _typed(None), _typed(False), _typed("gqa")
    ('none', 'false', 'gqa')
    """
    return str(value).lower()


def _placeholder(name: str) -> str:
    return "true" if FIELDS[name].takes == "flag" else "NUMBER"


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
    ['head_dim', 'n_kv_heads', 'n_positions', 'activation', 'gated', 'd_ff']
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


MOST = 64  # models side by side


def each_setting(over: str) -> list[str]:
    """List the `FIELD=VALUE` texts that `--over` stands for;
    a comma in parentheses divides nothing.

    >>> each_setting("d_ff=1024,4*d_model,round_up(8/3*d, 256)")
    ['d_ff=1024', 'd_ff=4*d_model', 'd_ff=round_up(8/3*d, 256)']
    """
    name, equals, text = over.partition("=")
    values, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            values.append("")
        else:
            values[-1] += sign
    values = [value.strip() for value in values]
    if not equals or not all(values):
        raise InputError(f"--over needs FIELD=VALUE,VALUE,...: got '{shown(over)}'")
    if len(values) > MOST:
        raise InputError(f"--over takes at most {MOST} values: got {len(values)}")
    return [f"{name.strip()}={value}" for value in values]
