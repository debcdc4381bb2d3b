"""The formulas' products beside those that our modules ran: mistakes that cancel in a total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.release import daily
from helpers.structures import first_of_each

from metacount.catalog import entry
from metacount.formulas.tape import Tape, Tensor
from metacount.measure.ours import measure_forward
from metacount.modules.build import build
from metacount.spec import Workload
from metacount.verify import operations
from metacount.verify.compare import verify
from metacount.verify.operations import differing_operations

LINEAR, RECORD, LAYER_OF = Tape.linear, Tape.record, operations.layer_of


def found(name: str, run: Workload) -> tuple[list[str], list[str]]:
    """What differs in totals of a miniature, and what operation by operation."""
    result = verify(name, miniature(entry(name).spec()), run)
    lines = list(result.differences)
    single = [line for line in lines if "first product that differs" in line]
    return [line for line in lines if line not in single], single


@daily(4)
@pytest.mark.parametrize("name", first_of_each())
def test_each_structure_runs_the_products_of_its_formulas(name: str) -> None:
    spec = miniature(entry(name).spec())
    for run in (Workload(batch_size=2, seq_len=11), Workload(batch_size=1, seq_len=1)):
        counters = measure_forward(build(spec), run).counters
        assert len(counters) == (1 if spec.kind == "encoder" else 2)
        assert list(differing_operations(spec, run, counters)) == []


def wider(more: dict[str, int]) -> Callable[..., Tensor]:
    """Linear layers of which some have outputs too many, others too few."""

    def linear(tape: Tape, x: Tensor, name: str, out: Any, **how: Any) -> Tensor:
        y = LINEAR(tape, x, name, out + more.get(name, 0), **how)
        y.columns = out
        return y

    return linear


def scores_twice(tape: Tape, name: str, out: Tensor, *saves: Any, **how: Any) -> Tensor:
    """Scores are counted twice, sums of values not at all."""
    how["width"] = how.get("width", 0) * {"scores": 2, "sums of values": 0}.get(name, 1)
    return RECORD(tape, name, out, *saves, **how)


def swapped_layers(spec: Any, stack: Any, index: int) -> Any:
    """The first layer and the last have each other's window."""
    return LAYER_OF(spec, stack, {0: 5, 5: 0}.get(index, index))


# (what is replaced where, the model, the first product that differs)
PLANTED: dict[str, tuple[tuple[Any, str, Any], str, str]] = {
    "an output of gate counted with up": (
        (Tape, "linear", wider({"mlp.gate_proj": 1, "mlp.up_proj": -1})),
        "llama-7b",
        "forward, first product that differs: decoder.layers.0: formula ffn mlp.gate_proj",
    ),
    "an output of the keys counted with the values": (
        (Tape, "linear", wider({"self_attn.k_proj": 1, "self_attn.v_proj": -1})),
        "llama2-70b",
        "decoder.layers.0: formula attention self_attn.k_proj 22 times a weight",
    ),
    "a rank of the queries counted with the latent": (
        (Tape, "linear", wider({"self_attn.q_a_proj": -2, "self_attn.kv_a_proj_with_mqa": 2})),
        "deepseek-v3",
        "decoder.layers.0: formula attention self_attn.q_a_proj",
    ),
    "scores counted twice, sums of values not at all": (
        (Tape, "record", scores_twice),
        "llama-7b",
        "decoder.layers.0: formula attention scores",
    ),
    "layers that have each other's window": (
        (operations, "layer_of", swapped_layers),
        "gemma3-1b",
        "decode, first product that differs: decoder.layers.0: formula attention scores",
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_two_mistakes_that_cancel_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, said = PLANTED[mistake]
    run = Workload(batch_size=2, seq_len=11)
    assert found(name, run) == ([], [])
    monkeypatch.setattr(*place)
    totals, single = found(name, run)
    assert totals == []
    assert any(said in line for line in single), single
    assert all("; reference attention" in line or "; reference ffn" in line for line in single)


def test_names_are_compared_where_sizes_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """gate and up have the same sizes: what differs is which runs first."""

    def other_name(tape: Tape, x: Tensor, name: str, out: Any, **how: Any) -> Tensor:
        other = {"mlp.gate_proj": "mlp.up_proj", "mlp.up_proj": "mlp.gate_proj"}
        return LINEAR(tape, x, other.get(name, name), out, **how)

    monkeypatch.setattr(Tape, "linear", other_name)
    totals, single = found("llama-7b", Workload(batch_size=2, seq_len=11))
    assert totals == []
    assert "formula ffn mlp.up_proj" in single[0]
    assert "reference ffn mlp.gate_proj" in single[0]
