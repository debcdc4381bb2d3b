"""A model's two ends: tables, tied and untied heads, scales and caps, bodies without either."""

from __future__ import annotations

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_specs import BERT, ENCODER_DECODER, GPT2, ROPE, small, tokens

from metacount.modules import Model
from metacount.spec import ModelSpec


def test_a_tied_head_is_one_tensor() -> None:
    tied, untied = (Model(small(ROPE, tie_embeddings=t)) for t in (True, False))
    assert tied.lm_head is not None and tied.embed_tokens is not None
    assert tied.lm_head.weight is tied.embed_tokens.weight
    count = {m: sum(p.numel() for p in m.parameters()) for m in (tied, untied)}
    assert count[untied] - count[tied] == 101 * 13
    names = [name for name, _ in tied.named_parameters()]
    assert "embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_tied_tensors_gradient_is_the_sum_of_both_uses() -> None:
    tied, untied = (randomised(Model(small(ROPE, tie_embeddings=t))) for t in (True, False))
    with torch.no_grad():  # the same values, in one tensor and in two
        state = tied.state_dict()
        untied.load_state_dict(state)
        assert torch.equal(untied.lm_head.weight, untied.embed_tokens.weight)
    x, weights = tokens(), torch.randn(2, 7, 101, dtype=torch.float64)
    for model in (tied, untied):
        (model(x).logits_BSV * weights).sum().backward()
    both = untied.embed_tokens.weight.grad + untied.lm_head.weight.grad
    assert_near(tied.embed_tokens.weight.grad, both)
    # a token that does not occur gets its gradient from the head alone
    absent = next(t for t in range(101) if t not in x)
    assert torch.equal(untied.embed_tokens.weight.grad[absent], torch.zeros(13).double())
    assert tied.embed_tokens.weight.grad[absent].abs().max() > 1e-6


def test_scales_and_caps_by_hand() -> None:
    x = tokens()
    plain = randomised(Model(small(ROPE)))(x).logits_BSV
    assert plain is not None
    scaled = randomised(Model(small(ROPE, logit_scale=0.25)))(x).logits_BSV
    assert_near(scaled, plain / 4)
    # the scale is inside of the cap
    capped = randomised(Model(small(ROPE, logit_scale=0.25, logit_softcap=0.5)))(x).logits_BSV
    assert_near(capped, 0.5 * torch.tanh(plain / 2))
    assert capped.abs().max() < 0.5
    # a norm right after the embedding takes the embedding's scale away again
    normed = {"embedding_norm": True, "norm_eps": 1e-12}
    one, ten = (
        randomised(Model(small(ROPE, normed, embedding_scale=s)))(x).hidden_BSD for s in (1.0, 10.0)
    )
    assert_near(ten, one, 1e-8)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "prefix-decoder"])
def test_body_only_takes_hidden_states(kind: str) -> None:
    body = randomised(Model(small(ROPE, kind=kind, vocab_size=None)))
    whole = randomised(Model(small(ROPE, kind=kind)))
    whole.last_stack.load_state_dict(body.last_stack.state_dict())
    assert [name for name, _ in body.named_children()] == [kind.removeprefix("prefix-")]
    x = tokens()
    out = body(whole.embed_tokens(x))
    assert (out.logits_BSV, out.pooled_BD) == (None, None)
    assert torch.equal(out.hidden_BSD, whole(x).hidden_BSD)


def test_body_only_encoder_decoder() -> None:
    body = randomised(Model(small(ENCODER_DECODER, vocab_size=None)))
    whole = randomised(Model(small(ENCODER_DECODER)))
    for part in ("encoder", "decoder"):
        getattr(whole, part).load_state_dict(getattr(body, part).state_dict())
    x, source = tokens(), tokens(5)
    embed = whole.embed_tokens
    y = body(embed(x), memory_BTD=body.encode(embed(source))).hidden_BSD
    assert torch.equal(y, whole(x, memory_BTD=whole.encode(source)).hidden_BSD)


def test_tensors_outside_of_the_blocks() -> None:
    def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
        named = Model(spec).named_parameters()
        return {name: tuple(p.shape) for name, p in named if ".layers." not in name}

    assert shapes(small(BERT, head_bias=True, final_norm=True)) == {
        "embed_tokens.weight": (101, 13),
        "embed_types.weight": (3, 13),
        "encoder.embed_positions.weight": (23, 13),
        "encoder.embed_norm.weight": (13,),
        "encoder.embed_norm.bias": (13,),
        "encoder.norm.weight": (13,),
        "encoder.norm.bias": (13,),
        "pooler.dense.weight": (13, 13),
        "pooler.dense.bias": (13,),
        "lm_head.weight": (101, 13),
        "lm_head.bias": (101,),
    }
    electra = small(
        BERT,
        d_embedding=11,
        head_transform=True,
        head_transform_bias=True,
        pooler=False,
        n_token_types=0,
        tie_embeddings=True,
        position_offset=1,
    )
    assert shapes(electra) == {
        "embed_tokens.weight": (101, 11),
        "encoder.embed_positions.weight": (23, 11),
        "encoder.embed_norm.weight": (11,),
        "encoder.embed_norm.bias": (11,),
        "encoder.embed_proj.weight": (13, 11),
        "encoder.embed_proj.bias": (13,),
        "head_transform.dense.weight": (11, 13),
        "head_transform.dense.bias": (11,),
        "head_transform.norm.weight": (11,),
        "head_transform.norm.bias": (11,),
    }
    assert shapes(small(ENCODER_DECODER)) == {
        "embed_tokens.weight": (101, 13),
        "encoder.relative_bias.relative_attention_bias.weight": (8, 6),
        "encoder.norm.weight": (13,),
        "decoder.relative_bias.relative_attention_bias.weight": (8, 6),
        "decoder.norm.weight": (13,),
        "lm_head.weight": (101, 13),
    }
    assert shapes(small(GPT2, n_query_positions=29, final_norm=False)) == {
        "embed_tokens.weight": (101, 13),
        "decoder.embed_positions.weight": (23, 13),
        "decoder.embed_queries.weight": (29, 13),
    }


def test_no_head() -> None:
    model = Model(small(ROPE, has_head=False))
    assert model(tokens()).logits_BSV is None
    assert not any(name.startswith("lm_head") for name, _ in model.named_parameters())


def test_a_memory_is_for_an_encoder_decoder() -> None:
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ROPE))(tokens(), memory_BTD=torch.zeros(2, 5, 13))
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ENCODER_DECODER))(tokens())
    with pytest.raises(ValueError, match="encoder"):
        Model(small(ROPE)).encode(tokens())
