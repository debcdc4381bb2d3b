"""On a CUDA device: graphs, events, every layer in bf16. Skipped, with the reason, elsewhere."""

from __future__ import annotations

import pytest
import torch
from bench_layers import DENSE, LATENT, SPARSE, spec
from one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench.ceiling import measure_ceiling
from metacount.bench.device import describe
from metacount.bench.layers import attention, ffn, mla, moe, norm
from metacount.bench.layers.case import Case
from metacount.bench.prepare import Plan
from metacount.bench.rows import Ceiling
from metacount.bench.run import run_case
from metacount.bench.timing import CaptureRoom, CudaStopwatch, flusher
from metacount.bench.work import Positions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROOF = Ceiling(dtype="bf16", flops_per_s=1e14, shape=(2, 3, 5), bytes_per_s=1e12)


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def test_a_graph_is_replayed() -> None:
    x = torch.zeros(1, device=cuda())
    watch = CudaStopwatch(
        [lambda: x.add_(1)] * 2, lambda: None, room=CaptureRoom(cuda()), capture=True
    )
    assert watch.launch == "graph"
    before = int(x)
    assert 0 < watch.hot() < 0.1
    assert int(x) == before + 2
    assert 0 < watch.cold(1) < 0.1
    assert int(x) == before + 3


def test_what_reads_back_is_not_captured() -> None:
    x = torch.ones(1, device=cuda())
    watch = CudaStopwatch([lambda: x.item()], lambda: None, room=CaptureRoom(cuda()), capture=True)
    assert watch.launch == "eager"
    assert 0 < watch.hot() < 0.1
    # and the device is fine afterwards
    assert int(x + 1) == 2


def test_after_a_failed_capture_the_next_one_works() -> None:
    room, x = CaptureRoom(cuda()), torch.ones(1, device=cuda())
    CudaStopwatch([lambda: x.item()], lambda: None, room=room, capture=True)
    watch = CudaStopwatch([lambda: x.add_(1)], lambda: None, room=room, capture=True)
    assert watch.launch == "graph"
    assert 0 < watch.hot() < 0.1


def test_a_cold_call_takes_longer() -> None:
    cache = describe(cuda()).cache_bytes
    x = torch.randn(cache // 16, device=cuda())
    watch = CudaStopwatch([x.sum], flusher(cuda(), cache), room=CaptureRoom(cuda()), capture=True)
    hot = sorted(watch.hot() for _ in range(31))[15]
    cold = sorted(watch.cold(0) for _ in range(31))[15]
    assert hot < cold


def cases() -> list[Case]:
    dense = spec(DENSE, d_model=256, n_heads=8, n_kv_heads=2, head_dim=64, d_ff=512)
    sparse = spec(SPARSE, d_model=256, d_ff_expert=128, n_experts=8)
    latent = spec(LATENT, d_model=256, n_heads=4, q_lora_rank=64, kv_lora_rank=64,
                  qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64)  # fmt: skip
    prefill = Positions(batch_size=2, seq_len=64, kv_len=64)
    decode = Positions(batch_size=2, seq_len=1, kv_len=96)
    return [
        ffn.case("tiny", dense, 64, "bf16"),
        *(attention.case("tiny", dense, at, "bf16") for at in (prefill, decode)),
        *(mla.case("tiny", latent, at, "bf16") for at in (prefill, decode)),
        *(moe.case("tiny", sparse, 64, routing, "bf16") for routing in moe.ROUTINGS),
        norm.case("tiny", dense, 64, "bf16"),
    ]


@pytest.mark.parametrize("number", range(8))
def test_every_layer_runs(number: int) -> None:
    case = cases()[number]
    plan = Plan(device=cuda(), rounds=5, seconds=0.1, compile=False)
    with torch.no_grad():
        rows = run_case(case, plan, ROOF, describe(cuda()).cache_bytes)
    fast = moe.grouped_on_device(cuda(), torch.bfloat16)
    waits = {"loop"} if fast else {"loop", "grouped"}
    for row in rows:
        if row.reason != "--no-compile":
            assert row.status == "ok", (row.variant, row.reason)
            assert row.launch == ("eager" if row.variant in waits else "graph"), row.variant
            assert row.median_s is not None and 0 < row.median_s < 0.1
            assert row.working_bytes is not None and row.working_bytes > 0


def test_the_ceiling_is_measured() -> None:
    roof = measure_ceiling(cuda(), "bf16", 2**20, shapes=((2048, 2048, 2048),), copy_bytes=2**28)
    assert 1e12 < roof.flops_per_s < 1e16 and 1e10 < roof.bytes_per_s < 1e14


def test_the_device_is_described() -> None:
    info = describe(cuda())
    assert info.kind == "cuda" and info.device and info.threads is None
    assert 2**18 <= info.cache_bytes < 2**32
