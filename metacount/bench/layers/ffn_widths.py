"""Widths of feed-forward blocks: what the rule gives, what a model has, those near by."""

from __future__ import annotations

from metacount.spec import ModelSpec

# widths whose time is laid beside GELU's, in shares of the rule's
EQUAL_TIME_SHARES = (0.8, 0.9, 1.0, 1.1, 1.2)


def multiple_of(d_model: int) -> int:
    """Return the number that a gated width is made a multiple of: d/16, at most 256."""
    return min(256, max(1, d_model // 16))


def rule_width(d_model: int) -> int:
    """Compute the width at which SwiGLU has the parameters of two matrices of width 4·d: 8·d/3.

    Rounded up to a multiple of d/16, at most of 256: LLaMA-7B's 11008 and LLaMA-13B's 13824, which
    is 1.25 % more than 8·d/3.

    >>> [rule_width(d) for d in (512, 1024, 4096, 5120, 16384)]
    [1376, 2752, 11008, 13824, 43776]
    """
    multiple = multiple_of(d_model)
    return multiple * -(-(8 * d_model) // (3 * multiple))


def widths(spec: ModelSpec) -> dict[str, int]:
    """Name the width of each SwiGLU: the rule's, 4·d, the model's own and its experts' width.

    `swiglu-own` is the width of the model's dense layers, `swiglu-expert` of one expert; either is
    left out where another has it.
    """
    own = {"swiglu-own": spec.d_ff, "swiglu-expert": spec.d_ff_expert if spec.is_moe else None}
    return gated_widths(spec.d_model, own if spec.gated else {})


def gated_widths(d_model: int, own: dict[str, int | None]) -> dict[str, int]:
    """Return the two widths that follow from d, and those of `own` that differ from them."""
    found = {"swiglu": rule_width(d_model), "swiglu-4d": 4 * d_model}
    for name, width in own.items():
        if width is not None and width not in found.values():
            found[name] = width
    return found


def near_widths(d_model: int) -> dict[str, int]:
    """Choose widths around the rule's, for `--equal-time`: swiglu@N.

    >>> near_widths(4096)
    {'swiglu@8704': 8704, 'swiglu@9984': 9984, 'swiglu@12032': 12032, 'swiglu@13312': 13312}
    """
    multiple, rule = multiple_of(d_model), rule_width(d_model)
    near = [multiple * max(1, round(share * rule / multiple)) for share in EQUAL_TIME_SHARES]
    return {f"swiglu@{width}": width for width in dict.fromkeys(near) if width != rule}
