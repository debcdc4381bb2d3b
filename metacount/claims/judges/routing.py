"""Claims about routers and experts: the reference modules run, autograd says the gradients.

Small sizes, float64, fixed seed. "Exactly zero" means 0.0; "equal" of two real numbers means equal
but for rounding, a relative difference of at most 1e-12, and the difference is printed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.modules.moe import Experts, Router, load_balancing_loss
from metacount.spec.ffn import FeedForward
from metacount.spec.moe import Mixture

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
        mixture = Mixture(n_experts=N_EXPERTS, top_k=top_k, d_ff=D_FF, router=scoring,
                          router_scales_input=weigh_input)  # fmt: skip
        router = Router(mixture, D_MODEL)
        experts = Experts(mixture, D_MODEL, FeedForward(activation="silu", gated=True))
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
    return float(x.detach().abs().max())


def unequal(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return largest(one - other) / max(largest(one), largest(other))


def single_expert(claim: Claim) -> Finding:
    """With k = 1 the output is unweighted and the router learns from the main loss."""
    both, lines, told = [], [], []
    values = {}
    words = {
        "topk_softmax": "softmax over the chosen one",
        "softmax_renorm": "softmax over all, divided by the chosen one's",
        "softmax": "softmax over all, as it is",
    }
    for scoring, name in words.items():
        router, experts, x_ND = made(scoring, 1)
        routing = router(x_ND)
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        alone_ND = experts(x_ND, routing.chosen_Nk, torch.ones_like(routing.weights_Nk))
        loss_of(y_ND).backward(retain_graph=True)
        learns = largest(gradient(router.proj.weight))
        load_balancing_loss(routing).backward()
        balanced = largest(gradient(router.proj.weight))
        unweighted = unequal(y_ND, alone_ND) < ROUNDING
        # a quotient of a number by itself has a gradient of rounding
        taught = learns > ROUNDING
        weights = ", ".join(f"{w:.4f}" for w in routing.weights_Nk.flatten().tolist())
        both.append(unweighted and taught)
        lines.append(
            f"{name}: weights {weights}; output equal to the expert's alone: "
            f"{'yes' if unweighted else 'no'}; largest gradient of the router {learns:.3g}, with "
            f"the balancing loss {balanced:.3g}"
        )
        learned = f"up to {learns:.3g}" if taught else f"rounding, {learns:.0e}"
        told.append(
            f"{name}: {'unweighted' if unweighted else 'weighted'}, the router's gradient is "
            f"{learned if learns else 'exactly 0'}"
        )
        values[f"{scoring}_unweighted"] = unweighted
        values[f"{scoring}_learns"] = taught
        values[f"{scoring}_learns_from_balancing"] = balanced > ROUNDING
    return Finding(
        verdict=RIGHT if all(both) else CONDITIONAL if any(both) else WRONG,
        says=f"{told[0][0].upper()}{'; '.join(told)[1:]}.",
        correct="; ".join(told),
        computation=(SIZES, *lines),
        values=values,
        witness=WITNESS,
        condition=", ".join(name for name, held in zip(words.values(), both, strict=True) if held),
    )


def unselected_gradient(claim: Claim) -> Finding:
    """An expert that no token selected has a gradient as claimed; then optimizers take a step."""
    router, experts, x_ND = made("softmax", 1)
    routing = router(x_ND)
    y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
    loss = loss_of(y_ND) + load_balancing_loss(routing)
    loss.backward()
    weights = list(experts.parameters())
    used = set(routing.chosen_Nk.flatten().tolist())
    rows = [max(largest(gradient(w)[e]) for w in weights) for e in range(N_EXPERTS)]
    unused = [e for e in range(N_EXPERTS) if e not in used]
    most = max(rows[e] for e in unused)
    alive = all(rows[e] != 0 for e in used)
    router_row = largest(gradient(router.proj.weight)[unused])
    moved = {
        "AdamW with weight decay": _moved(experts, unused, torch.optim.AdamW, weight_decay=0.1),
        "plain SGD": _moved(experts, unused, torch.optim.SGD),
        "SGD with momentum, after a step in which every value had a gradient,":
            _moved(experts, unused, torch.optim.SGD, momentum=0.9),
    }  # fmt: skip
    decay, plain, momentum = moved.values()
    return Finding(
        verdict=RIGHT if most == claim.claimed and alive else WRONG,
        says=f"{len(used)} of {N_EXPERTS} experts were selected by one of {N_TOKENS} tokens; the "
        f"others' largest gradient is {'exactly 0' if most == 0 else format(most, '.3g')}.",
        correct="exactly 0" if most == 0 else f"{most:.3g}",
        computation=(
            SIZES + ", k = 1, loss with the balancing loss",
            *(
                f"expert {e}: {'selected' if e in used else 'not selected'}, "
                f"largest gradient {rows[e]:.3g}"
                for e in range(N_EXPERTS)
            ),
            f"router's rows of experts that were not selected: largest gradient {router_row:.3g}",
            *(f"{name} moves those experts by up to {by:.3g}" for name, by in moved.items()),
        ),
        values={"decay_moves": decay > 0, "momentum_moves": momentum > 0, "sgd_moves": plain > 0,
                "router_row": f"{router_row:.3g}", "row_has_gradient": router_row > 0},
        witness=WITNESS,
    )  # fmt: skip


def _moved(
    experts: Experts, unused: list[int], kind: Callable[..., Optimizer], **options: float
) -> float:
    """How far a step with the gradients that are there moves the experts that have none.

    With momentum, a step in which every value had a gradient of 1 comes before.
    """
    copies = [nn.Parameter(w.detach().clone()) for w in experts.parameters()]
    optimizer = kind(copies, lr=0.1, **options)
    if "momentum" in options:
        for copy in copies:
            copy.grad = torch.ones_like(copy)
        optimizer.step()
    before = [copy.detach().clone() for copy in copies]
    for copy, weight in zip(copies, experts.parameters(), strict=True):
        copy.grad = gradient(weight).clone()
    optimizer.step()
    return max(largest((now - was).detach()[unused])
               for now, was in zip(copies, before, strict=True))  # fmt: skip


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
        values={"gradient": f"{float(grads_in[0, 0]):.3f}", "input_differs": off_in > ROUNDING,
                "product": f"{float(products_in[0, 0]):.3f}"},
        witness=WITNESS,
    )  # fmt: skip


def balance(claim: Claim) -> Finding:
    """The loss is E · Σ mean probability · share of tokens, for k = 1 and for more."""
    lines, holds, times = [], [], []
    kinds = (1, 2, 3)
    for top_k in kinds:
        router, _, x_ND = made("softmax", top_k)
        routing = router(x_ND)
        loss = float(load_balancing_loss(routing).detach())
        mean_E = routing.probs_NE.mean(0)
        share_E = torch.zeros(N_EXPERTS, dtype=torch.float64)
        for chosen in routing.chosen_Nk.tolist():
            for expert in chosen:
                share_E[expert] += 1 / N_TOKENS
        stated = float((N_EXPERTS * (mean_E * share_E).sum()).detach())
        holds.append(abs(loss - stated) <= ROUNDING * abs(stated))
        times.append(stated / loss)
        lines.append(f"k = {top_k}: stated {stated:.6f}, module {loss:.6f}, "
                     f"shares of tokens add up to {float(share_E.sum()):.0f}")  # fmt: skip
    yes = [f"k = {k}" for k, held in zip(kinds, holds, strict=True) if held]
    by_k = all(abs(t - k) <= ROUNDING * k for k, t in zip(kinds, times, strict=True))
    return Finding(
        verdict=RIGHT if all(holds) else CONDITIONAL if any(holds) else WRONG,
        says="The formula gives "
        + ", ".join(f"{t:.6g} times the module's loss with k = {k}"
                    for k, t in zip(kinds, times, strict=True)) + ".",
        correct="E·Σ p_e·c_e" if all(holds) else "E·Σ p_e·c_e, with k times as many shares",
        computation=(SIZES, *lines),
        values={"by_k": by_k},
        witness=WITNESS,
        condition=f"{' or '.join(yes)}, as the reference module has it",
    )  # fmt: skip
