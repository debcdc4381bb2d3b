"""What a backward keeps of mixers of gates and filters: the short convolution, the RG-LRU."""

from __future__ import annotations

from metacount.formulas.dim import smaller
from metacount.formulas.forward import Kept
from metacount.formulas.kept import ACTIVATIONS
from metacount.formulas.kept_attention import several
from metacount.formulas.kept_mixing import Mixing, convolution_kept, rounds
from metacount.spec.rg_lru import RgLru
from metacount.spec.short_conv import ShortConv


def short_conv_kept(run: Mixing, part: ShortConv) -> list[Kept]:
    """Count what a gated short convolution keeps behind its input.

    B, C and x as one tensor [n, 3·d], which both gates need; the convolution's B·x and its result,
    which meets C; y [n, d], the input of the output projection

    Returns: terms, exact.
    Source: LFM2 technical report, arXiv:2511.23404, sec. 2; torch's derivatives.

    >>> from metacount.formulas.forward import Widths
    >>> from metacount.formulas.kept import bytes_of
    >>> from metacount.spec.norm import Norms
    >>> run = Mixing(batch_size=1, seq_len=2048, d_model=2048, norms=Norms(kind="rmsnorm"),
    ...              widths=Widths(value=2))
    >>> bytes_of(short_conv_kept(run, ShortConv(conv_kernel=3)))  # LFM2-1.2B, 2048 tokens
    50339840
    """
    values = run.tokens * run.d_model
    return [
        run.term("gates and input", 3 * values),
        *convolution_kept(run, run.d_model, part.conv_kernel),
        run.term("input of the output projection", values),
    ]


def rg_lru_kept(run: Mixing, part: RgLru) -> list[Kept]:
    """Count what a recurrent block with an RG-LRU keeps behind its input.

    in the model's type, n·w each: x before its convolution, the two gates, x once more for each
    gate's matrix, c·r, a² = exp(2·c·r·log), its root, i·x, the factor on it, a; the convolution's
    result with what is cut off, B·w·(S + k_c - 1); softplus(Λ), w
    in float32 at least, R = ⌈log2 S⌉ rounds: the decays and the inputs of each, R·n·w, the shifted
    decays of all but the last, and the state before the first position, B·w
    of the other branch: what the activation keeps, its result and h, whose product goes out: 3·n·w

    Below float32 the decays are another tensor than a.

    Returns: terms, exact.
    Source: Griffin, arXiv:2402.19427, eq. 1-4 and fig. 2; torch's derivatives.
    """
    w, values = part.lru_width, run.tokens * part.lru_width
    n_rounds, first = rounds(run.seq_len), smaller(rounds(run.seq_len), 1)
    act = ACTIVATIONS[part.activation]  # one of those that keep nothing between
    # of one sequence x lies as the matrix wants it
    copied = several(run.batch_size, run.seq_len, w + part.conv_kernel - 1)
    # a is the first round's decay where nothing is copied
    decays = n_rounds if run.widths.copies else n_rounds - first
    made = run.batch_size * w * (run.seq_len + part.conv_kernel - 1)
    return [
        run.term("input of the convolution", values),
        run.term("result of the convolution", made),
        run.term("x as the gates' matrices read it", copied * values, 2),
        run.term("input gate and recurrence gate", values, 2),
        run.term("c·r, and softplus of the decays", values + w),
        run.term("squared decay, root, gated input, factor, decay", values, 5),
        run.wide("state before the first position", run.batch_size * w),
        run.wide("decays of the rounds", values, decays),
        run.wide("inputs of the rounds", values, n_rounds),
        run.wide("shifted decays of the rounds", values, n_rounds - first),
        run.term("activation of the branch", values, act.argument),
        run.term("both branches, and their product", values, 3),
    ]
