"""A training step by hand, by torch's own counter, and by formulas, as `train` sets it up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.command_line import Ask
from helpers.miniatures import TINY, miniature
from helpers.release import daily, one_day_in
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount import InputError, Setup, Training, Workload, catalog
from metacount.formulas import step as formulas_of_trained
from metacount.measure.counter import ROLES
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.textbook.training import COMPARED, OVER_TIME
from metacount.training.programs import reference_program
from metacount.training.step import Step

SPEC = ModelSpec.from_dict(TINY)
RUN = Workload(batch_size=2, seq_len=11, dtype="bf16")
TOKENS = 2 * 11
SHORT = Workload(batch_size=2, seq_len=7)


def trained(spec: ModelSpec = SPEC, workload: Workload = RUN, **choices: Any) -> Training:
    return metacount.train(spec, workload, Setup(**choices))


@pytest.fixture(scope="module")
def plain() -> Training:
    return trained()


def test_flops_by_hand(plain: Training) -> None:
    # q and o 13 × 24, k and v 13 × 8; gate, up and down 13 × 17; scores and values 4 wide, 6 heads
    linear = 2 * TOKENS * (2 * 13 * 24 + 2 * 13 * 8 + 3 * 13 * 17)
    core = 2 * (2 * 2 * 6 * 11 * 11 * 4)
    head = 2 * TOKENS * 13 * 101
    assert plain.matmul_flops == 3 * (linear + core) + head
    # one product for each factor's gradient
    assert plain.backward_matmul_flops == 2 * plain.matmul_flops
    # the kernel computes the scores once more
    flash = trained(attention="flash")
    assert flash.matmul_flops == plain.matmul_flops
    assert flash.backward_matmul_flops == plain.backward_matmul_flops + 3 * core // 2
    assert plain.backward_matmul_flops_by_role["head"] == 2 * head


def test_kept_bytes_by_hand(plain: Training) -> None:
    kept = plain.activation_bytes_by_operator
    # of cross-entropy: the log-probabilities in float32; targets, and the sum of weights
    assert kept["LogSoftmaxBackward0"] == 4 * TOKENS * 101
    assert kept["NllLossBackward0"] == 8 * TOKENS + 4
    assert kept["EmbeddingBackward0"] == 8 * TOKENS
    # softmax keeps its result in float32, 6 heads and 11 × 11 pairs in each of 3 layers
    assert kept["SoftmaxBackward0"] == 3 * 4 * 2 * 6 * 11 * 11
    # the square of a norm keeps its input in float32: two in each of 3 layers, and the last
    assert kept["PowBackward0"] == 7 * 4 * TOKENS * 13
    assert plain.logits_bytes == 2 * TOKENS * 101
    assert plain.logits_float32_bytes == 4 * TOKENS * 101
    flash = trained(attention="flash").activation_bytes_by_operator
    # q and out of 6 heads, k and v of 2, 4 wide; a float32 for each query; the state of a generator
    each = 2 * (2 * 2 * 6 * 11 * 4 + 2 * 2 * 2 * 11 * 4) + 4 * 2 * 6 * 11 + 16 + 8
    # the kernel's result is kept by the projection that follows, too: the first keeper is told
    assert flash["ScaledDotProductFlashAttentionBackward0"] == 3 * each


@pytest.mark.parametrize("name", ["mixtral-8x7b", "t5-base"])
def test_torch_counts_the_same_on_a_real_step(name: str) -> None:
    spec = miniature(catalog.entry(name).spec())
    workload = Workload(batch_size=2, seq_len=7, dtype="fp32")
    setup = Setup(checkpointing="full")
    program = reference_program(
        build(spec, device="cpu", dtype="fp32"), workload, setup, device="cpu"
    )
    counts = FlopCounterMode(display=False)
    with Step(program, setup) as step, counts, program.context():
        step.loss_of(step.forward()).backward()
    found = trained(spec, workload, checkpointing="full")
    counted = (found.matmul_flops, found.backward_matmul_flops, found.recompute_matmul_flops)
    assert counts.get_total_flops() == sum(counted)
    assert counted[2] > 0


SETUPS: list[dict[str, Any]] = [
    {},
    {"attention": "flash", "checkpointing": "full", "optimizer": "muon"},
    {"checkpointing": "selective", "loss": "chunked", "optimizer": "sgd-momentum", "foreach": True},
    {"master_weights": True, "grad_dtype": "fp32", "optimizer": "adafactor"},
    {"lora_rank": 5, "freeze": ("lora_b",), "attention": "sdpa"},
]


@pytest.mark.parametrize("choices", SETUPS)
def test_parts_add_up(choices: dict[str, Any]) -> None:
    found = trained(**choices)
    assert list(found.activation_bytes_by_role) == list(ROLES)
    for figure, ways in (
        ("activation_bytes", ("role", "module", "operator", "layer")),
        ("backward_matmul_flops", ("role", "operator", "module")),
    ):
        for way in ways:
            parts = getattr(found, f"{figure}_by_{way}")
            assert sum(parts.values()) == getattr(found, figure) > 0
    assert sum(found.peak_parts.values()) == found.peak_bytes
    assert found.peak_bytes == max(stage.peak_bytes for stage in found.timeline)
    assert sum(found.optimizer_state.values()) == found.optimizer_bytes
    assert found.held_bytes == 0
    # what the step found is there at its end, and nothing else; each stage goes on from the last
    assert found.timeline[-1].end_bytes == found.timeline[0].start_bytes
    for one, other in zip(found.timeline, found.timeline[1:], strict=False):
        assert one.end_bytes == other.start_bytes
        assert one.peak_bytes >= max(one.start_bytes, one.end_bytes)
    phases = ["forward", "loss", "backward", "optimizer"]
    assert [*dict.fromkeys(s.phase for s in found.timeline)] == phases


def test_states_by_hand(plain: Training) -> None:
    params, tensors = plain.params, 2 + 3 * 9 + 1
    assert plain.trainable_params == params
    assert (plain.param_bytes, plain.gradient_bytes) == (2 * params, 2 * params)
    # two moments in the parameters' type; a number of steps for each tensor
    assert plain.optimizer_bytes == 2 * 2 * params + 4 * tensors
    assert trained(optimizer="sgd").optimizer_bytes == 0
    assert trained(optimizer="sgd-momentum").optimizer_bytes == 2 * params
    wide = trained(master_weights=True, grad_dtype="fp32")
    assert (wide.master_weight_bytes, wide.gradient_bytes) == (4 * params, 4 * params)
    assert wide.optimizer_bytes == 2 * 4 * params + 4 * tensors
    # the 7 matrices of each layer have one moment, the rest two
    inner = 3 * (832 + 663)
    muon = trained(optimizer="muon")
    assert muon.optimizer_bytes == 2 * inner + 2 * 2 * (params - inner) + 4 * (tensors - 3 * 7)
    assert muon.optimizer_matmul_flops > 0


def test_checkpointing_keeps_less_and_runs_more(plain: Training) -> None:
    selective, full = (trained(checkpointing=way) for way in ("selective", "full"))
    assert plain.activation_bytes > selective.activation_bytes > full.activation_bytes
    # of each layer its input, by the first of which the embedding is followed
    layer = full.activation_bytes_by_operator["input of a checkpointed layer"]
    assert layer == 3 * 2 * TOKENS * 13
    # what is recomputed ends before the last product, whose result nothing needs
    down, head = 2 * TOKENS * 13 * 17, 2 * TOKENS * 13 * 101
    assert full.recompute_matmul_flops == plain.matmul_flops - head - 3 * down
    assert selective.recompute_matmul_flops == 0
    assert plain.backward_matmul_flops == full.backward_matmul_flops


def test_a_loss_in_chunks_keeps_the_logits_alone(plain: Training) -> None:
    found = trained(loss="chunked", loss_chunks=4)
    gone = 4 * TOKENS * 101 + 4  # log-probabilities, and the sum of weights
    assert plain.activation_bytes - found.activation_bytes == gone - 2 * TOKENS * 101
    assert found.logits_float32_bytes == 4 * 6 * 101  # 22 rows in 4 chunks: 6 at most


class Small(nn.Module):
    """Somebody's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        out: Tensor = self.out(x)
        return out


def test_a_module_of_somebodys_own() -> None:
    module = Small()
    before = {name: p.clone() for name, p in module.named_parameters()}
    found = metacount.train(module, input_size=(4, 8), setup=Setup(optimizer="sgd"))
    # the input has no gradient: the first layer's product has its weight's alone
    assert found.matmul_flops == 2 * 4 * (3 * 64 + 40)
    assert found.backward_matmul_flops == 2 * found.matmul_flops - 2 * 4 * 64
    # relu keeps its result, which is the next layer's input; the first layer keeps the input
    assert found.activation_bytes == 4 * (4 * 4 * 8)
    assert "the loss is the sum of what the module gives" in str(found)
    again = metacount.train(
        module,
        input_size=(4, 8),
        loss=lambda out: out.square().mean(),
        setup=Setup(checkpointing="full"),
    )
    assert again.recompute_matmul_flops == 0  # the product's result is not needed again
    assert again.activation_bytes_by_operator["PowBackward0"] == 4 * 4 * 5
    assert all(torch.equal(before[name], p) for name, p in module.named_parameters())
    assert all(p.grad is None for p in module.parameters())


# --- by formulas


def small(name: str) -> ModelSpec:
    return miniature(catalog.entry(name).spec())


WAYS = (
    "",
    "--attention flash --checkpointing full --optimizer muon",
    "--master-weights --grad-dtype fp32 --loss chunked --foreach",
    "--lora-rank 4",
    "--freeze embed_tokens,decoder.layers.0.mlp",
)


@daily(3)
@pytest.mark.parametrize("more", WAYS)
def test_the_command_counts_what_it_measures(ask: Ask, more: str) -> None:
    line = f"train gpt2 --set n_layers=2 --seq 32 {more}"
    measured, counted = ask.json(line), ask.json(f"{line} --formula")
    text = ask(f"{line} --formula")
    assert counted["source"] == "formula" and "one training step, by formulas\n" in text
    assert all(len(row) <= 80 and row == row.rstrip() for row in text.splitlines())
    for key in ("model", "name", "workload", "setup", "trainable_params", "params"):
        assert counted[key] == measured[key], key
    for key in (*COMPARED, *(key for key in counted if key.endswith("_by_role"))):
        if counted[key] is None:
            assert key.removesuffix("_by_role") in counted["uncovered"]
            continue
        assert counted[key] == measured[key], key
        if counted[key] and isinstance(counted[key], int):
            assert f"{key} " in text and f" {counted[key]:,} " in text
    # what is not counted is told, and is no zero
    part, uncovered = "lora" in more or "freeze" in more, counted["uncovered"]
    assert {*OVER_TIME} <= uncovered.keys() and not {*OVER_TIME} & counted.keys()
    assert ("activation_bytes" in uncovered) == ("chunked" in more)
    assert ("optimizer_matmul_flops" in uncovered) == ("muon" in more)
    assert ("activation_bytes_of_block" in uncovered) == part
    told = " ".join(text.partition("\nno formula")[2].split())
    assert all(name in told and why in told for name, why in uncovered.items())
    equal = "formula  equal: param_bytes, gradient_bytes, optimizer_bytes, activation_bytes,"
    assert (equal in ask(line)) == ("chunked" not in more)


def test_what_differs_is_told(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "formula  equal: param_bytes, gradient_bytes, optimizer_bytes" in str(plain)
    monkeypatch.setattr(formulas_of_trained, "STEP", 5)
    again = metacount.train(SPEC, SHORT)
    # a counter for each of 3 layers' 9 tensors, two tables and the last norm
    wrong = again.optimizer_bytes + 3 * 9 + 3
    assert again.formula["optimizer_bytes"] == wrong
    assert f"formula  optimizer_bytes: {wrong:,}, +30" in str(again)


@one_day_in(6)
def test_another_implementation_is_not_compared(ask: Ask) -> None:
    assert "formula" not in str(metacount.train(nn.Linear(3, 5), input_size=(2, 3)))
    theirs, ours = (ask.json(f"train type:gpt2 --seq 5 {more}") for more in ("", "--reference"))
    assert (theirs["source"], theirs["formula"], theirs["uncovered"]) == ("transformers", {}, {})
    assert theirs["versions"]["transformers"]
    assert ours["formula"]["activation_bytes"] == ours["activation_bytes"]
    # a reference module in hand has its spec, as long as nobody changes it
    module = build(SPEC, dtype="bf16")
    assert metacount.train(module, RUN).formula == metacount.train(SPEC, RUN).formula
    module.lm_head = None
    with pytest.raises(InputError, match="it was changed after it was built"):
        metacount.count_training(module, RUN)


# --- what is refused


REFUSED = {
    "": "MODEL is missing",
    "gpt2 --optimizer x": "optimizer is unknown",
    "gpt2 --lora-rank 0": "lora_rank",
    "gpt2 --dtype fp8": "dtype is not one that a module is trained in: got 'fp8'",
    "gpt2 --dtype fp32 --master-weights": "master_weights is for 16-bit parameters",
    "gpt2 --grad-dtype fp32": "grad_dtype must be that of the parameters (bf16)",
    "gpt2 --input 2,3": "--input is for FILE.py:NAME",
    "gpt2 --lora-rank 2 --lora-targets q_prj": "lora_targets",
    "gpt2 --lora-rank 2 --freeze lora_a,lora_b": "nothing",
    "llama4-scout --formula": "has no spec, so there is no formula",
    "gpt2 --freeze lm_head,decoder --formula": "freeze leaves nothing to train",
    "type:gemma2 --seq 8 --attention sdpa": "choose eager",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_cannot_be_is_one_line(ask: Ask, asked: str) -> None:
    few = "--set n_layers=1 --seq 5" if asked.startswith("gpt2") else ""
    for way in ("", "--formula")[: 2 if few and "--formula" not in asked else 1]:
        assert REFUSED[asked] in ask.refused(f"train {asked} {few} {way}")


@pytest.mark.parametrize(
    ("name", "attention", "note", "line"),
    [
        ("gemma2-2b", "sdpa", "", "caps its scores: choose eager"),
        ("gpt-oss-20b", "flash", "", "has sinks: choose eager"),
        ("bloom-176b", "flash", "", "without a bias on the scores"),
        # what a kernel would do otherwise is said; the CPU has none for values of another width
        ("", "flash", "CUDA pads heads of 4", ""),
        ("t5-small", "sdpa", "products out", ""),
        ("deepseek-v2", "sdpa", "no fused operator ran", ""),
    ],
)
def test_what_a_kernel_does_not_compute_is_said(
    name: str, attention: str, note: str, line: str
) -> None:
    spec = small(name) if name else SPEC
    if line:
        with pytest.raises(InputError, match=line):
            trained(spec, SHORT, attention=attention)
        return
    assert note in " ".join(trained(spec, SHORT, attention=attention).notes)


def test_what_cannot_be_run_is_refused() -> None:
    wide = Workload(seq_len=5, dtype="fp32")
    # no such kernel exists: nothing is said of what it would keep
    counted = metacount.count_training(SPEC, wide, Setup(attention="flash")).uncovered
    assert "is of a kernel for 16-bit types" in counted["activation_bytes"]
    full = {"setup": Setup(checkpointing="full")}
    for module, how, line in (
        (SPEC, {"workload": wide, "setup": Setup(attention="flash")}, "is for 16-bit types"),
        (Small(), {}, "give inputs"),
        (Small(), {"input_size": (4, 7)}, "its training step was not run"),
        (nn.Linear(2, 3), {"input_size": (4, 2), **full}, "checkpointing is of layers"),
    ):
        with pytest.raises(InputError, match=line):
            metacount.train(module, **how)
