"""What is measured on meta is what happens on real tensors; folding changes nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from helpers.miniatures import miniature
from helpers.release import daily, one_day_in, one_in
from torch import nn

from metacount import catalog
from metacount.measure import ours
from metacount.measure.counter import MeasuredRun, UnclaimedTensor
from metacount.measure.ours import kept_pairs, measure_forward, measure_params, reference_counter
from metacount.modules.attention import Visibility
from metacount.modules.block import Block
from metacount.modules.build import build
from metacount.spec import Workload
from metacount.tensors import tensor_bytes

NAMES = [
    "llama-7b",
    "deepseek-v3",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "gemma3-1b",
    "gopher-280b",
    "t5-11b",
    "bert-base",
    "pythia-12b",
    "switch-base-8",
    "llama4-scout-text",
    "pangu-alpha-207b",
    "glm-130b",
]


@daily(12)
@pytest.mark.parametrize("name", NAMES)
def test_meta_counts_what_runs_on_cpu(name: str) -> None:
    """Where every block runs; by module too, so that those that did not have their own names."""
    spec = miniature(catalog.entry(name).spec())
    run = Workload(batch_size=2, seq_len=9, dtype="fp32")
    on_meta = measure_forward(build(spec, dtype="fp32"), run)
    model = build(spec, device="cpu", dtype="fp32", seed=0)
    tokens = torch.randint(0, 101, (2, 9))
    cache = None if spec.kind == "encoder" else model.new_cache()
    with torch.no_grad(), reference_counter().watching(model) as counter:
        memory = model.encode(tokens) if spec.has_encoder else None
        model(tokens, memory_BTD=memory, cache=cache)
    really = counter.report()
    assert on_meta.prefill.by_role == really.by_role
    assert on_meta.prefill.causal_by_role == really.causal_by_role
    assert on_meta.prefill.by_module == counter.by_module()
    kept = 0 if cache is None else tensor_bytes(cache.tensors())
    assert (on_meta.cache.kv_bytes if on_meta.cache else 0) == kept


def test_a_mask_too_large_to_lay_out_has_no_opinion() -> None:
    assert kept_pairs(Visibility(n_queries=2**20, n_keys=2**20)) is None
    report = measure_forward(
        build(miniature(catalog.entry("llama-7b").spec())), Workload(seq_len=2**16)
    )
    assert report.prefill.causal_matmul_flops is None
    assert report.prefill.matmul_flops > 0


def test_a_tensor_that_no_role_claims_is_an_error() -> None:
    with pytest.raises(UnclaimedTensor, match=r"Linear.weight \(3, 2\)"):
        measure_params(nn.Sequential(nn.Linear(2, 3)))


@one_day_in(6)
def test_measuring_leaves_torch_as_it_was() -> None:
    code = """
import sys, torch
from metacount import catalog
from metacount.modules.build import build
from metacount.measure.torch_private import SLOT, _guarded
from metacount.measure.ours import measure_forward
from metacount.spec import Workload
for name in ("deepseek-v3", "gpt2", "t5-small", "gemma3-1b"):
    model = build(catalog.entry(name).spec())
    measure_forward(model, Workload(seq_len=5))
    assert all("forward" not in vars(block) for block in model.modules())
assert "torch._dynamo" not in sys.modules
functions = [*_guarded(torch._refs), *_guarded(torch._refs.nn.functional)]
assert len(functions) > 50
assert not any(hasattr(function, SLOT) for function in functions)
assert float(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))) == 2
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Of each forward, how many kinds of blocks there are; two kinds that lend keys to others are seen
# to do so, and run again.
KINDS = {
    "jamba-1.5-mini": 3,  # Mamba with a feed-forward or experts, attention
    "gpt3-175b": 1,
    "nemotron-h-8b": 3,
    "qwen3-next-80b-a3b": 2,
    "mamba2-130m": 1,
    "gemma-3n-e2b-text": None,
}


def states_of(run: MeasuredRun) -> list[torch.Size]:
    return [t.shape for t in run.cache.states] if run.cache else []


@daily(6)
@pytest.mark.parametrize("name", one_in(2, [*KINDS, *NAMES]))
def test_blocks_that_are_alike_run_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of four forwards: over 8 tokens, over 1, over 7, and one token more."""
    ran: list[str] = []
    forward = Block.forward

    def noted(self: Block, *args: Any, **kwargs: Any) -> Any:
        ran.append(self.kind)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", noted)
    spec = catalog.entry(name).spec()
    model, run = build(spec if name in KINDS else miniature(spec)), Workload(seq_len=8)
    once = measure_forward(model, run)
    n_ran, kinds = len(ran), len(set(ran))
    if (expected := KINDS.get(name)) is not None:
        assert (n_ran, kinds) == (4 * expected, expected)
    monkeypatch.setattr(ours, "_blocks", lambda model: ())
    each = measure_forward(model, run)
    assert len(ran) >= n_ran + model.spec.n_layers
    assert (once.prefill, once.decode) == (each.prefill, each.decode)
    assert (once.cache, once.kv_bytes_per_token) == (each.cache, each.kv_bytes_per_token)
    assert states_of(once) == states_of(each)
