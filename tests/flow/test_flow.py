"""`metacount flow`: every step that ran, once, with figures that add up and letters that hold."""

from __future__ import annotations

import pytest

from metacount import catalog
from metacount.flow.run import flow
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import count

# One of each: placement of norms, kind of position, attention, feed-forward, stacks.
KINDS = (
    "gpt2", "bert-base", "t5-small", "llama-7b", "mixtral-8x7b", "deepseek-v3", "gemma2-2b",
    "bloom-176b", "gpt-oss-20b", "pythia-12b", "olmo2-1b", "glm-130b", "transformer-base",
    "switch-base-8", "phi3.5-moe", "pangu-alpha-207b", "gopher-280b", "llama4-scout-text",
)  # fmt: skip


def short(spec: ModelSpec) -> Workload:
    return Workload(batch_size=3, seq_len=29, source_len=31 if spec.has_encoder else None)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_steps_add_up_and_every_one_is_explained(name: str, decode: bool) -> None:
    spec = catalog.entry(name).spec()
    if decode and spec.kind == "encoder":
        return
    workload = short(spec)
    found = flow(name, workload, decode=decode)
    counted = count(spec, workload).to_dict()
    assert found.matmul_flops == counted["decode_matmul_flops" if decode else "matmul_flops"]
    assert found.params + found.unused == counted["params"]
    assert found.unused == 0 or (decode and spec.has_encoder)
    for _, step in found.walk():
        assert step.equation, step
        terms = [t for shape in (*step.input_letters, *step.output_letters) for t in shape]
        assert all(terms), step
