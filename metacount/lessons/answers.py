"""Right answers to the exercises: closed forms as `metacount check` reads them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.lessons.page import Exercise
from metacount.spec import Request
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec


def closed(spec: ModelSpec, quantity: str) -> str:
    """Write one quantity of a model in letters, part after part, as one types it.

    >>> from metacount.catalog import entry
    >>> closed(entry("llama-7b").spec(), "kv_cache_bytes")
    '2*B*N*S*c*h_d*h_kv'
    """
    form = closed_form(spec, fitted(spec, Request()), quantity)
    return " + ".join(str(part) for part in form.parts.values())


def allowed(spec: ModelSpec, changes: dict[str, object]) -> dict[str, object]:
    """Return `changes`, and that prediction modules go if there are any; nothing if a rule forbids
    the model that they make.
    """
    if spec.n_mtp_layers is not None:
        gone = {"n_mtp_layers": None} | ({"mtp_dense": False} if spec.mtp_dense else {})
        changes = {**changes, **gone}
    try:
        spec.replace(**changes)
    except SpecError:
        return {}
    return changes


def after(spec: ModelSpec, changes: dict[str, object]) -> Exercise:
    """Make the exercise that asks for the parameters of the model with other values of fields."""
    settings = tuple(f"{name}={str(value).lower()}" for name, value in changes.items())
    return Exercise(formula=closed(spec.replace(**changes), "params"), settings=settings)
