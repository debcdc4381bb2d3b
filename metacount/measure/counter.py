"""Counts FLOPs of any module: every operator that runs, priced by its shapes.

One counter for our modules, transformers' and anybody's. What differs is the role book, which says
to which role the running module's work belongs: `reference_roles` for ours, by owner;
`foreign_roles` for others, by class.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from metacount.measure.operators import GROUPED, flops_of, grouped_refusal, grouped_result
from metacount.measure.torch_private import DispatchMode, is_fake, operator_name, without_compiler

if TYPE_CHECKING:
    from torch import Tensor

    from metacount.measure.torch_private import OpOverload, OpOverloadPacket


ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")

# a buffer's name in its module -> ours
BUFFERS = {"e_score_correction_bias": "selection_bias", "expert_bias": "selection_bias"}


class UnclaimedTensor(LookupError):
    """A parameter under no module that has a role: the count by role would miss it."""


T = TypeVar("T")

# What torch asks of a tensor whose sizes are symbols; nothing is computed.
QUESTIONS = frozenset(
    [
        "aten::sym_size",
        "aten::sym_stride",
        "aten::sym_numel",
        "aten::sym_storage_offset",
        "aten::is_contiguous",
        "aten::sym_is_contiguous",
        "aten::is_strides_like_format",
        "aten::is_non_overlapping_and_dense",
        "aten::size",
        "aten::stride",
        "aten::dim",
    ]
)


# Whose operators compute nothing: what the interpreter asks, and marks for a profiler.
SILENT = ("prim", "profiler")


class Charge(NamedTuple):
    """To whom FLOPs are put down: the innermost running module, its role, and the operator.

    `detail` is what a role book adds: which pairs of positions a product computes, for example.
    """

    module: str
    role: str | None
    operator: str
    detail: Any = None


Cost = Counter[Charge]  # FLOPs of each


class FlopCounter(DispatchMode):
    """Counts inside `with counter.watching(model):`. Raises `UncountedOp` rather than guess."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Cost = Counter()
        self.said: set[str] = set()  # on what the figures rest
        # layers that did not run because one like them had: its cost, its name, the layer's own
        self.replayed: list[tuple[Cost, str, str]] = []
        self._path: list[nn.Module] = []
        self._names: dict[int, str] = {}

    def role_and_detail(self, path: list[nn.Module]) -> tuple[str | None, object]:
        """Return the role of what the last module of `path` computes, and the charge's detail."""
        return None, None

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Return the result of an operator that cannot run without data;
        `NotImplemented` lets it run.
        """
        return NotImplemented

    def note(self, func: OpOverload, args: tuple[object, ...], out: object) -> None:
        """Remember what a later question may be about."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the operator (or answer its question), then charge for it."""
        if func.namespace in SILENT or operator_name(func) in QUESTIONS:
            return func(*args, **(kwargs or {}))
        answered = self.answer(func, args)
        if answered is not NotImplemented:
            return answered
        grouped = args[:2] if func.overloadpacket is GROUPED else ()
        if any(isinstance(x, Tensor) and (x.is_meta or is_fake(x)) for x in grouped):
            out = grouped_result(*args, **(kwargs or {}))
            if refused := grouped_refusal(*grouped):
                self.said.add(
                    f"torch's grouped product refuses {refused}: experts are counted as if it "
                    "took them"
                )
        else:
            out = func(*args, **(kwargs or {}))
        self.note(func, args, out)
        flops = flops_of(func, args, out)
        if flops:
            self.charge(func.overloadpacket, args, flops)
        return out

    def charge(self, packet: OpOverloadPacket, args: tuple[object, ...], flops: int) -> None:
        """Put FLOPs down to the module that is running."""
        role, detail = self.role_and_detail(self._path)
        self.ran[Charge(self._running(), role, str(packet), detail)] += flops

    def _running(self) -> str:
        """Return the name of the innermost running module that has one in the watched model."""
        return next((self._names[id(m)] for m in reversed(self._path) if id(m) in self._names), "")

    def spent_in(self, run: Callable[[], T]) -> tuple[T, Cost]:
        """Run a layer and return what it gives and what it cost, which is charged as well."""
        before, self.ran = self.ran, Counter()
        try:
            out, cost = run(), self.ran
        finally:
            # zeros are kept out, symbols cannot be compared: plain sums alone
            after, self.ran = self.ran, before
            for charge, flops in after.items():
                self.ran[charge] += flops
        return out, cost

    def replay(self, cost: Cost, like: nn.Module, layer: nn.Module) -> None:
        """Charge a layer that is like `like` with what `like` cost when it ran."""
        self.replayed.append((cost, self._names[id(like)], self._names[id(layer)]))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside, knowing at each operator which module runs it."""
        self._names = {id(module): name for name, module in model.named_modules()}
        handles = [
            register_module_forward_pre_hook(self.entered),
            register_module_forward_hook(self.left, always_call=True),
        ]
        try:
            with without_compiler(), self:
                yield self
        finally:
            self._path.clear()
            for handle in handles:
                handle.remove()

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins."""
        self._path.append(module)

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Note that a module's forward ends."""
        self._path.pop()

    def called(self, module: nn.Module, function: Callable[..., T], *args: object) -> T:
        """Run another function of a module than its forward, as a call of the module."""
        out = None
        self.entered(module, args)
        try:
            out = function(*args)
        finally:
            self.left(module, args, out)
        return out

    def charges(self) -> Iterator[tuple[Charge, int]]:
        """Yield every charge; those of layers that did not run stand under their own names."""
        yield from self.ran.items()
        for cost, like, name in self.replayed:
            for charge, flops in cost.items():
                inside = charge.module == like or charge.module.startswith(f"{like}.")
                # what a layer runs outside itself, as a block shared by many, keeps its name
                own = name + charge.module[len(like) :] if inside else charge.module
                yield charge._replace(module=own), flops

    def totals(self) -> Cost:
        """Sum the FLOPs by charge; layers
        that did not run stand under the name of the one that did.
        """
        found: Cost = Counter(self.ran)
        times = Counter(id(cost) for cost, _, _ in self.replayed)
        for cost in {id(cost): cost for cost, _, _ in self.replayed}.values():
            for charge, flops in cost.items():
                found[charge] += flops * times[id(cost)]
        return found

    def counts(self, charge: Charge) -> bool:
        """Tell whether a charge belongs to the figures; a note beside them does not."""
        return True

    def by_role(self) -> dict[str, int]:
        """Sum the FLOPs by role; what no role claims is `other`."""
        found: dict[str, int] = dict.fromkeys(ROLES, 0)
        for charge, flops in self.totals().items():
            found[charge.role or "other"] += flops if self.counts(charge) else 0
        return found

    def by_operator(self) -> dict[str, int]:
        """Sum the FLOPs by operator."""
        found: Counter[str] = Counter()
        for charge, flops in self.totals().items():
            if self.counts(charge):
                found[charge.operator] += flops
        return dict(found)

    def by_module(self) -> dict[str, int]:
        """Sum the FLOPs by the module that ran the operator itself, under its full name."""
        found: Counter[str] = Counter()
        for charge, flops in self.charges():
            if self.counts(charge):
                found[charge.module] += flops
        return dict(found)


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
