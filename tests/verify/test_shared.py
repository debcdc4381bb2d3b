"""What formulas and modules share on purpose: an error in each is noticed by a witness.

Two opinions that rest on the same mistake agree. Here every piece that both rest on is broken in
turn, and the witnesses must differ. What stands in no row must not be shared: `test_wall.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.small_configs import small_config

import metacount
from metacount.measure import operators
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.attention import Law
from metacount.textbook import count as figures
from metacount.verify import compare as witnesses

Plant = Callable[[pytest.MonkeyPatch], None]

T5, MISTRAL = (
    {**small_config(name), "architectures": [f"{kind}"]}
    for name, kind in (("t5", "T5ForConditionalGeneration"), ("mistral", "MistralForCausalLM"))
)


def is_moe_layer(patch: pytest.MonkeyPatch) -> None:
    right = Law.holds
    patch.setattr(Law, "holds", lambda self, i: right(self, i) and (self.letters or i != 7))


def is_windowed_layer(patch: pytest.MonkeyPatch) -> None:
    right = Law.holds
    patch.setattr(Law, "holds", lambda self, i: right(self, i) and not (self.letters and i == 2))


def bytes_of_a_dtype(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(DTYPE_BYTES, "bf16", 3)


def a_longer_source(patch: pytest.MonkeyPatch) -> None:
    right = figures.fitted

    def wrong(spec: ModelSpec, workload: Any) -> Workload:
        run = right(spec, workload)
        changed = {**run.to_dict(), "source_len": run.encoder_len + 1}
        return Workload(**changed)

    patch.setattr(figures, "fitted", wrong)
    patch.setattr(witnesses, "fitted", wrong)


def a_key_taken_for_another(patch: pytest.MonkeyPatch) -> None:
    right = ModelSpec.from_dict
    patch.setattr(
        ModelSpec, "from_dict", lambda fields: right({**fields, "n_kv_heads": fields["n_heads"]})
    )


def the_price_of_a_product(patch: pytest.MonkeyPatch) -> None:
    import torch

    patch.setitem(operators.PRICED, torch.ops.aten.bmm, lambda a, b, *_: 0)


# name: (what is broken, the model, its workload, the quantity that differs)
SHARED: dict[str, tuple[Plant, Any, Workload, str]] = {
    "which layers have experts": (is_moe_layer, "deepseek-moe-16b", Workload(seq_len=8), "params"),
    "which layers see a window": (
        is_windowed_layer,
        "gemma2-2b",
        Workload(seq_len=8192),
        "kv_cache_bytes",
    ),
    "bytes of a dtype": (bytes_of_a_dtype, "llama-7b", Workload(seq_len=8), "kv_cache_bytes"),
    "the length of an encoder's input": (
        a_longer_source,
        T5,
        Workload(seq_len=7, source_len=11),
        "matmul_flops",
    ),
    "from a config to a spec": (a_key_taken_for_another, MISTRAL, Workload(seq_len=7), "params"),
    "prices of operators": (
        the_price_of_a_product,
        "llama-7b",
        Workload(seq_len=8),
        "matmul_flops",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_an_error_in_what_is_shared_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, model, workload, quantity = SHARED[name]
    assert metacount.verify(model, workload).agree
    plant(monkeypatch)
    found = metacount.verify(model, workload)
    assert not found.agree
    assert [line for line in found.differences if quantity in line], found.differences
