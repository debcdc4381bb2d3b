"""The causal convolution of a mixer: one filter of k_c values for each channel.

Transformers' own PyTorch code computes a few positions that nobody reads; they are counted, since
they are run. CUDA kernels compute none of them.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, smaller
from metacount.formulas.tape import Store, Tape, Tensor

# Positions that the convolution of one forward computes, over all sequences.
CONVOLVED = "convolved positions"


def causal_convolution(
    t: Tape, x: Tensor, kernel: Dim, name: str, *, bias: bool, lengthened: bool = True
) -> Tensor:
    """Convolve each channel of x with a filter of its own: weight [channels, 1, k_c].

    The input is made as long as a filter where it is shorter (`lengthened`), and padded with
    k_c - 1 on both sides; the result keeps what is cut off in its storage.

    Source: Gu, Dao 2023, arXiv:2312.00752, fig. 3 and sec. 3.4.
    """
    run, channels = t.run, x.columns
    trained = t.weight(f"{name}.weight", channels, 1, kernel, rows=CONVOLVED)
    biased = t.weight(f"{name}.bias", channels) if bias else False
    n = longest(run.n_queries, kernel) if lengthened else run.n_queries
    seen = Tensor(Store(run.batch_size * n, channels, run.value), channels, x.word, x.grad)
    t.record("pad", seen)
    made = Store(run.batch_size * (n + kernel - 1), channels, run.value)
    y = Tensor(made, channels, x.word, x.grad or trained or biased)
    t.record(
        name,
        y,
        [(seen, y.grad)],  # torch has one derivative for all three: it wants x for any of them
        rows=run.counts[CONVOLVED],
        width=channels * kernel,
        factors=(x.grad, trained),
        results=[made],
    )
    y.rows = x.rows  # as many positions as x has; the others stay in the storage
    return y


def convolved_silu(t: Tape, x: Tensor, kernel: Dim, name: str, *, bias: bool) -> Tensor:
    """Convolve as `causal_convolution`, and apply SiLU: a tensor of its own, as long as x."""
    made = causal_convolution(t, x, kernel, name, bias=bias)
    y = t.make(x.rows, x.columns, grad=made.grad, width=t.run.value)
    return t.record("silu", y, [(made, made.grad)])


def longest(seq_len: Dim, kernel: Dim) -> Dim:
    """Return the larger of two lengths."""
    return seq_len + kernel - smaller(seq_len, kernel)


def convolved_positions(batch_size: Dim, seq_len: Dim, kernel: Dim, *, decode: bool = False) -> Dim:
    """Count the positions that one forward's convolution computes; S of each sequence are read.

    from nothing:  B·(max(S, k_c) + k_c - 1): padded to a kernel's width, then on both sides
    continued:     B·(S + 1): the k_c kept positions before the S new ones, nothing padded

    Source: transformers, `causal_conv1d_fn` and `causal_conv1d_update` of `modeling_mamba2.py`.

    >>> convolved_positions(1, 2048, 4), convolved_positions(1, 1, 4, decode=True)
    (2051, 2)
    """
    if decode:
        return batch_size * (seq_len + 1)
    return batch_size * (longest(seq_len, kernel) + kernel - 1)
