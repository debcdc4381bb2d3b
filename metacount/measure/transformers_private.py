"""Keeps every private name of transformers and huggingface_hub that metacount uses, in one place.

Nothing of them is imported here: they are attributes of objects that somebody else made.
`tests/measure/test_torch_private.py` says of each what is expected of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers.configuration_utils import PreTrainedConfig


# A module, and its function that says whether a field of a strict config has the declared type.
STRICT = ("huggingface_hub.dataclasses", "_validate_simple_type")
STRETCH = "_adjust_bias"  # of a model class: gives a tied head's bias the vocabulary's length


def use_eager_attention(config: PreTrainedConfig) -> None:
    """Set attention to run written out in torch operators, which can be counted."""
    config._attn_implementation = "eager"


def use_fused_attention(config: PreTrainedConfig) -> None:
    """Set attention to run by `scaled_dot_product_attention`."""
    config._attn_implementation = "sdpa"


def use_plain_experts(config: PreTrainedConfig) -> None:
    """Set experts to run one after the other: the fused product wants widths of 16 bytes."""
    config._experts_implementation = "eager"


def attention_way(config: PreTrainedConfig) -> str:
    """Name the way attention runs, as transformers calls it."""
    way: str = config._attn_implementation
    return way


def type_check() -> tuple[dict[str, object], str, Callable[[str, object, type], None]] | None:
    """Find where huggingface_hub checks the type of a config's field:
    a namespace, a name, the function.

    None while nobody has loaded it.
    """
    file, name = STRICT
    space = vars(sys.modules[file]) if file in sys.modules else {}
    return (space, name, space[name]) if name in space else None


@contextmanager
def bias_unstretched(chosen: type) -> Iterator[None]:
    """Keep a tied head's bias at its length until the block ends:
    stretching it asks for numbers.
    """
    base = next((c for c in chosen.__mro__ if STRETCH in vars(c)), None)
    if base is None:
        yield
        return
    stretch = vars(base)[STRETCH]
    setattr(base, STRETCH, lambda *_: None)
    try:
        yield
    finally:
        setattr(base, STRETCH, stretch)


def run_prediction(modules: Any, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
    """Run transformers' prediction modules one after the other; return the logits of each."""
    import torch

    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    outputs = []
    for k in range(len(modules.layers)):
        hidden = modules.forward_layer(k, hidden, positions, None, input_ids=tokens)
        outputs.append(modules._project_to_logits(hidden))
    return outputs
