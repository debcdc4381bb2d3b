"""The model type of a config that only names its class."""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.huggingface.config.families import family_of, mapped_types
from metacount.huggingface.config.remote import REMOTE


def type_of_class(architectures: object) -> tuple[str, str]:
    """Find the model type whose class `architectures` names, and the class.

    >>> type_of_class(["Qwen2ForCausalLM"]), type_of_class("ChatGLMModel")
    (('qwen2', 'Qwen2ForCausalLM'), ('chatglm', 'ChatGLMModel'))
    """
    named = architectures[0] if isinstance(architectures, list) else architectures
    if not isinstance(named, str):
        raise SpecError(
            "architectures",
            "must be a list of class names",
            architectures,
            "give the config's model_type",
        )
    types: dict[str, list[str]] = {}
    for name in mapped_types():
        family = family_of(name)
        for known in () if family is None else family.classes:
            types.setdefault(known, []).append(name)
    for name, family in REMOTE.items():
        for known in family.classes:
            # Phi was ported under its class's name: the port is what the name means today
            types.setdefault(known, [name])
    if named not in types:
        rule = "is missing, and architectures names no class that has a spec"
        raise SpecError("model_type", rule, named, nearest(named, types, "give it"))
    return _owner(named, types[named]), named


def _owner(named: str, types: list[str]) -> str:
    """Choose the type of a class: one that several types use belongs to the one
    that it is called after.
    """
    called = [name for name in types if named.lower().startswith(name.replace("_", ""))]
    if len(called) == 1 or len(types) == 1:
        return (called or types)[0]
    raise SpecError(
        "model_type",
        f"is missing, and {named} is the class of several types",
        None,
        f"give one of {', '.join(types)}",
    )
