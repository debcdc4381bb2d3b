"""Models of the catalog as miniatures, with any of their fields changed at random."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from metacount.errors import SpecError
from metacount.spec import ModelSpec, Workload
from metacount.spec.field import Field
from metacount.spec.model import FIELDS

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 11, 16]
NUMBERS = [0.5, 1.0, 1.7, 30.0]
# what one change alone cannot reach, as each half of it is refused without the other
TOGETHER: list[dict[str, Any]] = [
    *({"n_heads": n, "n_kv_heads": k} for n, k in ((4, 2), (8, 8), (4, 1))),
    *({"window": n, "window_pattern": layers} for n, layers in ((3, "LG"), (4, "LLG"))),
    {"window": 2, "window_kind": "chunked"},
    {"position": "t5", "n_buckets": 4, "max_distance": 8},
    {"position": "learned", "n_positions": 41},
    {"norm": "layernorm", "norm_bias": True},
    {"norm_affine": False, "norm_bias": False},
    {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True, "ffn_bias": True},
    {"n_shared_experts": 1, "shared_expert_gate": True},
    {"n_experts": 8, "n_groups": 2, "top_groups": 1},
    {"head_transform": True, "head_transform_bias": True},
    {"d_ff_second": 29, "d_ff_pattern": "MMW"},
]


def values(field: Field) -> st.SearchStrategy[Any]:
    """Values that a field may have where nothing else forbids them."""
    if field.takes == "whole":
        found: st.SearchStrategy[Any] = st.sampled_from(SIZES)
    elif field.takes == "number":
        found = st.sampled_from(NUMBERS)
    elif field.takes == "flag":
        found = st.booleans()
    elif field.takes == "choice":
        found = st.sampled_from(field.choices)
    elif field.takes == "pattern":
        found = st.text("".join(field.letters), min_size=1, max_size=4)
    else:  # a record of scaling: taken away
        return st.none()
    return st.none() | found if field.optional else found


@st.composite
def changes(draw: st.DrawFn, spec: ModelSpec) -> dict[str, Any]:
    """Another value for a field that the model has, or for several that go together."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(TOGETHER))
    name = draw(st.sampled_from(sorted(set(spec.paths().values()))))
    return {name: draw(values(FIELDS[name]))}


@st.composite
def accepted(draw: st.DrawFn, spec: ModelSpec, *, tries: int = 8) -> dict[str, Any]:
    """Of some changes, those that the model takes, one after the other: the fields' new values."""
    found: dict[str, Any] = {}
    for _ in range(draw(st.integers(0, tries))):
        with contextlib.suppress(SpecError):
            change = draw(changes(spec))
            spec = spec.replace(**change)
            found |= change
    return found


@st.composite
def changed(draw: st.DrawFn, models: Sequence[ModelSpec], *, tries: int = 8) -> ModelSpec:
    """One of `models`, with other values for some of its fields."""
    spec = draw(st.sampled_from(models))
    return spec.replace(**draw(accepted(spec, tries=tries)))


@st.composite
def workloads(draw: st.DrawFn, spec: ModelSpec, *dtypes: str) -> Workload:
    """A few short sequences for a model, in one of `dtypes`."""
    sizes: dict[str, Any] = {"batch_size": draw(st.integers(1, 3))}
    sizes["seq_len"] = draw(st.integers(1, 13))
    sizes["dtype"] = draw(st.sampled_from(dtypes))
    if spec.has_encoder:
        sizes["source_len"] = draw(st.integers(1, 9))
    if spec.kind == "prefix-decoder":
        sizes["prefix_len"] = draw(st.integers(0, sizes["seq_len"]))
    return Workload(**sizes)
