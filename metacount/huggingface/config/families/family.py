"""What a family of model types must say to be mapped."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys


@frozen
class Family:
    """One model type: how its keys become fields of a spec.

    `classes`: each class of transformers with its end: "head", "body" (no head), "pooled" (no
    head, a pooler), "encoder" (of an encoder-decoder, alone), or None: known, but no spec has it.
    The first is the one that a config without `architectures` means, `kind` in words.
    `defaults`: what transformers takes for a key that is left out. `aliases`: other names of keys,
    `ignored`: keys of this family that change neither a count nor the structure.
    """

    fields: Callable[[Keys], Json]
    classes: dict[str, str | None]
    defaults: Json
    aliases: dict[str, str]
    ignored: tuple[str, ...] = ()
    kind: str = "causal-LM"


def decoder(
    name: str,
    fields: Callable[[Keys], Json],
    defaults: Json,
    *,
    ignored: str = "",
    aliases: dict[str, str] | None = None,
    head: str | None = None,
    body: str | None = None,
) -> Family:
    """Build the family of a decoder with the classes `<name>ForCausalLM` and `<name>Model`."""
    return Family(
        fields=fields,
        classes={head or f"{name}ForCausalLM": "head", body or f"{name}Model": "body"},
        defaults=defaults,
        aliases=aliases or {},
        ignored=tuple(ignored.split()),
    )
