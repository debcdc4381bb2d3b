"""A block stored once and used many times, by hand: stored once, multiplied with at each use."""

from __future__ import annotations

from typing import Any

import pytest

from metacount.catalog import entry
from metacount.formulas import model, stack
from metacount.formulas.shared_block import shared_block_weights, shared_use_weights
from metacount.formulas.terms import TOKENS, by_role, flops_of, params_of
from metacount.spec import ModelSpec
from metacount.textbook.closed_form import closed_form

D, M, H, KV, HD, R = 5, 7, 3, 1, 4, 2
BIASED = {"attention_biases": (True, False, True, True), "ffn_bias": True, "norm_bias": True}


def test_a_stored_block_by_hand() -> None:
    found = by_role(shared_block_weights(D, M, H, KV, HD, gated=True), lambda one: one.params)
    # q [12, 10], k and v [4, 10], o [5, 12]; gate and up [7, 5], down [5, 7]; norms over 10 and 5
    assert found == {"norm": 15, "attention": 120 + 2 * 40 + 60, "ffn": 105}
    plain = by_role(shared_block_weights(D, M, H, KV, HD, gated=False), lambda one: one.params)
    assert plain == {**found, "ffn": 70}
    biased = shared_block_weights(D, M, H, KV, HD, gated=True, **BIASED)
    # biases of q 12, v 4, o 5; of gate, up 7 each and down 5; of the norms
    assert params_of(biased) - 380 == 21 + 19 + 15
    bare = shared_block_weights(D, M, H, KV, HD, gated=True, norm_affine=False)
    assert params_of(bare) == 380 - 15


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"other": 25}),
        ({"adapter_rank": R}, {"other": 25, "ffn": 2 * 5 + 14 * 2}),
        (
            {"adapter_rank": R, "attention_adapters": True},
            # q [2, 10] and [12, 2], k and v [2, 10] and [4, 2]
            {"other": 25, "ffn": 38, "attention": 20 + 24 + 2 * (20 + 8)},
        ),
    ],
)
def test_what_a_use_has_of_its_own_by_hand(
    options: dict[str, Any], expected: dict[str, int]
) -> None:
    own = shared_use_weights(D, M, H, KV, HD, gated=True, **options)
    assert by_role(own, lambda one: one.params) == expected
    assert flops_of(own, {TOKENS: 11}) == 2 * 11 * sum(expected.values())  # all are matrices
    plain = shared_use_weights(D, M, H, KV, HD, gated=False, **options)
    assert params_of(own) - params_of(plain) == (M * R if options else 0)


SIZES: dict[str, Any] = {
    "kind": "decoder",
    "d_model": D,
    "n_layers": 7,
    "vocab_size": 11,
    "tie_embeddings": True,
    "n_heads": H,
    "n_kv_heads": KV,
    "head_dim": HD,
    "d_ff": M,
    "activation": "gelu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "none",
    "recurrent": "mamba2",
    "mixer_pattern": "RSS",
    "ffn_pattern": "N",
    "conv_kernel": 3,
    "n_ssm_heads": 2,
    "ssm_head_dim": 3,
    "n_ssm_groups": 1,
    "ssm_chunk_size": 4,
    "ssm_state_dim": 5,
    "n_shared_blocks": 2,
    "adapter_rank": R,
}


def test_parameters_once_and_products_at_each_use() -> None:
    """Layers 1, 2, 4 and 5 of seven use one of two blocks."""
    two = ModelSpec(**SIZES)
    three = two.replace(n_shared_blocks=3)
    one_block = params_of(shared_block_weights(D, M, H, KV, HD, gated=True))
    assert model.params(three) - model.params(two) == one_block == 380
    assert model.active_params(three) - model.active_params(two) == 380
    for spec in (two, three):  # four uses, however many are stored
        assert model.kv_cache_bytes_per_token(spec, bytes_per_value=1) == 4 * 2 * KV * HD
        assert model.matmul_flops(spec, batch_size=1, seq_len=6) == model.matmul_flops(
            two, batch_size=1, seq_len=6
        )
    five = two.replace(mixer_pattern="RSSRSSS")
    use = 25 + 38
    assert model.params(five) - model.params(two) == use  # the block is there already
    # the matrices of the block and of the use for each token, h·h_d twice for each pair
    more = 2 * 6 * (365 + use) + 2 * 2 * H * HD * 36
    grown = [model.matmul_flops(spec, batch_size=1, seq_len=6) for spec in (two, five)]
    assert grown[1] - grown[0] == more


def test_the_tensors_say_how_often_they_are_multiplied_with() -> None:
    for one in stack.shared_weights(ModelSpec(**SIZES), 7):
        assert (one.times, one.uses, one.active) == (2, 4, one.params)
        doubled = one.repeated(3)
        assert (doubled.times, doubled.uses) == (6, 12)
        expected = 2 * 10 * 4 * one.size if one.rows else 0
        assert one.flops({TOKENS: 10}) == expected


def test_in_letters() -> None:
    form = closed_form(entry("zamba2-2.7b").spec(), _run(), "params")
    assert str(form.parts["attention"]) == "N_s*d*h_d*(3*h + 4*h_kv)"
    assert str(form.parts["other"]) == "N_a*d**2"
    assert (form.numbers["N_s"], form.numbers["N_a"]) == (2, 9)
    flops = closed_form(entry("zamba2-2.7b").spec(), _run(), "matmul_flops")
    assert "N_s" not in str(flops.parts)


def _run() -> Any:
    from metacount.spec import Workload

    return Workload(seq_len=64)
