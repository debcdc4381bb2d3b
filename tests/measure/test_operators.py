"""Prices by hand, and an operator nobody priced is an error."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from metacount.measure.operators import OF_ONE, OF_TWO, PRICED, UncountedOp, empty_result, flops_of
from metacount.measure.ours import reference_counter
from metacount.measure.theirs import NeedsData, Ordinary


def counted(run: object) -> dict[str, int]:
    """FLOPs by operator of calling `run`."""
    counter = reference_counter()
    with torch.no_grad(), counter.watching(nn.Module()):
        run()  # type: ignore[operator]
    return counter.report().by_operator


def test_a_grouped_product_on_meta_has_the_shape_of_a_real_one_in_any_type() -> None:
    ends = torch.tensor([2, 3, 8], dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float32):
        for first, second in (((8, 16), (3, 16, 24)), ((16, 8), (8, 24))):
            a, b = torch.ones(first, dtype=dtype), torch.ones(second, dtype=dtype)
            real = torch._grouped_mm(a, b, ends)
            with reference_counter():
                made = torch._grouped_mm(a.to("meta"), b.to("meta"), ends.to("meta"))
            assert (made.shape, made.stride(), made.dtype) == (
                real.shape,
                real.stride(),
                real.dtype,
            )


SHAPES = [(3, 5), (5,), (3, 1), (1, 5), (2, 1, 5), ()]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.long]


@pytest.mark.parametrize("second", [*SHAPES, 2, 0.5])
@pytest.mark.parametrize("first", SHAPES)
def test_elementwise_results_are_those_of_torch(first: Any, second: Any) -> None:
    """Made in a shorter way; what is not contiguous or no float is left to torch."""
    made = 0
    for dtype, other in product(TYPES, TYPES):
        x = torch.empty(first, dtype=dtype, device="meta")
        y = torch.empty(second, dtype=other, device="meta") if isinstance(second, tuple) else second
        pairs = [(x, y), (x.mT, 3)] if x.dim() > 1 else [(x, y)]
        given: list[tuple[Any, Any]] = [(op, pair) for op in OF_TWO for pair in pairs]
        given += [(op, (x, 2) if "pow" in str(op) else (x,)) for op in OF_ONE]
        given += [(torch.ops.aten.mean.dim, (x, [-1], True))] if x.dim() else []
        for op, args in given:
            found = empty_result(op, args, {})
            if found is not None:
                real = op(*args)
                made += 1
                assert (found.shape, found.stride(), found.dtype, found.device) == (
                    real.shape, real.stride(), real.dtype, real.device
                ), (op, args)  # fmt: skip
    assert made > 40


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fused_attention(device: str) -> None:
    q = torch.randn(2, 3, 5, 7, device=device)
    k, v = torch.randn(2, 3, 11, 7, device=device), torch.randn(2, 3, 11, 7, device=device)
    found = counted(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    # two products over 2·3 heads, 5 × 11 pairs, width 7
    assert sum(found.values()) == 2 * (2 * 2 * 3 * 5 * 11 * 7)


def test_convolutions_by_hand() -> None:
    conv = nn.Conv1d(4, 6, 3, groups=2, bias=False)
    # output [2, 6, 8]; each value meets 4/2 channels · 3 taps
    found = counted(lambda: conv(torch.randn(2, 4, 10)))
    assert found == {"aten.convolution": 2 * (2 * 6 * 8) * (2 * 3)}
    transposed = nn.ConvTranspose1d(4, 6, 3, bias=False)
    # input [2, 4, 10]; each value is spread over 6 channels · 3 taps
    found = counted(lambda: transposed(torch.randn(2, 4, 10)))
    assert found == {"aten.convolution": 2 * (2 * 4 * 10) * (6 * 3)}


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.linalg.inv(torch.eye(3)),
        lambda: torch.linalg.eigvalsh(torch.eye(3)),
        lambda: torch.cdist(torch.ones(2, 3), torch.ones(2, 3), p=1.0),
    ],
)
def test_an_operator_nobody_priced_is_an_error(run: object) -> None:
    with pytest.raises(UncountedOp):
        counted(run)


aten = torch.ops.aten
PAIRS = 2 * (2 * 6 * 5 * 11) * (7 + 13)  # 2·6 heads, 5 × 11 pairs, widths of keys and of values
ATTENTION = [(2, 6, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13)]
# scores anew and gradients of q and of k, 7 wide; gradients of weights and of v, 13 wide
BACKWARD_PAIRS = 2 * (2 * 6 * 5 * 11) * (3 * 7 + 2 * 13)
BACKWARD = [(2, 6, 5, 13), *ATTENTION]
BY_HAND = {
    aten.mm: ([(3, 5), (5, 7)], 2 * 3 * 5 * 7),
    aten._int_mm: ([(3, 5), (5, 7)], 2 * 3 * 5 * 7),
    aten.bmm: ([(4, 3, 5), (4, 5, 7)], 2 * 4 * 3 * 5 * 7),
    aten.addmm: ([(7,), (3, 5), (5, 7)], 2 * 3 * 5 * 7),
    aten.baddbmm: ([(4, 3, 7), (4, 3, 5), (4, 5, 7)], 2 * 4 * 3 * 5 * 7),
    aten.mv: ([(3, 5), (5,)], 2 * 3 * 5),
    aten.dot: ([(5,), (5,)], 2 * 5),
    aten.vdot: ([(5,), (5,)], 2 * 5),
    aten.addmv: ([(3,), (3, 5), (5,)], 2 * 3 * 5),
    aten._grouped_mm: ([(4, 3, 5), (4, 5, 7)], 2 * 4 * 3 * 5 * 7),
    # 2 systems of 5 rows, 3 columns: 0 + 1 + 2 + 3 + 4 multiply-adds for each column
    aten.linalg_solve_triangular: ([(5, 5), (2, 5, 3)], 2 * 2 * 3 * 10),
    aten.scaled_dot_product_attention: (ATTENTION, PAIRS),
    **{
        getattr(aten, f"_scaled_dot_product_{name}{end}"): by_hand
        for end, by_hand in (("", (ATTENTION, PAIRS)), ("_backward", (BACKWARD, BACKWARD_PAIRS)))
        for name in (
            "efficient_attention", "flash_attention", "flash_attention_for_cpu",
            "cudnn_attention", "fused_attention_overrideable",
        )
    },
    aten._scaled_dot_product_attention_math: (ATTENTION, PAIRS),
    aten._scaled_dot_product_attention_math_for_mps: (ATTENTION, PAIRS),
}  # fmt: skip


def priced(packet: object, *shapes: tuple[int, ...]) -> int:
    op = getattr(packet, packet.overloads()[0])  # type: ignore[attr-defined]
    return flops_of(op, tuple(torch.empty(shape, device="meta") for shape in shapes), None)


@pytest.mark.parametrize("packet", BY_HAND, ids=str)
def test_every_price_by_hand(packet: object) -> None:
    assert set(BY_HAND) == set(PRICED)
    shapes, flops = BY_HAND[packet]
    assert priced(packet, *shapes) == flops


def test_other_shapes_of_grouped_and_triangular_products() -> None:
    # rows meet one matrix each; each matrix its rows; anything else has no price
    assert priced(aten._grouped_mm, (6, 5), (4, 5, 7)) == 2 * 6 * 5 * 7
    # the columns of one and the rows of the other are grouped: a weight's gradient
    assert priced(aten._grouped_mm, (6, 5), (5, 7)) == 2 * 6 * 5 * 7
    for shapes in (((4, 3, 5), (5, 7)), ((1, 4, 3, 5), (4, 5, 7))):
        with pytest.raises(UncountedOp, match="_grouped_mm of shapes"):
            priced(aten._grouped_mm, *shapes)
    assert priced(aten.linalg_solve_triangular, (2, 5, 5), (5, 3)) == 2 * 2 * 3 * 10
    assert priced(aten.linalg_solve_triangular, (2, 1, 5, 5), (7, 5, 3)) == 2 * 14 * 3 * 10
    assert priced(aten.linalg_solve_triangular, (1, 1), (1, 3)) == 0


def test_the_backward_of_a_convolution_is_one_for_each_gradient() -> None:
    def run(*, trained: bool) -> None:
        x = torch.randn(2, 6, 9, device="meta", requires_grad=True)
        w = torch.randn(10, 3, 4, device="meta", requires_grad=trained)
        with torch.enable_grad():
            torch.nn.functional.conv1d(x, w, groups=2).sum().backward()

    once = 2 * (2 * 10 * 6) * (3 * 4)  # 2·10·6 values, each of 3 channels and 4 places
    assert sum(counted(lambda: run(trained=True)).values()) == 3 * once
    assert sum(counted(lambda: run(trained=False)).values()) == 2 * once


def test_questions_are_answered_as_for_an_ordinary_text() -> None:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.long, device="meta")

    asked = Ordinary(last_position=4)
    with pytest.raises(NeedsData, match="which of"):
        asked.nonzero(empty(2, 7), 3)
    with pytest.raises(NeedsData, match="asks for"):
        asked.sizes(empty(3))
    assert asked.assumed == set()
    # all experts of a list, also where it has a last place for none; 14 choices among 3
    for n in (3, 4):
        assert asked.nonzero(empty(n), 3).tolist() == [[0], [1], [2]]
    assert [asked.nonzero(empty(2, 7), 3).shape for _ in range(4)] == [
        (5, 2),
        (5, 2),
        (4, 2),
        (5, 2),
    ]
    # nobody chooses one of the zero experts behind them
    before = set(asked.assumed)
    assert asked.nonzero(empty(8), 3, 5).tolist() == [[0], [1], [2]]
    assert asked.assumed - before == {
        "assumed tokens spread evenly over experts that compute, none over zero experts"
    }
    asked.note(aten.topk.default, (empty(7, 2), empty(7, 2)))
    assert asked.sizes(empty(3)) == [5, 5, 4]
    with pytest.raises(NeedsData, match="asks for"):
        asked.sizes(empty(3, 2))
    yes, no, most = aten.all.default, aten.any.default, aten.max.default
    for op, said in ((no, False), (yes, True), (aten._is_all_true.default, True), (most, 4)):
        asked.note(op, out := empty())
        assert asked.item(out) == said
    asked.note(aten.max.dim, (empty(), empty()))
    asked.note(aten.sum.default, other := empty())
    with pytest.raises(NeedsData):
        asked.item(other)
