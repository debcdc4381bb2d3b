"""The rows of a tree: one for each module and tensor that is shown, what repeats shown once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from metacount import units
from metacount.algebra.writing import in_letters
from metacount.frozen import frozen
from metacount.measure.node import PERIOD
from metacount.spec import legend
from metacount.textbook.closed_form import LAYERS, layers_of, named_layers, readable
from metacount.textbook.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.measure.node import Node
    from metacount.spec import ModelSpec

AS_IN = "as in "
BUFFER = "buffer"
# Classes that say nothing beside the name of the module or its shape.
PLAIN = ("Linear", "ModuleList", "Embedding")


# Three projections of one input: their sum is what textbooks call QKV.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))
TIED = "tied"
MANY = 48  # rows: with a title and notes, 60 lines
OWN = "(own products)"  # FLOPs of a module that has rows of its own below it


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line. `params`, `active`, `flops` and `bytes` are of all copies, None where unknown.

    `last` says of the row and of those above it whether they are the last of their level. `one`:
    parameters of one of the copies; None where there is but one. `forms`: times and path of the
    formulas whose sum `one` is, or `params` where there is one copy.
    """

    name: str
    role: str | None
    place: str
    count: int
    last: tuple[bool, ...] = ()
    note: str = ""
    shape: str = ""
    params: int = 0
    one: int | None = None
    active: int | None = 0
    flops: int | None = None
    bytes: int = 0
    dtype: str = ""
    forms: tuple[tuple[int, str], ...] = ()
    path: str = ""  # of a module


@dataclass(frozen=True, kw_only=True)
class _At:
    """Where a node stands: `copies` of all folds around it, `within` of those in one block."""

    last: tuple[bool, ...]
    place: str
    copies: int
    within: int


def rows_of(root: Node, depth: int | None = None) -> list[Row]:
    """List every row below and including `root`, `depth` levels of them (None: all).

    A matrix and its bias are a row each, unless there are too many rows.
    """
    at = _At(last=(), place="", copies=1, within=1)
    rows = list(_Rows(depth, joined=1).below(root, at))
    return rows if len(rows) <= MANY else list(_Rows(depth, joined=2).below(root, at))


class _Rows:
    """Makes the rows of one tree. Tensors of up to `joined` axes share the row of their module."""

    def __init__(self, depth: int | None, joined: int) -> None:
        self._depth, self._joined = depth, joined
        self._seen: dict[int, list[str]] = {}  # where modules that are alike were shown

    def below(self, node: Node, at: _At) -> Iterator[Row]:
        """Yield the row of a node, then those of what it holds."""
        node = _chained(node) if at.last else node
        numbered = node.name.rpartition(".")[2][:1].isdecimal()
        copies = at.copies * node.count
        within = 1 if numbered else at.within * node.count
        place = ".".join(part for part in (at.place, node.name) if part) if at.last else ""
        tensors = dict(node.tensors)
        tied = len(node.tied) == 1 and not (tensors or node.buffers or node.children)
        whole = not (node.tied or node.children) and is_line(node, self._joined)
        seen: list[str] = []
        if node.children and node.module not in (PERIOD, ""):
            seen = list(self._seen.setdefault(node.alike, []))
            self._seen[node.alike].append(place)
        yield Row(
            last=at.last,
            name=label(node, numbered) + (inside(node) if whole else ""),
            note=as_in(place, seen) if seen else note(node, numbered),
            role=node.role,
            place=place or node.name,
            count=copies,
            shape=joined(node, within) if whole else TIED if tied else "",
            params=node.params * copies,
            one=node.params * within if copies > within else None,
            active=_times(node.active, copies),
            flops=_times(node.flops, copies),
            bytes=node.bytes * copies,
            dtype=node.dtype,
            forms=forms_of(node, within),
            path=node.path,
        )
        if seen or ((whole or tied) and at.last) or len(at.last) == self._depth:
            return
        inner: list[Node | Row] = [*_tensor_rows(node, tensors, place, copies, within)]
        held = tuple(child for child in node.children if _is_kept(child))
        inner += _together(held) if node.module else held  # three of them are one already
        if node.own_flops and any(child.flops for child in node.children):
            at_own, flops = f"{place}.{OWN}".lstrip("."), node.own_flops * copies
            own = Row(name=OWN, role=node.role, place=at_own, count=copies, flops=flops)
            inner.append(own)
        for i, item in enumerate(inner):
            last = (*at.last, i == len(inner) - 1)
            if isinstance(item, Row):
                yield replace(item, last=last)
                continue
            # the neighbours of a period, and three projections, stand at their holder's place
            above = place.rpartition(".")[0] if node.module in (PERIOD, "") else place
            yield from self.below(item, _At(last=last, place=above, copies=copies, within=within))


def _is_kept(node: Node) -> bool:
    """Tell whether a checkpoint holds something of a module, or the module multiplies."""
    stored = node.params or node.tied or node.flops or node.buffers.keys() - node.unstored
    return bool(stored) or any(map(_is_kept, node.children))


def _chained(node: Node) -> Node:
    """Join a module that holds one other and nothing else with that other: `layers.0-31`."""
    while len(node.children) == 1 and node.count == 1 and node.module != PERIOD:
        if node.tensors or node.tied or node.buffers or node.own_flops:
            break
        (child,) = node.children
        node = replace(
            child,
            name=f"{node.name}.{child.name}",
            role=child.role or node.role,
            computes=node.computes or child.computes,
        )
    return node


def _tensor_rows(
    node: Node, tensors: dict[str, tuple[int, ...]], place: str, copies: int, within: int
) -> Iterator[Row]:
    """Yield a row for tensors that a module owns, those that it shares, and its stored buffers."""
    prefix = f"{node.path}." if node.path else ""
    start = f"{place}." if place else ""
    for key, size in tensors.items():
        yield Row(
            name=key,
            role=node.role,
            place=start + key,
            count=copies,
            shape=shape_text(size, within),
            params=prod(size) * copies,
            one=prod(size) * within if copies > within else None,
            active=_times(node.active_tensors[key], copies),
            bytes=node.bytes_of[key] * copies,
            dtype=node.dtype if node.dtype != "mixed" else "",
            forms=((within, prefix + key),),
        )
    others = [(key, TIED) for key in node.tied]
    others += [
        (key, f"{shape_text(size, within)} {BUFFER}")
        for key, size in node.buffers.items()
        if key not in node.unstored
    ]
    for key, shape in others:
        yield Row(name=key, role=node.role, place=start + key, count=copies, shape=shape)


def _times(value: int | None, copies: int) -> int | None:
    return None if value is None else value * copies


def forms_of(node: Node, within: int = 1) -> tuple[tuple[int, str], ...]:
    """Return the formulas of a node: its own, or those of what it stands for.

    What multiplies and stores nothing (the products between positions) has none.
    """
    if not node.params and not node.tied:
        return ()
    if node.module in (PERIOD, ""):
        return tuple(
            (times * child.count * within, path)
            for child in node.children
            for times, path in forms_of(child)
        )
    return ((within, node.path),)


def _together(children: tuple[Node, ...]) -> list[Node]:
    """Add up neighbouring projections of queries, keys and values among the children."""
    names = [child.name for child in children]
    for wanted in TOGETHER:
        for at in range(len(names) - 2):
            if tuple(names[at : at + 3]) == wanted:
                return [*children[:at], _sum(children[at : at + 3]), *children[at + 3 :]]
    return list(children)


def _sum(parts: tuple[Node, ...]) -> Node:
    """Join three projections into one node: alike, with a count, or with a row for each."""
    name = ", ".join(part.name for part in parts)
    if len({part.alike for part in parts}) == 1:
        return replace(parts[0], name=name, count=len(parts))
    *first, second, third = parts
    inner = parts
    if second.alike == third.alike:
        pair = replace(second, name=f"{second.name}, {third.name}", count=2)
        inner = (*first, pair)
    flops = [part.flops for part in parts]
    active = [part.active for part in parts]
    return replace(
        parts[0],
        name=name,
        module="",
        computes="",
        tensors={},
        buffers={},
        tied={},
        params=sum(part.params for part in parts),
        active=None if None in active else sum(value or 0 for value in active),
        bytes=sum(part.bytes for part in parts),
        flops=None if None in flops else sum(value or 0 for value in flops),
        own_flops=0,
        alike=-1,
        children=inner,
    )


# ---- what stands in a row beside its numbers: the name, a note, the shapes


def label(node: Node, numbered: bool) -> str:
    """Name a module, with how often it comes; a period by what it is made of."""
    if node.module == PERIOD:
        inside = ", ".join(label(child, numbered=True) for child in node.children)
        above = node.name.rpartition(".")[0]
        return f"{above}{'.' * bool(above)}({inside}) ×{node.count}"
    return f"{node.name} ×{node.count}" if numbered and node.count > 1 else node.name


def note(node: Node, numbered: bool) -> str:
    """Say what a module computes, else its class where that says more than its name."""
    alike = f"{node.count} alike" if not numbered and node.count > 1 else ""
    told = node.computes
    if not told and node.module not in (*PLAIN, PERIOD, "", node.name):
        told = f"({node.module})"
    return ", ".join(part for part in (alike, told) if part)


def as_in(place: str, seen: list[str]) -> str:
    """Say where else a module was shown: the nearest place, without what both paths share.

    >>> as_in("layers.3-60.mlp", ["layers.0-2.mlp"]), as_in("encoder.b.c", ["decoder.b.c"])
    ('as in 0-2', 'as in decoder')
    >>> as_in("model.a.shared", ["model.a.mlp", "other.model.a.b.mlp"])
    'as in mlp'
    """
    return AS_IN + min((_apart(place, other) for other in seen), key=len)


def _apart(mine: str, theirs: str) -> str:
    here, there = mine.split("."), theirs.split(".")
    while here and there and here[0] == there[0]:
        here, there = here[1:], there[1:]
    while len(there) > 1 and here and here[-1] == there[-1]:
        here, there = here[:-1], there[:-1]
    return ".".join(there)


def is_line(node: Node, joined: int) -> bool:
    """Tell whether one line says all that a module owns: one tensor, or a weight and its bias."""
    if len(node.tensors) + len(node.buffers) == 1:
        return True
    plain = list(node.tensors) == ["weight", "bias"] and not node.buffers
    return plain and max(map(len, node.tensors.values())) <= joined


def inside(node: Node) -> str:
    """Name the one tensor of a module, where it is not the module's weight."""
    (first, *_) = (*node.tensors, *node.buffers)
    return "" if first == "weight" else f".{first}"


def joined(node: Node, times: int) -> str:
    """Write the shapes of a module's tensors in one cell: a vector after a matrix is its bias."""
    first, *rest = (*node.tensors.values(), *node.buffers.values())
    if node.buffers:
        return f"{shape_text(first, times)} {BUFFER}"
    plain = len(first) == 1
    shapes = [shape_text(first, times), *(shape_text(s, times) if plain else "bias" for s in rest)]
    return " + ".join(shapes)


def shape_text(size: tuple[int, ...], times: int = 1) -> str:
    """Write a tensor's shape, or that of some alike.

    >>> shape_text((512, 64)), shape_text((512, 512), 3)
    ('[512, 64]', '3 × [512, 512]')
    """
    one = "[" + ", ".join(map(str, size)) + "]"
    return one if times == 1 else f"{times} × {one}"


# ---- formulas of rows in letters, from the textbook


@frozen
class Form:
    """One formula as text, as LaTeX, and what it comes to."""

    text: str
    latex: str
    value: int


class Forms:
    """The formulas of one model's rows."""

    def __init__(self, spec: ModelSpec) -> None:
        self._rows = Rows(spec, symbols=True)
        self._numbers = {**self._rows.numbers, **layers_of(spec)}
        n_layers = legend.sympy_symbols(["n_layers"])["n_layers"]
        self._layers = named_layers(spec, n_layers)
        self._made: dict[tuple[tuple[int, str], ...], Form] = {}
        self._used: set[str] = set()

    def of(self, forms: tuple[tuple[int, str], ...]) -> Form:
        """Sum the formulas of some paths, each so many times."""
        if forms not in self._made:
            self._made[forms] = self._form(forms)
        return self._made[forms]

    def _form(self, forms: tuple[tuple[int, str], ...]) -> Form:
        import sympy

        found = sympy.sympify(sum(times * self._rows.form(path) for times, path in forms))
        expr = readable(found.subs(self._layers))
        numbers = self._numbers
        self._used |= {letter.name for letter in expr.free_symbols}
        value = expr.subs({letter: numbers[letter.name] for letter in expr.free_symbols})
        return Form(text=in_letters(expr), latex=sympy.latex(expr), value=int(value))

    def legend(self) -> list[tuple[str, str, str, str]]:
        """List letter, name, number and meaning of every size that was used so far."""
        return [
            (t.letter, t.name, units.exact(self._numbers[t.letter]), t.meaning)
            for t in (*legend.MODEL_TERMS, *LAYERS)
            if t.letter in self._used
        ]
