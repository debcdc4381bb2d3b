"""Sums over a tape: FLOPs of forward, backward and recomputation, and the bytes that are saved."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.tape import Op, Store, Tape

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


def saved_stores(ops: Iterable[Op]) -> dict[Store, str]:
    """List the storages that backwards need, each once, with the role of the first to save it."""
    stores: dict[Store, str] = {}
    for op in ops:
        for store in op.saves:
            stores.setdefault(store, op.role)
    return stores


def saved_bytes(ops: Iterable[Op], outside: Collection[Store] = ()) -> Iterator[tuple[str, Dim]]:
    """Yield role and bytes of every storage that is saved, but those that are `outside`.

    Where sizes are letters or arrays, a tensor that torch copies only if they are larger than 1
    counts as its copy so far as it is one, else as what it lies in, if that is not saved anyhow.
    """
    stores = saved_stores(ops)
    known = {*stores, *outside}
    for store, role in stores.items():
        if store in outside:
            continue
        if store.base is None:
            yield role, store.bytes
            continue
        yield role, store.copied * store.bytes
        if store.base not in known:
            known.add(store.base)
            yield role, (1 - store.copied) * store.base.bytes


def flops(ops: Iterable[Op]) -> Iterator[tuple[str, Dim]]:
    """Yield role and FLOPs of every product of a forward."""
    for op in ops:
        if not _is_zero(op.width):
            yield op.role, op.flops


def backward_flops(ops: Iterable[Op]) -> Iterator[tuple[str, Dim]]:
    """Yield role and FLOPs of the backward of every product."""
    for op in ops:
        if not _is_zero(op.width):
            yield op.role, op.backward_flops


def needs_backward(tape: Tape) -> bool:
    """Tell whether the backward needs anything of what was recorded."""
    return any(op.needs for op in tape.ops)


def repeated_ops(ops: list[Op]) -> list[Op]:
    """List the operations that full checkpointing runs again: up to the last tensor that is saved.

    The last operation that needs something is run again only if it needs its own result.

    Source: torch.utils.checkpoint with `early_stop`.
    """
    last = max((i + (op.out in op.saves) for i, op in enumerate(ops) if op.needs), default=0)
    return ops[:last]


def product_results(ops: Iterable[Op]) -> Iterator[tuple[str, Dim]]:
    """Yield role and bytes of what products give, which selective checkpointing keeps.

    Source: torch.utils.checkpoint with a policy that keeps every product.
    """
    for op in ops:
        for store in op.results:
            yield op.role, store.bytes


def by_role(amounts: Iterable[tuple[Dim, str, Dim]], roles: Iterable[str] = ()) -> dict[str, Dim]:
    """Sum amounts, each so many times, by role; the same amount of one role is multiplied once.

    Closed forms stay short that way: numbers of layers add up before they multiply.
    """
    times: dict[tuple[str, object], Dim] = {}
    amounts_by_key: dict[tuple[str, object], Dim] = {}
    for number, role, amount in amounts:
        try:
            hash(amount)
            key: tuple[str, object] = (role, amount)
        except TypeError:  # an array
            key = (role, id(amount))
        times[key] = times[key] + number if key in times else number
        amounts_by_key[key] = amount
    sums: dict[str, Dim] = dict.fromkeys(roles, 0)
    for key, number in times.items():
        if not _is_zero(number):
            sums[key[0]] = sums.get(key[0], 0) + number * amounts_by_key[key]
    return sums


def _is_zero(x: Dim) -> bool:
    return isinstance(x, int) and x == 0
