"""Training counted by formulas alone: ints, symbols, arrays; quantities of `formula`, `check`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sympy
from helpers.miniatures import miniature
from helpers.release import daily, one_in

from metacount import InputError
from metacount.catalog import entry
from metacount.check import check
from metacount.cli import main
from metacount.errors import SpecError
from metacount.formulas.forward import Pass
from metacount.formulas.part import Part
from metacount.formulas.training import activation_bytes, backward_matmul_flops
from metacount.modules.build import build
from metacount.spec import Workload
from metacount.textbook.closed_form import COUNTS, PREDICTION, QUANTITIES, closed_form, run_sizes
from metacount.textbook.training import TRAINING, training_count

LLAMA = entry("llama-7b").spec()
# of Llama, key/value heads apart: (b) what its blocks, last norm and head keep in bf16
KEPT = (
    "16*B*S + 4*B*N*S*d + 4*B*S*(2*N + 1)*(2*d + 1) + 8*B*N*S*m + 4*B*S*V + 2*B*S*d + 4"
    " + N*S*(6*B*S*h + 4*B*h*h_d + 4*B*h_d*(h_kv + (h - h_kv)*min(1, B*h_kv - 1)) + S + 8*h_d)"
)


def test_a_stack_of_fewer_layers_than_are_dense() -> None:
    spec = miniature(entry("switch-base-8").spec())
    spec = spec.replace(n_layers=4, n_encoder_layers=1, n_dense_layers=2, d_ff=17)
    form = closed_form(spec, Workload(seq_len=4), "params")
    assert form.total == sum(p.numel() for p in build(spec).parameters())
    fewer = sympy.Min(*sympy.symbols("N_0 N_e", integer=True, positive=True))
    assert fewer in form.parts["moe"].atoms(sympy.Min)


@daily(3)
@pytest.mark.parametrize(
    "name", one_in(2, ("llama-7b", "gpt2", "deepseek-v3", "gemma2-9b", "llama4-scout-text"))
)
def test_forms_are_those_of_other_sizes_too(name: str) -> None:
    spec = entry(name).spec()
    for quantity in TRAINING:
        try:
            form = closed_form(spec, Workload(batch_size=3, seq_len=64), quantity)
        except SpecError as error:
            fused = "with fused attention" in str(error)
            assert fused or "in letters for latent attention" in str(error)
            continue
        run = Workload(batch_size=1, seq_len=17)
        changed = {"vocab_size": 1009, "d_model": 24}
        numbers = {**form.numbers, "B": 1, "S": 17, "T": 17, "V": 1009, "d": 24}
        other = spec.replace(**changed)
        value = sum(
            expr.subs({letter: numbers[letter.name] for letter in expr.free_symbols})
            for expr in form.parts.values()
        )
        counted = COUNTS[quantity](other, run_sizes(other, run))
        assert value == sum(counted.values()), (name, quantity)


def test_arrays_sweep_lengths() -> None:
    lengths = np.array([1, 2, 128, 4096], dtype=object)
    swept = activation_bytes(LLAMA, Pass(batch_size=2, seq_len=lengths))
    flops = backward_matmul_flops(LLAMA, Pass(batch_size=2, seq_len=lengths))
    for n, kept, multiplied in zip(lengths, swept, flops, strict=True):
        run = Pass(batch_size=2, seq_len=int(n))
        assert activation_bytes(LLAMA, run) == kept
        assert backward_matmul_flops(LLAMA, run) == multiplied


def test_quantities_of_a_forward_stay_apart() -> None:
    assert not QUANTITIES.keys() & TRAINING.keys()
    assert [*COUNTS] == [*QUANTITIES, *PREDICTION, *TRAINING]


def test_a_step_in_numbers() -> None:
    step = training_count(LLAMA, Workload(batch_size=1, seq_len=128), master_weights=True)
    params = 6_738_415_616
    assert step.trainable_params == step.params == params
    assert step.gradient_bytes == 2 * params
    assert step.master_weight_bytes == 4 * params
    # two moments in float32, and a counter for each of 32·9 + 3 tensors
    assert step.optimizer_bytes == 8 * params + 4 * (32 * 9 + 3)
    assert step.backward_matmul_flops == 2 * step.matmul_flops
    assert step.recompute_matmul_flops == 0 and step.uncovered == {}
    assert json.loads(json.dumps(step.to_dict()))["source"] == "formula"


def test_what_is_not_covered_is_none_with_a_reason() -> None:
    adapters = Part(rank=8, targets=("q_proj", "v_proj"))
    step = training_count(LLAMA, Workload(), part=adapters)
    assert step.gradient_bytes == 2 * 4_194_304
    assert step.activation_bytes_of_block is None
    assert [*step.uncovered] == ["activation_bytes_of_block"]
    step = training_count(entry("mamba-2.8b").spec(), Workload(), part=Part(freeze=("lm_head",)))
    assert step.activation_bytes is None and step.backward_matmul_flops is None
    assert "recurrent has no formula" in step.uncovered["activation_bytes"]
    step = training_count(entry("gemma2-9b").spec(), Workload(), attention="flash")
    assert step.activation_bytes is None
    assert "attention_softcap has no formula" in step.uncovered["activation_bytes"]
    mamba = entry("mamba2-130m").spec()
    step = training_count(mamba, Workload(), checkpointing="selective")
    assert "no formula for this model's mixer" in step.uncovered["activation_bytes"]
    step = training_count(LLAMA, Workload(), checkpointing="selective")
    assert step.activation_bytes_of_block is None
    assert "of what one block keeps" in step.uncovered["activation_bytes_of_block"]
    assert step.recompute_matmul_flops == 0
    with pytest.raises(SpecError, match="optimizer"):
        training_count(LLAMA, Workload(), optimizer="adam")


@pytest.mark.parametrize(
    ("text", "quantity", "verdict"),
    [
        ("4*B*S*(3*N*d*m + 2*N*h_d*(S*h + d*(h + h_kv)) + V*d)", "backward_matmul_flops", "equal"),
        ("6*B*S*(3*N*d*m + 2*N*h_d*(S*h + d*(h + h_kv)) + V*d)", "backward_matmul_flops", "wrong"),
        (KEPT, "activation_bytes", "equal"),
        (KEPT + " + 1", "activation_bytes", "wrong"),
        # keys and values of every head, also where one is shared by one sequence
        (KEPT.replace("min(1, B*h_kv - 1)", "1"), "activation_bytes", "equal_here"),
        (
            "2*B*N*S*d + 4*B*S*(2*d + 1) + 4*B*S*V + 2*B*S*d + 16*B*S + 4",
            "activation_bytes:full",
            "equal",
        ),
        (
            "2*c*(2*V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d) + 4*(9*N + 3)",
            "optimizer_bytes",
            "equal",
        ),
        ("c*(2*V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d)", "gradient_bytes", "equal"),
    ],
)
def test_a_formula_of_training_is_judged(text: str, quantity: str, verdict: str) -> None:
    found = check(text, "llama-7b", quantity=quantity)
    assert found.verdict == verdict
    if verdict == "wrong":
        assert not all(term.known for term in found.terms)


def test_what_activations_are_is_of_one_dtype() -> None:
    wide = check(KEPT, "llama-7b", quantity="activation_bytes", workload=Workload(dtype="fp32"))
    assert wide.verdict == "wrong"
    with pytest.raises(SpecError, match="dtype"):
        check(KEPT, "llama-7b", quantity="activation_bytes", workload=Workload(dtype="int8"))
    with pytest.raises(InputError, match="'activation'"):
        check(KEPT, "llama-7b", quantity="activation")


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formula", "llama-7b", "--quantity", "activation_bytes:full"]) == 0
    text = capsys.readouterr().out
    assert "2·B·N·S·d" in text and "full checkpointing" in text
    assert main(["formula", "bert-base", "--quantity", "activation_bytes"]) == 2
    said = capsys.readouterr().err
    assert "without logits there is no loss" in said and len(said.splitlines()) == 1
    assert main(["formula", "llama-7b", "--quantity", "optimizer_bytes:muon", "--python"]) == 0
    scope: dict[str, object] = {}
    exec(capsys.readouterr().out, scope)
    function = scope["optimizer_bytes_muon"]
    assert callable(function)
    muon = training_count(LLAMA, Workload(), optimizer="muon")
    assert function() == muon.optimizer_bytes
