"""Rules of a stack with shared blocks: what its other parts may be."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import short
from metacount.spec.law import Law
from metacount.spec.rules import MAX_TENSOR
from metacount.spec.stack import SHARING

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.shared_block import SharedBlock
    from metacount.spec.stack import Stack

# What the attention and the norms of a shared block are; other values were never seen in one.
PLAIN = {
    "attention": "gqa",
    "qk_norm": "none",
    "output_gate": False,
    "attention_sinks": False,
    "window": None,
    "attention_out_scale": 1.0,
    "norm_placement": "pre",
    "residual_scale": 1.0,
    "residual_weight": 1.0,
    "n_experts": None,
}


def check_shared(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for what does not go with shared blocks, and for layers without them."""
    letters, shared = stack.mixer_pattern, stack.shared
    if shared is not None:
        _check_parts(spec, stack, shared)
    elif SHARING in letters:
        raise SpecError(
            "n_shared_blocks",
            f"is needed by mixer_pattern {short(letters)}",
            None,
            "set n_shared_blocks, or another mixer_pattern",
        )


def _check_parts(spec: ModelSpec, stack: Stack, shared: SharedBlock) -> None:
    letters = stack.mixer_pattern
    if set(letters) - {"R", SHARING}:
        raise SpecError(
            "mixer_pattern",
            "of a model with shared blocks has letters R and S alone: attention is in the blocks",
            short(letters),
            "write S where a shared block is used, else R",
        )
    if set(stack.ffn_pattern) != {"N"}:
        raise SpecError(
            "ffn_pattern",
            "of a model with shared blocks is N: the feed-forward is in the blocks",
            stack.ffn_pattern,
            "choose N",
        )
    if stack.feed_forward is None:
        raise SpecError("activation", "is needed by shared blocks", None, "set activation")
    for name, plain in PLAIN.items():
        value = getattr(spec, name)
        if value != plain:
            raise SpecError(
                name,
                "is not defined for a model with shared blocks",
                value,
                f"choose {plain}" if isinstance(plain, str) else f"leave {name} out",
            )
    if spec.position not in ("rope", "none"):
        raise SpecError(
            "position",
            "of a model with shared blocks is rope or none",
            spec.position,
            "choose rope or none",
        )
    uses = Law(letters=letters, letter=SHARING).count(stack.n_layers)
    if shared.n_blocks > uses:
        raise SpecError(
            "n_shared_blocks",
            f"must be at most the {uses} layers of letter S that use one",
            shared.n_blocks,
            f"choose 1 to {uses}" if uses else "put S into mixer_pattern, below n_layers",
        )
    values = 2 * spec.d_model * spec.n_heads * spec.head_dim  # q reads both inputs
    if values > MAX_TENSOR:
        raise SpecError(
            "n_heads",
            "makes one tensor of more than 2^62 values",
            spec.n_heads,
            "lower n_heads",
        )
