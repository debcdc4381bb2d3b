"""One part of a model: how it is made, and what the formulas count of it."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.frozen import frozen


@frozen
class Part:
    """One part of one stack (of none: `stack` is empty), or of all its blocks.

    `copies` blocks have it; `one` is the parameters of one of them. `kind` is a word for how it is
    made: another word is another part in its place. `fields` are paths in the spec whose values
    belong to it.
    """

    name: str
    stack: str
    kind: str
    described: str
    copies: Dim
    one: Dim
    values: dict[str, Dim]
    fields: tuple[str, ...]


def part(
    name: str,
    kind: str,
    described: str,
    params: Dim,
    fields: str,
    *,
    stack: str = "",
    copies: Dim = 1,
    **counts: Dim,
) -> Part:
    """Make a part of `params` parameters;
    `counts` are its active ones, its `flops` and its `cache`.
    """
    values = {
        "params": params * copies,
        "active_params": counts.pop("active", params) * copies,
        "matmul_flops": counts.pop("flops", 0),
        "kv_cache_bytes": counts.pop("cache", 0),
    }
    assert not counts, counts
    return Part(
        name=name,
        stack=stack,
        kind=kind,
        described=described,
        copies=copies,
        one=params,
        values=values,
        fields=tuple(fields.split()),
    )
