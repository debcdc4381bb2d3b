"""How many blocks of a stack have a mixer and a feed-forward of some kinds at once."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import stack
from metacount.formulas.attention import lettered_layers
from metacount.formulas.dim import Dim
from metacount.spec import ModelSpec
from metacount.spec.stack import Stack, common_period

ANY_MIXER, ANY_FFN = "ARPSN", "FEBN"


def layers_with(spec: ModelSpec, n_layers: Dim, *, mixers: str = ANY_MIXER, ffns: str) -> Dim:
    """Count the blocks whose mixer is one of `mixers` and whose feed-forward is one of `ffns`.

    A, R, P, S, N and F, E, B, N as in the two patterns; E also where a mixture's own law says so.

    Returns: a count.
    Source: `stack.moe_layers`, `stack.dense_layers`; of both patterns, `lettered_layers`.

    >>> from metacount.catalog import entry
    >>> jamba = entry("jamba-1.5-mini").spec()
    >>> [layers_with(jamba, 32, mixers=mixer, ffns="E") for mixer in "AR"]
    [0, 16]
    """
    last = spec.last_stack
    if set(last.mixer_pattern) <= set(mixers):
        both = stack.layers_of_both(spec, n_layers)
        routed = stack.moe_layers(spec, n_layers) - both
        dense = stack.dense_layers(spec, n_layers) - both
        found = {"E": routed, "F": dense, "B": both, "N": n_layers - routed - dense - both}
        return sum(found[ffn] for ffn in ffns)
    if not set(last.mixer_pattern) & set(mixers):
        return 0
    if last.mixture is not None and not last.names_experts:
        return _by_law(spec, n_layers, mixers, ffns)
    period = common_period(len(last.mixer_pattern), len(last.ffn_pattern))
    having = "".join("x" if _has(last, i, mixers, ffns) else "-" for i in range(period))
    return lettered_layers(n_layers, having, "x")


def _has(last: Stack, index: int, mixers: str, ffns: str) -> bool:
    return last.mixer_of(index) in mixers and last.ffn_of(index) in ffns


def _by_law(spec: ModelSpec, n_layers: Dim, mixers: str, ffns: str) -> Dim:
    """Count block by block: a law of the mixture and a pattern of the mixers share no letter."""
    if not isinstance(n_layers, int):
        raise SpecError(
            "mixer_pattern",
            "has no formula for training in letters beside a law of the mixture",
            spec.mixer_pattern,
            "give numbers, or an ffn_pattern",
        )
    return sum(_has(spec.last_stack, i, mixers, ffns) for i in range(n_layers))
