"""A step of transformers' own modules: a real one on the CPU against what was measured on meta."""

from __future__ import annotations

import pytest
import torch
from helpers.command_line import refused, run_json
from helpers.real_step import transformers_on_cpu, transformers_on_meta, transformers_really
from helpers.release import chosen
from helpers.small_configs import OTHERS, SMALL, small_config

import metacount
from metacount import InputError, Setup, Workload

LLAMA = {
    "model_type": "llama",
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "vocab_size": 101,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
}
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


def test_a_router_that_widens_itself_as_it_first_runs() -> None:
    config = small_config("switch_transformers")
    found = metacount.train(config, RUN)
    real = transformers_really(config, RUN, Setup())
    assert (found.peak_bytes, found.optimizer_bytes) == (real["peak"], real["state"])
    # every expert gets tokens; two moments and 4 bytes a tensor, of routers in float32
    router = 3 * 6 * 48  # in 3 layers, 6 experts, 48 wide
    assert found.gradient_bytes == 2 * (found.trainable_params + router)


def test_both_sides_compute_the_same() -> None:
    theirs, ours = (metacount.train(LLAMA, RUN, reference=way) for way in (False, True))
    for figure in (
        "params",
        "gradient_bytes",
        "optimizer_bytes",
        "matmul_flops",
        "backward_matmul_flops",
        "logits_bytes",
    ):
        assert getattr(theirs, figure) == getattr(ours, figure)
    assert theirs.backward_matmul_flops_by_role == ours.backward_matmul_flops_by_role
    assert theirs.source == "transformers" and ours.source == "reference"


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
def test_a_fused_kernel_runs_in_each_layer(attention: str) -> None:
    setup = Setup(attention=attention)
    theirs, ours = (metacount.train(LLAMA, RUN, setup, reference=way) for way in (False, True))
    eager = metacount.train(LLAMA, RUN)
    assert theirs.activation_bytes < eager.activation_bytes
    # one more product of attention's two, 6 heads and 8 wide
    more = 3 * 2 * 3 * 6 * 29 * 29 * 8
    assert theirs.backward_matmul_flops == eager.backward_matmul_flops + more
    assert ours.backward_matmul_flops == theirs.backward_matmul_flops


def test_a_model_in_hand_is_left_alone() -> None:
    model = transformers_on_cpu(LLAMA, "bf16")
    model.train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = metacount.train(model, Workload(batch_size=3, seq_len=29, dtype="bf16"))
    assert found.activation_bytes == metacount.train(LLAMA, RUN).activation_bytes
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert model.training and all(p.grad is None for p in model.parameters())


def test_adapters_stand_beside_their_layers() -> None:
    found = metacount.train(LLAMA, RUN, Setup(lora_rank=4))
    # A [4, 24] and B [48, 4] of queries, A [4, 24] and B [16, 4] of values, in 3 layers
    assert found.trainable_params == 3 * (4 * (24 + 48) + 4 * (24 + 16))


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("train", "type:gemma2", "--seq", "8", "--attention", "sdpa")
    assert "choose eager" in refused(capsys, *line)
    with pytest.raises(InputError, match="takes no softcap"):
        metacount.train({**LLAMA, "model_type": "gemma2"}, RUN, Setup(attention="flash"))
    # its code mixes 16 bits with 32: no bytes of such a step, which has no device either
    xlnet = {"model_type": "xlnet", "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40}
    with pytest.raises(InputError, match=r"^dtype"):
        metacount.train({**xlnet, "vocab_size": 101}, RUN)
    data = run_json(capsys, "train", "type:gpt2", "--seq", "8", "--optimizer", "sgd")
    assert data["source"] == "transformers" and data["versions"]["transformers"]
