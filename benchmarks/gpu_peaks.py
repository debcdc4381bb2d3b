"""Peak memory of a training step on a CUDA device, against what `train` measures on meta.

    python benchmarks/gpu_peaks.py [--model NAME...] [--seconds N]

Ten models, attention written out (eager), by what torch chooses (sdpa) and by flash attention. The
difference from `max_memory_allocated` is accounted for, block by block: what the allocator rounds
up, and the blocks that are alive at one peak and not at the other, by size. Workspaces of cuBLAS
are allocated before the step is measured. A line of JSON each goes to `results/gpu-peaks.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from metacount import Workload, catalog
from metacount.bench.device import environment
from metacount.errors import InputError
from metacount.modules.build import build
from metacount.training.programs import reference_program
from metacount.training.setup import Setup
from metacount.training.step import Step, measure_step

FILE = Path(__file__).resolve().parent / "results" / "gpu-peaks.jsonl"
# What is cut off a model whose step would not fit, or would take long to build.
MODELS: dict[str, dict[str, int]] = {
    "gpt2": {},
    "smollm2-135m": {},
    "qwen3-0.6b": {},
    "olmo2-1b": {"n_layers": 4},
    "llama-7b": {"n_layers": 2},
    "gemma2-2b": {"n_layers": 4},
    "lfm2-350m": {},
    "mamba2-130m": {},
    "t5-small": {},
    "switch-base-8": {"n_layers": 4, "n_encoder_layers": 4},
}
ATTENTION = ("eager", "sdpa", "flash")
WORKLOAD = Workload(batch_size=4, seq_len=1024, dtype="bf16")
MOST_EVENTS = 2_000_000


def sizes_at_peak(events: Sequence[dict[str, Any]]) -> Counter[int]:
    """Count the blocks alive, by the bytes asked for, where these sum to the most.

    >>> events = [("alloc", 1, 8), ("alloc", 2, 16), ("free_requested", 1, 8), ("alloc", 3, 4)]
    >>> sizes_at_peak([dict(zip(("action", "addr", "size"), e)) for e in events])
    Counter({8: 1, 16: 1})
    """
    alive: dict[int, int] = {}
    total = most = 0
    best: Counter[int] = Counter()
    risen = False
    for event in [*events, {"action": "free_requested", "addr": None}]:
        address = event["addr"]
        if event["action"] == "alloc":
            alive[address] = event["size"]
            total += event["size"]
            risen = True
        elif event["action"] == "free_requested":
            if risen and total > most:  # a peak lies where the first block goes after others came
                most, best = total, Counter(alive.values())
            risen = False
            total -= alive.pop(address, 0)
    return best


def use_workspaces(device: torch.device) -> None:
    """Let cuBLAS take its workspaces, on this thread and on that of the backward."""
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(256, 256, device=device, dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x @ x, x, x[0]).sum().backward()
        torch.bmm(x[None], x[None]).sum().backward()
    torch.cuda.synchronize(device)


def kernels(attention: str) -> AbstractContextManager[None]:
    """Let `scaled_dot_product_attention` run by flash attention alone where that was asked for."""
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if attention == "flash" else nullcontext()


def on_device(model_id: str, setup: Setup, device: torch.device) -> dict[str, Any]:
    """Run a second step on the device, all blocks written down from the first parameter on."""
    spec = catalog.entry(model_id).spec().replace(**MODELS[model_id])
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats(device)
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=MOST_EVENTS
    )
    try:
        with device:
            model = build(spec, device=str(device), dtype=WORKLOAD.dtype)
        program = reference_program(model, WORKLOAD, setup, device=str(device))
        with Step(program, setup) as step, kernels(setup.attention):
            for _ in range(2):  # the optimizer's state is there in the second one
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
                with program.context():
                    step.loss_of(step.forward()).backward()
                step.updates.step()
            torch.cuda.synchronize(device)
            after = torch.cuda.memory_stats(device)
            events = torch.cuda.memory._snapshot(device)["device_traces"][device.index]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    if len(events) >= MOST_EVENTS:
        raise RuntimeError(f"more than {MOST_EVENTS:,} events of the allocator")
    asked, given = "requested_bytes.all", "allocated_bytes.all"
    return {
        "max_memory_allocated": after[f"{given}.peak"] - before[f"{given}.current"],
        "requested": after[f"{asked}.peak"] - before[f"{asked}.current"],
        "sizes": sizes_at_peak(events),
    }


def on_meta(model_id: str, setup: Setup) -> Counter[int]:
    """Count the storages alive at the peak of the step that `train` measures, by their bytes."""
    spec = catalog.entry(model_id).spec().replace(**MODELS[model_id])
    model = build(spec, dtype=WORKLOAD.dtype)
    found = measure_step(reference_program(model, WORKLOAD, setup), setup)
    _, alive = found.ledger.peak()
    # the numbers of steps, four bytes a parameter, are on the host
    on_host = {
        number
        for number in found.numbers["optimizer state"]
        if found.ledger.bytes[number] == torch.float32.itemsize
    }
    return Counter(size for number in alive - on_host if (size := found.ledger.bytes[number]) > 0)


def compare(model_id: str, attention: str, device: torch.device) -> dict[str, Any]:
    """Lay both peaks beside each other, and name the blocks that only one of them has."""
    setup = Setup(attention=attention)
    meta = on_meta(model_id, setup)
    there = on_device(model_id, setup, device)
    sizes = there.pop("sizes")
    predicted = sum(size * n for size, n in meta.items())
    return {
        "model": model_id,
        "changes": MODELS[model_id],
        "attention": attention,
        "workload": {"batch_size": WORKLOAD.batch_size, "seq_len": WORKLOAD.seq_len},
        "dtype": WORKLOAD.dtype,
        "predicted": predicted,
        **there,
        "rounding": there["max_memory_allocated"] - there["requested"],
        "blocks_at_peak": sum(size * n for size, n in sizes.items()),
        "only_on_device": sorted((sizes - meta).items(), reverse=True)[:40],
        "only_predicted": sorted((meta - sizes).items(), reverse=True)[:40],
    }


def main() -> int:
    """Compare every model and way; 1 where one could not be run or takes less than is predicted."""
    parser = argparse.ArgumentParser(description="Compare peaks of training on a device.")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=400.0, help="begin nothing after these")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    use_workspaces(device)
    about, began, wrong = environment(device), time.perf_counter(), []
    for model_id in args.model:
        for attention in ATTENTION:
            if time.perf_counter() - began > args.seconds:
                print(f"{model_id} {attention}: not run, no time left")
                continue
            try:
                line = compare(model_id, attention, device)
            except InputError as error:  # what `train` refuses as well
                print(f"{model_id} {attention}: {str(error).splitlines()[0]}")
                continue
            except (RuntimeError, ValueError) as error:
                print(f"{model_id} {attention}: failed: {str(error).splitlines()[0]}")
                wrong.append(model_id)
                continue
            more = line["max_memory_allocated"] - line["predicted"]
            print(
                f"{model_id:<14} {attention:<6} predicted {line['predicted']:>14,} "
                f"allocated {line['max_memory_allocated']:>14,} more {more:,} "
                f"(rounding {line['rounding']:,}) only there {line['only_on_device'][:6]} "
                f"only predicted {line['only_predicted'][:6]}",
                flush=True,
            )
            with FILE.open("a", encoding="utf-8") as out:
                out.write(json.dumps({**about, **line}) + "\n")
            if more < 0:
                wrong.append(model_id)
    print(f"wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
