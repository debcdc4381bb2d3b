"""On a CUDA device: graphs, events, every layer and dtype. Skipped, with the reason, elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import pytest
import torch
from helpers.bench_layers import DENSE, LATENT, SPARSE, attention, ffn, mla, moe, norm, spec
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from torch import Tensor

from metacount.bench import layers
from metacount.bench.case import Case
from metacount.bench.device import cache_bytes_of, environment, flush_bytes, measure_ceiling
from metacount.bench.layers import Positions
from metacount.bench.rows import Ceiling
from metacount.bench.run import TOLERANCE, run_case
from metacount.bench.timing import (
    CaptureRoom,
    GraphStopwatch,
    Plan,
    Stopwatch,
    flusher,
    waits_for_host,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch's compiler warns of torch's own scripts, and its backward of its own thread
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

ROOF = Ceiling(dtype="bf16", flops_per_s=1e14, shape=(2, 3, 5), bytes_per_s=1e12)


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def graph_watch(calls: list[Any], *, flush: Any = None, check: Any = None) -> GraphStopwatch:
    room = CaptureRoom(cuda())
    room.warm_up(calls[0])
    return GraphStopwatch(
        calls,
        flush or (lambda: None),
        1e-4,
        room=room,
        states=("hot", "cold"),
        check=check or (lambda _out: None),
    )


def read(watch: Any, state: str, bursts: int = 8) -> float:
    found: list[float] = []
    with watch.turn():
        for _ in range(bursts):
            found += watch.burst(state)
    return median(found)


def small() -> list[Tensor]:
    return [torch.randn(2**16, device=cuda()) for _ in range(16)]


def test_the_launch_is_not_in_the_time_of_a_small_kernel() -> None:
    (x, *_) = small()
    # 256 KiB in and out of the L2: about 2 to 3 µs; a launch alone takes 8 to 10
    assert read(graph_watch([partial(torch.add, x, 1)]), "hot") < 6e-6


def test_the_profiler_says_the_same() -> None:
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(2**22, device=cuda())
    hot = read(graph_watch([partial(torch.add, x, 1)]), "hot")
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(50):
            torch.add(x, 1)
        torch.cuda.synchronize()
    kernels = [e.device_time for e in seen.events() if e.device_time > 0]
    # a graph's next kernel may begin before this one has ended
    assert hot == pytest.approx(median(kernels) * 1e-6, rel=0.15)


def test_a_cold_call_takes_longer() -> None:
    cache = cache_bytes_of(cuda())
    x = torch.randn(cache // 16, device=cuda())
    flush = flusher(cuda(), flush_bytes(cuda(), cache))
    watch = graph_watch([x.sum], flush=flush)
    assert read(watch, "hot") < read(watch, "cold")


def test_a_call_from_python_takes_no_less_than_its_graph() -> None:
    (x, *_) = small()
    call = partial(torch.add, x, 1)
    eager = Stopwatch([call], lambda: None, 1e-5, cuda())
    assert read(eager, "hot") > 0.9 * read(graph_watch([call]), "hot")


def test_what_waits_is_found_without_a_capture() -> None:
    x = torch.ones(1, device=cuda())
    assert waits_for_host(lambda: x.add_(1), cuda()) is None
    assert "synchroniz" in (waits_for_host(lambda: x.item(), cuda()) or "")
    assert int(x) > 1


def test_after_a_capture_that_failed_everything_works() -> None:
    room, x = CaptureRoom(cuda()), torch.ones(1, device=cuda())
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError):  # the words are the driver's
        room.capture(lambda: x.item())
    assert torch.cuda.current_stream() == before
    # in torch 2.11 the generator stayed as if capturing
    assert torch.isfinite(torch.randn(1, device="cuda")).all()
    graph, *_ = room.capture(lambda: x.add_(1))
    count = int(x)
    graph.replay()
    torch.cuda.synchronize()
    assert int(x) == count + 1
    room.leave()


def test_the_memory_of_a_turn_is_given_back() -> None:
    x = torch.randn(2**26, device=cuda())
    watch = graph_watch([lambda: (x + 1) * 2])
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with watch.turn():
        assert torch.cuda.memory_reserved() > before
    assert torch.cuda.memory_reserved() <= before + 2**22


def dense(dtype: str) -> list[Case]:
    sizes = spec(DENSE, d_model=256, n_heads=8, n_kv_heads=2, head_dim=64, d_ff=512)
    prefill = Positions(batch_size=2, seq_len=64, kv_len=64)
    decode = Positions(batch_size=2, seq_len=1, kv_len=96)
    return [
        ffn(sizes, 64, dtype, peers=True, directions=("backward",)),
        *(
            attention(sizes, at, dtype, layers.GPU_WAYS, core=core)
            for core in (False, True)
            for at in (prefill, decode)
        ),
        norm(sizes, 64, dtype),
    ]


def others() -> list[Case]:
    sparse = spec(SPARSE, d_model=256, d_ff_expert=128, n_experts=8)
    ranks = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32}
    latent = spec(LATENT, d_model=256, n_heads=4, v_head_dim=64, **ranks)
    prefill = Positions(batch_size=2, seq_len=64, kv_len=64)
    decode = Positions(batch_size=2, seq_len=1, kv_len=96)
    return [
        *(mla(latent, at, "bf16") for at in (prefill, decode)),
        *(moe(sparse, 64, routing, "bf16") for routing in layers.ROUTINGS),
    ]


PLAN = Plan(device=torch.device("cuda", 0), rounds=6, seconds=0.2)
# kernels of torch that refuse some of these shapes or dtypes, and other projects'
MAY_LACK = ("-cudnn", "-flash", "-efficient", "-fa3", "-liger", "-triton")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32", "fp32"])
@pytest.mark.parametrize("number", range(6))
def test_every_dense_layer_runs(number: int, dtype: str) -> None:
    check(dense(dtype)[number], dtype)


@pytest.mark.parametrize("number", range(4))
def test_every_other_layer_runs(number: int) -> None:
    check(others()[number], "bf16")


def check(case: Case, dtype: str) -> None:
    plan = replace(PLAN, compile=dtype in ("bf16", "fp32"))  # compiling is what takes time
    rows = run_case(case, plan, ROOF, cache_bytes_of(cuda()))
    fast = layers.grouped_on_device(cuda(), torch.bfloat16)
    waits = {"loop"} if fast else {"loop", "grouped"}
    for row in rows:
        if row.status == "not available" and (
            row.variant.endswith(MAY_LACK)
            or row.direction == "backward"
            or row.reason == "--no-compile"
        ):
            print(f"not run: {row.variant}: {row.reason}")
            continue
        assert row.status == "ok", (row.variant, row.direction, row.reason)
        assert row.variant not in waits or row.launch == "eager"
        assert row.median_s is not None and 0 < row.median_s < 0.1
        assert row.relative_error is not None and row.relative_error < TOLERANCE[dtype]
        if row.direction != "backward":
            assert row.working_bytes is not None and row.working_bytes > 0
    launches = {(row.variant, row.launch) for row in rows if row.status == "ok"}
    assert (case.variants[0], "graph") in launches and (case.variants[0], "eager") in launches


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "fp32"])
def test_the_ceiling_is_measured(dtype: str) -> None:
    roof = measure_ceiling(cuda(), dtype, 2**20, shapes=((2048, 2048, 2048),), copy_bytes=2**28)
    assert 1e12 < roof.flops_per_s < 1e16 and 1e10 < roof.bytes_per_s < 1e14
    assert roof.read_bytes_per_s is not None and roof.blas_library in ("cublas", "cublaslt")


def test_tf32_is_faster_than_fp32() -> None:
    short, full = (
        measure_ceiling(cuda(), dtype, 2**20, shapes=((4096, 4096, 4096),), copy_bytes=2**28)
        for dtype in ("tf32", "fp32")
    )
    assert short.flops_per_s > 2 * full.flops_per_s


def test_the_device_is_described() -> None:
    said = environment(cuda())
    assert said["kind"] == "cuda" and said["device"] and said["threads"] is None
    assert 2**18 <= said["cache_bytes"] < 2**32
    assert said["sms"] > 0 and said["cudnn"] and said["blas_library"]
