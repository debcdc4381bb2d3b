"""Closed forms read off transformers' code: literals, and sizes they were not made from."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import sympy
from helpers.release import ONLY, one_in
from torch import nn

from metacount.huggingface.module.model import build_transformers
from metacount.measure.theirs import measure_any_forward
from metacount.spec import Workload
from metacount.tracing import sources
from metacount.tracing.domain import in_words
from metacount.tracing.forms import CodeForm, Measured, NotTraced, Tracer
from metacount.tracing.layers import Stack, stack_of_caches
from metacount.tracing.sources import As
from metacount.tracing.symbols import symbol

RUN = Workload(seq_len=128)


@cache
def tracer(model_type: str, workload: Workload = RUN) -> Tracer:
    return Tracer({"model_type": model_type}, workload)


@cache
def form(model_type: str, quantity: str) -> CodeForm:
    return tracer(model_type).form(quantity)


def letters(names: str) -> Any:
    return sympy.symbols(names, integer=True, positive=True)


def same(found: Any, expected: Any) -> bool:
    return bool(sympy.expand(found - expected) == 0)


def test_llama_has_the_parameters_of_its_paper() -> None:
    V, d, N, h, k, a, m = letters(
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim intermediate_size"
    )
    found = form("llama", "params")
    assert found.how == "traced"
    assert found.value == 6738415616
    # table and head; q and o, k and v, gate, up and down, two norms a layer; one more norm
    expected = 2 * V * d + N * (2 * d * h * a + 2 * d * k * a + 3 * d * m + 2 * d) + d
    assert same(found.total, expected)
    assert found.numbers["intermediate_size"] == 11008


def test_gpt2_in_its_own_names() -> None:
    V, P, d, N = letters("vocab_size n_positions n_embd n_layer")
    # 12·d² + 13·d a block: 4 + 8 matrices; biases 4 + 5, norms 4
    assert same(form("gpt2", "params").total, V * d + P * d + N * (12 * d**2 + 13 * d) + 2 * d)
    assert [in_words(c, str) for c in form("gpt2", "params").domain] == ["n_head divides n_embd"]


@ONLY
def test_a_router_runs_whole_and_experts_by_k() -> None:
    B, S, V, d, N, h, k, m, E, t = letters(
        "B S vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads "
        "intermediate_size num_local_experts num_experts_per_tok"
    )
    found = form("mixtral", "matmul_flops")
    attention = 2 * B * S * (2 * d * d + 2 * d * d * k / h) + 4 * B * S**2 * d
    moe = 2 * B * S * (d * E + 3 * t * d * m)
    assert same(found.total, 2 * B * S * d * V + N * (attention + moe))
    assert not any(c.has(E) and isinstance(c, sympy.Eq) for c in found.domain)  # E stays a letter


@pytest.mark.release  # so it is of our module
def test_mla_keeps_the_latent_and_the_rotary_key() -> None:
    B, S, N, c, r = letters("B S num_hidden_layers kv_lora_rank qk_rope_head_dim")
    assert same(form("deepseek_v3", "kv_cache_bytes").total, 2 * B * S * N * (c + r))


def test_a_cache_belongs_to_a_layer_that_may_have_several() -> None:
    """LongCat-Flash keeps two a layer; of two stacks nobody knows whose several are."""
    model = nn.Module()
    model.two, model.three = (nn.ModuleList(nn.Identity() for _ in range(n)) for n in (2, 3))
    two, three = (Stack(path=name, length=n) for name, n in (("two", 2), ("three", 3)))
    assert [stack_of_caches(n, model) for n in (3, 2, 4, 6, 5)] == [three, two, two, None, None]


def test_dense_and_moe_layers_are_counted_by_the_config() -> None:
    N, first = letters("num_hidden_layers first_k_dense_replace")
    counts = {
        part.role: part.layers.expr
        for part in form("deepseek_v3", "params").parts
        if part.layers is not None and part.role in ("ffn", "moe")
    }
    assert counts == {"ffn": first, "moe": N - first}


def test_two_stacks_have_two_numbers_of_layers() -> None:
    counts = {
        (part.where, part.layers.expr)
        for part in form("t5", "params").parts
        if part.layers is not None and part.role == "ffn"
    }
    N, D = letters("num_layers num_decoder_layers")
    assert ("encoder.block[1-5]", N - 1) in counts
    assert ("decoder.block[1-5]", D - 1) in counts


@pytest.mark.release
def test_a_group_that_runs_many_times_has_no_law() -> None:
    found = form("albert", "matmul_flops")
    # 12 rounds through one group: with two groups each would have 6
    assert all(part.layers is None or not part.layers.expr.free_symbols for part in found.parts)
    assert any("layers are counted in numbers" in note for note in found.notes)


@pytest.mark.parametrize(
    ("seq_len", "said"), [(64, "S + 1 < sliding_window"), (256, "S + 1 ≥ sliding_window")]
)
def test_the_domain_says_on_which_side_of_the_window_it_is(seq_len: int, said: str) -> None:
    config = {"model_type": "mistral", "sliding_window": 128, "num_hidden_layers": 2}
    found = Tracer(config, Workload(seq_len=seq_len)).form("kv_cache_bytes")
    assert said in [in_words(c, str) for c in found.domain]
    # 2 layers, 2 bytes, K and V of 8 heads of 128; 127 positions are kept, or all of them
    assert found.value == 2 * 2 * 2 * 8 * 128 * min(seq_len, 127)


@ONLY
def test_code_that_no_symbol_goes_through_has_no_form() -> None:
    with pytest.raises(NotTraced, match=r"\w"):
        Tracer({"model_type": "jetmoe", "num_hidden_layers": 2}, RUN).form("matmul_flops")


ONE_BY_ONE = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 50}


@pytest.mark.release
def test_code_that_goes_through_tokens_is_read_at_several_lengths() -> None:
    """Mamba's scan, whose state [I, N] each token reads: 2·I·N FLOPs for it in every layer."""
    one = As(one_sequence=True)
    found = Tracer(ONE_BY_ONE, RUN, run_as=one).form("matmul_flops")
    assert found.how == "traced"
    assert [name for name, _ in found.solved_for] == ["S"]
    L, S, c, N, d, r, w, v = letters(
        "num_hidden_layers S intermediate_size state_size hidden_size time_step_rank conv_kernel "
        "vocab_size"
    )
    of_a_token = 2 * c * 2 * d + 2 * c * (r + 2 * N) + 2 * r * c + 2 * c * N + 2 * d * c
    # the convolution runs over w - 1 positions of padding as well
    mixer = L * (S * of_a_token + 2 * w * c * (S + w - 1))
    assert sympy.expand(found.total - mixer - 2 * S * d * v) == 0


@pytest.mark.release
def test_a_form_solved_for_the_length_is_held_against_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code that did something else from 256 tokens on would be of that form up to there alone."""
    right = Measured.run

    def more_if_long(
        self: Measured, quantity: str, workload: Workload, module: nn.Module | None = None
    ) -> dict[str, sympy.Expr] | None:
        found = right(self, quantity, workload, module)
        assert found is not None
        return {**found, "head": found["head"] + (workload.seq_len > 256)}

    monkeypatch.setattr(Measured, "run", more_if_long)
    with pytest.raises(NotTraced, match="does something else at 331"):
        Tracer(ONE_BY_ONE, RUN, run_as=As(one_sequence=True)).form("matmul_flops")


@pytest.mark.release
def test_caches_of_fewer_layers_than_there_are_count_by_layers() -> None:
    """MiniMax's last layer of 4 keeps a state alone: its cache has 3 places."""
    config = {"model_type": "minimax", "num_hidden_layers": 4, "hidden_size": 64}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    found = Tracer({**config, **sizes, "intermediate_size": 32}, RUN).form("kv_cache_bytes")
    L = letters("num_hidden_layers")
    assert found.total.has(sympy.ceiling(L / 2))


@pytest.mark.release
def test_a_state_has_no_length() -> None:
    config = {"model_type": "mamba2", "num_hidden_layers": 2}
    B, N, d, e, n, g, c = letters(
        "B num_hidden_layers hidden_size expand state_size n_groups conv_kernel"
    )
    found = Tracer(config, Workload(seq_len=48)).form("state_bytes")
    # the convolution's last inputs, x and B and C side by side, in 2 bytes; states in 4
    assert same(found.total, B * N * (2 * (e * d + 2 * g * n) * c + 4 * e * d * n))
    assert "S < chunk_size" in [in_words(c, str) for c in found.domain]


@pytest.mark.release
def test_chunks_are_rounded_up() -> None:
    config = {"model_type": "mamba2", "num_hidden_layers": 2}
    found = Tracer(config, Workload(seq_len=300)).form("matmul_flops")
    S, c = letters("S chunk_size")
    assert found.how == "traced" and found.total.has(sympy.ceiling(S / c))
    at = {**found.every_number, S: 700}  # 3 chunks of 256, the last one not full
    module, _ = build_transformers(config)
    run = measure_any_forward(module, Workload(seq_len=700))
    value = found.total.xreplace({s: sympy.Integer(at[s]) for s in found.total.free_symbols})
    assert value.doit() == sum(run.prefill.chosen_by_role.values())


@pytest.mark.release
def test_layers_that_all_run_are_read_off_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_OPERATORS", 1500)  # enough for seven layers, not for 16
    B, S, N, V, d, h, a, m = letters("B S n_layer vocab_size d_model n_head d_head d_inner")
    found = Tracer({"model_type": "xlnet", "n_layer": 16}, Workload(seq_len=20)).form(
        "matmul_flops"
    )
    # q, k, v, o and positions of twice the length; scores by content and by position, values
    attention = 2 * B * S * d * h * a * (4 + 2) + 2 * B * S**2 * h * a * (1 + 2 + 1)
    assert same(found.total, N * (attention + 4 * B * S * d * m) + 2 * B * S * d * V)
    assert any("read off 7 layers: 16 take too long" in note for note in found.notes)


@pytest.mark.release
def test_a_list_of_experts_is_run_by_one_for_all() -> None:
    B, S = letters("B S")
    config = {
        "model_type": "switch_transformers",
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
    }
    found = Tracer(config, Workload(seq_len=32, source_len=32)).form("matmul_flops")
    d, m, E = letters("d_model d_ff num_experts")
    # a router and one expert in each of 1 + 1 sparse layers, of a decoder and an encoder
    S_e = symbol("S_e")
    moe = found.by_role["moe"].subs({symbol(n): v for n, v in config.items() if n != "model_type"})
    moe = moe.subs({symbol("encoder_sparse_step"): 2, symbol("decoder_sparse_step"): 2})
    assert same(moe, (2 * B * d * E + 4 * B * d * m) * (S + S_e))
    assert "num_experts" in dict(found.solved_for)


def test_a_root_that_numpy_takes_is_a_number() -> None:
    B, S, N, V, d, m = letters("B S n_layer vocab_size n_embd dff")
    found = Tracer({"model_type": "ctrl", "n_layer": 2}, Workload(seq_len=48)).form("matmul_flops")
    layer = 8 * B * S * d**2 + 4 * B * S**2 * d + 4 * B * S * d * m
    assert found.how == "traced"
    assert same(found.total, N * layer + 2 * B * S * d * V)


@ONLY
def test_as_many_tokens_as_positions() -> None:
    config = {
        "model_type": "gpt_neo",
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
    }
    found = Tracer(config, Workload(seq_len=2048)).form("matmul_flops")
    B, S, N, V, d = letters("B S num_layers vocab_size hidden_size")
    assert same(found.total, 2 * B * S * V * d + N * (24 * B * S * d**2 + 4 * B * S**2 * d))
    assert "S ≤ max_position_embeddings" in [in_words(c, str) for c in found.domain]


def test_a_table_with_a_row_for_each_layer() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 14}
    found = Tracer(config, Workload(seq_len=48)).form("params")
    V, N, d, p = letters(
        "vocab_size_per_layer_input num_hidden_layers hidden_size hidden_size_per_layer_input"
    )
    assert same(found.by_role["embedding"], V * N * p + symbol("vocab_size") * d)
    assert "num_hidden_layers" in dict(found.solved_for)


def test_an_encoder_has_no_cache() -> None:
    with pytest.raises(NotTraced, match="kv_cache_bytes"):
        form("bert", "kv_cache_bytes")


@pytest.mark.parametrize(
    ("dtype", "size"), one_in(3, [("fp32", 4), ("fp16", 2), ("fp8", 1)], first=1)
)
def test_a_cache_is_in_the_asked_type(dtype: str, size: int) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 3}
    found = Tracer(config, Workload(seq_len=64, dtype=dtype)).form("kv_cache_bytes")
    # 3 layers, K and V of 32 heads of 128, 64 tokens
    assert (found.how, found.value) == ("traced", 3 * 2 * 32 * 128 * 64 * size)


@ONLY
def test_what_a_failed_attempt_asked_is_in_no_domain() -> None:
    # at 128 tokens and a window of 129, the prime above is on the other side of the window
    config = {"model_type": "mistral", "sliding_window": 129, "num_hidden_layers": 2}
    found = Tracer(config, Workload(seq_len=128)).form("kv_cache_bytes")
    said = [in_words(c, str) for c in found.domain]
    assert found.value == 2 * 2 * 2 * 8 * 128 * 128
    numbers = found.every_number
    for condition in found.domain:
        if isinstance(condition, sympy.Rel) and symbol("S") in condition.free_symbols:
            at = {s: sympy.Integer(numbers[s]) for s in condition.free_symbols}
            assert condition.xreplace(at) == True, said  # noqa: E712  # SymPy's own true


def test_sizes_that_the_code_found_equal_are_in_the_domain() -> None:
    # OPT has two projections more where its tables are not as wide as its blocks
    said = [in_words(c, str) for c in form("opt", "params").domain]
    assert any("word_embed_proj_dim" in text and "hidden_size" in text for text in said)
