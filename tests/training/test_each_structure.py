"""A step of every structure of the catalog, by formula and measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.release import chosen, daily
from helpers.steps import Uncovered, assert_equal, both, workload
from helpers.structures import with_logits

from metacount import Setup
from metacount.catalog import entry
from metacount.spec import ModelSpec
from metacount.spec.attention import NoAttention


def short(spec: ModelSpec) -> ModelSpec:
    """Three layers where all are of a kind; shared blocks used more often than they are stored."""
    if spec.last_stack.shared is not None:
        return spec.replace(n_layers=5)
    kinds = {
        (
            spec.last_stack.mixer_of(index),
            spec.last_stack.ffn_of(index),
            spec.is_moe_layer(index),
            spec.is_windowed_layer(index),
            spec.has_rope_layer(index),
            spec.has_index_layer(index),
        )
        for index in range(spec.n_layers)
    }
    return spec.replace(n_layers=3) if len(kinds) == 1 else spec


SPECS = {name: short(spec) for name, spec in with_logits().items()}
STRUCTURES = tuple(SPECS)
# of what they compute again, no other structure says anything
BY_THEMSELVES = [
    name
    for name, spec in SPECS.items()
    if spec.recurrent != "none" or spec.position == "transformer_xl" or spec.n_index_heads
]
# attention, checkpointing, dtype, batch size; of each structure every run tries one
WAYS = [
    (attention, checkpointing, "bf16" if attention == "flash" else dtype, batch_size)
    for (dtype, batch_size), checkpointing, attention in itertools.product(
        (("bf16", 3), ("fp32", 1)), ("full", "none", "selective"), ("eager", "flash", "sdpa")
    )
]


def once(number: int) -> bool:
    """Whether every run tries a case: one way of each structure; of mixers, what is run again."""
    structure, way = divmod(number, len(WAYS))
    if SPECS[STRUCTURES[structure]].last_stack.shared is not None:
        return way in (0, 3 + structure % 3, 12)  # full, and none in two ways
    if STRUCTURES[structure] in BY_THEMSELVES:
        return way == (0, 9)[structure % 2]  # what they keep: tests/training/test_kept_of_mixers.py
    return way == structure % len(WAYS)


@daily(20)
@pytest.mark.parametrize(("name", "way"), chosen(itertools.product(STRUCTURES, WAYS), once))
def test_a_step(name: str, way: tuple[str, str, str, int]) -> None:
    attention, checkpointing, dtype, batch_size = way
    spec = SPECS[name]
    work = workload(spec, batch_size, 11, dtype)
    setup = Setup(optimizer="sgd", attention=attention, checkpointing=checkpointing)
    if without_formula(spec, attention, checkpointing):
        with pytest.raises(Uncovered, match="has no formula"):
            both(spec, work, setup)
        return
    assert_equal(*both(spec, work, setup))


def without_formula(spec: ModelSpec, attention: str, checkpointing: str) -> bool:
    """Whether what such a step keeps has no formula."""
    indexed, last = spec.n_index_heads is not None, spec.last_stack
    if last.altup is not None:
        return True
    if checkpointing == "selective" and (
        spec.recurrent != "none" or indexed or spec.position == "transformer_xl"
    ):
        return True
    if attention == "eager" or isinstance(last.attention, NoAttention):
        return False
    if spec.attention_sinks or spec.attention_softcap or indexed:
        return True
    biased = spec.position in ("alibi", "t5", "transformer_xl")
    return attention == "flash" and (
        biased or spec.kind == "prefix-decoder" or spec.window_kind == "chunked"
    )


# layers of other kinds side by side than the models of the catalog have, five of them
PATTERNS: list[tuple[str, dict[str, Any]]] = [
    ("olmo-hybrid-7b", {"mixer_pattern": "RRA", "ffn_pattern": "NF"}),
    ("olmo-hybrid-7b", {"mixer_pattern": "RAN"}),
    ("olmo-hybrid-7b", {"mixer_pattern": "RAP", "ffn_pattern": "FFFNN"}),
    (
        "olmo-hybrid-7b",
        {"n_experts": 4, "top_k": 2, "d_ff_expert": 7, "n_shared_experts": 1, "d_ff": None},
    ),
    ("jamba-1.5-mini", {"mixer_pattern": "RP"}),
    ("jamba-1.5-mini", {"mixer_pattern": "RAN", "ffn_pattern": "NFE"}),
    ("jamba-1.5-mini", {"mixer_pattern": "NAR", "ffn_pattern": "EFN"}),
    ("falcon-h1-0.5b", {"mixer_pattern": "PA", "ffn_pattern": "NFN"}),
    ("llama-7b", {"mixer_pattern": "AAN", "ffn_pattern": "NFF"}),
    ("mixtral-8x7b", {"ffn_pattern": "ENFEF", "d_ff": 17}),
    *(
        ("glm-4.5", {"norm_placement": placement, "n_mtp_layers": None})
        for placement in ("post", "deep", "sandwich", "parallel", "parallel_two", "post_branch")
    ),
    ("deepseek-v3", {"n_dense_layers": 2, "d_ff_shared": 11, "n_shared_experts": 3}),
]


@daily(17)
@pytest.mark.parametrize(("name", "changed"), PATTERNS)
def test_kinds_of_layers_side_by_side(name: str, changed: dict[str, Any]) -> None:
    spec = miniature(entry(name).spec()).replace(**changed)
    for checkpointing in ("full", "none"):
        setup = Setup(optimizer="sgd", checkpointing=checkpointing)
        assert_equal(*both(spec, workload(spec, 2, 5), setup))


@daily(2)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_pooler_is_not_computed_again(checkpointing: str) -> None:
    spec = miniature(entry("bert-base").spec()).replace(has_head=True)
    assert spec.pooler
    setup = Setup(optimizer="sgd", checkpointing=checkpointing)
    assert_equal(*both(spec, workload(spec, 3, 11), setup))


DOUBLE = ["deepseek-v2", "mixtral-8x7b", "gpt2"]


@daily(5)
@pytest.mark.parametrize(
    ("name", "d_model"),
    [("chinchilla-70b", 13), ("chinchilla-70b", 14), *((name, 13) for name in DOUBLE)],
)
def test_in_double_precision(name: str, d_model: int) -> None:
    spec = miniature(entry(name).spec()).replace(d_model=d_model)
    assert_equal(*both(spec, workload(spec, 2, 5, "fp64"), Setup(optimizer="sgd")))
