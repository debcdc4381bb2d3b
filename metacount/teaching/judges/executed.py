"""Claims about behaviour: the reference modules run, beside what is written out in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from metacount.measure.ours import measure_params
from metacount.measure.torch_private import DispatchMode
from metacount.modules import LayerNorm, RMSNorm, Visibility
from metacount.modules.build import build
from metacount.modules.ffn import activate, feed_forward
from metacount.modules.moe import Experts, Router, load_balancing_loss
from metacount.modules.position import sinusoid
from metacount.spec.ffn import FeedForward
from metacount.spec.field import altered
from metacount.teaching.experiments.modules import (
    D_FF,
    D_MODEL,
    HEADS,
    N_EXPERTS,
    N_TOKENS,
    ROUNDING,
    draw,
    gelu,
    gradient,
    largest,
    loss_of,
    made,
    mixture,
    moved,
    normal,
    norms_of,
    placed,
    reaching,
    rotated_score,
    seeded,
    sigmoid,
    sinusoid_by_hand,
    small,
    swish,
    unequal,
)
from metacount.teaching.parts import models
from metacount.teaching.texts import Claim, Finding, found

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload
    from metacount.spec import ModelSpec

SIZES = {"d": D_MODEL, "all": N_EXPERTS, "width": D_FF, "tokens": N_TOKENS}

# Routers and experts. "Exactly zero" means 0.0.


def single_expert(claim: Claim) -> Finding:
    """Judge whether, with k = 1, the output is unweighted and the router learns from the main loss.

    Each gate is run: whether it leaves the output unweighted, what its router learns.
    """
    gates = {}
    for scoring in ("topk_softmax", "softmax_renorm", "softmax"):
        router, experts, x_ND = mixture(scoring, 1)
        routing = router(x_ND)
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        alone_ND = experts(x_ND, routing.chosen_Nk, torch.ones_like(routing.weights_Nk))
        loss_of(y_ND).backward(retain_graph=True)
        learns = largest(gradient(router.proj.weight))
        load_balancing_loss(routing).backward()
        balanced = largest(gradient(router.proj.weight))
        gates[scoring] = {
            "scoring": scoring,
            "weights": ", ".join(f"{w:.4f}" for w in routing.weights_Nk.flatten().tolist()),
            "unweighted": unequal(y_ND, alone_ND) < ROUNDING,
            "learns": learns,
            "taught": learns > ROUNDING,  # a number divided by itself has a gradient of rounding
            "balanced": balanced,
            "is_balanced": balanced > ROUNDING,
        }
    held = [gate for gate in gates.values() if gate["unweighted"] and gate["taught"]]
    both = [gate in held for gate in gates.values()]
    return found(both, gates=list(gates.values()), held=held, **gates, **SIZES)


def unselected_gradient(claim: Claim) -> Finding:
    """Judge whether an expert that no token selected has a gradient as claimed.

    Then optimizers take a step with it.
    """
    router, experts, x_ND = mixture("softmax", 1)
    routing = router(x_ND)
    y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
    (loss_of(y_ND) + load_balancing_loss(routing)).backward()
    weights = list(experts.parameters())
    used = set(routing.chosen_Nk.flatten().tolist())
    rows = [max(largest(gradient(w)[e]) for w in weights) for e in range(N_EXPERTS)]
    unused = [e for e in range(N_EXPERTS) if e not in used]
    most = max(rows[e] for e in unused)
    router_row = largest(gradient(router.proj.weight)[unused])
    decay = _step(experts, unused, torch.optim.AdamW, weight_decay=0.1)
    plain = _step(experts, unused, torch.optim.SGD)
    momentum = _step(experts, unused, torch.optim.SGD, momentum=0.9)
    alive = all(rows[e] != 0 for e in used)
    return found(
        [most == claim.claimed and alive],
        n_used=len(used),
        most=most,
        experts=[{"e": e, "selected": e in used, "n": n} for e, n in enumerate(rows)],
        decay=decay,
        decay_moves=decay > 0,
        plain=plain,
        sgd_moves=plain > 0,
        momentum=momentum,
        momentum_moves=momentum > 0,
        router_row=f"{router_row:.3g}",
        row_has_gradient=router_row > 0,
        **SIZES,
    )


def _step(
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
    """Judge whether a weight's gradient is the inner product of dL/dy and the expert's output."""
    runs = []
    for weigh_input in (False, True):
        router, experts, x_ND = mixture("softmax_renorm", 2, weigh_input=weigh_input)
        routing = router(x_ND)
        chosen_Nk = routing.chosen_Nk
        weights_Nk = routing.weights_Nk.detach().requires_grad_()
        y_ND = experts(x_ND, chosen_Nk, weights_Nk)
        y_ND.retain_grad()
        loss_of(y_ND).backward()
        one = torch.ones_like(weights_Nk[:, :1])
        outputs = [experts(x_ND, chosen_Nk[:, i : i + 1], one) for i in range(2)]
        # [n, d] · [n, d] for each of the two experts
        products = torch.stack([(gradient(y_ND) * f).sum(-1) for f in outputs], dim=-1).detach()
        runs.append((gradient(weights_Nk), products))
    (grads, products), (grads_in, products_in) = runs
    off, off_in = unequal(grads, products), unequal(grads_in, products_in)
    return found(
        [off < ROUNDING],
        n=grads.numel(),
        off=off,
        off_in=off_in,
        weights=[
            {
                "token": n,
                "e": int(chosen_Nk[n, i]),
                "gradient": float(grads[n, i]),
                "product": float(products[n, i]),
            }
            for n in range(N_TOKENS)
            for i in range(2)
        ],
        gradient=f"{float(grads_in[0, 0]):.3f}",
        input_differs=off_in > ROUNDING,
        product=f"{float(products_in[0, 0]):.3f}",
        **SIZES,
    )


def balance(claim: Claim) -> Finding:
    """Judge whether the balancing loss is E · Σ mean probability · share of tokens, for each k."""
    runs = []
    for top_k in (1, 2, 3):
        router, _, x_ND = mixture("softmax", top_k)
        routing = router(x_ND)
        module = float(load_balancing_loss(routing).detach())
        # of tokens: each counts once for every expert that it chose
        share_E = routing.chosen_Nk.flatten().bincount(minlength=N_EXPERTS).double() / N_TOKENS
        stated = float((N_EXPERTS * (routing.probs_NE.mean(0) * share_E).sum()).detach())
        run = {"k": top_k, "stated": stated, "module": module, "times": stated / module}
        runs.append({**run, "sum": float(share_E.sum())})
    holds = [abs(run["module"] - run["stated"]) <= ROUNDING * abs(run["stated"]) for run in runs]
    return found(
        holds,
        runs=runs,
        yes=[f"k = {run['k']}" for run, held in zip(runs, holds, strict=True) if held],
        by_k=all(abs(run["times"] - run["k"]) <= ROUNDING * run["k"] for run in runs),
        **SIZES,
    )


def gate_order(claim: Claim) -> Finding:
    """Judge whether routers' gates work in a stated order. Options: `order`.

    The router of every mixture of the catalog is run, at its own numbers of experts, and what it
    chose and weighed is compared with the stated order, written out here.
    """
    stated = ORDERS[claim.options["order"]]
    routers = []
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
            # the weight of every expert for every token, 0 where it was not chosen
            w.detach().new_zeros(len(chosen), n_scored).scatter(-1, chosen, w.detach())
            for chosen, w in ((routing.chosen_Nk, routing.weights_Nk), (chosen_Nk, weights_Nk))
        )
        off = unequal(theirs, said)
        routers.append(
            {
                "model": entry.id,
                "k": str(spec.top_k),
                "n": str(n_scored),
                "same": same,
                "off": off,
                "mean": float(routing.weights_Nk.detach().sum(-1).mean()),
                "holds": same and off < ROUNDING,
            }
        )
    return found(
        (bool(router["holds"]) for router in routers),
        routers=routers,
        n_routers=len(routers),
        follow=[r["model"] for r in routers if r["holds"]],
        n_follow=sum(bool(r["holds"]) for r in routers),
        others=[r["model"] for r in routers if not r["holds"]],
        gate_tokens=GATE_TOKENS,
        **_orders_agree(),
        **SIZES,
    )


def _largest_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = logits_NE.topk(top_k, dim=-1)
    return chosen.indices, chosen.values.softmax(-1)


def _all_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = logits_NE.softmax(-1).topk(top_k, dim=-1)
    return chosen.indices, chosen.values


ORDERS = {"as_they_are": _all_first, "over_chosen": _largest_first}
GATE_TOKENS = 64


def _router(spec: ModelSpec) -> tuple[Router, Tensor]:
    with seeded():
        part = spec.last_stack.mixture
        assert part is not None  # the claim is about experts
        router = Router(altered(part, router_bias=False), D_MODEL)
        x_ND = torch.randn(GATE_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), x_ND


def _orders_agree() -> dict[str, bool | str]:
    router, _, x_ND = mixture("softmax", 2)
    logits_NE = router.proj(x_ND).detach()
    chosen, before = _all_first(logits_NE, 2)
    other, after = _largest_first(logits_NE, 2)
    sums = before.sum(-1)
    return {
        "same_choice": torch.equal(chosen, other),
        "agree_when_divided": unequal(before / before.sum(-1, keepdim=True), after) < ROUNDING,
        "less_than_one": bool((sums < 1).all()),
        "one": bool(((after.sum(-1) - 1).abs() < ROUNDING).all()),
        "sum": f"{float(sums[0]):.4f}",
    }


def experts_with_gradient(claim: Claim) -> Finding:
    """Judge whether, with k = ..., so many experts get a gradient of one token's loss.

    Options: `experts` by k.
    """
    stated = {int(k): n for k, n in claim.options["experts"].items()}
    runs = []
    for top_k in range(1, N_EXPERTS + 1):
        router, experts, x_ND = mixture("softmax", top_k)
        routing = router(x_ND)
        with_one = []
        for n in range(N_TOKENS):
            row = slice(n, n + 1)
            y_ND = experts(x_ND[row], routing.chosen_Nk[row], routing.weights_Nk[row])
            grads = torch.autograd.grad(
                loss_of(y_ND), list(experts.parameters()), retain_graph=True
            )
            with_one.append([e for e in range(N_EXPERTS) if any(largest(g[e]) > 0 for g in grads)])
        runs.append(
            {
                "k": top_k,
                "counts": sorted({len(each) for each in with_one}),
                "by_token": [
                    {"token": n, "which": ", ".join(map(str, each))}
                    for n, each in enumerate(with_one)
                ],
            }
        )
    counts = {run["k"]: run["counts"] for run in runs}
    as_said = {k: counts.get(k) == [n] for k, n in stated.items()}
    return found(
        as_said.values(),
        runs=runs,
        held=[f"k = {k}" for k, held in as_said.items() if held],
        always_k=all(n == [k] for k, n in counts.items()),
        **SIZES,
    )


def mixture_sum(claim: Claim) -> Finding:
    """Judge whether the layer's output is the weighted sum of the chosen experts' outputs.

    Options: `top_k`.
    """
    top_k = claim.options["top_k"]
    router, experts, x_ND = mixture("topk_softmax", top_k)
    routing = router(x_ND)
    rows = []
    with torch.no_grad():
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
        out = torch.zeros_like(y_ND)
        for n, x_D in enumerate(x_ND):
            chosen, terms = routing.chosen_Nk[n].tolist(), []
            for e, weight in zip(chosen, routing.weights_Nk[n].tolist(), strict=True):
                gate_M, up_M = (gate_up[e] @ x_D).chunk(2)
                out_D = down[e] @ (gate_M / (1 + torch.exp(-gate_M)) * up_M)
                out[n] += weight * out_D
                terms.append(f"{weight:.6f}·{float(out_D[0]):.6f}")
            steps = f"{' + '.join(terms)} = {float(y_ND[n, 0]):.6f}"
            rows.append({"token": n, "experts": ", ".join(map(str, chosen)), "steps": steps})
    off = unequal(y_ND, out)
    sums = routing.weights_Nk.detach().sum(-1)
    one = bool(((sums - 1).abs() < ROUNDING).all())
    return found([off < ROUNDING], off=off, rows=rows, one=one, k=top_k, **SIZES)


class _Softmaxes(DispatchMode):
    """Counts softmaxes by the class of the module that runs them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, int] = {}
        self.running: list[str] = []
        for module in model.modules():
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, _: object) -> None:
        self.running.append(type(module).__name__)

    def _leave(self, *_: object) -> None:
        self.running.pop()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func.overloadpacket is torch.ops.aten._softmax:
            place = self.running[-1]
            self.found[place] = self.found.get(place, 0) + 1
        return func(*args, **(kwargs or {}))


def softmax_places(claim: Claim) -> Finding:
    """Judge whether softmax is run by the attention and nowhere else before the logits."""
    experts = {"n_experts": 4, "top_k": 2, "d_ff_expert": 8}
    latent = {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 4,
        "d_ff": 16,
        "n_dense_layers": 1,
        "n_groups": 2,
        "top_groups": 1,
    }
    specs = {
        "a dense model (LLaMA)": small("llama-7b", d_ff=16, **HEADS),
        "a softmax router (Mixtral)": small("mixtral-8x7b", **experts, **HEADS),
        "a sigmoid router (DeepSeek-V3)": small("deepseek-v3", **experts, **latent),
    }
    counts = {}
    for name, spec in specs.items():
        model = made(spec)
        with torch.no_grad(), _Softmaxes(model) as seen:
            model(torch.arange(5)[None])
        counts[name] = seen.found
    holds = {name: seen.keys() == {"ScaledDotProduct"} for name, seen in counts.items()}
    return found(
        holds.values(),
        runs=[
            {"model": name, "places": [f"{place} {n}" for place, n in sorted(seen.items())]}
            for name, seen in counts.items()
        ],
        yes=[{"model": name} for name, held in holds.items() if held],
        no=[{"model": name} for name, held in holds.items() if not held],
        in_router=any("Router" in place for seen in counts.values() for place in seen),
        at_output=any("ScaledDotProduct" not in seen for seen in counts.values()),
    )


# Norms and where a block has them.


def rmsnorm_divisor(claim: Claim) -> Finding:
    """Judge whether RMSNorm divides by the root of `of` plus eps.

    Options: `of`: sum or mean (of squares).
    """
    d, eps = 16, 1e-5
    x = normal(1, d)
    y, squares = RMSNorm(d, eps=eps).double()(x).detach(), x.square()
    ways: dict[str, dict[str, float | bool]] = {}
    for name, divisor in {"mean": squares.mean(), "sum": squares.sum()}.items():
        made = x / (divisor + eps).sqrt()
        way = {"by": float(divisor), "length": float(made.norm()), "first": float(made[0, 0])}
        ways[name] = {**way, "off": unequal(y, made), "fits": unequal(y, made) < ROUNDING}
    return found(
        [bool(ways[claim.options["of"]]["fits"])],
        d=d,
        eps=eps,
        length=float(y.norm()),
        x_0=float(x[0, 0]),
        y_0=float(y[0, 0]),
        **ways,
    )


def layernorm_roles(claim: Claim) -> Finding:
    """Judge what a LayerNorm multiplies with and what it adds. Options: `scale` and `shift`.

    `weight` is what starts at one and is called gamma, `bias` what starts at zero: beta.
    """
    d, eps = 16, 1e-5
    x, norm = normal(3, d), LayerNorm(d, bias=True, eps=eps).double()
    vectors = {name: parameter.detach() for name, parameter in norm.named_parameters()}
    fresh, before = norm(x).detach(), {name: vector.clone() for name, vector in vectors.items()}
    for seed, vector in enumerate(vectors.values()):
        vector.copy_(normal(d, seed=seed + 1))
    y = norm(x).detach()
    torchs = nn.functional.layer_norm(x, (d,), vectors["weight"], vectors["bias"], eps)
    plain = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    scale, shift = claim.options["scale"], claim.options["shift"]
    off = {
        scale: unequal(y, plain * vectors[scale] + vectors[shift])
        for scale, shift in (("weight", "bias"), ("bias", "weight"))
    }
    fits = [name for name, by in off.items() if by < ROUNDING]
    at_start = plain * before[scale] + before[shift]
    return found(
        [scale in fits and shift != scale],
        d=d,
        eps=eps,
        scale=fits[0] if fits else "",
        off=off[scale],
        ways=[{"scale": name, "off": by} for name, by in off.items()],
        off_torch=unequal(y, torchs),
        weight_starts=float(before["weight"].mean()),
        bias_starts=float(before["bias"].mean()),
        stated_starts=largest(at_start),
        module_starts=largest(fresh),
        constant_at_start=largest(at_start - at_start.mean()) < ROUNDING,
        at_start=f"{float(at_start.mean()):g}",
    )


# norms that the formula of a sublayer names, the formula, and what it could be taken for
FORMULAS = {
    "deep": (1, "LayerNorm(α·x + Sublayer(x))", ("post",)),
    "sandwich": (2, "x + Norm(Sublayer(Norm(x)))", ()),
    "pre": (1, "x + Sublayer(Norm(x))", ("post",)),
    "post": (1, "Norm(x + Sublayer(x))", ("pre",)),
}


def block_norms(claim: Claim) -> Finding:
    """Judge whether a block computes a formula.

    Options: `placement` of its norms, `stated` (the formula).
    """
    placement, formula = claim.options["placement"], claim.options["stated"]
    norm = {"norm": "layernorm", "norm_bias": True, "norm_placement": placement}
    spec = small("llama-7b", **HEADS, d_ff=16, **norm)
    block = made(spec).last_stack.blocks[0]
    x, sees = normal(1, 5, spec.d_model), Visibility(n_queries=5, n_keys=5)
    alpha = (2 * spec.n_layers) ** 0.25  # of the stated formula, DeepNet's
    n_named, _, beside = FORMULAS[formula]
    norms = norms_of(block)
    with torch.no_grad():
        for n, each in enumerate(norms):
            for p, parameter in enumerate(each.parameters()):
                parameter.add_(normal(*parameter.shape, seed=2 * n + p) / 4)
        y = block(x, sees)
        off = unequal(y, placed(formula, block, x, alpha))
        others = {name: unequal(y, placed(name, block, x)) for name in beside}
    return found(
        [off < ROUNDING and len(norms) == 2 * n_named],
        d=spec.d_model,
        off=off,
        as_formula=off < ROUNDING,
        n_stated=2 * n_named,
        deep=formula == "deep",
        others=[{"formula": FORMULAS[name][1], "off": by} for name, by in others.items()],
        n_norms=len(norms),
        blocks=spec.n_layers,
        alpha=f"{alpha:.4f}",
        others_differ=all(by > ROUNDING for by in others.values()),
        **{f"off_{name}": f"{by:.2g}" for name, by in others.items()},
    )


# Equations of feed-forwards.

# hidden vector from u = W1·x (+ b) and, with a gate, v = W3·x (+ c)
HIDDEN: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "GELU": ("GELU({u})", lambda u, _: gelu(u)),
    "ReLU": ("max(0, {u})", lambda u, _: u.clamp(min=0)),
    "GLU": ("σ({u}) ⊙ {v}", lambda u, v: sigmoid(u) * v),
    "Swish": ("Swish({u}) ⊙ {v}", lambda u, v: swish(u) * v),
    "SwiGLU": ("SwiGLU({u}) ⊙ {v}", lambda u, v: swish(u) * u * v),
}


def ffn_equation(claim: Claim) -> Finding:
    """Judge whether a feed-forward computes an equation.

    Options: `activation`, `gated`, `bias`; `stated`.

    The module's own hidden vector, what goes into its last matrix, is compared with each equation.
    SwiGLU takes two vectors; where an equation gives it one, it stands for both.
    """
    options, stated = claim.options, claim.options["stated"]
    gated = options["gated"]
    part = FeedForward(
        activation=options["activation"], gated=gated, d_ff=D_FF, bias=options["bias"]
    )
    with seeded():
        module = draw(feed_forward(part, D_MODEL))
    seen: list[Tensor] = []
    with torch.no_grad():
        module.get_submodule("down_proj").register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        x_ND = normal(N_TOKENS, D_MODEL)
        y_ND = module(x_ND)
        u_NM, v_NM = (
            module.get_submodule(name)(x_ND)
            for name in ("gate_proj" if gated else "up_proj", "up_proj")
        )
        # those with a gate beside those with one
        hidden = {
            name: form(u_NM, v_NM)
            for name, (text, form) in HIDDEN.items()
            if name == stated or ("{v}" in text) is gated
        }
        off = {name: unequal(seen[0], h_NM) for name, h_NM in hidden.items()}
        out = unequal(y_ND, module.get_submodule("down_proj")(hidden[stated]))
        acted = float(activate(u_NM, part.activation, part.swish_beta)[0, 0])
    fits = [name for name in off if off[name] < ROUNDING]
    u, v, last = ("W1·x + b", "(W3·x + c)", " + b2") if part.bias else ("W1·x", "W3·x", "")
    text = {name: HIDDEN[name][0].format(u=u, v=v) for name in hidden}
    return found(
        [stated in fits and out < ROUNDING],
        d=D_MODEL,
        m=D_FF,
        n_tokens=N_TOKENS,
        out=out,
        whole=[
            f"y = W2·({text[name]}){last}" if "⊙" in text[name] else f"y = W2·{text[name]}{last}"
            for name in fits
        ],
        shapes=[
            f"{name.removesuffix('.weight')} [{', '.join(map(str, weight.shape))}]"
            for name, weight in module.named_parameters()
            if weight.dim() > 1
        ],
        equations=[{"equation": text[name], "off": by} for name, by in off.items()],
        # how the first hidden value of the first token comes about
        act=part.activation,
        gated=gated,
        u_0=float(u_NM[0, 0]),
        v_0=float(v_NM[0, 0]),
        h_0=float(seen[0][0, 0]),
        acted=acted,
        doubled=stated == "SwiGLU",
        swish_fits="Swish" in fits,
    )


FORMS: dict[str, tuple[str, str, float, Callable[[Tensor], Tensor]]] = {
    "relu": ("max(0, x)", "relu", 1.0, lambda x: (x + x.abs()) / 2),
    "silu": ("x·σ(x)", "silu", 1.0, swish),
    "swish": ("x·σ(1.702·x)", "silu", 1.702, lambda x: swish(x, 1.702)),
    "half": ("x·σ(0.5·x)", "silu", 0.5, lambda x: swish(x, 0.5)),
}


def _grid() -> Tensor:
    return torch.arange(-6000, 6001, dtype=torch.float64) / 1000


def activation_forms(claim: Claim) -> Finding:
    """Judge whether activations of the modules are their formulas. Options: `forms`."""
    x = _grid()
    chosen = [FORMS[one] for one in claim.options["forms"]]
    off = [unequal(activate(x, name, beta), form(x)) for _, name, beta, form in chosen]
    forms = [
        {
            "formula": text,
            "activation": name if name != "silu" else f"silu, β = {beta:g}",
            "off": by,
            "values": [
                {"x": at, "y": float(activate(torch.tensor(at).double(), name, beta))}
                for at in (-2.0, 0.5, 2.0)
            ],
        }
        for (text, name, beta, _), by in zip(chosen, off, strict=True)
    ]
    return found(
        [bool(forms) and all(by < ROUNDING for by in off)],
        forms=forms,
        first=forms[0]["values"] if forms else [],
        most=max(off, default=0.0),
        is_silu=unequal(activate(x, "silu", 1.0), nn.functional.silu(x)) == 0,
        beta=any(beta != 1.0 for _, _, beta, _ in chosen),
    )


def gelu_forms(claim: Claim) -> Finding:
    """Judge whether GELU is x·Φ(x), and its tanh form near but not equal."""
    x = _grid()
    exact, near = activate(x, "gelu", 1.0), activate(x, "gelu_tanh", 1.0)
    off, gap = largest(exact - gelu(x)), (near - exact).abs()
    return found(
        [off < ROUNDING and 0 < largest(gap) < 1e-3],
        off=off,
        gap=largest(gap),
        widest=float(x[gap.argmax()]),
        widest_abs=abs(float(x[gap.argmax()])),
        exact_1=float(exact[7000]),
        near_1=float(near[7000]),
    )


# Positions, and which tokens an output depends on.


def position_params(claim: Claim) -> Finding:
    """Judge whether a kind of position adds no parameters. Options: `position`."""
    counts = {}
    for kind in ("none", "alibi", "rope", "sinusoidal", "learned"):
        sizes = {"d_ff": 16, "position": kind, "n_positions": 50 if kind == "learned" else None}
        counts[kind] = measure_params(build(small("llama-7b", **HEADS, **sizes))).params
    added = {kind: n - counts["none"] for kind, n in counts.items()}
    own = claim.options["position"]
    return found(
        [added[own] == 0],
        without=counts["none"],
        with_them=counts[own],
        added=added[own],
        kinds=[{"kind": kind, "n": n, "more": f"{added[kind]:+,}"} for kind, n in counts.items()],
        **added,
    )


def rope_shift(claim: Claim) -> Finding:
    """Judge whether scores of rotated vectors stay when both positions move equally far."""
    head_dim, shifts = 16, (0, 1, 10, 1000, 100_000)
    q, k = normal(1, 1, 1, head_dim), normal(1, 1, 1, head_dim, seed=1)
    scores = {
        distance: [rotated_score(q, k, j + distance, j) for j in shifts] for distance in (0, 3, 7)
    }
    spread = max(max(each) - min(each) for each in scores.values())
    means = [each[0] for each in scores.values()]
    between = max(means) - min(means)
    single = [rotated_score(q.float(), k.float(), j + 3, j) for j in shifts]
    coarse = max(single) - min(single)
    return found(
        # angles of up to 100,000 have an absolute rounding error of 1e-11 in float64
        [spread < 1e-9 and between > 1e-3],
        farthest=max(shifts),
        spread=spread,
        between=between,
        width=head_dim,
        shifts=", ".join(f"{j:,}" for j in shifts),
        distances=[
            {"distance": distance, "scores": ", ".join(f"{s:.9f}" for s in each)}
            for distance, each in scores.items()
        ],
        single=", ".join(f"{s:.6f}" for s in single),
        coarse=f"{coarse:.0e}",
        grows=coarse > spread,
    )


def sinusoids(claim: Claim) -> Finding:
    """Judge whether the table of positions is sin and cos of pos/10000^(2i/d).

    Options: `style` of the table.
    """
    d, positions = 16, (0, 1, 2, 50, 1000)
    at, half = torch.tensor(positions), torch.arange(d // 2, dtype=torch.float64)
    stated = torch.tensor(sinusoid_by_hand(positions, d), dtype=torch.float64)
    tables = {style: sinusoid(at, d, style=style) for style in ("alternating", "halves")}
    off = {style: unequal(table, stated) for style, table in tables.items()}
    # the same waves, all sines before all cosines; and those of the other style, by its formula
    moved_ = unequal(tables["halves"], torch.cat((stated[:, 0::2], stated[:, 1::2]), dim=-1))
    angles = at[:, None] / 10000 ** (half / (d // 2 - 1))
    own = unequal(tables["halves"], torch.cat((angles.sin(), angles.cos()), dim=-1))
    by = off[claim.options["style"]]
    return found(
        [by < ROUNDING],  # sin of 1,000 radians has a rounding error of 1e-13 in float64
        n=len(positions),
        farthest=positions[-1],
        d=d,
        by=by,
        rows=[
            {"p": p, "values": ", ".join(f"{v:.6f}" for v in row[:4])}
            for p, row in zip(positions, tables["alternating"].tolist(), strict=True)
        ],
        off=off,
        own=own,
        halves_differ=moved_ > ROUNDING,
        halves_own=own < ROUNDING,
        moved=f"{moved_:.2g}",
    )


N_PLACES = 5
REACHES: dict[str, Callable[[int], set[int]]] = {
    "itself": lambda t: {t},
    "itself and later": lambda t: set(range(t, N_PLACES)),
}


def reach(claim: Claim) -> Finding:
    """Judge whether a changed token changes these outputs and no others.

    Options: `of`, `reaches`.
    """
    before_SD, other_SD = normal(N_PLACES, 24), normal(N_PLACES, 24, seed=1)
    changed: dict[str, list[set[int]]] = {}
    least: dict[str, float] = {}
    for name, run in reaching().items():
        moves = [moved(run, before_SD, other_SD, t).tolist() for t in range(N_PLACES)]
        changed[name] = [{s for s, by in enumerate(move) if by > ROUNDING} for move in moves]
        least[name] = max([by for move in moves for by in move if by <= ROUNDING] or [0.0])
    fits = {
        name: [r for r, of in REACHES.items() if sets == [of(t) for t in range(N_PLACES)]]
        for name, sets in changed.items()
    }
    own = claim.options["of"]
    stated = REACHES[claim.options["reaches"]]
    return found(
        [changed[own] == [stated(t) for t in range(N_PLACES)]],
        n=N_PLACES,
        least=least[own],
        does=(fits[own] or ["others"])[0],
        runs=[
            {
                "part": name,
                "moves": [
                    {"t": t, "outputs": ", ".join(map(str, sorted(each)))}
                    for t, each in enumerate(sets)
                ],
            }
            for name, sets in changed.items()
        ],
        causal_later=fits["causal"] == ["itself and later"],
        open_all=changed["open"] == [set(range(N_PLACES))] * N_PLACES,
    )
