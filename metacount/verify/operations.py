"""The products of the formulas' forward beside those that our module ran: one by one, in order.

A total hides two mistakes that cancel, and does not say where one is. So each product of a layer is
held against the one that ran in its place: its role, its name where it is a linear layer's, and its
FLOPs, in the forward and in a step of decoding. Of a training step each storage that is saved is
held against those of its role and size, and each linear layer's backward against its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from metacount.formulas.pieces import Piece, pieces_of, stack_name, walk
from metacount.formulas.step import role_of_memory
from metacount.formulas.tape import Op, Pass, Store, Tape
from metacount.frozen import frozen
from metacount.spec import ModelSpec, Workload
from metacount.spec.field import altered
from metacount.units import exact

if TYPE_CHECKING:
    from torch import nn

    from metacount.measure.counter import FlopCounter
    from metacount.training.step import Measured

OUTSIDE = "outside of the layers"


@frozen
class Operation:
    """A product as one side has it: its layer, its role, its name there, its shapes, its FLOPs.

    `is_linear`: it has a weight, whose owner the name is.
    """

    place: str
    role: str
    name: str
    shapes: str
    flops: int
    is_linear: bool

    def __str__(self) -> str:
        return f"{self.role} {self.name} {self.shapes}, {exact(self.flops)} FLOPs"


def formula_operations(spec: ModelSpec, run: Workload, *, decode: bool = False) -> list[Operation]:
    """List the products of a forward of `run`, or of its last token, from the formulas' tape."""
    sizes = Pass(
        batch_size=run.batch_size,
        seq_len=run.seq_len,
        source_len=run.encoder_len if spec.has_encoder else 0,
        decode=decode,
    )
    operations: list[Operation] = []
    for piece in walk(spec, sizes):
        if decode and piece.of_encoder:  # it does not run again, and its keys and values are cached
            continue
        stack = "encoder" if piece.of_encoder or spec.decoder is None else "decoder"
        place = OUTSIDE if piece.index is None else f"{stack}.layers.{piece.index}"
        operations += _of_tape(piece.tape, place)
    return operations


def _of_tape(tape: Tape, place: str) -> Iterator[Operation]:
    weights = {weight.name.removesuffix(".weight"): weight.shape for weight in tape.weights}
    for op in tape.ops:
        if op.flops:
            shape = weights.get(op.name)
            of = f"{op.width} multiply-adds" if shape is None else f"a weight {list(shape)}"
            yield Operation(
                place=place,
                role=op.role,
                name=op.name,
                shapes=f"{op.rows} times {of}",
                flops=op.flops,
                is_linear=shape is not None,
            )


def recorded_operations(counter: FlopCounter) -> list[Operation]:
    """List the products that ran, in order, layers that did not run as those that ran for them."""
    operations = []
    for ran in counter.products():
        module = ran.charge.module
        before, inside, after = module.partition("layers.")
        index, _, name = after.partition(".")
        operations.append(
            Operation(
                place=f"{before}{inside}{index}" if inside else OUTSIDE,
                role=ran.charge.role or "other",
                name=name if inside else module,
                shapes=" @ ".join(str(list(shape)) for shape in ran.shapes),
                flops=ran.flops,
                is_linear=False,
            )
        )
    return operations


def _joined(ops: Iterable[Operation], key: Callable[[Operation], object]) -> list[Operation]:
    """Add up neighbours that have a key in common; None has nothing in common."""
    joined: list[Operation] = []
    last: object = None
    for op in ops:
        this = key(op)
        if joined and this is not None and this == last:
            joined[-1] = altered(joined[-1], flops=joined[-1].flops + op.flops)
        else:
            joined.append(op)
        last = this
    return joined


# ---- where our modules run the same products in another order, or several for one


def _number(op: Operation) -> object:
    """Name Gemma 3n's copies, each with a matrix where the formulas have one for all three."""
    name, _, number = op.name.rpartition(".")
    if "copies." not in op.name:
        return None
    return (name if number.isdecimal() else op.name).partition("copies.")[2]


def _normal(ops: list[Operation], linear: set[str], decode: bool) -> dict[str, list[Operation]]:
    """Bring one side's products into the order and the pieces in which both are compared."""

    def scan(op: Operation) -> object:
        """A scan runs its products chunk by chunk; what it is made of is added up."""
        scanned = op.role == "recurrent" and not op.is_linear and op.name not in linear
        return "scan" if scanned else None

    places: dict[str, list[Operation]] = {}
    for op in _joined(_joined(ops, _number), scan):
        places.setdefault(op.place, []).append(op)
    return {place: _sorted(own, decode) for place, own in places.items()}


# Queries or keys of an index may be made first.
EITHER_FIRST = (".indexer.", "index ")
# Gemma 3n predicts before its branches and corrects behind them, by one router; a gated recurrence
# runs one of its branches before the other. What they are made of is added up.
ADDED_UP = {"altup.": "other", "temporal_block": "recurrent"}


def _sorted(ops: list[Operation], decode: bool) -> list[Operation]:
    if decode and any(op.name.endswith("kv_b_proj") or op.name == "self_attn" for op in ops):
        # absorbed latent attention: both halves of kv_b are multiplied where queries and results
        # are, the formulas have them as one product
        parts = [op for op in ops if op.name.endswith("kv_b_proj") or op.name == "self_attn"]
        joined = altered(parts[0], flops=sum(op.flops for op in parts))
        ops = [joined, *(op for op in ops if op not in parts)]
    for part, role in ADDED_UP.items():
        if any(part in op.name for op in ops):
            return _joined(_in_any_order(ops), partial(_of_role, role))
    either = [i for i, op in enumerate(ops) if any(part in op.name for part in EITHER_FIRST)]
    in_order = _in_any_order([ops[i] for i in either])
    for i, op in zip(either, in_order, strict=True):
        ops[i] = op
    return ops


def _of_role(role: str, op: Operation) -> object:
    return role if op.role == role else None


def _in_any_order(ops: list[Operation]) -> list[Operation]:
    """Sort products, of which names are then not compared."""
    return sorted((altered(op, is_linear=False) for op in ops), key=lambda op: (op.role, op.flops))


def first_difference(
    formula: list[Operation], recorded: list[Operation], *, decode: bool = False
) -> str:
    """Name the first product on which both sides differ, as each has it; "" where none does."""
    linear = {op.name for op in formula if op.is_linear}
    sides = _normal(formula, linear, decode), _normal(recorded, linear, decode)
    for place in dict.fromkeys([*sides[0], *sides[1]]):
        for ours, ran in zip_longest(*(side.get(place, []) for side in sides)):
            if ours is None or ran is None or not _same(ours, ran):
                return f"{place}: formula {ours or 'nothing'}; reference {ran or 'nothing'}"
    return ""


def _same(ours: Operation, ran: Operation) -> bool:
    if (ours.role, ours.flops) != (ran.role, ran.flops):
        return False
    # experts' matrices are parameters of one module; outside of the layers names are paths
    named = ours.name == ran.name or ours.name.startswith(f"{ran.name}.")
    return named or not ours.is_linear or ours.place == OUTSIDE


def differing_operations(
    spec: ModelSpec, run: Workload, counters: tuple[FlopCounter, ...]
) -> Iterator[str]:
    """Say of a forward and of a step of decoding which product is the first to differ."""
    for name, counter in zip(("forward", "decode"), counters, strict=False):
        decode = name == "decode"
        sides = [formula_operations(spec, run, decode=decode), recorded_operations(counter)]
        if spec.last_stack.shared is not None:  # where a block runs that no layer owns
            sides = [_in_any_order([altered(op, place=OUTSIDE) for op in side]) for side in sides]
        difference = first_difference(*sides, decode=decode)
        if difference:
            yield f"{name}, first product that differs: {difference}"


# ---- modules of somebody else's, whose order is their own and whose matrices may be fused

Layers = dict[str, dict[str, list[int]]]  # by layer and role: the FLOPs of each product
MOST_PARTS = 16  # products of a role in a layer, of which it is found out which add up to which
# Roles of which the sum of a layer is compared alone, and why.
BY_SUM = {
    "moe": "experts run one by one, each on its tokens, or all of them on every token",
    "recurrent": "a scan runs token by token or chunk by chunk",
}


def differing_layers(
    spec: ModelSpec, run: Workload, module: nn.Module, counter: FlopCounter
) -> Iterator[str]:
    """Name the first layer of transformers' module in which a role's products are not those of the
    formulas' forward: in any order, each as it is or fused with others of the same input.

    Nothing where its lists of layers are not the stacks of the spec.
    """
    ran = layers_of_module(spec, module, counter)
    if ran is None:
        return
    ours: Layers = defaultdict(lambda: defaultdict(list))
    for op in formula_operations(spec, run):
        ours[ran.of_ours.get(op.place, op.place)][op.role].append(op.flops)
    for place in dict.fromkeys([*ours, *ran.products]):
        for role in dict.fromkeys([*ours[place], *ran.products[place]]):
            sides = ours[place][role], ran.products[place][role]
            same = sum(sides[0]) == sum(sides[1])
            if same and (role in BY_SUM or are_fused(*sides)):
                continue
            formula, theirs = (", ".join(map(exact, sorted(side))) or "none" for side in sides)
            text = f"formula {formula}; transformers {theirs}"
            yield f"forward, first layer that differs: {place} {role}, FLOPs of products: {text}"
            return


@frozen
class TheirLayers:
    """The products of each layer of a module; `of_ours` has its layer for each of the formulas'."""

    products: Layers
    of_ours: dict[str, str]


def layers_of_module(
    spec: ModelSpec, module: nn.Module, counter: FlopCounter
) -> TheirLayers | None:
    """Sort the products that ran by layer and role, those of idle experts taken away; None where
    the module has other lists of layers than the spec has stacks.
    """
    from metacount.measure.counter import IDLE
    from metacount.tracing.layers import places_by_name

    places = places_by_name(module)
    layers: Layers = defaultdict(lambda: defaultdict(list))
    lists: dict[str, int] = {}
    n_layers = {stack.n_layers for stack in spec.stacks}
    for ran in counter.products():
        charge, place = ran.charge, places.get(ran.charge.module)
        if place is not None and all(n % place.stack.length for n in n_layers):
            place = None  # a list of something else
        if place is not None:
            lists[place.stack.path] = place.stack.length
        if charge.counted or charge.operator == IDLE:
            flops = -ran.flops if charge.operator == IDLE else ran.flops
            where = OUTSIDE if place is None else f"{place.stack.path}.{place.index}"
            layers[where][charge.role or "other"] += [flops] * ran.times
    if len(lists) != len(spec.stacks):
        return None
    of_ours = {}
    for stack, (path, length) in zip(spec.stacks, lists.items(), strict=True):
        if stack.n_layers % length:
            return None
        for i in range(stack.n_layers):
            ours = f"{stack_name(spec, stack)}.layers.{i}"
            of_ours[ours] = f"{path}.{i // (stack.n_layers // length)}"
    return TheirLayers(products=layers, of_ours=of_ours)


def are_fused(some: Iterable[int], others: Iterable[int]) -> bool:
    """Tell whether the products of one side are those of the other, or sums of these.

    >>> are_fused([6, 2, 2, 9], [10, 9]), are_fused([6, 3], [5, 4])
    (True, False)
    """
    a, b = Counter(some), Counter(others)
    left, right = sorted((a - b).elements()), sorted((b - a).elements())
    return _adds_up(left, right) or _adds_up(right, left)


def _adds_up(wholes: list[int], parts: list[int]) -> bool:
    if not wholes or len(parts) > MOST_PARTS:
        return sum(wholes) == sum(parts)
    return any(
        _adds_up(wholes[1:], [part for i, part in enumerate(parts) if i not in chosen])
        for chosen in _sums(parts, wholes[0], 0)
    )


def _sums(parts: list[int], total: int, start: int) -> Iterator[frozenset[int]]:
    """Yield the indices of parts that add up to a whole."""
    if total == 0:
        yield frozenset()
    for i in range(start, len(parts)):
        if 0 < parts[i] <= total:
            for rest in _sums(parts, total - parts[i], i + 1):
                yield rest | {i}


# ---- a training step: what it saves, and what its backward multiplies

Saved = dict[tuple[str, int], Counter[str]]  # by role and bytes: who saves how many storages so
SEEDS = (16, 8)  # bytes of a fused kernel's seed and offset, which are one storage of the formulas


def _sizes_apart(op: Op, size: int) -> tuple[int, ...]:
    """List the storages of which one of the formulas' consists: cosines and sines are two."""
    if op.name == "rotate":
        return size // 2, size // 2
    return SEEDS if op.name == "attention kernel" and size == sum(SEEDS) else (size,)


def formula_saved(pieces: list[Piece], run: Pass, added_up: set[str]) -> Saved:
    """List the storages that the formulas' forward saves, by role and size."""
    saved: Saved = defaultdict(Counter)
    memories: dict[Store, None] = {}
    for piece in pieces:
        seen = set() if piece.memory is None else {piece.memory}
        memories |= dict.fromkeys(seen)
        for op in piece.tape.ops:
            for store in op.saves:
                for size in _sizes_apart(op, int(store.bytes)) if store not in seen else ():
                    _add_saved(saved, op.role, size, op.name, int(piece.times), added_up)
                seen.add(store)
    for memory in memories:
        role = role_of_memory(run)
        _add_saved(saved, role, int(memory.bytes), "what the encoder gave", 1, added_up)
    return saved


def recorded_saved(step: Measured, added_up: set[str]) -> Saved:
    """List the storages that a measured step saves, by role and size."""
    saved: Saved = defaultdict(Counter)
    for number, saved_there in step.counter.kept.items():
        who = f"{_in_layer(saved_there.module)} ({saved_there.operator})"
        _add_saved(saved, saved_there.role, step.ledger.bytes[number], who, 1, added_up)
    return saved


def _add_saved(
    saved: Saved, role: str, size: int, who: str, times: int, added_up: set[str]
) -> None:
    """Add storages; those of a role that is added up byte by byte."""
    if role in added_up:
        saved[role, 1][who] += size * times
    elif size:
        saved[role, size][who] += times


def _in_layer(module: str) -> str:
    """Name a module as it is called within its layer."""
    _, inside, after = module.partition("layers.")
    return after.partition(".")[2] if inside else module


def differing_step(spec: ModelSpec, run: Pass, step: Measured) -> Iterator[str]:
    """Say of a measured step without checkpoints which saved storages are the first to differ in
    number, and whose backward is the first to differ in FLOPs.
    """
    pieces = pieces_of(spec, run, loss=True)
    # a scan saves chunk by chunk, SparseMixer choice by choice: parts of the formulas' storages
    added_up = {"recurrent"} | ({"moe"} if spec.mixer_jitter is not None else set())
    ours, ran = formula_saved(pieces, run, added_up), recorded_saved(step, added_up)
    for role, size in dict.fromkeys([*ours, *ran]):
        both = ours.get((role, size), Counter()), ran.get((role, size), Counter())
        if both[0].total() != both[1].total():
            sides = [f"{names.total()} of {', '.join(names) or 'nothing'}" for names in both]
            of = f"of {role}, {exact(size)} bytes each"
            yield f"saved, first that differs: {of}: formula {sides[0]}; reference {sides[1]}"
            break
    yield from _differing_backward(pieces, step)


def _differing_backward(pieces: list[Piece], step: Measured) -> Iterator[str]:
    from metacount.training.step import BACKWARD

    ran = [(c.role or "other", _in_layer(c.module), n) for c, n in step.counter.charged(BACKWARD)]
    modules = {name for _, name, _ in ran}
    ours = [
        (op.role, _owner(op, piece.tape, modules), int(piece.times * op.backward_flops))
        for piece in pieces
        for op in piece.tape.ops
        if op.backward_flops
    ]
    known = {name for _, name, _ in ours}
    sums: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
    for side, amounts in zip(sums, (ours, ran), strict=True):
        for role, name, flops in amounts:
            side[role, name if name in known else ""] += flops
    for key in dict.fromkeys([*sums[0], *sums[1]]):
        if sums[0][key] != sums[1][key]:
            formula, reference = (exact(side[key]) for side in sums)
            of = " ".join(key).rstrip()
            text = f"{of}: formula {formula} FLOPs; reference {reference}"
            yield f"backward, first product that differs: {text}"
            return


def _owner(op: Op, tape: Tape, modules: set[str]) -> str:
    """Name the module that has the weight of a product; "" where none ran under that name."""
    name = op.name if any(weight.name == f"{op.name}.weight" for weight in tape.weights) else ""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name
