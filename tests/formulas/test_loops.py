"""FLOPs and caches of whole models against a loop over every matrix product, layer by layer.

Nothing here is closed: layers are visited one by one, masks are asked for every pair. Tensors are
compared with the module's in `test_modules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.random_specs import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from metacount.formulas import model
from metacount.spec import ModelSpec

Part = tuple[str, int]  # role, multiply-adds


def assert_same(found: dict[str, int], expected: dict[str, int], total: int) -> None:
    """By role, in the order of the roles, as ints; and in total."""
    assert found == expected and list(found) == list(model.ROLES)
    assert total == sum(expected.values())
    assert {type(n) for n in (*found.values(), total)} == {int}


def sees(spec: ModelSpec, layer: int, prefix_len: int, t: int, u: int) -> bool:
    """Whether position t of a self-attention sees position u."""
    w = spec.window
    if not spec.is_windowed_layer(layer):
        return spec.kind == "encoder" or u <= t or u < prefix_len
    if spec.kind == "encoder":
        return abs(t - u) <= w // 2
    if spec.window_kind == "chunked":
        return u <= t and u // w == t // w
    return u <= t and t - u < w


def attention_products(
    spec: ModelSpec, *, new: int, keys: int, pairs: int, projected: int, decode: bool, cross: bool
) -> Iterator[Part]:
    """Multiply-adds; `keys` are positions of one sequence, the rest counts all sequences."""
    d, h = spec.d_model, spec.n_heads
    if spec.attention == "mla":
        nope, rope, v = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
        latent, rank = spec.kv_lora_rank, spec.q_lora_rank
        if rank is not None:
            yield "attention", new * d * rank
        yield "attention", new * (rank or d) * h * (nope + rope)
        yield "attention", new * d * (latent + rope)
        if decode:
            yield "attention", new * h * nope * latent
            yield "attention", pairs * h * (latent + rope)
            yield "attention", pairs * h * latent
            yield "attention", new * h * latent * v
        else:
            yield "attention", projected * latent * h * (nope + v)
            yield "attention", pairs * h * (nope + rope)
            yield "attention", pairs * h * v
        yield "attention", new * h * v * d
        return
    q, kv = h * spec.head_dim, spec.n_kv_heads * spec.head_dim
    yield "attention", new * d * q
    if spec.output_gate and not cross:
        yield "attention", new * d * q
    yield from 2 * [("attention", projected * d * kv)]
    yield from 2 * [("attention", pairs * q)]
    yield "attention", new * q * d
    if spec.position == "transformer_xl" and not cross:
        yield "position", keys * d * q
        yield "position", pairs * q


def ffn_products(spec: ModelSpec, layer: int, new: int) -> Iterator[Part]:
    d, per_ffn = spec.d_model, 3 if spec.gated else 2
    if not spec.is_moe_layer(layer):
        yield "ffn", new * per_ffn * d * spec.d_ff
        return
    yield "moe", new * d * spec.n_experts
    for _ in range(spec.top_k):
        yield "moe", new * per_ffn * d * spec.d_ff_expert
    for _ in range(spec.n_shared_experts):
        yield "moe", new * per_ffn * d * (spec.d_ff_shared or spec.d_ff_expert)
    if spec.shared_expert_gate:
        yield "moe", new * d


def products(
    spec: ModelSpec, batch: int, seq: int, source: int, *, prefix: int = 0, how: str
) -> Iterator[Part]:
    """Every product of a forward in `full` or over the pairs that are `kept`, or of a `step`."""
    decode = how == "step"
    new = batch if decode else batch * seq
    for i in range(spec.n_layers):
        if decode:
            keys = min(seq, spec.window) if spec.is_windowed_layer(i) else seq
            pairs = keys
        else:
            keys, cells = seq, [(t, u) for t in range(seq) for u in range(seq)]
            pairs = sum(how == "full" or sees(spec, i, prefix, *cell) for cell in cells)
        yield from attention_products(
            spec,
            new=new,
            keys=keys,
            pairs=batch * pairs,
            projected=new,
            decode=decode,
            cross=False,
        )
        if spec.has_encoder:
            yield from attention_products(
                spec,
                new=new,
                keys=source,
                pairs=new * source,
                projected=0 if decode else batch * source,
                decode=decode,
                cross=True,
            )
        yield from ffn_products(spec, i, new)
    if not decode:
        n = batch * source
        for i in range(spec.n_encoder_layers):
            yield from attention_products(
                spec, new=n, keys=source, pairs=n * source, projected=n, decode=False, cross=False
            )
            yield from ffn_products(spec, i, n)
    e = spec.d_embedding or spec.d_model
    if spec.d_embedding:
        yield "embedding", new * e * spec.d_model
    if spec.head_transform:
        yield "head", new * spec.d_model * e
    if spec.vocab_size and spec.has_head:
        yield "head", new * e * spec.vocab_size
    if spec.pooler:
        yield "other", batch * spec.d_model * spec.d_model


LENGTHS = st.integers(1, 9)


@settings(max_examples=150)  # encoders, a quarter, have no step
@given(specs(), st.integers(1, 3), LENGTHS, st.none() | LENGTHS, st.integers(0, 9))
def test_flops_are_the_sum_over_products(
    spec: ModelSpec, batch: int, seq: int, source_len: int | None, prefix: int
) -> None:
    prefix = min(prefix, seq) if spec.kind == "prefix-decoder" else 0
    source = seq if source_len is None else source_len

    def flops(how: str) -> dict[str, int]:  # 2 per multiply-add
        total = dict.fromkeys(model.ROLES, 0)
        for role, n in products(spec, batch, seq, source, prefix=prefix, how=how):
            total[role] += 2 * n
        return total

    run = {"batch_size": batch, "seq_len": seq, "source_len": source_len}
    assert_same(
        model.matmul_flops_by_role(spec, **run), flops("full"), model.matmul_flops(spec, **run)
    )
    assert_same(
        model.causal_matmul_flops_by_role(spec, **run, prefix_len=prefix),
        flops("kept"),
        model.causal_matmul_flops(spec, **run, prefix_len=prefix),
    )
    if spec.kind != "encoder":
        step = {"batch_size": batch, "kv_len": seq, "source_len": source_len}
        assert_same(
            model.decode_matmul_flops_by_role(spec, **step),
            flops("step"),
            model.decode_matmul_flops(spec, **step),
        )


@given(
    specs().filter(lambda spec: spec.kind != "encoder"),
    st.integers(1, 3),
    LENGTHS,
    st.none() | LENGTHS,
)
def test_cache_holds_every_position_that_is_needed(
    spec: ModelSpec, batch: int, seq: int, source_len: int | None
) -> None:
    if spec.attention == "mla":
        per_token = spec.kv_lora_rank + spec.qk_rope_head_dim
    else:
        per_token = 2 * spec.n_kv_heads * spec.head_dim
    source = seq if source_len is None else source_len
    positions = 0
    for i in range(spec.n_layers):
        near = spec.window if spec.is_windowed_layer(i) else seq + 1
        positions += sum(seq - t < near for t in range(seq))
    crossed = spec.n_layers * source if spec.has_encoder else 0
    size = {"batch_size": batch, "bytes_per_value": 3}
    cross = model.cross_kv_cache_bytes(spec, **size, source_len=source)
    total = model.kv_cache_bytes(spec, **size, seq_len=seq, source_len=source_len)
    one = model.kv_cache_bytes_per_token(spec, bytes_per_value=3)
    assert cross == 3 * batch * per_token * crossed
    assert total == 3 * batch * per_token * (positions + crossed)
    assert one == 3 * per_token * spec.n_layers
    assert {type(cross), type(total), type(one)} == {int}
