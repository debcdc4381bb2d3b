"""A block that many layers share: its mathematics in loops, whose turn it is, cache and counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.release import daily

from metacount.formulas import model as formulas
from metacount.measure.ours import measure_forward
from metacount.measure.tree import module_tree
from metacount.modules.build import build
from metacount.modules.model import Model
from metacount.spec import ModelSpec, Workload
from metacount.tensors import tensor_bytes

torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 7,
    "n_layers": 6,
    "vocab_size": 101,
    "tie_embeddings": True,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 6,
    "attention_scale": 0.5,
    "d_ff": 11,
    "activation": "gelu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
    "recurrent": "mamba2",
    "mixer_pattern": "RSS",
    "ffn_pattern": "N",
    "conv_kernel": 3,
    "n_ssm_heads": 6,
    "ssm_head_dim": 3,
    "n_ssm_groups": 2,
    "ssm_chunk_size": 4,
    "ssm_state_dim": 5,
    "n_shared_blocks": 2,
    "adapter_rank": 3,
}
SPECS = {
    name: ModelSpec(**{**SIZES, **changes})
    for name, changes in {
        "as Zamba2-2.7B": {"position": "none"},
        "adapters of attention too": {"attention_adapters": True},
        "no adapters": {"adapter_rank": None},
        "one block": {"n_shared_blocks": 1, "attention_adapters": True},
        "a block a use": {"n_shared_blocks": 4},
        "the first layer shares": {"mixer_pattern": "SR"},
        "no gate, biases": {"gated": False, "ffn_bias": True, "q_bias": True, "o_bias": True},
        "before Mamba": {
            "recurrent": "mamba",
            "d_ssm": 5,
            "dt_rank": 2,
            **dict.fromkeys(("n_ssm_heads", "ssm_head_dim", "n_ssm_groups", "ssm_chunk_size")),
        },
    }.items()
}


def test_blocks_take_turns() -> None:
    """Layers 1, 2, 4, 5 of six are uses 0 to 3."""
    turns = {n: SPECS[name].last_stack for n, name in ((1, "one block"), (2, "no adapters"))}
    turns[4] = SPECS["a block a use"].last_stack
    found = {n: [stack.shared_of(i) for i in range(6)] for n, stack in turns.items()}
    assert found == {
        1: [None, 0, 0, None, 0, 0],
        2: [None, 0, 1, None, 0, 1],
        4: [None, 0, 1, None, 2, 3],
    }
    assert (
        ModelSpec(**{**SIZES, "mixer_pattern": "RSS", "n_layers": 3}).last_stack.shared_of(0)
        is None
    )


@daily(9)
@pytest.mark.parametrize("split", [[7, 1, 1, 1, 1], [3, 2, 1, 5], [1] * 11, [11]])
@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_in_parts_is_all_at_once(name: str, split: list[int]) -> None:
    model: Model = randomised(Model(SPECS[name]))
    ids, cache = torch.randint(0, 101, (2, 11)), model.new_cache()
    parts = [model(part, cache=cache).hidden_BSD for part in ids.split(split, 1)]
    assert_near(torch.cat(parts, dim=1), model(ids).hidden_BSD, 1e-10)
    # each use of a block keeps keys and values of its own
    uses = [i for i in range(6) if SPECS[name].last_stack.shared_of(i) is not None]
    assert [i for i in range(6) if cache.layers[i].tensors] == uses
    kept = tensor_bytes(cache.tensors())
    assert kept == formulas.kv_cache_bytes(SPECS[name], batch_size=2, seq_len=11, bytes_per_value=8)


def test_flops_of_a_shared_block_stand_at_the_block_for_all_of_its_uses() -> None:
    """On meta a layer that is like another does not run: what it runs in the block still counts."""
    spec = ModelSpec(**{**SIZES, "n_shared_blocks": 1})
    model = build(spec)
    found = measure_forward(model, Workload(seq_len=9)).prefill
    assert sum(found.by_module.values()) == found.matmul_flops
    q = found.by_module["decoder.shared_blocks.0.self_attn.q_proj"]
    assert q == 4 * 2 * 9 * (4 * 6) * (2 * 7)  # four uses
    linears = [found.by_module[f"decoder.layers.{i}.shared_use.linear"] for i in (1, 2, 4, 5)]
    assert linears == [2 * 9 * 7 * 7] * 4
    tree = module_tree(model, flops=found.by_module)
    assert tree.flops == found.matmul_flops
    assert tree.params == formulas.params(spec)
