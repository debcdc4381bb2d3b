"""Names of the tensors of Zamba2, whose layers store some of theirs in a block that many share."""

from __future__ import annotations

from metacount.huggingface.weights.blocks import GATE_UP, LLAMA_ENDS, QKV, same
from metacount.huggingface.weights.names import Dialect, Place, Table, halves
from metacount.huggingface.weights.state_space import PARTS
from metacount.spec import ModelSpec
from metacount.spec.stack import SHARING

SHARED = "shared_transformer."
# Their lists of adapters, an item a use -> ours, in the layer of that use.
ADAPTERS = {
    "feed_forward.gate_up_proj_adapter_list": "gate_up",
    **{f"self_attn.linear_{name}_adapter_list": name for name in "qkv"},
}
HALVES = {"0": "down_proj", "1": "up_proj"}

BLOCK: Table = {
    **same("input_layernorm"),
    **{f"mamba.{part}": f"mamba.{part}" for part in PARTS},
    # in a layer that uses a shared block
    "mamba_decoder.input_layernorm": "input_layernorm",
    **{f"mamba_decoder.mamba.{part}": f"mamba.{part}" for part in PARTS},
    "linear": "shared_use.linear",
    # the shared block, and what a use of it adds
    f"{SHARED}input_layernorm": "input_layernorm",
    f"{SHARED}pre_ff_layernorm": "pre_ff_layernorm",
    **{f"{SHARED}{name}": name for name in (*QKV, "self_attn.o_proj")},
    f"{SHARED}feed_forward.gate_up_proj": Place(GATE_UP, halves),
    f"{SHARED}feed_forward.down_proj": "mlp.down_proj",
    **{
        f"{SHARED}{theirs}.{half}": f"shared_use.adapters.{ours}.{HALVES[half]}"
        for theirs, ours in ADAPTERS.items()
        for half in HALVES
    },
}


def outside(index: int, rest: str, spec: ModelSpec) -> tuple[str, str] | None:
    """Find where a shared tensor stands:
    in its stored block, or, an adapter, in the layer of its use.

    Every layer that uses a block has all of its adapters under its name, numbered by use.
    """
    if not rest.startswith(SHARED):
        return None
    stack = spec.last_stack
    name, _, last = rest.rpartition(".")
    adapters, _, number = name.rpartition(".")
    if adapters.removeprefix(SHARED) not in ADAPTERS:
        return f"decoder.shared_blocks.{stack.shared_of(index)}.", rest
    using = [i for i in range(stack.n_layers) if stack.mixer_of(i) == SHARING]
    if not number.isdecimal() or int(number) >= len(using):
        return "", ""  # no use has this number
    return f"decoder.layers.{using[int(number)]}.", f"{adapters}.{last}"


# Of two marks one is there, whichever kind of layer is the first.
SHARED_BLOCK = {
    name: Dialect(
        mark=f"layers.0.{mark}.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", BLOCK)},
        outside=outside,
    )
    for name, mark in (("zamba2", "mamba.in_proj"), ("zamba2_shared_first", "linear"))
}
