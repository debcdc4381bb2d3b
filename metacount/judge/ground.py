"""What a judgement rests on: a textbook formula, and whether that was proven equal to code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.proof_record import proven

if TYPE_CHECKING:
    from metacount.spec import ModelSpec


def rests_on(spec: ModelSpec, quantity: str) -> str:
    """One line: which closed form stands on the model's side, and what is recorded of it.

    >>> from metacount.catalog import entry
    >>> rests_on(entry("transformer-base").spec(), "no such quantity")
    'our textbook formula alone: no proof of it against code is recorded for this structure'
    """
    found = proven(spec)
    if found is not None and quantity in found.quantities:
        where, code = found.quantities[quantity], f"transformers' code of {found.model_type}"
    elif found is not None and quantity in found.by_reference:
        where, code = found.by_reference[quantity], "our reference modules"
    else:
        return ("our textbook formula alone: no proof of it against code is recorded for this "
                "structure")  # fmt: skip
    domain = f", where {' and '.join(where)}" if where else ""
    return f"our textbook formula, proven equal to {code}{domain}"
