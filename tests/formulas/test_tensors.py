"""Parameters of whole models against a loop over every tensor, layer by layer.

Nothing here is closed: layers are visited one by one, experts are a list.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.random_specs import specs
from hypothesis import given

from metacount.formulas import model
from metacount.spec import ModelSpec

Tensor = tuple[str, int]  # role, values


def linear(role: str, d_in: int, d_out: int, bias: bool = False) -> Iterator[Tensor]:
    yield role, d_in * d_out
    if bias:
        yield role, d_out


def feed_forward(role: str, spec: ModelSpec, width: int, bias: bool) -> Iterator[Tensor]:
    for _ in range(2 if spec.gated else 1):
        yield from linear(role, spec.d_model, width, bias)
    yield from linear(role, width, spec.d_model, bias)


def norms(spec: ModelSpec, n: int, width: int) -> Iterator[Tensor]:
    for _ in range(n * (spec.norm_affine + spec.norm_bias)):
        yield "norm", width


def attention_tensors(spec: ModelSpec, cross: bool) -> Iterator[Tensor]:
    d, h = spec.d_model, spec.n_heads
    if spec.attention == "mla":
        qk = spec.qk_nope_head_dim + spec.qk_rope_head_dim
        if spec.q_lora_rank is None:
            yield from linear("attention", d, h * qk)
        else:
            yield from linear("attention", d, spec.q_lora_rank, spec.mla_bias)
            yield "norm", spec.q_lora_rank
            yield from linear("attention", spec.q_lora_rank, h * qk)
        latent = spec.kv_lora_rank
        yield from linear("attention", d, latent + spec.qk_rope_head_dim, spec.mla_bias)
        yield "norm", latent
        yield from linear("attention", latent, h * (spec.qk_nope_head_dim + spec.v_head_dim))
        yield from linear("attention", h * spec.v_head_dim, d, spec.mla_bias)
        return
    q, kv = h * spec.head_dim, spec.n_kv_heads * spec.head_dim
    gated = spec.output_gate and not cross
    yield from linear("attention", d, 2 * q if gated else q, spec.q_bias)
    yield from linear("attention", d, kv, spec.k_bias)
    yield from linear("attention", d, kv, spec.v_bias)
    yield from linear("attention", q, d, spec.o_bias)
    if cross:
        return
    if spec.attention_sinks:
        yield "attention", h
    one = spec.head_dim
    widths = {
        "none": (),
        "l2": (),
        "head": (one, one),
        "full": (q, kv),
        "layernorm": (one, one, one, one),
    }
    for width in widths[spec.qk_norm]:
        yield "norm", width
    if spec.position == "transformer_xl":
        yield from linear("position", d, q)
        yield from [("position", q), ("position", q)]


def tensors(spec: ModelSpec, n_used: int) -> Iterator[Tensor]:
    """Every tensor of the model, with n_used experts in a MoE layer."""
    d, e = spec.d_model, spec.d_embedding or spec.d_model
    stacks = [(spec.n_layers, spec.kind == "encoder-decoder")]
    stacks += [(spec.n_encoder_layers, False)] if spec.kind == "encoder-decoder" else []
    for n_layers, cross in stacks:
        if spec.position == "learned":
            yield "position", spec.n_positions * e
        if spec.position == "t5":
            yield "position", spec.n_buckets * spec.n_heads
        yield from norms(spec, spec.embedding_norm, e)
        yield from norms(spec, spec.final_norm, d)
        for i in range(n_layers):
            yield from attention_tensors(spec, cross=False)
            if cross:
                yield from attention_tensors(spec, cross=True)
            sublayers = 3 if cross else 2
            of_block = {"sandwich": 2 * sublayers, "parallel": 1, "parallel_two": 2}
            n_norms = of_block.get(spec.norm_placement, sublayers)
            yield from norms(spec, n_norms if i > 0 or spec.first_norm else n_norms - 1, d)
            if not spec.is_moe_layer(i):
                yield from feed_forward("ffn", spec, spec.d_ff, spec.ffn_bias)
                continue
            yield from linear("moe", d, spec.n_experts, spec.router_bias)
            for _ in range(n_used):
                yield from feed_forward("moe", spec, spec.d_ff_expert, spec.expert_bias)
            if spec.n_shared_experts:
                width = spec.n_shared_experts * (spec.d_ff_shared or spec.d_ff_expert)
                yield from feed_forward("moe", spec, width, spec.ffn_bias)
                if spec.shared_expert_gate:
                    yield from linear("moe", d, 1)
    yield "position", spec.n_query_positions * d
    if spec.vocab_size:
        yield "embedding", spec.vocab_size * e
        yield "embedding", spec.n_token_types * e
        if spec.has_head and not spec.tie_embeddings:
            yield "head", spec.vocab_size * e
        if spec.head_bias:
            yield "head", spec.vocab_size
    if spec.d_embedding:
        yield from linear("embedding", e, d, bias=True)
    if spec.head_transform:
        yield from linear("head", d, e, spec.head_transform_bias)
        yield from norms(spec, 1, e)
    if spec.pooler:
        yield from linear("other", d, d, bias=True)


def by_role(parts: Iterator[Tensor]) -> dict[str, int]:
    total = dict.fromkeys(model.ROLES, 0)
    for role, values in parts:
        total[role] += values
    return total


@given(specs())
def test_params_are_the_sum_over_tensors(spec: ModelSpec) -> None:
    stored = by_role(tensors(spec, spec.n_experts or 0))
    assert model.params_by_role(spec) == stored
    assert list(model.params_by_role(spec)) == list(stored)
    assert model.params(spec) == sum(stored.values())
    assert model.param_bytes(spec, bytes_per_value=3) == 3 * sum(stored.values())
    active = by_role(tensors(spec, spec.top_k or 0))
    assert model.active_params_by_role(spec) == active
    assert model.active_params(spec) == sum(active.values())
    assert all(type(n) is int for n in [*stored.values(), model.active_params(spec)])


@given(specs())
def test_only_an_untied_table_is_left_out(spec: ModelSpec) -> None:
    table = (spec.vocab_size or 0) * (spec.d_embedding or spec.d_model)
    left_out = model.active_params(spec) - model.active_params_no_embed(spec)
    assert left_out == (0 if spec.tie_embeddings else table)


@given(specs())
def test_buffers_are_selection_biases(spec: ModelSpec) -> None:
    layers = [*range(spec.n_layers), *range(spec.n_encoder_layers)]
    biases = [spec.n_experts for i in layers if spec.selection_bias and spec.is_moe_layer(i)]
    assert model.buffers(spec) == {"selection_bias": sum(biases)}
