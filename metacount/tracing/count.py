"""Parameters, FLOPs and caches of a traced module, layer by layer, as expressions in its sizes."""

from __future__ import annotations

import time
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict

import sympy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from metacount.frozen import frozen
from metacount.measure.counter import BATCHED, IDLE, Book, Charge, FlopCounter
from metacount.measure.operators import flops_of
from metacount.measure.questions import Ordinary
from metacount.measure.their_roles import Roles, role_name
from metacount.measure.theirs import (
    Runner,
    as_it_runs,
    distinct_tensors,
    measure_cache,
    routing,
)
from metacount.measure.torch_private import is_fake, unwatched
from metacount.tracing.layers import Amounts, Place, places, places_by_name, stack_of_caches
from metacount.tracing.symbols import NeedsLength, NotTraced, Sizes, symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from metacount.measure.torch_private import OpOverload


aten = torch.ops.aten

MAX_OPERATORS = 2500  # of a forward in a minute; one layer of each kind runs, of some hundred
CHECKED = 200  # operators after which it is seen whether B and S are still letters


class TooSlow(NotTraced):
    """The code takes too long with symbols for sizes."""


def traced_params(model: nn.Module, roles: Roles, sizes: Sizes) -> tuple[Amounts, Amounts | None]:
    """Count distinct parameters, and those that one token uses; None where routing is unknown."""
    where = places(model)
    every: Amounts = defaultdict(lambda: 0)
    active: Amounts = defaultdict(lambda: 0)
    with sizes.tracing():
        routed, unknown = routing(model)
        for _, owner, tensor in distinct_tensors(model, roles):
            key = role_name(roles.role[id(owner)]), where.get(id(owner))
            values = sizes.expr(tensor.numel())
            every[key] += values
            chosen, n_experts = routed.get(id(tensor), (1, 1))
            active[key] += values / sizes.expr(n_experts) * sizes.expr(chosen)
    return dict(every), None if unknown else dict(active)


class OneExpert(Ordinary):
    """All tokens choose one expert of a list: what experts do is linear in the tokens they get."""

    def hit(self, n_experts: int | torch.SymInt) -> int:
        """Return one, however many experts there are."""
        return 1


class WithSymbols(FlopCounter):
    """Counts with symbols for sizes, and not for ever."""

    sizes: Sizes
    deadline: float
    may_run = MAX_OPERATORS  # so many operators more

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the operator, unless it is too late."""
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        self.may_run -= 1
        if self.may_run % CHECKED == 0:
            check_free(self.sizes)  # a loop over tokens would go on for long
        if self.may_run < 0 or time.process_time() > self.deadline:
            raise TooSlow("the code takes too long with symbols for sizes")
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if tensors and not any(t.is_meta or is_fake(t) for t in tensors):
            with unwatched():  # numbers of experts: the code makes names of them
                return func(*args, **(kwargs or {}))
        made = SHAPED.get(func)
        if made is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        out = made(*args)
        if flops := flops_of(func, args, out):
            self.charge(func.overloadpacket, args, flops)
        return out


class Counted(TorchFunctionMode):
    """Rows are counted by expert where their number is a symbol, of which torch makes a number."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Give an empty tensor of as many counts, or let torch."""
        given = kwargs or {}
        bins, x = given.get("bins"), args[0] if args else None
        if func is torch.histc and isinstance(bins, torch.SymInt) and isinstance(x, Tensor):
            return x.new_empty(bins)
        return func(*args, **given)


def _padded(x: Tensor, pads: Sequence[int], *_: object) -> Tensor:
    """Make an empty tensor padded in front of and behind each dimension, the last one first."""
    shape = list(x.shape)
    for i in range(len(pads) // 2):
        shape[-1 - i] = shape[-1 - i] + pads[2 * i] + pads[2 * i + 1]
    return x.new_empty(shape)


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Make an empty solution of a triangular system: [.., n, n], [.., n, k] -> [.., n, k]."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return b.new_empty(*batch, *b.shape[-2:])


# Operators whose shapes torch works out with numbers alone.
SHAPED: dict[OpOverload, Callable[..., Tensor]] = {
    aten.polar.default: lambda x, _: torch.empty_like(x, dtype=x.dtype.to_complex()),
    aten.baddbmm.default: lambda c, a, b, **_: torch.bmm(a, b) + c,
    aten.constant_pad_nd.default: _padded,
    aten.linalg_solve_triangular.default: _solved,
}


def check_free(sizes: Sizes) -> None:
    """Check that the code left B, S and S_e symbols: else the form is of one number alone."""
    for letter, number in sizes.constants.items():
        if letter.name in ("B", "S", "S_e"):
            kind = NeedsLength if letter.name == "S" else NotTraced
            raise kind(f"the code needs the number {letter} = {number}")


# One product: its charge, its layer, its FLOPs as an expression.
Products = list[tuple[Charge, Place | None, sympy.Expr]]


@frozen
class TracedRun:
    """What a forward showed: the products of prefill and of one token, and what is cached."""

    prefill: Products
    decode: Products | None
    cache: Amounts | None
    state: Amounts | None
    assumed: tuple[str, ...]


def traced_forward(
    model: nn.Module, roles: Roles, sizes: Sizes, seq_len: int, run_as: As, *, decode: bool
) -> TracedRun:
    """Run the model over B sequences of S tokens, with `decode` then over one more token each.

    The numbers are the hints behind B, S and S_e. Raises whatever the code raises, and `NotTraced`
    after `MAX_OPERATORS` or `run_as.seconds` of this process: code that goes through tokens one by
    one takes for ever with symbols.
    """
    workload = SimpleNamespace(
        batch_size=1 if run_as.one_sequence else sizes.new("B", 5),
        seq_len=sizes.new("S", seq_len),
        encoder_len=sizes.new("S_e", 53),
    )

    def run() -> TracedRun:
        deadline, where = time.process_time() + run_as.seconds, places_by_name(model)

        def counter(book: Book) -> FlopCounter:
            made = WithSymbols(book)
            made.deadline, made.sizes = deadline, sizes
            made.may_run = int(MAX_OPERATORS * run_as.seconds / 60)
            return made

        runner = Runner(model, workload, roles)
        runner.counter, runner.ordinary = counter, OneExpert
        prefill, cache = runner.prefill()
        assumed = tuple(sorted(runner.assumed))
        one = runner.last_token() if decode and cache is not None else None
        kept = (None, None) if cache is None else _cached(cache, model, sizes)
        return TracedRun(
            prefill=products_of(prefill, sizes, where),
            decode=None if one is None else products_of(one, sizes, where),
            cache=kept[0],
            state=kept[1],
            assumed=assumed,
        )

    with sizes.tracing(), Counted():
        return as_it_runs(model, run)[0]


def products_of(counter: FlopCounter, sizes: Sizes, where: dict[str, Place]) -> Products:
    """List what a counter was charged with, each in letters and in its layer."""
    return [
        (charge, where.get(charge.module), sizes.expr(flops)) for charge, flops in counter.charges()
    ]


def flops_by(products: Products, *, by_operator: bool, idle: bool = False) -> Amounts:
    """Sum each token's chosen experts alone, without rotary tables, by role or operator; or what
    the code runs besides (`idle`), on experts that a token did not choose.
    """
    found: Amounts = defaultdict(lambda: 0)
    for charge, place, flops in products:
        role, operator, is_idle = charge.role or "other", charge.operator, charge.operator == IDLE
        if idle:
            if is_idle:
                found[role, place] += flops
        elif is_idle or charge.counted:
            part = (BATCHED if is_idle else operator) if by_operator else role
            found[part, place] += -flops if is_idle else flops
    return dict(found)


def with_kv_len(amounts: Amounts) -> Amounts:
    """Rewrite one token's amounts in T: it attends to all positions, itself included."""
    return {key: expr.subs(symbol("S"), symbol("T")) for key, expr in amounts.items()}


def _cached(cache: object, model: nn.Module, sizes: Sizes) -> tuple[Amounts, Amounts]:
    """Measure the bytes of keys and values, those of an encoder apart, and of recurrent state."""
    kept: Amounts = defaultdict(lambda: 0)
    state: Amounts = defaultdict(lambda: 0)
    parts = {"self-attention": cache}
    if hasattr(cache, "self_attention_cache") and hasattr(cache, "cross_attention_cache"):
        parts = {
            "self-attention": cache.self_attention_cache,
            "cross-attention": cache.cross_attention_cache,
        }
    for name, part in parts.items():
        layers = getattr(part, "layers", None)
        stack = stack_of_caches(len(layers), model) if isinstance(layers, list) else None
        if not isinstance(layers, list) or stack is None:
            found = measure_cache(part)
            kept[name, None] += sizes.expr(found.kv_bytes)
            state["state", None] += sizes.expr(found.state_bytes)
            continue
        for index, layer in enumerate(layers):
            at = index * stack.length // max(len(layers), stack.length)
            found, place = measure_cache([layer]), Place(stack=stack, index=at)
            kept[name, place] += sizes.expr(found.kv_bytes)
            state["state", place] += sizes.expr(found.state_bytes)
    return dict(kept), dict(state)


QUANTITIES = (
    "params",
    "active_params",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes",
    "state_bytes",
)
# Of a forward or of one token: what code runs on experts that a token did not choose.
IDLE_OF = {"matmul_flops": "idle_matmul_flops", "decode_matmul_flops": "idle_decode_matmul_flops"}
OF_PARAMS = frozenset(["params", "active_params"])
IN_BYTES = frozenset(["kv_cache_bytes", "state_bytes"])


@frozen
class Built:
    """A module, and the whole numbers of its config: more than the asked ones may be others."""

    module: nn.Module
    numbers: dict[str, int]


@frozen
class As:
    """How a model is run with symbols: one sequence as the number 1 (of it torch asks other things
    than of B), as many key/value heads as heads where the model has it so.

    `strict`: an error of ours ends it; else it is one more reason why something is not traced.
    `seconds` of this process a forward with symbols may take.
    """

    one_sequence: bool = False
    tied: bool = False
    strict: bool = False
    seconds: float = 60.0


class Way(TypedDict, total=False):
    """One way to build a model with symbols."""

    hints: dict[str, int]  # other numbers behind the symbols
    skipped: frozenset[str]  # fields that stay numbers


def apart(sizes: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    """Choose other hints where there are as many key/value heads as heads:
    that form would be special.

    `names` gives, for a name of the number of key/value heads, that of the number of heads.
    """
    found: dict[str, int] = {}
    if any(name.endswith("kv_lora_rank") for name in sizes):
        return found  # latent attention knows one number of heads
    for name, value in sizes.items():
        last = name.rpartition(".")[2]
        if last in names and value % 2 == 0 and value > 3:
            heads = name.removesuffix(last) + names[last]
            if sizes.get(heads) == value:
                found[name] = value // 2
    return found
