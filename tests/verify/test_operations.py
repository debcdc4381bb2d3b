"""The formulas' products beside those that our modules ran: mistakes that cancel in a total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.release import daily
from helpers.small_configs import small_config
from helpers.structures import first_of_each

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import pieces
from metacount.formulas.step import check_saved
from metacount.formulas.tape import Op, Pass, Store, Tape, Tensor
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.modules.build import build
from metacount.resolve import Source
from metacount.spec import ModelSpec, Workload
from metacount.training.programs import reference_program
from metacount.training.setup import Setup
from metacount.training.step import measure_step
from metacount.verify.compare import verify
from metacount.verify.operations import are_fused, differing_step

LINEAR, RECORD, LAYER_OF = Tape.linear, Tape.record, pieces.layer_of


def found(name: str, run: Workload) -> tuple[list[str], list[str]]:
    """What differs in totals of a miniature, and what operation by operation."""
    result = verify(name, miniature(entry(name).spec()), run)
    lines = list(result.differences)
    single = [line for line in lines if "first product that differs" in line]
    return [line for line in lines if line not in single], single


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
        (pieces, "layer_of", swapped_layers),
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


# ---- a training step


def of_step(spec: ModelSpec, attention: str) -> list[str]:
    """What differs in a step, operation by operation; nothing where it has no formula."""
    setup = Setup(attention=attention, optimizer="sgd")
    run = Pass(batch_size=2, seq_len=11, attention=attention)
    workload = Workload(batch_size=2, seq_len=11, dtype="bf16")
    program = reference_program(build(spec, dtype="bf16"), workload, setup)
    return list(differing_step(spec, run, measure_step(program, setup)))


def has_formula(spec: ModelSpec, attention: str) -> bool:
    try:
        check_saved(spec, Pass(batch_size=2, seq_len=11, attention=attention))
    except SpecError:
        return False
    return True


@daily(4)
@pytest.mark.parametrize("name", first_of_each())
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_each_structure_saves_the_storages_of_its_formulas(name: str, attention: str) -> None:
    spec = miniature(entry(name).spec())
    if has_formula(spec, attention):
        assert of_step(spec, attention) == []


def saving(more: dict[str, int]) -> Callable[..., Tensor]:
    """Operations of which some save a storage of more columns, others one of fewer."""

    def record(tape: Tape, name: str, out: Tensor, saves: Any = (), **how: Any) -> Tensor:
        def other(x: Tensor | Store) -> Store:
            store = x.store if isinstance(x, Tensor) else x
            return Store(store.rows, store.columns + more[name], store.width)

        if name in more:
            saves = [(other(x), needed) for x, needed in saves]
        return RECORD(tape, name, out, saves, **how)

    return record


def one_factor(more: dict[str, int]) -> Callable[..., None]:
    """Products of which some have a gradient of one factor too many, others of one too few."""
    made = Op.__init__

    def init(op: Op, role: str, name: str, out: Store, saves: list[Store], **how: Any) -> None:
        how["factors"] = how.get("factors", 0) + more.get(name, 0)
        made(op, role, name, out, saves, **how)

    return init


# (what is replaced where, the model, the first that differs)
PLANTED_IN_A_STEP: dict[str, tuple[tuple[Any, str, Any], str, str]] = {
    "a column of the softmax counted with the mask": (
        (Tape, "record", saving({"softmax": 2, "mask": -4})),
        "llama-7b",
        "saved, first that differs: of attention",
    ),
    "a gradient of gate counted with up": (
        (Op, "__init__", one_factor({"mlp.gate_proj": 1, "mlp.up_proj": -1})),
        "llama-7b",
        "backward, first product that differs: ffn mlp.gate_proj",
    ),
    "a gradient of the keys counted with the values": (
        (Op, "__init__", one_factor({"self_attn.k_proj": -1, "self_attn.v_proj": 1})),
        "llama2-70b",
        "backward, first product that differs: attention self_attn.k_proj",
    ),
}


@pytest.mark.parametrize("mistake", PLANTED_IN_A_STEP)
def test_mistakes_that_cancel_in_a_step_are_found(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, said = PLANTED_IN_A_STEP[mistake]
    spec = miniature(entry(name).spec())
    assert of_step(spec, "eager") == []
    monkeypatch.setattr(*place)
    assert any(line.startswith(said) for line in of_step(spec, "eager"))


# ---- transformers' modules, layer by layer


def test_products_that_are_fused_are_told_from_others() -> None:
    assert are_fused([4, 4, 8, 30], [16, 30])
    assert are_fused([16, 30], [4, 4, 8, 30])
    assert not are_fused([4, 4, 8, 30], [15, 31])
    assert not are_fused([5, 5, 7, 7], [6, 6, 6, 6])


def test_layers_of_transformers_that_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer is dense, the last has experts: no total tells which is which."""
    config = small_config("glm4_moe")
    spec, run = spec_from_config(config).spec, Workload(batch_size=2, seq_len=7)
    last = spec.n_layers - 1
    source = Source(config=config)
    assert verify("glm", spec, run, source=source).differences == ()
    monkeypatch.setattr(
        pieces, "layer_of", lambda *a: LAYER_OF(*a[:2], {0: last, last: 0}.get(a[2], a[2]))
    )
    lines = verify("glm", spec, run, source=source).differences
    said = "forward, first layer that differs: model.layers.0"
    assert any(line.startswith(said) for line in lines)
    assert all("first" in line for line in lines)
