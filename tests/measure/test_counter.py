"""One counter for our modules, transformers' and anybody's: by role, operator and module."""

from __future__ import annotations

import pytest
import torch
from miniatures import miniature
from torch import nn

from metacount import catalog
from metacount.huggingface.module.model import build_transformers
from metacount.measure.counter import FlopCounter
from metacount.measure.operators import UncountedOp
from metacount.measure.others.flops import CounterByClass
from metacount.measure.others.fold import folded
from metacount.measure.others.roles import Roles
from metacount.measure.ours.flops import ReferenceCounter
from metacount.modules.build import build

B, S = 3, 5


class Net(nn.Module):
    """A stranger's module: two layers, one of them used twice, and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 11), nn.Linear(11, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(self.second(self.first(x))))
        return y @ y.transpose(-1, -2)


def test_a_strangers_module_is_counted_by_module() -> None:
    with FlopCounter().watching(net := Net()) as counter:
        net(torch.empty(B, 7))
    # 2 FLOPs per multiply-add, two runs of 7·11 each; [B, 7] @ [7, B] in the net itself
    assert counter.by_module() == {
        "first": 2 * 2 * B * 7 * 11,
        "second": 2 * 2 * B * 7 * 11,
        "": 2 * B * 7 * B,
    }
    assert sum(counter.by_operator().values()) == sum(counter.by_module().values())
    assert counter.by_role()["other"] == sum(counter.by_module().values())


def test_an_operator_nobody_priced_is_an_error() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.qr(x)[0]

    with FlopCounter().watching(net := Spectrum()), pytest.raises(UncountedOp, match="linalg_qr"):
        net(torch.empty(4, 4))


@pytest.mark.parametrize("name", ["llama-7b", "deepseek-v3", "gemma3-1b", "t5-small"])
def test_blocks_that_did_not_run_stand_under_their_own_names(name: str) -> None:
    spec = miniature(catalog.entry(name).spec())

    def counted(device: str) -> ReferenceCounter:
        model = build(spec, device=device, dtype="fp32")
        ids = torch.zeros(B, S, dtype=torch.long, device=device)
        with torch.no_grad(), ReferenceCounter().watching(model) as counter:
            memory = None if model.encoder is None else model.encode(ids)
            model(ids, memory_BTD=memory)
        return counter

    on_meta, on_cpu = counted("meta"), counted("cpu")
    assert on_meta.replayed and not on_cpu.replayed  # every block runs on a CPU
    assert on_meta.by_module() == on_cpu.by_module()
    # by operator they differ: on a CPU experts are a loop of products, on meta one batched product
    assert on_meta.by_role() == on_cpu.by_role()
    assert on_meta.report().causal_by_role == on_cpu.report().causal_by_role
    assert sum(on_meta.by_module().values()) == on_meta.report().matmul_flops


def test_layers_of_transformers_that_did_not_run_stand_under_their_own_names() -> None:
    config = {"model_type": "mixtral", "num_hidden_layers": 5, "hidden_size": 32, "vocab_size": 89,
              "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
              "num_local_experts": 3, "num_experts_per_tok": 2}  # fmt: skip
    model, _ = build_transformers(config, dtype=torch.bfloat16)

    def counted(fold: bool) -> CounterByClass:
        counter = CounterByClass(Roles(model), last_position=S - 1)
        ids = torch.empty(B, S, dtype=torch.long, device="meta")
        with (
            folded(model, enabled=fold) as folding,
            counter.watching(model),
            folding.counting(counter),
        ):
            model(input_ids=ids, use_cache=False)
        return counter

    once, all_of_them = counted(True), counted(False)
    assert once.replayed and not all_of_them.replayed
    assert once.by_module() == all_of_them.by_module()
    assert once.by_role() == all_of_them.by_role()
    assert once.by_operator() == all_of_them.by_operator()
    attention = [n for n in once.by_module() if n.endswith("q_proj")]
    assert len(attention) == 5
