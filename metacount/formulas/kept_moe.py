"""What a backward keeps of a layer of experts: the router, the experts' rows, the shared ones."""

from __future__ import annotations

from metacount.formulas.dim import Dim, when
from metacount.formulas.forward import FLAG, INDEX, Kept, Widths
from metacount.formulas.kept import ffn_kept, hidden_gradients
from metacount.spec.ffn import FeedForward
from metacount.spec.moe import Mixture

ROUTER, SHARED_GATE = ("router",), ("gate of the shared",)


def router_kept(n_tokens: Dim, part: Mixture, widths: Widths) -> list[Kept]:
    """Count what one router keeps: scores of every expert, the choice, and the weights.

    softmax, sigmoid: the scores [n, E + E_z] and the k chosen indices
    topk_softmax: the logits [n, E], the indices, the softmax over k
    renorm: also the k weights and their sum
    SparseMixer, for each of k: a softmax [n, E], a mask [n, E] and an index

    Returns: terms, exact; w bytes a score (4, in float64 8), 8 an index.
    Source: the routers' sources, see the reference module; torch's derivatives.
    Not counted: the choice itself, which has no gradient; the router's input, named elsewhere.

    >>> from metacount.formulas.kept import bytes_of
    >>> mixture = Mixture(n_experts=8, top_k=2, d_ff=14336, router="topk_softmax")
    >>> bytes_of(router_kept(2048, mixture, Widths(value=2)))  # Mixtral 8x7B, 2048 tokens
    114688
    """
    n_scores, k, wide = n_tokens * part.n_scores, part.top_k, widths.wide

    def term(name: str, values: Dim, width: int, times: Dim = 1) -> Kept:
        return Kept(
            role="moe",
            name=f"router: {name}",
            values=values,
            width=width,
            times=times,
            gradients=ROUTER,
        )

    if part.mixer_jitter is not None:
        return [
            term("scores", n_scores, wide, k),
            term("out of reach", n_scores, FLAG, k),
            term("chosen", n_tokens, INDEX, k),
        ]
    kept = [term("scores", n_scores, wide), term("chosen", n_tokens * k, INDEX)]
    if part.router == "topk_softmax" or part.router.endswith("renorm"):
        kept.append(term("weights", n_tokens * k, wide))
    if part.router.endswith("renorm"):
        kept.append(term("sum of weights", n_tokens, wide))
    return kept


def moe_kept(
    n_tokens: Dim, d_model: Dim, part: Mixture, like: FeedForward, widths: Widths
) -> list[Kept]:
    """Count what one layer of experts keeps behind its input.

    the router's; rows R = n·k: two indices of each (three with expert biases), its input [R, d],
    its weight, its hidden tensors, its output [R, d], which the weight multiplies (where the
    weight multiplies the input instead: that input once more), and what is summed [R, d]
    + the shared experts, a feed-forward of width E_s·m_s (+ n·(d + 1) with a gate)

    Returns: terms, exact; the same for every routing, as each token has k rows. With zero experts
    it is of k that compute.
    Source: `router_kept`, `hidden_gradients`; Shazeer et al. 2017, arXiv:1701.06538, eq. 1.
    Not counted: a capacity's padding; a kernel of grouped products keeps the same.

    >>> from metacount.formulas.kept import bytes_of
    >>> mixture = Mixture(n_experts=8, top_k=2, d_ff=14336, router="topk_softmax")
    >>> silu = FeedForward(activation="silu", gated=True)
    >>> bytes_of(moe_kept(2048, 4096, mixture, silu, Widths(value=2)))  # Mixtral 8x7B
    570613760
    """
    kept = router_kept(n_tokens, part, widths)
    kept += rows_kept(n_tokens * part.top_k, d_model, part, like, widths)
    shared, value = part.shared, widths.value
    if shared is not None:
        width = shared.n_experts * (part.d_ff if shared.d_ff is None else shared.d_ff)
        kept += ffn_kept(n_tokens, width, like, widths, role="moe", of="shared ")
        for values, gradients in (
            (n_tokens, (*SHARED_GATE, "shared result")),  # its sigmoid, and what it multiplies
            (n_tokens * d_model, SHARED_GATE),
        ):
            kept.append(
                Kept(
                    role="moe",
                    name="shared experts: gate",
                    values=when(shared.gate, values),
                    width=value,
                    gradients=gradients,
                )
            )
    return kept


def rows_kept(
    rows: Dim, d_model: Dim, part: Mixture, like: FeedForward, widths: Widths, *, sent: bool = False
) -> list[Kept]:
    """Count what the experts keep of `rows`, each a token for one of its experts.

    `sent`: to other ranks and back, where the experts are. Then a row's index, its weight and
    [R, d] of it are kept once more, where it came from.

    Returns: terms, exact; with `sent`, where as many rows come as went.
    Source: Lepikhin et al. 2020, arXiv:2006.16668, sec. 3.1 (rows sent); `hidden_gradients`.

    >>> from metacount.formulas.kept import bytes_of
    >>> mixture = Mixture(n_experts=8, top_k=2, d_ff=14336, router="topk_softmax")
    >>> silu = FeedForward(activation="silu", gated=True)
    >>> bytes_of(rows_kept(4096, 4096, mixture, silu, Widths(value=2)))  # Mixtral 8x7B
    570499072
    """
    value = widths.value

    def term(name: str, values: Dim, width: int, *gradients: str, times: Dim = 1) -> Kept:
        return Kept(
            role="moe",
            name=f"experts: {name}",
            values=values,
            width=width,
            times=times,
            gradients=gradients,
        )

    # a weight is kept for the gradient of what it multiplies: the input, or the output
    weighed = "x" if part.router_scales_input else "experts result"
    return [
        term("rows", rows, INDEX, "experts weighed"),
        term("order of the rows", rows, INDEX, *ROUTER, times=1 + sent),
        term("rows of the biases", rows, INDEX, "experts biases", times=when(part.bias, 1)),
        term("input", rows * d_model, value, "experts up_proj"),
        *(
            term("hidden", rows * part.d_ff, value, *gradients)
            for gradients in hidden_gradients(like, fused=True, of="experts ")
        ),
        term("weight", rows, value, weighed, times=1 + sent),
        term("weighed", rows * d_model, value, *ROUTER, times=1 + sent),
        term("summed", rows * d_model, value, "experts weighed"),
    ]
