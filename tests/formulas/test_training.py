"""Training's formulas against torch: what autograd keeps, and the products of a backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.autograd import Step
from helpers.miniatures import miniature
from helpers.random_specs import specs
from helpers.release import daily, one_day_in, one_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metacount.catalog import NotExpressible, entries, entry
from metacount.errors import SpecError
from metacount.formulas import kept, kept_attention, kept_model, kept_moe
from metacount.formulas.backward import backward_matmul_flops_by_role
from metacount.formulas.covered import check_alike
from metacount.formulas.forward import Pass, Widths
from metacount.formulas.optimizer import (
    OPTIMIZERS,
    master_bytes,
    optimizer_bytes_by_role,
)
from metacount.formulas.part import Part, chosen_tensors
from metacount.formulas.terms import params_of
from metacount.formulas.trained import trained_tensors
from metacount.formulas.training import (
    activation_bytes,
    backward_matmul_flops,
    recompute_matmul_flops,
)
from metacount.modules.build import build
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.ffn import FeedForward
from metacount.spec.moe import Mixture

Way = tuple[str, str, str]  # attention, checkpointing, dtype
PLAIN: Way = ("eager", "none", "bf16")
WAYS: tuple[Way, ...] = (
    ("flash", "none", "bf16"),
    ("eager", "full", "bf16"),
    ("eager", "none", "fp32"),
    ("flash", "full", "fp16"),
    ("eager", "none", "fp64"),
    ("flash", "none", "fp32"),
    ("eager", "full", "fp32"),
)


def few_layers(spec: ModelSpec) -> ModelSpec:
    """As few layers as hold one of each kind: dense, routed, without rotation."""
    n = max(2, spec.n_dense_layers + spec.moe_every, spec.nope_every or 0)
    dense = min(spec.n_dense_layers, 1)
    changes: dict[str, Any] = {"n_layers": n - spec.n_dense_layers + dense}
    changes["n_dense_layers"] = dense
    if spec.has_encoder:
        changes["n_encoder_layers"] = changes["n_layers"] + 1
    return spec.replace(**changes)


def built_specs() -> dict[str, ModelSpec]:
    found = {}
    for one in entries():
        try:
            spec = one.spec()
        except NotExpressible:
            continue
        try:
            check_alike(spec)
        except SpecError:
            continue  # of layers that differ: tests/training/test_formulas_of_mixers.py
        if spec.head is not None and spec.embedding is not None:
            found[one.id] = spec
    return found


SPECS = built_specs()
# one model of each structure: sisters have the same miniature
STRUCTURES = {few_layers(miniature(spec)): name for name, spec in SPECS.items()}


def run_of(spec: ModelSpec, batch_size: int, seq_len: int, dtype: str) -> Workload:
    return Workload(
        batch_size=batch_size,
        seq_len=seq_len,
        dtype=dtype,
        source_len=seq_len - 4 if spec.has_encoder else None,
        prefix_len=3 if spec.kind == "prefix-decoder" else 0,
    )


def both(spec: ModelSpec, run: Workload, way: Way) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes kept and FLOPs of the backward: by the formulas, and measured."""
    attention, checkpointing, _ = way
    sizes = Pass(
        batch_size=run.batch_size,
        seq_len=run.seq_len,
        source_len=run.source_len,
        bytes_per_value=DTYPE_BYTES[run.dtype],
        attention=attention,
        checkpointing=checkpointing,
    )
    flops = backward_matmul_flops(spec, sizes) + recompute_matmul_flops(spec, sizes)
    ours = activation_bytes(spec, sizes), flops
    step = Step(spec, run, attention=attention, checkpointing=checkpointing)
    return ours, (step.activation_bytes, step.backward_flops)


def test_every_model_with_logits_is_covered() -> None:
    """Those whose layers differ are compared in tests/training/test_formulas_of_mixers.py."""
    run, refused = Pass(batch_size=1, seq_len=8), set()
    for one in entries():
        if one.sizes is None:
            continue
        try:
            assert activation_bytes(one.spec(), run) > 0
        except SpecError as error:
            without = "without logits there is no loss"
            measured = "n_altup_inputs has no formula for what training keeps"
            assert (measured if one.family == "Gemma 3n" else without) in str(error)
            refused.add(one.id)
    gemma = {"gemma-3n-e2b-text", "gemma-3n-e4b-text"}
    assert refused == {"bert-base", "gshard-600b", "textbook-block", *gemma}


@pytest.mark.parametrize(
    ("activation", "scale", "apart", "fused"),
    [
        # what the activation keeps, its result, the other half, and their product
        ("gelu", 1.0, 4, 4),
        ("gelu", 0.5, 4, 5),  # fused, the half that was multiplied lies beside the other
        ("relu", 1.0, 3, 4),
        ("relu", 0.5, 3, 4),
        ("identity", 1.0, 3, 3),
        ("identity", 0.5, 3, 4),
    ],
)
def test_tensors_of_hidden_width(activation: str, scale: float, apart: int, fused: int) -> None:
    part = FeedForward(activation=activation, gated=True, gate_scale=scale)
    assert [kept.hidden_tensors(part, fused=each) for each in (False, True)] == [apart, fused]


@pytest.mark.parametrize("n_heads", [1, 4])
def test_what_a_ring_gives_lies_head_by_head(n_heads: int) -> None:
    """On meta no ring is run: its result is as that of rotated queries, which tests measure."""
    spec = miniature(entry("gpt2").spec()).replace(n_heads=n_heads, n_kv_heads=n_heads)
    run, ring = (
        Pass(batch_size=3, seq_len=8, attention="flash", ring=ring) for ring in (False, True)
    )
    one, other = (
        kept.bytes_of(kept_model.attention_terms(spec, each, 8, rotated=False))
        for each in (run, ring)
    )
    assert spec.head_dim is not None
    assert other - one == (n_heads > 1) * 2 * 3 * 8 * n_heads * spec.head_dim


@daily(6)
@pytest.mark.parametrize("spec", one_in(11, STRUCTURES), ids=[*STRUCTURES.values()])
def test_formula_is_what_torch_keeps_and_multiplies(spec: ModelSpec) -> None:
    full = few_layers(SPECS[STRUCTURES[spec]])
    n = min(full.longest or 2048, 2048)
    ours, measured = both(full, run_of(full, 1, n, "bf16"), PLAIN)
    assert ours == measured
    ours, measured = both(spec, run_of(spec, 3, 11, "bf16"), PLAIN)
    assert ours == measured


@one_day_in(6)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    specs(), st.sampled_from([PLAIN, *WAYS]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 5])
)
def test_random_structures(spec: ModelSpec, way: Way, batch_size: int, seq_len: int) -> None:
    if spec.vocab_size is None or not spec.has_head:
        wide = spec.d_embedding is not None  # a head over such tables needs a transform
        spec = spec.replace(vocab_size=19, has_head=True, head_transform=wide)
    run = Workload(
        batch_size=batch_size,
        seq_len=seq_len,
        dtype=way[2],
        source_len=3 if spec.has_encoder else None,
        prefix_len=1 if spec.kind == "prefix-decoder" else 0,
    )
    try:
        ours, measured = both(spec, run, way)
    except SpecError as error:
        assert "has no formula" in str(error)
    else:
        assert ours == measured


def test_experts_keep_the_same_on_a_real_device() -> None:
    for name in ("mixtral-8x7b", "deepseek-v3", "llama4-scout-text", "gpt-oss-20b"):
        spec = few_layers(miniature(SPECS[name]))
        run = run_of(spec, 2, 11, "fp32")
        real = Step(spec, run, device="cpu", patched=False)
        sizes = Pass(batch_size=2, seq_len=11, bytes_per_value=4)
        assert activation_bytes(spec, sizes) == real.activation_bytes
        assert all(torch.isfinite(g).all() for g in real.gradients.values())


def test_one_layer_by_hand() -> None:
    spec = ModelSpec(
        kind="decoder",
        d_model=13,
        n_layers=1,
        vocab_size=101,
        n_heads=3,
        n_kv_heads=1,
        head_dim=4,
        d_ff=17,
        activation="silu",
        gated=True,
        norm="rmsnorm",
        position="none",
    )
    tokens, pairs = 2 * 5, 2 * 3 * 5 * 5
    norms = 3 * (4 * tokens * 13 + 4 * tokens + 4 * tokens * 13)  # x, 1/rms, normed; two and one
    inputs = 3 * 2 * tokens * 13  # of attention, feed-forward, head
    heads = 4 * 2 * tokens * 12  # q, k and v of three heads each, result
    scores = 4 * pairs + 2 * pairs + 5 * 5  # softmax, probabilities, mask
    hidden = 4 * 2 * tokens * 17  # gate, silu(gate), up, product
    ends = 8 * tokens + 4 * tokens * 101 + 8 * tokens + 4  # ids, log-softmax, targets, their number
    assert activation_bytes(spec, Pass(batch_size=2, seq_len=5)) == (
        norms + inputs + heads + scores + hidden + ends
    )


@daily(6)
@pytest.mark.parametrize(
    ("module", "name", "wrong", "model"),
    [
        (kept, "hidden_gradients", lambda part, **_: [()] * 3, "llama-7b"),
        (kept_moe, "hidden_gradients", lambda part, **_: [()] * 3, "mixtral-8x7b"),
        (kept_attention, "several", lambda *counts: 1, "gemma-2b"),
        (kept_attention, "FLAG", 4, "gpt2"),
        (kept_model, "moe_kept", lambda *given: [], "mixtral-8x7b"),
        (kept_model, "relative_kept", lambda *given: [], "gopher-280b"),
    ],
)
def test_a_planted_error_is_caught(
    module: Any, name: str, wrong: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = few_layers(miniature(SPECS[model]))
    run = run_of(spec, 1, 11, "bf16")
    ours, measured = both(spec, run, PLAIN)
    assert ours == measured
    monkeypatch.setattr(module, name, wrong)
    assert both(spec, run, PLAIN)[0][0] != measured[0]


def test_what_is_forgotten_of_a_backward_is_caught() -> None:
    spec = few_layers(miniature(SPECS["gopher-280b"]))
    _, (_, flops) = both(spec, run_of(spec, 3, 11, "bf16"), PLAIN)
    sizes = Pass(batch_size=3, seq_len=11)
    forward = Step(spec, run_of(spec, 3, 11, "bf16")).forward_flops
    # the sinusoids' projection has one gradient, not two
    assert flops < 2 * forward
    assert sum(backward_matmul_flops_by_role(spec, sizes).values()) == flops


@pytest.mark.parametrize("spec", [*STRUCTURES], ids=[*STRUCTURES.values()])
def test_adapters_stand_beside_every_linear_layer_but_the_head(spec: ModelSpec) -> None:
    model = build(spec)
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    adapters = chosen_tensors(spec, Part(rank=2, targets=("all-linear",))).stored
    n_adapters = sum(path.endswith((".lora_a", ".lora_b")) for path in adapters)
    assert n_adapters == 2 * sum(name != "lm_head" for name in linear)


def optimizers(
    name: str, named: dict[str, torch.nn.Parameter], inner: list[torch.nn.Parameter]
) -> list[torch.optim.Optimizer]:
    if name == "adafactor":
        return [torch.optim.Adafactor(named.values())]
    if name == "muon":
        rest = [p for p in named.values() if not any(p is q for q in inner)]
        return [torch.optim.Muon(inner), torch.optim.AdamW(rest)]
    if name == "adamw":
        return [torch.optim.AdamW(named.values())]
    return [torch.optim.SGD(named.values(), momentum=0.9 if name == "sgd-momentum" else 0.0)]


@pytest.mark.parametrize("master", [False, True])
# that in 8 bits is torchao's, which need not be installed: `training/test_adam8bit.py`
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adam8bit"])
@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "deepseek-v3", "gopher-280b"])
def test_optimizers_keep_what_the_formula_says(model: str, name: str, master: bool) -> None:
    spec = few_layers(miniature(SPECS[model]))
    named = {
        n: torch.nn.Parameter(p.float() if master else p)
        for n, p in build(spec, device="cpu").named_parameters()
    }
    for p in named.values():
        p.grad = torch.zeros_like(p)
    inner = [p for n, p in named.items() if ".layers." in n and p.dim() == 2]
    measured = 0
    for one in optimizers(name, named, inner):
        one.step()
        for state in one.state.values():
            tensors = [t for t in state.values() if isinstance(t, torch.Tensor)]
            measured += sum(t.untyped_storage().nbytes() for t in tensors)
    by_role = optimizer_bytes_by_role(
        spec, optimizer=name, bytes_per_value=2, master_weights=master
    )
    assert sum(by_role.values()) == measured
    assert master_bytes(spec) == 4 * params_of(trained_tensors(spec).all)


def test_what_no_formula_covers_is_said() -> None:
    run = Pass(batch_size=1, seq_len=8)
    flash = Pass(batch_size=1, seq_len=8, attention="flash")
    with pytest.raises(SpecError, match="has_head"):
        activation_bytes(entry("bert-base").spec(), run)
    with pytest.raises(SpecError, match="attention_softcap"):
        activation_bytes(SPECS["gemma2-2b"], flash)
    with pytest.raises(SpecError, match="position"):
        backward_matmul_flops(SPECS["bloom-176b"], flash)
    with pytest.raises(SpecError, match="position"):
        recompute_matmul_flops(SPECS["bloom-176b"], flash)
    with pytest.raises(SpecError, match="checkpointing"):
        Pass(batch_size=1, seq_len=8, checkpointing="some")
    with pytest.raises(SpecError, match="dtype"):
        activation_bytes(SPECS["gpt2"], Pass(batch_size=1, seq_len=8, bytes_per_value=1))
    with pytest.raises(SpecError, match="optimizer"):
        optimizer_bytes_by_role(SPECS["gpt2"], optimizer="lion", bytes_per_value=2)
    with pytest.raises(SpecError, match="lora_targets"):
        chosen_tensors(SPECS["gpt2"], Part(rank=8, targets=("q_prj",)))
    # tables, norms and the head have weights too
    for target in ("embed_tokens", "embed_positions", "norm", "lm_head"):
        with pytest.raises(SpecError, match="lora_targets"):
            chosen_tensors(SPECS["gpt2"], Part(rank=8, targets=(target,)))
    with pytest.raises(SpecError):
        chosen_tensors(SPECS["gpt2"], Part(freeze=("lm_hed",)))
    with pytest.raises(SpecError):
        chosen_tensors(SPECS["gpt2"], Part(freeze=("decoder", "lm_head")))


def test_rows_that_are_sent_are_kept_where_they_came_from_too() -> None:
    """Ten rows of 8 values in experts of width 3; two bytes a value, eight an index."""
    mixture = Mixture(n_experts=8, top_k=2, d_ff=3, router="topk_softmax")
    silu = FeedForward(activation="silu", gated=True)
    found = {}
    for sent in (False, True):
        names: dict[str, Any] = {}
        for one in kept_moe.rows_kept(10, 8, mixture, silu, Widths(value=2), sent=sent):
            names[one.name] = names.get(one.name, 0) + one.values * one.width * one.times
        found[sent] = {name: n for name, n in names.items() if n}
    here = {
        "experts: rows": 10 * 8,
        "experts: order of the rows": 10 * 8,
        "experts: input": 10 * 8 * 2,
        "experts: hidden": 4 * 10 * 3 * 2,  # up, gate before and after SiLU, their product
        "experts: weight": 10 * 2,
        "experts: weighed": 10 * 8 * 2,
        "experts: summed": 10 * 8 * 2,
    }
    twice = ("order of the rows", "weight", "weighed")
    assert found[False] == here
    assert found[True] == {
        **here,
        **{f"experts: {name}": 2 * here[f"experts: {name}"] for name in twice},
    }
