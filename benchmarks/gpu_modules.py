"""Reference modules on a CUDA device, in fp32 and bf16, against the same on a CPU in float64.

Every structure of the catalog whose layers fit: the first two layers of its first model (as many as
its rules need), its vocabulary and experts cut, random weights, 33 tokens. Beside it the memory of
the weights by the count, and what the allocator says. `--device cpu` rehearses it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from metacount import catalog
from metacount.errors import SpecError
from metacount.modules.build import DTYPES, build
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import count
from metacount.textbook.proven import structure

FILE = Path(__file__).resolve().parent / "results" / "gpu-modules.jsonl"
TOKENS = 33
MOST_PARAMS = 500_000_000  # of the shortened model: float64 on a CPU is slow
MOST_WORDS, MOST_EXPERTS = 1024, 16
# logits of two layers; bf16 rounds every product, and a vocabulary is a wide sum
BOUNDS = {"fp32": 1e-4, "bf16": 5e-2}


def shortened(spec: ModelSpec) -> ModelSpec | str:
    """The first layers of a model, or why there are none."""
    fewer: dict[str, Any] = {}
    if spec.vocab_size:
        fewer["vocab_size"] = min(spec.vocab_size, MOST_WORDS)
    if spec.is_moe and not spec.n_groups:
        fewer["n_experts"] = min(spec.n_experts, max(MOST_EXPERTS, spec.top_k))
    for n_layers in (2, 3, 4, 6, 8, 12):
        try:
            changes = fewer | {"n_layers": n_layers}
            if spec.n_encoder_layers:
                changes["n_encoder_layers"] = n_layers
            if spec.n_dense_layers:
                changes["n_dense_layers"] = 1
            short = spec.replace(**changes)
            params = count(short, Workload()).params
        except SpecError as error:
            reason = str(error).splitlines()[0]
            continue
        if params > MOST_PARAMS:
            return f"{params:,} parameters in {n_layers} layers"
        return short
    return reason


def outcome(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits, or hidden states where a model has no head; the source is the target backwards."""
    how = {"memory_BTD": model.encode(ids.flip(1))} if model.spec.has_encoder else {}
    out = model(ids, **how)
    found: torch.Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
    return found


def run_one(spec: ModelSpec, dtype: str, device: torch.device) -> dict[str, Any]:
    """The relative error of the logits, and the memory of the weights."""
    # drawn on the device, which is faster; what is expected is computed on the CPU
    exact = build(spec, device=str(device), dtype="fp64", seed=0).cpu()
    torch.manual_seed(1)
    if spec.vocab_size is None:
        given = torch.randn(1, TOKENS, spec.d_model, dtype=torch.float64)
    else:
        given = torch.randint(spec.vocab_size, (1, TOKENS))
    expected = outcome(exact, given)
    state = exact.state_dict()
    del exact
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    model = build(spec, device=str(device), dtype=dtype)
    model.load_state_dict({name: t.to(DTYPES[dtype]) for name, t in state.items()})
    taken = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    there = given.to(device, DTYPES[dtype] if given.is_floating_point() else None)
    got = outcome(model, there).double().cpu()
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    error = float((got - expected).norm() / expected.norm())
    figures = count(spec, Workload(seq_len=TOKENS, dtype=dtype))
    return {
        "relative_error": error,
        "param_bytes": figures.param_bytes,
        "allocated": taken,
        "peak": peak,
    }


def main() -> int:
    """Every model that fits into the time; 1 where one is further off than its dtype explains."""
    parser = argparse.ArgumentParser(description="Compare reference modules on a device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", nargs="+", help="only these")
    parser.add_argument("--seconds", type=float, default=420.0, help="begin nothing after these")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.set_float32_matmul_precision("highest")
    began, lines, wrong, seen = time.perf_counter(), [], [], set()
    for entry in catalog.entries():
        if entry.sizes is None or (args.model and entry.id not in args.model):
            continue
        spec = entry.spec()
        if not args.model and structure(spec) in seen:
            continue
        seen.add(structure(spec))
        short = shortened(spec)
        if isinstance(short, str):
            print(f"{entry.id:<24} not run: {short}")
            continue
        for dtype in ("fp32", "bf16"):
            if time.perf_counter() - began > args.seconds:
                print(f"{entry.id:<24} not run: no time left")
                continue
            try:
                with torch.no_grad():
                    found = run_one(short, dtype, device)
            except (RuntimeError, TypeError, ValueError) as error:
                print(f"{entry.id:<24} {dtype} failed: {str(error).splitlines()[0]}")
                wrong.append(entry.id)
                continue
            print(
                f"{entry.id:<24} {dtype} {found['relative_error']:.2e} weights "
                f"{found['param_bytes']:,} allocated {found['allocated']}"
            )
            lines.append({"model": entry.id, "dtype": dtype, "device": str(device), **found})
            if not found["relative_error"] < BOUNDS[dtype]:
                wrong.append(entry.id)
    if device.type == "cuda":
        with FILE.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    print(f"wrong: {', '.join(wrong) or 'none'}; {len(lines)} compared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
