"""Each rule of the tape against torch: what autograd saves, and what forward and backward multiply.

torch runs each operation on the meta device, with every choice of operands that have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from metacount.formulas import folds
from metacount.formulas.attention import Sees, attention_core
from metacount.formulas.ends import loss
from metacount.formulas.tape import EAGER, FLASH, PAIRS, SDPA, TOKENS, Run, Store, Tape, Tensor
from metacount.measure.counter import FlopCounter
from metacount.modules import ffn as module_ffn
from metacount.modules.norm import make_norm
from metacount.spec.stack import Norms

ROWS, WIDTH, OUT, KEYS, RANK = 6, 5, 7, 3, 2
BATCH, HEADS, QUERIES, HEAD = 2, 4, 3, 8  # of an attention; of each sequence 3 queries and keys
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Counts(NamedTuple):
    """Bytes that autograd saves, FLOPs of the forward and of the backward."""

    saved: int
    forward: int
    backward: int


class Case(NamedTuple):
    """An operation of torch and of the tape, of the same operands.

    `shapes` are those of the activations; `weights` of the parameters, by name.
    """

    shapes: tuple[tuple[int, ...], ...]
    torch: Callable[..., torch.Tensor]
    tape: Callable[..., object]
    weights: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    attention: str = EAGER


def by_torch(case: Case, trained: tuple[bool, ...], dtype: torch.dtype) -> Counts:
    """Run the operation on the meta device."""
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
        out = case.torch(*made)
    if out.requires_grad:
        with backward:
            torch.autograd.backward(out, torch.empty_like(out))
    saved = sum(store.nbytes() for key, store in kept.items() if key not in own)
    return Counts(saved, sum(forward.ran.values()), sum(backward.ran.values()))


def by_tape(case: Case, trained: tuple[bool, ...], width: int) -> Counts:
    """Record the operation."""
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
    case.tape(tape, *made)
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
    both, one = (HEAD, HEAD), HEADS * HEAD
    parts = (("scores", one), ("sums of values", one))
    return attention_core(t, q, k, v, Sees(), heads=HEADS, groups=HEADS, widths=both, parts=parts)


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
        ONE,
        lambda x: x.bfloat16().square(),
        lambda t, x: t.from_argument(t.cast(x, 2), "square"),
    ),
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
    "rows by index": Case(
        ONE,
        read,
        lambda t, x: t.index(x, t.constant(KEYS, width=8), t.make(KEYS, WIDTH, grad=False)),
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
    "loss": Case(ONE, cross_entropy, lambda t, x: loss(t, x) if x.grad else None),
    "RMSNorm": normed(Norms(kind="rmsnorm")),
    "RMSNorm stored less 1": normed(Norms(kind="rmsnorm", unit_offset=True)),
    "LayerNorm": normed(Norms(kind="layernorm", bias=True)),
    "LayerNorm without bias": normed(Norms(kind="layernorm")),
    "LayerNorm without weight": normed(Norms(kind="layernorm", affine=False)),
    "fused attention of CUDA": kernel(aten._scaled_dot_product_flash_attention, FLASH),
    "fused attention of the CPU": kernel(aten._scaled_dot_product_flash_attention_for_cpu, SDPA),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rules_are_those_of_torch(name: str, dtype: str) -> None:
    case, width = CASES[name], DTYPES[dtype].itemsize
    choices = list(product((False, True), repeat=len(case.shapes) + len(case.weights)))
    recorded = {trained: by_tape(case, trained, width) for trained in choices}
    assert recorded == {trained: by_torch(case, trained, DTYPES[dtype]) for trained in choices}


def test_a_view_keeps_the_whole_storage() -> None:
    x = torch.empty(ROWS, 2 * WIDTH, device="meta", requires_grad=True)
    kept = []
    with saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        half = x[:, :WIDTH]
        half.square()
    tape = Tape(Run(counts={}, batch_size=1, n_queries=1, n_keys=1, value=4))
    whole = Tensor(Store(ROWS, 2 * WIDTH, 4), 2 * WIDTH, TOKENS, True)
    tape.from_argument(tape.part(whole, WIDTH), "square")
    ((_, saved),) = folds.saved_bytes(tape.ops)
    assert saved == kept[0].untyped_storage().nbytes() == ROWS * 2 * WIDTH * 4


def test_a_tensor_saved_twice_counts_once() -> None:
    tape = Tape(Run(counts={}, batch_size=1, n_queries=1, n_keys=1, value=4))
    x = Tensor(Store(ROWS, WIDTH, 4), WIDTH, TOKENS, True)
    tape.from_argument(x, "square")
    tape.from_argument(x, "silu")
    assert [saved for _, saved in folds.saved_bytes(tape.ops)] == [ROWS * WIDTH * 4]
