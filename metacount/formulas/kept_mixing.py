"""What a backward keeps of a mixer: the run that a term is of, and its causal convolution."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, is_symbolic, smaller
from metacount.formulas.forward import Kept, Widths
from metacount.frozen import frozen
from metacount.spec.norm import Norms

ROLE = "recurrent"


@frozen
class Mixing:
    """A forward of one mixer: sequences, positions of each, the model's width and norms."""

    batch_size: Dim
    seq_len: Dim
    d_model: Dim
    norms: Norms
    widths: Widths

    @property
    def tokens(self) -> Dim:
        """Positions of all sequences."""
        return self.batch_size * self.seq_len

    def term(self, name: str, values: Dim, times: Dim = 1) -> Kept:
        """Build the term of a tensor of activations in the model's type."""
        return Kept(role=ROLE, name=name, values=values, width=self.widths.value, times=times)

    def wide(self, name: str, values: Dim, times: Dim = 1) -> Kept:
        """Build the term of a tensor in float32 at least."""
        return Kept(role=ROLE, name=name, values=values, width=self.widths.wide, times=times)


def convolution_kept(run: Mixing, channels: Dim, conv_kernel: Dim) -> list[Kept]:
    """Count what the causal convolution keeps: its input, and its result with what is cut off.

    channels · B·max(S, k_c), made as long as a filter, and channels · B·(max(S, k_c) + k_c - 1),
    padded on both sides, which the activation or the product behind it keeps whole

    Returns: terms, exact.
    Source: `convolution.convolved_positions`.

    >>> from metacount.formulas.kept import bytes_of
    >>> run = Mixing(batch_size=1, seq_len=2048, d_model=2048, norms=Norms(kind="rmsnorm"),
    ...              widths=Widths(value=2))
    >>> bytes_of(convolution_kept(run, 2048, 3))  # LFM2-1.2B, 2048 tokens
    16785408
    """
    rows = run.seq_len + conv_kernel - smaller(run.seq_len, conv_kernel)
    made = rows + conv_kernel - 1
    return [
        run.term("input of the convolution", run.batch_size * channels * rows),
        run.term("result of the convolution", run.batch_size * channels * made),
    ]


def rounds(seq_len: Dim) -> Dim:
    """Count the rounds in which spans that double reach over `seq_len` positions: ⌈log2 S⌉.

    Closed forms have no logarithm, so that a symbol is refused.

    Source: Hillis and Steele 1986, doi:10.1145/7902.7903.

    >>> [rounds(n) for n in (1, 2, 3, 4, 2048, 2049)]
    [0, 1, 2, 2, 11, 12]
    """
    if is_symbolic(seq_len):
        raise SpecError(
            "seq_len",
            "has no form in letters where a scan doubles its reach, in log2(seq_len) rounds",
            None,
            "count with numbers, or choose full checkpointing",
        )
    if isinstance(seq_len, int):
        return (seq_len - 1).bit_length()
    # an array: one round more for each power of two that is reached beyond
    most = (int(seq_len.max()) - 1).bit_length()
    return sum(smaller((seq_len - 1) // 2**n, 1) for n in range(most))
