"""Rules for the patterns of layers: what their letters name must be there, and go together."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import NoAttention
from metacount.spec.field import MAX_LAYERS, short
from metacount.spec.recurrent import NoRecurrent
from metacount.spec.stack import (
    BESIDE,
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_FFN,
    WITH_STATE,
    common_period,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.stack import Stack


def check_patterns(spec: ModelSpec, stack: Stack) -> None:
    """Check the letters of the two patterns against the parts that they speak of."""
    mixers, ffns = stack.mixer_pattern, stack.ffn_pattern
    has_attention = not isinstance(stack.attention, NoAttention)
    has_state = not isinstance(stack.recurrent, NoRecurrent)
    told = (
        ("attention", has_attention, "mixer_pattern", mixers, WITH_ATTENTION),
        ("recurrent", has_state, "mixer_pattern", mixers, WITH_STATE),
        ("activation", stack.feed_forward and not stack.shared, "ffn_pattern", ffns, WITH_FFN),
        ("n_experts", stack.mixture is not None, "ffn_pattern", ffns, WITH_EXPERTS),
    )
    for name, given, pattern, letters, meant in told:
        asks = bool(set(letters) & set(meant))
        if asks and not given:
            raise SpecError(
                name,
                f"is needed by {pattern} {short(letters)}",
                None,
                f"set {name}, or another {pattern}",
            )
        if given and not asks and name != "n_experts":
            raise SpecError(
                pattern,
                f"has no layer for {name}",
                letters,
                f"put one of the letters {' and '.join(meant)} in, or leave {name} out",
            )
    if not stack.uniform:
        _check_layers_that_differ(spec, stack)


def _check_layers_that_differ(spec: ModelSpec, stack: Stack) -> None:
    mixers, ffns, norms = stack.mixer_pattern, stack.ffn_pattern, stack.norms
    if spec.kind != "decoder":
        name, letters = ("mixer_pattern", mixers) if set(mixers) != {"A"} else ("ffn_pattern", ffns)
        raise SpecError(
            name, "of layers that differ needs a decoder", short(letters), "choose kind decoder"
        )
    if norms.placement in ("post", "deep", "parallel", "parallel_two") or not norms.first:
        raise SpecError(
            "norm_placement",
            "is not defined for layers that differ in their mixers",
            norms.placement,
            "choose pre",
        )
    window = stack.attention.window
    period = common_period(len(mixers), len(ffns))
    longest = max(period, common_period(len(mixers), len(window.pattern) if window else 1))
    if longest > MAX_LAYERS:
        rule = f"and the other patterns repeat together only after {longest} layers"
        raise SpecError("mixer_pattern", rule, short(mixers), "write them equally long")
    if any(mixers[i % len(mixers)] == ffns[i % len(ffns)] == "N" for i in range(period)):
        raise SpecError(
            "ffn_pattern",
            "leaves a layer with neither mixer nor feed-forward",
            short(ffns),
            "put F in, or a mixer",
        )
    if BESIDE in ffns:
        _check_beside(stack)
    mixture = stack.mixture
    if mixture is None:
        return
    if stack.names_experts and (mixture.n_dense_layers, mixture.every, mixture.offset) != (0, 1, 0):
        raise SpecError(
            "moe_every",
            "has no meaning where ffn_pattern names the layers of experts",
            mixture.every,
            "leave it out, and n_dense_layers and moe_offset",
        )
    if "N" in ffns and not stack.names_experts:
        raise SpecError(
            "ffn_pattern", "with N must name the layers of experts", short(ffns), "write E for them"
        )


def _check_beside(stack: Stack) -> None:
    """Check experts beside a feed-forward: one input for both, a later layer adds their output."""
    ffns, last = stack.ffn_pattern, stack.n_layers - 1
    if "E" in ffns:
        raise SpecError(
            "ffn_pattern",
            "has experts beside a feed-forward and in the place of one",
            short(ffns),
            "choose one of the letters B and E",
        )
    if stack.norms.placement != "pre":
        raise SpecError(
            "norm_placement",
            "is not defined for experts beside a feed-forward",
            stack.norms.placement,
            "choose pre",
        )
    for place, letter in enumerate(ffns):
        # that the last layer has this letter, as a comparison of numbers, which others read
        if letter == BESIDE and stack.n_layers % len(ffns) == (place + 1) % len(ffns):
            raise SpecError(
                "ffn_pattern",
                f"leaves nobody to add what the experts of the last layer, {last}, give",
                short(ffns),
                "choose another n_layers, or another letter than B for the last one",
            )
