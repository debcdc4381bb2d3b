"""A real step, every storage followed, against what was measured on meta; what allocators give."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from helpers.command_line import Ask
from helpers.miniatures import miniature
from helpers.real_step import (
    on_meta,
    really,
    transformers_on_cpu,
    transformers_on_meta,
    transformers_really,
)
from helpers.release import chosen, daily
from helpers.small_configs import OTHERS, SMALL, SMALL_LLAMA, small_config
from torch import nn
from torch.profiler import ProfilerActivity, profile

import metacount
from metacount import InputError, Setup, Workload, catalog
from metacount.formulas.step import (
    adam8bit_state,
    optimizer_bytes_by_role,
)
from metacount.formulas.tape import Weight
from metacount.modules.build import build
from metacount.training.optimizers import Updates
from metacount.training.programs import reference_program
from metacount.training.step import Step

OURS = (
    "llama-7b", "mistral-7b", "gpt2", "qwen3-0.6b", "opt-175b", "gemma2-2b", "gemma-3n-e2b-text",
    "mixtral-8x7b", "deepseek-v2", "deepseek-v3.2", "gpt-oss-20b", "bloom-176b", "t5-base",
    "bert-base", "llama4-scout-text", "falcon-h1-7b", "jamba-1.5-mini", "mamba-2.8b",
    "olmo-hybrid-7b", "lfm2-350m",
)  # fmt: skip
THEIRS = (
    "llama", "gpt2", "qwen3", "mixtral", "gemma2", "gpt_oss", "deepseek_v3", "t5", "bert", "mamba2",
)  # fmt: skip
SETUPS: tuple[dict[str, Any], ...] = (
    {"dtype": "fp32"},
    {"dtype": "bf16", "attention": "sdpa", "loss": "chunked", "master_weights": True},
    {"dtype": "bf16", "checkpointing": "full", "foreach": True},
    {"dtype": "fp32", "checkpointing": "selective", "freeze": ("0", "1")},
    {"dtype": "bf16", "attention": "sdpa", "lora_rank": 3, "lora_targets": ("all-linear",)},
)
OPTIMIZERS = ("adamw", "adagrad", "sgd", "adafactor", "sgd-momentum", "muon")
EAGER = {"attention": "eager"}
# torch's CPU keeps a LayerNorm's statistics of 16 bits in 16, CUDA in 32: no CPU can show these
WIDE = {"dtype": "fp32", "master_weights": False}
# What a model is run with instead, where a setup is not to be had; by the setup's number.
INSTEAD: dict[str, dict[int, dict[str, Any]]] = {
    # sdpa is refused: scores are capped, there are sinks, or transformers' class has none
    "gemma2-2b": {1: EAGER, 4: EAGER},
    "gpt-oss-20b": {1: EAGER, 4: EAGER},
    "transformers:gemma2": {1: EAGER, 4: EAGER},
    "transformers:mamba2": {1: EAGER, 4: EAGER},
    # and torch refuses to run again what changes a kept result in place
    "transformers:gpt_oss": {1: EAGER, 3: {"checkpointing": "full"}, 4: EAGER},
    "transformers:bert": {1: WIDE, 2: WIDE, 4: WIDE},
    # and its projections are no linear layers, which adapters stand beside
    "transformers:gpt2": {1: WIDE, 2: WIDE, 4: {**WIDE, "lora_rank": None, "freeze": ("2", "3")}},
}


@daily(15)
@pytest.mark.parametrize("number", range(len(SETUPS)))
@pytest.mark.parametrize("name", [*OURS, *(f"transformers:{name}" for name in THEIRS)])
def test_a_real_step_holds_what_was_measured(name: str, number: int) -> None:
    choices = SETUPS[number] | INSTEAD.get(name, {}).get(number, {})
    dtype = choices.pop("dtype")
    _, theirs, model_type = name.rpartition("transformers:")
    row = (THEIRS if theirs else OURS).index(model_type)
    setup = Setup(optimizer=OPTIMIZERS[(row + number) % len(OPTIMIZERS)], **choices)
    if theirs:
        config = small_config(model_type)
        workload = Workload(batch_size=3, seq_len=29, dtype=dtype)
        assert transformers_on_meta(config, workload, setup) == (
            transformers_really(config, workload, setup)
        )
        return
    spec = miniature(catalog.entry(name).spec())
    # tokens enough for every expert to get one; fewer than there are positions
    seq_len = 41 if spec.is_moe else 11
    source_len = 7 if spec.has_encoder else None
    workload = Workload(batch_size=3, seq_len=seq_len, dtype=dtype, source_len=source_len)
    assert on_meta(spec, workload, setup) == really(spec, workload, setup)


# --- transformers' own modules

LLAMA = {**SMALL_LLAMA, "hidden_size": 24, "num_attention_heads": 6}
LLAMA |= {"num_key_value_heads": 2, "head_dim": 8}
RUN = Workload(batch_size=3, seq_len=29, dtype="bf16")


OFTEN = ("BertModel", "qwen3_vl", "deepseek_v32", "gpt_oss", "t5")
# a real step depends on the experts that its tokens choose, or keeps a state of the step before
BY_DATA = ("longcat_flash", "switch_transformers", "recurrent_gemma")
TYPES = {name: small_config(name) for name in SMALL if name not in BY_DATA} | OTHERS


@pytest.mark.parametrize("name", chosen(TYPES, lambda i: list(TYPES)[i] in OFTEN))
def test_a_real_step_of_each_type_holds_what_was_measured(name: str) -> None:
    run = Workload(batch_size=3, seq_len=29, dtype="fp32")
    found = transformers_really(TYPES[name], run, Setup())
    assert transformers_on_meta(TYPES[name], run, Setup()) == found


def test_a_model_in_hand_is_left_alone() -> None:
    model = transformers_on_cpu(LLAMA, "bf16")
    model.train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = metacount.train(model, Workload(batch_size=3, seq_len=29, dtype="bf16"))
    assert found.activation_bytes == metacount.train(LLAMA, RUN).activation_bytes
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert model.training and all(p.grad is None for p in model.parameters())


def test_refusals() -> None:
    with pytest.raises(InputError, match="takes no softcap"):
        metacount.train({**LLAMA, "model_type": "gemma2"}, RUN, Setup(attention="flash"))
    # its code mixes 16 bits with 32: no bytes of such a step, which has no device either
    xlnet = {"model_type": "xlnet", "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40}
    with pytest.raises(InputError, match=r"^dtype"):
        metacount.train({**xlnet, "vocab_size": 101}, RUN)


# --- what allocators give


def test_the_allocator_gives_the_same_where_kernels_take_no_room_of_their_own() -> None:
    spec, setup = miniature(catalog.entry("gpt2").spec()), Setup(attention="sdpa")
    workload = Workload(batch_size=3, seq_len=11, dtype="fp32")
    model = build(spec, device="cpu", dtype="fp32")
    program = reference_program(model, workload, setup, device="cpu")

    def once() -> None:
        with program.context():
            step.loss_of(step.forward()).backward()
        step.updates.step()

    with Step(program, setup) as step:
        once()  # the optimizer's state is there afterwards
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
            once()
    now = most = 0
    events = [event for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    assert events and now == 0
    found = metacount.train(spec, workload, setup)
    assert most == found.peak_bytes - found.timeline[0].start_bytes


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device: the peak is not compared with max_memory_allocated",
)
def test_cuda_allocates_what_was_measured_and_its_rounding() -> None:
    spec = catalog.entry("gpt2").spec()
    workload, setup = Workload(batch_size=2, seq_len=512, dtype="bf16"), Setup()
    found = metacount.train(spec, workload, setup)
    model = build(spec, device="cuda", dtype="bf16")
    program = reference_program(model, workload, setup, device="cuda")
    with Step(program, setup) as step:
        step.updates.prepare()
        torch.cuda.reset_peak_memory_stats()
        with program.context():
            step.loss_of(step.forward()).backward()
        step.updates.step()
        allocated = torch.cuda.max_memory_allocated()
    # the numbers of steps are on the host
    predicted = found.peak_bytes - found.optimizer_state["step"]
    print(f"predicted {predicted}, allocated {allocated}, {allocated - predicted} more")
    # blocks are rounded up, and the library of products has a workspace: never less
    assert allocated >= predicted


# ---- AdamW in 8 bits


needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None,
    reason="torchao is not installed: pip install 'metacount[adam8bit]'",
)
# below and above 4,096 values, in whole blocks of 256 and not
SHAPES = ((64, 128), (100, 50), (33,), (4096,), (4095,), (5000,), (16, 16), (17, 256), (3, 2, 768))


def weight(*shape: Any) -> Weight:
    return Weight(role="ffn", name="w", shape=shape)


def parameters(device: str, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    return {
        str(i): nn.Parameter(torch.empty(shape, device=device, dtype=dtype).fill_(1))
        for i, shape in enumerate(SHAPES)
    }


def state_of(named: dict[str, nn.Parameter], **choices: bool) -> int:
    """Bytes of the state that a first step makes."""
    updates = Updates(Setup(optimizer="adam8bit", **choices), named, set())
    updates.prepare()
    return sum(tensor.untyped_storage().nbytes() for _, tensor in updates.state())


def test_a_state_by_hand() -> None:
    # a code for each value, a float32 for each 256, and 256 float32 that the codes stand for
    assert adam8bit_state(weight(64, 128), 2) == 2 * (8192 + 4 * 32 + 4 * 256) + 4
    # 15 blocks are too few, and 5,000 values are no whole number of them
    assert adam8bit_state(weight(15, 256), 2) == 2 * 2 * 15 * 256 + 4
    assert adam8bit_state(weight(5000), 2) == 2 * 2 * 5000 + 4


@needs_torchao
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_real_step_keeps_the_same(dtype: torch.dtype) -> None:
    real, meta = (state_of(parameters(device, dtype)) for device in ("cpu", "meta"))
    assert real == meta == sum(adam8bit_state(weight(*s), dtype.itemsize) for s in SHAPES)


@needs_torchao
@pytest.mark.parametrize("choices", [{}, {"master_weights": True}])
def test_a_real_step_holds_what_was_measured_and_what_the_formula_says(choices: Any) -> None:
    # some tensors are kept in 8 bits, and some are not
    spec = miniature(catalog.entry("llama-7b").spec())
    spec = spec.replace(n_layers=2, vocab_size=256, d_model=48, d_ff=96)
    setup, workload = Setup(optimizer="adam8bit", **choices), Workload(batch_size=2, seq_len=11)
    assert on_meta(spec, workload, setup) == really(spec, workload, setup)
    found = metacount.train(spec, workload, setup)
    of_moments = {f"exp_avg{x}.{part}" for x in ("", "_sq") for part in ("codes", "scale", "qmap")}
    assert {*found.optimizer_state} == {"step", "exp_avg", "exp_avg_sq", *of_moments}
    by_role = optimizer_bytes_by_role(
        spec, optimizer="adam8bit", bytes_per_value=2, master_weights=bool(choices)
    )
    assert found.optimizer_bytes == sum(found.optimizer_state.values())
    assert found.optimizer_bytes == sum(by_role.values()) and found.versions["torchao"]


def test_without_torchao_it_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    said = ask.refused("train gpt2 --optimizer adam8bit --seq 8")
    assert "torchao, which is not installed; pip install 'metacount[adam8bit]'" in said
