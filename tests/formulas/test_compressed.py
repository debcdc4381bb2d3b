"""DeepSeek-V4's parts: by hand, by counting one by one, and by the module that runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_specs import COMPRESSED

from metacount.api import count, count_training
from metacount.check import check
from metacount.errors import InputError, SpecError
from metacount.formulas.compressed import entry_pairs
from metacount.formulas.model import active_params, kv_cache_bytes, products
from metacount.huggingface.config.keys import UnmappedKey
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.textbook.engine import reserved_cache
from metacount.verify.compare import verify

SIZES = COMPRESSED
SPEC = ModelSpec(**SIZES)
RUN = Workload(seq_len=21)


def test_parameters_by_hand() -> None:
    counted = count(SPEC, RUN)
    # q_a 18·40, q_b 84·18, kv 14·40, sinks 6, o_a 21·28, o_b 40·21
    plain = 720 + 1512 + 560 + 6 + 588 + 840
    heavy = 2 * 14 * 40 + 6 * 14  # kv and gate, a bias of 6 tokens
    sparse = 2 * 28 * 40 + 4 * 28  # two series
    index = 2 * 20 * 40 + 4 * 20 + 30 * 18 + 3 * 40  # a compressor of its own, queries, weights
    assert counted.by_role["attention"] == 5 * plain + 2 * heavy + 2 * (sparse + index) == 32922
    # of each branch (2 + 4)·4 rows over 4 streams of 40, a base of 24 and 3 scales; 4 rows behind
    assert counted.by_role["other"] == 10 * (24 * 160 + 24 + 3) + 4 * 160 + 4 + 1 == 39315
    # in each block two of 40, 18 of the latent, 14 of keys; of entries 14, of an index 10; the last
    assert counted.by_role["norm"] == 5 * (80 + 18 + 14) + 4 * 14 + 2 * 10 + 40
    expert = 3 * 40 * 11
    assert counted.by_role["moe"] == 5 * (8 * 40 + 8 * expert + expert)
    assert active_params(SPEC) == counted.params - 5 * (8 - 3) * expert
    # a bias of 8 in three layers; 3 experts of each of 101 tokens in two
    assert counted.buffers == {"selection_bias": 24, "token_experts": 606}


def test_products_by_hand() -> None:
    found = {(product.name, product.per.split()[-1]): product for product in products(SPEC)}
    assert {(name, p.width, p.times) for (name, _), p in found.items()} == {
        ("scores", 84, 5),
        ("sums of values", 84, 5),
        ("scores of entries", 84, 2),
        ("sums of values of entries", 84, 2),
        ("index scores", 30, 2),
        ("mixed streams", 4 * 160, 10),
    }


@pytest.mark.parametrize(("seq_len", "ratio"), [(1, 3), (9, 4), (12, 4), (23, 6), (5, 7)])
def test_pairs_with_entries_one_by_one(seq_len: int, ratio: int) -> None:
    seen = sum(1 for t in range(1, seq_len + 1) for end in range(ratio, t + 1, ratio) if end <= t)
    assert entry_pairs(seq_len, ratio) == seen


def kept_values(n: int) -> int:
    """What the five layers keep after n tokens, token by token."""
    window = min(n, 7)
    values = 14 * window * (2 + 4)  # in the layer of a window alone, values beside keys
    for ratio, width, series, layers in ((4, 14 + 10, 2, 2), (6, 14, 1, 2)):
        entries, waiting = 0, 0
        for _ in range(n):
            waiting += 1
            if waiting == ratio:
                entries, waiting = entries + 1, 0
        overlap = 2 * ratio if series == 2 and entries else 0
        values += layers * width * (entries + 2 * series * waiting + overlap)
    return values


@pytest.mark.parametrize("n", [1, 3, 4, 7, 12, 21])
def test_what_is_kept_one_by_one(n: int) -> None:
    found = kv_cache_bytes(SPEC, batch_size=3, seq_len=n, bytes_per_value=2)
    assert found == 3 * 2 * kept_values(n)


@pytest.mark.parametrize("seq_len", [1, 3, 4, 21])
def test_formula_and_module_agree(seq_len: int) -> None:
    assert verify("small", SPEC, Workload(batch_size=2, seq_len=seq_len)).agree


@torch.no_grad()
def test_token_by_token_is_all_at_once() -> None:
    model = build(SPEC, device="cpu", dtype="fp64", seed=0)
    tokens = torch.randint(0, 101, (2, 21), generator=torch.Generator().manual_seed(1))
    expected, cache = model(tokens).logits_BSV, model.new_cache()
    given = [model(part, cache=cache).logits_BSV for part in tokens.split([9, *[1] * 12], dim=1)]
    assert (torch.cat(given, dim=1) - expected).abs().max() < 1e-12


def test_what_has_no_formula_is_refused() -> None:
    step, why = count_training(SPEC), "n_streams has no formula "
    assert step.activation_bytes is step.activation_bytes_of_block is None
    assert all(step.uncovered[f"activation_bytes{of}"].startswith(why) for of in ("", "_of_block"))
    with pytest.raises(SpecError, match="no rule here for compressed entries"):
        reserved_cache(SPEC, RUN, "vllm", "bf16")
    with pytest.raises(InputError, match="check knows no parts of compressed attention"):
        check("V*d", SPEC)


# Sizes of V4-Flash, as its config has them; the last number is the prediction module's.
FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "vocab_size": 129280,
    "num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
    "o_groups": 8, "o_lora_rank": 1024, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "num_hash_layers": 3, "n_routed_experts": 256, "moe_intermediate_size": 2048, "hc_mult": 4,
    "index_topk": 512, "index_n_heads": 64, "index_head_dim": 128, "sliding_window": 128,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
}  # fmt: skip


def test_a_published_config_is_read() -> None:
    mapped = spec_from_config(FLASH)
    spec = mapped.spec
    assert mapped.differs == ()
    assert spec.compression_pattern == "LL" + "SH" * 20 + "S"
    assert (spec.sparse_ratio, spec.heavy_ratio, spec.n_hash_layers) == (4, 128, 3)
    assert (spec.rope_theta, spec.rope_theta_windowed, spec.rotary_dim) == (160000, 10000, 64)
    assert (spec.rope_scaling.factor, spec.rope_scaling.attention_factor) == (16, 1.0)
    assert spec.rope_scaling_windowed is None
    assert "prediction layers are in the checkpoint" in "\n".join(mapped.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 2},
        {"n_shared_experts": 2},
        {"norm_topk_prob": False},
        {"mlp_bias": True},
        {"attention_bias": True},
        {"scoring_func": "softmax"},
        {"compress_ratios": [8] * 43},
        {"compress_rates": {"compressed_sparse_attention": 4}},
        {"mlp_layer_types": ["moe", *["hash_moe"] * 42]},
        {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
        {"topk_method": "greedy"},
        {"unheard_of": 3},
    ],
)
def test_a_key_that_no_spec_expresses_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnmappedKey):
        spec_from_config({**FLASH, **changes})
