"""FLOPs and caches of whole models against a loop over every matrix product, layer by layer.

Nothing here is closed: layers are visited one by one, masks are asked for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from helpers.random_specs import specs
from hypothesis import given
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.formulas import model, terms
from metacount.formulas.indexed import index_cache
from metacount.formulas.recurrent import mixer_of
from metacount.formulas.sublayers import cached_tensors
from metacount.formulas.terms import OF_PAIRS, PAIRS
from metacount.spec import ModelSpec

Product = tuple[str, int]  # role, multiply-adds


Mask = Callable[[int, int], bool]


def mask_of(spec: ModelSpec, layer: int, prefix_len: int) -> Mask:
    """Whether position t of a self-attention sees position u."""
    w = spec.window
    if not spec.is_windowed_layer(layer):
        if spec.kind == "encoder":
            return lambda t, u: True
        return lambda t, u: u <= t or u < prefix_len
    if spec.kind == "encoder":
        return lambda t, u: abs(t - u) <= w // 2
    if spec.window_kind == "chunked":
        return lambda t, u: u <= t and u // w == t // w
    return lambda t, u: u <= t and t - u < w


def products_of_attention(
    spec: ModelSpec, *, new: int, keys: int, pairs: int, projected: int, decode: bool, cross: bool
) -> Iterator[Product]:
    """Multiply-adds; `keys` are positions of one sequence, the rest counts all sequences."""
    d, h = spec.d_model, spec.n_heads
    if spec.attention == "mla":
        nope, rope, v = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
        latent = spec.kv_lora_rank
        if spec.q_lora_rank is None:
            yield "attention", new * d * h * (nope + rope)
        else:
            yield "attention", new * d * spec.q_lora_rank
            yield "attention", new * spec.q_lora_rank * h * (nope + rope)
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
    yield "attention", projected * d * kv
    yield "attention", projected * d * kv
    yield "attention", pairs * q
    yield "attention", pairs * q
    yield "attention", new * q * d
    if spec.position == "transformer_xl" and not cross:
        yield "position", keys * d * q
        yield "position", pairs * q


def products_of_ffn(spec: ModelSpec, layer: int, new: int) -> Iterator[Product]:
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


def products_of_ends(spec: ModelSpec, new: int) -> Iterator[Product]:
    e = spec.d_embedding or spec.d_model
    if spec.d_embedding:
        yield "embedding", new * e * spec.d_model
    if spec.head_transform:
        yield "head", new * spec.d_model * e
    if spec.vocab_size and spec.has_head:
        yield "head", new * e * spec.vocab_size


def forward_products(
    spec: ModelSpec, *, batch: int, seq: int, source: int, prefix: int, full: bool
) -> Iterator[Product]:
    new = batch * seq
    for i in range(spec.n_layers):
        sees = mask_of(spec, i, prefix)
        kept = sum(full or sees(t, u) for t in range(seq) for u in range(seq))
        yield from products_of_attention(
            spec, new=new, keys=seq, pairs=batch * kept, projected=new, decode=False, cross=False
        )
        if spec.kind == "encoder-decoder":
            yield from products_of_attention(
                spec,
                new=new,
                keys=source,
                pairs=new * source,
                projected=batch * source,
                decode=False,
                cross=True,
            )
        yield from products_of_ffn(spec, i, new)
    for i in range(spec.n_encoder_layers):
        yield from products_of_attention(
            spec,
            new=batch * source,
            keys=source,
            pairs=batch * source * source,
            projected=batch * source,
            decode=False,
            cross=False,
        )
        yield from products_of_ffn(spec, i, batch * source)
    yield from products_of_ends(spec, new)
    if spec.pooler:
        yield "other", batch * spec.d_model * spec.d_model


def flops(parts: Iterator[Product]) -> dict[str, int]:
    """2 per multiply-add, by role."""
    total = dict.fromkeys(model.ROLES, 0)
    for role, multiply_adds in parts:
        total[role] += 2 * multiply_adds
    return total


LENGTHS = st.integers(1, 9)


@given(specs(), st.integers(1, 3), LENGTHS, st.none() | LENGTHS, st.integers(0, 9))
def test_flops_are_the_sum_over_products(
    spec: ModelSpec, batch: int, seq: int, source_len: int | None, prefix: int
) -> None:
    prefix = min(prefix, seq) if spec.kind == "prefix-decoder" else 0
    source = seq if source_len is None else source_len
    workload = {"batch_size": batch, "seq_len": seq, "source_len": source_len}
    loop = {"batch": batch, "seq": seq, "source": source, "prefix": prefix}
    full = flops(forward_products(spec, **loop, full=True))
    assert model.matmul_flops_by_role(spec, **workload) == full
    assert list(model.matmul_flops_by_role(spec, **workload)) == list(model.ROLES)
    assert model.matmul_flops(spec, **workload) == sum(full.values())
    kept = flops(forward_products(spec, **loop, full=False))
    assert model.causal_matmul_flops_by_role(spec, **workload, prefix_len=prefix) == kept
    assert model.causal_matmul_flops(spec, **workload, prefix_len=prefix) == sum(kept.values())
    assert all(type(n) is int for n in [*full.values(), *kept.values()])


def decode_products(spec: ModelSpec, *, batch: int, kv_len: int, source: int) -> Iterator[Product]:
    for i in range(spec.n_layers):
        keys = min(kv_len, spec.window) if spec.is_windowed_layer(i) else kv_len
        yield from products_of_attention(
            spec,
            new=batch,
            keys=keys,
            pairs=batch * keys,
            projected=batch,
            decode=True,
            cross=False,
        )
        if spec.kind == "encoder-decoder":
            yield from products_of_attention(
                spec,
                new=batch,
                keys=source,
                pairs=batch * source,
                projected=0,
                decode=True,
                cross=True,
            )
        yield from products_of_ffn(spec, i, batch)
    yield from products_of_ends(spec, batch)


def decoders() -> st.SearchStrategy[ModelSpec]:
    return specs().filter(lambda spec: spec.kind != "encoder")


@given(decoders(), st.integers(1, 3), LENGTHS, st.none() | LENGTHS)
def test_decode_flops_are_the_sum_over_products(
    spec: ModelSpec, batch: int, kv_len: int, source_len: int | None
) -> None:
    source = kv_len if source_len is None else source_len
    step = {"batch_size": batch, "kv_len": kv_len, "source_len": source_len}
    expected = flops(decode_products(spec, batch=batch, kv_len=kv_len, source=source))
    assert model.decode_matmul_flops_by_role(spec, **step) == expected
    assert list(model.decode_matmul_flops_by_role(spec, **step)) == list(model.ROLES)
    assert model.decode_matmul_flops(spec, **step) == sum(expected.values())
    assert all(type(n) is int for n in expected.values())


@given(decoders(), st.integers(1, 3), LENGTHS, st.none() | LENGTHS)
def test_cache_holds_every_position_that_is_needed(
    spec: ModelSpec, batch: int, seq: int, source_len: int | None
) -> None:
    if spec.attention == "mla":
        per_token = spec.kv_lora_rank + spec.qk_rope_head_dim
    else:
        per_token = 2 * spec.n_kv_heads * spec.head_dim
    source = seq if source_len is None else source_len
    positions = crossed = 0
    for i in range(spec.n_layers):
        near = spec.window if spec.is_windowed_layer(i) else seq + 1
        positions += sum(seq - t < near for t in range(seq))
        crossed += source if spec.kind == "encoder-decoder" else 0
    size = {"batch_size": batch, "bytes_per_value": 3}
    cross = model.cross_kv_cache_bytes(spec, **size, source_len=source)
    assert cross == 3 * batch * per_token * crossed
    total = model.kv_cache_bytes(spec, **size, seq_len=seq, source_len=source_len)
    assert total == 3 * batch * per_token * (positions + crossed)
    one = model.kv_cache_bytes_per_token(spec, bytes_per_value=3)
    assert one == 3 * per_token * spec.n_layers
    assert {type(cross), type(total), type(one)} == {int}


ATTENTION = ("scores", "sums of values")
LATENT = ("scores", "scores of the rotated keys", "sums of values")
SCAN_OF_2 = ("C @ B", "scores @ x", "B @ x", "C @ chunk state", "chunk states", "state @ C")
DELTA = ("k @ state", "q @ state", "scores @ v", "k @ v")
NAMES = {
    "llama-7b": ATTENTION,
    "bloom-176b": (*ATTENTION, "tied head"),
    "chinchilla-70b": (
        "projection of the relative positions",
        "scores of the relative positions",
        *ATTENTION,
        "tied head",
    ),
    "deepseek-v2": LATENT,
    "deepseek-v3.2": (*LATENT, "index scores", "index weights"),
    "minimax-m3-text": (*ATTENTION, "index scores"),
    "gemma-3n-e2b-text": (*ATTENTION, "predictions of copies", "tied head"),
    "falcon-mamba-7b": ("state @ C",),
    "mamba-codestral-7b": SCAN_OF_2,
    "minimax-text-01": (*ATTENTION, "q @ k", "scores @ v", "q @ state", "k @ v"),
    "kimi-linear-48b-a3b": (*LATENT, "inverse @ v", "inverse @ k", *DELTA),
    "olmo-hybrid-7b": (
        *ATTENTION,
        "k @ k",
        "q @ k",
        "triangle solved for v",
        "triangle solved for k",
        *DELTA,
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_products(name: str) -> None:
    """Of a forward and of one token decoded; `check` names them where it explains."""
    spec = entry(name).spec()
    both = (*model.products(spec), *model.products(spec, decode=True))
    assert tuple(dict.fromkeys(product.name for product in both)) == NAMES[name]


# what multiplies tensors, "" where they are added or looked up, and what products are computed for
TIMES = {
    "t5-base": ["", "tokens", "source tokens"],
    "deepseek-v3": ["", "tokens", "cached tokens"],
    "chinchilla-70b": ["", "tokens"],
    "mistral-7b": ["", "tokens"],
}
PER = {
    "t5-base": {
        "pairs of positions",
        "pairs of a position and a source position",
        "pairs of source positions",
    },
    "deepseek-v3": {"pairs of positions"},
    "chinchilla-70b": {"pairs of positions", "positions"},
    "mistral-7b": {"pairs of positions in a window", "pairs of positions"},
}


@pytest.mark.parametrize("name", TIMES)
def test_what_multiplies_is_named(name: str) -> None:
    spec = entry(name).spec()
    assert {weight.rows for weight in model.weights(spec)} == {*TIMES[name]}
    per = {product.per for product in model.products(spec) if product.role != "head"}
    assert per == PER[name]
    # those of two positions, and no others
    assert {each for each in per if each in OF_PAIRS} == per - {"positions"}
    near = model.products(entry("chinchilla-70b").spec().replace(window=8))
    assert "positions in a window" in {product.per for product in near}


def test_what_is_repeated_is_repeated_again() -> None:
    product = terms.Product(role="attention", name="scores", width=3, per=PAIRS)
    assert product.repeated(2).repeated(5).times == 10
    weight = terms.Weight(role="ffn", name="up", shape=(2, 3), used=2, uses=7, split=(("a", 6),))
    again = weight.repeated(2).repeated(5)
    assert (again.times, again.used, again.uses) == (10, 20, 70)
    assert again.split == (("a", 6),)


# what one sequence keeps in one layer of each mixer: name, shape, bytes of a value of its own
STATES = {
    "lfm2-1.2b": [("conv", (2048, 3), None)],
    "recurrentgemma-2b": [("conv", (2560, 3), None), ("recurrent", (2560,), 4)],
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_sequence_keeps(name: str) -> None:
    part = entry(name).spec().last_stack.recurrent
    mixer = mixer_of(part)
    assert mixer is not None
    states = (*mixer.states(part), *mixer.wide_states(part, 2048))
    assert [(one.name, one.shape, one.bytes_per_value) for one in states] == STATES[name]


def test_names_of_what_a_token_leaves_in_the_cache() -> None:
    def names(name: str) -> list[str]:
        return [state.name for state in cached_tensors(entry(name).spec())]

    assert names("llama-7b") == ["keys", "values"]
    assert names("deepseek-v3.2") == ["latents", "rotated keys", "keys of the index"]
    indexed = entry("minimax-m3-text").spec()
    assert [(one.name, one.shape) for one in index_cache(indexed)] == [
        ("keys of the index", (128,))
    ]
