"""Mixture of experts: one product per expert, one batched product, one grouped product, and dense.

Which expert a token goes to is an input, so that balanced and skewed routing can be told apart;
the router's own product and the weights of the chosen experts are computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import DTYPES, Built, Case, Inputs, Reference, Variant, weight
from metacount.bench.ffn import gated_pair
from metacount.bench.work import ffn_work, moe_work
from metacount.measure.torch_private import grouped_product
from metacount.modules.moe import Experts
from metacount.spec import ModelSpec
from metacount.spec.ffn import FeedForward, Mixture

NAMES = ("dense", "loop", "batched", "grouped")
ROUTINGS = ("balanced", "skewed")


def choose(n_tokens: int, n_experts: int, top_k: int, routing: str) -> Tensor:
    """Choose [N, k] experts, k different ones for each token.

    balanced: no expert gets two tokens more than another. skewed: drawn by Zipf's law, the
    expert of rank r with weight 1/r, without repetition in a token. Ranks are shuffled.
    """
    if routing == "balanced":
        # k consecutive numbers are different experts, since k <= E
        chosen = (torch.arange(n_tokens * top_k) % n_experts).view(n_tokens, top_k)
        chosen = chosen[torch.randperm(n_tokens)]
    else:
        zipf = 1 / torch.arange(1, n_experts + 1, dtype=torch.float64)
        chosen = torch.multinomial(zipf.expand(n_tokens, -1), top_k)
    return torch.randperm(n_experts)[chosen]


def fullest(n_tokens: int, n_experts: int, top_k: int, routing: str) -> int:
    """Estimate the rows of the expert that gets the most, rounded up where chance decides.

    Of skewed routing the expert of rank 1 is drawn first with probability 1 / H(E), and by the
    k-th draw with at most k times as much; no expert gets more than all tokens.

    >>> fullest(16, 4, 2, "balanced"), fullest(16384, 128, 8, "skewed")
    (8, 16384)
    """
    if routing == "balanced":
        return -(-n_tokens * top_k // n_experts)
    harmonic = sum(1 / rank for rank in range(1, n_experts + 1))
    return min(n_tokens, math.ceil(n_tokens * top_k / harmonic))


class Routed(nn.Module):
    """Router weights of the experts that were chosen, then the experts."""

    def __init__(self, router_ED: nn.Parameter, experts: nn.Module) -> None:
        super().__init__()
        self.router, self.experts = router_ED, experts

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor) -> Tensor:
        """Weigh the chosen experts by the router and run them: [N, D] and [N, k] -> [N, D]."""
        logits_NE = F.linear(x_ND, self.router).float()
        weights_Nk = logits_NE.gather(-1, chosen_Nk).softmax(-1)
        y_ND: Tensor = self.experts(x_ND, chosen_Nk, weights_Nk)
        return y_ND


class _Sorted(nn.Module, ABC):
    """Rows sorted by expert, their product, and back: what batched and grouped have in common."""

    def __init__(self, gate_up_EXD: nn.Parameter, down_EDM: nn.Parameter) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up_EXD, down_EDM

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        expert_R, order_R = chosen_Nk.flatten().sort(stable=True)
        token_R = order_R // chosen_Nk.shape[-1]
        # bincount would make the host wait
        counts_E = torch.zeros(len(self.down), dtype=torch.int64, device=x_ND.device)
        counts_E = counts_E.scatter_add(0, expert_R, torch.ones_like(expert_R))
        y_RD = self.rows(x_ND[token_R], expert_R, counts_E)
        weight_R1 = weights_Nk.flatten()[order_R].unsqueeze(-1).to(x_ND.dtype)
        return torch.zeros_like(x_ND).index_add(0, token_R, y_RD * weight_R1)

    @abstractmethod
    def rows(self, x_RD: Tensor, expert_R: Tensor, counts_E: Tensor) -> Tensor:
        """Put the rows, sorted by expert, through the expert of each: [R, D] -> [R, D]."""


class GroupedExperts(_Sorted):
    """One grouped product over all experts: every row meets the matrix of its own."""

    def rows(self, x_RD: Tensor, expert_R: Tensor, counts_E: Tensor) -> Tensor:
        """Run the experts as grouped products: [R, D] -> [R, D]."""
        ends_E = counts_E.cumsum(0).to(torch.int32)
        hidden_RX = grouped_mm(x_RD, self.gate_up.transpose(-1, -2), ends_E)
        gate_RM, up_RM = hidden_RX.chunk(2, dim=-1)
        return grouped_mm(F.silu(gate_RM) * up_RM, self.down.transpose(-1, -2), ends_E)


class BatchedExperts(_Sorted):
    """One batched product, every expert padded to `capacity` rows, which is known beforehand."""

    def __init__(self, gate_up_EXD: nn.Parameter, down_EDM: nn.Parameter, *, capacity: int) -> None:
        super().__init__(gate_up_EXD, down_EDM)
        self.capacity = capacity

    def rows(self, x_RD: Tensor, expert_R: Tensor, counts_E: Tensor) -> Tensor:
        """Run the experts as batched products over padded rows: [R, D] -> [R, D]."""
        n_experts = len(self.down)
        first_E = counts_E.cumsum(0) - counts_E
        place_R = torch.arange(len(x_RD), device=x_RD.device) - first_E[expert_R]
        slot_R = expert_R * self.capacity + place_R
        padded = x_RD.new_zeros(n_experts * self.capacity, x_RD.shape[-1])
        padded[slot_R] = x_RD
        # [e, c, d] @ [e, d, x] -> [e, c, x]
        hidden = torch.bmm(padded.unflatten(0, (n_experts, -1)), self.gate_up.transpose(-1, -2))
        gate, up = hidden.chunk(2, dim=-1)
        y = torch.bmm(F.silu(gate) * up, self.down.transpose(-1, -2))
        return y.flatten(0, 1)[slot_R]


def grouped_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether torch's grouped product runs without asking the host for the groups' sizes.

    Its own kernel is for bf16 on compute capability 9 and 10 (not 12); otherwise it loops over the
    experts (torch's GroupedMMUtils.h). A CPU has nothing to wait for.
    """
    if device.type != "cuda":
        return True
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10)


def grouped_mm(rows_RD: Tensor, weight_EDX: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply each expert's rows by its matrix, with torch's grouped product."""
    y_RX: Tensor = grouped_product()(rows_RD, weight_EDX, offs=ends_E)
    return y_RX


def case(model: str, spec: ModelSpec, n_tokens: int, routing: str, dtype: str) -> Case:
    """Make a case of one layer's routed experts of `spec`, without shared ones; always SwiGLU."""
    d, m, e, k = spec.d_model, spec.d_ff_expert, spec.n_experts, spec.top_k
    assert m is not None and e is not None and k is not None
    sizes = {"d_model": d, "d_ff_expert": m, "n_experts": e, "top_k": k}
    value_bytes = DTYPES[dtype].itemsize
    set_bytes = n_tokens * (d * value_bytes + 8 * k)
    rows = e * fullest(n_tokens, e, k, routing)  # batched pads every expert to it
    return Case(
        topic="moe",
        model=model,
        dtype=dtype,
        sizes=sizes,
        workload={"tokens": n_tokens, "routing": routing},
        variants=NAMES,
        rows=n_tokens,
        checked_rows=32,
        # padded rows in and out, the product for both halves, silu of one, and silu·up
        needs_bytes=value_bytes * (3 * d * m * (e + k) + rows * (2 * d + 4 * m))
        + 4 * set_bytes
        + n_tokens * k * 3 * d * value_bytes,  # rows sorted, and put back
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(
            (d, m, e, k), n_tokens, routing, DTYPES[dtype], device, n_sets
        ),
    )


def _build(
    sizes: tuple[int, int, int, int],
    n_tokens: int,
    routing: str,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
) -> Built:
    d, m, e, k = sizes
    # every set has the same counts, in another order: one number of FLOPs for all of them
    chosen = choose(n_tokens, e, k, routing)
    inputs: list[Inputs] = []
    for _ in range(n_sets):
        x = torch.randn(n_tokens, d, device=device, dtype=dtype)
        inputs.append((x, chosen[torch.randperm(n_tokens)].to(device)))
    counts = chosen.flatten().bincount(minlength=e)
    used, capacity = int((counts > 0).sum()), int(counts.max())

    router = weight((e, d), device, dtype)
    gate_up, down = weight((e, 2 * m, d), device, dtype), weight((e, d, m), device, dtype)
    with torch.device("meta"):
        mixture = Mixture(n_experts=e, top_k=k, d_ff=m)
        experts = Experts(mixture, d, FeedForward(activation="silu", gated=True))
    experts.gate_up_proj, experts.down_proj = gate_up, down
    _, dense = gated_pair(d, k * m, device, dtype)
    size = dtype.itemsize
    work = moe_work(n_tokens, d, m, e, k, experts_used=used, value_bytes=size)
    padded = moe_work(n_tokens, d, m, e, k, experts_used=used, rows=e * capacity, value_bytes=size)
    batched = BatchedExperts(gate_up, down, capacity=capacity)
    expected = _reference(router, gate_up, down)
    return Built(
        inputs=inputs,
        variants=[
            Variant(
                name="dense",
                module=_Dense(dense),
                work=ffn_work(n_tokens, d, k * m, gated=True, value_bytes=size),
                reference=_dense_reference(dense.gate_up, dense.down),
            ),
            Variant(
                name="loop",
                module=Routed(router, experts),
                work=work,
                reference=expected,
                reads_back=True,
            ),
            Variant(
                name="batched", module=Routed(router, batched), work=padded, reference=expected
            ),
            Variant(
                name="grouped",
                module=Routed(router, GroupedExperts(gate_up, down)),
                work=work,
                reference=expected,
                reads_back=not grouped_on_device(device, dtype),
            ),
        ],
    )


class _Dense(nn.Module):
    """The dense block; it has no use for the choice of experts."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x_ND: Tensor, _chosen_Nk: Tensor) -> Tensor:
        y_ND: Tensor = self.block(x_ND)
        return y_ND


def _reference(router: Tensor, gate_up: Tensor, down: Tensor) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        x, chosen = inputs
        return (reference.moe(x[rows], chosen[rows], router, gate_up, down),)

    return rows_of


def _dense_reference(gate_up: Tensor, down: Tensor) -> Reference:
    width = down.shape[-1]

    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        return (reference.swiglu(inputs[0][rows], gate_up[:width], gate_up[width:], down),)

    return rows_of
