"""Formula == reference == published, for every model of the catalog and for random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.miniatures import WORKLOAD, assert_full, miniature
from helpers.random_models import changed, workloads
from helpers.release import ONLY, one_in
from helpers.structures import OTHER_WAYS, first_of_each, miniatures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metacount import catalog
from metacount.formulas import block, model, mtp
from metacount.formulas.tape import Tape, Tensor
from metacount.spec import Workload
from metacount.verify import compare as witnesses

BUILDABLE = [e for e in catalog.entries() if e.sizes is not None]
LLAMA_7B = catalog.entry("llama-7b").spec()


@pytest.mark.parametrize("entry", one_in(13, BUILDABLE), ids=lambda e: e.id)
def test_every_model_of_the_catalog_at_its_published_sizes(entry: catalog.CatalogEntry) -> None:
    result = witnesses.verify(entry.id, entry.spec(), Workload(seq_len=128), entry=entry)
    assert result.differences == ()
    assert [w.name for w in result.witnesses[:2]] == ["formula", "reference"]


@pytest.mark.parametrize(
    "entry",
    [e if e.id in first_of_each() else pytest.param(e, marks=ONLY) for e in BUILDABLE],
    ids=lambda e: e.id,
)
def test_every_model_of_the_catalog_as_a_miniature(entry: catalog.CatalogEntry) -> None:
    """By default the first of each structure."""
    spec = miniature(entry.spec())
    workload = WORKLOAD
    if spec.has_encoder:
        workload = Workload(batch_size=2, seq_len=11, source_len=7, dtype="fp32")
    if spec.kind == "prefix-decoder":
        workload = Workload(batch_size=2, seq_len=11, prefix_len=5, dtype="fp32")
    assert witnesses.verify(entry.id, spec, workload).differences == ()


@pytest.mark.parametrize(("name", "changed"), OTHER_WAYS)
def test_other_ways_of_a_layer(name: str, changed: dict[str, Any]) -> None:
    spec = miniature(catalog.entry(name).spec())
    assert witnesses.verify(name, spec.replace(**changed), WORKLOAD).differences == ()


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
    workload = data.draw(workloads(spec, "fp32"))
    assert witnesses.verify("random", spec, workload).differences == ()


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
