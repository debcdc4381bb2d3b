"""A step that trains a part of a model: what it multiplies and keeps, by formula and measured."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.random_specs import specs
from helpers.release import chosen, one_in
from helpers.steps import (
    Uncovered,
    all_but,
    both,
    compare,
    differing,
    without_formula,
    workload,
)
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount import Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import ends, feed_forward
from metacount.formulas.part import Part, chosen_tensors, tensors_by_path
from metacount.formulas.tape import Tape
from metacount.spec import ModelSpec
from metacount.textbook.training.chosen import count_step

STRUCTURES = with_logits()


def small(name: str, **changes: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changes)


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
]


def once(number: int) -> bool:
    """Whether every run tries a case: one of every second structure, all parts, all ways."""
    structure, part = divmod(number, len(PARTS))
    return structure % 2 == 0 and part == structure // len(WAYS) % len(PARTS)


def named_in(spec: ModelSpec, part: str) -> dict[str, Any]:
    """A part of a model, of whose names it has those that this model knows."""
    choices, paths = dict(PARTS[part]), [f".{path}." for path in tensors_by_path(spec)]
    if spec.head is not None and spec.head.tied:
        paths.append(".lm_head.")
    for field in {"lora_targets", "freeze"} & choices.keys():
        known = (name for name in choices[field] if any(f".{name}." in path for path in paths))
        choices[field] = tuple(known) or ("all-linear",)
    return choices


@pytest.mark.parametrize(("name", "part", "way"), chosen(CASES, once))
def test_each_structure(name: str, part: str, way: tuple[str, str, str, int]) -> None:
    spec, (attention, checkpointing, dtype, batch_size) = STRUCTURES[name], way
    how = {"checkpointing": checkpointing, "optimizer": "sgd-momentum", **named_in(spec, part)}
    if without_formula(spec, attention):
        with pytest.raises(Uncovered, match="has no formula"):
            compare(spec, (batch_size, 11), dtype, attention=attention, **how)
        attention = "eager"
    if not without_formula(spec, attention):
        compare(spec, (batch_size, 11), dtype, attention=attention, **how)


MIXERS = {
    "lfm2-1.2b": {"mixer_pattern": "R"},
    "recurrentgemma-2b": {"mixer_pattern": "R"},
    "minimax-text-01": {"mixer_pattern": "R"},
    "mamba-2.8b": {},
    "falcon-mamba-7b": {},
    "jamba-1.5-mini": {"mixer_pattern": "R", "ffn_pattern": "F"},
    "mamba2-130m": {},
    "falcon-h1-0.5b": {},
    "qwen3-next-80b-a3b": {"mixer_pattern": "R"},
    "kimi-linear-48b-a3b": {"mixer_pattern": "R", "n_dense_layers": 0},
    "deepseek-v3.2": {"n_dense_layers": 0},
    "minimax-m3-text": {"n_dense_layers": 0, "index_pattern": "I"},
}


@pytest.mark.parametrize("name", one_in(4, MIXERS))
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_one_tensor_of_a_mixer(name: str, checkpointing: str) -> None:
    """Of one block; with nothing below it that is trained, and with the table."""
    spec = small(name, n_layers=1, **MIXERS[name])
    seen = chosen_tensors(spec, Part()).trained
    for alone in tensors_by_path(spec):
        beside = () if checkpointing == "none" else (".embed_tokens.",)
        if alone in seen and ".layers.0." in alone and ".mlp." not in alone:
            freeze = all_but(spec, f".{alone}.", *beside)
            compare(spec, (2, 7), checkpointing=checkpointing, freeze=freeze)


# of TINY's blocks: what is another than there, and what is frozen
FROZEN: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    # a result that is read again has four bytes a value
    ({}, ("embed_tokens", "k_proj")),
    ({"position": "t5", "n_buckets": 4, "max_distance": 8}, ("embed_tokens", "mlp")),
    # two norms that have the same x, and no weights
    ({"norm_placement": "parallel_two", "norm_affine": False}, ("q_proj",)),
    # branches that read one input
    *(
        ({"norm_placement": placement}, (frozen,))
        for placement in ("parallel", "parallel_two")
        for frozen in ("self_attn", "mlp", "q_proj")
    ),
]


@pytest.mark.parametrize(("changes", "freeze"), FROZEN)
@pytest.mark.parametrize("checkpointing", ["none", "selective"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_frozen_parts(
    changes: dict[str, Any], freeze: tuple[str, ...], checkpointing: str, attention: str
) -> None:
    spec = ModelSpec.from_dict({**TINY, **changes})
    for dtype in ("bf16", "fp32"):
        how = {"checkpointing": checkpointing, "attention": attention, "freeze": freeze}
        compare(spec, (2, 5), dtype, **how)


MIXTURE = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
SHARED = {**MIXTURE, "n_shared_experts": 1, "shared_expert_gate": True}
FIRST = "decoder.layers.0.self_attn"
FACTORS = {"attention_out_scale": 0.5, "gate_scale": 3.0, "ffn_scale": 2.0, "residual_weight": 0.7}
BELOW = ("embed_tokens", "layers.0")
# a model and what is another than in it, what of it is trained alone, and the setup
STEPS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    # what shared experts repeat
    *(
        ("", SHARED, f".mlp.{alone}.", {"checkpointing": "full"})
        for alone in ("shared_expert_gate", "shared_experts.down_proj")
    ),
    # one projection of the first block
    *(
        ("", {"attention_softcap": softcap}, f"{FIRST}.{alone}.", {})
        for alone in ("q_proj", "k_proj", "v_proj")
        for softcap in (None, 30.0)
    ),
    # with one head the kernel's result is what o_proj reads; of more it is copied
    *(
        ("deepseek-v2", {"n_heads": n_heads}, f"{FIRST}.{alone}.", {"attention": "flash"})
        for alone in ("o_proj", "kv_b_proj")
        for n_heads in (1, 6)
    ),
    # the projection behind the kernel is frozen, so nothing else keeps its result
    ("gpt2", {}, ".q_proj.", {"attention": "flash"}),
    ("llama-7b", {}, ".q_proj.", {"attention": "flash"}),
    # factors and an indexer keep nothing
    ("llama-7b", FACTORS, "", {"checkpointing": "full", "freeze": (*BELOW, "v_proj")}),
    ("deepseek-v3.2", {}, "", {"checkpointing": "full", "freeze": (*BELOW, "kv_a_proj_with_mqa")}),
    *(
        (name, changes, "", {"checkpointing": "full", **PARTS["adapters of all"]})
        for name, changes in (("llama-7b", FACTORS), ("deepseek-v3.2", {}))
    ),
    # hybrids
    ("jamba-1.5-mini", {}, "", {"freeze": ("mamba", "layers.1"), "optimizer": "adafactor"}),
    *(
        (name, {}, "", {"optimizer": "adafactor", **PARTS["adapters of all"]})
        for name in ("jamba-1.5-mini", "kimi-linear-48b-a3b", "deepseek-v3.2")
    ),
    # through layers with an index and without
    *(
        ("minimax-m3-text", {}, alone, {"checkpointing": "full"})
        for alone in ("embed_tokens", "lm_head")
    ),
]


@pytest.mark.parametrize(("model", "changes", "alone", "how"), STEPS)
def test_a_step(model: str, changes: dict[str, Any], alone: str, how: dict[str, Any]) -> None:
    spec = small(model, **changes) if model else ModelSpec.from_dict({**TINY, **changes})
    compare(spec, (3, 5), **how, **({"freeze": all_but(spec, alone)} if alone else {}))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_an_encoder_that_reads_as_much_as_its_decoder(checkpointing: str) -> None:
    kind = {"kind": "encoder-decoder", "n_encoder_layers": 2, "n_layers": 2}
    spec = ModelSpec.from_dict({**TINY, **kind})
    setup = Setup(checkpointing=checkpointing, freeze=all_but(spec, "embed_tokens"))
    work = Workload(batch_size=2, seq_len=5, source_len=5, dtype="bf16")
    assert differing(*both(spec, work, setup)) == {}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    specs(),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 5]),
    st.sampled_from(
        list(itertools.product(("eager", "flash", "sdpa"), ("none", "full", "selective")))
    ),
    st.sampled_from(["bf16", "fp32", "fp64"]),
    st.randoms(use_true_random=False),
)
def test_any_part_of_any_model(
    spec: ModelSpec,
    batch_size: int,
    seq_len: int,
    way: tuple[str, str],
    dtype: str,
    chance: random.Random,
) -> None:
    """All of it, one tensor to four, or adapters of one to four layers."""
    assume(spec.head is not None and spec.embedding is not None)
    paths = sorted(tensors_by_path(spec))
    some = set(chance.sample(paths, chance.randint(1, min(4, len(paths)))))
    linear = chosen_tensors(spec, Part(rank=1, targets=("all-linear",))).stored
    names = sorted({path.split(".")[-2] for path in linear if path.endswith("lora_a")})
    adapters = {
        "lora_rank": 2,
        "lora_targets": tuple(chance.sample(names, min(len(names), chance.randint(1, 4)))),
        "freeze": chance.choice(((), ("lora_a",), ("layers.0",))),
    }
    alone = {"freeze": tuple(path for path in paths if path not in some)}
    choices: dict[str, Any] = chance.choice(({}, alone, adapters))
    setup = Setup(optimizer="sgd", attention=way[0], checkpointing=way[1], **choices)
    try:
        figures = both(spec, workload(spec, batch_size, seq_len, dtype), setup)
    except Uncovered as error:
        assert "has no formula" in str(error) or "is of a kernel for 16-bit" in str(error)
        assume(False)
    except SpecError as error:
        assert "leaves nothing to train" in str(error)
        assume(False)
    assert differing(*figures) == {}


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


def test_what_lies_below_the_lowest_trained_layer_costs_nothing() -> None:
    work, below = Workload(batch_size=3, seq_len=11), (*BELOW, "layers.1")
    for checkpointing in ("none", "full"):
        upper, all_blocks = (
            count_step(
                small("llama-7b", n_layers=n),
                work,
                Setup(freeze=freeze, checkpointing=checkpointing),
            )
            for n, freeze in ((5, below), (3, BELOW[:1]))
        )
        # its blocks 2 to 4 are the other's 0 to 2
        assert upper.backward_matmul_flops == all_blocks.backward_matmul_flops
        assert upper.activation_bytes == all_blocks.activation_bytes
        assert upper.recompute_matmul_flops == all_blocks.recompute_matmul_flops


def test_adapters_outside_of_layers_are_not_for_muon() -> None:
    """The dense layer before BERT's head and the pooler, whose adapters have no gradient."""
    spec = small("bert-base", has_head=True, head_transform=True)
    setup = Setup(lora_rank=3, lora_targets=("dense", "q_proj"), optimizer="muon")
    counted, found = both(spec, workload(spec, 3, 5), setup)
    assert differing(counted, found) == {}
    rank, d, head = 3, spec.d_model, spec.n_heads * spec.head_dim
    queries = spec.n_layers * rank * (d + head)
    # Muon's momentum in 2 bytes; AdamW's two moments and a counter for each of two tensors
    assert counted.optimizer_bytes == 2 * queries + 2 * 2 * rank * 2 * d + 2 * 4
    stored = sum(weight.size for weight in tensors_by_path(spec).values())
    assert counted.params - stored == queries + 2 * rank * 2 * d


def test_what_has_no_formula_is_said() -> None:
    bare = count_step(small("llama-7b", has_head=False), Workload(seq_len=8), Setup())
    rule = "has_head has no formula for training: without logits"
    assert bare.uncovered["activation_bytes"].startswith(rule)
    part = count_step(small("gpt2"), Workload(seq_len=8), Setup(freeze=("embed_tokens",)))
    rule = "freeze has no formula of what one block keeps: got 'embed_tokens'"
    assert part.uncovered["activation_bytes_of_block"].startswith(rule)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "all is trained": (Tape, "is_trained", lambda tape, name: True),
    "norms save nothing": (Tape, "norm", lambda tape, x, name, norms, **_: x),
    "experts save nothing": (feed_forward, "experts", lambda tape, part, like, x, name: x),
    "no loss": (ends, "loss", lambda tape, logits: None),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_error_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(optimizer="sgd", freeze=(*BELOW, "down_proj"))
    counted, found = both(small("mixtral-8x7b"), Workload(batch_size=3, seq_len=5), setup)
    assert differing(counted, found) == {}
    monkeypatch.setattr(*PLANTED[mistake])
    again = count_step(small("mixtral-8x7b"), Workload(batch_size=3, seq_len=5), setup)
    assert again.activation_bytes != found.activation_bytes
