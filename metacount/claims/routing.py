"""Claims about routers and experts: the reference modules run, autograd says the gradients.

Small sizes, float64, fixed seed. "Exactly zero" means 0.0; "equal" of two real numbers means equal
but for rounding, a relative difference of at most 1e-12, and the difference is printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metacount import catalog
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.modules.moe import Experts, Router, load_balancing_loss

D_MODEL, D_FF, N_EXPERTS, N_TOKENS = 7, 5, 6, 3
WITNESS = "reference modules, run with autograd"
SIZES = (
    f"d_model {D_MODEL}, {N_EXPERTS} experts of width {D_FF}, {N_TOKENS} tokens, float64, seed 0"
)
ROUNDING = 1e-12


def made(scoring: str, top_k: int, *, weigh_input: bool = False) -> tuple[Router, Experts, Tensor]:
    """A router, its experts and some tokens [N, D], the same for the same sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        router = Router(d_model=D_MODEL, n_experts=N_EXPERTS, top_k=top_k, scoring=scoring)
        experts = Experts(
            d_model=D_MODEL,
            d_ff=D_FF,
            n_experts=N_EXPERTS,
            top_k=top_k,
            activation="silu",
            gated=True,
            weigh_input=weigh_input,
        )
        x_ND = torch.randn(N_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), experts.double(), x_ND


def loss_of(y: Tensor) -> Tensor:
    """Any loss whose gradient differs from place to place: half the squared distance to 1."""
    return (y - 1).square().sum() / 2


def gradient(parameter: Tensor) -> Tensor:
    """The gradient that autograd left, which must be there."""
    assert parameter.grad is not None
    return parameter.grad


def largest(x: Tensor) -> float:
    """The largest absolute value."""
    return float(x.abs().max())


def unequal(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return largest(one - other) / max(largest(one), largest(other))


def single_expert(claim: Claim) -> Finding:
    """With k = 1 the output is unweighted and the router learns from the main loss."""
    both, lines, told = [], [], []
    words = {"topk_softmax": "Softmax over the chosen one", "softmax": "softmax over all"}
    for scoring, name in words.items():
        router, experts, x_ND = made(scoring, 1)
        routing = router(x_ND)
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        alone_ND = experts(x_ND, routing.chosen_Nk, torch.ones_like(routing.weights_Nk))
        loss_of(y_ND).backward()
        learns = largest(gradient(router.proj.weight))
        unweighted = torch.equal(y_ND, alone_ND)
        weights = ", ".join(f"{w:.4f}" for w in routing.weights_Nk.flatten().tolist())
        both.append(unweighted and learns != 0)
        lines.append(
            f"{name}: weights {weights}; output equal to the expert's alone: "
            f"{'yes' if unweighted else 'no'}; largest gradient of the router {learns:.3g}"
        )
        told.append(
            f"{name}: {'unweighted' if unweighted else 'weighted'}, "
            f"the router's gradient is {'exactly 0' if learns == 0 else f'up to {learns:.3g}'}"
        )
    return Finding(
        verdict=RIGHT if all(both) else CONDITIONAL if any(both) else WRONG,
        says="; ".join(told) + ".",
        correct="; ".join(told),
        computation=(SIZES, *lines),
        values={},
        witness=WITNESS,
    )


def unselected_gradient(claim: Claim) -> Finding:
    """An expert that no token selected has a gradient of exactly zero; the others have not."""
    router, experts, x_ND = made("softmax", 1)
    routing = router(x_ND)
    y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
    loss = loss_of(y_ND) + load_balancing_loss(routing)
    loss.backward()
    weights = list(experts.parameters())
    used = set(routing.chosen_Nk.flatten().tolist())
    rows = [max(largest(gradient(w)[e]) for w in weights) for e in range(N_EXPERTS)]
    unused = [e for e in range(N_EXPERTS) if e not in used]
    zero = all(rows[e] == 0 for e in unused)
    alive = all(rows[e] != 0 for e in used)
    router_row = largest(gradient(router.proj.weight)[unused])
    before = weights[-1].detach()
    # what AdamW does to a weight whose gradient has always been zero
    moved = largest((before * (1 - 0.1 * 0.1) - before)[unused])
    return Finding(
        verdict=RIGHT if zero and alive else WRONG,
        says=f"{len(used)} of {N_EXPERTS} experts were selected; the others' largest gradient is "
        f"{'exactly 0' if zero else format(max(rows[e] for e in unused), '.3g')}.",
        correct="exactly 0" if zero else "not 0",
        computation=(
            SIZES + ", k = 1, loss with the balancing loss",
            *(
                f"expert {e}: {'selected' if e in used else 'not selected'}, "
                f"largest gradient {rows[e]:.3g}"
                for e in range(N_EXPERTS)
            ),
            f"router's rows of experts that were not selected: largest gradient {router_row:.3g}",
            "decoupled weight decay (lr 0.1, decay 0.1) alone moves those experts' weights by up "
            f"to {moved:.3g} in a step",
        ),
        values={},
        witness=WITNESS,
    )


def weight_gradient(claim: Claim) -> Finding:
    """The gradient of a weight is the inner product of dL/dy and the expert's output."""
    found = {}
    for weigh_input in (False, True):
        router, experts, x_ND = made("softmax_renorm", 2, weigh_input=weigh_input)
        routing = router(x_ND)
        weights_Nk = routing.weights_Nk.detach().requires_grad_()
        y_ND = experts(x_ND, routing.chosen_Nk, weights_Nk)
        y_ND.retain_grad()
        loss_of(y_ND).backward()
        one = torch.ones_like(weights_Nk[:, :1])
        outputs = [experts(x_ND, routing.chosen_Nk[:, i : i + 1], one) for i in range(2)]
        # [n, d] · [n, d] for each of the two experts
        products = torch.stack([(gradient(y_ND) * f).sum(-1) for f in outputs], dim=-1).detach()
        grads = gradient(weights_Nk)
        found[weigh_input] = (grads, products, unequal(grads, products))
        chosen_Nk = routing.chosen_Nk
    grads, products, off = found[False]
    grads_in, products_in, off_in = found[True]
    holds = off < ROUNDING
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"All {grads.numel()} gradients are that product, to {off:.0e}."
        if holds else f"They differ by {off:.2g} of the largest.",
        correct="dL/dw_e = dL/dy · f_e(x)" if holds else "something else",
        computation=(
            SIZES + ", k = 2",
            *(
                f"token {n}, expert {int(chosen_Nk[n, i])}: gradient {float(grads[n, i]):.6f}, "
                f"product {float(products[n, i]):.6f}"
                for n in range(N_TOKENS)
                for i in range(2)
            ),
            f"largest difference {off:.0e} of the largest value",
            f"weight on the expert's input: largest difference {off_in:.2g} of the largest value",
        ),
        values={"input": f"gradient {float(grads_in[0, 0]):.3f}, "
                f"product {float(products_in[0, 0]):.3f}"},
        witness=WITNESS,
    )  # fmt: skip


def balance(claim: Claim) -> Finding:
    """The loss is E · Σ mean probability · share of tokens."""
    lines, found = [], {}
    for top_k in (1, 2):
        router, _, x_ND = made("softmax", top_k)
        routing = router(x_ND)
        loss = float(load_balancing_loss(routing).detach())
        mean_E = routing.probs_NE.mean(0)
        share_E = torch.zeros(N_EXPERTS, dtype=torch.float64)
        for chosen in routing.chosen_Nk.tolist():
            for expert in chosen:
                share_E[expert] += 1 / N_TOKENS
        stated = float((N_EXPERTS * (mean_E * share_E).sum()).detach())
        found[top_k] = (loss, stated)
        lines.append(f"k = {top_k}: stated {stated:.6f}, module {loss:.6f}, "
                     f"shares of tokens add up to {float(share_E.sum()):.0f}")  # fmt: skip
    loss, stated = found[1]
    holds = abs(loss - stated) <= ROUNDING * abs(stated)
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"With k = 1 the module gives {loss:.6f}, the formula {stated:.6f}.",
        correct="E·Σ p_e·c_e" if holds else f"{loss:.6f}",
        computation=(SIZES, *lines, "uniform probabilities and shares: E·E·(1/E)·(1/E) = 1"),
        values={"both": f"{found[2][1]:.3f} against {found[2][0]:.3f} with k = 2"},
        witness=WITNESS,
    )


def gate_order(claim: Claim) -> Finding:
    """The gate works in this order. Options: `order`. The catalog says who does so."""
    order = {
        "as_they_are": ("softmax",),
        "over_chosen": ("topk_softmax", "softmax_renorm"),
    }[claim.options["order"]]
    routings = {}
    for scoring in ("softmax", "softmax_renorm", "topk_softmax"):
        router, _, x_ND = made(scoring, 2)
        routings[scoring] = router(x_ND)
    chosen = [r.chosen_Nk for r in routings.values()]
    same = all(torch.equal(chosen[0], other) for other in chosen)
    weights = {scoring: r.weights_Nk.detach() for scoring, r in routings.items()}
    off = unequal(weights["softmax_renorm"], weights["topk_softmax"])
    assert same and off < ROUNDING, "the two orders do not agree after renormalising"
    models = [(e, e.spec()) for e in catalog.entries() if e.sizes is not None]
    # a router that another one stands in for says nothing about the model
    moe = [(e, s) for e, s in models
           if s.is_moe and not any(text.startswith("router:") for text in e.inferred)]  # fmt: skip
    follow = [e.id + (f" (times {s.routed_scale:g})" if s.routed_scale != 1 else "")
              for e, s in moe if s.router in order]  # fmt: skip
    others = [e.id for e, s in moe if s.router not in order]
    first = weights["softmax"][0]
    return Finding(
        verdict=RIGHT if not others else CONDITIONAL if follow else WRONG,
        says=f"In the catalog, {len(follow)} of {len(moe)} mixtures of experts whose router is "
        "known do so.",
        correct=f"{', '.join(follow) or 'no model'}; not {', '.join(others) or 'any'}",
        computation=(
            SIZES + ", k = 2",
            *(
                f"{scoring}: token 0 goes to experts "
                f"{' and '.join(str(e) for e in routings[scoring].chosen_Nk[0].tolist())} with "
                f"{' + '.join(f'{w:.4f}' for w in weight[0].tolist())}"
                f" = {float(weight[0].sum()):.4f}"
                for scoring, weight in weights.items()
            ),
            f"softmax_renorm and topk_softmax differ by {off:.0e}",
            f"do so: {', '.join(follow) or 'none'}",
            f"do not: {', '.join(others) or 'none'}",
        ),
        values={"follow": ", ".join(follow), "sum": f"{float(first.sum()):.4f}"},
        witness=WITNESS + "; catalog",
    )
