"""Mixture of experts: one product per expert, one batched product, one grouped product, and dense.

Which expert a token goes to is an input, so that balanced and skewed routing can be told apart;
the router's own product and the weights of the chosen experts are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import (
    DTYPES,
    Apply,
    Case,
    Expected,
    Inputs,
    Variant,
    weight,
    with_weights,
    work_of,
)
from metacount.bench.ffn import Joined, silu_mul
from metacount.formulas.sublayers import ffn_matmul_flops, moe_matmul_flops
from metacount.measure.torch_private import grouped_product
from metacount.modules.moe import Experts
from metacount.spec import ModelSpec
from metacount.spec.ffn import FeedForward, Mixture

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


class SortedExperts(nn.Module):
    """Rows sorted by expert, their products by `rows`, and back.

    `rows` takes rows [R, D], the expert of each [R], how many each expert has [E], and the weights
    gate_up [E, 2·M, D] and down [E, D, M]; it returns [R, D].
    """

    def __init__(
        self, gate_up_EXD: nn.Parameter, down_EDM: nn.Parameter, rows: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.gate_up, self.down, self.rows = gate_up_EXD, down_EDM, rows

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """Run the chosen experts: [N, D], [N, k] and [N, k] -> [N, D]."""
        expert_R, order_R = chosen_Nk.flatten().sort(stable=True)
        token_R = order_R // chosen_Nk.shape[-1]
        # bincount would make the host wait
        counts_E = torch.zeros(len(self.down), dtype=torch.int64, device=x_ND.device)
        counts_E = counts_E.scatter_add(0, expert_R, torch.ones_like(expert_R))
        y_RD = self.rows(x_ND[token_R], expert_R, counts_E, self.gate_up, self.down)
        weight_R1 = weights_Nk.flatten()[order_R].unsqueeze(-1).to(x_ND.dtype)
        return torch.zeros_like(x_ND).index_add(0, token_R, y_RD * weight_R1)


def grouped(
    x_RD: Tensor, _expert_R: Tensor, counts_E: Tensor, gate_up_EXD: Tensor, down_EDM: Tensor
) -> Tensor:
    """Run all experts in one grouped product: every row meets the matrix of its own."""
    ends_E = counts_E.cumsum(0).to(torch.int32)
    hidden_RX = grouped_product()(x_RD, gate_up_EXD.transpose(-1, -2), offs=ends_E)
    return grouped_product()(silu_mul(hidden_RX), down_EDM.transpose(-1, -2), offs=ends_E)


def batched(
    capacity: int,
    x_RD: Tensor,
    expert_R: Tensor,
    counts_E: Tensor,
    gate_up_EXD: Tensor,
    down_EDM: Tensor,
) -> Tensor:
    """Run all experts in one batched product, each padded to `capacity` rows, known beforehand."""
    n_experts = len(down_EDM)
    first_E = counts_E.cumsum(0) - counts_E
    place_R = torch.arange(len(x_RD), device=x_RD.device) - first_E[expert_R]
    slot_R = expert_R * capacity + place_R
    padded = x_RD.new_zeros(n_experts * capacity, x_RD.shape[-1])
    padded[slot_R] = x_RD
    # [e, c, d] @ [e, d, x] -> [e, c, x]
    hidden = torch.bmm(padded.unflatten(0, (n_experts, -1)), gate_up_EXD.transpose(-1, -2))
    y = torch.bmm(silu_mul(hidden), down_EDM.transpose(-1, -2))
    return y.flatten(0, 1)[slot_R]


def grouped_on_device(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether torch's grouped product runs without asking the host for the groups' sizes.

    Its own kernel is for bf16 on compute capability 9 and 10 (not 12); otherwise it loops over the
    experts (torch's GroupedMMUtils.h). A CPU has nothing to wait for.
    """
    if device.type != "cuda":
        return True
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10)


def case(model: str, spec: ModelSpec, n_tokens: int, routing: str, dtype: str) -> Case:
    """Make a case of one layer's routed experts of `spec`, without shared ones; always SwiGLU."""
    d, m, e, k = spec.d_model, spec.d_ff_expert, spec.n_experts, spec.top_k
    assert m is not None and e is not None and k is not None
    value_bytes = DTYPES[dtype].itemsize
    set_bytes = n_tokens * (d * value_bytes + 8 * k)
    rows = e * fullest(n_tokens, e, k, routing)  # batched pads every expert to it
    return Case(
        topic="moe",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "d_ff_expert": m, "n_experts": e, "top_k": k},
        workload={"tokens": n_tokens, "routing": routing},
        rows=n_tokens,
        checked_rows=32,
        # padded rows in and out, the product for both halves, silu of one, and silu·up
        needs_bytes=value_bytes * (3 * d * m * (e + k) + rows * (2 * d + 4 * m))
        + 4 * set_bytes
        + n_tokens * k * 3 * d * value_bytes,  # rows sorted, and put back
        set_bytes=set_bytes,
        build=partial(_build, (d, m, e, k), n_tokens, routing, DTYPES[dtype]),
    )


def _build(
    sizes: tuple[int, int, int, int],
    n_tokens: int,
    routing: str,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
) -> list[Variant]:
    d, m, e, k = sizes
    # every set has the same counts, in another order: one number of FLOPs for all of them
    chosen = choose(n_tokens, e, k, routing)
    inputs: list[Inputs] = []
    for _ in range(n_sets):
        x = torch.randn(n_tokens, d, device=device, dtype=dtype)
        inputs.append((x, chosen[torch.randperm(n_tokens)].to(device)))
    counts = chosen.flatten().bincount(minlength=e)
    capacity = int(counts.max())

    router = weight((e, d), device, dtype)
    gate_up, down = weight((e, 2 * m, d), device, dtype), weight((e, d, m), device, dtype)
    with torch.device("meta"):
        loop = Experts(
            Mixture(n_experts=e, top_k=k, d_ff=m), d, FeedForward(activation="silu", gated=True)
        )
    with_weights(loop, {"gate_up_proj": gate_up, "down_proj": down})
    dense = Joined(weight((2 * k * m, d), device, dtype), weight((d, k * m), device, dtype))

    flops = int(moe_matmul_flops(n_tokens, d, m, e, k, gated=True))
    padding = int(ffn_matmul_flops(e * capacity - n_tokens * k, d, m, gated=True))
    # only the weights of experts that got a token must be read
    used = int((counts > 0).sum()) * (gate_up[0].nbytes + down[0].nbytes)
    moved = (router, *inputs[0], inputs[0][0])
    x = inputs[0][0]

    def routed(given: Inputs, rows: list[int]) -> Expected:
        return (reference.moe(given[0][rows], given[1][rows], router, gate_up, down),)

    def without_router(given: Inputs, rows: list[int]) -> Expected:
        halves = dense.gate_up.chunk(2)
        return (reference.ffn(given[0][rows], *halves, dense.down),)

    by_router = partial(Variant, inputs=inputs, reference=routed)
    work = work_of(flops, *moved, more=used)
    return [
        Variant(
            name="dense",
            module=Apply(lambda x_ND, _chosen_Nk, block: block(x_ND), dense),
            work=work_of(
                int(ffn_matmul_flops(n_tokens, d, k * m, gated=True)), *dense.parameters(), x, x
            ),
            reference=without_router,
            inputs=inputs,
            baseline=True,
        ),
        by_router(name="loop", module=Routed(router, loop), work=work, reads_back=True),
        by_router(
            name="batched",
            module=Routed(router, SortedExperts(gate_up, down, partial(batched, capacity))),
            work=work_of(flops + padding, *moved, needed=flops, more=used),
        ),
        by_router(
            name="grouped",
            module=Routed(router, SortedExperts(gate_up, down, grouped)),
            work=work,
            reads_back=not grouped_on_device(device, dtype),
        ),
    ]
