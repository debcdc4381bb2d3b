"""A recorded forward as steps: what a person would write on a board, each once, with its figures.

A step is a call of a small module (a projection, a norm) or one statement of a larger one. What
only reshapes is a step where it is explained or changes the number of axes. Neighbours that are
alike become one, ×N; so do periods of them.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.measure import torch_private
from metacount.measure.counter import IDLE, QUESTIONS, Book, Charge, Cost, FlopCounter
from metacount.measure.node import period_at
from metacount.measure.torch_private import operator_name
from metacount.tensors import FunctionMode

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
LIBRARIES = (  # of torch, and of what watches it
    *(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__)),
    torch_private.__file__,
)


def statements_in(code: CodeType | None, frame: FrameType | None) -> tuple[Statement, ...]:
    """Find the running statement of `code`, outwards from `frame`, then those that it called.

    Torch's own and the recorder's are left out.
    """
    statements: list[Statement] = []
    steps = 0
    while code is not None and frame is not None and steps < FAR:
        file = frame.f_code.co_filename
        if frame.f_code is code or not file.startswith(LIBRARIES):
            statements.append(statement_at(file, frame.f_lineno, frame.f_globals))
        if frame.f_code is code:
            return tuple(statements[::-1])
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
    by_line: dict[int, Statement] = {}
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
        statement = Statement(_gives(node), _text(part), node.lineno)
        last = getattr(part, "end_lineno", None) or node.lineno
        by_line.update(dict.fromkeys(range(node.lineno, last + 1), statement))
    return by_line


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

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run and price the operator, then write it down."""
        self._spent = 0
        out = super().run_operator(func, args, kwargs)
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
            flops = sum(operator.flops for operator in ran)
            joined = replace(ran[-1], name=name, takes=takes, gives=tensors_in(out), flops=flops)
            inside[start:] = [joined]
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


class WholeAttention(FunctionMode):
    """Makes one operator of `scaled_dot_product_attention`, which torch writes out on meta."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run a function of torch's."""
        ran: Callable[[], object] = partial(func, *args, **kwargs)
        if func is not F.scaled_dot_product_attention:
            return ran()
        return self._recording.as_one(func.__name__, ran, tensors_in((args, kwargs)))


def tensors_in(value: object, depth: int = 4) -> list[Tensor]:
    """Collect the tensors in arguments or in what a forward gives, each once, in order."""
    by_id: dict[int, Tensor] = {}
    _collect(value, depth, by_id)
    return list(by_id.values())


def _collect(value: object, depth: int, by_id: dict[int, Tensor]) -> None:
    if isinstance(value, Tensor):
        by_id.setdefault(id(value), value)
    elif depth and isinstance(value, dict):
        for item in value.values():
            _collect(item, depth - 1, by_id)
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            _collect(item, depth - 1, by_id)
    elif depth and hasattr(value, "__dataclass_fields__"):
        _collect(vars(value), depth - 1, by_id)


Named: TypeAlias = tuple[str | None, ...]  # a letter or a term for each axis


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. Figures are of one of its `times`; those of the steps inside are in them.

    `equation` is known or None; `code` is the statement that ran, where its source is at hand.
    `like` is the step, shown before, that this one repeats. `uncounted` are FLOPs that belong to
    no figure (tables of angles).
    """

    name: str
    path: str
    module: str
    equation: str | None
    code: str
    alone: bool  # whether the statement did nothing else
    operators: tuple[str, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    params: int
    flops: int
    uncounted: int
    role: str | None
    times: int = 1
    like: str | None = None
    inside: tuple[Step, ...] = ()
    # the same shapes and figures in letters, where they are known
    input_letters: tuple[Named, ...] = ()
    output_letters: tuple[Named, ...] = ()
    params_letters: str | None = None
    flops_letters: str | None = None

    def alike(self) -> tuple[object, ...]:
        """Return what two steps must share to be shown as one, numbers in names apart."""
        label = ".".join("#" if part.isdecimal() else part for part in self.name.split("."))
        return (
            label,
            self.module,
            self.equation,
            self.code,
            self.operators,
            self.inputs,
            self.outputs,
            self.params,
            self.flops,
            self.uncounted,
            self.role,
            self.times,
            tuple(step.alike() for step in self.inside),
        )


@dataclass(kw_only=True)
class Seen:
    """What an equation may depend on: the module, what its statement binds, what ran in it."""

    module: Any
    holder: Any
    name: str  # of the module in its holder
    gives: str
    operators: tuple[str, ...]  # that compute something, each once
    inputs: tuple[Shape, ...]
    before: tuple[str, ...] = ()  # names of the steps before it in the same call


# None: nothing is known of it. An empty text: it says nothing worth a line.
Explain: TypeAlias = Callable[[Seen], str | None]


def summed(steps: Iterable[Step]) -> dict[str, Any]:
    """Sum the figures of steps, every repetition counted."""
    steps = tuple(steps)
    return {
        "params": sum(step.params * step.times for step in steps),
        "flops": sum(step.flops * step.times for step in steps),
        "uncounted": sum(step.uncounted * step.times for step in steps),
    }


LONGEST_PERIOD = 16
LOOP = 3  # so often at the least what has no number repeats


def folded(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Fold alike neighbours among the steps, and alike periods of neighbours, into one step each.

    A step that is like one before it, but no neighbour of it, says which in `like`.
    """
    keys = [step.alike() for step in steps]
    numbers = {key: n for n, key in reversed(list(enumerate(dict.fromkeys(keys))))}
    runs = _runs(list(steps), [numbers[key] for key in keys])
    return _with_likes(runs, {})


def _runs(steps: list[Step], kinds: list[int]) -> list[Step]:
    def enough(start: int, length: int) -> int:
        return 2 if any(map(_numbered, steps[start : start + length])) else LOOP

    out: list[Step] = []
    i = 0
    while i < len(steps):
        period, times = period_at(kinds, i, longest=LONGEST_PERIOD, enough=enough)
        if times > 1:
            last = steps[i + period * (times - 1) : i + period * times]
            out.append(_repeated(steps[i : i + period], last, kinds[i : i + period], times))
        else:
            out.append(steps[i])
        i += period * times
    return out


def _numbered(step: Step) -> bool:
    return any(part.isdecimal() for part in step.name.split("."))


def _repeated(first: list[Step], last: list[Step], kinds: list[int], times: int) -> Step:
    if len(first) == 1:
        return replace(first[0], name=_span(first[0].name, last[0].name), times=times)
    inside = tuple(_runs(first, kinds))
    ends = [step for step in (*first, *last) if _numbered(step)]
    return replace(
        first[0],
        name=_span(ends[0].name, ends[-1].name) if ends else "loop",
        module="",
        equation=None,
        code="",
        alone=False,
        operators=(),
        inputs=first[0].inputs,
        outputs=first[-1].outputs,
        params=sum(step.params * step.times for step in inside),
        flops=sum(step.flops * step.times for step in inside),
        uncounted=sum(step.uncounted * step.times for step in inside),
        role=None,
        times=times,
        inside=inside,
    )


def _span(first: str, last: str) -> str:
    """Write `layers.0` to `layers.31` as `layers.0-31`."""
    for a, b in zip(first.split("."), last.split("."), strict=False):
        if a != b:
            return first.replace(a, f"{a}-{b}", 1) if a.isdecimal() else f"{first}-{last}"
    return first


def _with_likes(steps: Sequence[Step], shown: dict[object, str]) -> tuple[Step, ...]:
    out = []
    for step in steps:
        key = replace(step, times=1).alike() if step.module and step.inside else None
        if key is not None and key in shown:
            out.append(replace(step, like=shown[key]))
            continue
        if key is not None:
            shown[key] = step.name
        if not step.module and step.inside:
            step = replace(step, inside=_with_likes(step.inside, shown))
        out.append(step)
    return tuple(out)


def called_by(path: str, prefix: str) -> str:
    """Name a call inside another by its path in that one, or else by its path in its layer."""
    if f"{path}.".startswith(f"{prefix}.") or not prefix:
        return path.removeprefix(prefix).lstrip(".") or path
    return re.sub(r"^.*?\blayers\.\d+\.", "", path)


def without_met(step: Step, like: str) -> Step:
    """Copy a step for one like it, without the parameters that were used already."""
    if step.inside:
        inside = tuple(without_met(inner, like) for inner in step.inside)
        return replace(
            step, inside=inside, params=sum(inner.params * inner.times for inner in inside)
        )
    own = f"{step.path}.".startswith(f"{like}.")
    return step if own else replace(step, params=0)


# Operators that compute nothing: another look at the same values, a copy, a new empty tensor.
PLAIN = frozenset((
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "t", "permute", "unsqueeze",
    "squeeze", "expand", "slice", "select", "split", "split_with_sizes", "unsafe_split", "chunk",
    "unbind", "clone", "_to_copy", "detach", "alias", "arange", "empty", "empty_like",
    "new_empty", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full",
    "full_like", "scalar_tensor", "copy_", "copy", "lift_fresh", "unfold", "_local_scalar_dense",
    "is_same_size", "transpose_", "t_", "squeeze_", "unsqueeze_",
))  # fmt: skip

RESHAPES = frozenset(["view", "_unsafe_view", "reshape", "transpose", "permute", "unfold"])


@dataclass(kw_only=True)
class _Telling:
    explain: Explain
    own: dict[int, int]  # parameters, by id: values
    constants: set[int]  # parameters and buffers
    last_use: dict[int, int]
    same: dict[int, Tensor] = field(default_factory=dict)  # what a step left out only reshaped
    made: dict[str, Step] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)


def steps_of(root: Call, model: nn.Module, explain: Explain) -> tuple[Step, ...]:
    """Return the steps of a recorded forward of `model`, alike neighbours folded."""
    own = {id(p): p.numel() for p in model.parameters()}
    operators = list(root.operators())
    constants = {*own, *(id(b) for b in model.buffers())}
    for op in operators:  # a view of a weight is a weight
        if op.name in PLAIN and op.takes and all(id(t) in constants for t in op.takes):
            constants |= {id(t) for t in op.gives}
    telling = _Telling(
        explain=explain,
        own=own,
        constants=constants,
        last_use={id(t): op.number for op in operators for t in op.takes},
    )
    steps = _inside(root, "", telling)
    return sum((s.inside if s.path == "" and s.inside else (s,) for s in steps), ())


def _inside(call: Call, prefix: str, telling: _Telling) -> tuple[Step, ...]:
    """Return the steps of a call, in order."""
    steps: list[Step] = []
    group: list[Operator] = []

    def end_group() -> None:
        if group:
            before = tuple(step.name for step in steps)
            for part, statement in _parts(list(group), 0):
                steps.extend(_of_statement(call, part, statement, before, telling))
            group.clear()

    for event in call.inside:
        if isinstance(event, Operator):
            if group and group[0].statements[0] != event.statements[0]:
                end_group()
            group.append(event)
            continue
        end_group()
        name = called_by(event.path, prefix)
        if event.like:
            again = without_met(telling.made[event.like], event.like)
            steps.append(replace(again, name=name, path=event.path))
        else:
            steps += _of_call(event, call, name, telling)
    end_group()
    return folded(steps)


def _parts(operators: list[Operator], level: int) -> Iterator[tuple[list[Operator], Statement]]:
    """Yield one statement's operators;
    where they have several products, those of each statement that it called.
    """
    deeper = [op.statements[level + 1 : level + 2] for op in operators]
    if sum(op.flops > 0 for op in operators) < 2 or not any(deeper):
        yield operators, operators[0].statements[level]
        return
    start = 0
    for end in range(1, len(operators) + 1):
        if end < len(operators) and deeper[end] == deeper[start]:
            continue
        part = operators[start:end]
        if deeper[start]:
            yield from _parts(part, level + 1)
        else:
            yield part, part[0].statements[level]
        start = end


def _of_call(call: Call, holder: Call, name: str, telling: _Telling) -> list[Step]:
    """Turn a call into a step; one that is one thing has no steps inside."""
    operators = list(call.operators())
    if not operators:
        return []
    module = call.module
    step = _step(operators, call, name, type(module).__name__, telling)
    single = _one_thing(call)
    seen = Seen(
        module=module,
        holder=holder.module,
        name=name.rpartition(".")[2],
        gives="",
        operators=step.operators,
        inputs=step.inputs,
    )
    inside = () if single else _inside(call, call.path, telling)
    step = replace(step, code=call.statement.text)
    if single:
        equation = telling.explain(seen) or None
        step = replace(step, equation=equation, params=_first_met(operators, telling))
    else:  # with what was not run because the same had been
        step = replace(step, inside=inside, operators=(), **summed(inside))
    telling.made.setdefault(call.path, step)
    return [step]


def _one_thing(call: Call) -> bool:
    """Tell whether a call has no calls inside and is of torch's own or has at most one product."""
    if any(not isinstance(event, Operator) for event in call.inside):
        return False
    library = type(call.module).__module__.startswith("torch.nn.")
    return library or sum(op.flops > 0 for op in call.operators()) <= 1


def _of_statement(
    call: Call,
    operators: list[Operator],
    statement: Statement,
    before: tuple[str, ...],
    telling: _Telling,
) -> list[Step]:
    """Turn the operators of one statement into a step, or into none where they say nothing."""
    step = _step(operators, call, "", "", telling)
    seen = Seen(
        module=call.module,
        holder=None,
        name="",
        gives=statement.gives,
        operators=step.operators,
        inputs=step.inputs,
        before=before,
    )
    equation = telling.explain(seen)
    params = _first_met(operators, telling)
    ranks = {len(s) for s in step.inputs} != {len(s) for s in step.outputs}
    shown_alone = step.operators or (ranks and any(op.name in RESHAPES for op in operators))
    figures = step.flops or step.uncounted or params
    if not (figures or equation) and (equation == "" or not step.inputs or not shown_alone):
        taken, made = _ends(operators, [], telling)
        if len(taken) == 1 and not step.operators:
            telling.same.update((id(t), taken[0]) for t in made)
        return []
    shared = any(isinstance(e, Call) and e.statement == statement for e in call.inside)
    step = replace(step, code=statement.text, alone=not shared)
    return [replace(step, equation=equation or None, params=params)]


def _step(operators: list[Operator], call: Call, name: str, module: str, telling: _Telling) -> Step:
    """Build a step without its equation: `module` is empty for a statement of a call."""
    taken, made = _ends(operators, call.gives, telling)
    if module:
        # what a module returns, as far as anybody uses it
        last = operators[-1].number
        outputs = [t for t in call.gives if telling.last_use.get(id(t), 0) > last]
        made = outputs or call.gives or made
    ran = dict.fromkeys(op.name for op in operators if op.name not in PLAIN)
    roles = {op.role for op in operators}
    return Step(
        name=name,
        path=call.path,
        module=module,
        equation=None,
        code="",
        alone=False,
        operators=tuple(ran),
        inputs=_shapes(_in_order(taken, call.takes) if module else taken),
        outputs=_shapes(made),
        params=0,
        flops=sum(op.flops for op in operators if op.counted),
        uncounted=sum(op.flops for op in operators if not op.counted),
        role=roles.pop() if len(roles) == 1 else None,
    )


def _first_met(operators: list[Operator], telling: _Telling) -> int:
    """Count the values of the parameters that are used here and were not used before."""
    ids = {id(t) for op in operators for t in op.takes} & telling.own.keys() - telling.met
    telling.met |= ids
    return sum(telling.own[key] for key in ids)


def _ends(
    operators: list[Operator], gives: list[Tensor], telling: _Telling
) -> tuple[list[Tensor], list[Tensor]]:
    """Find the tensors that come from outside, parameters apart, and those that are used after."""
    made: dict[int, Tensor] = {}
    taken: dict[int, Tensor] = {}
    root: dict[int, int] = {}  # what a view inside is a view of
    order: dict[int, None] = {}  # as the operators that compute take them
    for op in operators:
        for tensor in op.takes:
            if id(tensor) not in made and id(tensor) not in telling.constants and _filled(tensor):
                root[id(tensor)] = id(telling.same.get(id(tensor), tensor))
                taken.setdefault(root[id(tensor)], telling.same.get(id(tensor), tensor))
        sources = [root[id(t)] for t in op.takes if id(t) in root]
        if op.name in PLAIN and sources:
            root.update((id(t), sources[0]) for t in op.gives)
        else:
            order.update(dict.fromkeys(sources))
        made.update(
            (id(t), t) for t in op.gives if id(t) not in taken and id(t) not in telling.constants
        )
    last, outer = operators[-1].number, {id(t) for t in gives}
    used = [t for key, t in made.items() if telling.last_use.get(key, 0) > last or key in outer]
    return [taken[key] for key in {**order, **taken} if key in taken], used or operators[-1].gives


def _in_order(taken: list[Tensor], given: list[Tensor]) -> list[Tensor]:
    """Put the inputs that the call was given first, in that order, then the others."""
    order = {id(tensor): n for n, tensor in enumerate(given)}
    return sorted(taken, key=lambda tensor: order.get(id(tensor), len(order)))


def _filled(tensor: Tensor) -> bool:
    """Tell whether a tensor is neither a single number nor a cache that holds nothing yet."""
    return bool(tensor.dim()) and 0 not in tensor.shape


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(int(n) for n in t.shape) for t in tensors)
