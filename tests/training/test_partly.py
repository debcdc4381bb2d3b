"""A step that trains a part of a model: what it multiplies and keeps, by formula and measured."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers import one_line
from helpers.command_line import run, run_json
from helpers.miniatures import TINY, miniature
from helpers.random_specs import specs
from helpers.release import chosen, daily, one_day_in
from helpers.steps import Uncovered, assert_equal, both, workload
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount import Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import partly, wires, wires_block
from metacount.formulas.forward import Pass
from metacount.formulas.named import tensors_by_path
from metacount.formulas.part import Part, chosen_tensors
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.summary.training_step import train_reference
from metacount.textbook.training.chosen import COMPARED, count_step

STRUCTURES = with_logits()


def small(name: str) -> ModelSpec:
    return miniature(entry(name).spec())


def spec_params(spec: ModelSpec) -> int:
    return sum(w.size for w in tensors_by_path(spec).values())


def covered(spec: ModelSpec) -> bool:
    try:
        partly.check_partly(spec, Pass(batch_size=1, seq_len=8))
    except SpecError:
        return False
    return True


# what of a model is trained
PARTS: dict[str, dict[str, Any]] = {
    "adapters of some": {"lora_rank": 3, "lora_targets": ("o_proj", "down_proj")},
    "adapters of all": {"lora_rank": 2, "lora_targets": ("all-linear",)},
    "upper layers": {"freeze": ("embed_tokens", "layers.0", "embed_positions")},
    "no matrix of attention": {"freeze": ("self_attn", "embed_tokens")},
    "no feed-forward": {"freeze": ("mlp",)},
    "norms alone": {"freeze": ("self_attn", "cross_attn", "mlp", "embed_tokens", "lm_head")},
}
# attention, checkpointing, dtype, batch size
WAYS = (
    ("eager", "none", "bf16", 3),
    ("flash", "full", "bf16", 1),
    ("eager", "full", "bf16", 3),
    ("flash", "none", "fp16", 3),
    ("eager", "none", "fp32", 1),
    ("eager", "selective", "bf16", 1),
    ("flash", "selective", "bf16", 3),
    ("sdpa", "none", "bf16", 3),
    ("sdpa", "full", "fp32", 1),
)
CASES = [
    (name, part, WAYS[(i + j) % len(WAYS)])
    for i, name in enumerate(STRUCTURES)
    for j, part in enumerate(PARTS)
    if covered(STRUCTURES[name])
]


def once(number: int) -> bool:
    """Whether every run tries a case: one of every second structure, all parts, all ways."""
    structure, part = divmod(number, len(PARTS))
    return structure % 2 == 0 and part == structure // len(WAYS) % len(PARTS)


@daily(20)
@pytest.mark.parametrize(("name", "part", "way"), chosen(CASES, once))
def test_formula_is_what_is_measured(name: str, part: str, way: tuple[str, str, str, int]) -> None:
    spec, (attention, checkpointing, dtype, batch_size) = STRUCTURES[name], way
    choices = dict(PARTS[part])
    if "lora_targets" in choices and choices["lora_targets"] != ("all-linear",):
        names = {path.split(".")[-2] for path in tensors_by_path(spec) if path.count(".")}
        choices["lora_targets"] = tuple(t for t in choices["lora_targets"] if t in names)
    if "freeze" in choices:
        paths = [f".{path}." for path in tensors_by_path(spec)]
        tied = spec.head is not None and spec.head.tied
        choices["freeze"] = tuple(
            each
            for each in choices["freeze"]
            if any(f".{each}." in path for path in paths) or (tied and each == "lm_head")
        )
    work = workload(spec, batch_size, 11, dtype)
    setup = Setup(
        optimizer="sgd-momentum", attention=attention, checkpointing=checkpointing, **choices
    )
    try:
        figures = both(spec, work, setup)
    except Uncovered as error:
        if spec.n_index_heads is not None and "this model's mixer" in str(error):
            assert checkpointing == "selective"
            return
        assert "with fused attention" in str(error) and attention != "eager"
        setup = Setup(optimizer="sgd-momentum", checkpointing=checkpointing, **choices)
        figures = both(spec, work, setup)
    assert_equal(*figures)


@daily(12)
@pytest.mark.parametrize(
    ("changes", "freeze"),
    [
        # a result that is read again has four bytes a value
        ({}, ("embed_tokens", "k_proj")),
        ({"position": "t5", "n_buckets": 4, "max_distance": 8}, ("embed_tokens", "mlp")),
        # two norms that have the same x, and no weights
        ({"norm_placement": "parallel_two", "norm_affine": False}, ("q_proj",)),
    ],
)
@pytest.mark.parametrize("checkpointing", ["none", "selective"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_in_float32(
    changes: dict[str, Any], freeze: tuple[str, ...], checkpointing: str, attention: str
) -> None:
    spec = ModelSpec.from_dict({**TINY, **changes})
    setup = Setup(checkpointing=checkpointing, attention=attention, freeze=freeze)
    assert_equal(*both(spec, workload(spec, 2, 5, "fp32"), setup))


@daily(12)
@pytest.mark.parametrize("freeze", ["self_attn", "mlp", "q_proj"])
@pytest.mark.parametrize("placement", ["parallel", "parallel_two"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_branches_that_read_one_input(placement: str, freeze: str, dtype: str) -> None:
    spec = ModelSpec.from_dict({**TINY, "norm_placement": placement})
    assert_equal(*both(spec, workload(spec, 2, 5, dtype), Setup(freeze=(freeze,))))


@pytest.mark.parametrize("alone", ["mlp.shared_expert_gate", "mlp.shared_experts.down_proj"])
def test_what_shared_experts_repeat(alone: str) -> None:
    mixture = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
    shared = {"n_shared_experts": 1, "shared_expert_gate": True}
    spec = ModelSpec.from_dict({**TINY, **mixture, **shared})
    frozen = tuple(path for path in tensors_by_path(spec) if f".{alone}." not in path)
    setup = Setup(checkpointing="full", freeze=frozen)
    assert_equal(*both(spec, workload(spec, 2, 5, "bf16"), setup))


@daily(4)
@pytest.mark.parametrize("alone", ["q_proj", "k_proj", "v_proj"])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_one_projection_of_the_first_block_alone(alone: str, softcap: float | None) -> None:
    spec = ModelSpec.from_dict({**TINY, "attention_softcap": softcap})
    trained = f"decoder.layers.0.self_attn.{alone}."
    frozen = tuple(path for path in tensors_by_path(spec) if not path.startswith(trained))
    assert_equal(*both(spec, workload(spec, 2, 5, "bf16"), Setup(freeze=frozen)))


@daily(4)
@pytest.mark.parametrize("alone", ["o_proj", "kv_b_proj"])
@pytest.mark.parametrize("n_heads", [1, 6])
def test_one_projection_of_latent_attention_alone(alone: str, n_heads: int) -> None:
    """With one head the kernel's result is what o_proj reads; of more it is copied."""
    spec = small("deepseek-v2").replace(n_heads=n_heads)
    trained = f"decoder.layers.0.self_attn.{alone}."
    frozen = tuple(path for path in tensors_by_path(spec) if not path.startswith(trained))
    setup = Setup(attention="flash", freeze=frozen)
    assert_equal(*both(spec, workload(spec, 2, 5, "bf16"), setup))


@one_day_in(6)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    specs(),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 5]),
    st.sampled_from(WAYS),
    st.randoms(use_true_random=False),
)
def test_any_few_tensors_of_any_model(
    spec: ModelSpec,
    batch_size: int,
    seq_len: int,
    way: tuple[str, str, str, int],
    chance: random.Random,
) -> None:
    """All is frozen but one tensor to four, or adapters of one to four layers."""
    attention, checkpointing, dtype, _ = way
    assume(covered(spec) and spec.head is not None and spec.embedding is not None)
    paths = sorted(tensors_by_path(spec))
    some = set(chance.sample(paths, chance.randint(1, min(4, len(paths)))))
    choices: dict[str, Any] = {"freeze": tuple(path for path in paths if path not in some)}
    if chance.random() < 0.5:
        every = Part(rank=1, targets=("all-linear",))
        linear = chosen_tensors(spec, every).stored
        names = sorted({p.split(".")[-2] for p in linear if p.endswith("lora_a")})
        targets = tuple(chance.sample(names, min(len(names), chance.randint(1, 4))))
        freeze = chance.choice(((), ("lora_a",), ("layers.0",)))
        choices = {"lora_rank": 2, "lora_targets": targets, "freeze": freeze}
    setup = Setup(optimizer="sgd", attention=attention, checkpointing=checkpointing, **choices)
    try:
        figures = both(spec, workload(spec, batch_size, seq_len, dtype), setup)
    except Uncovered as error:
        assert "has no formula" in str(error) or "is of a kernel for 16-bit" in str(error)
        assume(False)
    except SpecError:
        assume(False)
    assert_equal(*figures)


def test_adapters_of_queries_and_values_by_hand() -> None:
    """LLaMA-7B, 8 tokens: what has no gradient is left out of the backward."""
    llama, n, r = entry("llama-7b").spec(), 8, 16
    d, m, layers, vocab = 4096, 11008, 32, 32000
    setup = Setup(lora_rank=r, lora_targets=("q_proj", "v_proj"))
    step = count_step(llama, Workload(seq_len=n), setup)
    adapter = 2 * n * r * 2 * d  # A and B
    pairs = 2 * n * n * d
    products = 2 * n * (4 * d * d + 3 * d * m)  # of all frozen matrices of a block
    forward = layers * (products + 2 * adapter + 2 * pairs) + 2 * n * d * vocab
    assert step.matmul_flops == forward
    # one gradient of each frozen product, two of adapters and of attention, but in the first
    # block: its input has none, so q, k and v's matrices have none, nor A's input, nor the keys
    whole = layers * (products + 4 * adapter + 4 * pairs) + 2 * n * d * vocab
    first = 2 * n * 3 * d * d + 2 * (2 * n * r * d) + pairs
    assert step.backward_matmul_flops == whole - first


def test_every_structure_but_few_is_covered() -> None:
    refused = {name for name, spec in STRUCTURES.items() if not covered(spec)}
    alone = {name for name in refused if STRUCTURES[name].recurrent == "none"}
    # Transformer-XL's positions, a layer of queries, experts beside a feed-forward, AltUp
    assert alone == {"chinchilla-70b", "pangu-alpha-207b", "longcat-flash", "gemma-3n-e2b-text"}


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama-7b", {"output_gate": True}, "output_gate", f"has no formula {partly.PARTLY}: got True"),
    ("chinchilla-70b", {}, "position", f"has no formula {partly.PARTLY}: got 'transformer_xl'"),
    ("pangu-alpha-207b", {}, "position", f"has no formula {partly.PARTLY}: got 'learned'"),
    (
        "deepseek-v3.2",
        {},
        "checkpointing",
        "has no formula for this model's mixer: got 'selective'",
    ),
    ("minimax-m3-text", {}, "checkpointing", "has no formula for this model's mixer: got"),
    ("llama-7b", {"has_head": False}, "has_head", "has no formula for training: without logits"),
]


@pytest.mark.parametrize(("name", "changes", "field", "rule"), REFUSED)
def test_what_has_no_formula_is_said(
    name: str, changes: dict[str, Any], field: str, rule: str
) -> None:
    assert partly.PARTLY == "where a part of the model is trained"
    spec = small(name).replace(**changes)
    way = "selective" if field == "checkpointing" else "none"
    with pytest.raises(SpecError) as refused:
        partly.check_partly(spec, Pass(batch_size=1, seq_len=8, checkpointing=way))
    assert one_line(refused.value).startswith(f"{field} {rule}")


@daily(2)
@pytest.mark.parametrize("lora_rank", [None, 3])
def test_factors_and_an_indexer_keep_nothing(lora_rank: int | None) -> None:
    factors = {"attention_out_scale": 0.5, "gate_scale": 3.0, "ffn_scale": 2.0}
    factors["residual_weight"] = 0.7
    choices: dict[str, Any] = {"freeze": ("embed_tokens", "layers.0", "v_proj")}
    if lora_rank is not None:
        choices = {"lora_rank": lora_rank, "lora_targets": ("all-linear",)}
    for spec in (small("llama-7b").replace(**factors), small("deepseek-v3.2")):
        if spec.index_top_k is not None and lora_rank is None:
            choices = {"freeze": ("embed_tokens", "layers.0", "kv_a_proj_with_mqa")}
        setup = Setup(optimizer="sgd", checkpointing="full", **choices)
        assert_equal(*both(spec, workload(spec, 3, 11), setup))


def test_what_lies_below_the_lowest_trained_layer_costs_nothing() -> None:
    spec, work = small("llama-7b"), Workload(batch_size=3, seq_len=11)
    below = ("embed_tokens", "layers.0", "layers.1")
    for checkpointing in ("none", "full"):
        setup = Setup(freeze=below, checkpointing=checkpointing)
        two, none = (
            count_step(spec.replace(n_layers=n), work, Setup(**{**vars(setup), "freeze": names}))
            for n, names in ((5, below), (3, ("embed_tokens",)))
        )
        # its blocks 2 to 4 are the other's 0 to 2
        assert two.backward_matmul_flops == none.backward_matmul_flops
        assert two.activation_bytes == none.activation_bytes
        assert two.recompute_matmul_flops == none.recompute_matmul_flops


@daily(4)
@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (wires, "needed", lambda terms, gradients: terms),
        (wires, "norm_kept", lambda *_: []),
        (wires_block, "moe_kept", lambda *_: []),
        (partly, "head_terms", lambda *_: []),
    ],
)
def test_a_planted_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any
) -> None:
    spec = small("mixtral-8x7b")
    setup = Setup(optimizer="sgd", freeze=("layers.0", "embed_tokens", "down_proj"))
    counted, found = both(spec, workload(spec, 3, 5), setup)
    assert_equal(counted, found)
    monkeypatch.setattr(owner, name, wrong)
    assert count_step(spec, workload(spec, 3, 5), setup).activation_bytes != found.activation_bytes


def test_adapters_outside_of_layers_are_not_for_muon() -> None:
    """The dense layer before BERT's head and the pooler, whose adapters have no gradient."""
    spec = small("bert-base").replace(has_head=True, head_transform=True)
    setup = Setup(lora_rank=3, lora_targets=("dense", "q_proj"), optimizer="muon")
    counted, found = both(spec, workload(spec, 3, 5), setup)
    assert_equal(counted, found)
    rank, d, head = 3, spec.d_model, spec.n_heads * spec.head_dim
    queries = spec.n_layers * rank * (d + head)
    # Muon's momentum in 2 bytes; AdamW's two moments and a counter for each of two tensors
    assert counted.optimizer_bytes == 2 * queries + 2 * 2 * rank * 2 * d + 2 * 4
    assert counted.params - spec_params(spec) == queries + 2 * rank * 2 * d


def test_a_hybrid_has_formulas_of_what_is_stored() -> None:
    spec, work = small("jamba-1.5-mini"), Workload(seq_len=5)
    setup = Setup(freeze=("mamba", "layers.1"), optimizer="adafactor")
    counted = count_step(spec, work, setup)
    found = train_reference(build(spec, dtype="bf16"), ("", ""), work, setup)
    for name in ("gradient_bytes", "optimizer_bytes", "trainable_params", "matmul_flops"):
        assert getattr(counted, name) == getattr(found, name), name
    assert counted.backward_matmul_flops is None
    why = counted.uncovered["backward_matmul_flops"]
    assert why.startswith("recurrent has no formula where a part of the model is trained")


@daily(2)
@pytest.mark.parametrize(
    "more", [("--lora-rank", "4"), ("--freeze", "embed_tokens,decoder.layers.0.mlp")]
)
def test_the_command_counts_what_it_measures(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    line = ("train", "gpt2", "--set", "n_layers=2", "--seq", "16", *more)
    measured, counted = run_json(capsys, *line), run_json(capsys, *line, "--formula")
    for key in (*COMPARED, "params", "trainable_params", "setup"):
        assert counted[key] == measured[key], key
    assert counted["uncovered"].keys() >= {"activation_bytes_of_block"}
    text = run(capsys, *line, "--formula")
    assert f" {counted['backward_matmul_flops']:,} " in text
    assert "formula  equal: param_bytes, gradient_bytes, optimizer_bytes, activation_bytes," in (
        run(capsys, *line)
    )


@pytest.mark.parametrize("name", ["gpt2", "llama-7b"])
def test_a_fused_kernel_keeps_its_result_for_itself(name: str) -> None:
    """The projection behind it is frozen, so nothing else keeps the result."""
    spec = small(name)
    freeze = tuple(path for path in tensors_by_path(spec) if ".q_proj." not in path)
    setup = Setup(optimizer="sgd", attention="flash", freeze=freeze)
    assert_equal(*both(spec, workload(spec, 3, 5), setup))
