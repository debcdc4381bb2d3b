"""Claims in letters: the exact formula against sizes of tensors, at small distinct primes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from helpers.changed_claims import ALL, verdict_on, with_options

from metacount import catalog
from metacount.errors import SpecError
from metacount.spec import legend
from metacount.teaching.claims import judge_claim
from metacount.teaching.parts import PARTS
from metacount.teaching.texts import CONDITIONAL, RIGHT, WRONG, evaluated

# two sets of sizes, no two of which are equal
LETTERS = "d m m_e h h_kv h_d E k N V d_c d_r"
PRIMES = [
    dict(zip(LETTERS.split(), sizes, strict=True))
    for sizes in (
        (13, 17, 19, 6, 2, 5, 7, 3, 11, 101, 23, 29),
        (31, 37, 41, 15, 3, 7, 43, 4, 2, 47, 53, 59),
    )
]


def numel(*shapes: tuple[int, ...]) -> int:
    """Values in tensors of these shapes."""
    total = 0
    for shape in shapes:
        n = 1
        for size in shape:
            n *= size
        total += n
    return total


def attention(s: dict[str, int]) -> int:
    q, kv = s["h"] * s["h_d"], s["h_kv"] * s["h_d"]
    return numel((q, s["d"]), (kv, s["d"]), (kv, s["d"]), (s["d"], q))


def qwen3_ends(s: dict[str, int]) -> int:
    return numel((s["V"], s["d"]), (s["V"], s["d"]), (s["d"],))


def qwen3_norms(s: dict[str, int]) -> int:
    return numel((s["d"],), (s["d"],), (s["h_d"],), (s["h_d"],))


def swiglu(s: dict[str, int], width: str) -> int:
    return numel((s[width], s["d"]), (s[width], s["d"]), (s["d"], s[width]))


TRUTH: dict[str, Callable[[dict[str, int]], int]] = {
    "attention-4d2": attention,
    "ffn-gelu-8d2": lambda s: numel((s["m"], s["d"]), (s["d"], s["m"])),
    "ffn-swiglu-3dm": lambda s: swiglu(s, "m"),
    "block-gelu-12d2": lambda s: attention(s) + numel((s["m"], s["d"]), (s["d"], s["m"])),
    "block-swiglu-16d2": lambda s: attention(s) + swiglu(s, "m"),
    "relu-ffn-bias": lambda s: numel((s["m"], s["d"]), (s["m"],), (s["d"], s["m"]), (s["d"],)),
    "qwen2-attention": lambda s: (
        attention(s) + numel((s["h"] * s["h_d"],), (s["h_kv"] * s["h_d"],), (s["h_kv"] * s["h_d"],))
    ),
    # the latent and the rotated key, in each layer
    "mla-cache-dc": lambda s: s["N"] * numel((s["d_c"],), (s["d_r"],)),
    "moe-params": lambda s: s["E"] * swiglu(s, "m_e") + numel((s["E"], s["d"])),
    # a product [1, a] @ [a, b] takes 2·a·b FLOPs: each weight that is met counts twice
    "moe-flops-k3dm": lambda s: 2 * (s["k"] * swiglu(s, "m_e") + numel((s["E"], s["d"]))),
    "moe-flops-independent-of-E": lambda s: 2 * (swiglu(s, "m_e") + numel((s["E"], s["d"]))),
    "qwen3-dense-others": lambda s: numel(*[(s["d"],)] * (2 * s["N"] + 1)),
    "qwen3-moe-active-formula": lambda s: (
        qwen3_ends(s)
        + s["N"] * (attention(s) + qwen3_norms(s) + s["k"] * swiglu(s, "m_e") + s["E"] * s["d"])
    ),
    "qwen3-moe-total-formula": lambda s: (
        qwen3_ends(s)
        + s["N"] * (attention(s) + qwen3_norms(s) + s["E"] * (swiglu(s, "m_e") + s["d"]))
    ),
    "qwen3-dense-formula": lambda s: (
        qwen3_ends(s) + s["N"] * (attention(s) + qwen3_norms(s) + swiglu(s, "m"))
    ),
}


@pytest.mark.parametrize(("id", "sizes"), [*product(TRUTH, PRIMES)])
def test_the_exact_formula_counts_tensors(id: str, sizes: dict[str, int]) -> None:
    formula = verdict_on(id).correct.replace("·", "*").replace("²", "**2")
    assert evaluated(formula, sizes) == TRUTH[id](sizes)


@pytest.mark.parametrize(
    ("id", "formula", "verdict"),
    [
        # an output gate is as wide as the queries (Qwen3-Next): one matrix more
        ("attention-4d2", "2*d_model*head_dim*(n_heads + n_kv_heads)", CONDITIONAL),
        ("ffn-gelu-8d2", "2*d_model*d_ff", RIGHT),
        ("ffn-gelu-8d2", "2*d_model*d_ff + d_model", WRONG),
        ("ffn-swiglu-3dm", "2*d_model*d_ff", WRONG),
        ("ffn-swiglu-3dm", "8*d_model**2", CONDITIONAL),
        ("relu-ffn-bias", "2*d_model*d_ff", WRONG),
        ("qwen2-attention", "4*d_model**2", CONDITIONAL),
        # an indexer keeps keys of its own (DeepSeek-V3.2)
        ("mla-cache-dc", "n_layers*(kv_lora_rank + qk_rope_head_dim)", CONDITIONAL),
        ("moe-params", "n_experts*3*d_model*d_ff_expert", WRONG),
        ("moe-flops-k3dm", "6*top_k*d_model*d_ff_expert + 2*d_model*n_experts", CONDITIONAL),
        ("qwen3-dense-others", "n_layers*2*d_model + d_model", RIGHT),
    ],
)
def test_another_formula_gets_another_verdict(id: str, formula: str, verdict: str) -> None:
    assert judge_claim(with_options(id, formula=formula)).verdict == verdict


def test_blocks_are_not_said_of_hybrids() -> None:
    # a block of Falcon-H1 has a Mamba-2 mixer besides
    for id in ("block-swiglu-16d2", "block-gelu-12d2"):
        told = " ".join(verdict_on(id).computation)
        assert not any(one in told for one in ("falcon-h1", "lfm2", "bamba", "kimi-linear"))
    # index keys of DeepSeek-V3.2; of Kimi Linear every fourth layer is MLA
    of_latents = verdict_on("mla-cache-dc")
    latents = [one.id for one in catalog.entries() if one.sizes and one.spec().attention == "mla"]
    assert f"of {len(latents)} models" in of_latents.reason
    assert of_latents.computation[-1] == (
        "counted by another formula: deepseek-v3.2, kimi-linear-48b-a3b"
    )
    for part in ("layer", "layers", "layer_matrices", "layers_vectors", "width_norms"):
        with pytest.raises(SpecError):
            PARTS[part](catalog.entry("falcon-h1-0.5b").spec())


OFF = re.compile(r"([a-z][\w.-]+) ([+-][\d.]+) %")
IN_REASON = re.compile(r"by ([+-][\d.]+) % for ([\w.-]+\w)")
LISTED = re.compile(r"equal in the catalog|stated less exact|counted by another formula")


def _at(formula: str, id: str) -> Fraction:
    """A formula in letters or names at the sizes of a model."""
    for power, digit in zip("²³", "23", strict=True):
        formula = formula.replace(power, f"**{digit}")
    sizes = {name: Fraction(n or 0) for name, n in _sizes(id).items()}
    return Fraction(eval(formula.replace("·", "*"), {"__builtins__": {}}, sizes))


def _sizes(id: str) -> dict[str, int | None]:
    spec = catalog.entry(id).spec()
    named = {term.name: getattr(spec, term.name) for term in legend.MODEL_TERMS}
    return named | {term.letter: named[term.name] for term in legend.MODEL_TERMS}


@pytest.mark.parametrize(
    "id", [claim.id for claim in ALL.values() if claim.judge == "part_formula"]
)
def test_a_sentence_and_its_table_are_of_one_formula(id: str) -> None:
    verdict = verdict_on(id)
    stated = ALL[id].options["formula"]
    told = [(m, off) for line in verdict.computation for m, off in OFF.findall(line)]
    told += [(m, off) for off, m in IN_REASON.findall(verdict.reason)]
    for model, off in told:
        exact = _at(verdict.correct, model)
        ratio = 100 * (_at(stated, model) - exact) / exact
        digits = len(off.partition(".")[2])
        assert round(ratio, digits) == Fraction(off), model
    # every model is in one of the lists, and the sentence says of how many
    lists = [line.partition(": ")[2] for line in verdict.computation if LISTED.match(line)]
    names = [one.partition(" ")[0] for text in lists for one in text.split(", ")]
    named = [name for name in names if name != "none"]
    assert len({*named}) == len(named)
    number = re.search(r"of (?:all of )?(\d+) models", verdict.reason)
    assert number is None or int(number[1]) == len(named)
    for model in lists[0].split(", "):
        if model != "none":
            assert _at(stated, model) == _at(verdict.correct, model), model


@pytest.mark.parametrize(
    "id", [claim.id for claim in ALL.values() if claim.judge == "whole_formula"]
)
def test_a_formula_of_a_whole_model_and_its_numbers(id: str) -> None:
    verdict, model = verdict_on(id), str(ALL[id].model)
    exact, stated = (int(_at(f, model)) for f in (verdict.correct, ALL[id].options["formula"]))
    lines = verdict.computation
    assert any(line.endswith(f": exact {exact:,}, stated {stated:,}") for line in lines)
    assert stated == exact or f"{abs(stated - exact):,}" in verdict.reason
    assert stated == exact or any(line.endswith(f"= {stated - exact:+,}") for line in lines)


def test_a_formula_is_read_strictly() -> None:
    with pytest.raises(ValueError, match="sizes"):
        evaluated("__import__('os')", {})
    with pytest.raises(ValueError, match="sizes"):
        evaluated("2.5*d_model", {"d_model": 2})
