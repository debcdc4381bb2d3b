"""What a description says, and its errors in its own names."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.files import Json
    from metacount.spec import ModelSpec


@frozen
class Described:
    """What a file says: a spec, or a config of transformers' that means the same model.

    `names` are the file's own names of that config's keys. `gguf` is the file whose tensors can be
    compared with transformers' module, `stored` the bytes and types of these.
    """

    spec: ModelSpec | None = None
    config: Json | None = None
    names: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    gguf: str | None = None
    stored: Json | None = None


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Reword a message with the names that a file has for what it speaks of.

    >>> renamed("n_kv_heads must divide n_heads", {"n_heads": "n_head"})
    'n_kv_heads must divide n_head'
    """
    import re

    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)


def spec_of(fields: Json, names: Mapping[str, str]) -> ModelSpec:
    """Build the spec of these fields; a broken rule is said in the file's names of them."""
    from metacount.errors import SpecError
    from metacount.spec import ModelSpec

    try:
        return ModelSpec.from_dict(fields)
    except SpecError as error:
        plain = error.reworded(
            unset=lambda name: f"remove {name}", give=lambda name: f"give {name}"
        )
        said = (renamed(text, names) for text in (plain.field, plain.rule, plain.remedy))
        field, rule, remedy = said
        raise SpecError(field, rule, plain.value, remedy) from None
