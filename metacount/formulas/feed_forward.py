"""Feed-forward blocks, plain and gated; mixtures with their routers and shared experts."""

from __future__ import annotations

from metacount.formulas.attention import RMS, adapted
from metacount.formulas.dim import Dim, chunk
from metacount.formulas.tape import COLUMNS, FLAG, INDEX, ROWS, Store, Tape, Tensor
from metacount.spec.ffn import FeedForward, Mixture

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from fractions import Fraction


def feed_forward(
    t: Tape,
    part: FeedForward,
    x: Tensor,
    width: Dim,
    *,
    name: str = "mlp",
    role: str = "ffn",
    adapter_rank: Dim | None = None,
) -> Tensor:
    """Map x through a hidden width m: down(act(up(x))), or gated down(act(gate(x)) · up(x)).

    gate, where it is gated, and up [m, d], down [d, m], a bias of as many values as rows. With
    `adapter_rank` one adapter adds to gate and up together (Zamba2).

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2; Shazeer 2020, arXiv:2002.05202, eq. 6;
    their d_ff is our m.
    """
    t.role, d_model = role, x.columns
    x = t.sum_gradients(x)
    if not part.gated:
        up = t.linear(x, f"{name}.up_proj", width, bias=part.bias, cut=COLUMNS)
        up = adapted(t, up, x, "up", adapter_rank)
        t.role = role
        if part.activation == "xielu":
            hidden = xielu(t, up, name)
        else:
            hidden = t.activation(up, part.activation, part.swish_beta)
    else:
        gate = t.linear(x, f"{name}.gate_proj", width, bias=part.bias, cut=COLUMNS)
        up = t.linear(x, f"{name}.up_proj", width, bias=part.bias, cut=COLUMNS)
        if adapter_rank is not None:
            both = t.record("cat", t.like(gate, columns=2 * width, grad=gate.grad or up.grad))
            both = adapted(t, both, x, "gate_up", adapter_rank)
            gate, up = t.part(both, width), t.part(both, width)
        hidden = gated(t, t.scale(gate, part.gate_scale), up, part)
    y = t.linear(hidden, f"{name}.down_proj", d_model, bias=part.bias, cut=ROWS)
    return t.scale(t.sum_over_ranks(y), part.scale)


def xielu(t: Tape, x: Tensor, name: str) -> Tensor:
    """Compute α_p·x² where x > 0, else α_n·(e^x - 1 - x), and add x/2; both α are learned [1].

    Source: Huang and Schlag 2024, arXiv:2411.13010, eq. 22; each α is a softplus, α_n's plus 1/2.
    """
    slopes = []
    for sign in "pn":
        x = t.sum_gradients(x, 1)  # each rank has a part of the columns
        trained = t.weight(f"{name}.act_fn.alpha_{sign}", 1)
        slopes.append(Tensor(Store(1, 1, x.store.width), 1, x.word, trained))
    rises, falls = (t.record("softplus", slope) for slope in slopes)
    above = t.mul(t.from_argument(x, "square"), rises)
    below = t.from_result(t.from_argument(x, "clamp"), "expm1")
    below = t.mul(t.record("subtract", t.like(below)), falls)
    is_above = t.constant(x.rows, x.columns, width=FLAG)
    grad = above.grad or below.grad
    return t.record("where", t.like(x, grad=grad), [(is_above, grad)])


def gated(t: Tape, gate: Tensor, up: Tensor, part: FeedForward) -> Tensor:
    """Multiply act(gate) with up; gpt-oss clamps both halves and multiplies with up + 1.

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6; gpt-oss's released code (clamped).
    """
    if part.activation == "clamped_swiglu":
        gate, up = t.from_argument(gate, "clamp"), t.from_argument(up, "clamp")
        swish = t.mul(gate, t.from_result(gate, "sigmoid"))
        return t.mul(swish, t.record("add", t.like(up)))
    if part.limit is not None:
        gate, up = t.from_argument(gate, "clamp"), t.from_argument(up, "clamp")
    return t.mul(t.activation(gate, part.activation, part.swish_beta), up)


def mixture(
    t: Tape,
    part: Mixture,
    like: FeedForward,
    x: Tensor,
    *,
    name: str = "mlp",
    stream: Tensor | None = None,
) -> Tensor:
    """A router, E experts of which k see a token, and shared experts for all.

    router [E + E_z, d]; of each expert gate and up in one [2·m_e, d], or up [m_e, d], and
    down [d, m_e]; the shared experts are one feed-forward of width E_s·m_s, perhaps behind a gate
    [1, d]. Zero experts have a row of the router and no matrix; with `rows` the first matrix of
    each is stored, and never read. `like` says the form of every feed-forward. In a latent of r_x
    values the matrices of routed experts have r_x for d: down to it [r_x, d], back [d, r_x].

    A scaled router reads the `stream`, has d numbers for it and one for each expert (Gemma 4).

    What is saved is the same for every routing, as each token has k rows. With zero experts it is
    of k that compute, the most that can.

    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1 and 4 (their W_g is the router);
    DeepSeekMoE, arXiv:2401.06066, eq. 9, their K_s is our E_s; LongCat-Flash, arXiv:2509.01322,
    eq. 1 (zero experts); the gate on shared experts is Qwen1.5-MoE's, the latent Nemotron 3's.
    """
    t.role, n, d_model, rank = "moe", x.rows, x.columns, t.run.rank
    weights = route(t, part, x if stream is None else stream, name)
    hidden, latent = x, part.latent
    if latent is not None:
        x = t.linear(x, f"{name}.fc1_latent_proj", latent, bias=like.bias)
    width = x.columns
    apart = rank.ep != 1  # whole experts on ranks of their own
    padded = rank.tp * -(-n // rank.tp) if apart else n
    if apart:
        t.gather_gradient(weights, padded * part.top_k, "choice")
        t.gather_gradient(x, padded * width)
    else:
        t.sum_gradients(weights, n * part.top_k, "router")
        t.sum_gradients(x)
    rows = part.top_k * (chunk(n, rank.tp, rank.tp_index) if apart else n)
    token, order = t.constant(rows, width=INDEX), t.constant(rows, width=INDEX)
    weight = t.narrow(t.index(weights, order, Tensor(Store(rows, 1, t.run.wide), 1, x.word, False)))
    read = Tensor(Store(rows, width, t.run.value), width, x.word, False)
    read = t.index(x, token, read)
    if part.router_scales_input:
        read = t.mul(read, weight)
    y = (experts_elsewhere if apart else experts)(t, part, like, read, name)
    if not part.router_scales_input:
        y = t.mul(y, weight)
    out = Tensor(Store(n, width, t.run.value), width, x.word, y.grad)
    out = t.record("index_add", out, [(token, y.grad), (y, y.grad)])
    if apart:
        out = t.gather_parts(out, padded * width, backward=False)
    else:
        out = t.sum_over_ranks(out)
    if latent is not None:
        out = t.linear(out, f"{name}.fc2_latent_proj", d_model, bias=like.bias)
    shared = part.shared
    if shared is None:
        return out
    width = shared.n_experts * (part.d_ff if shared.d_ff is None else shared.d_ff)
    always = feed_forward(t, like, hidden, width, name=f"{name}.shared_experts", role="moe")
    if shared.gate:
        gate = t.from_result(t.linear(hidden, f"{name}.shared_expert_gate", 1), "sigmoid")
        always = t.mul(always, gate)
    return t.add(out, always)


def route(t: Tape, part: Mixture, x: Tensor, name: str) -> Tensor:
    """Score every expert in float32 at least, choose k of each token, give their weights [n, k].

    The choice has no gradient, the weights have. Renormed, they are divided by their sum.

    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 4; Mixtral, arXiv:2401.04088, sec. 2.1
    (topk_softmax); DeepSeek-V3, arXiv:2412.19437, eq. 13 to 16 (sigmoid); Liu et al. 2024,
    arXiv:2409.12136 (SparseMixer: one expert after another, each by a softmax of those in reach);
    DeepSeek-V4 in transformers 5.23 (sqrtsoftplus, a table's choice).
    """
    if part.scaled_router:
        x = t.norm(x, "", RMS, affine=False)
        trained = t.weight(f"{name}.gate.scale", x.columns)
        x = t.record("weigh", t.like(x, grad=x.grad or trained), [(x, trained)])
        x = t.record("scale", t.like(x))
    logits = t.widen(t.linear(x, f"{name}.gate.proj", part.n_scores, bias=part.router_bias))
    k, rows = part.top_k, x.rows
    if part.bias_is_param:
        t.without_gradients().weight(f"{name}.gate.e_score_correction_bias", part.n_scores)
    weights = Tensor(Store(rows, k, t.run.wide), k, x.word, logits.grad)
    if part.mixer_jitter is not None:
        # the k choices one after another, each as large: here they are one
        every = rows * k
        far = t.constant(every, part.n_scores, width=FLAG)
        scores = Tensor(Store(every, part.n_scores, t.run.wide), part.n_scores, x.word, logits.grad)
        left = t.record("mask", scores, [(far, logits.grad)])
        softmax = t.from_result(left, "softmax")
        expert = t.constant(every, width=INDEX)
        t.gather(softmax, expert, Tensor(Store(every, 1, t.run.wide), 1, x.word, logits.grad))
        return t.record("cat", weights)
    chosen = t.constant(rows, k, width=INDEX)
    if part.router == "topk_softmax":
        return t.from_result(t.gather(logits, chosen, weights), "softmax")
    if part.router == "sqrtsoftplus_renorm":
        scores = t.from_result(t.from_argument(logits, "softplus"), "sqrt")
    else:
        kind = "sigmoid" if part.router.startswith("sigmoid") else "softmax"
        scores = t.from_result(logits, kind)
    weights = t.gather(scores, chosen, weights)
    if part.router.endswith("renorm"):
        total = t.constant(rows)
        weights = t.record(
            "divide", t.like(weights), [(weights, weights.grad), (total, weights.grad)]
        )
    if part.scaled_router:
        trained = t.weight(f"{name}.gate.per_expert_scale", part.n_scores)
        own = t.record(
            "index", t.make(rows, k, grad=trained, width=t.run.value), [(chosen, trained)]
        )
        weights = t.mul(weights, own)
    return weights


def experts(t: Tape, part: Mixture, like: FeedForward, x: Tensor, name: str) -> Tensor:
    """Run each row through its expert; gate and up are halves of one tensor, as they are stored."""
    first = "gate_up_proj" if like.gated else "up_proj"
    expert = t.constant(x.rows, width=INDEX)  # of each row, by which it reads its biases
    n_first = part.n_scores if part.zero is not None and part.zero.rows else part.n_experts
    width = (2 if like.gated else 1) * part.d_ff
    hidden = _of_experts(t, part, x, f"{name}.experts.{first}", width, n_first, expert)
    if like.gated:
        hidden = gated(t, t.part(hidden, part.d_ff), t.part(hidden, part.d_ff), like)
    else:
        hidden = t.activation(hidden, like.activation, like.swish_beta)
    down = f"{name}.experts.down_proj"
    return _of_experts(t, part, hidden, down, x.columns, part.n_experts, expert)


def experts_elsewhere(t: Tape, part: Mixture, like: FeedForward, x: Tensor, name: str) -> Tensor:
    """Send each row to the rank that has its expert, and back.

    A rank runs its own experts over the rows that come, as many as went, with weights of one.

    Source: Lepikhin et al. 2020, arXiv:2006.16668, sec. 3.1; Singh et al. 2023, arXiv:2303.06318,
    sec. 4 (tokens that several ranks have are sent once).
    """
    t.send_counts(x, part.n_experts)
    came = t.exchange_rows(x)
    order = t.constant(x.rows, width=INDEX)
    ones = Tensor(t.constant(x.rows, width=t.run.value), 1, x.word, False)
    read = t.index(came, order, t.like(came))
    if part.router_scales_input:
        read = t.mul(read, ones)
    y = experts(t, part, like, read, name)
    if not part.router_scales_input:
        y = t.mul(y, ones)
    y = t.record("index_add", t.like(y), [(order, y.grad), (y, y.grad)])
    return t.exchange_rows(y)


def _of_experts(
    t: Tape, part: Mixture, x: Tensor, name: str, out: Dim, n: Dim, expert: Store
) -> Tensor:
    k = part.top_k
    cut, halves = (ROWS, 1) if name.endswith("down_proj") else (COLUMNS, 1 + ("gate_up" in name))
    trained = t.weight(name, out, x.columns, rows=x.word, times=n, used=k, cut=cut, halves=halves)
    y = t.by_weight(x, name, out, trained)
    if not part.bias:
        return y
    biased = t.weight(f"{name}_bias", out, times=n, used=k, cut=COLUMNS)
    return t.record("add", t.like(y, grad=y.grad or biased), [(expert, biased)])


def gated_d_ff(d_model: int, *, multiplier: Fraction | None = None, multiple_of: int) -> int:
    """Compute LLaMA's width of a gated feed-forward block.

    A gated block has three matrices for a plain block's two, so 2/3 of the plain width 4·d keeps
    the parameters; then the optional multiplier, cut to an int; then up to the next multiple.

    Returns: d_ff. Ints only: rounding has no closed form worth reading.
    Source: Touvron et al. 2023, arXiv:2302.13971, sec. 2.2; the order of the roundings is that of
    `FeedForward.__init__` in Meta's llama and llama3 `model.py`. They multiply by a float
    (`ffn_dim_multiplier`), here it is an exact fraction.

    >>> gated_d_ff(4096, multiple_of=256)  # LLaMA-7B
    11008
    >>> from fractions import Fraction
    >>> gated_d_ff(8192, multiplier=Fraction("1.3"), multiple_of=4096)  # Llama-2-70B
    28672
    """
    hidden = 2 * (4 * d_model) // 3
    if multiplier is not None:
        if isinstance(multiplier, float):
            raise TypeError(f"multiplier must be exact: got {multiplier}; give a Fraction")
        hidden = multiplier.numerator * hidden // multiplier.denominator
    return -(-hidden // multiple_of) * multiple_of  # -(-a // b) is a / b rounded up
