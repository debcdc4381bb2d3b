"""A training step by hand, by torch's own counter, and by what must hold for any setup."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY, miniature
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import metacount
from metacount import InputError, Setup, SpecError, Training, Workload, catalog
from metacount.measure.counter import ROLES
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.training.programs import reference_program
from metacount.training.step import Step

SPEC = ModelSpec.from_dict(TINY)
RUN = Workload(batch_size=2, seq_len=11, dtype="bf16")
TOKENS = 2 * 11


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


def test_it_prints_itself(plain: Training) -> None:
    assert f"{plain.peak_bytes:,}" in str(plain)
    assert "decoder.layers.0-2" in str(plain)


def test_two_runs_give_the_same(plain: Training) -> None:
    assert trained().to_dict() == plain.to_dict()


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"optimizer": "adamx"}, "optimizer"),
        ({"attention": "flush"}, "attention"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"grad_dtype": "fp8"}, "grad_dtype is unknown"),
        ({"loss_chunks": True}, "loss_chunks"),
    ],
)
def test_a_wrong_choice_is_refused(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Setup(**choices)


@pytest.mark.parametrize(
    ("name", "choices", "said"),
    [
        ("llama-7b", {"grad_dtype": "fp32"}, "grad_dtype"),
        ("llama-7b", {"lora_rank": 2, "lora_targets": ("q_prj",)}, ""),
        ("llama-7b", {"freeze": ("embed",)}, ""),
        ("gpt2", {"freeze": ("core",)}, ""),
        ("llama-7b", {"lora_rank": 2, "freeze": ("lora_a", "lora_b")}, "nothing is trained"),
        ("gemma2-2b", {"attention": "sdpa"}, ""),
        ("gpt-oss-20b", {"attention": "flash"}, ""),
        ("bloom-176b", {"attention": "flash"}, ""),
    ],
)
def test_what_cannot_be_is_refused(name: str, choices: dict[str, Any], said: str) -> None:
    spec = miniature(catalog.entry(name).spec())
    with pytest.raises((InputError, SpecError), match=said or None):
        trained(spec, Workload(seq_len=5), **choices)


def test_other_refusals() -> None:
    with pytest.raises(SpecError, match="dtype"):
        trained(workload=Workload(seq_len=5, dtype="fp8"))
    with pytest.raises(InputError, match="flash"):
        trained(workload=Workload(seq_len=5, dtype="fp32"), attention="flash")
    with pytest.raises(SpecError, match="master_weights is for 16-bit parameters"):
        trained(workload=Workload(seq_len=5, dtype="fp32"), master_weights=True)
    with pytest.raises(InputError, match="give inputs"):
        metacount.train(Small())
    with pytest.raises(InputError):
        metacount.train(Small(), input_size=(4, 7))
    with pytest.raises(InputError, match="checkpointing"):
        metacount.train(nn.Linear(2, 3), input_size=(4, 2), setup=Setup(checkpointing="full"))


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = (
        "train",
        "llama-7b",
        "--set",
        "n_layers=3",
        "--seq",
        "64",
        "--checkpointing",
        "full",
        "--master-weights",
        "--attention",
        "flash",
    )
    text = run(capsys, *line)
    data = run_json(capsys, *line)
    assert all(len(row) <= 80 and row == row.rstrip() for row in text.splitlines())
    for key in (
        "param_bytes",
        "gradient_bytes",
        "master_weight_bytes",
        "optimizer_bytes",
        "activation_bytes",
        "peak_bytes",
        "backward_matmul_flops",
        "recompute_matmul_flops",
    ):
        assert f"{key} " in text
        assert f" {data[key]:,} " in text
    assert "decoder.layers.0-2" in text
    assert data["setup"]["checkpointing"] == "full"
    assert data["timeline"][-1]["phase"] == "optimizer"
    assert "not counted" in text and data["not_counted"]


def test_wrong_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert "optimizer is unknown" in refused(capsys, "train", "gpt2", "--optimizer", "x")
    assert "--input is for" in refused(capsys, "train", "gpt2", "--input", "2,3")
    assert "MODEL is missing" in refused(capsys, "train")
