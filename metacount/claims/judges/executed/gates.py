"""Claims about gates and what they choose: routers and experts, run, against plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.routing import WITNESS
from metacount.claims.judges.executed.small import (
    D_MODEL,
    N_EXPERTS,
    ROUNDING,
    SIZES,
    largest,
    loss_of,
    made,
    unequal,
)
from metacount.claims.parts import models
from metacount.claims.text import Words, listed, say
from metacount.modules.moe import Router
from metacount.spec import ModelSpec
from metacount.spec.field import altered

N_TOKENS = 64


def gate_order(claim: Claim) -> Finding:
    """Judge whether routers' gates work in a stated order. Options: `order`.

    The router of every mixture of the catalog is run, at its own numbers of experts, and what it
    chose and weighed is compared with the stated order, written out here.
    """
    stated = ORDERS[claim.options["order"]]
    follow: list[str] = []
    others: list[str] = []
    lines: list[Words] = []
    for entry, spec in models():
        # a router that another one stands in for says nothing about the model
        if not spec.is_moe or any(text.startswith("router:") for text in entry.inferred):
            continue
        n_scored = (spec.n_experts or 0) + spec.n_zero_experts
        router, x_ND = _router(spec)
        routing = router(x_ND)
        chosen_Nk, weights_Nk = stated(router.proj(x_ND), int(spec.top_k or 0))
        same = torch.equal(routing.chosen_Nk.sort(-1).values, chosen_Nk.sort(-1).values)
        theirs, said = (
            _spread(chosen, w, n_scored)
            for chosen, w in ((routing.chosen_Nk, routing.weights_Nk), (chosen_Nk, weights_Nk))
        )
        off = unequal(theirs.detach(), said.detach())
        holds = same and off < ROUNDING
        (follow if holds else others).append(entry.id)
        mean = float(routing.weights_Nk.detach().sum(-1).mean())
        lines.append(
            say(
                "{model}, {k} of {n}: {experts}, weights off by {off}; a token's weights sum to "
                "{sum} on average",
                model=entry.id,
                k=str(spec.top_k),
                n=str(n_scored),
                experts=say("the same experts" if same else "other experts"),
                off=f"{off:.1g}",
                sum=f"{mean:.4g}",
            )
        )
    n = len(follow) + len(others)
    return Finding(
        verdict=RIGHT if not others else CONDITIONAL if follow else WRONG,
        says=say(
            "Of the {n} mixtures of experts in the catalog whose router is known, the routers "
            "of {follow} choose and weigh so when they are run.",
            n=n,
            follow=len(follow),
        ),
        correct=say(
            "{follow}; not {others}",
            follow=listed(follow or [say("no model")]),
            others=listed(others or [say("any")]),
        ),
        computation=(
            say(
                "each router at its own E and k, width {width}, {n} tokens, float64, seed 0, "
                "against the stated order in plain torch",
                width=D_MODEL,
                n=N_TOKENS,
            ),
            *lines,
        ),
        values=_orders_agree(),
        witness=say("reference modules, run"),
        condition=say(
            "the model is one of those that do so: in the catalog {models}", models=listed(follow)
        ),
    )


def _largest_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Choose the k largest logits, then take a softmax over these k."""
    found = logits_NE.topk(top_k, dim=-1)
    return found.indices, found.values.softmax(-1)


def _all_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Take a softmax over all logits, then choose the k largest as they are."""
    found = logits_NE.softmax(-1).topk(top_k, dim=-1)
    return found.indices, found.values


ORDERS = {"as_they_are": _all_first, "over_chosen": _largest_first}


def _router(spec: ModelSpec) -> tuple[Router, Tensor]:
    """Build a model's router over few columns, and tokens for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixture = spec.last_stack.mixture
        assert mixture is not None  # the claim is about experts
        router = Router(altered(mixture, router_bias=False), D_MODEL)
        x_ND = torch.randn(N_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), x_ND


def _spread(chosen_Nk: Tensor, weights_Nk: Tensor, n_experts: int) -> Tensor:
    """Return the weight of every expert for every token, 0 where it was not chosen."""
    empty_NE = weights_Nk.new_zeros(len(chosen_Nk), n_experts)
    return empty_NE.scatter(-1, chosen_Nk, weights_Nk)


def _orders_agree() -> dict[str, bool | str]:
    """Compare the two orders on the same logits."""
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


def experts_with_gradient(claim: Claim) -> Finding:
    """Judge whether, with k = ..., so many experts get a gradient of one token's loss.
    Options: `experts` by k.
    """
    stated = {int(k): n for k, n in claim.options["experts"].items()}
    lines: list[Words] = []
    found: dict[int, set[int]] = {}
    for top_k in range(1, N_EXPERTS + 1):
        router, experts, x_ND = made("softmax", top_k)
        routing = router(x_ND)
        told: list[Words] = []
        found[top_k] = set()
        for n in range(len(x_ND)):
            row = slice(n, n + 1)
            y_ND = experts(x_ND[row], routing.chosen_Nk[row], routing.weights_Nk[row])
            grads = torch.autograd.grad(
                loss_of(y_ND), list(experts.parameters()), retain_graph=True
            )
            with_one = [e for e in range(N_EXPERTS) if any(largest(g[e]) > 0 for g in grads)]
            found[top_k].add(len(with_one))
            which = ", ".join(map(str, with_one))
            told.append(say("token {n}: {experts}", n=n, experts=which))
        lines.append(
            say("k = {k}, experts with a gradient: {told}", k=top_k, told=listed(told, "; "))
        )
    as_said = {k: found.get(k) == {n} for k, n in stated.items()}
    counts = listed(
        (say("k = {k}: {n}", k=k, n=listed(map(str, sorted(n)), " or ")) for k, n in found.items()),
        "; ",
    )
    return Finding(
        verdict=RIGHT if all(as_said.values()) else CONDITIONAL if any(as_said.values()) else WRONG,
        says=say(
            "Of {all} experts, so many get a gradient from the loss of one token: {told}.",
            all=N_EXPERTS,
            told=counts,
        ),
        correct=counts,
        computation=(say("{sizes}; the loss of each token alone", sizes=SIZES), *lines),
        values={"always_k": all(n == {k} for k, n in found.items())},
        witness=WITNESS,
        condition=listed((f"k = {k}" for k, held in as_said.items() if held), " or "),
    )


def mixture_sum(claim: Claim) -> Finding:
    """Judge whether the layer's output is the weighted sum
    of the chosen experts' outputs. Options: `top_k`.
    """
    top_k = claim.options["top_k"]
    router, experts, x_ND = made("topk_softmax", top_k)
    routing = router(x_ND)
    with torch.no_grad():
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
        out = torch.zeros_like(y_ND)
        lines: list[Words] = []
        for n, x_D in enumerate(x_ND):
            terms = []
            for e, weight in zip(
                routing.chosen_Nk[n].tolist(), routing.weights_Nk[n].tolist(), strict=True
            ):
                gate_M, up_M = (gate_up[e] @ x_D).chunk(2)
                out_D = down[e] @ (gate_M / (1 + torch.exp(-gate_M)) * up_M)
                out[n] += weight * out_D
                terms.append(f"{weight:.6f}·{float(out_D[0]):.6f}")
            lines.append(
                say(
                    "token {n}, experts {experts}, first value: {steps}",
                    n=n,
                    experts=", ".join(map(str, routing.chosen_Nk[n].tolist())),
                    steps=f"{' + '.join(terms)} = {float(y_ND[n, 0]):.6f}",
                )
            )
    off = unequal(y_ND, out)
    holds = off < ROUNDING
    sums = routing.weights_Nk.detach().sum(-1)
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "The module's output is {that} of the equation: off by {off} of the largest value.",
            that=say("that" if holds else "not that"),
            off=f"{off:.1g}",
        ),
        correct=say("as stated" if holds else "something else"),
        computation=(say("{sizes}, k = {k}", sizes=SIZES, k=top_k), *lines),
        values={"one": bool(((sums - 1).abs() < ROUNDING).all())},
        witness=say("reference modules, run"),
    )
