"""Structures and ways to run that the formulas of training refuse, each with its field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import one_line
from helpers.miniatures import TINY, miniature

from metacount import SpecError
from metacount.catalog import entry
from metacount.formulas import covered
from metacount.formulas.backward import (
    backward_matmul_flops_by_role,
    recompute_matmul_flops_by_role,
)
from metacount.formulas.forward import Attending, Pass, Widths, dense_of
from metacount.formulas.kept import activation_kept, bytes_of
from metacount.formulas.kept_attention import attention_kept, core_kept
from metacount.formulas.kept_masks import attention_way
from metacount.formulas.kept_model import kept_terms
from metacount.formulas.trained import trained_tensors
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention

PLAIN = ModelSpec.from_dict(TINY)
LATENT = miniature(entry("deepseek-v2").spec())  # queries and keys of 7 + 4 values a head


def small(name: str, **changed: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changed)


GEMMA: dict[str, Any] = {"d_per_layer": None, "vocab_size_per_layer": None, "laurel_rank": None}
GEMMA |= {"n_altup_inputs": None, "altup_active": 0, "n_kv_shared_layers": 0, "v_norm": False}
GEMMA |= {"activation_sparsity": None, "sparsity_pattern": "T"}
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
    "n_altup_inputs": small("gemma-3n-e2b-text"),
    "laurel_rank": small("gemma-3n-e2b-text", **{**GEMMA, "laurel_rank": 3}),
    "norm_placement": PLAIN.replace(norm_placement="stream"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_a_structure_that_is_refused(name: str) -> None:
    spec = UNLIKE[name]
    value = getattr(spec, name)
    with pytest.raises(SpecError) as refused:
        covered.check_alike(spec)
    rule = f"{name} has no formula for training: got {value!r}; measure it instead"
    assert rule in one_line(refused.value)
    with pytest.raises(SpecError):
        covered.check_alike(spec, "here")
    if name in covered.ALIKE:
        covered.check_alike(spec, but=tuple(covered.ALIKE))


def test_structures_that_are_alike() -> None:
    for name in ("llama-7b", "mixtral-8x7b", "deepseek-v2", "gemma2-9b", "pythia-12b", "t5-base"):
        covered.check_alike(small(name))
    # a longer pattern of the same letter
    covered.check_alike(PLAIN.replace(mixer_pattern="AA", ffn_pattern="FFF"))


def test_one_stream_hides_what_each_layer_embeds() -> None:
    spec = small("gemma-3n-e2b-text", n_altup_inputs=1, altup_active=0)
    assert spec.d_per_layer is not None
    with pytest.raises(SpecError) as refused:
        covered.check_reached(spec)
    assert refused.value.field == "n_altup_inputs"
    for count in (backward_matmul_flops_by_role, lambda spec, _: trained_tensors(spec)):
        with pytest.raises(SpecError, match="d_per_layer"):
            count(spec, run("eager"))
    covered.check_reached(small("gemma-3n-e2b-text"))
    without = {"d_per_layer": None, "vocab_size_per_layer": None}
    covered.check_reached(small("gemma-3n-e2b-text", n_altup_inputs=1, altup_active=0, **without))
    covered.check_reached(PLAIN)
    several = np.array([1, 2])  # nothing is said of many sizes at once
    covered.check_reached(small("gemma-3n-e2b-text").substituted(n_altup_inputs=several))


def test_what_is_around_branches() -> None:
    with pytest.raises(SpecError) as refused:
        covered.check_around(small("gemma-3n-e2b-text"))
    assert refused.value.field == "n_altup_inputs"
    step = Pass(batch_size=1, seq_len=8, checkpointing="full")
    with pytest.raises(SpecError):
        recompute_matmul_flops_by_role(small("gemma-3n-e2b-text"), step)
    covered.check_around(PLAIN)


def run(attention: str) -> Pass:
    return Pass(batch_size=1, seq_len=8, attention=attention)


WIDE = LATENT.replace(v_head_dim=12)  # wider than the keys
# model, field, with flash, with sdpa
KERNELS: list[tuple[ModelSpec, str, bool, bool]] = [
    (PLAIN, "", False, False),
    (PLAIN.replace(attention_softcap=30.0), "attention_softcap", True, True),
    (PLAIN.replace(attention_sinks=True), "attention_sinks", True, True),
    (small("deepseek-v3.2"), "index_top_k", True, True),
    (small("minimax-m3-text"), "index_block_len", True, True),
    (LATENT, "", False, False),
    (LATENT.replace(v_head_dim=11), "", False, False),
    (WIDE, "v_head_dim", True, False),
    (LATENT.replace(v_head_dim=1), "v_head_dim", True, False),
    (PLAIN.replace(window=4), "", False, False),
    (PLAIN.replace(window=4, window_kind="chunked"), "window_kind", True, False),
    (PLAIN.replace(kind="prefix-decoder"), "kind", True, False),
    (small("bloom-176b"), "position", True, False),
    (small("t5-base"), "position", True, False),
    (small("chinchilla-70b"), "position", True, False),
    (small("mamba-2.8b"), "", False, False),
]
WHY = dict.fromkeys(("window_kind", "kind"), ": it needs a mask")
WHY["position"] = ": it adds to scores"


@pytest.mark.parametrize(("spec", "name", "flash", "sdpa"), KERNELS)
def test_a_kernel_that_is_refused(spec: ModelSpec, name: str, flash: bool, sdpa: bool) -> None:
    covered.check_fused_run(spec, run("eager"))
    for attention, refused in (("flash", flash), ("sdpa", sdpa)):
        if not refused:
            covered.check_fused_run(spec, run(attention))
            continue
        with pytest.raises(SpecError) as error:
            covered.check_fused_run(spec, run(attention))
        assert error.value.field == name


def test_what_a_kernel_does_not_compute_keeps_nothing() -> None:
    how = Attending(batch_size=1, n_queries=8, n_keys=8, widths=Widths(value=2), attention="flash")
    part = PLAIN.replace(attention_softcap=30.0).last_stack.attention
    assert isinstance(part, Attention)
    with pytest.raises(SpecError, match="attention_softcap"):
        core_kept(how, part, sinks=False)
    latent = WIDE.last_stack.attention
    assert isinstance(latent, LatentAttention)
    with pytest.raises(SpecError, match="v_head_dim"):
        core_kept(how, latent, sinks=False)


@pytest.mark.parametrize(
    ("placement", "is_after"),
    [
        ("pre", False),
        ("post", True),
        ("sandwich", True),
        ("deep", True),
        ("parallel", False),
        ("parallel_two", False),
        ("post_branch", True),
        ("stream", False),
        ("hybrid", True),  # of its blocks with attention, which are all here
    ],
)
def test_the_last_matrix_is_repeated_if_a_norm_is_after_it(placement: str, is_after: bool) -> None:
    step = Pass(batch_size=1, seq_len=8, checkpointing="full")
    repeated = recompute_matmul_flops_by_role(PLAIN.replace(norm_placement=placement), step)
    last = 0 if is_after else 2 * 8 * PLAIN.d_model * PLAIN.d_ff * PLAIN.n_layers
    assert repeated["ffn"] == 2 * 8 * 3 * PLAIN.d_model * PLAIN.d_ff * PLAIN.n_layers - last


def test_a_ring_gives_the_result_twice() -> None:
    """Queries that are not rotated have one result, unless a ring is said to make it."""
    part, norms = PLAIN.last_stack.attention, PLAIN.last_stack.norms
    assert isinstance(part, Attention)
    sizes: dict[str, Any] = {"batch_size": 1, "n_queries": 8, "n_keys": 8}
    alone = Attending(**sizes, widths=Widths(value=2), attention="flash")
    ring = Attending(**sizes, widths=Widths(value=2), attention="flash", ring=True)
    kept = [bytes_of(attention_kept(run, part, norms)) for run in (alone, ring)]
    assert kept[1] - kept[0] == 2 * 8 * part.n_heads * part.head_dim


def test_words_that_are_unknown() -> None:
    with pytest.raises(SpecError) as refused:
        run("fused")
    assert refused.value.field == "attention"
    with pytest.raises(SpecError) as refused:
        Pass(batch_size=1, seq_len=8, checkpointing="some")
    assert refused.value.field == "checkpointing"
    with pytest.raises(SpecError) as refused:
        activation_kept(FeedForward(activation="identity", gated=True))
    assert refused.value.field == "activation"
    with pytest.raises(SpecError) as refused:
        dense_of(small("mamba-2.8b"))
    assert refused.value.field == "activation"


def test_bytes_of_what_is_computed_wider() -> None:
    for value, wide, copies in ((2, 4, True), (4, 4, False), (8, 8, False)):
        widths = Widths(value=value)
        assert (widths.wide, widths.copies) == (wide, copies)
    for value in (1, 9, 16):
        with pytest.raises(SpecError, match="choose bf16, fp16, fp32 or fp64"):
            Widths(value=value)


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"has_head": False}, "has_head"), ({"has_head": False, "vocab_size": None}, "vocab_size")],
)
def test_a_step_without_a_loss(changed: dict[str, Any], name: str) -> None:
    with pytest.raises(SpecError) as refused:
        kept_terms(PLAIN.replace(**changed), run("eager"))
    assert refused.value.field == name


@pytest.mark.parametrize(
    "name",
    [
        "mamba-2.8b",
        "zamba2-7b",
        "jamba-1.5-mini",
        "deepseek-v3.2",
        "minimax-m3-text",
        "chinchilla-70b",
    ],
)
def test_products_that_selective_checkpointing_does_not_name(name: str) -> None:
    step = Pass(batch_size=1, seq_len=8, checkpointing="selective")
    with pytest.raises(SpecError) as refused:
        kept_terms(small(name), step)
    assert refused.value.field == "checkpointing"


T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}


@pytest.mark.parametrize("biased", [T5, {"position": "alibi"}])
def test_windows_of_some_layers_beside_a_bias(biased: dict[str, Any]) -> None:
    spec = PLAIN.replace(window=4, **biased)
    for pattern in ("LG", "GLL"):
        with pytest.raises(SpecError) as refused:
            kept_terms(spec.replace(window_pattern=pattern), run("eager"))
        assert refused.value.field == "window_pattern"
    for pattern in ("L", "LL"):
        assert kept_terms(spec.replace(window_pattern=pattern), run("eager"))
    assert kept_terms(PLAIN.replace(window=4, window_pattern="LG"), run("eager"))


@pytest.mark.parametrize("name", ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_the_kernel_of_latent_attention_needs_numbers(name: str) -> None:
    swept = LATENT.substituted(**{name: np.array([4, 6], dtype=object)})
    with pytest.raises(SpecError) as refused:
        attention_way(swept, run("sdpa"))
    assert refused.value.field == "attention"
    for attention in ("eager", "flash"):
        assert attention_way(swept, run(attention)) == attention
    assert attention_way(LATENT.replace(v_head_dim=11), run("sdpa")) == "sdpa"


@pytest.mark.parametrize("name", ["llama-7b", "deepseek-v2"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_bytes_of_an_array_of_heads_and_lengths(name: str, attention: str) -> None:
    """Where a step copies what several heads give, it is asked of each size."""
    heads, lengths = np.array([1, 1, 2, 6], dtype=object), np.array([1, 5, 1, 5], dtype=object)
    spec = small(name)
    if spec.n_kv_heads is not None:
        spec = spec.replace(n_kv_heads=1)
    swept = bytes_of(
        kept_terms(
            spec.substituted(n_heads=heads),
            Pass(batch_size=2, seq_len=lengths, attention=attention),
        )
    )
    for n_heads, seq_len, found in zip(heads, lengths, swept, strict=True):
        alone = Pass(batch_size=2, seq_len=seq_len, attention=attention)
        assert found == bytes_of(kept_terms(spec.replace(n_heads=n_heads), alone))
