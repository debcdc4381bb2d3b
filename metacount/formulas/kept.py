"""What a backward keeps of norms, activations and feed-forwards: terms, each one storage.

A rule of autograd decides each: a product keeps both factors, a linear layer its input (and its
weight, a parameter, which is not counted), an activation its input or its result, a look-up its
indices; a sum, a reshape and a change of dtype keep nothing. What two operations keep in common
counts once. Norms, softmax and routing work in float32 at least, so below it they copy.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim
from metacount.formulas.forward import Kept, Widths
from metacount.frozen import frozen
from metacount.spec.ffn import FeedForward
from metacount.spec.norm import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable


def bytes_of(terms: Iterable[Kept]) -> Dim:
    """Sum the bytes of some terms.

    >>> bytes_of([Kept(role="norm", name="scale", values=2048, width=4, times=65)])
    532480
    """
    return sum(term.bytes for term in terms)


def norm_kept(
    name: str, n_rows: Dim, width: Dim, norms: Norms, widths: Widths, *, role: str = "norm"
) -> list[Kept]:
    """Count what one norm over `n_rows` rows of `width` values keeps for its backward.

    RMSNorm: x in float32, 1/rms of each row, and the normed x that meets the weight
    LayerNorm: x less its mean, 1/deviation of each row, and the normed x that meets the weight
    = w·(2·n·d + n)   without a weight w·(n·d + n)   (+ w·d where the weight is stored less 1)

    w is 4 bytes, 8 in float64.

    Returns: terms; their bytes are exact for a norm written out in float32.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4; Ba et al. 2016, arXiv:1607.06450,
    eq. 4; torch's derivatives of the product, the square and the reciprocal root.
    Not counted: the result, which the next matrix product keeps; a fused kernel keeps less.

    >>> bytes_of(norm_kept("norm", 2048, 4096, Norms(kind="rmsnorm"), Widths(value=2)))
    67117056
    """
    x = "x less its mean" if norms.kind == "layernorm" else "x"

    def term(what: str, values: Dim, needs: str) -> Kept:
        label, needed = f"{name}: {what}", (f"{name}: {needs}",)
        return Kept(role=role, name=label, values=values, width=widths.wide, gradients=needed)

    kept = [term(x, n_rows * width, "x"), term("scale", n_rows, "x")]
    if norms.affine:
        kept.append(term("normed", n_rows * width, "weight"))
    if norms.unit_offset:
        kept.append(term("1 + weight", width, "x"))
    return kept


@frozen
class ActivationKept:
    """What an activation keeps: its argument, tensors between, its result."""

    argument: bool
    between: int = 0
    result: bool = False


ACTIVATIONS = {
    "relu": ActivationKept(argument=False, result=True),
    "gelu": ActivationKept(argument=True),
    "gelu_tanh": ActivationKept(argument=True),
    "silu": ActivationKept(argument=True),
    "relu2": ActivationKept(argument=False, between=1),  # relu(x), which the square keeps as well
    "sigmoid": ActivationKept(argument=False, result=True),
}
SWISH = ActivationKept(argument=True, between=1)  # sigmoid(beta·x)


def activation_kept(part: FeedForward) -> ActivationKept:
    """Say what an activation keeps of tensors of the size of its argument.

    ReLU and the sigmoid keep their result, GELU and SiLU their argument, Swish with a beta of its
    own its argument and the sigmoid, the squared ReLU what it squares.

    Source: torch's derivatives of each.

    >>> activation_kept(FeedForward(activation="silu", gated=True)).argument
    True
    """
    if part.swish_beta != 1.0:  # of SiLU alone
        return SWISH
    if part.activation not in ACTIVATIONS:
        raise SpecError(
            "activation",
            "has no formula for what a backward keeps",
            part.activation,
            f"choose one of {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[part.activation]


def hidden_tensors(part: FeedForward, *, fused: bool) -> int:
    """Count the tensors of hidden width that a feed-forward keeps between its matrices.

    plain: what the activation keeps, and its result
    gated: what the activation keeps, its result, the other half, and the product of the two
    fused: gate and up are the halves of one tensor, kept whole whatever needs them; a gate that is
    multiplied by a factor is another tensor beside it

    gpt-oss's clamped form keeps gate, up, clamped gate, sigmoid, their product, up + 1, the result;
    without an activation the gate is its own result.

    Returns: a number of tensors.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6; gpt-oss's released code (clamped).

    >>> hidden_tensors(FeedForward(activation="silu", gated=True), fused=False)
    4
    >>> hidden_tensors(FeedForward(activation="gelu", gated=False), fused=False)
    2
    """
    return len(hidden_gradients(part, fused=fused))


def hidden_gradients(part: FeedForward, *, fused: bool, of: str = "") -> list[tuple[str, ...]]:
    """Name the gradients that need each kept tensor of hidden width.

    `gate` and `up` are the gradients of these halves (of a plain one `up`), `down` that of the last
    matrix, which needs what it reads. Each factor of a product is needed by the other's gradient.
    `of` is put before the names.

    Source: as `hidden_tensors`.

    >>> hidden_gradients(FeedForward(activation="silu", gated=True), fused=False)
    [('gate',), ('up',), ('gate',), ('down',)]
    """
    gate, up, down = (f"{of}gate",), (f"{of}up",), (f"{of}down",)
    if part.activation == "clamped_swiglu":
        return [gate, up, gate, gate, up, gate, down]
    scaled = fused and part.gate_scale != 1.0
    if part.activation == "identity":
        return [up, gate, *[gate] * scaled, down]
    kept = activation_kept(part)
    if not part.gated:
        inner = [up] * (kept.argument + kept.between)
        return [*inner, down + up if kept.result else down]
    half = fused and (scaled or not kept.argument)  # beside what the activation keeps
    inner = [gate] * (kept.argument + half + kept.between)
    return [*inner, up + gate if kept.result else up, gate, down]


def ffn_kept(
    n_tokens: Dim,
    d_ff: Dim,
    part: FeedForward,
    widths: Widths,
    *,
    role: str = "ffn",
    of: str = "",
    fused: bool = False,
) -> list[Kept]:
    """Count what one feed-forward keeps behind its input.

    c·n·m for each of `hidden_tensors`: plain GELU 2, gated SiLU 4; `fused` as there

    Returns: terms, exact; without the input, n·d values that whoever made it names.
    Source: `hidden_gradients`.

    >>> silu = FeedForward(activation="silu", gated=True)
    >>> bytes_of(ffn_kept(2048, 11008, silu, Widths(value=2)))  # LLaMA-7B, 2048 tokens
    180355072
    """
    return [
        Kept(
            role=role,
            name="hidden",
            values=n_tokens * d_ff,
            width=widths.value,
            gradients=gradients,
        )
        for gradients in hidden_gradients(part, fused=fused, of=of)
    ]
