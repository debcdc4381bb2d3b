"""Feed-forward blocks: two matrices (plain) or three (gated)."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.terms import TOKENS, Weight, flops_of, matrix, params_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from fractions import Fraction


def ffn_weights(
    d_model: Dim,
    d_ff: Dim,
    *,
    gated: bool,
    bias: bool = False,
    name: str = "mlp",
    role: str = "ffn",
) -> tuple[Weight, ...]:
    """List the tensors of one feed-forward block, plain or gated.

    gate, where it is gated, and up [m, d], down [d, m], a bias of as many values as rows

    Returns: tensors; every token is multiplied with each matrix.
    Source: as `plain_params` and `glu_params`.

    >>> for weight in ffn_weights(1024, 4096, gated=False):  # GPT-2 medium
    ...     print(weight.name, weight.shape)
    mlp.up_proj.weight (4096, 1024)
    mlp.down_proj.weight (1024, 4096)
    """
    shapes = {"gate_proj": (d_ff, d_model)} if gated else {}
    shapes |= {"up_proj": (d_ff, d_model), "down_proj": (d_model, d_ff)}
    found: list[Weight] = []
    for each, shape in shapes.items():
        found += matrix(f"{name}.{each}", role, shape, TOKENS, bias=bias)
    return tuple(found)


def plain_params(d_model: Dim, d_ff: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one plain feed-forward block.

    up [m, d] + down [d, m] = 2·d·m   (+ m + d with bias)

    Returns: parameters, exact.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2; their d_ff is our m, W_1 our up.

    >>> plain_params(1024, 4096, bias=True)  # GPT-2 medium
    8393728
    """
    return params_of(ffn_weights(d_model, d_ff, gated=False, bias=bias))


def glu_params(d_model: Dim, d_ff: Dim, *, bias: bool = False) -> Dim:
    """Count the parameters of one gated feed-forward block.

    gate [m, d] + up [m, d] + down [d, m] = 3·d·m   (+ 2·m + d with bias)

    Returns: parameters, exact.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6; their d_ff is our m, W our gate, V our up.

    >>> glu_params(4096, 11008)  # LLaMA-7B
    135266304
    """
    return params_of(ffn_weights(d_model, d_ff, gated=True, bias=bias))


def ffn_params(d_model: Dim, d_ff: Dim, *, gated: bool, bias: bool = False) -> Dim:
    """Count the parameters of one feed-forward block, gated or plain.

    Returns: parameters, exact.
    Source: `glu_params`, `plain_params`.

    >>> ffn_params(4096, 11008, gated=True)  # LLaMA-7B
    135266304
    """
    return params_of(ffn_weights(d_model, d_ff, gated=gated, bias=bias))


def plain_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim) -> Dim:
    """Count the FLOPs of the two matrix products of a plain feed-forward block.

    [n, d] @ [d, m] and [n, m] @ [m, d]: 2 FLOPs per multiply-add × 2 matrices = 4·n·d·m

    Returns: FLOPs of the forward, exact.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 2.
    Not counted: the activation and the biases.

    >>> plain_matmul_flops(128, 1024, 4096)  # GPT-2 medium, 128 tokens
    2147483648
    """
    return flops_of(ffn_weights(d_model, d_ff, gated=False), {TOKENS: n_tokens})


def glu_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim) -> Dim:
    """Count the FLOPs of the three matrix products of a gated feed-forward block.

    twice [n, d] @ [d, m], once [n, m] @ [m, d]: 2 FLOPs per multiply-add × 3 matrices = 6·n·d·m

    Returns: FLOPs of the forward, exact.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.
    Not counted: the activation, the elementwise product with the gate, the biases.

    >>> glu_matmul_flops(128, 4096, 11008)  # LLaMA-7B, 128 tokens
    34628173824
    """
    return flops_of(ffn_weights(d_model, d_ff, gated=True), {TOKENS: n_tokens})


def ffn_matmul_flops(n_tokens: Dim, d_model: Dim, d_ff: Dim, *, gated: bool) -> Dim:
    """Count the FLOPs of one feed-forward block, gated or plain.

    Returns: FLOPs of the forward, exact.
    Source: `glu_matmul_flops`, `plain_matmul_flops`.
    Not counted: the activation, the elementwise product with the gate, the biases.

    >>> ffn_matmul_flops(128, 4096, 11008, gated=True)  # LLaMA-7B, 128 tokens
    34628173824
    """
    return flops_of(ffn_weights(d_model, d_ff, gated=gated), {TOKENS: n_tokens})


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
