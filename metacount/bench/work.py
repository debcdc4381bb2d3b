"""What one call of a layer has to do, and the positions that attention works at. No torch.

Bytes that must move are every weight that is used, the input, the output and, with a KV cache,
what is read from it and written to it, each once. What lies between two operators of a layer is
not among them: a fused kernel can keep it on the chip.
"""

from __future__ import annotations

from metacount.formulas.masks import causal_pairs
from metacount.frozen import frozen


@frozen
class Work:
    """One call.

    `matmul_flops` is torch's convention, what a counter of operators must find; `needed_flops` is
    what cannot be avoided: pairs that a causal mask keeps, no padding. Rates are of the latter.
    """

    matmul_flops: int
    needed_flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that must move."""
        return self.needed_flops / self.moved_bytes


@frozen
class Positions:
    """`batch_size` sequences of `seq_len` new tokens that attend to `kv_len` positions, causally.

    Prefill has kv_len = seq_len, decode seq_len = 1.
    """

    batch_size: int
    seq_len: int
    kv_len: int

    @property
    def past(self) -> int:
        """Positions before the new tokens."""
        return self.kv_len - self.seq_len

    @property
    def n_tokens(self) -> int:
        """New tokens in all sequences."""
        return self.batch_size * self.seq_len

    @property
    def all_pairs(self) -> int:
        """Pairs of a query and a position, the mask ignored."""
        return self.batch_size * self.seq_len * self.kv_len

    @property
    def kept_pairs(self) -> int:
        """Pairs that the causal mask keeps: all, less the triangle ahead of the new tokens.

        >>> Positions(batch_size=1, seq_len=5, kv_len=5).kept_pairs  # 1 + 2 + 3 + 4 + 5
        15
        >>> Positions(batch_size=3, seq_len=1, kv_len=7).kept_pairs
        21
        """
        ahead = causal_pairs(self.seq_len) - self.seq_len
        return int(self.batch_size * (self.seq_len * self.kv_len - ahead))

    @property
    def workload(self) -> dict[str, int | str]:
        """The positions under their public names, with the phase."""
        phase = "decode" if self.seq_len == 1 and self.kv_len > 1 else "prefill"
        sizes = {name: getattr(self, name) for name in ("batch_size", "seq_len", "kv_len")}
        return {"phase": phase, **sizes}
