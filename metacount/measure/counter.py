"""Counts FLOPs of any module: every operator that runs, priced by its shapes.

One counter for our modules, transformers' and anybody's, which writes a tape: each operator that
multiplies, in order, with its module, role, shapes and FLOPs. Every figure is a sum over it. What
differs is the book, which says whose work is done: `ours.ReferenceBook` by the owner of a module,
`theirs.ClassBook` by its class.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from metacount.errors import InputError
from metacount.measure.operators import (
    GROUPED,
    empty_result,
    flops_of,
    grouped_refusal,
    grouped_result,
)
from metacount.measure.torch_private import (
    DispatchMode,
    is_fake,
    operator_name,
    stored_buffers_of,
    without_compiler,
)

if TYPE_CHECKING:
    from torch import Tensor

    from metacount.measure.torch_private import OpOverload, OpOverloadPacket


ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")

# a buffer's name in its module -> ours
BUFFERS = {
    "e_score_correction_bias": "selection_bias",
    "expert_bias": "selection_bias",
    "tid2eid": "token_experts",
}


def stored_buffers(model: nn.Module) -> dict[str, int]:
    """Count the values of persistent buffers by name; tables made by a run are not stored."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    for module in model.modules():
        for name, buffer in stored_buffers_of(module).items():
            if id(buffer) not in seen:
                seen.add(id(buffer))
                kind = BUFFERS.get(name, name)
                sizes[kind] = sizes.get(kind, 0) + buffer.numel()
    return sizes


class UnclaimedTensor(LookupError):
    """A parameter under no module that has a role: the count by role would miss it."""


class OtherThread(InputError):
    """A part of a model ran in a thread in which no operator is seen: its cost is not known."""


T = TypeVar("T")

# What torch asks of a tensor whose sizes are symbols; nothing is computed.
QUESTIONS = frozenset((
    "aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset",
    "aten::is_contiguous", "aten::sym_is_contiguous", "aten::is_strides_like_format",
    "aten::is_non_overlapping_and_dense", "aten::size", "aten::stride", "aten::dim",
))  # fmt: skip


# Whose operators compute nothing: what the interpreter asks, and marks for a profiler.
SILENT = ("prim", "profiler")


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
    states: tuple[Tensor, ...] = field(default=(), compare=False)  # of mixers of our own modules

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
    assumed: tuple[str, ...] = ()
    no_cache: str = ""  # why there is none; empty for an encoder, which keeps none
    # what the prefill and the decoded token ran, in order
    counters: tuple[FlopCounter, ...] = field(default=(), compare=False)

    def halved(self) -> MeasuredRun:
        """Return the same run with its cache in a type of half the size."""
        if self.cache is None or self.kv_bytes_per_token is None:
            return self
        return dataclasses.replace(
            self, cache=self.cache.halved(), kv_bytes_per_token=self.kv_bytes_per_token // 2
        )

    def parts(self, quantity: str) -> dict[str, int] | None:
        """Return the FLOPs by role, the KV cache by attention,
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
            return flops.causal_by_role
        return flops.chosen_by_role


class Charge(NamedTuple):
    """To whom FLOPs are put down: the innermost running module, its role, and the operator.

    Not `counted`: a note beside the figures. `detail` is what a book or a phase adds: which pairs
    of positions a product computes, for example.
    """

    module: str
    role: str | None
    operator: str
    counted: bool = True
    detail: Any = None


class Ran(NamedTuple):
    """An operator that multiplies, as it ran: its FLOPs, and the shapes of its tensors.

    One that ran in the same way several `times` in a row is one entry.
    """

    charge: Charge
    flops: int
    shapes: tuple[tuple[int, ...], ...]
    times: int = 1


class Again(NamedTuple):
    """A layer that did not run because one like it had: its cost, and the names of both."""

    cost: tuple[Ran | Again, ...]
    like: str
    name: str


Cost = tuple[Ran | Again, ...]
IDLE = "idle experts"  # in the place of an operator: run on tokens that did not choose them


class Book:
    """What a kind of modules says of itself: whose work it is, and answers to questions of data."""

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role of what the last module of `path` computes."""
        return None

    def detail(self, path: list[nn.Module]) -> object:
        """Return what a charge of the last module of `path` is to say besides."""
        return None

    def counts(self, path: list[nn.Module]) -> bool:
        """Tell whether what runs belongs to the figures."""
        return True

    def idle(
        self, packet: OpOverloadPacket, args: tuple[Any, ...], flops: int, path: list[nn.Module]
    ) -> int:
        """Return how many of a product's FLOPs are of experts that its tokens did not choose."""
        return 0

    def kept_flops(self, flops: int, detail: Any) -> int | None:
        """Return the FLOPs of a product over the pairs that a mask keeps; None: not known."""
        return None

    def answer(self, func: OpOverload, args: tuple[Any, ...], path: list[nn.Module]) -> object:
        """Return the result of an operator that cannot run without data;
        `NotImplemented` lets it run.
        """
        return NotImplemented

    def note(self, func: OpOverload, out: object) -> None:
        """Remember what a later question may be about."""

    def entered(self, args: tuple[object, ...]) -> None:
        """Note what a module is given as its forward begins."""

    def left(self, args: tuple[object, ...]) -> None:
        """Note that a forward that was given this ends."""

    def running(self, counter: FlopCounter, model: nn.Module) -> AbstractContextManager[None]:
        """Set up how a forward of `model` runs that `counter` watches."""
        return nullcontext()


class FlopCounter(DispatchMode):
    """Counts inside `with counter.watching(model):`. Raises `UncountedOp` rather than guess."""

    def __init__(self, book: Book | None = None) -> None:
        super().__init__()
        self.book = book or Book()
        self.tape: list[Ran | Again] = []
        self.said: set[str] = set()  # on what the figures rest
        self._path: list[nn.Module] = []
        self._names: dict[int, str] = {}
        self._thread = 0
        self._strayed: OtherThread | None = None

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator (or answer its question), then charge for it."""
        if func.namespace in SILENT or operator_name(func) in QUESTIONS:
            return func(*args, **kwargs)
        answered = self.answer(func, args)
        if answered is not NotImplemented:
            return answered
        grouped = args[:2] if func.overloadpacket is GROUPED else ()
        if any(isinstance(x, Tensor) and (x.is_meta or is_fake(x)) for x in grouped):
            out = grouped_result(*args, **kwargs)
            if refused := grouped_refusal(*grouped):
                self.said.add(
                    f"torch's grouped product refuses {refused}: experts are counted as if it "
                    "took them"
                )
        else:
            made = empty_result(func, args, kwargs)
            out = func(*args, **kwargs) if made is None else made
        self.note(func, out)
        flops = flops_of(func, args, out)
        if flops:
            self.charge(func.overloadpacket, args, flops)
        return out

    def answer(self, func: OpOverload, args: tuple[object, ...]) -> object:
        """Return the result of an operator that cannot run without data, by the book."""
        return self.book.answer(func, args, self._path)

    def note(self, func: OpOverload, out: object) -> None:
        """Remember what a later question may be about."""
        self.book.note(func, out)

    def charge(self, packet: OpOverloadPacket, args: tuple[object, ...], flops: int) -> None:
        """Put FLOPs down to the module that is running; what idle experts cost stands beside."""
        book, path = self.book, self._path
        charge = Charge(
            self._running(), book.role(path), str(packet), book.counts(path), self.detail()
        )
        self.write(charge, flops, args)
        if idle := book.idle(packet, args, flops, path):
            self.write(charge._replace(operator=IDLE, counted=False), idle, args)

    def detail(self) -> object:
        """Return what the charge of an operator that runs now is to say besides."""
        return self.book.detail(self._path)

    def write(self, charge: Charge, flops: int, args: tuple[object, ...]) -> None:
        """Write an operator on the tape."""
        shapes = tuple(tuple(x.shape) for x in args if isinstance(x, Tensor))
        last = self.tape[-1] if self.tape else None
        # symbols cannot be compared without a question to them
        if (
            isinstance(last, Ran)
            and type(flops) is type(last.flops) is int
            and last[:3] == (charge, flops, shapes)
        ):
            self.tape[-1] = last._replace(times=last.times + 1)
        else:
            self.tape.append(Ran(charge, flops, shapes))

    def _running(self) -> str:
        """Return the name of the innermost running module that has one in the watched model."""
        return next((self._names[id(m)] for m in reversed(self._path) if id(m) in self._names), "")

    def spent_in(self, run: Callable[[], T]) -> tuple[T, Cost]:
        """Run a layer and return what it gives and what it cost, which is charged as well."""
        before, self.tape = self.tape, []
        try:
            out = run()
            return out, tuple(self.tape)
        finally:
            self.tape = before + self.tape

    def replay(self, cost: Cost, like: nn.Module, layer: nn.Module) -> None:
        """Charge a layer that is like `like` with what `like` cost when it ran."""
        self.tape.append(Again(cost, self._names[id(like)], self._names[id(layer)]))

    @contextmanager
    def noting(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside, knowing at each operator which module runs it."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._thread, self._strayed = get_ident(), None
        # torch has them for all threads; what another one runs that is not of the model is its own
        handles = [
            register_module_forward_pre_hook(self._entered_anywhere),
            register_module_forward_hook(self._left_anywhere, always_call=True),
        ]
        try:
            with without_compiler(), self:
                yield self
        except Exception:
            if self._strayed is None:
                raise
        finally:
            self._path.clear()
            for handle in handles:
                handle.remove()
        if self._strayed is not None:  # whoever ran it may have kept the error
            raise self._strayed

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count a forward that runs inside, set up as the book says."""
        with self.book.running(self, model), self.noting(model):
            yield self

    def _entered_anywhere(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if get_ident() == self._thread:
            self.entered(module, args)
        elif id(module) in self._names:
            self._strayed = OtherThread(
                f"{self._names[id(module)] or type(module).__name__} runs in another thread, in "
                "which nothing is counted; let the forward run all its parts in one thread"
            )
            raise self._strayed

    def _left_anywhere(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        if get_ident() == self._thread:
            self.left(module, args, out)

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins."""
        self._path.append(module)
        self.book.entered(args)

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Note that a module's forward ends."""
        self._path.pop()
        self.book.left(args)

    def called(self, module: nn.Module, function: Callable[..., T], *args: object) -> T:
        """Run another function of a module than its forward, as a call of the module."""
        out = None
        self.entered(module, args)
        try:
            out = function(*args)
        finally:
            self.left(module, args, out)
        return out

    @property
    def replayed(self) -> int:
        """How many layers did not run because one like them had."""
        return sum(isinstance(entry, Again) for entry in self.tape)

    def charges(self) -> Iterator[tuple[Charge, int]]:
        """Yield every charge; those of layers that did not run stand under their own names."""
        yield from summed(entry for entry in self.tape if isinstance(entry, Ran)).items()
        sums: dict[int, dict[Charge, int]] = {}
        for entry in self.tape:
            if isinstance(entry, Again):
                known = sums.get(id(entry.cost))
                if known is None:
                    known = sums[id(entry.cost)] = summed(entry.cost)
                for charge, flops in known.items():
                    yield _moved(charge, entry), flops

    def products(self) -> Iterator[Ran]:
        """Yield every operator in order, layers that did not run under their own names."""
        return _in_order(self.tape)

    def totals(self) -> dict[Charge, int]:
        """Sum the FLOPs by charge; layers
        that did not run stand under the name of the one that did.
        """
        return summed(self.tape)

    def by_role(self) -> dict[str, int]:
        """Sum the FLOPs by role; what no role claims is `other`."""
        amounts: dict[str, int] = dict.fromkeys(ROLES, 0)
        for charge, flops in self.totals().items():
            if charge.counted:
                amounts[charge.role or "other"] += flops
        return amounts

    def by_operator(self) -> dict[str, int]:
        """Sum the FLOPs by operator."""
        counts: Counter[str] = Counter()
        for charge, flops in self.totals().items():
            if charge.counted:
                counts[charge.operator] += flops
        return dict(counts)

    def by_module(self) -> dict[str, int]:
        """Sum the FLOPs by the module that ran the operator itself, under its full name,
        without what idle experts cost.
        """
        counts: Counter[str] = Counter()
        for charge, flops in self.charges():
            if charge.counted:
                counts[charge.module] += flops
            elif charge.operator == IDLE:
                counts[charge.module] -= flops
        return dict(counts)

    def other_flops(self, *, idle: bool) -> int:
        """Sum what is written beside the figures: of idle experts, else of rotary tables."""
        return sum(
            flops
            for charge, flops in self.totals().items()
            if not charge.counted and (charge.operator == IDLE) is idle
        )

    def report(self) -> MeasuredFlops:
        """Report what was counted so far."""
        causal: dict[str, int] | None = dict.fromkeys(ROLES, 0)
        for charge, flops in self.totals().items():
            flops_of_kept = self.book.kept_flops(flops, charge.detail)
            if flops_of_kept is None:
                causal = None
                break
            if charge.counted and causal is not None:
                causal[charge.role or "other"] += flops_of_kept
        return MeasuredFlops(
            by_role=self.by_role(),
            by_operator=self.by_operator(),
            by_module=self.by_module(),
            causal_by_role=causal,
            rotary=self.other_flops(idle=False),
            idle=self.other_flops(idle=True),
        )


def summed(entries: Iterable[Ran | Again]) -> dict[Charge, int]:
    """Sum FLOPs by charge, those of one cost once for all layers that it is the cost of."""
    charges: dict[Charge, int] = {}
    again: dict[int, list[Again]] = {}
    for entry in entries:
        if isinstance(entry, Again):
            again.setdefault(id(entry.cost), []).append(entry)
        else:
            flops = entry.flops if entry.times == 1 else entry.flops * entry.times
            known = charges.get(entry.charge)
            charges[entry.charge] = flops if known is None else known + flops
    for layers in again.values():
        for charge, flops in summed(layers[0].cost).items():
            charges[charge] = charges.get(charge, 0) + flops * len(layers)
    return charges


def _in_order(entries: Iterable[Ran | Again]) -> Iterator[Ran]:
    for entry in entries:
        if isinstance(entry, Ran):
            for _ in range(entry.times):
                yield entry._replace(times=1)
        else:
            for ran in _in_order(entry.cost):
                yield ran._replace(charge=_moved(ran.charge, entry))


def _moved(charge: Charge, again: Again) -> Charge:
    """Name the module of a layer that did not run in the place of the one that did."""
    inside = charge.module == again.like or charge.module.startswith(f"{again.like}.")
    # what a layer runs outside itself, as a block shared by many, keeps its name
    name = again.name + charge.module[len(again.like) :]
    return charge._replace(module=name) if inside else charge


MakeCounter: TypeAlias = Callable[[Book], FlopCounter]


class Forwards(ABC):
    """What a kind of modules is given to run, and how a cache of theirs is measured.

    The workload's lengths may be symbols: nothing is asked of them.
    """

    kind: str  # decoder, encoder, encoder-decoder
    no_cache = ""  # why there is none
    decodes_first = True  # whether one more token may be the first

    def __init__(self, model: Any, workload: Any) -> None:
        self.model, self.workload = model, workload
        self.assumed: set[str] = set()  # of the last forward
        self.counter: MakeCounter = FlopCounter

    @abstractmethod
    def forward(
        self, length: int, *, cache: Any = None, counter: MakeCounter | None = None
    ) -> tuple[FlopCounter, Any]:
        """Run a forward over `length` tokens, perhaps from a cache; return counter and cache.

        `counter` makes one for this forward alone.
        """

    @abstractmethod
    def measure_cache(self, cache: Any) -> MeasuredCache:
        """Count the bytes of a cache."""

    def prefill(self, counter: MakeCounter | None = None) -> tuple[FlopCounter, Any]:
        """Run a forward over the whole workload; the cache is None where nothing is decoded."""
        return self.forward(self.workload.seq_len, counter=counter)

    def before_last(self) -> Any:
        """Return the cache of all tokens but the last."""
        return self.forward(self.workload.seq_len - 1)[1]

    def last_token(self, counter: MakeCounter | None = None) -> FlopCounter:
        """Run one more token, the last of the workload's."""
        return self.forward(1, cache=self.before_last(), counter=counter)[0]

    def why_none(self) -> str:
        """Say why a forward gave no cache; empty for an encoder, which keeps none."""
        return self.no_cache


def measured(run: Forwards) -> MeasuredRun:
    """Measure the prefill, one decoded token, and the cache that they leave."""
    prefill, cache = run.prefill()
    assumed = tuple(sorted(run.assumed | prefill.said))
    if cache is None:
        return MeasuredRun(
            kind=run.kind,
            prefill=prefill.report(),
            decode=None,
            cache=None,
            kv_bytes_per_token=None,
            assumed=assumed,
            no_cache=run.why_none(),
            counters=(prefill,),
        )
    cache_values, single = run.measure_cache(cache), run.measure_cache(run.forward(1)[1])
    decodes = run.decodes_first or run.workload.seq_len > 1
    decode = run.last_token() if decodes else None
    return MeasuredRun(
        kind=run.kind,
        prefill=prefill.report(),
        decode=None if decode is None else decode.report(),
        cache=cache_values,
        kv_bytes_per_token=(single.kv_bytes - single.cross_kv_bytes) // run.workload.batch_size,
        assumed=assumed,
        counters=(prefill,) if decode is None else (prefill, decode),
    )
