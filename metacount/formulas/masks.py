"""Pairs of positions that a mask keeps, and positions that a token attends to or a cache keeps."""

from __future__ import annotations

from metacount.formulas.dim import Dim, exact_div, floor_div, smaller


def causal_pairs(seq_len: Dim, window: Dim | None = None) -> Dim:
    """Count the pairs (t, t') with t' <= t, and t - t' < window where there is one.

    With w = min(S, window), Σ_t min(t, w) over t = 1 … S: S rows of w positions,
    less what is missing in the first rows, (w-1) + … + 1 + 0 = w·(w-1)/2

    Returns: pairs of one sequence, exact.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3 (mask); Mistral 7B, arXiv:2310.06825,
    sec. 2 (window: their W, the position itself included).

    >>> causal_pairs(8192), causal_pairs(8192, 4096)  # Mistral 7B, without and with its window
    (33558528, 25167872)
    """
    w = seq_len if window is None else smaller(seq_len, window)
    return seq_len * w - exact_div(w * (w - 1), 2)


def chunked_pairs(seq_len: Dim, window: Dim) -> Dim:
    """Count the pairs (t, t') with t' <= t in the same chunk of `window` positions.

    S // window whole chunks and a rest of S % window positions, each causal inside

    Returns: pairs of one sequence, exact.
    Source: Llama 4, `attention_chunk_size` of Meta's llama-models `args.py` and of transformers.

    >>> chunked_pairs(10000, 8192)  # Llama 4: 8192·8193/2 + 1808·1809/2
    35193864
    """
    n_chunks = floor_div(seq_len, window)
    rest = seq_len - n_chunks * window
    return n_chunks * causal_pairs(window) + causal_pairs(rest)


def prefix_pairs(seq_len: Dim, prefix_len: Dim) -> Dim:
    """Count the pairs (t, t') with t' <= t, or t' among the first `prefix_len` positions.

    The causal pairs, and inside the prefix the other triangle: + P·(P-1)/2, for P <= S

    Returns: pairs of one sequence, exact.
    Source: Raffel et al. 2019, arXiv:1910.10683, sec. 3.2.1 and fig. 3, right.

    >>> prefix_pairs(2048, 512)  # GLM-130B's context, a quarter of it prompt
    2228992
    """
    return causal_pairs(seq_len) + exact_div(prefix_len * (prefix_len - 1), 2)


def banded_pairs(seq_len: Dim, window: Dim) -> Dim:
    """Count the pairs (t, t') with |t - t'| <= window // 2, the window of an encoder.

    The diagonal has S pairs, the k-th beside it S - k on either side, the S-th none.
    With r = min(window // 2, S): S + 2·Σ_k (S - k) over k = 1 … r = S·(2·r + 1) - r·(r + 1)

    Returns: pairs of one sequence, exact.
    Source: Beltagy et al. 2020, arXiv:2004.05150, sec. 3.1, their w is our window.

    >>> banded_pairs(4096, 512)  # Longformer
    2035456
    """
    r = smaller(floor_div(window, 2), seq_len)
    return seq_len * (2 * r + 1) - r * (r + 1)


def self_attention_pairs(
    kind: str,
    seq_len: Dim,
    *,
    window: Dim | None,
    chunked: bool,
    prefix_len: Dim,
) -> Dim:
    """Count the pairs that the mask of a self-attention keeps, for a `kind` of model.

    `window` is None in a layer that sees everything its kind allows. A window slides unless it is
    `chunked`. Only a prefix-decoder has a prefix.

    Returns: pairs of one sequence, exact.
    Source: the function of each mask.

    >>> self_attention_pairs("decoder", 8192, window=4096, chunked=False, prefix_len=0)
    25167872
    """
    if kind == "encoder":
        return seq_len * seq_len if window is None else banded_pairs(seq_len, window)
    if kind == "prefix-decoder":
        return prefix_pairs(seq_len, prefix_len)
    if window is not None and chunked:
        return chunked_pairs(seq_len, window)
    return causal_pairs(seq_len, window)


def attended_positions(kv_len: Dim, window: Dim | None = None) -> Dim:
    """Count the positions the last of `kv_len` tokens attends to, itself included: min(T, window).

    The same for sliding and chunked windows; a chunk is taken at its fullest.

    Returns: positions.
    Source: Mistral 7B, arXiv:2310.06825, sec. 2.

    >>> attended_positions(8192), attended_positions(8192, 4096)  # Mistral 7B
    (8192, 4096)
    """
    return kv_len if window is None else smaller(kv_len, window)


def cached_positions(seq_len: Dim, window: Dim | None = None) -> Dim:
    """Count the positions whose keys and values the next token can need: T, or min(T, window - 1).

    The next token sees itself and window - 1 others, and brings its own key and value.

    Returns: positions.
    Source: Mistral 7B, arXiv:2310.06825, sec. 2, with a rolling buffer of one entry less.

    >>> cached_positions(8192), cached_positions(8192, 4096)  # Mistral 7B
    (8192, 4095)
    """
    return seq_len if window is None else smaller(seq_len, window - 1)
