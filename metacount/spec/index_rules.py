"""Rules for a block indexer: which models have one."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import Attention
from metacount.spec.position import Rope

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec.model import ModelSpec
    from metacount.spec.stack import Stack


def check_block_index(spec: ModelSpec, stack: Stack) -> None:
    """Raise `SpecError` for a model that a block indexer does not go with."""
    mixer, positions = stack.attention, spec.positions
    if not isinstance(mixer, Attention) or mixer.indexer is None:
        return
    index = mixer.indexer
    if not isinstance(positions, Rope):
        raise SpecError(
            "index_block_len",
            "belongs to a block indexer, which needs position rope",
            index.block_len,
            "choose position rope",
        )
    # of each field the value that goes with an indexer
    known = {
        "kind": (spec.kind, "decoder"),
        "mixer_pattern": ("A" if set(stack.mixer_pattern) == {"A"} else stack.mixer_pattern, "A"),
        "window": (mixer.window and mixer.window.size, None),
        "n_kv_shared_layers": (mixer.n_kv_shared_layers, 0),
        "nope_every": (positions.nope_every, None),
        "n_mtp_layers": (spec.prediction and spec.prediction.n_modules, None),
    }
    for name, (value, plain) in known.items():
        if value != plain:
            remedy = f"leave {name} out" if plain is None else f"choose {plain}"
            raise SpecError(name, "is not defined with a block indexer", value, remedy)
    rotated = mixer.head_dim if positions.rotary_dim is None else positions.rotary_dim
    if index.head_dim < rotated:
        raise SpecError(
            "index_head_dim",
            f"must be at least the {rotated} values of a head that RoPE rotates",
            index.head_dim,
            f"choose {rotated} or more, or a smaller rotary_dim",
        )
    first = index.pattern.find("I")
    if first < 0 or stack.n_layers <= first:
        raise SpecError(
            "index_pattern",
            "leaves no layer to the indexer",
            index.pattern,
            "put I in for one, or leave index_block_len out",
        )
