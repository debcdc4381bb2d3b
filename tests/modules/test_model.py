"""Whole models: what a position sees, tied heads, bodies alone, PanGu's last layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised, tokens
from helpers.small_specs import ENCODER_DECODER, GPT2, ROPE, small
from torch import Tensor

from metacount.modules import Model


def test_prefix_len_opens_the_prefix() -> None:
    model, x = randomised(Model(small(ROPE, kind="prefix-decoder", rotary_dim=4))), tokens()
    causal, prefix = model(x).hidden_BSD, model(x, prefix_len=4).hidden_BSD
    assert not torch.equal(causal[:, 0], prefix[:, 0])
    assert_near(model(x, prefix_len=1).hidden_BSD, causal)
    # position 5 stays hidden from those before it, whatever the prefix
    other = x.clone()
    other[:, 5] = (other[:, 5] + 1) % 101
    changed = model(other, prefix_len=4).hidden_BSD
    assert torch.equal(changed[:, :5], prefix[:, :5])
    assert (changed[:, 5:] != prefix[:, 5:]).any(-1).all()


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        # position 9 sees 7, 8, 9 (sliding 3) or its chunk's 8, 9 (chunks of 4)
        ({"window": 3, "n_layers": 1}, {7, 8, 9}),
        ({"window": 4, "n_layers": 1, "window_kind": "chunked"}, {8, 9}),
        # each further layer reaches window - 1 further; one global layer reaches all
        ({"window": 3, "n_layers": 2}, {5, 6, 7, 8, 9}),
        ({"window": 3, "n_layers": 2, "window_pattern": "LG"}, set(range(10))),
    ],
)
def test_what_reaches_a_position(window: dict[str, Any], expected: set[int]) -> None:
    model, x = randomised(Model(small(ROPE, window))), tokens(11, 1)
    before = model(x).hidden_BSD[0, 9]
    reached = set()
    for position in range(11):
        other = x.clone()
        other[0, position] = (other[0, position] + 1) % 101
        if not torch.equal(model(other).hidden_BSD[0, 9], before):
            reached.add(position)
    assert reached == expected


def test_the_last_layer_of_pangu_asks_with_a_table() -> None:
    """Zeng et al. 2021, arXiv:2104.12369: transformers has no such model."""
    model = randomised(Model(small(GPT2, n_query_positions=29, final_norm=False)))
    stack, given = model.last_stack, list[Tensor]()
    block: Any = stack.layers[-1]
    block.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    found, (x,), attention = model(tokens()).hidden_BSD, given, block.self_attn

    def heads(y: Tensor) -> Tensor:
        return y.unflatten(-1, (6, 5)).transpose(-2, -3)

    normed = block.input_layernorm(x)
    q = heads(attention.q_proj(stack.embed_queries.weight[:7]))
    k, v = heads(attention.k_proj(normed)), heads(attention.v_proj(normed))
    scores = (q @ k.mT / 5**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    x = x + attention.o_proj((scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2))
    assert_near(found, x + block.mlp(block.post_attention_layernorm(x)))


@pytest.mark.parametrize("kind", ["decoder", "encoder", "prefix-decoder"])
def test_body_only_takes_hidden_states(kind: str) -> None:
    body, whole = (
        randomised(Model(small(ROPE, kind=kind, **v))) for v in ({"vocab_size": None}, {})
    )
    whole.last_stack.load_state_dict(body.last_stack.state_dict())
    assert [name for name, _ in body.named_children()] == [kind.removeprefix("prefix-")]
    x = tokens()
    out = body(whole.embed_tokens(x))
    assert (out.logits_BSV, out.pooled_BD) == (None, None)
    assert torch.equal(out.hidden_BSD, whole(x).hidden_BSD)


def test_a_memory_is_for_an_encoder_decoder() -> None:
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ROPE))(tokens(), memory_BTD=torch.zeros(2, 5, 13))
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ENCODER_DECODER))(tokens())
    with pytest.raises(ValueError, match="encoder"):
        Model(small(ROPE)).encode(tokens())
