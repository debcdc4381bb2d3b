"""Closed forms read off every model type, and tried at sizes they were not made from.

python benchmarks/forms.py [TYPE…] [--kind causal-LM] [--flops] [--configs 3] [--save FILE]

A form of the parameters must give what `numel()` gives at the type's default sizes and at random
valid sizes that were not used to find it; with --flops, a form of the FLOPs is read too. Each type
runs in a process of its own, one on each core. Exit code 1 when fewer than
95 % of them have a form.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 20
DRAWS = 60
SECONDS = 400


def other_sizes(values: dict[str, int], draw: random.Random) -> dict[str, int]:
    """Some sizes changed: halved, doubled, or a little larger."""
    changed = {}
    for name, value in values.items():
        if draw.random() < 0.5:
            choices = [value * 2, value + 2 * draw.randint(1, 9), value * 3]
            choices += [value // 2] if value % 2 == 0 and value > 4 else []
            changed[name] = draw.choice(choices)
    return changed


def held_out(kind: str, model_type: str, form: Any, configs: int) -> int:
    """At how many other configs, of at most `configs`, the form gives what `numel()` gives."""
    import sympy

    from metacount.errors import SpecError
    from metacount.huggingface.module.model import build_transformers
    from metacount.tracing.domain import in_domain
    from metacount.tracing.sources import size_values, whole_fields, with_fields
    from metacount.tracing.symbols import symbol

    source = source_of(kind, model_type)
    values = size_values(source)
    draw = random.Random(f"{SEED} {model_type}")
    found = 0
    total = form.total
    for _ in range(DRAWS):
        if found == configs:
            break
        changed = other_sizes(
            {n: v for n, v in values.items() if symbol(n) in total.free_symbols}, draw
        )
        numbers = {symbol(n): v for n, v in {**form.numbers, **values, **changed}.items()}
        if not changed or not in_domain(
            form.domain, {**form.every_number, **numbers}, form.every_number
        ):
            continue
        other = with_fields(source, {**values, **changed})
        try:
            module, _ = build_transformers(other)
            # a config may put sizes right that must be equal
            kept = {**values, **changed}.items() <= whole_fields(other).items()
        except SpecError:
            continue
        if not kept:
            continue
        true = sum({id(p): p.numel() for p in module.parameters()}.values())
        value = total.xreplace({s: sympy.Integer(numbers[s]) for s in total.free_symbols})
        if value.doit() != true:
            raise AssertionError(f"at {changed} the form gives {value}, numel() {true}")
        found += 1
    return found


def source_of(kind: str, model_type: str, *, runs: bool = False) -> dict[str, Any]:
    """The default config of a type for its class of one kind; `runs`: one that can be run."""
    from metacount.huggingface.module.model import default_config, model_types, running_config

    config = (running_config if runs else default_config)(model_type)
    return {**config, "architectures": [model_types(kind)[model_type]]}


def read_forms(kind: str, model_type: str, configs: int, flops: bool) -> Iterator[dict[str, Any]]:
    """The row of one type, first with what is known of its parameters alone."""
    from metacount.huggingface.module.model import build_transformers
    from metacount.spec import Workload
    from metacount.tracing.forms import Tracer

    row: dict[str, Any] = {"kind": kind, "model_type": model_type, "builds": False}
    start = time.monotonic()
    try:
        build_transformers(source_of(kind, model_type))
        row["builds"] = True
        tracer = Tracer(source_of(kind, model_type), Workload(seq_len=48))
        form = tracer.form("params")
        row["params"], row["params_fixed"] = form.how, fixed(form)
        row["params_s"] = round(time.monotonic() - start, 1)
        row["confirmed_at"] = held_out(kind, model_type, form, configs)
    except Exception as error:  # somebody else's code: whatever it raised is the reason
        row["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    yield row
    if not flops or not row["builds"]:
        return
    start = time.monotonic()
    try:
        running = source_of(kind, model_type, runs=True)
        if running != source_of(kind, model_type):
            tracer = Tracer(running, Workload(seq_len=48))
        found = tracer.form("matmul_flops")
        row["matmul_flops"], row["flops_confirmed_at"] = found.how, found.confirmed
        row["flops_fixed"] = fixed(found)
        if found.how != "traced":
            row["flops_not_traced"] = "; ".join(found.notes)
    except Exception as error:
        row["flops_problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    row["flops_s"] = round(time.monotonic() - start, 1)
    yield row


def fixed(form: Any) -> dict[str, int]:
    """Sizes for one number of which the form holds."""
    import sympy

    return {
        str(c.lhs): int(c.rhs) for c in form.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer
    }


def _child(queue: Any, *asked: Any) -> None:
    import logging

    logging.disable(logging.CRITICAL)
    for row in read_forms(*asked):
        queue.put(row)


def one(kind: str, model_type: str, configs: int, flops: bool) -> dict[str, Any]:
    """`read_forms` in a process that is stopped when it takes too long."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_child, args=(queue, kind, model_type, configs, flops))
    process.start()
    process.join(SECONDS)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    row: dict[str, Any] = {"kind": kind, "model_type": model_type, "builds": True}
    while not queue.empty():
        row = queue.get()
    if late:
        row["flops_problem" if "params" in row else "problem"] = f"no answer within {SECONDS} s"
    return row


def main() -> int:
    """Read, try, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("types", metavar="TYPE", nargs="*")
    parser.add_argument("--kind", default="causal-LM")
    parser.add_argument("--flops", action="store_true", help="forms of the FLOPs too")
    parser.add_argument("--configs", type=int, default=3, help="other configs (default 3)")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    args = parser.parse_args()
    from concurrent.futures import ThreadPoolExecutor
    from importlib import import_module

    from metacount.huggingface.module.model import model_types

    import_module("metacount.tracing.forms")  # once, for all the processes that are forked

    types = args.types or list(model_types(args.kind))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        rows = []
        for row in pool.map(lambda t: one(args.kind, t, args.configs, args.flops), types):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    built = [row for row in rows if row["builds"]]
    good = [row for row in built if "params" in row and row.get("confirmed_at", 0)]
    print(
        f"{len(good)} of {len(built)} types that build have a form of their parameters, "
        "confirmed at other sizes"
    )
    share = len(good) / max(1, len(built))
    if args.flops:
        flops = [row for row in built if "matmul_flops" in row]
        traced = [row for row in flops if row["matmul_flops"].startswith("traced")]
        print(
            f"{len(flops)} of {len(built)} have a form of their FLOPs, {len(traced)} of them traced"
        )
        share = min(share, len(flops) / max(1, len(built)))
    if args.save:
        args.save.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
