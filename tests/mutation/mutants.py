"""The mutants of a file: its syntax tree with one thing changed."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)
ROOT = Path(__file__).parents[2]

OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.Pow: (ast.Mult,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
WORDING = ("help", "metavar", "description", "epilog")  # of options: tests read what they do


@dataclass(frozen=True)
class Mutant:
    """One change to one file, compiled, and the lines of the statement and function it is in."""

    path: Path
    line: int
    statement: range
    function: range | None
    before: str
    after: str
    code: CodeType

    @property
    def change(self) -> str:
        """What is another than it was, and in which line of source."""
        return change(self.path.read_text().splitlines(), self.line, self.before, self.after)

    @property
    def key(self) -> str:
        """What it is, without a line number: the name under which an equivalent one is listed."""
        return f"{self.path.relative_to(ROOT)}  {self.change}"


def change(source: Sequence[str], line: int, before: str, after: str) -> str:
    """A change in words, and the line of source that it is in."""
    return f"{before} -> {after}   in: {source[line - 1].strip()}"


def keys(path: Path) -> set[str]:
    """The keys of all mutants of a file, of which none is compiled."""
    source = path.read_text().splitlines()
    return {
        f"{path.relative_to(ROOT)}  {change(source, line, *texts)}"
        for _, line, texts in variants(path)
    }


def constants(node: ast.Constant) -> Iterator[ast.expr]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int():
            others = {0, 1, 2, node.value + 1} if node.value < 3 else {node.value + 1}
            yield from (ast.Constant(n) for n in sorted(others - {node.value}))
        case str():
            yield ast.Constant(node.value + "?")


def without(items: Sequence[Node]) -> Iterator[list[Node]]:
    for i in range(len(items)):
        yield [*items[:i], *items[i + 1 :]]


def with_other(ops: Sequence[ast.cmpop]) -> Iterator[list[ast.cmpop]]:
    for i, op in enumerate(ops):
        yield from ([*ops[:i], other(), *ops[i + 1 :]] for other in COMPARISONS[type(op)])


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of `node`."""
    match node:
        case ast.Constant():
            yield from constants(node)
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in OPERATORS.get(type(op), ()))
            yield from (left, right)
        case ast.AugAssign(target, op, value):
            yield from (
                ast.AugAssign(target, other(), value) for other in OPERATORS.get(type(op), ())
            )
            yield ast.Assign([target], value)
            yield ast.Pass()
        case ast.Compare(left, ops, rights):
            yield from (ast.Compare(left, others, rights) for others in with_other(ops))
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for rest in without(values):
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
            yield from (body, orelse)
        case ast.If(test, body, orelse):  # False: a guard that raises is gone
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.While(test, body, orelse) if not isinstance(test, ast.Constant):
            yield ast.While(ast.Constant(False), body, orelse)
        case ast.match_case(pattern, ast.AST() as guard, body):
            yield ast.match_case(pattern, ast.UnaryOp(ast.Not(), guard), body)
            yield ast.match_case(pattern, None, body)
        case ast.Call(func, args, keywords):
            for rest, gone in zip(without(keywords), keywords, strict=True):
                if gone.arg not in WORDING:
                    yield ast.Call(func, args, rest)
        case ast.Dict(keys, values) if len(keys) > 1:
            pairs = list(zip(keys, values, strict=True))
            for n in range(len(pairs)):
                left = pairs[:n] + pairs[n + 1 :]
                yield ast.Dict([key for key, _ in left], [value for _, value in left])
        case ast.Set(elts) | ast.List(elts, ast.Load()) | ast.Tuple(elts, ast.Load()):
            if len(elts) > 1:
                yield from (with_elements(node, rest) for rest in without(elts))
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.comprehension(target, of, [_, *_]):
            yield ast.comprehension(target, of, [], 0)


def with_elements(node: ast.AST, elements: list[ast.expr]) -> ast.AST:
    if isinstance(node, ast.Set):
        return ast.Set(elements)
    return type(node)(elements, ast.Load())


def is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(ast.Constant()):
            return True  # docstring
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Assign([ast.Name("TYPE_CHECKING")]):
            return True  # read by type checkers alone
        case ast.Assert():
            return True  # the package's are for type checkers
        case ast.Assign([ast.Name("__all__")]):
            return True  # read by those who import all
        case ast.Raise(ast.Call(_, [ast.Constant(str()) | ast.JoinedStr(), *_])):
            return True  # the wording of a message
        case ast.keyword(arg) if arg in WORDING:
            return True
    return False


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every child node as (parent, field, position in a list, child), outermost first."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not is_skipped(child):
                yield node, field, i, child
                yield from places(child)


def put(parent: ast.AST, field: str, i: int | None, child: ast.AST) -> None:
    if i is None:
        setattr(parent, field, child)
    else:
        getattr(parent, field)[i] = child


def shortened(before: str, after: str) -> tuple[str, str]:
    """Both in one line, without a long beginning that they share."""
    before, after = (" ".join(text.split()) for text in (before, after))
    shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    skipped = max(0, shared - 30)
    dots = "..." if skipped else ""
    return dots + before[skipped:][:80], dots + after[skipped:][:80]


def around(tree: ast.AST, line: int) -> tuple[range, range | None]:
    """The lines of the innermost statement that a line is part of, of a block its head, and of the
    function.
    """
    holding = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not holding:
        return range(line, line + 1), None
    inner = max(holding, key=lambda node: node.lineno)
    body = getattr(inner, "body", None)
    end = max(line, body[0].lineno - 1 if body else inner.end_lineno or 0)
    functions = [node for node in holding if isinstance(node, ast.FunctionDef)]
    outer = max(functions, key=lambda node: node.lineno, default=None)
    return range(inner.lineno, end + 1), outer and range(
        outer.body[0].lineno, (outer.end_lineno or 0) + 1
    )


def counted(path: Path) -> list[int]:
    """How many changes there are at each place of a file where there are some."""
    numbers = (sum(1 for _ in changes(child)) for *_, child in places(ast.parse(path.read_text())))
    return [n for n in numbers if n]


def variants(
    path: Path, chosen: Collection[tuple[int, int]] | None = None
) -> Iterator[tuple[ast.AST, int, tuple[str, str]]]:
    """The tree of a file with one thing changed, for each: line, before and after.

    All, or those at (number of place, number of change). A tree is what it was when the next comes.
    """
    tree = ast.parse(path.read_text())
    n_place = -1
    for parent, field, i, child in list(places(tree)):
        others = list(changes(child))
        n_place += bool(others)
        for n, other in enumerate(others):
            if chosen is not None and (n_place, n) not in chosen:
                continue
            put(parent, field, i, other)
            line = getattr(child, "lineno", 0) or getattr(parent, "lineno", 0)
            ast.copy_location(other, child if hasattr(child, "lineno") else parent)
            ast.fix_missing_locations(other)
            yield tree, line, shortened(shown(child), shown(other))
            put(parent, field, i, child)


def mutants(path: Path, chosen: Collection[tuple[int, int]] | None = None) -> Iterator[Mutant]:
    """The mutants of a file, compiled; `chosen` as of `variants`."""
    unchanged = ast.parse(path.read_text())
    for tree, line, texts in variants(path, chosen):
        code = compile(tree, str(path), "exec")
        yield Mutant(path, line, *around(unchanged, line), *texts, code)


def shown(node: ast.AST) -> str:
    """A node as source; of one with a body, its head alone where that is what changes."""
    if isinstance(node, ast.match_case):
        return ast.unparse(ast.Match(ast.Name("_"), [node])).partition("\n")[2]
    return ast.unparse(node)


def sampled(files: Sequence[Path], n: int, seed: int) -> Iterator[Mutant]:
    """Mutants of `n` places of these files drawn by chance, each with one of its changes."""
    every = [(path, i, k) for path in files for i, k in enumerate(counted(path))]
    draw = random.Random(seed)
    chosen: dict[Path, list[tuple[int, int]]] = {}
    for path, i, k in draw.sample(every, min(n, len(every))):
        chosen.setdefault(path, []).append((i, draw.randrange(k)))
    for path in sorted(chosen):
        yield from mutants(path, chosen[path])
