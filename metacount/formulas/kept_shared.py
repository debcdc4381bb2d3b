"""What a backward keeps of one use of a block that many layers share (Zamba2)."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.forward import Kept, Pass, attention_of, dense_of
from metacount.formulas.kept import ffn_kept, norm_kept
from metacount.formulas.kept_attention import attention_kept
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.position import Rope


def shared_use_terms(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """Count what one layer's use of a stored block keeps, in front of the layer's own norm.

    of [x, x₀], 2·d wide: its norm, and the input of the attention; the attention; the norm of its
    result, and the input of the feed-forward; the feed-forward; the linear layer's input [n, d]
    with adapters of rank r_a: the latent of each, [n, r_a]; one adapter adds to gate and up, which
    are the halves of one tensor then

    Returns: terms, exact.
    Source: Glorioso et al. 2024, arXiv:2411.15242, section 2; `kept.norm_kept`, `kept.ffn_kept`,
    `kept_attention.attention_kept`; torch's derivatives.
    """
    shared, part, dense = spec.last_stack.shared, attention_of(spec), dense_of(spec)
    assert shared is not None  # who asks has asked
    # the rules of a shared block want both
    assert isinstance(part, Attention)
    assert dense.d_ff is not None
    norms, widths, tokens, d = spec.last_stack.norms, run.widths, run.batch_size * n, spec.d_model

    def term(role: str, name: str, values: Dim, times: Dim = 1) -> Kept:
        return Kept(role=role, name=name, values=values, width=widths.value, times=times)

    rope = spec.positions if isinstance(spec.positions, Rope) else None
    kept = [
        *norm_kept("norm of both inputs", tokens, 2 * d, norms, widths),
        term("other", "input of the shared attention", tokens * 2 * d),
        *attention_kept(run.attending(n, n), part, norms, rope=rope),
        *norm_kept("norm of the shared feed-forward", tokens, d, norms, widths),
        term("other", "input of the shared feed-forward", tokens * d),
        term("other", "input of the linear layer", tokens * d),
        *ffn_kept(tokens, dense.d_ff, dense, widths, fused=shared.adapter_rank is not None),
    ]
    if shared.adapter_rank is not None:
        n_adapters = 1 + 3 * shared.attention_adapters
        kept.append(term("other", "latents of adapters", tokens * shared.adapter_rank, n_adapters))
    return kept
