"""Records a forward as it runs: which module called which, and the operators between."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from metacount.measure.counter import IDLE, QUESTIONS, Book, Charge, Cost, FlopCounter
from metacount.measure.torch_private import operator_name

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload


TESTED = (ast.If, ast.While)  # statements of which a first part is computed
FAR = 400  # frames outwards in which a forward is looked for


class Statement(NamedTuple):
    """One statement. `gives` is the name that it binds, `return`, or nothing."""

    gives: str
    text: str
    line: int


NOWHERE = Statement("", "", 0)
LIBRARIES = tuple(os.path.dirname(found) + os.sep for found in (torch.__file__, __file__))


def statements_in(code: CodeType | None, frame: FrameType | None) -> tuple[Statement, ...]:
    """Find the running statement of `code`, outwards from `frame`, then those that it called.

    Torch's own and the recorder's are left out.
    """
    found: list[Statement] = []
    steps = 0
    while code is not None and frame is not None and steps < FAR:
        file = frame.f_code.co_filename
        if frame.f_code is code or not file.startswith(LIBRARIES):
            found.append(statement_at(file, frame.f_lineno, frame.f_globals))
        if frame.f_code is code:
            return tuple(found[::-1])
        frame, steps = frame.f_back, steps + 1
    return (NOWHERE,)


def statement_at(file: str, line: int | None, names: dict[str, object]) -> Statement:
    """Find the statement at a line of a file, whose globals `names` are."""
    if line is None:
        return NOWHERE
    linecache.lazycache(file, names)
    return _statements(file).get(line, Statement("", "", line))


@cache
def _statements(file: str) -> dict[int, Statement]:
    """Find the innermost statement at each line of a file; none where its source cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):  # from the outside in
        if not isinstance(node, ast.stmt):
            continue
        if isinstance(node, TESTED):
            part: ast.AST = node.test
        elif isinstance(node, ast.For):
            part = node.iter
        elif isinstance(node, ast.With):
            part = node.items[0].context_expr
        elif hasattr(node, "body"):
            continue
        else:
            part = node
        said = Statement(_gives(node), _text(part), node.lineno)
        last = getattr(part, "end_lineno", None) or node.lineno
        found.update(dict.fromkeys(range(node.lineno, last + 1), said))
    return found


def _gives(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return ", ".join(ast.unparse(target).strip("()") for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return ast.unparse(node.target)
    return "return" if isinstance(node, ast.Return) else ""


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


Shape: TypeAlias = tuple[int, ...]
T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class Operator:
    """One operator that ran. `takes` and `gives` are the tensors themselves."""

    name: str
    statements: tuple[Statement, ...]  # of the forward, then of what it called
    takes: list[Tensor]
    gives: list[Tensor]
    flops: int
    role: str | None
    counted: bool  # whether its FLOPs are part of `matmul_flops`
    number: int


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a module, and what happened in it, in order."""

    path: str
    module: nn.Module | None
    statement: Statement
    code: CodeType | None = None
    inside: list[Operator | Call] = field(default_factory=list)
    takes: list[Tensor] = field(default_factory=list)  # those given by position
    gives: list[Tensor] = field(default_factory=list)
    like: str = ""  # the path of the layer that ran in its place

    def operators(self) -> Iterator[Operator]:
        """Yield every operator that ran inside."""
        for event in self.inside:
            if isinstance(event, Operator):
                yield event
            elif isinstance(event, Call):
                yield from event.operators()


class Recording(FlopCounter):
    """A counter that remembers every operator in its call, also those that multiply nothing."""

    def __init__(self, book: Book | None = None) -> None:
        super().__init__(book)
        self.root = Call(path="", module=None, statement=NOWHERE)
        self._calls = [self.root]
        self._spent = self._number = 0
        self._function: Callable[..., object] | None = None

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run and price the operator, then write it down."""
        self._spent = 0
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "prim" or operator_name(func) in QUESTIONS:
            return out
        call, frame = self._calls[-1], inspect.currentframe()
        path = self._path
        self._number += 1
        call.inside.append(
            Operator(
                name=operator_name(func).rpartition("::")[2],
                statements=statements_in(call.code, frame),
                takes=tensors_in((args, kwargs)),
                gives=tensors_in(out),
                flops=self._spent,
                role=self.book.role(path) if path else None,
                counted=not path or self.book.counts(path),
                number=self._number,
            )
        )
        return out

    def as_one(self, name: str, run: Callable[[], object], takes: list[Tensor]) -> object:
        """Run a function, and write what ran in it down as one operator."""
        inside = self._calls[-1].inside
        start, out = len(inside), run()
        ran = [event for event in inside[start:] if isinstance(event, Operator)]
        if ran:
            flops = sum(one.flops for one in ran)
            whole = replace(ran[-1], name=name, takes=takes, gives=tensors_in(out), flops=flops)
            inside[start:] = [whole]
        return out

    def write(self, charge: Charge, flops: int, args: tuple[object, ...]) -> None:
        """Put FLOPs down, and remember them for the operator that ran."""
        super().write(charge, flops, args)
        self._spent += 0 if charge.operator == IDLE else flops

    def called(self, module: nn.Module, function: Callable[..., T], *args: object) -> T:
        """Run another function than the forward, whose statements are then those that run."""
        self._function = function
        return super().called(module, function, *args)

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Record that a module's forward begins, or the function in its place."""
        super().entered(module, args)
        function, self._function = self._function or type(module).forward, None
        outer = self._calls[-1]
        call = Call(
            path=self._names.get(id(module), ""),
            module=module,
            statement=statements_in(outer.code, inspect.currentframe())[0],
            code=getattr(inspect.unwrap(function), "__code__", None),
            takes=tensors_in(args),
        )
        outer.inside.append(call)
        self._calls.append(call)

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Record that a module's forward ends, and what it gives."""
        super().left(module, args, out)
        self._calls.pop().gives = tensors_in(out)

    def replay(self, cost: Cost, like: nn.Module, layer: nn.Module) -> None:
        """Record that a layer is not run because one like it was."""
        super().replay(cost, like, layer)
        self._calls[-1].like = self._names[id(like)]


class WholeAttention(TorchFunctionMode):
    """Makes one operator of `scaled_dot_product_attention`, which torch writes out on meta."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run a function of torch's."""
        ran: Callable[[], object] = partial(func, *args, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention:
            return ran()
        return self._recording.as_one(func.__name__, ran, tensors_in((args, kwargs)))


def tensors_in(value: object, depth: int = 4) -> list[Tensor]:
    """Collect the tensors in arguments or in what a forward gives, each once, in order."""
    found: dict[int, Tensor] = {}
    _collect(value, depth, found)
    return list(found.values())


def _collect(value: object, depth: int, found: dict[int, Tensor]) -> None:
    if isinstance(value, Tensor):
        found.setdefault(id(value), value)
    elif depth and isinstance(value, dict):
        for item in value.values():
            _collect(item, depth - 1, found)
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            _collect(item, depth - 1, found)
    elif depth and hasattr(value, "__dataclass_fields__"):
        _collect(vars(value), depth - 1, found)
