"""FLOPs and cache of transformers' module, by hand and against torch's own counter."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from helpers.miniatures import WORKLOAD, assert_full  # noqa: E402
from helpers.release import daily, one_in  # noqa: E402
from helpers.small_configs import small_config  # noqa: E402

from metacount.huggingface.module.model import build_transformers, default_config  # noqa: E402
from metacount.huggingface.module.witness import transformers_witness  # noqa: E402
from metacount.measure.theirs import Runner, measure_any_forward  # noqa: E402
from metacount.spec import Workload  # noqa: E402

B, S = 2, 11
RUN = Workload(batch_size=B, seq_len=S)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 12,
    "intermediate_size": 17,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2,
           "sliding_window": None}  # fmt: skip
TINY = {"vocab_size": 101, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 17}  # fmt: skip
BERT = {**TINY, "model_type": "bert", "architectures": ["BertForMaskedLM"]}


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {"model_type": "gpt2", "vocab_size": 101, "n_embd": 12, "n_layer": 2, "n_head": 3},
        {**BERT, "architectures": ["BertModel"]},
        {**TINY, "model_type": "gpt_neox"},
    ],
)
def test_equals_torchs_counter_where_that_is_right(config: dict[str, Any]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, _ = build_transformers(config)
    found = measure_any_forward(module, RUN).prefill
    real = type(module)(module.config).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        real(input_ids=torch.randint(0, 100, (B, S)))
    assert found.all_flops == counter.get_total_flops() > 0


def test_fused_experts_are_priced_where_torchs_counter_says_nothing() -> None:
    run = measure_any_forward(build_transformers(MIXTRAL)[0], RUN)
    # router [5, 12], then 2 of 5 experts of three matrices
    per_token = 5 * 12 + 2 * 3 * 12 * 17
    assert run.prefill.by_role["moe"] == 3 * 2 * B * S * per_token
    assert any("17 values" in said for said in run.assumed)  # of 2 bytes: a device refuses these
    wide = {**MIXTRAL, "hidden_size": 16, "intermediate_size": 24}
    for dtype, refused in ((torch.bfloat16, 0), (torch.float32, 0), (torch.float64, 1)):
        grouped = measure_any_forward(build_transformers(wide, dtype=dtype)[0], RUN)
        flops = grouped.prefill.by_operator["aten._grouped_mm"]
        assert flops == 3 * 2 * B * S * 2 * 3 * 16 * 24
        assert sum("float64" in said for said in grouped.assumed) == refused


def test_modules_that_are_made_while_the_model_runs_count_for_their_holder() -> None:
    config = {**TINY, "model_type": "big_bird", "architectures": ["BigBirdForCausalLM"]}
    module, _ = build_transformers(config)
    # too short for sparse blocks: BigBird puts full attention in place when it first runs
    first, second = (measure_any_forward(module, RUN).prefill.by_role for _ in range(2))
    assert first == second
    assert first["attention"] == 2 * 2 * B * (S * 4 * 12 * 12 + S * S * 2 * 12)


def test_experts_that_all_tokens_pass_through_are_told_apart() -> None:
    config = {**TINY, "model_type": "llama4_text", "intermediate_size_mlp": 19, "head_dim": 4,
              "num_key_value_heads": 1, "num_local_experts": 5,
              "num_experts_per_tok": 1}  # fmt: skip
    run = measure_any_forward(build_transformers(config)[0], RUN)
    expert = 3 * 12 * 17
    # its code runs all 5; a router and a shared expert stand beside them
    assert run.prefill.idle == 2 * 2 * B * S * 4 * expert
    assert run.prefill.chosen_by_role["moe"] == 2 * 2 * B * S * (5 * 12 + 2 * expert)


FOUR_KINDS = [*["sliding_attention"] * 3, "full_attention"] * 2


# Of default sizes, few layers; and of small sizes.
FOLDED = "gpt_oss llama zamba2 gemma2 t5 mamba2 deepseek_v4 qwen3_next deepseek_v3 gemma3n_text"
FOLDED_SMALL = (
    "mistral qwen2 qwen3_moe mixtral gpt2 opt bert bloom falcon phi3 gemma3_text glm4_moe jamba "
    "bamba llama4_text lfm2 nemotron_h olmo_hybrid kimi_linear switch_transformers mamba bart"
)


@daily(5)
@pytest.mark.parametrize("model_type", one_in(6, [*FOLDED.split(), *FOLDED_SMALL.split()]))
def test_folded_layers_equal_all_layers_run(model_type: str) -> None:
    few: dict[str, Any] = {"num_hidden_layers": 5}
    if model_type == "zamba2":
        few["layers_block_type"] = ["mamba", "mamba", "hybrid", "mamba", "mamba"]
    if model_type == "gemma3n_text":  # the third and fourth write keys, the others read them
        few = {"num_hidden_layers": 8, "num_kv_shared_layers": 4, "layer_types": FOUR_KINDS}
    config = default_config(model_type) | few
    module, _ = build_transformers(
        small_config(model_type) if model_type in FOLDED_SMALL else config
    )
    run = Workload(seq_len=13)
    folded = measure_any_forward(module, run)
    assert folded == measure_any_forward(module, run, fold=False)


def test_folding_runs_one_layer_of_each_kind() -> None:
    module, _ = build_transformers({**LLAMA, "num_hidden_layers": 9})
    run = Runner(module, RUN)
    run.forward(S)
    assert (run.folding.ran, run.folding.replayed) == (1, 8)
    assert all("forward" not in vars(m) for m in module.modules())


def test_a_cache_in_a_type_of_half_the_size() -> None:
    run = measure_any_forward(build_transformers(LLAMA)[0], RUN)
    half = run.halved()
    assert run.cache is not None and half.cache is not None
    assert (half.prefill, half.decode) == (run.prefill, run.decode)
    # 3 layers · 2 · 2 heads · 4 values, in one byte instead of two
    assert (run.kv_bytes_per_token, half.kv_bytes_per_token) == (96, 48)
    assert (run.cache.kv_bytes, half.cache.kv_bytes) == (96 * B * S, 48 * B * S)
    assert half.cache.by_name == {"keys": 24 * B * S, "values": 24 * B * S}
    assert half.cache.key_heads == run.cache.key_heads == 2


def test_on_what_transformers_is_silent() -> None:
    causal = {"causal_matmul_flops"}
    assert_full(transformers_witness(MIXTRAL, WORKLOAD), causal)
    caches = {"kv_cache_bytes_per_token", "kv_cache_bytes", "cross_kv_cache_bytes", "state_bytes"}
    bert = {**BERT, "max_position_embeddings": 37}
    witness = transformers_witness(bert, WORKLOAD)
    assert_full(witness, causal | caches | {"decode_matmul_flops"})
    assert "no opinion on decode and cache: its class does not generate" in witness.detail
    # its code expands latents: what it multiplies is not what MLA needs
    latent = small_config("deepseek_v3")
    witness = transformers_witness(latent, WORKLOAD)
    assert witness.figures["decode_matmul_flops"] is None
    assert witness.parts["decode_matmul_flops_by_role"] is None
    assert "no opinion on decode: its code expands every cached latent" in witness.detail
