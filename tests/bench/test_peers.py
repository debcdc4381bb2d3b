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
from helpers.bench_layers import DECODE, DENSE, LATENT, PREFILL, build, error_of, spec
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from torch import Tensor

from metacount.bench import attention, ffn, mla, triton_silu
from metacount.bench import case as cases
from metacount.bench.case import Case, Positions
from metacount.bench.rows import Row
from metacount.bench.run import run_case
from metacount.bench.timing import Plan

CPU = torch.device("cpu")
PLAN = Plan(device=CPU, rounds=3, seconds=0.0, compile=False, warm_up_seconds=0.0, states=("hot",))
ONE = Positions(batch_size=1, seq_len=5, kv_len=5)
LIGER = ffn.case("tiny", spec(DENSE), 3, "fp32", ffn.Extras(peers=True))

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package be there, with these functions in its last module."""

    def module(name: str, **functions: Any) -> None:
        for end in (i for i, c in enumerate(f"{name}.") if c == "."):
            monkeypatch.setitem(sys.modules, name[:end], ModuleType(name[:end]))
        vars(sys.modules[name]).update(functions)
        monkeypatch.setattr(cases, "find_spec", lambda name: object())

    return module


def by_name(case: Case, *names: str) -> dict[str, Row]:
    return {row.variant: row for row in run_case(case, replace(PLAN, only=names), None, 4096)}


@pytest.mark.parametrize("way", list(cases.PACKAGES))
def test_what_is_not_here_says_what_to_install(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "find_spec", lambda name: None)
    assert (cases.missing_package(way) or "").startswith("pip install ")
    monkeypatch.setattr(cases, "find_spec", lambda name: object())
    assert cases.missing_package(way) is None


def test_a_missing_peer_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "find_spec", lambda name: None)
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
    case = attention.case("tiny", spec(DENSE), at, "fp32", ("-sdpa", "-fa3"))
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
    case = attention.case("tiny", spec(DENSE), PREFILL, "fp32", ("-sdpa", "-fa3"))
    assert by_name(case, "gqa-fa3")["gqa-fa3"].status == "wrong result"


@pytest.mark.parametrize(
    "at",
    [ONE, Positions(batch_size=1, seq_len=1, kv_len=7), PREFILL],
    ids=["prefill", "decode", "two sequences"],
)
def test_flashinfer(install: Install, at: Positions) -> None:
    def prefill(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, kv_layout: str, sm_scale: float
    ) -> Tensor:
        assert kv_layout == "HND"
        q, k, v = (t[None] for t in (q.transpose(0, 1), k, v))
        return attend(q, k, v, sm_scale, causal=causal)[0].transpose(0, 1)

    def decode(q_HK: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return prefill(q_HK[None], k, v, causal=False, **how)[0]

    install("flashinfer", single_prefill_with_kv_cache=prefill, single_decode_with_kv_cache=decode)
    case = attention.case("tiny", spec(DENSE), at, "fp32", ("-sdpa", "-flashinfer"))
    row = by_name(case, "gqa-flashinfer")["gqa-flashinfer"]
    said = "flashinfer's single-sequence kernels take one sequence only"
    wanted = ("ok", None) if at.batch_size == 1 else ("not available", said)
    assert (row.status, row.reason) == wanted


def test_flash_mla(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_kvcache(
        q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, value: int, *_: Any, **how: Any
    ) -> tuple[Tensor, None]:
        k = torch.stack([cache[pages].flatten(0, 1) for pages in table]).transpose(1, 2)
        y = attend(q.transpose(1, 2), k, k[..., :value], how["softmax_scale"], causal=how["causal"])
        return y.transpose(1, 2), None

    install(
        "flash_mla",
        get_mla_metadata=lambda lengths, rows, heads: (None, None),
        flash_mla_with_kvcache=with_kvcache,
    )
    monkeypatch.setattr(attention, "LATENT", (7, 2))
    monkeypatch.setattr(attention, "PAGE", 3)

    def row(at: Positions) -> Row:
        case = mla.case("tiny", spec(LATENT), at, "fp32", tuple(mla.GPU_WAYS))
        return by_name(case, mla.PEER)[mla.PEER]

    paged = row(Positions(batch_size=2, seq_len=1, kv_len=9))
    assert (paged.status, paged.counted_on) == ("ok", "absorbed-folded"), paged.reason
    odd = row(DECODE)
    assert odd.status == "not available" and "whole pages of 3" in (odd.reason or "")


def test_torchs_kernels_by_name() -> None:
    case = attention.case("tiny", spec(DENSE), PREFILL, "fp32", ("-sdpa", "-math", "-cudnn"))
    rows = by_name(case, "mha-sdpa", "mha-math", "mha-cudnn")
    # the math kernel is two products; the one that torch chose on a CPU is a kernel of its own
    assert set(rows["mha-math"].operators or ()) == {"aten.mm", "aten.bmm"}
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in (rows["mha-sdpa"].operators or ())
    assert (rows["mha-math"].status, rows["mha-cudnn"].status) == ("ok", "not available")
    sdpa = build(case)["mha-sdpa", "forward"]
    assert error_of(sdpa, sdpa.inputs[0], [0]) < 1e-5
