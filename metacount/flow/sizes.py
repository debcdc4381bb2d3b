"""Other sizes of the same structure, at which the same forward runs, so that sizes can be told.

Every letter gets a prime of its own in each run; what is 1, or equal because the model says so (as
many key/value heads as heads), stays so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from metacount.check.sizes import free_sizes
from metacount.spec import ModelSpec, Workload, legend

if TYPE_CHECKING:
    from collections.abc import Iterator


RUNS = 2  # beside the one that is shown

# Which blocks are of which kind: what is run must stay the same.
STRUCTURE = frozenset(
    [
        "n_layers",
        "n_encoder_layers",
        "n_dense_layers",
        "moe_every",
        "moe_offset",
        "nope_every",
        "position_offset",
        "max_distance",
        # how many blocks there are, and are chosen, is told as it is
        "index_block_len",
        "index_top_blocks",
        "index_local_blocks",
        "n_kv_shared_layers",
        "n_altup_inputs",
        "altup_active",
    ]
)
# No two letters of a run share a prime, and none is 2 or 3, which stand before letters.
SMALL = {
    "top_k": (5, 7),
    "n_shared_experts": (7, 5),
    "n_token_types": (5, 7),
    "top_groups": (11, 13),
    "n_groups": (13, 17),
    "conv_kernel": (7, 5),
    "linear_chunk_size": (11, 13),
    "ssm_chunk_size": (11, 13),
}
CHUNKS = ("linear_chunk_size", "ssm_chunk_size")
# A size that must divide another, which is so many times as large.
DIVIDES = {
    "n_linear_k_heads": "n_linear_v_heads",
    "n_ssm_groups": "n_ssm_heads",
    "n_lru_blocks": "lru_width",
}
BATCHES = (19, 23)
COUNTS = ((29, 31, 37, 43, 41), (31, 29, 41, 37, 43))
LENGTHS = ((47, 53), (67, 71))  # of the sequence, and of what an encoder reads
WINDOWS = {"inside": (23, 61), "beyond": (991, 997)}
POSITIONS = (499, 503)
WIDTHS = tuple(
    tuple(n for n in range(start, start + 190) if all(n % p for p in (2, 3, 5, 7, 11, 13, 17, 19)))
    for start in (73, 269)
)


class Sized(NamedTuple):
    """A model, what it runs, and the value of each letter there."""

    spec: ModelSpec
    workload: Workload
    letters: dict[str, int]


def other_sizes(spec: ModelSpec, workload: Workload, *, decode: bool) -> list[Sized]:
    """Return the same structure at `RUNS` other sizes."""
    found = []
    for n in range(RUNS):
        run = _workload(spec, workload, n)
        other = spec.substituted(**_values(spec, workload, n))
        found.append(Sized(other, run, letters_of_run(other, run, decode=decode)))
    return found


def letters_of_run(spec: ModelSpec, workload: Workload, *, decode: bool) -> dict[str, int]:
    """Return the letters in the order of a product; equal sizes share the first one."""
    lengths = {"B": workload.batch_size, "T" if decode else "S": workload.seq_len}
    if spec.has_encoder:
        lengths["S_e"] = workload.encoder_len
    sizes = {}
    for name in free_sizes(spec):
        if name in STRUCTURE or (name == "n_kv_heads" and spec.n_kv_heads == spec.n_heads):
            continue
        if name == "n_index_heads" and spec.n_index_heads == spec.n_kv_heads:
            continue
        sizes[legend.by_name(name).letter] = int(getattr(spec, name))
    return {**lengths, **sizes}


def _workload(spec: ModelSpec, workload: Workload, n: int) -> Workload:
    """Return another run, of as many chunks where a mixer goes through chunks."""
    seq_len, source = LENGTHS[n]
    for name in CHUNKS:
        size = getattr(spec, name)
        if size is not None and size != 1:
            whole, rest = divmod(workload.seq_len, size)
            seq_len = SMALL[name][n] * whole + (SMALL[name][n] - 1 if rest else 0)
    return Workload(
        batch_size=BATCHES[n],
        seq_len=seq_len,
        dtype=workload.dtype,
        source_len=None if workload.source_len is None else source,
        prefix_len=min(workload.prefix_len, seq_len - 1),
    )


def _values(spec: ModelSpec, workload: Workload, n: int) -> dict[str, int]:
    """Return another value for each size that is free."""
    counts, widths = iter(COUNTS[n]), iter(WIDTHS[n])
    names = [name for name in free_sizes(spec) if name not in STRUCTURE]
    values = {
        name: SMALL[name][n] if name in SMALL else next(widths)
        for name in names
        if getattr(spec, name) != 1
    }
    heads = next(counts)
    if spec.n_heads not in (1, None):
        values["n_heads"] = heads
    if "n_kv_heads" in values:
        same = spec.n_kv_heads == spec.n_heads
        values["n_kv_heads"] = heads if same else next(counts)
        values["n_heads"] = heads if same else heads * values["n_kv_heads"]
    for name in ("head_dim", "qk_rope_head_dim", "rotary_dim"):
        if name in values:
            values[name] *= 2
    if "rotary_dim" in values and values["rotary_dim"] > values["head_dim"]:
        both = values["rotary_dim"], values["head_dim"]
        values["head_dim"], values["rotary_dim"] = both
    for part, whole in DIVIDES.items():
        if whole in values:
            values[whole] = next(counts) * values.get(part, 1)
    if "index_top_k" in values:
        inside = spec.index_top_k < workload.seq_len
        values["index_top_k"] = WINDOWS["inside" if inside else "beyond"][n]
        values["index_head_dim"] += values["qk_rope_head_dim"]
    values |= _of_block_index(spec, values, counts)
    if "n_experts" in values:
        values["n_experts"] = next(counts) * values.get("n_groups", 1)
    if "n_buckets" in values:
        values["n_buckets"] = 4 * next(counts)
    if spec.window is not None:
        values["window"] = WINDOWS["inside" if spec.window < workload.seq_len else "beyond"][n]
    if "n_positions" in values:
        values["n_positions"] = POSITIONS[n]
    return values


def _of_block_index(
    spec: ModelSpec, values: dict[str, int], counts: Iterator[int]
) -> dict[str, int]:
    """Return values of an index that go with attention's: as many heads as keys have."""
    if spec.index_block_len is None:
        return {}
    rotated = values.get("rotary_dim", values["head_dim"])
    found = {"index_head_dim": values["index_head_dim"] + rotated}
    if spec.n_index_heads == spec.n_kv_heads:
        return {**found, "n_index_heads": values.get("n_kv_heads", 1)}
    if "n_index_heads" in values:
        heads = next(counts)
        return {**found, "n_index_heads": heads, "n_heads": heads * values["n_heads"]}
    return found

