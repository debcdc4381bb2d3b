"""Each rule of the tape against torch: what autograd saves, and what forward and backward multiply.

torch runs each operation on the meta device, with every choice of operands that have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from metacount.formulas import folds
from metacount.formulas.attention import EVERY_PAIR, attention_core
from metacount.formulas.ends import loss
from metacount.formulas.tape import (
    EAGER,
    FLASH,
    PAIRS,
    SDPA,
    TOKENS,
    Run,
    Store,
    Tape,
    Tensor,
    several,
)
from metacount.measure.counter import FlopCounter
from metacount.modules import ffn as module_ffn
from metacount.modules.norm import make_norm
from metacount.spec.field import altered
from metacount.spec.stack import Norms

ROWS, WIDTH, OUT, KEYS, RANK = 6, 5, 7, 3, 2
BATCH, HEADS, QUERIES, HEAD = 2, 4, 3, 8  # of an attention; of each sequence 3 queries and keys
BEFORE, AFTER = "before", "after"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Counts(NamedTuple):
    """Bytes that autograd saves, FLOPs of the forward and of the backward."""

    saved: int
    forward: int
    backward: int


class Case(NamedTuple):
    """An operation of torch and of the tape, of the same operands.

    `shapes` are those of the activations; `weights` of the parameters, by name. Nothing stands
    behind what is the `last` operation of a forward.
    """

    shapes: tuple[tuple[int, ...], ...]
    torch: Callable[..., torch.Tensor]
    tape: Callable[..., object]
    weights: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    attention: str = EAGER
    last: bool = False


def by_torch(case: Case, trained: tuple[bool, ...], dtype: torch.dtype, beside: str) -> Counts:
    """Run the operation on the meta device; beside it one that saves its argument."""
    shapes = (*case.shapes, *case.weights.values())
    made = [
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)
        for shape, grad in zip(shapes, trained, strict=True)
    ]
    own = {x.untyped_storage()._cdata for x in made[len(case.shapes) :]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    forward, backward = FlopCounter(), FlopCounter()
    with forward, saved_tensors_hooks(pack, lambda x: x):
        for x in made[: len(case.shapes)]:
            _ = x.square() if beside == BEFORE else x
        out = case.torch(*made)
        out = out.square() if beside == AFTER and not case.last else out
    if out.requires_grad:
        with backward:
            torch.autograd.backward(out, torch.empty_like(out))
    saved = sum(store.nbytes() for key, store in kept.items() if key not in own)
    return Counts(saved, sum(forward.totals().values()), sum(backward.totals().values()))


def by_tape(case: Case, trained: tuple[bool, ...], width: int, beside: str) -> Counts:
    """Record the operation; beside it one that saves its argument."""
    n = len(case.shapes)
    names = {name for name, grad in zip(case.weights, trained[n:], strict=True) if grad}
    run = Run(
        counts={TOKENS: ROWS, PAIRS: BATCH * QUERIES * QUERIES},
        batch_size=BATCH,
        n_queries=QUERIES,
        n_keys=QUERIES,
        value=width,
        attention=case.attention,
    )
    tape = Tape(run, trained=frozenset(names))
    made = [
        Tensor(Store(shape[0], shape[1], width), shape[1], TOKENS, grad)
        for shape, grad in zip(case.shapes, trained[:n], strict=True)
    ]
    for x in made:
        _ = tape.from_argument(x, "square") if beside == BEFORE else x
    out = case.tape(tape, *made)
    if beside == AFTER and not case.last:
        assert isinstance(out, Tensor)
        tape.from_argument(out, "square")
    return Counts(
        sum(n_bytes for _, n_bytes in folds.saved_bytes(tape.ops)),
        sum(flops for _, flops in folds.flops(tape.ops)),
        sum(flops for _, flops in folds.backward_flops(tape.ops)),
    )


def linear(name: str, *, bias: bool) -> Callable[[Tape, Tensor], object]:
    return lambda t, x: t.linear(x, name, OUT, bias=bias)


def with_adapter(t: Tape, x: Tensor) -> object:
    t.adapters = {"w": RANK}
    return t.linear(x, "w", OUT)


def normed(norms: Norms) -> Case:
    names = ["weight"] * norms.affine + ["bias"] * (norms.affine and norms.bias)

    def by_module(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        module = make_norm(norms, WIDTH).to("meta")
        for name, weight in zip(names, weights, strict=True):
            setattr(module, name, nn.Parameter(weight, requires_grad=weight.requires_grad))
            module._parameters[name] = weight  # a parameter of its own is a leaf
        out: torch.Tensor = module(x)
        return out

    return Case(
        ((ROWS, WIDTH),),
        by_module,
        lambda t, x: t.norm(x, "norm", norms),
        {f"norm.{name}": (WIDTH,) for name in names},
    )


def heads_normed(x: torch.Tensor) -> torch.Tensor:
    norm = make_norm(Norms(kind="rmsnorm", affine=False), WIDTH).to("meta")
    out: torch.Tensor = norm(x.unflatten(-1, (2, WIDTH)))
    return out


def normed_by_heads(t: Tape, x: Tensor) -> object:
    norms = Norms(kind="rmsnorm")
    return t.norm(x, "", norms, rows=2 * x.rows, width=WIDTH, affine=False)


def activated(name: str, swish_beta: float = 1.0) -> Case:
    return Case(
        ((ROWS, WIDTH),),
        lambda x: module_ffn.activate(x, name, swish_beta),
        lambda t, x: t.activation(x, name, swish_beta),
    )


def masked_out(t: Tape, x: Tensor) -> object:
    mask = t.constant(ROWS, WIDTH, width=1)
    return t.record("mask", t.like(x), [(mask, x.grad)])


def scaled_by_table(x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty(ROWS, WIDTH, dtype=torch.float32, device="meta").to(x.dtype)


def read(x: torch.Tensor) -> torch.Tensor:
    index: torch.Tensor = torch.zeros(KEYS, dtype=torch.int64, device="meta")
    return x[index]


def gathered(x: torch.Tensor) -> torch.Tensor:
    return x.gather(1, torch.zeros(ROWS, KEYS, dtype=torch.int64, device="meta"))


def cross_entropy(x: torch.Tensor) -> torch.Tensor:
    targets = torch.zeros(ROWS, dtype=torch.int64, device="meta")
    return F.cross_entropy(x.float(), targets)


def by_heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(0, (BATCH, QUERIES)).unflatten(-1, (-1, HEAD)).transpose(1, 2)


def fused(operator: Any) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = operator(*map(by_heads, (q, k, v)), 0.0, False)[0]
        return out

    return run


def attended(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> object:
    widths = (HEAD, HEAD)
    return attention_core(t, q, k, v, EVERY_PAIR, heads=HEADS, groups=HEADS, widths=widths)


def kernel(operator: Any, attention: str) -> Case:
    shape = (BATCH * QUERIES, HEADS * HEAD)
    return Case((shape, shape, shape), fused(operator), attended, attention=attention)


aten = torch.ops.aten
ONE, TWO = ((ROWS, WIDTH),), ((ROWS, WIDTH), (ROWS, WIDTH))
CASES = {
    "linear": Case(ONE, F.linear, linear("w", bias=False), {"w.weight": (OUT, WIDTH)}),
    "linear with a bias": Case(
        ONE, F.linear, linear("w", bias=True), {"w.weight": (OUT, WIDTH), "w.bias": (OUT,)}
    ),
    "linear with an adapter": Case(
        ONE,
        lambda x, w, a, b: F.linear(x, w) + F.linear(F.linear(x, a), b),
        with_adapter,
        {"w.base.weight": (OUT, WIDTH), "w.lora_a": (RANK, WIDTH), "w.lora_b": (OUT, RANK)},
    ),
    "product of activations": Case(
        ((ROWS, WIDTH), (KEYS, WIDTH)),
        lambda a, b: a @ b.T,
        lambda t, a, b: t.matmul(
            "scores", a, b, t.like(a, columns=KEYS), per=TOKENS, width=WIDTH * KEYS
        ),
    ),
    "sum": Case(TWO, torch.add, lambda t, a, b: t.add(a, b)),
    "product of elements": Case(TWO, torch.mul, lambda t, a, b: t.mul(a, b)),
    "times a number": Case(ONE, lambda x: x * 3.0, lambda t, x: t.scale(x, 3.0)),
    "times a table": Case(
        ONE,
        scaled_by_table,
        lambda t, x: t.scale_by(x, t.constant(ROWS, WIDTH, width=t.run.value), "rotate"),
    ),
    "to float32": Case(
        ONE, lambda x: x.float().square(), lambda t, x: t.from_argument(t.widen(x), "square")
    ),
    "to bfloat16": Case(
        ONE, lambda x: x.bfloat16().square(), lambda t, x: t.from_argument(t.cast(x, 2), "square")
    ),
    "of two types": Case(TWO, lambda a, b: a * b.float(), lambda t, a, b: t.mul(a, t.widen(b))),
    "to float32 and back": Case(
        ONE,
        lambda x: x.float().square().to(x.dtype).square(),
        lambda t, x: t.from_argument(t.narrow(t.from_argument(t.widen(x), "square")), "square"),
    ),
    "some columns": Case(ONE, lambda x: x[:, :3], lambda t, x: t.part(x, 3)),
    "some columns, copied": Case(
        ONE, lambda x: x[:, :3].contiguous(), lambda t, x: t.record("copy", t.copy(x, columns=3))
    ),
    "some columns, where they lie": Case(
        ONE, lambda x: x[:, :3], lambda t, x: t.copy(x, 0, columns=3)
    ),
    "without its gradient": Case(ONE, torch.Tensor.detach, lambda t, x: t.detach(x)),
    "mask": Case(
        ONE,
        lambda x: x.masked_fill(torch.zeros(ROWS, WIDTH, dtype=torch.bool, device="meta"), 0),
        masked_out,
    ),
    "softmax": Case(ONE, lambda x: x.softmax(-1), lambda t, x: t.from_result(x, "softmax")),
    "tanh": Case(ONE, torch.tanh, lambda t, x: t.from_result(x, "tanh")),
    "exp": Case(ONE, torch.exp, lambda t, x: t.from_result(x, "exp")),
    "softplus": Case(ONE, F.softplus, lambda t, x: t.from_argument(x, "softplus")),
    "clamp": Case(ONE, lambda x: x.clamp(max=7), lambda t, x: t.from_argument(x, "clamp")),
    **{f"activation {name}": activated(name) for name in module_ffn.ACTIVATIONS},
    "activation silu of another slope": activated("silu", 1.5),
    "activation gelu, which has no slope": activated("gelu", 1.5),
    "rows by index": Case(
        ONE,
        read,
        lambda t, x: t.index(
            x, t.constant(KEYS, width=8), t.make(KEYS, WIDTH, grad=False, width=t.run.value)
        ),
    ),
    "values by index": Case(
        ONE,
        gathered,
        lambda t, x: t.gather(x, t.constant(ROWS, KEYS, width=8), t.like(x, columns=KEYS)),
    ),
    "look-up": Case(
        (),
        lambda w: F.embedding(torch.zeros(ROWS, dtype=torch.int64, device="meta"), w),
        lambda t: t.look_up(
            "table", OUT, WIDTH, t.constant(ROWS, width=8), role="embedding", word=TOKENS
        ),
        {"table.weight": (OUT, WIDTH)},
    ),
    "loss": Case(ONE, cross_entropy, lambda t, x: loss(t, x) if x.grad else None, last=True),
    "RMSNorm": normed(Norms(kind="rmsnorm")),
    "RMSNorm stored less 1": normed(Norms(kind="rmsnorm", unit_offset=True)),
    "LayerNorm": normed(Norms(kind="layernorm", bias=True)),
    "LayerNorm without bias": normed(Norms(kind="layernorm")),
    "RMSNorm of heads, without weight": Case(((ROWS, 2 * WIDTH),), heads_normed, normed_by_heads),
    "LayerNorm without weight": normed(Norms(kind="layernorm", affine=False)),
    "fused attention of CUDA": kernel(aten._scaled_dot_product_flash_attention, FLASH),
    "fused attention of the CPU": kernel(aten._scaled_dot_product_flash_attention_for_cpu, SDPA),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beside", ["", BEFORE, AFTER])
def test_rules_are_those_of_torch(name: str, dtype: str, beside: str) -> None:
    """Alone, and beside an operation that saves what it reads, or what it gives: once."""
    case, width = CASES[name], DTYPES[dtype].itemsize
    choices = list(product((False, True), repeat=len(case.shapes) + len(case.weights)))
    recorded = {trained: by_tape(case, trained, width, beside) for trained in choices}
    assert recorded == {
        trained: by_torch(case, trained, DTYPES[dtype], beside) for trained in choices
    }


# --- what is declared beside the rules of autograd ------------------------------------------------


def recording(n: int = ROWS, *, value: int = 2, **options: Any) -> Tape:
    run = Run(counts={TOKENS: n, PAIRS: 11}, batch_size=1, n_queries=n, n_keys=n, value=value)
    return Tape(altered(run, **options))


def test_a_copy_that_sizes_decide() -> None:
    """Where the number of copies is an expression, both storages count by parts."""
    n = sympy.Symbol("n", integer=True, positive=True)
    t = recording()
    x = t.tensor(WIDTH, TOKENS, grad=True)
    y = t.copy(x, several(n, 3), columns=3)
    assert (y.store.base, y.store.copied, y.columns) == (x.store, sympy.Min(1, n - 1), 3)
    t.from_argument(y, "square")
    found = sum(saved for _, saved in folds.saved_bytes(t.ops))
    # 6 rows of 3 values, or x: 6 rows of 5, of 2 bytes
    assert [found.subs(n, at) for at in (1, 2, 9)] == [60, 36, 36]
    assert (several(3, 12), several(1, 5), several(5, 1), several(2, 2)) == (1, 0, 0, 1)
    same, other = t.copy(x, 0, columns=3), t.copy(x)
    assert same.store is x.store and same.columns == 3 and t.copy(x, 0).columns == WIDTH
    assert (other.store.base, other.columns, other.store.columns) == (None, WIDTH, WIDTH)
    some = t.copy(x, np.array([0, 1]))
    assert some.store.base is x.store and list(some.store.copied) == [0, 1]


def test_what_a_backward_needs() -> None:
    """A tensor that was saved, or a weight, which is stored anyhow."""
    t = Tape(recording().run, trained=())
    x = t.tensor(WIDTH, TOKENS, grad=True)
    t.from_argument(x, "square")
    t.linear(x, "w", OUT)
    t.add(x, x)
    t.linear(t.detach(x), "w", OUT)
    assert [op.needs for op in t.ops] == [True, True, False, False]
    assert [len(op.saves) for op in t.ops] == [1, 0, 0, 0]


# --- sums over a tape -----------------------------------------------------------------------------


def test_amounts_add_up_by_role() -> None:
    amounts = [(2, "ffn", 5), (3, "ffn", 5), (1, "ffn", 7), (4, "moe", 1), (0, "norm", 9)]
    amounts += [(6, "position", 3), (-6, "position", 3)]
    # 5·5 + 7; what is there no times has no role, unless it is asked for
    assert folds.by_role(amounts, ("head", "ffn")) == {"head": 0, "ffn": 32, "moe": 4}
    n = np.array([1, 0])
    found = folds.by_role([(n, "ffn", 5), (2, "ffn", n), (1, "moe", n)])
    assert {role: list(count) for role, count in found.items()} == {"ffn": [7, 0], "moe": [1, 0]}


def test_what_full_checkpointing_runs_again() -> None:
    """Up to the last operation that needs something, which runs again if it saves its result."""

    def again(*operations: str) -> int:
        t = recording()
        x = t.tensor(WIDTH, TOKENS, grad=True)
        for name in operations:
            x = {"argument": t.from_argument, "result": t.from_result}[name](x, name)
        assert folds.needs_backward(t) == bool(operations)
        t.add(x, x)
        ops = folds.repeated_ops(t.ops)
        assert ops == t.ops[: len(ops)]
        return len(ops)

    assert [again(), again("argument"), again("result")] == [0, 0, 1]
    assert [again("argument", "result"), again("result", "argument")] == [2, 1]
