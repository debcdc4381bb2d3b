"""Closed forms read off transformers' code: literals, and sizes they were not made from."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import sympy
from torch import nn

from metacount.spec import Workload
from metacount.tracing import sources
from metacount.tracing.domain import in_words
from metacount.tracing.forms import CodeForm, Measured, NotTraced, Tracer
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


@pytest.mark.parametrize(
    ("seq_len", "said"), [(64, "S + 1 < sliding_window"), (256, "S + 1 ≥ sliding_window")]
)
def test_the_domain_says_on_which_side_of_the_window_it_is(seq_len: int, said: str) -> None:
    config = {"model_type": "mistral", "sliding_window": 128, "num_hidden_layers": 2}
    found = Tracer(config, Workload(seq_len=seq_len)).form("kv_cache_bytes")
    assert said in [in_words(c, str) for c in found.domain]
    # 2 layers, 2 bytes, K and V of 8 heads of 128; 127 positions are kept, or all of them
    assert found.value == 2 * 2 * 2 * 8 * 128 * min(seq_len, 127)


ONE_BY_ONE = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 50}


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


def test_a_table_with_a_row_for_each_layer() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 14}
    found = Tracer(config, Workload(seq_len=48)).form("params")
    V, N, d, p = letters(
        "vocab_size_per_layer_input num_hidden_layers hidden_size hidden_size_per_layer_input"
    )
    assert same(found.by_role["embedding"], V * N * p + symbol("vocab_size") * d)
    assert "num_hidden_layers" in dict(found.solved_for)


def test_sizes_that_the_code_found_equal_are_in_the_domain() -> None:
    # OPT has two projections more where its tables are not as wide as its blocks
    said = [in_words(c, str) for c in form("opt", "params").domain]
    assert any("word_embed_proj_dim" in text and "hidden_size" in text for text in said)
