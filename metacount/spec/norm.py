"""Norms of the residual stream: which, how they are made, where they stand."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import choice, flag, number, part


@part
class Norms:
    """One kind of norm for the whole model, and its places in a block and a stack."""

    kind: str = choice("norm", "of the residual stream", "layernorm", "rmsnorm")
    bias: bool = flag("norm_bias", "a bias on each layernorm", default=False)
    affine: bool = flag("norm_affine", "norms have weights", default=True)
    unit_offset: bool = flag(
        "norm_unit_offset", "norm weights are stored less 1 (Gemma)", default=False
    )
    placement: str = choice(
        "norm_placement",
        "where in a block the norms stand",
        "pre",
        "post",
        "sandwich",
        "deep",
        "parallel",
        "parallel_two",
        "post_branch",
        "stream",
        "hybrid",
        default="pre",
    )
    eps: float = number("norm_eps", "added below the root", default=1e-5)
    final: bool = flag("final_norm", "a norm after the last block", default=True)
    first: bool = flag(
        "first_norm", "a norm before the first block's attention (ModernBERT: false)", default=True
    )

    def check(self) -> None:
        """Raise `SpecError` for what the kind of norm does not have."""
        if self.kind == "rmsnorm" and self.bias:
            raise SpecError("norm_bias", "has no meaning with rmsnorm", True, "leave norm_bias out")
        if self.kind == "layernorm" and self.unit_offset:
            raise SpecError(
                "norm_unit_offset", "belongs to rmsnorm", True, "leave norm_unit_offset out"
            )
        if not self.first and self.placement != "pre":
            raise SpecError(
                "first_norm", "can only be left out of placement pre", False, "leave first_norm out"
            )
        for name, given in (("norm_bias", self.bias), ("norm_unit_offset", self.unit_offset)):
            if given and not self.affine:
                raise SpecError(
                    name, "has no meaning without norm_affine", True, f"leave {name} out"
                )
