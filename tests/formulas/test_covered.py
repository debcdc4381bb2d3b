"""Structures and ways to run that the formulas of training refuse, each with its field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from helpers import one_line
from helpers.miniatures import TINY, miniature

from metacount import SpecError
from metacount.catalog import entries, entry
from metacount.formulas import step
from metacount.formulas.step import (
    activation_bytes_by_role,
    backward_matmul_flops_by_role,
    recompute_matmul_flops_by_role,
    trained_tensors,
)
from metacount.formulas.tape import Pass
from metacount.spec import ModelSpec

PLAIN = ModelSpec.from_dict(TINY)
EAGER, FLASH, SDPA = (
    Pass(batch_size=1, seq_len=8, attention=attention) for attention in ("eager", "flash", "sdpa")
)
FULL = Pass(batch_size=1, seq_len=8, checkpointing="full")


def small(name: str, **changed: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changed)


def refusal(call: Callable[..., object], *args: object) -> tuple[str, object]:
    """The field that a call is refused for, and its value."""
    with pytest.raises(SpecError) as refused:
        call(*args)
    assert one_line(refused.value)
    return refused.value.field, refused.value.value


LATENT = small("deepseek-v2")  # queries and keys of 7 + 4 values a head
GEMMA = small("gemma-3n-e2b-text")
NO_EMBEDDINGS: dict[str, Any] = {"d_per_layer": None, "vocab_size_per_layer": None}
ONE_STREAM = {"n_altup_inputs": 1, "altup_active": 0}
LAUREL_ALONE = {**NO_EMBEDDINGS, "n_altup_inputs": None, "altup_active": 0, "v_norm": False}
LAUREL_ALONE |= {"n_kv_shared_layers": 0, "activation_sparsity": None, "sparsity_pattern": "T"}

# of each field a model that has no other of them before it
UNLIKE: dict[str, ModelSpec] = {
    "recurrent": small("mamba-2.8b"),
    "mixer_pattern": PLAIN.replace(mixer_pattern="AAN"),
    "ffn_pattern": PLAIN.replace(ffn_pattern="FFN"),
    "n_zero_experts": small("mixtral-8x7b", n_zero_experts=2),
    "output_gate": PLAIN.replace(output_gate=True),
    "index_top_k": small("deepseek-v3.2"),
    "index_block_len": small("minimax-m3-text"),
    "attention_out_scale": PLAIN.replace(attention_out_scale=0.1),
    "gate_scale": PLAIN.replace(gate_scale=10.0),
    "ffn_scale": PLAIN.replace(ffn_scale=0.1),
    "residual_weight": PLAIN.replace(residual_weight=0.5),
    "n_altup_inputs": GEMMA,
    "laurel_rank": GEMMA.replace(**LAUREL_ALONE),
    "norm_placement": PLAIN.replace(norm_placement="stream"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_a_structure_that_is_refused(name: str) -> None:
    spec = UNLIKE[name]
    assert refusal(step.check_alike, spec) == (name, getattr(spec, name))


T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}


def asked(**how: Any) -> dict[str, Any]:
    """Bytes that a plain model keeps in some way."""
    return activation_bytes_by_role(PLAIN, Pass(batch_size=1, seq_len=8, **how))


def windowed(pattern: str, biased: dict[str, Any]) -> dict[str, Any]:
    spec = PLAIN.replace(window=4, window_pattern=pattern, **biased)
    return activation_bytes_by_role(spec, EAGER)


BIASED: tuple[dict[str, Any], ...] = (T5, {"position": "alibi"})
HEADLESS, BODY = PLAIN.replace(has_head=False), PLAIN.replace(has_head=False, vocab_size=None)
# embeddings of each layer that go nowhere: they are added to all copies of the stream but the first
ONE_COPY = GEMMA.replace(**ONE_STREAM)
REFUSED: list[tuple[Callable[..., object], Any, str, object]] = [
    (step.check_reached, ONE_COPY, "n_altup_inputs", 1),
    (trained_tensors, ONE_COPY, "n_altup_inputs", 1),
    (lambda spec: backward_matmul_flops_by_role(spec, EAGER), ONE_COPY, "n_altup_inputs", 1),
    (step.check_around, GEMMA, "n_altup_inputs", 3),
    (lambda spec: recompute_matmul_flops_by_role(spec, FULL), GEMMA, "n_altup_inputs", 3),
    (lambda spec: activation_bytes_by_role(spec, EAGER), HEADLESS, "has_head", False),
    (lambda spec: activation_bytes_by_role(spec, EAGER), BODY, "vocab_size", None),
    *(
        (lambda given: windowed(*given), (pattern, biased), "window_pattern", pattern)
        for pattern in ("LG", "GLL")
        for biased in BIASED
    ),
    (lambda word: asked(attention=word), "fused", "attention", "fused"),
    (lambda word: asked(checkpointing=word), "some", "checkpointing", "some"),
    *((lambda width: asked(bytes_per_value=width), n, "dtype", n) for n in (1, 9, 16)),
]


@pytest.mark.parametrize(("call", "given", "field", "value"), REFUSED)
def test_what_is_refused(
    call: Callable[..., object], given: Any, field: str, value: object
) -> None:
    assert refusal(call, given) == (field, value)


def test_every_model_with_logits_is_covered() -> None:
    refused = {}
    for one in entries():
        if one.sizes is None:
            continue
        try:
            assert sum(activation_bytes_by_role(one.spec(), EAGER).values()) > 0
        except SpecError as error:
            refused[one.id] = error.field
    assert refused == {
        **dict.fromkeys(("gemma-3n-e2b-text", "gemma-3n-e4b-text"), "n_altup_inputs"),
        "bert-base": "has_head",
        **dict.fromkeys(("gshard-600b", "textbook-block"), "vocab_size"),
    }


# model, field, with flash, with sdpa
KERNELS: list[tuple[ModelSpec, str, bool, bool]] = [
    (PLAIN, "", False, False),
    (PLAIN.replace(attention_softcap=30.0), "attention_softcap", True, True),
    (PLAIN.replace(attention_sinks=True), "attention_sinks", True, True),
    (small("deepseek-v3.2"), "index_top_k", True, True),
    (small("minimax-m3-text"), "index_block_len", True, True),
    (LATENT, "", False, False),
    (LATENT.replace(v_head_dim=11), "", False, False),
    (LATENT.replace(v_head_dim=12), "v_head_dim", True, False),  # wider than the keys
    (LATENT.replace(v_head_dim=1), "v_head_dim", True, False),
    (PLAIN.replace(window=4), "", False, False),
    (PLAIN.replace(window=4, window_kind="chunked"), "window_kind", True, False),
    (PLAIN.replace(kind="prefix-decoder"), "kind", True, False),
    (small("bloom-176b"), "position", True, False),
    (small("t5-base"), "position", True, False),
    (small("chinchilla-70b"), "position", True, False),
    (small("mamba-2.8b"), "", False, False),
]
COUNTS = (activation_bytes_by_role, backward_matmul_flops_by_role, recompute_matmul_flops_by_role)


@pytest.mark.parametrize(("spec", "name", "flash", "sdpa"), KERNELS)
def test_a_kernel_that_is_refused(spec: ModelSpec, name: str, flash: bool, sdpa: bool) -> None:
    step.check_run(spec, EAGER)
    for run, refused in ((FLASH, flash), (SDPA, sdpa)):
        if not refused:
            step.check_run(spec, run)
            continue
        for count in (step.check_run, *COUNTS):
            assert refusal(count, spec, run) == (name, getattr(spec, name))


@pytest.mark.parametrize("name", ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
@pytest.mark.parametrize("size", [sympy.Symbol("x"), np.array([4, 6], dtype=object)])
def test_the_kernel_of_latent_attention_needs_numbers(name: str, size: Any) -> None:
    swept = LATENT.substituted(**{name: size})
    assert refusal(activation_bytes_by_role, swept, SDPA) == ("attention", "sdpa")
    assert activation_bytes_by_role(swept, EAGER)
    if name == "v_head_dim" and isinstance(size, sympy.Symbol):
        assert activation_bytes_by_role(swept, FLASH)
