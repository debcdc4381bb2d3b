"""What a backward keeps of positions inside a block: rotation, Transformer-XL's distances."""

from __future__ import annotations

from metacount.formulas.dim import Dim, floor_div
from metacount.formulas.forward import FLOAT64, INDEX, Attending, Kept
from metacount.spec.attention import Attention


def rope_kept(run: Attending, rotary_dim: Dim, *, keys: str = "k") -> list[Kept]:
    """Count what the rotation of queries and keys keeps: cosines and sines, for each of the two.

    2 × (w·S·d_rot), once per forward, not per sequence; `keys` names the gradient of the keys'

    Returns: terms, exact; w is 4 bytes, in float64 8.
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    Not counted: tables that all layers share, as other code has.

    >>> from metacount.formulas.kept import bytes_of
    >>> from metacount.formulas.forward import Widths
    >>> run = Attending(batch_size=1, n_queries=2048, n_keys=2048, widths=Widths(value=2))
    >>> bytes_of(rope_kept(run, 128))  # LLaMA-7B, 2048 tokens
    2097152
    """
    wide = run.widths.wide
    return [
        run.term("rotation of queries", run.n_queries * rotary_dim, width=wide, gradients=("q",)),
        run.term("rotation of keys", run.n_keys * rotary_dim, width=wide, gradients=(keys,)),
    ]


def relative_kept(run: Attending, part: Attention, d_model: Dim) -> list[Kept]:
    """Count what Transformer-XL's relative positions keep in one layer.

    the sinusoids [T, d], queries with their bias, projected distances for each sequence
    [B, h, h_d, T], scores by distance of every pair, and the index of each distance [S, T]

    Returns: terms, exact.
    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, terms (b) and (d).

    >>> from metacount.formulas.kept import bytes_of
    >>> heads = Attention(n_heads=128, n_kv_heads=128, head_dim=128)
    >>> from metacount.formulas.forward import Widths
    >>> run = Attending(batch_size=1, n_queries=128, n_keys=128, widths=Widths(value=2))
    >>> bytes_of(relative_kept(run, heads, 16384))  # Gopher 280B, 128 tokens
    16908288
    """
    width = part.n_heads * part.head_dim
    pairs = run.tokens * run.n_keys

    def term(name: str, values: Dim, bytes_: int = 0) -> Kept:
        return run.term(name, values, role="position", width=bytes_)

    # made in float64 in pairs, of which a copy takes d columns; where none is needed all are kept
    columns = d_model if run.widths.value < FLOAT64 else 2 * floor_div(d_model + 1, 2)
    return [
        term("sinusoids", run.n_keys * columns),
        term("queries with their bias", run.tokens * width),
        term("distances", run.source_tokens * width),
        term("scores by distance", pairs * part.n_heads),
        term("index of each distance", run.n_queries * run.n_keys, INDEX),
    ]
