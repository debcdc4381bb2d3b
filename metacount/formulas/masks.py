"""Pairs of positions that a mask or an indexer keeps; those a token attends to or a cache keeps."""

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

    Source: Mistral 7B, arXiv:2310.06825, sec. 2.

    >>> attended_positions(8192), attended_positions(8192, 4096)  # Mistral 7B
    (8192, 4096)
    """
    return kv_len if window is None else smaller(kv_len, window)


def cached_positions(seq_len: Dim, window: Dim | None = None) -> Dim:
    """Count the positions whose keys and values the next token can need: T, or min(T, window - 1).

    The next token sees itself and window - 1 others, and brings its own key and value.

    Source: Mistral 7B, arXiv:2310.06825, sec. 2, with a rolling buffer of one entry less.

    >>> cached_positions(8192), cached_positions(8192, 4096)  # Mistral 7B
    (8192, 4095)
    """
    return seq_len if window is None else smaller(seq_len, window - 1)


def selected_block_pairs(seq_len: Dim, index_block_len: Dim, index_top_blocks: Dim) -> Dim:
    """Count the pairs that attention reads after a selection of blocks, for each of its heads.

    Token t = 0 … S-1 is in block j = ⌊t/b_i⌋. It reads t mod b_i + 1 positions of that block, which
    is always among the chosen ones, and all b_i of min(j, k_b - 1) blocks before it:
    Σ_t (t mod b_i + 1) + b_i·Σ_t min(⌊t/b_i⌋, k_b - 1). With Q = ⌊S/b_i⌋ whole blocks and r
    positions left, the last sum is b_i·(Σ min(q, k_b) over q = 1 … Q, less Q) + r·min(Q, k_b - 1).

    Up to k_b·b_i tokens these are all causal pairs. Which blocks are chosen does not matter, nor
    how many of them are local; that a token's own block is chosen does.

    Returns: pairs of one sequence, exact.
    Source: MiniMax-M3 in transformers 5.23, `MiniMaxM3VLIndexer`; the sum is ours.

    >>> selected_block_pairs(2048, 128, 16) == causal_pairs(2048)
    True
    >>> selected_block_pairs(131072, 128, 16), causal_pairs(131072)  # at 128k, and dense
    (258146304, 8590000128)
    """
    n_blocks = floor_div(seq_len, index_block_len)
    rest = seq_len - n_blocks * index_block_len
    blocks = index_block_len * (causal_pairs(n_blocks, index_top_blocks) - n_blocks)
    before = blocks + rest * smaller(n_blocks, index_top_blocks - 1)
    return chunked_pairs(seq_len, index_block_len) + index_block_len * before


def selected_block_positions(kv_len: Dim, index_block_len: Dim, index_top_blocks: Dim) -> Dim:
    """Count the positions the newest of `kv_len` tokens attends to after a selection of blocks.

    (T - 1) mod b_i + 1 of its own block, and b_i of each of min(⌊(T - 1)/b_i⌋, k_b - 1) before it:
    k_b·b_i where its block is full, b_i - 1 fewer where it has just begun. The index has scored all
    T.

    Source: as `selected_block_pairs`.

    >>> selected_block_positions(131072, 128, 16), selected_block_positions(131073, 128, 16)
    (2048, 1921)
    """
    before = floor_div(kv_len - 1, index_block_len)
    own = kv_len - before * index_block_len
    return own + index_block_len * smaller(before, index_top_blocks - 1)
