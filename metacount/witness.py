"""Says what a witness is: one independent opinion on a model, the same questions put to each."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# What witnesses are asked of prediction modules, which are counted apart.
PREDICTED = (
    "mtp_params",
    "mtp_active_params",
    "mtp_matmul_flops",
    "mtp_causal_matmul_flops",
    "mtp_decode_matmul_flops",
    "mtp_kv_cache_bytes",
)
# What witnesses are asked. Each is one integer, or None where a witness has no opinion.
QUANTITIES = (
    "params",
    "active_params",
    "active_params_no_embed",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes_per_token",
    "kv_cache_bytes",
    "cross_kv_cache_bytes",
    "state_bytes",
    *PREDICTED,
)

# The same, role by role; and buffers by name. Compared too, so that no two errors cancel.
BREAKDOWNS = (
    "by_role",
    "active_by_role",
    "matmul_flops_by_role",
    "causal_matmul_flops_by_role",
    "decode_matmul_flops_by_role",
    "buffers",
    "mtp_by_role",
    "mtp_matmul_flops_by_role",
)


@frozen
class Witness:
    """One opinion: `figures` by quantity, `parts` by breakdown, and where they come from."""

    name: str
    figures: dict[str, int | None]
    parts: dict[str, dict[str, int] | None]
    detail: str

    def to_dict(self) -> Json:
        """Return plain data, every quantity under its own name."""
        return {"name": self.name, **self.figures, **self.parts, "detail": self.detail}
