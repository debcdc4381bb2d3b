"""Right answers to the exercises: closed forms as `metacount check` reads them."""

from __future__ import annotations

from metacount.spec import Request
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec


def closed(spec: ModelSpec, quantity: str) -> str:
    """One quantity of a model in letters, part after part, as one types it.

    >>> from metacount.catalog import entry
    >>> closed(entry("llama-7b").spec(), "kv_cache_bytes")
    '2*B*N*S*c*h_d*h_kv'
    """
    form = closed_form(spec, fitted(spec, Request()), quantity)
    return " + ".join(str(part) for part in form.parts.values())
