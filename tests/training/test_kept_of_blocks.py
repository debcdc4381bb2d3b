"""What the blocks of small models keep, by formula and measured: each rule of `kept_model` once."""

from __future__ import annotations

import pytest
from helpers.miniatures import TINY, miniature
from helpers.release import daily
from helpers.steps import assert_equal, both, workload

from metacount import Setup, SpecError, Workload
from metacount.catalog import entry
from metacount.formulas.forward import Pass
from metacount.formulas.kept_model import block_terms, kept_terms
from metacount.spec import DTYPE_BYTES, ModelSpec
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import block_bytes
from metacount.textbook.training.blocks import block_numbers

# with the type that they are trained in
MODELS: dict[str, tuple[ModelSpec, str]] = {
    "two norms that keep one x": (
        ModelSpec.from_dict({**TINY, "norm_placement": "parallel_two"}),
        "fp32",
    ),
    "two norms that keep each its own": (
        ModelSpec.from_dict({**TINY, "norm_placement": "parallel_two"}),
        "bf16",
    ),
    "two layer norms": (
        ModelSpec.from_dict({**TINY, "norm_placement": "parallel_two", "norm": "layernorm"}),
        "fp32",
    ),
    "norms around three branches": (
        miniature(entry("t5-base").spec()).replace(norm_placement="sandwich"),
        "bf16",
    ),
    "a shared block": (miniature(entry("zamba2-1.2b").spec()).replace(n_layers=5), "bf16"),
    "mixers of two kinds, experts": (miniature(entry("jamba-1.5-mini").spec()), "bf16"),
    "both mixers in a block": (miniature(entry("falcon-h1-0.5b").spec()), "bf16"),
    "some rotate, some have no attention": (
        ModelSpec.from_dict({**TINY, "n_layers": 5, "mixer_pattern": "ANA", "nope_every": 2}),
        "bf16",
    ),
    "positions of queries": (miniature(entry("pangu-alpha-207b").spec()), "bf16"),
}


@daily(20)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch_size", "seq_len"), [(3, 5), (3, 1), (1, 5)])
def test_formula_is_what_is_measured(name: str, batch_size: int, seq_len: int) -> None:
    spec, dtype = MODELS[name]
    assert_equal(*both(spec, workload(spec, batch_size, seq_len, dtype), Setup()))


@daily(9)
@pytest.mark.parametrize("name", MODELS)
def test_a_block_is_what_a_model_keeps_more_with_it(name: str) -> None:
    spec, dtype = MODELS[name]
    work = workload(spec, 3, 5, dtype)
    run = Pass(
        batch_size=3, seq_len=5, source_len=work.source_len, bytes_per_value=DTYPE_BYTES[dtype]
    )
    blocks = block_bytes(spec, run)
    kept, formula = [], []
    for n_layers in range(spec.n_layers, max(1, spec.n_layers - 3), -1):
        fewer = spec.replace(n_layers=n_layers)
        kept.append(both(fewer, work, Setup())[1].activation_bytes)
        formula.append(sum(n * blocks[kind] for kind, n in block_numbers(fewer).items()))
    assert len(kept) > 1
    assert [kept[0] - one for one in kept] == [formula[0] - one for one in formula]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_listed_that_is_not_there(name: str) -> None:
    spec = MODELS[name][0]
    run = Pass(batch_size=3, seq_len=5, source_len=7 if spec.has_encoder else None)
    assert all(term.times for term in kept_terms(spec, run))


def by_name(spec: ModelSpec, run: Pass) -> dict[str, int]:
    """Bytes of the terms of each name."""
    kept: dict[str, int] = {}
    for term in kept_terms(spec, run):
        kept[term.name] = kept.get(term.name, 0) + int(term.bytes)
    return kept


def test_a_norm_that_is_not_there_is_taken_from_the_norms() -> None:
    """Term by term: what a model without its first norm keeps is nowhere less than nothing."""
    spec = ModelSpec.from_dict({**TINY, "first_norm": False})
    assert min(by_name(spec, Pass(batch_size=3, seq_len=5)).values()) > 0


def test_two_norms_of_one_input_keep_it_once() -> None:
    spec = ModelSpec.from_dict({**TINY, "norm_placement": "parallel_two"})
    kept = by_name(spec, Pass(batch_size=3, seq_len=5, bytes_per_value=4))
    one = 3 * 5 * spec.d_model * 4
    assert kept["norm: x"] == spec.n_layers * one
    assert kept["norm: normed"] == 2 * spec.n_layers * one


def test_what_has_no_formula_is_refused() -> None:
    run = Pass(batch_size=3, seq_len=5)
    windows = {"position": "alibi", "window": 3, "window_pattern": "LG"}
    with pytest.raises(SpecError, match="window_pattern"):
        block_terms(ModelSpec.from_dict({**TINY, **windows}), run, 5, rotated=False)
    some = {"n_layers": 5, "mixer_pattern": "ANA", "nope_every": 2}
    with pytest.raises(SpecError, match="nope_every"):
        closed_form(ModelSpec.from_dict({**TINY, **some}), Workload(seq_len=8), "activation_bytes")
