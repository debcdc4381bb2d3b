"""The cases of a proof: every size is a letter somewhere, and a planted error is found there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
from helpers.release import ONLY, daily, one_day_in

from metacount.catalog import entries, entry
from metacount.errors import SpecError
from metacount.formulas import block, pieces
from metacount.formulas import model as formulas
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.to_spec import mapped_types
from metacount.spec import Workload
from metacount.spec.field import altered
from metacount.textbook.proven import structure
from metacount.tracing.sources import As
from metacount.verify.cases import cases, small, spec_of
from metacount.verify.for_all_sizes import of_type, prove

ONES = (
    "gemma-2b",
    "palm-540b",
    "gemma3-1b",
    "deepseek-v3",
    "glm-4.5",
    "llama4-scout-text",
    "switch-c-2048",
)


def test_every_size_of_the_catalog_is_a_letter_first() -> None:
    held = 0
    for model in entries():
        if model.sizes is None:
            continue
        spec = model.spec()
        first = next(iter(cases(spec)))
        assert first.name.startswith("generic sizes")
        assert small(first.model) == {}
        assert structure(first.model) == structure(spec)
        held += bool(small(spec))
    assert held >= len(ONES)


@one_day_in(6)
def test_a_type_that_has_a_size_has_it_as_a_letter() -> None:
    never = set()
    for name in mapped_types():
        try:
            first = next(iter(cases(of_type(name))))
        except SpecError:
            continue
        never |= {(name, size) for size in small(spec_of(first.model))}
    # one key/value head is a switch, a shared expert has a width and no number of them, Switch
    # routes a token to one expert, and shared blocks take turns, each a module of its own
    assert never == {
        *((name, "n_kv_heads") for name in ("falcon", "gpt_bigcode")),
        *(
            (name, "n_shared_experts")
            for name in words(
                "qwen2_moe llama4_text hunyuan_v1_moe kolibri1 qwen3_next qwen3_5_moe_text "
                "granitemoehybrid nemotron_h minimax_m3_vl_text laguna deepseek_v4"
            )
        ),
        ("switch_transformers", "top_k"),
        ("zamba2", "n_shared_blocks"),
    }


def kv_heads(count: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An attention with as many heads of keys and values as somebody counts."""
    return lambda part: altered(part, n_kv_heads=count(part))


def wider_shared(part: Any) -> Any:
    width = part.d_ff if part.shared.d_ff is None else part.shared.d_ff
    wrong = altered(part.shared, d_ff=width * part.shared.n_experts)
    return altered(part, shared=wrong)


def larger(a: Any, b: Any) -> Any:
    if all(isinstance(x, int) for x in (a, b)):
        return max(a, b)
    return sympy.Max(a, b)


# a model, the forward that is wrong, and the part that it runs instead of the right one
BREACHES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "a power": ("gemma-2b", "grouped_attention", kv_heads(lambda part: part.n_kv_heads**2)),
    "a product of two sizes, one of them 1": ("deepseek-v3", "mixture", wider_shared),
    "the larger of two": (
        "gemma-2b",
        "grouped_attention",
        kv_heads(lambda part: larger(part.n_kv_heads, part.head_dim - 255)),
    ),
}


def planted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[[Any], Any]) -> None:
    """Let a forward run another part than it is given; what was recorded is forgotten."""
    right = getattr(block, name)
    monkeypatch.setattr(
        block, name, lambda t, part, *given, **k: right(t, wrong(part), *given, **k)
    )
    monkeypatch.setattr(pieces, "_recorded", {})


@daily(3)
@pytest.mark.parametrize("kind", BREACHES)
def test_a_planted_error_that_a_1_would_hide_is_refuted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, where, wrong = BREACHES[kind]
    spec = entry(name).spec()
    generic = next(iter(cases(spec)))
    (before,) = prove(generic.model, generic.workload, generic.run_as, ("params",))
    assert before.proven
    # at the model's own sizes the error is not seen: that is why it has to be planted so
    right = formulas.params(spec)
    planted(monkeypatch, where, wrong)
    assert formulas.params(spec) == right
    (after,) = prove(generic.model, generic.workload, generic.run_as, ("params",))
    assert not after.proven
    assert set(after.differences) <= {"attention", "moe"}
    assert after.differences


@ONLY
def test_what_a_second_quantity_asks_is_asked_at_its_own_length() -> None:
    """FLOPs are read with more tokens than the window, one token's with fewer, in one run."""
    spec = entry("mistral-7b").spec().replace(n_layers=4, vocab_size=97, window=64)
    both = ("matmul_flops", "decode_matmul_flops")
    first, second = prove(spec, Workload(seq_len=64), As(one_sequence=True), both)
    assert first.proven and second.proven
    assert {"S + 1 > window"} <= {str(one) for one in first.domain}
    assert {"S >= window", "T <= window"} <= {str(one) for one in second.domain}
