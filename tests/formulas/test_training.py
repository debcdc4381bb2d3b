"""Training by formulas alone: by hand; ints, symbols, arrays; as `formula` and `check` take it.

Against torch: `tests/training/`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.miniatures import TINY
from helpers.release import daily, one_in

from metacount.catalog import entry
from metacount.check import check
from metacount.errors import SpecError
from metacount.formulas.step import activation_bytes_by_role
from metacount.formulas.tape import Pass
from metacount.spec import ModelSpec, Workload
from metacount.textbook.closed_form import COUNTS, closed_form
from metacount.textbook.count import run_sizes
from metacount.textbook.training import OVER_TIME, TRAINING, count_step
from metacount.training.setup import Setup


def kept(spec: ModelSpec, run: Pass) -> Any:
    return sum(activation_bytes_by_role(spec, run).values())


def test_one_layer_by_hand() -> None:
    sizes = {"n_layers": 1, "n_heads": 3, "n_kv_heads": 1, "position": "none"}
    spec = ModelSpec.from_dict({**TINY, **sizes})  # d=13, h_d=4, m=17, V=101
    tokens, pairs = 2 * 5, 2 * 3 * 5 * 5
    norms = 3 * (4 * tokens * 13 + 4 * tokens + 4 * tokens * 13)  # x, 1/rms, normed; two and one
    inputs = 3 * 2 * tokens * 13  # of attention, feed-forward, head
    heads = 4 * 2 * tokens * 12  # q, k and v of three heads each, result
    scores = 4 * pairs + 2 * pairs + 5 * 5  # softmax, probabilities, mask
    hidden = 4 * 2 * tokens * 17  # gate, silu(gate), up, product
    ends = 8 * tokens + 4 * tokens * 101 + 8 * tokens + 4  # ids, log-softmax, targets, their number
    total = norms + inputs + heads + scores + hidden + ends
    assert kept(spec, Pass(batch_size=2, seq_len=5)) == total


# --- by formulas alone ----------------------------------------------------------------------------

LLAMA = entry("llama-7b").spec()


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
            words = ("with fused attention", "in letters for latent attention")
            assert any(word in str(error) for word in words), quantity
            continue
        run = Workload(batch_size=1, seq_len=17)
        numbers = {**form.numbers, "B": 1, "S": 17, "T": 17, "V": 1009, "d": 24}
        other = spec.replace(vocab_size=1009, d_model=24)
        value = sum(
            expr.subs({letter: numbers[letter.name] for letter in expr.free_symbols})
            for expr in form.parts.values()
        )
        assert value == sum(COUNTS[quantity](other, run_sizes(other, run)).values()), quantity


def test_a_step_in_numbers() -> None:
    step = count_step(LLAMA, Workload(batch_size=1, seq_len=128), Setup(master_weights=True))
    params = 6_738_415_616
    assert step.trainable_params == step.params == params
    assert step.gradient_bytes == 2 * params
    assert step.master_weight_bytes == 4 * params
    # two moments in float32, and a counter for each of 32·9 + 3 tensors
    assert step.optimizer_bytes == 8 * params + 4 * (32 * 9 + 3)
    assert step.backward_matmul_flops == 2 * step.matmul_flops
    assert step.recompute_matmul_flops == 0 and [*step.uncovered] == [*OVER_TIME]
    # of 32 layers two adapters of rank 8 beside [4096, 4096]
    assert count_step(LLAMA, Workload(), ADAPTERS).gradient_bytes == 2 * 64 * 8 * 2 * 4096
    assert json.loads(json.dumps(step.to_dict()))["source"] == "formula"


ADAPTERS = Setup(lora_rank=8, lora_targets=("q_proj", "v_proj"))


# of Llama, key/value heads apart: (b) what its blocks, last norm and head keep in bf16
KEPT = (
    "16*B*S + 4*B*N*S*d + 4*B*S*(2*N + 1)*(2*d + 1) + 8*B*N*S*m + 4*B*S*V + 2*B*S*d + 4"
    " + N*S*(6*B*S*h + 4*B*h*h_d + 4*B*h_d*(h_kv + (h - h_kv)*min(1, B*h_kv - 1)) + S + 8*h_d)"
)
FULL = "2*B*N*S*d + 4*B*S*(2*d + 1) + 4*B*S*V + 2*B*S*d + 16*B*S + 4"
ALL = "(2*V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d)"
PRODUCTS = "*B*S*(3*N*d*m + 2*N*h_d*(S*h + d*(h + h_kv)) + V*d)"


@pytest.mark.parametrize(
    ("text", "quantity", "dtype", "verdict"),
    [
        (f"4{PRODUCTS}", "backward_matmul_flops", "bf16", "equal"),
        (f"6{PRODUCTS}", "backward_matmul_flops", "bf16", "wrong"),
        (KEPT, "activation_bytes", "bf16", "equal"),
        (KEPT + " + 1", "activation_bytes", "bf16", "wrong"),
        (KEPT, "activation_bytes", "fp32", "wrong"),
        # keys and values of every head, also where one is shared by one sequence
        (KEPT.replace("min(1, B*h_kv - 1)", "1"), "activation_bytes", "bf16", "equal_here"),
        (FULL, "activation_bytes:full", "bf16", "equal"),
        (f"2*c*{ALL} + 4*(9*N + 3)", "optimizer_bytes", "bf16", "equal"),
        (f"c*{ALL}", "gradient_bytes", "bf16", "equal"),
    ],
)
def test_a_formula_of_training_is_judged(
    text: str, quantity: str, dtype: str, verdict: str
) -> None:
    found = check(text, "llama-7b", quantity=quantity, workload=Workload(dtype=dtype))
    assert found.verdict == verdict
    if verdict == "wrong":
        assert not all(term.known for term in found.terms)
