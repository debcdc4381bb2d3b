"""Rules of layers that borrow keys and values, of AltUp, LAuReL and embeddings of each layer."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import Attention
from metacount.spec.field import short
from metacount.spec.rules import MAX_TENSOR

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.stack import Stack

# What Gemma 3n has in and around its blocks: of each field the value that says that there is none.
AROUND: dict[str, object] = {
    "n_altup_inputs": None,
    "laurel_rank": None,
    "d_per_layer": None,
    "n_kv_shared_layers": 0,
    "v_norm": False,
    "d_ff_second": None,
    "activation_sparsity": None,
}
# Values of these fields that go with one of them; any other is refused.
BESIDE_STREAMS: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "attention": ("gqa",),
    "mixer_pattern": ("A",),
    "ffn_pattern": ("F",),
    "n_experts": (None,),
    "n_mtp_layers": (None,),
    "norm_placement": ("sandwich", "pre"),
    "residual_scale": (1.0,),
    "residual_weight": (1.0,),
}
# The same of layers that borrow keys and values: those of an earlier layer were made alike.
BESIDE_BORROWED: dict[str, tuple[object, ...]] = {
    "kind": ("decoder",),
    "mixer_pattern": ("A",),
    "position": ("rope", "learned", "sinusoidal", "alibi", "none"),
    "nope_every": (None,),
    "n_query_positions": (0,),
    "n_mtp_layers": (None,),
}
# The same of feed-forwards of two widths, and of those that keep the top values of their gate.
BESIDE_WIDTHS: dict[str, tuple[object, ...]] = {
    "ffn_pattern": ("F",),
    "n_experts": (None,),
    "n_shared_blocks": (None,),
    "n_mtp_layers": (None,),
    "kind": ("decoder",),
}


def beyond_branches(spec: ModelSpec) -> str:
    """Name the first field of what Gemma 3n has in and around its blocks; empty in other models."""
    for name, none in AROUND.items():
        value = getattr(spec, name)
        if value is not none and not (isinstance(value, int) and value == none):
            return name
    return ""


def check_altup(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for what does not go with what Gemma 3n has around and in its blocks."""
    for name in ("n_altup_inputs", "laurel_rank", "d_per_layer"):
        _check_beside(spec, name, getattr(spec, name), BESIDE_STREAMS)
    for name in ("d_ff_second", "activation_sparsity"):
        _check_beside(spec, name, getattr(spec, name), BESIDE_WIDTHS)
    _check_inputs(spec, stack)
    if isinstance(stack.attention, Attention) and stack.attention.n_kv_shared_layers:
        _check_borrowed(spec, stack, stack.attention.n_kv_shared_layers)


def _check_beside(
    spec: ModelSpec, name: str, value: object, known: dict[str, tuple[object, ...]]
) -> None:
    if not value:
        return
    for other, plain in known.items():
        found = getattr(spec, other)
        alike = isinstance(found, str) and found and set(found) == set(str(plain[0]))
        if found in plain or (alike and len(str(plain[0])) == 1):
            continue
        words = " or ".join(str(word) for word in plain)
        raise SpecError(
            other,
            f"of a model with {name} {'is left out' if plain == (None,) else f'is {words}'}",
            short(found) if isinstance(found, str) else found,
            f"{f'leave {other} out' if plain[0] in (None, 0) else f'choose {words}'}, or leave"
            f" {name} out",
        )


def _check_inputs(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` unless one table can give each layer's embeddings, looked up by token."""
    inputs = stack.layer_inputs
    if inputs is None:
        return
    if spec.embedding is None:
        raise SpecError(
            "d_per_layer",
            "needs an embedding: each layer looks up the token",
            inputs.width,
            "set vocab_size, or leave d_per_layer out",
        )
    if inputs.vocab_size * stack.n_layers * inputs.width > MAX_TENSOR:
        raise SpecError(
            "d_per_layer",
            "makes one tensor of more than 2^62 values",
            inputs.width,
            "lower d_per_layer",
        )


def _check_borrowed(spec: ModelSpec, stack: Stack, n_borrowing: int) -> None:
    """Raise `SpecError` unless borrowing layers follow one that makes keys for what they see."""
    name, n_layers = "n_kv_shared_layers", stack.n_layers
    if n_borrowing >= n_layers:
        raise SpecError(
            name,
            f"must be below n_layers = {n_layers}: one has to make keys and values",
            n_borrowing,
            f"choose 0 to {n_layers - 1}",
        )
    _check_beside(spec, name, n_borrowing, BESIDE_BORROWED)
    law, making = stack.windowed, n_layers - n_borrowing
    if law is None:
        return
    near = (law.count(making), law.count(n_layers) - law.count(making))
    kinds = {"a window": near, "everything": (making - near[0], n_borrowing - near[1])}
    for sees, (makers, borrowers) in kinds.items():
        if borrowers and not makers:
            raise SpecError(
                name,
                f"leaves {borrowers} blocks that see {sees} and none before them that does",
                n_borrowing,
                "choose fewer, or another window_pattern",
            )
