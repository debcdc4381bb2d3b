"""Whole models against plain Python from token to logit; tied heads, scales, caps, bodies alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, linear, randomised
from helpers.module_specs import BERT, ENCODER_DECODER, GPT2, MOE, ROPE, small, tokens
from helpers.module_stack_loop import head, model_rows
from helpers.release import daily

from metacount.formulas.step import tensors_by_path
from metacount.modules import Model
from metacount.spec import ModelSpec

S = 7

MODELS: dict[str, ModelSpec] = {
    "llama": small(ROPE),
    "no positions": small(),
    "gpt2": small(GPT2),
    "opt": small(GPT2, position_offset=2, activation="relu"),
    "bloom": small(position="alibi", embedding_norm=True, norm="layernorm", norm_bias=True),
    "minicpm": small(ROPE, embedding_scale=12.0, residual_scale=0.3, logit_scale=0.0625,
                     tie_embeddings=True),
    "gemma": small(
        ROPE, tie_embeddings=True, embedding_scale=13**0.5, norm_unit_offset=True,
        activation="gelu_tanh", qk_norm="head", logit_softcap=1.5, attention_softcap=2.0,
        attention_scale=0.25, window=3, window_pattern="LG", rope_theta_windowed=50.0,
    ),
    "llama4": small(ROPE, MOE, router="sigmoid", qk_norm="l2", nope_every=3, window=4,
                    window_kind="chunked", window_pattern="LLG", moe_every=2, n_shared_experts=1,
                    rope_style="interleaved"),
    "deepseek": small(ROPE, MOE, n_dense_layers=2, n_shared_experts=2, router="sigmoid_renorm",
                      selection_bias=True, routed_scale=2.5, head_bias=True),
    "gpt-oss": small(ROPE, MOE, router="topk_softmax", router_bias=True, expert_bias=True,
                     activation="clamped_swiglu", attention_sinks=True, window=3,
                     window_pattern="LG", q_bias=True, k_bias=True, v_bias=True, o_bias=True),
    "glm": small(ROPE, kind="prefix-decoder", rotary_dim=4, norm_placement="post"),
    "pangu": small(GPT2, n_query_positions=29, final_norm=False),
    "sinusoidal": small(position="sinusoidal", norm_placement="post", final_norm=False),
    "bert": small(BERT, has_head=False),
    "bert with a head": small(BERT, head_transform=True, head_transform_bias=True, head_bias=True,
                              tie_embeddings=True),
    "electra": small(BERT, d_embedding=11, head_transform=True, tie_embeddings=True,
                     position_offset=1, pooler=False),
    "modernbert": small(ROPE, kind="encoder", first_norm=False, window=5, window_pattern="LLG",
                        norm="layernorm"),
    "t5": small(ENCODER_DECODER, activation="relu", gated=False, attention_scale=1.0,
                tie_embeddings=True, logit_scale=13**-0.5),
    "transformer": small(kind="encoder-decoder", n_encoder_layers=2, position="sinusoidal",
                         norm="layernorm", norm_bias=True, norm_placement="post",
                         final_norm=False, q_bias=True, k_bias=True),
    "switch": small(ENCODER_DECODER, MOE, router="softmax", moe_every=2, activation="relu",
                    gated=False),
}  # fmt: skip


@daily(3)
@pytest.mark.parametrize("name", MODELS)
def test_model_is_plain_python(name: str) -> None:
    spec = MODELS[name]
    model: Model = randomised(Model(spec))
    x, source, types = tokens(), tokens(5), torch.randint(0, 3, (2, S))
    extra: dict[str, Any] = {}
    if spec.has_encoder:
        extra["memory_BTD"] = model.encode(source)
    if spec.n_token_types:
        extra["token_types"] = types
    if spec.kind == "prefix-decoder":
        extra["prefix_len"] = 4
    out = model(x, **extra)
    expected = [
        model_rows(
            model,
            spec,
            x[b].tolist(),
            source=source[b].tolist() if spec.has_encoder else None,
            types=types[b].tolist(),
            prefix_len=extra.get("prefix_len", 0),
        )
        for b in range(2)
    ]
    assert_near(out.hidden_BSD, expected, 1e-11)
    if spec.has_head:
        logits = [[head(model, spec, row) for row in rows] for rows in expected]
        assert_near(out.logits_BSV, logits, 1e-11)
    else:
        assert out.logits_BSV is None
    if spec.pooler:
        dense: Any = model.pooler.dense  # type: ignore[union-attr]
        pooled = [[math.tanh(x) for x in linear(dense, rows[0])] for rows in expected]
        assert_near(out.pooled_BD, pooled, 1e-11)
    else:
        assert out.pooled_BD is None


def test_prefix_len_opens_the_prefix() -> None:
    model, x = randomised(Model(MODELS["glm"])), tokens()
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
        # one layer: position 9 sees 7, 8, 9 (sliding 3) or its chunk's 9 (chunks of 3)
        ({"window": 3, "n_layers": 1}, {7, 8, 9}),
        ({"window": 3, "n_layers": 1, "window_kind": "chunked"}, {9}),
        ({"window": 4, "n_layers": 1, "window_kind": "chunked"}, {8, 9}),
        # each further layer reaches window - 1 further
        ({"window": 3, "n_layers": 2}, {5, 6, 7, 8, 9}),
        # one global layer reaches all
        ({"window": 3, "n_layers": 2, "window_pattern": "LG"}, set(range(10))),
        ({"n_layers": 1}, set(range(10))),
    ],
)
def test_what_reaches_a_position(window: dict[str, Any], expected: set[int]) -> None:
    model = randomised(Model(small(ROPE, window)))
    x = tokens(11, 1)
    before = model(x).hidden_BSD[0, 9]
    reached = set()
    for position in range(11):
        other = x.clone()
        other[0, position] = (other[0, position] + 1) % 101
        if not torch.equal(model(other).hidden_BSD[0, 9], before):
            reached.add(position)
    assert reached == expected


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_used(name: str) -> None:
    """They are those of the formulas, and a gradient reaches each: the model needs it."""
    spec = MODELS[name]
    model: Model = randomised(Model(spec))
    x = torch.arange(101).view(1, 101)[:, :20].repeat(8, 1)
    extra: dict[str, Any] = {}
    if spec.has_encoder:
        extra["memory_BTD"] = model.encode(x)
    if spec.n_token_types:
        extra["token_types"] = torch.arange(160).view(8, 20) % 3
    out = model(x, **extra)
    total = out.hidden_BSD.square().sum()
    for end in (out.logits_BSV, out.pooled_BD):
        total = total if end is None else total + end.square().sum()
    total.backward()
    counted = {path: weight.shape for path, weight in tensors_by_path(spec).items()}
    assert counted == {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


# --- the two ends ---------------------------------------------------------------------------------


def test_a_tied_head_is_one_tensor() -> None:
    tied, untied = (Model(small(ROPE, tie_embeddings=t)) for t in (True, False))
    assert tied.lm_head is not None and tied.embed_tokens is not None
    assert tied.lm_head.weight is tied.embed_tokens.weight
    count = {m: sum(p.numel() for p in m.parameters()) for m in (tied, untied)}
    assert count[untied] - count[tied] == 101 * 13
    names = [name for name, _ in tied.named_parameters()]
    assert "embed_tokens.weight" in names
    assert "lm_head.weight" not in names


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


def test_a_memory_is_for_an_encoder_decoder() -> None:
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ROPE))(tokens(), memory_BTD=torch.zeros(2, 5, 13))
    with pytest.raises(ValueError, match="memory_BTD"):
        Model(small(ENCODER_DECODER))(tokens())
    with pytest.raises(ValueError, match="encoder"):
        Model(small(ROPE)).encode(tokens())
