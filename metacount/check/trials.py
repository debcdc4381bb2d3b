"""Other sizes for the same structure: valid models, at random or as small as they go."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from metacount.errors import SpecError
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload, legend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Case = tuple[ModelSpec, Workload]

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 24, 29, 31, 64, 96)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13)
NAMES = tuple(term.name for term in legend.MODEL_TERMS)
COUNTED = (
    "n_layers",
    "n_encoder_layers",
    "n_dense_layers",
    "n_kv_heads",
    "top_k",
    "n_shared_experts",
    "moe_every",
    "moe_offset",
    "n_groups",
    "top_groups",
    "n_token_types",
    "nope_every",
    "n_mtp_layers",
)
ATTEMPTS = 40  # for each case that is wanted; most keep the rules at once


def free_sizes(spec: ModelSpec) -> tuple[str, ...]:
    """Name the fields of `spec` that are sizes; what is 0 or None is structure and stays."""
    names = [name for name in NAMES if getattr(spec, name)]
    return tuple(n for n in names if n != "moe_every" or spec.moe_every > 1)


def random_cases(spec: ModelSpec, workload: Workload, n: int, *, seed: int = 0) -> list[Case]:
    """Draw up to `n` valid models of the structure of `spec`, each with a workload."""
    draw = random.Random(seed)
    cases: list[Case] = []
    for _ in range(n * ATTEMPTS):
        if len(cases) == n:
            break
        try:
            other = spec.replace(**_sizes(spec, draw))
        except SpecError:
            continue
        cases.append((other, _run(other, workload, draw)))
    return cases


def alike(spec: ModelSpec, other: ModelSpec) -> ModelSpec:
    """Return `other` with those of its sizes equal that are equal in `spec`.

    Raises `SpecError` where the rules of sizes allow no such model.
    """
    equal = {}
    if spec.n_kv_heads and spec.n_kv_heads == spec.n_heads:
        equal["n_kv_heads"] = other.n_heads
    d_model = other.d_model
    if spec.head_dim and spec.n_heads * spec.head_dim == spec.d_model:
        equal["d_model"] = d_model = other.n_heads * other.head_dim
    if spec.d_ff and spec.d_ff % spec.d_model == 0:
        equal["d_ff"] = spec.d_ff // spec.d_model * d_model
    return other.replace(**equal)


def _sizes(spec: ModelSpec, draw: random.Random) -> dict[str, int]:
    sizes = {n: draw.choice(COUNTS if n in COUNTED else WIDTHS) for n in free_sizes(spec)}
    if "vocab_size" in sizes:
        sizes["vocab_size"] = draw.randint(20, 200)
    if "n_kv_heads" in sizes:
        sizes["n_heads"] = sizes["n_kv_heads"] * draw.choice((1, 1, 2, 3, 5))
    if "n_groups" in sizes:
        sizes["n_experts"] = sizes["n_groups"] * draw.choice((2, 3, 5))
        sizes["top_groups"] = draw.randint(1, sizes["n_groups"])
    if "n_experts" in sizes:
        sizes["top_k"] = min(sizes["top_k"], sizes["n_experts"])
    if "n_dense_layers" in sizes:
        sizes["n_layers"] = sizes["n_dense_layers"] + draw.choice(COUNTS)
    if "head_dim" in sizes and spec.position == "rope":
        sizes["head_dim"] *= 2
    if "head_dim" in sizes and draw.random() < 0.3:
        # many formulas take this for granted
        sizes["d_model"] = sizes["n_heads"] * sizes["head_dim"]
    if "rotary_dim" in sizes:
        sizes["rotary_dim"] = 2 * draw.randint(1, sizes["head_dim"] // 2 or 1)
    if "qk_rope_head_dim" in sizes:
        sizes["qk_rope_head_dim"] *= 2
    sizes |= _index_sizes(sizes, draw)
    if "n_buckets" in sizes:
        sizes["n_buckets"] *= 4
        sizes["max_distance"] = sizes["n_buckets"] + draw.choice(WIDTHS)
    if "window" in sizes:
        sizes["window"] += 1
    if "position_offset" in sizes:
        sizes["n_positions"] = sizes["position_offset"] + draw.choice(WIDTHS)
    return sizes


def _index_sizes(sizes: dict[str, int], draw: random.Random) -> dict[str, int]:
    """Draw the sizes of a block indexer that go with the others; nothing without one."""
    if "index_block_len" not in sizes:
        return {}
    return {
        "index_local_blocks": draw.randint(1, sizes["index_top_blocks"]),
        "n_index_heads": sizes["n_kv_heads"],
        "index_head_dim": sizes["index_head_dim"] + sizes.get("rotary_dim", sizes["head_dim"]),
    }


def _run(spec: ModelSpec, workload: Workload, draw: random.Random) -> Workload:
    seq_len = draw.randint(1, 40)
    return Workload(
        batch_size=draw.randint(1, 5),
        seq_len=seq_len,
        dtype=draw.choice([*DTYPE_BYTES]),
        source_len=draw.randint(1, 40) if spec.has_encoder else None,
        prefix_len=draw.randint(1, seq_len) if workload.prefix_len else 0,
    )


def shrunk(case: Case, differs: Callable[[Case], bool]) -> Case:
    """Lower the sizes of a case, one after the other, as long as the two still differ."""
    changed = True
    while changed:
        changed = False
        for other in _smaller(case):
            if differs(other):
                case, changed = other, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield the case with one size lowered: to the smallest that the rules allow first."""
    spec, run = case
    for name in free_sizes(spec):
        size = getattr(spec, name)
        parts = (size // 2, *(size - size // n for n in (4, 16, 64, 256, 1024)), size - 1)
        for lower in sorted({*range(1, 7), *parts}):
            if 0 < lower < size:
                try:
                    yield spec.replace(**{name: lower}), run
                except SpecError:
                    continue
    plain = run.to_dict()
    for name in ("batch_size", "seq_len", "source_len", "prefix_len"):
        size = plain[name] or 0
        for lower in sorted({*range(1, 7), size // 2, size - size // 16, size - 1}):
            if 0 < lower < size and (name != "seq_len" or lower >= run.prefix_len):
                yield spec, Workload(**{**plain, name: lower})
    if run.dtype != "int8":
        yield spec, Workload(**{**plain, "dtype": "int8"})


def sizes_of(case: Case) -> dict[str, int]:
    """Return every size of the model and of the run."""
    spec, run = case
    found = {name: getattr(spec, name) for name in free_sizes(spec)}
    found |= {"batch_size": run.batch_size, "seq_len": run.seq_len}
    if spec.has_encoder:
        found["source_len"] = run.encoder_len
    if run.prefix_len:
        found["prefix_len"] = run.prefix_len
    return found
