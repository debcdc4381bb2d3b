"""Optional variants: what they need is said, and what of them can run here does.

No package of these is here. The Triton kernel runs on a small stand-in for Triton's language; the
others' calls are met by functions that have their signature, which torch computes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.bench_layers import DECODE, DENSE, PREFILL, attention, build, error_of, ffn, spec
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from torch import Tensor

from metacount.bench import layers, triton_silu
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


class Pointer:
    """A tensor's memory from some place on, as Triton adds to it."""

    def __init__(self, tensor: Tensor, at: Any = 0) -> None:
        self.flat, self.at = tensor.view(-1), at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.flat, self.at + more)


def language(ids: list[int]) -> SimpleNamespace:
    def load(pointer: Pointer, mask: Tensor) -> Tensor:
        return torch.where(mask, pointer.flat[pointer.at.clamp(max=len(pointer.flat) - 1)], 0.0)

    def store(pointer: Pointer, values: Tensor, mask: Tensor) -> None:
        pointer.flat[pointer.at[mask]] = values[mask].to(pointer.flat.dtype)

    return SimpleNamespace(
        program_id=lambda axis: torch.tensor(ids[axis]),
        arange=torch.arange,
        load=load,
        store=store,
        int64=torch.int64,
        float32=torch.float32,
        sigmoid=torch.sigmoid,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_triton_kernel_computes_silu_up(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [0, 0]
    monkeypatch.setattr(triton_silu, "tl", language(ids))
    monkeypatch.setattr(triton_silu, "BLOCK", 16)

    class Kernel:
        def __getitem__(self, grid: tuple[int, int]) -> Any:
            def launch(x: Tensor, out: Tensor, width: int, *, BLOCK: int) -> None:
                for ids[0] in range(grid[0]):
                    for ids[1] in range(grid[1]):
                        triton_silu._silu_mul(Pointer(x), Pointer(out), width, BLOCK)

            return launch

    monkeypatch.setattr(triton_silu, "_kernel", Kernel(), raising=False)
    x = torch.randn(7, 2 * 37).to(dtype)  # 37 is no multiple of a block
    gate, up = x.float().chunk(2, dim=-1)
    got = triton_silu.silu_mul(x)
    assert got.dtype == dtype
    wanted = (gate * torch.sigmoid(gate) * up).to(dtype)
    # the last digit depends on how many values a processor takes at once
    torch.testing.assert_close(got, wanted, rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=0)


def test_ligers_activation_takes_two_matrices(install: Install) -> None:
    def apply(gate: Tensor, up: Tensor) -> Tensor:
        assert gate.is_contiguous() and up.is_contiguous()
        return F.silu(gate) * up

    install("liger_kernel.ops.swiglu", LigerSiLUMulFunction=SimpleNamespace(apply=apply))
    row = by_name(LIGER, "swiglu-liger")["swiglu-liger"]
    assert (row.status, row.matmul_flops) == ("ok", 8190)  # 6 · 3 · 13 · 35


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
