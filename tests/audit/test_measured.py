"""Who is called wrong, beside reference modules that are built and measured on the meta device."""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.release import daily

import metacount
from metacount.audit.judge import both, detail, models
from metacount.audit.record import chosen
from metacount.spec import Workload

SPECS = dict(models())
# formula, model, and what the convention is of a measured count
WRONG = [
    ("llm-analysis-forward", "qwen3-235b-a22b", "matmul_flops", 1),  # W + A
    ("veomni-deepseek-training", "deepseek-v2", "matmul_flops", 3),  # 3·(W + A)
    ("prime-rl-deepseek-training", "deepseek-v3", "matmul_flops", 3),
    ("prime-rl-training", "qwen3-0.6b", "matmul_flops", 3),
    ("olmo-training", "olmo2-1b", "matmul_flops", 3),
    ("eleuther-cookbook-training", "gpt2", "matmul_flops", 3),
    ("megatron-lm-params", "gpt-oss-20b", "params", 1),  # Q
    ("megatron-lm-active-params", "gpt-oss-20b", "active_params", 1),  # P
    ("llm-analysis-params", "qwen3-0.6b", "params", 1),
    ("open-instruct-params", "gemma3-270m", "params", 1),
    ("eleuther-cookbook-kv-cache", "bloom-176b", "kv_cache_bytes", 1),  # U, without a window
    ("llm-analysis-kv-cache", "glm-4.5", "kv_cache_bytes", 1),
]


@daily(9)
@pytest.mark.parametrize(("id", "model", "quantity", "times"), WRONG)
def test_a_reference_module_says_so_too(id: str, model: str, quantity: str, times: int) -> None:
    (formula,) = chosen((id,))
    small = detail(formula, metacount.find_model(model), 2048)["smallest"]
    sizes, theirs, ours = small.values()
    run = Workload(batch_size=sizes.pop("batch_size"), seq_len=sizes.pop("seq_len"))
    spec = SPECS[model].replace(**sizes)
    assert both(formula, (spec, run)) == (theirs, ours)
    measured = {witness.name: witness for witness in metacount.verify(spec, run).witnesses}
    count = measured["reference"].figures[quantity]
    assert ours == Fraction(times * count) != theirs
