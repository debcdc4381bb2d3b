"""Which structures the formulas of training cover; the others are measured alone."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec import ModelSpec

# What the formulas of training cover: of each field the value without which there is no formula.
COVERED = {
    "recurrent": "none",
    "n_shared_blocks": None,
    "mixer_pattern": "A",
    "ffn_pattern": "F",
    "output_gate": False,
    "index_top_k": None,
    "attention_out_scale": 1.0,
    "gate_scale": 1.0,
    "ffn_scale": 1.0,
    "residual_weight": 1.0,
}
PLACEMENTS = ("pre", "post", "deep", "post_branch", "sandwich", "parallel", "parallel_two")


def check_structure(spec: ModelSpec) -> None:
    """Raise `SpecError` for a structure that no formula of training covers."""
    for name, plain in COVERED.items():
        value = getattr(spec, name)
        if value != plain and set(str(value)) != set(str(plain)):
            raise SpecError(name, "has no formula for training", value, "measure it instead")
    if spec.norm_placement not in PLACEMENTS:
        raise SpecError(
            "norm_placement",
            "has no formula for training",
            spec.norm_placement,
            "measure it instead",
        )
