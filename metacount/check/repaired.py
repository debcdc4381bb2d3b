"""A model and a run with some sizes changed, and others as the rules then want them."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from metacount.check.trials import Case, free_sizes
from metacount.errors import SpecError
from metacount.spec import LIMITS, MAX_TOKENS, ModelSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

MOE_LAYERS = 2_000
LAYERED = ("n_layers", "n_encoder_layers", "n_dense_layers")


def with_sizes(case: Case, changes: dict[str, int]) -> Iterator[Case]:
    """Yield the case with some sizes changed,
    and others as the rules then want them; or nothing.
    """
    spec, run = case
    sizes = {name: size for name, size in changes.items() if name in LIMITS}
    runs = {name: size for name, size in changes.items() if name not in LIMITS}
    if min(changes.values()) < 1 or any(size > LIMITS[name] for name, size in sizes.items()):
        return
    if spec.is_moe and any(sizes.get(name, 0) > MOE_LAYERS for name in LAYERED):
        return  # which of them have experts is looked at one by one: that takes long
    try:
        other = spec.replace(**_repaired(spec, sizes)) if sizes else spec
        if "prefix_len" not in runs and run.prefix_len:
            runs["prefix_len"] = min(run.prefix_len, runs.get("seq_len", run.seq_len))
        if max(runs.values(), default=1) <= MAX_TOKENS:
            yield other, Workload(**{**run.to_dict(), **runs}) if runs else run
    except SpecError:
        return


def _repaired(spec: ModelSpec, changes: dict[str, int]) -> dict[str, int]:
    """Return the sizes of `spec` with `changes` made,
    and with what else must change so that the rules hold.
    """
    sizes = {name: getattr(spec, name) for name in free_sizes(spec)} | changes

    def fit(name: str, other: str, value: int) -> None:
        """Set `name` to `value`; where `name` was asked for
        and `other` was not, set `other` instead.
        """
        sizes[other if name in changes and other not in changes else name] = value

    heads, kv = sizes.get("n_heads"), sizes.get("n_kv_heads")
    if heads and kv and heads % kv:
        if "n_kv_heads" in changes and "n_heads" not in changes:
            sizes["n_heads"] = kv * max(1, heads // kv)
        else:
            sizes["n_kv_heads"] = gcd(heads, kv)
    experts, groups = sizes.get("n_experts"), sizes.get("n_groups")
    if experts and sizes["top_k"] > experts:
        fit("top_k", "n_experts", sizes["top_k"] if "top_k" in changes else experts)
        experts = sizes["n_experts"]
    if experts and groups and experts % groups:
        sizes["n_experts"] = groups * max(2, experts // groups)
    if groups and sizes["top_groups"] > groups:
        sizes["top_groups"] = groups
    if sizes.get("n_dense_layers", 0) >= sizes["n_layers"]:
        if "n_dense_layers" in changes and "n_layers" not in changes:
            sizes["n_layers"] = sizes["n_dense_layers"] + 1
        else:
            sizes["n_dense_layers"] = sizes["n_layers"] - 1
    for name in ("head_dim", "rotary_dim", "qk_rope_head_dim"):
        if name in sizes and spec.position == "rope":
            sizes[name] += sizes[name] % 2
    if "rotary_dim" in sizes and "head_dim" in sizes:
        sizes["rotary_dim"] = min(sizes["rotary_dim"], sizes["head_dim"])
    if "n_buckets" in sizes:
        sizes["n_buckets"] = -(-sizes["n_buckets"] // 4) * 4
        sizes["max_distance"] = max(sizes["max_distance"], sizes["n_buckets"] + 1)
    if "position_offset" in sizes:
        sizes["n_positions"] = max(sizes["n_positions"], sizes["position_offset"] + 1)
    if sizes.get("window") == 1:
        sizes["window"] = 2
    return sizes
