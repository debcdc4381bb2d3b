"""A row: what the reading of one model type is made of, beside what transformers says of it."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys

    # Reads some keys, given the fields so far, and returns fields of the spec. It may take fields
    # away: those that no layer has.
    Part = Callable[[Keys, Json], Json]


@frozen
class Family:
    """One model type: the parts that read it, in order. A row has what the record lacks.

    `classes`: each class with its end: "head", "body" (no head), "pooled" (no head, a pooler),
    "encoder" (of an encoder-decoder, alone), or None: known, but no spec has it. The first is the
    one that a config without `architectures` means, `kind` in words.
    `defaults`: what is taken for a key that is left out. `aliases`: other names of keys.
    `ignored`: keys of this type that change neither a count nor the structure. `reads`: keys that
    change nothing elsewhere, but are read here.
    """

    parts: tuple[Part, ...]
    classes: dict[str, str | None]
    defaults: Json
    aliases: dict[str, str]
    ignored: tuple[str, ...]
    reads: tuple[str, ...] = ()
    kind: str = "causal-LM"

    def fields(self, keys: Keys) -> Json:
        """Read the fields of a spec."""
        found: Json = {}
        for part in self.parts:
            found |= part(keys, found)
        return found


def row(
    *parts: Part,
    ends: dict[str, str | None] | None = None,
    aliases: dict[str, str] | None = None,
    ignored: str = "",
    reads: str = "",
    **defaults: Any,
) -> Family:
    """Make a row; `defaults` are of keys that transformers' class does not declare, or derives."""
    return Family(
        parts=parts,
        classes=ends or {},
        defaults=defaults,
        aliases=aliases or {},
        ignored=tuple(ignored.split()),
        reads=tuple(reads.split()),
    )
