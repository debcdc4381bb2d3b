"""One part of a model: how it is made, and what the formulas count of it."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.frozen import frozen


@frozen
class Sum:
    """What one part of a model sums to: how many blocks have it, and the values of one of them."""

    copies: Dim = 0
    one: Dim = 0
    params: Dim = 0
    active: Dim = 0
    flops: Dim = 0


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
    fields: str,
    found: Sum,
    *,
    stack: str,
    cache: Dim,
) -> Part:
    """Make a part of what was summed; an end and all norms of a stack are one part each."""
    is_one = not stack or name == "norms"
    return Part(
        name=name,
        stack=stack,
        kind=kind,
        described=described,
        copies=1 if is_one else found.copies,
        one=found.params if is_one else found.one,
        values={
            "params": found.params,
            "active_params": found.active,
            "matmul_flops": found.flops,
            "kv_cache_bytes": cache,
        },
        fields=tuple(fields.split()),
    )
