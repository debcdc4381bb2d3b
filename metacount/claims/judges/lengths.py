"""Claims about a count at several lengths: the formulas decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import WITNESS
from metacount.claims.parts import spec_of
from metacount.claims.text import say
from metacount.formulas import model
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

# what a model of some length takes or keeps -> its count
OF_LENGTH: dict[str, Callable[[ModelSpec, Dim], Dim]] = {
    "decode_flops": lambda spec, n: model.decode_matmul_flops(spec, batch_size=1, kv_len=n),
    "kept_values": lambda spec, n: model.kv_cache_bytes(
        spec, batch_size=1, seq_len=n, bytes_per_value=1
    ),
}


def same_at_length(claim: Claim) -> Finding:
    """Judge whether a count is the same from some length on:
    what n further tokens add, n a symbol, is 0.

    Options: `of` (`decode_flops` of a token that attends to so many positions, itself included;
    `kept_values` of the KV cache after so many), `from`, `to` (a longer one, to be shown).
    """
    import sympy

    from metacount.algebra.writing import in_letters

    spec, options = spec_of(claim), claim.options
    start, end, count = options["from"], options["to"], OF_LENGTH[options["of"]]
    if not 0 < start < end:
        raise ValueError(f"the second length is the longer one: got {start} and {end}")
    more = sympy.Symbol("n", integer=True, nonnegative=True)
    first, last = int(count(spec, start)), int(count(spec, end))
    step = int(count(spec, start + 1)) - first
    added = sympy.expand(count(spec, start + more) - first)
    here = {"start": exact(start), "end": exact(end), "first": exact(first), "last": exact(last)}
    steady, linear = added == 0, added == step * more
    if options["of"] == "decode_flops":
        same = say(
            "The matrix products of a decoded token take {first} FLOPs at a context of "
            "{start}, itself included, and at any longer one.",
            **here,
        )
        grows = say(
            "The matrix products of a decoded token take {first} FLOPs at a context of "
            "{start}, itself included, and {last} at {end}.",
            **here,
        )
    else:
        same = say(
            "The KV cache keeps {first} values at a context of {start}, and at any longer one.",
            **here,
        )
        grows = say(
            "The KV cache keeps {first} values at a context of {start} and {last} at {end}.", **here
        )
    if steady:
        correct = say("{first} from {start} on", first=exact(first), start=exact(start))
    else:
        correct = say("{first} at {start}, {last} at {end}", **here)
    formula = f"{exact(step)}·n" if linear and step else in_letters(added)
    return Finding(
        verdict=RIGHT if steady else WRONG,
        says=same if steady else grows,
        correct=correct,
        computation=(
            say("at {n}: {steps}", n=exact(start), steps=exact(first)),
            say("at {n}: {steps}", n=exact(end), steps=exact(last)),
            say("n further tokens add {formula}", formula=formula),
        ),
        values={"first": first, "last": last, "step": step, "linear": linear},
        witness=WITNESS,
    )
