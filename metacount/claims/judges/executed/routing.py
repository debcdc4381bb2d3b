"""Claims about routers and experts: the reference modules run, autograd says the gradients.

Small sizes, float64, fixed seed. "Exactly zero" means 0.0; "equal" of two real numbers means equal
but for rounding, a relative difference of at most 1e-12, and the difference is printed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import (
    N_EXPERTS,
    N_TOKENS,
    ROUNDING,
    SIZES,
    gradient,
    largest,
    loss_of,
    made,
    unequal,
)
from metacount.claims.text import Words, listed, say
from metacount.modules.moe import Experts, load_balancing_loss

WITNESS = say("reference modules, run with autograd")


def single_expert(claim: Claim) -> Finding:
    """Judge whether, with k = 1, the output is unweighted
    and the router learns from the main loss.
    """
    both: list[bool] = []
    lines: list[Words] = []
    told: list[Words] = []
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
            say(
                "{gate}: weights {weights}; output equal to the expert's alone: {equal}; largest "
                "gradient of the router {learns}, with the balancing loss {balanced}",
                gate=say(name),
                weights=weights,
                equal=say("yes" if unweighted else "no"),
                learns=f"{learns:.3g}",
                balanced=f"{balanced:.3g}",
            )
        )
        learned = say("up to {n}", n=f"{learns:.3g}")
        if not taught:
            learned = say("rounding, {n}", n=f"{learns:.0e}")
        told.append(
            say(
                "{gate}: {weighted}, the router's gradient is {learned}",
                gate=say(name),
                weighted=say("unweighted" if unweighted else "weighted"),
                learned=learned if learns else say("exactly 0"),
            )
        )
        values[f"{scoring}_unweighted"] = unweighted
        values[f"{scoring}_learns"] = taught
        values[f"{scoring}_learns_from_balancing"] = balanced > ROUNDING
    return Finding(
        verdict=RIGHT if all(both) else CONDITIONAL if any(both) else WRONG,
        says=say("{told}.", told=listed(told, "; ", capital=True)),
        correct=listed(told, "; "),
        computation=(SIZES, *lines),
        values=values,
        witness=WITNESS,
        condition=listed(
            say(name) for name, held in zip(words.values(), both, strict=True) if held
        ),
    )


def unselected_gradient(claim: Claim) -> Finding:
    """Judge whether an expert that no token selected has a gradient as claimed;
    then let optimizers take a step.
    """
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
    decay = _moved(experts, unused, torch.optim.AdamW, weight_decay=0.1)
    plain = _moved(experts, unused, torch.optim.SGD)
    momentum = _moved(experts, unused, torch.optim.SGD, momentum=0.9)
    zero = say("exactly 0") if most == 0 else f"{most:.3g}"
    return Finding(
        verdict=RIGHT if most == claim.claimed and alive else WRONG,
        says=say(
            "{n} of {all} experts were selected by one of {tokens} tokens; the others' "
            "largest gradient is {zero}.",
            n=len(used),
            all=N_EXPERTS,
            tokens=N_TOKENS,
            zero=zero,
        ),
        correct=zero,
        computation=(
            say("{sizes}, k = 1, loss with the balancing loss", sizes=SIZES),
            *(
                say(
                    "expert {e}: {selected}, largest gradient {n}",
                    e=e,
                    n=f"{rows[e]:.3g}",
                    selected=say("selected" if e in used else "not selected"),
                )
                for e in range(N_EXPERTS)
            ),
            say(
                "router's rows of experts that were not selected: largest gradient {n}",
                n=f"{router_row:.3g}",
            ),
            say("AdamW with weight decay moves those experts by up to {n}", n=f"{decay:.3g}"),
            say("plain SGD moves those experts by up to {n}", n=f"{plain:.3g}"),
            say(
                "SGD with momentum, after a step in which every value had a gradient, moves those "
                "experts by up to {n}",
                n=f"{momentum:.3g}",
            ),
        ),
        values={
            "decay_moves": decay > 0,
            "momentum_moves": momentum > 0,
            "sgd_moves": plain > 0,
            "router_row": f"{router_row:.3g}",
            "row_has_gradient": router_row > 0,
        },
        witness=WITNESS,
    )


def _moved(
    experts: Experts, unused: list[int], kind: Callable[..., Optimizer], **options: float
) -> float:
    """Measure how far a step with the gradients at hand moves the unused experts.

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
    return max(
        largest((now - was).detach()[unused]) for now, was in zip(copies, before, strict=True)
    )


def weight_gradient(claim: Claim) -> Finding:
    """Judge whether the gradient of a weight is the inner product of dL/dy
    and the expert's output.
    """
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
        says=say("All {n} gradients are that product, to {off}.", n=grads.numel(), off=f"{off:.0e}")
        if holds
        else say("They differ by {off} of the largest.", off=f"{off:.2g}"),
        correct="dL/dw_e = dL/dy · f_e(x)" if holds else say("something else"),
        computation=(
            say("{sizes}, k = 2", sizes=SIZES),
            *(
                say(
                    "token {n}, expert {e}: gradient {gradient}, product {product}",
                    n=n,
                    e=int(chosen_Nk[n, i]),
                    gradient=f"{float(grads[n, i]):.6f}",
                    product=f"{float(products[n, i]):.6f}",
                )
                for n in range(N_TOKENS)
                for i in range(2)
            ),
            say("largest difference {off} of the largest value", off=f"{off:.0e}"),
            say(
                "weight on the expert's input: largest difference {off} of the largest value",
                off=f"{off_in:.2g}",
            ),
        ),
        values={
            "gradient": f"{float(grads_in[0, 0]):.3f}",
            "input_differs": off_in > ROUNDING,
            "product": f"{float(products_in[0, 0]):.3f}",
        },
        witness=WITNESS,
    )


def balance(claim: Claim) -> Finding:
    """Judge whether the balancing loss is E · Σ mean probability · share
    of tokens, for k = 1 and for more.
    """
    lines: list[Words] = []
    holds: list[bool] = []
    times: list[float] = []
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
        lines.append(
            say(
                "k = {k}: stated {stated}, module {module}, shares of tokens add up to {sum}",
                k=top_k,
                stated=f"{stated:.6f}",
                module=f"{loss:.6f}",
                sum=f"{float(share_E.sum()):.0f}",
            )
        )
    yes = [f"k = {k}" for k, held in zip(kinds, holds, strict=True) if held]
    by_k = all(abs(t - k) <= ROUNDING * k for k, t in zip(kinds, times, strict=True))
    return Finding(
        verdict=RIGHT if all(holds) else CONDITIONAL if any(holds) else WRONG,
        says=say(
            "The formula gives {times}.",
            times=listed(
                say("{times} times the module's loss with k = {k}", times=f"{t:.6g}", k=k)
                for k, t in zip(kinds, times, strict=True)
            ),
        ),
        correct="E·Σ p_e·c_e" if all(holds) else say("E·Σ p_e·c_e, with k times as many shares"),
        computation=(SIZES, *lines),
        values={"by_k": by_k},
        witness=WITNESS,
        condition=say("{which}, as the reference module has it", which=listed(yes, " or ")),
    )
