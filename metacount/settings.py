"""What `--set FIELD=VALUE` says: values of the fields' types, by name or by path in a model."""

from __future__ import annotations

from metacount.errors import MAX_DIGITS, InputError, SpecError, nearest, shown
from metacount.spec import FIELDS, ModelSpec
from metacount.spec.flat import every_path

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from metacount.spec.field import Field


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`FIELD=VALUE` texts as values of the fields' types; FIELD is a name, or a path in a model.

    >>> parse_settings(["n_layers=1_000", "tie_embeddings=true", "window=none"])
    {'n_layers': 1000, 'tie_embeddings': True, 'window': None}
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"--set needs FIELD=VALUE: got '{shown(setting)}'")
        field = FIELDS.get(name) or every_path().get(name)
        if field is None:
            known = [*FIELDS, *every_path()] if "." in name else FIELDS
            remedy = nearest(name, known, "see `metacount models --fields`")
            raise InputError(f"--set: '{shown(name)}' is not a field of a model; {remedy}")
        if name in changes:
            raise InputError(f"--set: {name} is given twice; leave one out")
        changes[name] = _parse_value(field, name, text.strip())
    return changes


def _parse_value(field: Field, name: str, text: str) -> Any:
    optional = field.optional or field.lacking
    lower = text.lower()
    if optional and lower in ("none", "null"):
        return None
    if field.takes == "object":
        raise InputError(f"--set {name} takes none only: write it in a model's file")
    if field.takes == "flag":
        if lower not in ("true", "false"):
            raise InputError(f"--set {name} must be true or false: got '{shown(text)}'")
        return lower == "true"
    if field.takes in ("choice", "pattern"):
        return lower if field.takes == "choice" else text
    number, rule = (int, "a whole number") if field.takes == "whole" else (float, "a number")
    try:
        if len(text) > MAX_DIGITS:
            raise ValueError
        return number(text)
    except ValueError:
        rule += ", or none" if optional else ""
        raise InputError(f"--set {name} must be {rule}: got '{shown(text)}'") from None


def by_flat_name(spec: ModelSpec, typed: dict[str, Any]) -> dict[str, Any]:
    """What was set by names or by paths, by names."""
    words = {name: value for name, value in typed.items() if name in FIELDS}
    paths, changes = spec.paths(**words), dict(words)
    for path, value in typed.items():
        if path in FIELDS:
            continue
        if path not in paths:
            remedy = nearest(path, paths, "see `metacount models --fields`")
            raise InputError(f"--set: this model has no {shown(path)}; {remedy}")
        name = paths[path]
        if name in changes:
            raise InputError(f"--set: {name} is given twice; leave one out")
        stack, _, below = path.partition(".")
        if spec.has_encoder and stack in ("encoder", "decoder") and below != "n_layers":
            raise InputError(
                f"--set {path}: encoder and decoder are made alike; set {name}, which is of both"
            )
        changes[name] = value
    return changes


def replaced(spec: ModelSpec, changes: dict[str, Any]) -> ModelSpec:
    """The spec with other values; an error tells what to type."""
    try:
        return ModelSpec.from_dict({**spec.to_dict(), **changes})
    except SpecError as error:
        raise error.reworded(
            unset=lambda name: (
                f"leave out `--set {name}`"
                if name in changes
                else f"add `--set {name}={_typed(FIELDS[name].absent)}`"
            ),
            give=lambda name: f"add `--set {name}={_placeholder(name)}`",
        ) from None


def _typed(value: object) -> str:
    """A field's value as --set takes it.

    >>> _typed(None), _typed(False), _typed("gqa")
    ('none', 'false', 'gqa')
    """
    return str(value).lower()


def _placeholder(name: str) -> str:
    return "true" if FIELDS[name].takes == "flag" else "NUMBER"
