"""Optional variants: what they need is said, and what of them can run here does.

No package of these is here: FlashAttention's call is met by a function that has its signature,
which torch computes. Liger and the Triton kernel run on a device (test_cuda.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.bench_layers import DECODE, DENSE, PREFILL, attention, build, error_of, ffn, spec
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from torch import Tensor

from metacount.bench import layers
from metacount.bench.case import Case
from metacount.bench.layers import Positions
from metacount.bench.rows import Row
from metacount.bench.run import run_case
from metacount.bench.timing import Plan

CPU = torch.device("cpu")
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0, states=("hot",))
LIGER = ffn(spec(DENSE), 3, "fp32", peers=True)

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package be there, with these functions in its last module."""

    def module(name: str, **functions: Any) -> None:
        for end in (i for i, c in enumerate(f"{name}.") if c == "."):
            monkeypatch.setitem(sys.modules, name[:end], ModuleType(name[:end]))
        vars(sys.modules[name]).update(functions)
        monkeypatch.setattr(layers, "find_spec", lambda name: object())

    return module


def by_name(case: Case, *names: str) -> dict[str, Row]:
    return {row.variant: row for row in run_case(case, replace(PLAN, only=names), None, 4096)}


@pytest.mark.parametrize("way", list(layers.PACKAGES))
def test_what_is_not_here_says_what_to_install(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "find_spec", lambda name: None)
    assert (layers.missing_package(way) or "").startswith("pip install ")
    monkeypatch.setattr(layers, "find_spec", lambda name: object())
    assert layers.missing_package(way) is None


def test_a_missing_peer_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "find_spec", lambda name: None)
    rows = by_name(LIGER, "swiglu-liger", "gelu")
    peer = rows["swiglu-liger"]
    assert (peer.status, peer.reason) == ("not available", "pip install liger-kernel")
    assert rows["gelu"].status == "ok"


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, causal: bool = False
) -> tuple[Tensor, None]:
    """As FlashAttention-3 has it: [B, S, H, K], and the logarithms beside the result."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return attend(q, k, v, softmax_scale, causal=causal).transpose(1, 2), None


@pytest.mark.parametrize("at", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_flash_attention_3(install: Install, at: Positions) -> None:
    install("flash_attn_interface", flash_attn_func=flash_attn_func)
    case = attention(spec(DENSE), at, "fp32", ("-sdpa", "-fa3"))
    rows = by_name(case, "gqa-fa3", "gqa-sdpa")
    assert rows["gqa-fa3"].status == "ok", rows["gqa-fa3"].reason
    assert rows["gqa-fa3"].matmul_flops == rows["gqa-sdpa"].matmul_flops
    # its kernel shows no operators: the row says on what the FLOPs were counted
    assert rows["gqa-fa3"].counted_on == "scaled_dot_product_attention"
    assert rows["gqa-sdpa"].counted_on is None


def test_a_wrong_peer_is_caught(install: Install) -> None:
    def wrong(q: Tensor, *rest: Any, **more: Any) -> Tensor:
        return flash_attn_func(q, *rest, **{**more, "causal": False})[0]

    install("flash_attn_interface", flash_attn_func=wrong)
    case = attention(spec(DENSE), PREFILL, "fp32", ("-sdpa", "-fa3"))
    assert by_name(case, "gqa-fa3")["gqa-fa3"].status == "wrong result"


def test_torchs_kernels_by_name() -> None:
    case = attention(spec(DENSE), PREFILL, "fp32", ("-sdpa", "-math", "-cudnn"))
    rows = by_name(case, "mha-sdpa", "mha-math", "mha-cudnn")
    # the math kernel is two products; the one that torch chose on a CPU is a kernel of its own
    assert set(rows["mha-math"].operators or ()) == {"aten.mm", "aten.bmm"}
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in (rows["mha-sdpa"].operators or ())
    assert (rows["mha-math"].status, rows["mha-cudnn"].status) == ("ok", "not available")
    sdpa = build(case)["mha-sdpa", "forward"]
    assert error_of(sdpa, sdpa.inputs[0], [0]) < 1e-5
