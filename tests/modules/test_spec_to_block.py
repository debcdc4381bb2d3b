"""What each layer of a stack is made of; that all values arrive, `tests/huggingface/module` holds.

Which tensors there are, by path and shape: `tests/formulas/test_modules.py`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from helpers.module_specs import MLA, MOE, ROPE, small

from metacount.modules import (
    Block,
    GatedFeedForward,
    MixtureOfExperts,
)
from metacount.spec import CHOICES

LLG = {"window": 5, "window_pattern": "LLG", "rope_theta": 1e6}
SINCE_TWO = {"n_layers": 5, "n_dense_layers": 2}
# fields of a spec, something of a block, and what it is in each layer
BY_LAYER: list[tuple[dict[str, Any], str, list[Any]]] = [
    ({**MOE, **SINCE_TWO, "d_ff": 17}, "mlp", [GatedFeedForward] * 2 + [MixtureOfExperts] * 3),
    (
        {**MOE, "n_layers": 7, "moe_every": 3},
        "mlp",
        [*([GatedFeedForward] * 2 + [MixtureOfExperts]) * 2, GatedFeedForward],
    ),
    (
        {**MOE, "n_layers": 7, "moe_every": 2, "n_dense_layers": 3},
        "mlp",
        [GatedFeedForward] * 3 + [MixtureOfExperts, GatedFeedForward] * 2,
    ),
    ({**ROPE, **LLG, "n_layers": 7}, "window", [5, 5, None, 5, 5, None, 5]),
    ({**ROPE, "n_layers": 5, "nope_every": 2}, "self_attn.rotary_dim", [10, None, 10, None, 10]),
    *(
        ({**kind, **LLG, **fields}, "self_attn.rope_theta", expected)
        for kind in (ROPE, MLA)
        for fields, expected in (({"rope_theta_windowed": 1e4}, [1e4, 1e4, 1e6]), ({}, [1e6] * 3))
    ),
    # Llama 4 norms what it rotates; a norm with weights is in every layer
    *(
        ({**ROPE, "qk_norm": kind, "nope_every": 3}, "self_attn.qk_norm", [kind, kind, last])
        for kind in CHOICES["qk_norm"]
        for last in ("none" if kind == "l2" else kind,)
    ),
]


@pytest.mark.parametrize(
    ("fields", "path", "expected"), BY_LAYER, ids=[path for _, path, _ in BY_LAYER]
)
def test_what_each_layer_is_made_of(fields: dict[str, Any], path: str, expected: list[Any]) -> None:
    spec = small(fields)
    found = [attrgetter(path)(Block(spec, index)) for index in range(spec.n_layers)]
    assert [type(each) if path == "mlp" else each for each in found] == expected


def test_blocks_of_one_kind_have_one_structure() -> None:
    """Three kinds of window and rotation occur."""
    spec = small(ROPE, LLG, n_layers=7, nope_every=2)
    kinds = [Block(spec, i).kind for i in range(7)]
    assert [kinds.index(k) for k in kinds] == [0, 1, 2, 1, 0, 5, 0]
