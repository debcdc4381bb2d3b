"""The records that hold what a module shows, ours or anybody's: its parameters and its forwards."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# The product that a fused mixture runs its experts in: what idle experts cost is all in it.
BATCHED = "aten.bmm"


@dataclass(frozen=True, kw_only=True)
class MeasuredParams:
    """Parameters and persistent buffers, in values, not bytes; a tied tensor counts once.

    `active_*` is None when a number of experts per token could not be found (`unknown_routing`).
    `unclaimed` lists tensors that no module gave a role to; they are counted in `other`.
    """

    by_role: dict[str, int]
    active_by_role: dict[str, int] | None
    no_embed: int | None  # active, without the token table; a tied table stays, the head uses it
    buffers: dict[str, int]
    unclaimed: tuple[str, ...] = ()
    unknown_routing: tuple[str, ...] = ()
    # of the text model alone, of which FLOPs and caches are: all, where there is nothing else
    text_params: int | None = None
    text_active_params: int | None = None

    @property
    def params(self) -> int:
        """All distinct parameters."""
        return sum(self.by_role.values())

    @property
    def active_params(self) -> int | None:
        """Parameters used for one token."""
        return None if self.active_by_role is None else sum(self.active_by_role.values())


@dataclass(frozen=True, kw_only=True)
class MeasuredFlops:
    """FLOPs of one forward, 2 per multiply-add, attention over all pairs.

    `causal_by_role` counts attention's products only over pairs that the mask keeps; None where
    that is not known: a mask too large to be laid out, or a module that is not ours. `rotary`
    makes tables of rotary angles and is in no role.
    """

    by_role: dict[str, int]
    by_operator: dict[str, int]
    by_module: dict[str, int]  # what each ran itself, by full name, without idle experts
    causal_by_role: dict[str, int] | None = None
    rotary: int = 0
    idle: int = 0  # of the figures: experts run on tokens that did not choose them

    @property
    def matmul_flops(self) -> int:
        """Sum over roles, without rotary tables, which no textbook counts."""
        return sum(self.by_role.values())

    @property
    def causal_matmul_flops(self) -> int | None:
        """Sum over roles of what the masks keep."""
        return None if self.causal_by_role is None else sum(self.causal_by_role.values())

    @property
    def chosen_by_role(self) -> dict[str, int]:
        """By role, with each token's chosen experts alone."""
        return {**self.by_role, "moe": self.by_role["moe"] - self.idle}

    @property
    def chosen_by_operator(self) -> dict[str, int]:
        """By operator, likewise."""
        batched = self.by_operator.get(BATCHED, 0) - self.idle
        return {**self.by_operator, **({BATCHED: batched} if batched else {})}

    @property
    def all_flops(self) -> int:
        """Everything that ran."""
        return self.matmul_flops + self.rotary


@dataclass(frozen=True, kw_only=True)
class MeasuredCache:
    """Bytes of a cache by what they are; `kv_bytes` has those of cross-attention in it.

    `by_name` is by the attribute that holds them in a cache of somebody else's.
    """

    kv_bytes: int
    cross_kv_bytes: int
    state_bytes: int
    by_name: dict[str, int] = field(default_factory=dict)
    key_heads: int = 0  # heads of the keys as cached, where these have four axes

    def halved(self) -> MeasuredCache:
        """Halve the bytes, as for a type of half the size."""
        return dataclasses.replace(
            self,
            kv_bytes=self.kv_bytes // 2,
            cross_kv_bytes=self.cross_kv_bytes // 2,
            state_bytes=self.state_bytes // 2,
            by_name={name: size // 2 for name, size in self.by_name.items()},
        )


NO_CACHE = MeasuredCache(kv_bytes=0, cross_kv_bytes=0, state_bytes=0)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What running a workload showed: the prefill, one decoded token, and the cache they leave.

    `decode` is None where nothing is decoded, `cache` where the model returns none.
    """

    kind: str  # decoder, encoder, encoder-decoder
    prefill: MeasuredFlops
    decode: MeasuredFlops | None
    cache: MeasuredCache | None
    kv_bytes_per_token: int | None
    states: tuple[Tensor, ...] = ()  # what mixers of our own modules keep
    assumed: tuple[str, ...] = ()
    no_cache: str = ""  # why there is none; empty for an encoder, which keeps none

    def halved(self) -> MeasuredRun:
        """Return the same run with its cache in a type of half the size."""
        if self.cache is None or self.kv_bytes_per_token is None:
            return self
        return dataclasses.replace(
            self, cache=self.cache.halved(), kv_bytes_per_token=self.kv_bytes_per_token // 2
        )

    def parts(self, quantity: str, *, by_operator: bool = False) -> dict[str, int] | None:
        """Return the FLOPs by role (or operator), the KV cache by attention,
        the state; None where unknown.
        """
        if quantity == "state_bytes" and self.cache is not None:
            return {"state": self.cache.state_bytes}
        if quantity == "kv_cache_bytes" and self.cache is not None:
            cross = self.cache.cross_kv_bytes
            return {"self-attention": self.cache.kv_bytes - cross, "cross-attention": cross}
        flops = self.decode if quantity == "decode_matmul_flops" else self.prefill
        if flops is None or not quantity.endswith("matmul_flops"):
            return None
        if quantity == "causal_matmul_flops":
            if by_operator:
                return None if (n := flops.causal_matmul_flops) is None else {"all": n}
            return flops.causal_by_role
        return flops.chosen_by_operator if by_operator else flops.chosen_by_role
