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
class Row:
    """The parts of one model type, in the order in which they read, and what the record lacks.

    `ends`: classes whose end is another than the record's, or that it does not have. `aliases`:
    more names of keys. `ignored`: keys of this type that change neither a count nor the structure.
    `reads`: keys that change nothing elsewhere, but are read here. `defaults`: of keys that
    transformers' class does not declare, or derives.
    """

    parts: tuple[Part, ...]
    ends: dict[str, str | None]
    aliases: dict[str, str]
    ignored: str
    reads: str
    defaults: Json


def row(
    *parts: Part,
    ends: dict[str, str | None] | None = None,
    aliases: dict[str, str] | None = None,
    ignored: str = "",
    reads: str = "",
    **defaults: Any,
) -> Row:
    """Make a row; `defaults` are its last arguments, by the names of the keys."""
    return Row(
        parts=parts,
        ends=ends or {},
        aliases=aliases or {},
        ignored=ignored,
        reads=reads,
        defaults=defaults,
    )


@frozen
class Family:
    """One model type, ready to be read: its row, and transformers' record of it.

    `classes`: each class with its end: "head", "body" (no head), "pooled" (no head, a pooler),
    "encoder" (of an encoder-decoder, alone), or None: known, but no spec has it. The first is the
    one that a config without `architectures` means, `kind` in words.
    `defaults`: what is taken for a key that is left out. `aliases`: other names of keys.
    """

    parts: tuple[Part, ...]
    classes: dict[str, str | None]
    defaults: Json
    aliases: dict[str, str]
    ignored: tuple[str, ...] = ()
    kind: str = "causal-LM"

    def fields(self, keys: Keys) -> Json:
        """Read the fields of a spec."""
        found: Json = {}
        for part in self.parts:
            found |= part(keys, found)
        return found
