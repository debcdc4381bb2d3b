"""The legend: our name of each size, its letter, meaning and unit, and everyone else's spelling.

What is said of a size stands in `fields.tsv`. SymPy is imported only when symbols are
asked for.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.frozen import REQUIRED
from metacount.spec.field import Field
from metacount.spec.model import FIELDS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    import sympy


Term = Field  # one size: its name, letter, meaning and unit, and what others call it


def term_of(name: str) -> Term:
    """Return what `fields.tsv` says of a size: its letter, meaning, unit, and others' spellings."""
    return FIELDS.get(name) or Term("whole", name, REQUIRED)


# The order in which sizes are listed; one that is not here comes after these.
ORDER = (
    "d_model", "n_layers", "n_encoder_layers", "n_dense_layers", "vocab_size", "d_embedding",
    "n_token_types", "n_heads", "n_kv_heads", "head_dim", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_ff", "d_ff_expert", "d_ff_shared",
    "n_experts", "n_shared_experts", "n_zero_experts", "top_k", "moe_every", "n_groups",
    "top_groups", "window", "n_positions", "position_offset", "n_query_positions", "rotary_dim",
    "moe_offset", "nope_every", "n_buckets", "max_distance",
)  # fmt: skip
_SIZES = [name for name, field in FIELDS.items() if field.letter]
MODEL_TERMS = tuple(map(term_of, dict.fromkeys((*ORDER, *_SIZES))))
RUN = ("batch_size", "seq_len", "kv_len", "source_len", "prefix_len")
WORKLOAD_TERMS = tuple(map(term_of, RUN))
TERMS = MODEL_TERMS + WORKLOAD_TERMS

# What others call fields that are no sizes, where they mean the same.
SWITCHES = {
    n: field.elsewhere for n, field in FIELDS.items() if field.elsewhere and not field.letter
}

_BY_NAME = {term.name: term for term in TERMS}


def by_name(name: str) -> Term:
    """Look up the legend's line for one of our names.

    >>> by_name("d_ff").letter
    'm'
    """
    if name not in _BY_NAME:
        terms = ours(name)
        remedy = (
            f"here it is {' or '.join(terms)}"
            if terms
            else nearest(str(name), _BY_NAME, f"choose one of {', '.join(_BY_NAME)}")
        )
        raise SpecError("name", "is not in the legend", name, remedy)
    return _BY_NAME[name]


def ours(spelling: str) -> tuple[str, ...]:
    """Find our names for a spelling, ours or foreign: one, several where others disagree, or none.

    >>> ours("num_attention_heads"), ours("d_model"), ours("frobnication")
    (('n_heads',), ('d_model',), ())
    >>> ours("hidden_dim")  # the residual width in Keras, the FFN's in Mistral's own code
    ('d_model', 'd_ff')
    """
    if spelling in _BY_NAME:
        return (spelling,)
    return tuple(term.name for term in TERMS if spelling in term.elsewhere)


def sympy_symbols(names: Iterable[str]) -> dict[str, sympy.Symbol]:
    """Make a positive-integer SymPy symbol, in the legend's letter, for each of our names.

    >>> sympy_symbols(["d_model", "n_kv_heads"])
    {'d_model': d, 'n_kv_heads': h_kv}
    """
    letters = {name: by_name(name).letter for name in names}
    from importlib import import_module

    sympy = import_module("sympy")  # takes longer than all else together: only when asked for
    return {
        name: sympy.Symbol(letter, integer=True, positive=True) for name, letter in letters.items()
    }
