"""The gradients of one block, followed through its forward: its branches, norms and experts."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.forward import Pass, dense_of
from metacount.formulas.kept import ffn_kept, norm_kept
from metacount.formulas.kept_model import repeated
from metacount.formulas.kept_moe import moe_kept
from metacount.formulas.named import ATTENTION, CROSS, FFN, norms_of_block
from metacount.formulas.wires import Step, Wires
from metacount.formulas.wires_attention import INPUT, MEMORY, Given, attend, attend_across
from metacount.spec import ModelSpec
from metacount.spec.ffn import FeedForward
from metacount.spec.moe import Mixture


def follow_block(
    wires: Wires, spec: ModelSpec, run: Pass, n: Dim, index: int, given: Given, *, cross: bool
) -> tuple[bool, bool]:
    """Run one block; say whether its result has a gradient, and whether it keeps the memory.

    Source: `kept_model.block_terms`, of which each term is kept where a gradient needs it.
    """
    if spec.last_stack.norms.placement.startswith("parallel"):
        return _parallel(wires, spec, run, n, index, given), False
    tokens, x, of_memory = run.batch_size * n, given.x, False
    for branch, (before, after) in norms_of_block(spec, index, cross=cross).items():
        read = wires.norm(before, "norm", x, tokens, spec.d_model) if before else x
        inside = Given(x=read, bias=given.bias, memory=given.memory)
        y, gradients = _branch(wires, spec, run, n, index, inside, branch)
        _keep_input(wires, tokens * spec.d_model, gradients)
        of_memory = of_memory or MEMORY in gradients
        # a branch has a gradient wherever what it reads has one
        x = wires.norm(after, "norm", y, tokens, spec.d_model) if after else y
    return x, of_memory


def _parallel(wires: Wires, spec: ModelSpec, run: Pass, n: Dim, index: int, given: Given) -> bool:
    """Run a block whose branches read one x, by one norm or by two."""
    (first, _), (second, _) = norms_of_block(spec, index, cross=False).values()
    tokens, d, x = run.batch_size * n, spec.d_model, given.x
    read = wires.norm(first, "norm", x, tokens, d)
    read_second = wires.norm(second, "norm", x, tokens, d) if second else read
    norms = spec.last_stack.norms
    if second and x and not wires.widths.copies and norms.kind == "rmsnorm":
        # both norms keep the same x
        wires.kept.append(repeated(norm_kept("norm", tokens, d, norms, wires.widths)[0], -1))
    found: list[tuple[bool, set[str]]] = []
    for branch, flows in ((ATTENTION, read), (FFN, read_second)):
        inside = Given(x=flows, bias=given.bias, memory=False)
        found.append(_branch(wires, spec, run, n, index, inside, branch))
    (y, gradients), (z, others) = found
    for some in (gradients, others) if second else (gradients | others,):
        _keep_input(wires, tokens * d, some)
    return y or z


def _keep_input(wires: Wires, values: Dim, gradients: set[str]) -> None:
    """Keep what a branch reads where a matrix that reads it is trained."""
    wires.keep([wires.activation("other", "input of a branch", values, INPUT)], gradients)


def _branch(
    wires: Wires, spec: ModelSpec, run: Pass, n: Dim, index: int, given: Given, branch: str
) -> tuple[bool, set[str]]:
    """Run one branch; say whether its result has a gradient, and name what needs tensors of it."""
    if branch == ATTENTION:
        return attend(wires, spec, run, n, given, index)
    if branch == CROSS:
        return attend_across(wires, spec, run, n, given)
    tokens, dense, gradients = run.batch_size * n, dense_of(spec), set[str]()
    mixture = spec.last_stack.mixture
    if spec.is_moe_layer(index):
        assert mixture is not None
        y = _experts(wires, tokens, mixture, dense, given.x, gradients)
        terms = moe_kept(tokens, spec.d_model, mixture, dense, wires.widths)
    else:
        assert dense.d_ff is not None  # a block without experts has it
        y = _feed_forward(wires, FFN, tokens, dense, given.x, gradients)
        terms = ffn_kept(tokens, dense.d_ff, dense, wires.widths)
    wires.keep(terms, gradients)
    return y, gradients


def _feed_forward(
    wires: Wires,
    name: str,
    tokens: Dim,
    part: FeedForward,
    x: bool,
    gradients: set[str],
    of: str = "",
) -> bool:
    """Run a feed-forward; the names of its gradients begin with `of`."""
    halves = ("gate", "up") if part.gated else ("up",)
    hidden = False
    for half in halves:
        if wires.linear(f"{name}.{half}_proj", x, tokens, INPUT, gradients):
            gradients.add(f"{of}{half}")
            hidden = True
    return wires.linear(f"{name}.down_proj", hidden, tokens, f"{of}down", gradients)


def _experts(
    wires: Wires, tokens: Dim, part: Mixture, like: FeedForward, x: bool, gradients: set[str]
) -> bool:
    """Run a router, the experts' rows and the shared experts."""
    rows, experts = tokens * part.top_k, "mlp.experts"
    router = wires.linear("mlp.gate.proj", x, tokens, INPUT, gradients)
    first = "gate_up_proj" if like.gated else "up_proj"
    biases = [f"{experts}.{name}_bias" in wires.trained for name in (first, "down_proj")]
    read = x or (router and part.router_scales_input)
    hidden = wires.product(f"{experts}.{first}", read, rows, "experts up_proj", gradients)
    hidden = hidden or biases[0]
    result = wires.product(f"{experts}.down_proj", hidden, rows, "experts down", gradients)
    result = result or biases[1]
    weighed = result or router
    wires.steps.append(Step(role="moe", needs=weighed))
    flows = {
        "x": x,
        "router": router,
        "experts gate": hidden,
        "experts up": hidden,
        "experts result": result,
        "experts weighed": weighed,
        "experts biases": any(biases),
    }
    shared = gate = False
    if part.shared is not None:
        name = "mlp.shared_experts"
        shared = _feed_forward(wires, name, tokens, like, x, gradients, of="shared ")
        if part.shared.gate:
            gate = wires.linear("mlp.shared_expert_gate", x, tokens, INPUT, gradients)
            wires.steps.append(Step(role="moe", needs=shared or gate))
        flows |= {"shared result": shared, "gate of the shared": gate}
    gradients.update(name for name, has in flows.items() if has)
    return weighed or shared or gate
