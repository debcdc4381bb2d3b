"""How cost grows: with configurations, files of a folder, layers, experts, models and ranks.

python benchmarks/scale.py [--quick] [--json]

Times are held against a bare `python -c pass` or `import torch` of the same run, so that a busy
machine slows all alike. Exit code 1 when a mark is missed, or when a figure that was counted
quickly is not the one that is counted alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cold_start import PASS, TORCH, Run, compile_package, measured, metacount, python

HERE = Path(__file__).resolve().parent

CONFIGS_PER_SECOND = 1_000_000  # formulas over arrays, one core
FOLDER_SECONDS = 60.0  # for FOLDER_FILES files on two cores
FOLDER_FILES = 100_000
CHECKED = 200  # results of a sweep that are computed again, one by one


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. `ratio` is to `against`; `mark` bounds `ratio`, or `rate` from below."""

    what: str
    seconds: float
    against: str
    ratio: float
    rate: str
    mark: str
    holds: bool
    peak_mib: float | None = None


def sweeps(n: int, rng: Any) -> list[tuple[str, Any]]:
    """Three structures with n random sizes each; the largest FLOPs stay below 2^63."""
    from metacount import entry

    made = []
    for name in ("llama-7b", "mixtral-8x7b", "deepseek-v3"):
        spec = entry(name).spec()
        sizes = {
            "d_model": 64 * rng.integers(1, 129, n),  # to 8192
            "n_layers": rng.integers(4, 129, n),
            "vocab_size": rng.integers(1_000, 300_000, n),
        }
        if spec.d_ff is not None:
            sizes["d_ff"] = rng.integers(64, 32_768, n)
        if spec.attention == "gqa":
            n_kv_heads = rng.integers(1, 9, n)
            sizes["n_kv_heads"] = n_kv_heads
            sizes["n_heads"] = n_kv_heads * rng.integers(1, 17, n)
            sizes["head_dim"] = 8 * rng.integers(1, 33, n)
        if spec.is_moe:
            sizes["n_experts"] = 8 * rng.integers(8, 33, n)
            sizes["d_ff_expert"] = rng.integers(64, 8_192, n)
        made.append((name, (spec, sizes)))
    return made


def over_arrays(n: int) -> list[Row]:
    """Whole-model formulas over int64 arrays of n configurations, in this process."""
    import numpy

    from metacount.formulas import model

    run = {"batch_size": 1, "seq_len": 2048}
    formulas: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
        "params": (model.params, {}),
        "active_params": (model.active_params, {}),
        "matmul_flops": (model.matmul_flops, run),
        "kv_cache_bytes": (model.kv_cache_bytes, {**run, "bytes_per_value": 2}),
    }
    rng = numpy.random.default_rng(0)
    rows = []
    for name, (spec, sizes) in sweeps(n, rng):
        many = spec.substituted(**sizes)
        for figure, (formula, workload) in formulas.items():
            formula(spec.substituted(**{k: v[:1000] for k, v in sizes.items()}), **workload)
            start = time.perf_counter()
            found = formula(many, **workload)
            seconds = time.perf_counter() - start
            for i in range(0, n, n // CHECKED):
                one = spec.replace(**{k: int(v[i]) for k, v in sizes.items()})
                if int(found[i]) != formula(one, **workload):
                    sys.exit(f"{name}: {figure} over arrays differs at {i}")
            start = time.perf_counter()
            sum(x * x for x in range(n))
            bare = time.perf_counter() - start
            row = Row(
                what=f"{figure} of {n:,} × {name}",
                seconds=seconds,
                against="a Python loop of as many x·x",
                ratio=seconds / bare,
                rate=f"{n / seconds / 1e6:.1f} M/s",
                mark=f">= {CONFIGS_PER_SECOND / 1e6:.0f} M/s",
                holds=n / seconds >= CONFIGS_PER_SECOND,
            )
            rows.append(row)
    return rows


def random_config(rng: random.Random, bases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A published description with other sizes: a spec of ours, or a Hugging Face config."""
    config = dict(rng.choice(bases))
    heads = 8 * rng.randint(1, 16)
    sizes = {
        "n_layers": rng.randint(8, 128),
        "num_hidden_layers": rng.randint(8, 128),
        "n_layer": rng.randint(1, 128),
        "num_layers": rng.randint(1, 64),
        "vocab_size": rng.randint(1_000, 300_000),
        "d_ff": 64 * rng.randint(1, 512),
        "intermediate_size": 64 * rng.randint(1, 512),
        "moe_intermediate_size": 64 * rng.randint(1, 128),
    }
    if "model_type" in config:
        kv_heads = heads // rng.choice((1, 2, 4, 8))
        own_head_dim = any(key in config for key in ("head_dim", "d_kv", "kv_lora_rank"))
        width = 64 * rng.randint(1, 256) if own_head_dim else heads * rng.choice((64, 96, 128))
        sizes |= {
            **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), heads),
            "num_key_value_heads": heads if "kv_lora_rank" in config else kv_heads,
            **dict.fromkeys(("hidden_size", "n_embd", "d_model"), width),
        }
    else:
        sizes["d_model"] = 64 * rng.randint(2, 256)
    if "B" in (config.get("ffn_pattern") or ""):  # such layers come in pairs
        sizes["n_layers"] = 2 * rng.randint(4, 64)
    return config | {key: size for key, size in sizes.items() if config.get(key) is not None}


def write_configs(folder: Path, n: int) -> None:
    """n different descriptions in folders of a thousand, in a fixed random order."""
    from metacount.catalog import entries

    bases = [dict(entry.sizes) for entry in entries() if entry.sizes is not None]
    files = sorted((HERE / "peer_models").glob("*.json"))
    foreign = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    # as many of either kind
    bases += foreign * (len(bases) // len(foreign))
    rng = random.Random(0)
    for i in range(n):
        if i % 1000 == 0:
            (folder / f"{i // 1000:03}").mkdir(parents=True)
        text = json.dumps(random_config(rng, bases))
        (folder / f"{i // 1000:03}" / f"{i:06}.json").write_text(text, encoding="utf-8")


def folders(sizes: Sequence[int], bare: Run) -> list[Row]:
    """`metacount count --folder` of so many files, each result as `count` gives it alone."""
    rows = []
    for n in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "configs")
            write_configs(folder, n)
            out = Path(name, "out.jsonl")
            with out.open("wb") as file:
                run = measured(metacount("count", "--folder", str(folder), "--json"), file)
            _check_folder(folder, out, n)
        limit = max(FOLDER_SECONDS * n / FOLDER_FILES, 3.0)  # a few files are all start-up
        row = Row(
            what=f"count --folder of {n:,} configs",
            seconds=run.seconds,
            against="python -c pass",
            ratio=run.seconds / bare.seconds,
            rate=f"{run.seconds / n * 1000:.2f} ms each",
            mark=f"<= {limit:.0f} s",
            holds=run.seconds <= limit,
            peak_mib=round(run.peak_bytes / 2**20, 1),
        )
        rows.append(row)
    return rows


def _check_folder(folder: Path, out: Path, n: int) -> None:
    from metacount.resolve import Model, find_in_file
    from metacount.spec import Workload
    from metacount.textbook.count import count

    n_lines = 0
    with out.open(encoding="utf-8") as lines:
        for n_lines, line in enumerate(lines, 1):
            if n_lines % (n // CHECKED) == 0:
                found = json.loads(line)
                model = find_in_file(str(folder / found["model"]))
                if not isinstance(model, Model):
                    sys.exit(f"{found['model']} has no formula")
                alone = count(model.spec, Workload()).to_dict()
                if any(found[key] != value for key, value in alone.items()):
                    sys.exit(f"{found['model']} counts differently alone")
    if n_lines != n:
        sys.exit(f"{n_lines} lines for {n} files")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Commands that do the same with more and more; the last may take `most` times the first."""

    what: str
    commands: tuple[tuple[str, ...], ...]
    most: float


def layers(counts: Sequence[int]) -> Growth:
    """`verify` of a model with more and more layers."""
    return Growth(
        what="verify llama-7b, n_layers =",
        commands=tuple(("verify", "llama-7b", "--set", f"n_layers={n}") for n in counts),
        most=3.0,
    )


def experts(counts: Sequence[int]) -> Growth:
    """`verify` of a model with more and more experts."""
    return Growth(
        what="verify deepseek-v3, n_experts =",
        commands=tuple(("verify", "deepseek-v3", "--set", f"n_experts={n}") for n in counts),
        most=1.5,
    )


def several(counts: Sequence[int]) -> Growth:
    """`verify` of more and more models at once."""
    names = (
        "llama-7b",
        "mixtral-8x7b",
        "gpt2",
        "bert-base",
        "t5-base",
        "qwen3-0.6b",
        "gemma-7b",
        "gpt-oss-20b",
        "olmo2-7b",
        "mistral-7b",
    )
    return Growth(
        what="verify, models:",
        commands=tuple(("verify", *names[:n]) for n in counts),
        most=float(counts[-1]),
    )


def dense_ranks(counts: Sequence[int]) -> Growth:
    """`shard` of a dense model, a step of training, on more and more ranks."""
    return Growth(
        what="shard --train llama3.1-405b, ranks =",
        commands=tuple(sharded("llama3.1-405b", f"dp={n // 64},tp=8,pp=8") for n in counts),
        most=2.0,
    )


def expert_ranks(counts: Sequence[int]) -> Growth:
    """`shard` of a model with experts, which more and more ranks hold."""
    return Growth(
        what="shard --train deepseek-v3, ranks =",
        commands=tuple(sharded("deepseek-v3", f"dp={n // 64},tp=8,pp=8,ep=64") for n in counts),
        most=2.0,
    )


def sharded(model: str, mesh: str) -> tuple[str, ...]:
    """The command that puts a step of training on a mesh."""
    return ("shard", model, "--mesh", mesh, "--train")


def grow(growth: Growth, labels: Sequence[int], rounds: int, torch: Run) -> list[Row]:
    """Each command beside importing torch; the last one is held against the first."""
    times: dict[tuple[str, ...], list[Run]] = {command: [] for command in growth.commands}
    for _ in range(rounds):
        for command, runs in times.items():
            runs.append(measured(metacount(*command)))
    seconds = [median(run.seconds for run in runs) for runs in times.values()]
    rows = []
    for label, command, took in zip(labels, growth.commands, seconds, strict=True):
        last = command == growth.commands[-1]
        row = Row(
            what=f"{growth.what} {label:,}",
            seconds=took,
            against="import torch",
            ratio=took / torch.seconds,
            rate=f"{took / seconds[0]:.2f} × the first",
            mark=f"<= {growth.most:g} × the first" if last else "",
            holds=not last or took <= growth.most * seconds[0],
            peak_mib=round(max(run.peak_bytes for run in times[command]) / 2**20, 1),
        )
        rows.append(row)
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    print(f"{'':<44} {'s':>8} {'MiB':>6} {'ratio':>8}  {'rate':<18} mark")
    for row in rows:
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
        verdict = row.mark + ("" if row.holds else "  MISSED")
        line = f"{row.what:<44} {row.seconds:>8.3f} {peak:>6} {row.ratio:>8.2f}  {row.rate:<18}"
        print(f"{line} {verdict}".rstrip())
    print("ratio: arrays, to a Python loop of as many x·x; folders, to python -c pass;")
    print("verify and shard, to importing torch.")
    print("Arrays are int64: their sizes keep every figure below 2^63.")


def baseline(command: tuple[str, ...], rounds: int) -> Run:
    """The median of so many runs of a bare interpreter."""
    runs = [measured(python(*command)) for _ in range(rounds + 1)][1:]
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer files, layers and rounds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    compile_package()
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds = 1 if args.quick else 3
    sizes = (1_000,) if args.quick else (1_000, FOLDER_FILES)
    rows = folders(sizes, baseline(PASS, 2 * rounds + 1))
    torch = baseline(TORCH, rounds)
    steps = {
        layers: (1, 100) if args.quick else (1, 10, 100, 1_000),
        experts: (64, 256) if args.quick else (64, 256, 1_024, 4_096),
        several: (1, 3) if args.quick else (1, 3, 10),
        dense_ranks: (4_096, 102_400),
        expert_ranks: (4_096, 102_400),
    }
    for growth, counts in steps.items():
        rows += grow(growth(counts), counts, rounds, torch)
    # last: a process starts with what its parent holds, and NumPy is much
    rows += over_arrays(100_000 if args.quick else 1_000_000)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
    else:
        show(rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
