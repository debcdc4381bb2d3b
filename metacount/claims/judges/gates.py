"""Claims about the order of a gate: routers of the catalog, run, against plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.routing import D_MODEL, ROUNDING, made, unequal
from metacount.claims.parts import models
from metacount.modules.moe import Router
from metacount.spec import ModelSpec
from metacount.spec.field import altered

N_TOKENS = 64


def gate_order(claim: Claim) -> Finding:
    """The gate works in this order. Options: `order`.

    The router of every mixture of the catalog is run, at its own numbers of experts, and what it
    chose and weighed is compared with the stated order, written out here.
    """
    stated = ORDERS[claim.options["order"]]
    follow: list[str] = []
    others: list[str] = []
    lines = []
    for entry, spec in models():
        # a router that another one stands in for says nothing about the model
        if not spec.is_moe or any(text.startswith("router:") for text in entry.inferred):
            continue
        router, x_ND = _router(spec)
        routing = router(x_ND)
        chosen_Nk, weights_Nk = stated(router.proj(x_ND), int(spec.top_k or 0))
        same = torch.equal(routing.chosen_Nk.sort(-1).values, chosen_Nk.sort(-1).values)
        theirs, said = (
            _spread(chosen, w, int(spec.n_experts or 0))
            for chosen, w in ((routing.chosen_Nk, routing.weights_Nk), (chosen_Nk, weights_Nk))
        )
        off = unequal(theirs.detach(), said.detach())
        holds = same and off < ROUNDING
        (follow if holds else others).append(entry.id)
        mean = float(routing.weights_Nk.detach().sum(-1).mean())
        lines.append(
            f"{entry.id}, {spec.top_k} of {spec.n_experts}: {'the same' if same else 'other'} "
            f"experts, weights off by {off:.1g}; a token's weights sum to {mean:.4g} on average"
        )
    n = len(follow) + len(others)
    return Finding(
        verdict=RIGHT if not others else CONDITIONAL if follow else WRONG,
        says=f"Of the {n} mixtures of experts in the catalog whose router is known, the routers "
        f"of {len(follow)} choose and weigh so when they are run.",
        correct=f"{', '.join(follow) or 'no model'}; not {', '.join(others) or 'any'}",
        computation=(
            f"each router at its own E and k, width {D_MODEL}, {N_TOKENS} tokens, float64, "
            "seed 0, against the stated order in plain torch",
            *lines,
        ),
        values=_orders_agree(),
        witness="reference modules, run",
        condition=f"the model is one of those that do so: in the catalog {', '.join(follow)}",
    )


def _largest_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits, then a softmax over these k."""
    found = logits_NE.topk(top_k, dim=-1)
    return found.indices, found.values.softmax(-1)


def _all_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """A softmax over all, then the k largest as they are."""
    found = logits_NE.softmax(-1).topk(top_k, dim=-1)
    return found.indices, found.values


ORDERS = {"as_they_are": _all_first, "over_chosen": _largest_first}


def _router(spec: ModelSpec) -> tuple[Router, Tensor]:
    """A model's router over few columns, and tokens for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixture = spec.last_stack.mixture
        assert mixture is not None  # the claim is about experts
        router = Router(altered(mixture, router_bias=False), D_MODEL)
        x_ND = torch.randn(N_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), x_ND


def _spread(chosen_Nk: Tensor, weights_Nk: Tensor, n_experts: int) -> Tensor:
    """The weight of every expert for every token, 0 where it was not chosen."""
    empty_NE = weights_Nk.new_zeros(len(chosen_Nk), n_experts)
    return empty_NE.scatter(-1, chosen_Nk, weights_Nk)


def _orders_agree() -> dict[str, Any]:
    """How the two orders compare on the same logits."""
    router, _, x_ND = made("softmax", 2)
    logits_NE = router.proj(x_ND).detach()
    chosen, before = _all_first(logits_NE, 2)
    other, after = _largest_first(logits_NE, 2)
    renormalised = before / before.sum(-1, keepdim=True)
    sums = before.sum(-1)
    return {
        "same_choice": torch.equal(chosen, other),
        "agree_when_divided": unequal(renormalised, after) < ROUNDING,
        "less_than_one": bool((sums < 1).all()),
        "one": bool(((after.sum(-1) - 1).abs() < ROUNDING).all()),
        "sum": f"{float(sums[0]):.4f}",
    }
