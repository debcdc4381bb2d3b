"""A training step by hand, by torch's own counter, and by formulas, as `train` sets it up."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY, miniature
from helpers.release import daily, one_day_in, one_in
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount import InputError, Setup, SpecError, Training, Workload, catalog
from metacount.cli.report import in_text
from metacount.cli.train import report_of
from metacount.formulas import step as formulas_of_step
from metacount.formulas.step import backward_matmul_flops_by_role
from metacount.formulas.tape import Pass
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


def test_flash_keeps_what_the_kernel_keeps() -> None:
    kept = trained(attention="flash").activation_bytes_by_operator
    # q and out of 6 heads, k and v of 2, 4 wide; a float32 for each query; the state of a generator
    each = 2 * (2 * 2 * 6 * 11 * 4 + 2 * 2 * 2 * 11 * 4) + 4 * 2 * 6 * 11 + 16 + 8
    # the kernel's result is kept by the projection that follows, too: the first keeper is told
    assert kept["ScaledDotProductFlashAttentionBackward0"] == 3 * each


def test_what_a_kernel_would_do_otherwise_is_said() -> None:
    odd, even = (SPEC.replace(head_dim=width) for width in (4, 8))
    notes = [" ".join(trained(spec, attention="flash").notes) for spec in (odd, even)]
    assert ["CUDA pads heads of 4" in note for note in notes] == [True, False]
    assert "CUDA pads" not in notes[1]
    fused, biased = (
        " ".join(trained(spec, attention="sdpa").notes)
        for spec in (SPEC, miniature(catalog.entry("t5-small").spec()))
    )
    assert "products out" in biased and "products out" not in fused
    # the CPU has no kernel for keys and values of different widths
    latent = miniature(catalog.entry("deepseek-v2").spec())
    assert "no fused operator ran" in " ".join(trained(latent, attention="sdpa").notes)


@pytest.mark.parametrize("name", ["llama-7b", "gemma2-2b", "mixtral-8x7b", "t5-base"])
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
    {"attention": "sdpa", "checkpointing": "selective"},
    {"attention": "flash", "checkpointing": "full", "optimizer": "muon"},
    {"loss": "chunked", "optimizer": "sgd-momentum", "foreach": True},
    {"master_weights": True, "grad_dtype": "fp32", "optimizer": "adafactor"},
    {"lora_rank": 5, "freeze": ("lora_b",)},
]


@pytest.mark.parametrize("choices", SETUPS)
def test_parts_add_up(choices: dict[str, Any]) -> None:
    found = trained(**choices)
    kept = found.activation_bytes
    assert list(found.activation_bytes_by_role) == list(ROLES)
    for parts in (
        found.activation_bytes_by_role,
        found.activation_bytes_by_module,
        found.activation_bytes_by_operator,
        found.activation_bytes_by_layer,
    ):
        assert sum(parts.values()) == kept > 0
    for by_part in (
        found.backward_matmul_flops_by_role,
        found.backward_matmul_flops_by_operator,
        found.backward_matmul_flops_by_module,
    ):
        assert sum(by_part.values()) == found.backward_matmul_flops > 0
    assert sum(found.peak_parts.values()) == found.peak_bytes
    assert found.peak_bytes == max(stage.peak_bytes for stage in found.timeline)
    assert sum(found.optimizer_state.values()) == found.optimizer_bytes
    assert found.held_bytes == 0
    start = found.timeline[0].start_bytes
    # what the step found is there at its end, and nothing else; each stage goes on from the last
    assert found.timeline[-1].end_bytes == start
    for one, other in zip(found.timeline, found.timeline[1:], strict=False):
        assert one.end_bytes == other.start_bytes
        assert one.peak_bytes >= max(one.start_bytes, one.end_bytes)
    assert [*dict.fromkeys(s.phase for s in found.timeline)] == [
        "forward",
        "loss",
        "backward",
        "optimizer",
    ]


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


def test_adapters_are_trained_and_nothing_else(plain: Training) -> None:
    found = trained(lora_rank=5, lora_targets=("q_proj", "v_proj"))
    # A [5, 13] and B [24, 5] of queries, A [5, 13] and B [8, 5] of values
    adapters = 3 * (5 * (13 + 24) + 5 * (13 + 8))
    assert found.trainable_params == adapters
    assert found.params == plain.params + adapters
    assert found.gradient_bytes == 2 * adapters
    # no gradient of a frozen weight is computed: the head's product has one factor's alone
    assert found.backward_matmul_flops_by_role["head"] == 2 * TOKENS * 13 * 101
    assert found.activation_bytes < plain.activation_bytes


def test_frozen_parameters_have_no_gradient(plain: Training) -> None:
    found = trained(freeze=("embed_tokens", "decoder.layers.0"))
    assert plain.params - found.trainable_params == 1313 + 832 + 663 + 26
    # nothing below the first trained layer is kept, or computed in the backward
    assert "decoder.layers.0" not in found.activation_bytes_by_layer
    assert not any(m.startswith("decoder.layers.0.") for m in found.backward_matmul_flops_by_module)


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
    assert "cross-entropy" not in str(found) and "\nrole " not in str(found)
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


def test_two_runs_give_the_same(plain: Training) -> None:
    assert trained().to_dict() == plain.to_dict()


# --- by formulas


def small(name: str) -> ModelSpec:
    return miniature(catalog.entry(name).spec())


# a setup, and which figures have no formula then
WAYS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"attention": "flash", "checkpointing": "full"}, set()),
    ({"attention": "sdpa"}, set()),
    ({"checkpointing": "selective"}, set()),
    ({"checkpointing": "selective", "attention": "flash"}, set()),
    ({"loss": "chunked", "checkpointing": "full"}, {"activation_bytes"}),
    ({"foreach": True, "optimizer": "adafactor"}, set()),
    ({"master_weights": True, "grad_dtype": "fp32", "optimizer": "muon"}, set()),
    ({"lora_rank": 3, "lora_targets": ("all-linear",)}, set()),
    ({"freeze": ("lm_head", "embed_tokens"), "optimizer": "muon"}, set()),
]


@daily(6)
@pytest.mark.parametrize(("choices", "missing"), one_in(5, WAYS))
@pytest.mark.parametrize("name", ["llama-7b", "deepseek-v2", "t5-base"])
def test_formulas_stand_beside_what_was_measured(
    name: str, choices: dict[str, Any], missing: set[str]
) -> None:
    if name == "t5-base" and choices.get("attention") == "flash":
        choices = {**choices, "attention": "eager"}  # the kernel takes no bias
    found = metacount.train(small(name), SHORT, Setup(**choices))
    assert [*found.formula] == [*COMPARED]
    assert {figure for figure, n in found.formula.items() if n is None} == missing
    assert {*found.uncovered} == missing
    for figure, counted in found.formula.items():
        if counted is not None:
            assert counted == getattr(found, figure), figure


@daily(3)
@pytest.mark.parametrize("name", ["deepseek-v3.2", "bert-base", "chinchilla-70b"])
def test_adapters_that_the_loss_does_not_see_are_stored(name: str) -> None:
    """An indexer's and a pooler's; Transformer-XL's projection of positions is seen."""
    setup = Setup(lora_rank=3, lora_targets=("all-linear",))
    found = metacount.train(small(name), SHORT, setup)
    counted = metacount.count_training(small(name), SHORT, setup)
    for figure in ("params", "trainable_params", *COMPARED):
        if getattr(counted, figure) is not None:
            assert getattr(counted, figure) == getattr(found, figure), figure
    assert {*counted.uncovered} & {*COMPARED} == (
        {"activation_bytes"} if name == "bert-base" else set()
    )


def test_vectors_that_are_given_have_no_gradient() -> None:
    """Two products for each of the forward are too many: this is why there is no formula."""
    spec = small("textbook-block")
    found = metacount.train(spec, SHORT)
    assert found.formula["backward_matmul_flops"] is None
    assert 2 * found.matmul_flops > found.backward_matmul_flops
    with pytest.raises(SpecError, match="is given instead of tokens"):
        backward_matmul_flops_by_role(spec, Pass(batch_size=2, seq_len=7))
    assert "is given instead of tokens" in found.uncovered["backward_matmul_flops"]


def test_what_differs_is_told(plain: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "formula  equal: param_bytes, gradient_bytes, optimizer_bytes" in in_text(
        report_of(plain)
    )
    assert "None" not in in_text(report_of(plain))
    monkeypatch.setattr(formulas_of_step, "STEP", 5)
    again = metacount.train(SPEC, SHORT)
    # a counter for each of 3 layers' 9 tensors, two tables and the last norm
    wrong = again.optimizer_bytes + 3 * 9 + 3
    assert again.formula["optimizer_bytes"] == wrong
    text = in_text(report_of(again))
    assert f"formula  optimizer_bytes: {wrong:,}, +30" in text
    assert "equal: param_bytes, gradient_bytes, activation_bytes" in text


@daily(3)
@pytest.mark.parametrize(
    "more",
    [
        "",
        "--attention flash --checkpointing full --optimizer muon",
        "--master-weights --grad-dtype fp32 --loss chunked --foreach",
        "--lora-rank 4",
        "--freeze embed_tokens,decoder.layers.0.mlp",
    ],
)
def test_the_command_counts_what_it_measures(
    capsys: pytest.CaptureFixture[str], eighty_columns: None, more: str
) -> None:
    line = ("train", "gpt2", "--set", "n_layers=2", "--seq", "32", *more.split())
    measured, counted = run_json(capsys, *line), run_json(capsys, *line, "--formula")
    text = run(capsys, *line, "--formula")
    assert counted["source"] == "formula"
    assert "one training step, by formulas\n" in text
    assert all(len(row) <= 80 and row == row.rstrip() for row in text.splitlines())
    for key in ("model", "name", "workload", "setup", "trainable_params", "params"):
        assert counted[key] == measured[key], key
    assert (measured["timeline"][-1]["phase"], measured["setup"]["optimizer"]) == (
        "optimizer",
        counted["setup"]["optimizer"],
    )
    for key in (*COMPARED, *(key for key in counted if key.endswith("_by_role"))):
        if counted[key] is None:
            assert key.removesuffix("_by_role") in counted["uncovered"]
            continue
        assert counted[key] == measured[key], key
        if counted[key] and isinstance(counted[key], int):
            assert f"{key} " in text
            assert f" {counted[key]:,} " in text
    # what is not counted is told, and is no zero
    part, uncovered = "lora" in more or "freeze" in more, counted["uncovered"]
    assert {*OVER_TIME} <= uncovered.keys()
    assert not {*OVER_TIME} & counted.keys()
    assert ("activation_bytes" in uncovered) == ("chunked" in more)
    assert ("optimizer_matmul_flops" in uncovered) == ("muon" in more)
    assert ("activation_bytes_of_block" in uncovered) == part
    told = " ".join(text.partition("\nno formula")[2].split())
    assert all(name in told and why in told for name, why in uncovered.items())
    equal = "formula  equal: param_bytes, gradient_bytes, optimizer_bytes, activation_bytes,"
    assert (equal in run(capsys, *line)) == ("chunked" not in more)


@one_day_in(6)
def test_another_implementation_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert "formula" not in str(metacount.train(nn.Linear(3, 5), input_size=(2, 3)))
    line = ("train", "type:gpt2", "--seq", "5")
    theirs = run_json(capsys, *line)
    assert (theirs["source"], theirs["formula"], theirs["uncovered"]) == ("transformers", {}, {})
    ours = run_json(capsys, *line, "--reference")
    assert ours["formula"]["activation_bytes"] == ours["activation_bytes"]
    # a reference module in hand has its spec, as long as nobody changes it
    module = build(SPEC, dtype="bf16")
    assert metacount.train(module, RUN).formula == metacount.train(SPEC, RUN).formula
    assert metacount.count_training(module, RUN) == metacount.count_training(SPEC, RUN)
    module.lm_head = None
    with pytest.raises(InputError, match="it was changed after it was built"):
        metacount.count_training(module, RUN)


def test_torch_s_compiler_is_not_imported() -> None:
    """It takes a quarter of the time of a step; torch's optimizers ask for it."""
    program = (
        "import sys; from metacount import Setup, train; "
        "[train('gpt2', setup=Setup(optimizer=name)) for name in ('adamw', 'muon')]; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


# --- what is refused


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("", "MODEL is missing"),
        ("gpt2 --optimizer x", "optimizer is unknown"),
        ("gpt2 --attention flush", "attention is unknown"),
        ("gpt2 --lora-rank 0", "lora_rank"),
        ("gpt2 --grad-dtype fp8", "grad_dtype is unknown"),
        ("gpt2 --dtype fp8", "dtype is not one that a module is trained in: got 'fp8'"),
        ("gpt2 --dtype fp32 --master-weights", "master_weights is for 16-bit parameters"),
        ("gpt2 --grad-dtype fp32", "grad_dtype must be that of the parameters (bf16)"),
        ("gpt2 --input 2,3", "--input is for FILE.py:NAME"),
        ("gpt2 --lora-rank 2 --lora-targets q_prj", "lora_targets"),
        ("gpt2 --freeze lm_hed", "freeze"),
        ("gpt2 --lora-rank 2 --freeze lora_a,lora_b", "nothing"),
        ("llama4-scout --formula", "has no spec, so there is no formula"),
        ("gpt2 --freeze lm_head,decoder --formula", "freeze leaves nothing to train"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], asked: str, line: str
) -> None:
    ways = ((), ("--formula",)) if "--formula" not in asked and asked else ((),)
    for way in ways:
        small_ones = ("--set", "n_layers=1", "--seq", "5") if asked.startswith("gpt2") else ()
        assert line in refused(capsys, "train", *asked.split(), *small_ones, *way)


@pytest.mark.parametrize(
    ("name", "attention", "line"),
    [
        ("gemma2-2b", "sdpa", "caps its scores: choose eager"),
        ("gpt-oss-20b", "flash", "has sinks: choose eager"),
        ("bloom-176b", "flash", "without a bias on the scores"),
    ],
)
def test_what_no_kernel_computes_is_refused(name: str, attention: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        trained(small(name), Workload(seq_len=5), attention=attention)


def test_modules_that_cannot_be_run_are_refused() -> None:
    wide = Workload(seq_len=5, dtype="fp32")
    with pytest.raises(InputError, match="is for 16-bit types"):
        trained(workload=wide, attention="flash")
    # no such kernel exists: nothing is said of what it would keep
    counted = metacount.count_training(SPEC, wide, Setup(attention="flash")).uncovered
    assert "is of a kernel for 16-bit types" in counted["activation_bytes"]
    with pytest.raises(InputError, match="give inputs"):
        metacount.train(Small())
    with pytest.raises(InputError, match="its training step was not run"):
        metacount.train(Small(), input_size=(4, 7))
    with pytest.raises(InputError, match="checkpointing is of layers"):
        metacount.train(nn.Linear(2, 3), input_size=(4, 2), setup=Setup(checkpointing="full"))
