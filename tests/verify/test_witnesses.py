"""Formula == reference == published, for every model of the catalog and for random models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from re import sub
from typing import Any

import pytest
from helpers.miniatures import WORKLOAD, assert_full, miniature
from helpers.random_models import changed, workloads
from helpers.release import ONLY, one_in
from helpers.structures import every_structure, miniatures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metacount import catalog
from metacount.formulas import block, model, mtp
from metacount.formulas.step import tensors_by_path
from metacount.formulas.tape import Tape, Tensor, Weight
from metacount.modules.build import build, build_prediction
from metacount.spec import ModelSpec, Workload
from metacount.verify import compare as witnesses

BUILDABLE = [e for e in catalog.entries() if e.sizes is not None]
LLAMA_7B = catalog.entry("llama-7b").spec()


@pytest.mark.parametrize("entry", one_in(13, BUILDABLE), ids=lambda e: e.id)
def test_every_model_of_the_catalog_at_its_published_sizes(entry: catalog.CatalogEntry) -> None:
    result = witnesses.verify(entry.id, entry.spec(), Workload(seq_len=128), entry=entry)
    assert result.differences == ()
    assert [w.name for w in result.witnesses[:2]] == ["formula", "reference"]


STRUCTURES = every_structure()
OTHERS = [e.id for e in BUILDABLE if e.id not in STRUCTURES]


def run_of(spec: ModelSpec) -> Workload:
    source = {"source_len": 7} if spec.has_encoder else {}
    prefix = {"prefix_len": 5} if spec.kind == "prefix-decoder" else {}
    return Workload(batch_size=2, seq_len=11, dtype="fp32", **source, **prefix)


def is_called(full: str, name: str) -> bool:
    """Whether a full name ends in the formula's, which says of norms only what they are."""
    before = "._" if name.startswith("layernorm.") else "."
    return any(
        f".{full}".endswith(tuple(f"{dot}{name}{end}" for dot in before)) for end in ("", ".weight")
    )


def unmatched(module: Any, weights: Iterable[Weight]) -> tuple[set[str], dict[str, Any]]:
    """What the formula has and the module has not, by name and shape, and the other way round.

    What the formula has n times is n tensors, or fewer with more axes, as a mixture's experts.
    """
    left = {name: tuple(tensor.shape) for name, tensor in module.named_parameters()}
    asked = Counter[tuple[str, Any]]()
    for weight in weights:
        asked[weight.name, weight.shape] += weight.times * prod(weight.shape)
    missing = set()
    for (name, shape), size in sorted(asked.items(), key=lambda one: -len(one[0][0])):
        of_name = [full for full in left if is_called(sub(r"\.\d+", "", full), name)]
        taken = [full for full in of_name if left[full][-len(shape) :] == shape]
        if sum(prod(left[full]) for full in taken) != size:
            missing.add(name)
            continue
        for full in taken:
            del left[full]
    return missing, left


def assert_alike(spec: ModelSpec, workload: Workload) -> None:
    """All figures, by role, and each product in its order; the tensors by path, shape, name."""
    assert witnesses.verify("small", spec, workload).differences == ()
    module, counted = build(spec), tensors_by_path(spec)
    stored = {path: tuple(tensor.shape) for path, tensor in module.named_parameters()}
    assert {path: weight.shape for path, weight in counted.items()} == stored
    assert all((w.size, w.times) == (prod(w.shape), 1) for w in counted.values())
    assert unmatched(module, model.weights(spec)) == (set(), {})
    if spec.n_mtp_layers:
        modules = build_prediction(module)
        assert unmatched(modules.layers, mtp.module_weights(spec)) == (set(), {})


@pytest.mark.parametrize("name", [*STRUCTURES, *(pytest.param(id, marks=ONLY) for id in OTHERS)])
def test_every_structure_as_a_miniature(name: str) -> None:
    """Of the catalog's models by default the first of each structure."""
    spec = STRUCTURES.get(name) or miniature(catalog.entry(name).spec())
    assert_alike(spec, run_of(spec))


@pytest.mark.parametrize("name", ["llama-7b", "mixtral-8x7b", "deepseek-v3", "t5-small"])
def test_no_witness_is_silent(name: str) -> None:
    spec = miniature(catalog.entry(name).spec())
    for witness in witnesses.verify(name, spec, WORKLOAD).witnesses:
        assert_full(witness, set(), predicts=name == "deepseek-v3")


def test_on_what_an_encoder_is_silent() -> None:
    spec = miniature(catalog.entry("bert-base").spec())
    for witness in witnesses.verify("bert", spec, WORKLOAD).witnesses:
        assert_full(witness, {"decode_matmul_flops"})


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_model_that_the_spec_allows(data: st.DataObject) -> None:
    spec = data.draw(changed(miniatures()))
    assert_alike(spec, data.draw(workloads(spec, "fp32")))


Forward = Callable[..., Tensor]


def with_one_more(good: Forward) -> Forward:
    def forward(t: Tape, *given: Any, **named: Any) -> Tensor:
        t.weight("one_more", 1, role="attention")
        return good(t, *given, **named)

    return forward


def without_the_first(good: Forward) -> Forward:
    def forward(t: Tape, *given: Any, **named: Any) -> Tensor:
        n = len(t.weights)
        y = good(t, *given, **named)
        del t.weights[n]
        return y

    return forward


WRONG: list[tuple[object, str, Callable[[Any], Any], str]] = [
    # a formula that forgets or doubles something, and the quantity that must show it
    (block, "grouped_attention", with_one_more, "by_role.attention"),
    (block, "mixture", without_the_first, "active_by_role.moe"),
    (model, "kv_cache_values", lambda good: lambda spec: 2 * good(spec), "kv_cache_bytes"),
    (mtp, "module_weights", lambda good: lambda spec: good(spec)[1:], "mtp_by_role.norm"),
]


@pytest.mark.parametrize(("module", "name", "wrong", "shown"), WRONG)
def test_a_wrong_formula_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    wrong: Callable[[Any], Any],
    shown: str,
) -> None:
    monkeypatch.setattr(module, name, wrong(getattr(module, name)))
    spec = miniature(catalog.entry("mixtral-8x7b").spec()).replace(n_mtp_layers=1)
    result = witnesses.verify("mini", spec, WORKLOAD)
    assert not result.agree
    assert any(line.startswith(shown) for line in result.differences)


def test_a_wrong_module_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from metacount.modules import attention as modules

    monkeypatch.setattr(modules.Attention, "_rope", lambda self, x, positions: x @ x.mT @ x)
    result = witnesses.verify("mini", miniature(LLAMA_7B), WORKLOAD)
    assert any(line.startswith("matmul_flops: formula - reference") for line in result.differences)


def test_a_wrong_published_integer_is_caught() -> None:
    entry = catalog.entry("llama-7b")
    result = witnesses.verify("llama-7b", LLAMA_7B.replace(d_ff=11009), Workload(), entry=entry)
    # 3 matrices · 4096 · 1 more · 32 layers
    assert [d for d in result.differences if "published" in d] == [
        "params: formula - published = 6,738,808,832 - 6,738,415,616 = 393,216",
        "active_params: formula - published = 6,738,808,832 - 6,738,415,616 = 393,216",
    ][: 1 + (entry.published.active_params is not None)]


def test_a_rounded_label_is_reported_but_no_figure() -> None:
    entry = catalog.entry("transformer-base")
    result = witnesses.verify("transformer-base", entry.spec(), Workload(seq_len=2), entry=entry)
    published = result.witnesses[2]
    assert published.figures["params"] is None
    assert "label 65M; our count differs by" in published.detail
    assert result.agree
