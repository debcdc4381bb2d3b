"""Mixtures of experts: one followed by hand, who learns, what is stored and what is used."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from metacount.formulas import model, sublayers
from metacount.lessons.answers import closed
from metacount.lessons.executed import mixture
from metacount.lessons.here import matrix, rows, vector
from metacount.lessons.page import Exercise
from metacount.spec import DTYPE_BYTES
from metacount.spec.stack import BESIDE
from metacount.teaching.parts import models
from metacount.units import short

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.lessons.here import Here, Rows, Values
    from metacount.spec import ModelSpec

SUCH_AS = ("mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-20b", "switch-base-8")
NEEDS = "a model with experts in the place of a feed-forward"


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model is a mixture whose dense twin has a feed-forward
    in place of its experts.
    """
    return bool(spec.is_moe and BESIDE not in spec.ffn_pattern and not spec.n_zero_experts)


def expert(spec: ModelSpec) -> int:
    """Count the parameters of one routed expert."""
    return int(
        sublayers.ffn_params(
            spec.d_model, spec.d_ff_expert, gated=spec.gated, bias=spec.expert_bias
        )
    )


def layer(spec: ModelSpec, *, active: bool) -> int:
    """Count the parameters of one mixture, all or those of one token."""
    from metacount.formulas.sublayers import moe_layer_params

    return int(moe_layer_params(spec, active=active))


def dense_twin(spec: ModelSpec) -> ModelSpec:
    """Return the model with one dense feed-forward, as wide as an expert,
    in place of every mixture.
    """
    flat = spec.to_dict()
    from metacount.spec import FIELDS

    for name in EXPERT_FIELDS:
        flat[name] = FIELDS[name].absent
    flat["ffn_pattern"] = spec.ffn_pattern.replace("E", "F")
    return type(spec).from_dict({**flat, "d_ff": spec.d_ff_expert})


EXPERT_FIELDS = (
    "n_experts",
    "top_k",
    "d_ff_expert",
    "n_dense_layers",
    "moe_every",
    "moe_offset",
    "n_shared_experts",
    "d_ff_shared",
    "shared_expert_gate",
    "router",
    "router_bias",
    "selection_bias",
    "n_groups",
    "top_groups",
    "group_score",
    "routed_scale",
    "mixer_jitter",
    "router_scales_input",
    "expert_bias",
)


def parts(here: Here) -> Rows:
    """Count what one mixture of the model stores, and what a token uses of it."""
    spec = here.spec
    router = sublayers.router_params(spec.d_model, spec.n_experts, bias=spec.router_bias)
    one = expert(spec)
    experts = (spec.n_experts * one, spec.top_k * one)
    shared = layer(spec, active=False) - router - experts[0]
    found = [
        ("router and bias" if spec.router_bias else "router", router, router),
        ("experts", *experts),
        ("shared", shared, shared),
    ]
    lines = [(here.say(f"moe {name}"), a, b) for name, a, b in found if a]
    whole = layer(spec, active=False), layer(spec, active=True)
    return rows([*lines, (here.say("moe layer"), *whole)])


ORDERS = {
    "softmax": "softmax, top-k",
    "softmax_renorm": "softmax, top-k, α/Σα",
    "topk_softmax": "top-k, softmax",
    "sigmoid": "σ, top-k",
    "sigmoid_renorm": "σ, top-k, α/Σα",
}


def shapes(here: Here) -> Rows:
    """List what becomes of one token, step by step."""
    spec = here.spec
    b_1, b_2, b_3 = (" + b₁", " + b₂", " + b₃") if spec.expert_bias else ("", "", "")
    x = "α_e·x" if spec.router_scales_input else "x"
    up = f"W₃·{x}{b_3}" + (" + 1" if spec.activation == "clamped_swiglu" else "")
    hidden = f"act(W₁·{x}{b_1})"
    if spec.gated:
        hidden += f" ⊙ ({up})" if "+" in up else f" ⊙ {up}"
    order = ORDERS[spec.router] if spec.mixer_jitter is None else "SparseMixer(z)"
    if spec.selection_bias:
        order = order.replace("top-k", "top-k(α + b)")
    if spec.routed_scale != 1.0:
        order += f", {spec.routed_scale:g}·α"
    return [
        ("x", "[d]", f"[{spec.d_model}]"),
        (f"z = W_r·x{' + b_r' if spec.router_bias else ''}", "[E]", f"[{spec.n_experts}]"),
        (f"α = {order}", "[k]", f"[{spec.top_k}]"),
        (f"h_e = {hidden}", "[k, m_e]", f"[{spec.top_k}, {spec.d_ff_expert}]"),
        (f"f_e = W₂·h_e{b_2}", "[k, d]", f"[{spec.top_k}, {spec.d_model}]"),
        (f"y = Σ {'f_e' if spec.router_scales_input else 'α_e·f_e'}", "[d]", f"[{spec.d_model}]"),
    ]


@cache
def catalog_rows() -> Rows:
    """List the mixtures of the catalog by size, without those of the Switch family."""
    found = [
        (
            model.params(spec),
            entry.id,
            spec.n_experts,
            spec.n_shared_experts,
            spec.top_k,
            spec.router,
            short(int(model.params(spec))),
            short(int(model.active_params(spec))),
        )
        for entry, spec in models()
        if spec.is_moe and not entry.id.startswith("switch")
    ]
    return rows(line[1:] for line in sorted(found))


def flops(spec: ModelSpec) -> int:
    """Count the FLOPs of one token in one mixture."""
    from metacount.formulas.sublayers import feed_forward_flops

    return int(feed_forward_flops(spec, n_tokens=1, moe=True)["moe"])


def _of_experts(name: str, weights: tuple[tuple[float, ...], ...]) -> str:
    numbered = zip("₁₂", weights, strict=True)
    return ",  ".join(f"{name}{index} = {vector(each)}" for index, each in numbered)


def _answer_active(here: Here) -> Exercise:
    return Exercise(formula=closed(here.spec, "active_params"), quantity="active_params")


def _bytes(count: int) -> int:
    return count * DTYPE_BYTES["bf16"]


VALUES: Values = {
    "router_kind": lambda here: here.spec.router,
    "shapes": shapes,
    "router_bias": lambda here: here.spec.router_bias,
    "scales_input": lambda here: here.spec.router_scales_input,
    "selection_bias": lambda here: here.spec.selection_bias,
    "groups": lambda here: here.spec.n_groups is not None,
    "n_groups": lambda here: here.spec.n_groups,
    "top_groups": lambda here: here.spec.top_groups,
    "sigmoid": lambda here: here.spec.router.startswith("sigmoid"),
    "W_r": lambda here: matrix(mixture.ROUTER),
    "U": lambda here: _of_experts("U", mixture.UP),
    "D": lambda here: _of_experts("D", mixture.DOWN),
    "forward": lambda here: mixture.followed(mixture.FORWARD),
    "backward": lambda here: mixture.followed(mixture.BACKWARD),
    "x": lambda here: vector(mixture.X),
    "t": lambda here: vector(mixture.TARGET),
    "n_small": lambda here: len(mixture.ROUTER),
    "who_learns": lambda here: mixture.who_learns(),
    "several": lambda here: mixture.SEVERAL,
    "logits": lambda here: vector(mixture.LOGITS),
    "orders": lambda here: mixture.orders(),
    "even": lambda here: mixture.balance()["even"],
    "single": lambda here: mixture.balance()["single"],
    "below": lambda here: mixture.balance()["below"],
    "leaning": lambda here: ", ".join(f"({a:g}, {b:g})" for a, b in mixture.LEANING),
    "parts": parts,
    "expert": lambda here: expert(here.spec),
    "params": lambda here: model.params(here.spec),
    "active": lambda here: model.active_params(here.spec),
    "active_share": lambda here: Fraction(
        int(model.active_params(here.spec)), int(model.params(here.spec))
    ),
    "twin": lambda here: model.params(dense_twin(here.spec)),
    "twins": lambda here: here.spec.n_experts * int(model.params(dense_twin(here.spec))),
    "bytes": lambda here: _bytes(int(model.params(here.spec))),
    "active_bytes": lambda here: _bytes(int(model.active_params(here.spec))),
    "router_flops": lambda here: (
        2 * sublayers.router_params(here.spec.d_model, here.spec.n_experts)
    ),
    "flops_to_expert": lambda here: Fraction(
        flops(here.spec),
        int(
            sublayers.ffn_matmul_flops(
                1, here.spec.d_model, here.spec.d_ff_expert, gated=here.spec.gated
            )
        ),
    ),
    "shared": lambda here: here.spec.n_shared_experts > 0,
    "n_shared": lambda here: here.spec.n_shared_experts,
    "with_shared": lambda here: here.spec.n_experts + here.spec.n_shared_experts,
    "catalog": lambda here: catalog_rows(),
    "answer": _answer_active,
    "two": lambda here: 2,
}
