"""Which layers a model repeats, how many of a kind it has, and a closed form by such parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain

import sympy
from torch import nn

from metacount.frozen import frozen
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.measure.alike import LAYER_NUMBERS, PLAIN
from metacount.measure.torch_private import parameters_of
from metacount.spec.field import altered
from metacount.tracing.symbols import SMALLEST, WrongHint, symbol
from metacount.units import ranges

# Other numbers of layers to try a law at: small, and of different remainders.
TRIED = (4, 5, 6, 7, 8, 13, 9, 11)
TRIES_KEPT = 6
# More of them for laws that begin at some layer: a long pattern looks like one over few layers.
TRIED_LONG = (9, 10, 11, 17, 19, 27, 29, 37)
FAR = 108  # layers that show a pattern of up to 52 twice
FEW = 7  # layers that every kind is among, it is hoped; whether it was is measured


@frozen
class Stack:
    """A list of layers in a model: its path, and its length."""

    path: str
    length: int


@frozen
class Place:
    """One layer of one stack."""

    stack: Stack
    index: int


# (role or part, layer or None) -> expression
Amounts = dict[tuple[str, Place | None], sympy.Expr]


def places(model: nn.Module) -> dict[int, Place]:
    """Find the layer of an outermost list that each module is in, by the module's id."""
    by_id: dict[int, Place] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or id(module) in by_id or not len(module):
            continue
        stack = Stack(path=path, length=len(module))
        for index, layer in enumerate(module):
            for inner in layer.modules():
                by_id.setdefault(id(inner), Place(stack=stack, index=index))
    return by_id


def places_by_name(model: nn.Module) -> dict[str, Place]:
    """Find the layer that each module is or belongs to, by the module's full name."""
    where = places(model)
    return {name: where[id(m)] for name, m in model.named_modules() if id(m) in where}


def stacks(model: nn.Module) -> Iterator[tuple[Stack, nn.ModuleList]]:
    """Yield every outermost list of layers."""
    inside: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and id(module) not in inside:
            inside |= {id(m) for m in module.modules()}
            yield Stack(path=path, length=len(module)), module


def stack_of_caches(n_caches: int, model: nn.Module) -> Stack | None:
    """Find the stack with as many layers as caches;
    else the only one with several for each, or with more layers.

    LongCat-Flash has two attentions a layer, each with a cache; MiniMax's last layer may keep none.
    """
    by_length: dict[int, Stack] = {}
    for stack, _ in stacks(model):
        # a decoder's stack, where an encoder has one as long
        if stack.length not in by_length or "encoder" in by_length[stack.length].path.split("."):
            by_length[stack.length] = stack
    candidates = [stack for length, stack in by_length.items() if n_caches % length == 0]
    if not candidates and len(by_length) == 1:
        candidates = [stack for length, stack in by_length.items() if n_caches < length]
    return by_length.get(n_caches) or (candidates[0] if len(candidates) == 1 else None)


def described(layer: nn.Module) -> tuple[object, ...]:
    """Describe what can be told of a layer from outside: classes, shapes and plain attributes."""
    return tuple(
        (
            path,
            type(module).__name__,
            tuple((n, tuple(p.shape)) for n, p in parameters_of(module).items()),
            tuple(
                (n, value)
                for n, value in sorted(vars(module).items())
                # scales of a deep network depend on how many layers it has; no count does on them
                if isinstance(value, PLAIN)
                and not isinstance(value, float)
                and n not in LAYER_NUMBERS
                and n not in LAYER_COUNTS
            ),
        )
        for path, module in layer.named_modules()
    )


@frozen
class Law:
    """How many layers of a kind there are: `expr` in fields of the config where one was found.

    `confirmed` is at how many other numbers of layers it was tried; 0 where it is only the count.
    `moved` are the fields that had other values there; `alone`, that it is one field, and that with
    other values of others the law may be another one.
    """

    expr: sympy.Expr
    count: int
    confirmed: int
    moved: frozenset[str] = frozenset()
    alone: bool = False


# path of a list of layers -> what can be told of each of them
Layout = dict[str, tuple[object, ...]]


def layout(model: nn.Module) -> Layout:
    """Describe each layer of every outermost list of layers of a model."""
    return {stack.path: tuple(map(described, layers)) for stack, layers in stacks(model)}


def law(
    stack: Stack,
    indices: frozenset[int],
    fields: dict[str, int],
    layout_at: Callable[[dict[str, int]], Layout | None],
) -> Law:
    """Express the number of layers `indices` of `stack` in `fields`, confirmed elsewhere.

    `layout_at` describes the model built with other values of some fields (none changed: its own),
    or gives None where it cannot be built.
    """
    count = len(indices)
    layers = (layout_at({}) or {}).get(stack.path)
    if layers is None or len(layers) != stack.length:
        return Law(expr=sympy.Integer(count), count=count, confirmed=0)
    kind = {layers[i] for i in indices}
    rest = {layers[i] for i in range(stack.length) if i not in indices}
    seen: list[tuple[dict[str, int], int]] = [(fields, count)]
    if kind.isdisjoint(rest):
        far = [{name: FAR} for name, n in fields.items() if n == stack.length] if rest else []
        for change in (*_changes(fields, stack.length), *far):
            n_layers = _count(layout_at({**fields, **change}), stack.path, kind, rest)
            if n_layers is not None:
                seen.append(({**fields, **change}, n_layers))
    if len(seen) > 2:
        moved = {name for name in fields if len({at[name] for at, _ in seen}) > 1}
        for more, laws in (
            ((), chain([sympy.Integer(count)], _candidates(sorted(moved), 0 in indices))),
            (_longer(fields, stack.length), _begun_somewhere(sorted(moved))),
        ):
            for change in more:
                n_layers = _count(layout_at({**fields, **change}), stack.path, kind, rest)
                if n_layers is not None:
                    seen.append(({**fields, **change}, n_layers))
            for expr in laws:
                if all(_value(expr, at) == n_layers for at, n_layers in seen):
                    tried = len(seen) - 1
                    return Law(expr=expr, count=count, confirmed=tried, moved=frozenset(moved))
        for name in (name for name, number in fields.items() if number == stack.length):
            layers = (layout_at({**fields, name: FAR}) or {}).get(stack.path, ())
            repeated = _repeated(name, [layer in kind for layer in layers])
            own = [(at, n) for at, n in seen if {**at, name: fields[name]} == fields]
            known = len(own) > 2 and all(layer in kind or layer in rest for layer in layers)
            if known and repeated is not None and all(_value(repeated, at) == n for at, n in own):
                only, tried = frozenset([name]), len(own) - 1
                return Law(expr=repeated, count=count, confirmed=tried, moved=only, alone=True)
    return Law(expr=sympy.Integer(count), count=count, confirmed=0)


def _repeated(name: str, has: list[bool]) -> sympy.Expr | None:
    """Count the layers of a kind where a pattern repeats, perhaps after a few layers that are
    otherwise: of `has`, whether each layer is one, the shortest pattern that is there twice.

    >>> _repeated("n", [True, False, False, True] * 20)
    floor(n/4) + floor(n/4 + 3/4)
    """
    letter = symbol(name)
    for first in range(SMALLEST + 1):
        for period in range(1, (len(has) - first) // 2 + 1):
            if has[first + period :] == has[first:-period]:
                places = [i for i in range(first, first + period) if has[i]]
                counts = (sympy.floor((letter + period - 1 - i) / period) for i in places)
                return sympy.Add(sum(has[:first]), *counts)
    return None


def _changes(fields: dict[str, int], length: int) -> Iterator[dict[str, int]]:
    """Yield other values of the fields that count layers, and of one other field at a time."""
    counts = [name for name, value in fields.items() if value == length]
    for name in counts[:2]:
        others = [n for n in TRIED if n != length][:TRIES_KEPT]
        yield from ({name: n} for n in others)
        for other in fields:
            if other != name and fields[other] < 12:
                yield {name: 13, other: fields[other] + 1}
                if fields[other] > 1:
                    yield {name: 12, other: fields[other] - 1}


def _longer(fields: dict[str, int], length: int) -> Iterator[dict[str, int]]:
    """Yield more numbers of layers than `_changes` has, longer than a pattern may be."""
    counts = [name for name, value in fields.items() if value == length]
    for name in counts[:2]:
        yield from ({name: n} for n in TRIED_LONG if n != length)


def _count(layout: Layout | None, path: str, kind: set[object], rest: set[object]) -> int | None:
    layers = (layout or {}).get(path)
    # a layer of neither kind was not there before: nothing can be said
    if layers is None or any(layer not in kind and layer not in rest for layer in layers):
        return None
    return sum(layer in kind for layer in layers)


def _candidates(fields: list[str], with_first: bool) -> Iterator[sympy.Expr]:
    """Yield laws of layers, those `with_first` rounded up before down: where a model has pairs of
    layers alone, no number of them tells, and both kinds together are all.
    """
    names = [symbol(name) for name in fields]
    yield from names
    pairs = [(a, b) for a in names for b in names if a != b]
    yield from (a - b for a, b in pairs)
    yield from (sympy.floor(a / b) for a, b in pairs)
    yield from (a - sympy.floor(a / b) for a, b in pairs)
    yield from (a - sympy.ceiling(a / b) for a, b in pairs)
    yield from (sympy.ceiling(a / b) for a, b in pairs)
    yield from (a + b for a, b in pairs)
    for c in range(1, 4):
        yield from (a - c for a in names)
    for c in range(2, 9):
        # every c-th layer, from the first or the c-th, and the others
        for count in (sympy.ceiling, sympy.floor)[:: 1 if with_first else -1]:
            yield from (count(a / c) for a in names)
            yield from (a - count(a / c) for a in names)


def _begun_somewhere(fields: list[str]) -> Iterator[sympy.Expr]:
    names = [symbol(name) for name in fields]
    for more in (0, 1, -1):
        # the same from another layer, and one at either end that is different
        for c in range(2, 9):
            for begin in range(1 - c, c):
                yield from (sympy.floor((a + begin) / c) + more for a in names)
                yield from (a - sympy.floor((a + begin) / c) - more for a in names)


def _value(expr: sympy.Expr, at: dict[str, int]) -> int:
    return int(expr.xreplace({symbol(name): sympy.Integer(n) for name, n in at.items()}).doit())


@frozen
class CodePart:
    """One role's share in one kind of layer (`layers` of them), or outside of all layers."""

    role: str
    expr: sympy.Expr
    layers: Law | None
    where: str


@frozen
class CodeForm:
    """A closed form read off code.

    `by_role` and its `total` are in the config's fields and B, S, S_e (T for decode). `numbers` are
    the model's own, `value` what the form gives for them, which was measured too. `domain` are the
    conditions that the code put on sizes. `confirmed` is at how many other sizes the form was
    measured too; `untried` are sizes that had to stay as they are. `solved_for` has sizes that the
    code makes numbers, with those at which the form was read. `least` has from which number on each
    letter may be (1 where it has none), `ratios` how many times another one.
    """

    quantity: str
    parts: tuple[CodePart, ...]
    by_role: dict[str, sympy.Expr]
    numbers: dict[str, int]
    value: int
    domain: tuple[sympy.Basic, ...]
    source: str
    notes: tuple[str, ...]
    every_number: dict[sympy.Symbol, int]  # of letters that the form does not need, too
    how: str = "traced"
    confirmed: int = 0
    untried: tuple[str, ...] = ()
    solved_for: tuple[tuple[str, tuple[int, ...]], ...] = ()
    least: tuple[tuple[sympy.Symbol, int], ...] = ()
    ratios: tuple[sympy.Basic, ...] = ()

    @property
    def solved(self) -> tuple[str, ...]:
        """Of each letter of `solved_for`, in words."""
        return tuple(
            f"{letter} read at {', '.join(map(str, at[:-1]))} and {at[-1]}, and solved for"
            for letter, at in self.solved_for
        )

    @property
    def total(self) -> sympy.Expr:
        """The sum of the roles."""
        return sympy.expand(sum(self.by_role.values(), sympy.Integer(0)))


class FormDiffers(WrongHint):
    """A form whose value somewhere is not what was measured there."""


def summed(parts: tuple[CodePart, ...]) -> dict[str, sympy.Expr]:
    """Sum the parts of each role, each as often as there are such layers."""
    sums: dict[str, sympy.Expr] = defaultdict(lambda: sympy.Integer(0))
    for part in parts:
        sums[part.role] += part.expr * (1 if part.layers is None else part.layers.expr)
    return {role: sympy.expand(expr) for role, expr in sums.items() if expr != 0}


def without_law(part: CodePart) -> CodePart:
    """Return the same part with its layers counted in numbers."""
    if part.layers is None:
        return part
    count = part.layers.count
    return altered(part, layers=Law(expr=sympy.Integer(count), count=count, confirmed=0))


def agrees(
    by_role: dict[str, sympy.Expr],
    numbers: dict[sympy.Symbol, int],
    measured: dict[str, sympy.Expr],
) -> bool:
    """Tell whether a form gives what was measured, role by role."""
    counts = {
        role: expr.xreplace({s: sympy.Integer(numbers[s]) for s in expr.free_symbols}).doit()
        for role, expr in by_role.items()
    }
    roles = {*counts, *measured}
    return all(counts.get(role, 0) == measured.get(role, 0) for role in roles)


def parts_of(amounts: Amounts, law: Callable[[Stack, frozenset[int]], Law]) -> Iterator[CodePart]:
    """Yield what is outside of layers, then each kind of layer with its law."""
    outside: dict[str, sympy.Expr] = {}
    layers: dict[Stack, dict[int, dict[str, sympy.Expr]]] = defaultdict(lambda: defaultdict(dict))
    for (role, place), expr in amounts.items():
        if place is None:
            outside[role] = sympy.expand(outside.get(role, 0) + expr)
        else:
            now = layers[place.stack][place.index]
            now[role] = sympy.expand(now.get(role, 0) + expr)
    for role, expr in outside.items():
        if expr != 0:
            yield CodePart(role=role, expr=expr, layers=None, where="")
    for stack, of_stack in layers.items():
        kinds: dict[tuple[tuple[str, sympy.Expr], ...], set[int]] = defaultdict(set)
        for index, exprs in of_stack.items():
            kinds[tuple(sorted((r, e) for r, e in exprs.items() if e != 0))].add(index)
        for kind, indices in kinds.items():
            if not kind:
                continue
            number = law(stack, frozenset(indices))
            for role, expr in kind:
                yield CodePart(
                    role=role, expr=expr, layers=number, where=f"{stack.path}[{ranges(indices)}]"
                )


def totals(amounts: Amounts) -> dict[str, sympy.Expr]:
    """Sum over layers, by role."""
    sums: dict[str, sympy.Expr] = defaultdict(lambda: sympy.Integer(0))
    for (role, _), expr in amounts.items():
        sums[role] += expr
    return {role: sympy.expand(expr) for role, expr in sums.items()}


def counting(parts: tuple[CodePart, ...]) -> set[str]:
    """Name the fields that say how many layers there are."""
    return {s.name for part in parts if part.layers for s in part.layers.expr.free_symbols}


def moved(parts: tuple[CodePart, ...]) -> set[str]:
    """Name the fields for other values of which every law of layers was seen to hold."""
    laws = [part.layers.moved for part in parts if part.layers]
    return set(frozenset.intersection(*laws)) if laws else set()


def limits(parts: tuple[CodePart, ...]) -> tuple[sympy.Basic, ...]:
    """State that no kind has fewer than 0 layers: a ≥ b where there are a - b of them."""
    relations: dict[sympy.Basic, None] = {}
    for law in {part.layers for part in parts if part.layers}:
        pair = sorted(law.expr.as_coefficients_dict().items(), key=lambda term: term[1])
        if [c for _, c in pair] == [-1, 1] and all(x.is_Symbol for x, _ in pair):
            relations[sympy.Ge(pair[1][0], pair[0][0])] = None
    return tuple(relations)
