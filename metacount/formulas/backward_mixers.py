"""Where the backward of a mixer with a state is not two products for each of the forward.

Chunks hand a state on: the first begins with zeros, which have no gradient, and what the last adds
is read by nobody. The triangle of the delta rule is solved, which has a backward of its own.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, ceil_div, exact_div, smaller
from metacount.spec.gated_delta import GatedDelta
from metacount.spec.kimi_delta import KimiDelta
from metacount.spec.lightning import Lightning

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable


def beyond_twice(part: object, batch_size: Dim, seq_len: Dim) -> Dim:
    """Count what the backward of one mixer multiplies beyond 2 × its forward, in FLOPs.

    Negative where gradients are missing; 0 where every product has two: state spaces, RG-LRU,
    short convolutions, whose filters have two convolutions.

    Returns: FLOPs of one layer, exact.
    Source: the functions below.

    >>> from metacount.catalog import entry
    >>> beyond_twice(entry("minimax-text-01").spec().last_stack.recurrent, 1, 4096)
    -1610612736
    """
    beyond = BEYOND.get(type(part))
    return 0 if beyond is None else beyond(part, batch_size, seq_len)


def lightning_beyond(part: Lightning, batch_size: Dim, seq_len: Dim) -> Dim:
    """Count what lightning attention's backward multiplies beyond 2 × its forward.

    per head, 2 FLOPs per multiply-add:
    - min(S, c_l)·d_l²      q·S of the first chunk has one gradient, S is zero
    - 2·rest·d_l²           k·vᵀ of the last chunk, of `rest` positions, has none

    Source: MiniMax 2025, arXiv:2501.08313, algorithm 1.
    """
    rest = seq_len - (ceil_div(seq_len, part.chunk_size) - 1) * part.chunk_size
    missing = smaller(seq_len, part.chunk_size) + 2 * rest
    return -2 * batch_size * part.n_heads * missing * part.head_dim * part.head_dim


def gated_delta_beyond(part: GatedDelta, batch_size: Dim, seq_len: Dim) -> Dim:
    """Count what the backward of gated DeltaNet multiplies beyond 2 × its forward.

    `handed_on`, and for each chunk and value head, 2 FLOPs per multiply-add × (d_lk + d_lv) columns
    of the solved triangle: its backward solves once, c_l·(c_l - 1)/2, and multiplies c_l² for the
    gradient of the triangle, instead of two times the forward's
    = c_l² - c_l·(c_l - 1)/2 = c_l·(c_l + 1)/2

    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3; Giles 2008, eq. for C = A⁻¹·B.
    """
    chunk, chunks = part.chunk_size, ceil_div(seq_len, part.chunk_size)
    columns = part.k_head_dim + part.v_head_dim
    solved = chunks * exact_div(chunk * (chunk + 1), 2) * columns
    state = part.k_head_dim * part.v_head_dim
    return 2 * batch_size * part.n_v_heads * (solved - handed_on(chunk, state))


def kimi_delta_beyond(part: KimiDelta, batch_size: Dim, seq_len: Dim) -> Dim:
    """Count what the backward of Kimi delta attention multiplies beyond 2 × its forward.

    Source: `handed_on`; the triangle is inverted element by element.
    """
    missing = handed_on(part.chunk_size, part.head_dim * part.head_dim)
    return -2 * batch_size * part.n_heads * missing


def handed_on(chunk_size: Dim, state: Dim) -> Dim:
    """Count the multiply-adds that a delta rule's backward lacks, of one sequence and head.

    What keys and what queries read of the first chunk's zeros has one gradient each, what the last
    chunk writes has none of two: 4·c_l·d_lk·d_lv

    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3.
    """
    return 4 * chunk_size * state


BEYOND: dict[type, Callable[..., Dim]] = {
    Lightning: lightning_beyond,
    GatedDelta: gated_delta_beyond,
    KimiDelta: kimi_delta_beyond,
}
