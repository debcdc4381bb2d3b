"""Prices by hand, and an operator nobody priced is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from metacount.measure.operators import UncountedOp
from metacount.measure.ours.flops import ReferenceCounter


def counted(run: object) -> dict[str, int]:
    """FLOPs by operator of calling `run`."""
    counter = ReferenceCounter()
    with torch.no_grad(), counter.watching(nn.Module()):
        run()  # type: ignore[operator]
    return counter.report().by_operator


def test_products_by_hand() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert counted(lambda: a @ b) == {"aten.mm": 2 * 3 * 5 * 7}
    assert counted(lambda: torch.addmm(torch.randn(7), a, b)) == {"aten.addmm": 2 * 3 * 5 * 7}
    batch = torch.randn(2, 3, 5), torch.randn(2, 5, 7)
    assert counted(lambda: torch.bmm(*batch)) == {"aten.bmm": 2 * 2 * 3 * 5 * 7}
    three = torch.randn(2, 3, 7), *batch
    assert counted(lambda: torch.baddbmm(*three)) == {"aten.baddbmm": 2 * 2 * 3 * 5 * 7}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_torch_counts_as_nothing(device: str) -> None:
    def r(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    assert counted(lambda: torch.mv(r(3, 5), r(5))) == {"aten.mv": 2 * 3 * 5}
    assert counted(lambda: torch.dot(r(5), r(5))) == {"aten.dot": 2 * 5}
    assert counted(lambda: torch.addmv(r(3), r(3, 5), r(5))) == {"aten.addmv": 2 * 3 * 5}
    with FlopCounterMode(display=False) as theirs:
        torch.mv(r(3, 5), r(5))
    assert theirs.get_total_flops() == 0


def test_grouped_product_meets_one_matrix_per_row() -> None:
    x = torch.randn(6, 8, dtype=torch.bfloat16, device="meta")
    w = torch.randn(3, 8, 16, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    # 6 rows · 8 · 16, however they are spread over the 3 experts
    assert counted(lambda: torch._grouped_mm(x, w, ends)) == {"aten._grouped_mm": 2 * 6 * 8 * 16}


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
    with pytest.raises(UncountedOp, match="neither priced nor known to be free"):
        counted(run)


def test_elementwise_work_is_free_by_convention() -> None:
    x = torch.randn(3, 4)
    assert counted(lambda: (x.exp() * x).softmax(-1).sum().view(1)) == {}
