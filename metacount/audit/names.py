"""What the names in a restated formula and in a convention stand for, in numbers or in letters.

A formula names sizes in our words or letters, and what its source reads off a module it has built:
`stored_params`, `token_table`. A convention has the letters of `count --conventions`, those of
textbook/training.py and of `MEANINGS`: with m = min(S, w), a windowed layer has S·m pairs in Z and
M, and S·m - m²/2 of them in G, where a full one has S²/2.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from metacount.errors import InputError, SpecError
from metacount.formulas import ends, masks, model, pieces, sublayers
from metacount.formulas.dim import exact_div
from metacount.spec import legend
from metacount.textbook.conventions import Amounts, amounts_at
from metacount.textbook.training import activation_amounts, stored_amounts

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec

    class Names(Protocol):
        """What has a value for each name of a formula: a place, or a table of letters."""

        def __getitem__(self, name: str, /) -> Dim: ...


LETTERS = {term.letter: term.name for term in legend.TERMS}
RUN = ("batch_size", "seq_len")
STANDS_FOR = {"d_ff_shared": "d_ff_expert"}
# the letters that only an audit needs; the others are those of `count --conventions`
MEANINGS = {
    "X": "of E, tables that no product uses",
    "Y": "scores, one for each pair and head",
    "Z": "the same, a windowed layer's over its window",
    "M": "products between positions, a windowed layer's over its window",
    "G": "the same, halved as a triangle",
    "K": "KV cache, a windowed layer's as far as it is needed",
    "U": "KV cache of every token in every layer",
    "J": "16-bit tensors that products and activations of the blocks keep",
    "N": "inputs of the blocks' norms, 16-bit",
    "O": "masks of dropout after every branch",
    "V": "softmax, dropout mask and result, 5 bytes a pair and head",
    "I": "trained parameters, 16-bit",
    "F": "trained parameters, 32-bit",
    "S": "Adam's two moments, 32-bit",
}
UNSCALED = "PQETL"  # per token, where parameters are counted


class Absent(InputError):
    """A name of something that the model does not have: the formula cannot be asked about it."""


class Place:
    """A model at some sizes and a run: ints, or letters in place of both."""

    def __init__(
        self, spec: ModelSpec, batch_size: Dim, seq_len: Dim, bytes_per_value: Dim
    ) -> None:
        self.spec = spec
        self.batch_size, self.seq_len, self.bytes_per_value = batch_size, seq_len, bytes_per_value
        self._known: dict[str, Dim] = {}

    def __getitem__(self, word: str) -> Dim:
        """Return the value of a name in a formula."""
        if word not in self._known:
            self._known[word] = self._value(word)
        return self._known[word]

    def _value(self, word: str) -> Dim:
        name = LETTERS.get(word, word)
        if name in RUN:
            return getattr(self, name)
        if name in ("c", "bytes_per_value"):
            return self.bytes_per_value
        if name in READ_OFF:
            return READ_OFF[name](self)
        if name not in SIZES:
            raise InputError(f"'{word}' is no size that an audited formula may name")
        found = getattr(self.spec, name)
        if found is None and name in STANDS_FOR:
            found = getattr(self.spec, STANDS_FOR[name])
        if found is None:
            raise Absent(f"the model has no {name}")
        return found

    @property
    def amounts(self) -> Amounts:
        """The amounts of the conventions."""
        if "amounts" not in self._known:
            self._known["amounts"] = amounts_at(self.spec, self.batch_size, self.seq_len)
        found: Amounts = self._known["amounts"]
        return found


SIZES = {term.name for term in legend.MODEL_TERMS}


def _moe_layers(place: Place) -> Dim:
    return pieces.moe_layers(place.spec, place.spec.n_layers)


def _ffn_width(place: Place) -> Dim:
    """Find what a config calls intermediate_size: the FFN's width, the experts' if all are MoE."""
    spec = place.spec
    found = spec.d_ff if spec.d_ff is not None else spec.d_ff_expert
    if found is None:
        raise Absent("the model has no d_ff")
    return found


def _shared_width(place: Place) -> Dim:
    """Return the width of all shared experts of a layer together; 0 where there are none."""
    if not place.spec.n_shared_experts:
        return 0
    return place["n_shared_experts"] * place["d_ff_shared"]


def _qk_norms(place: Place) -> Dim:
    spec = place.spec
    if spec.attention == "mla":
        return 0
    sizes = (place[name] for name in ("n_heads", "n_kv_heads", "head_dim"))
    return spec.n_layers * sublayers.qk_norm_params(spec.qk_norm, *sizes)


def _vectors(place: Place, params: Dim, experts: str) -> Dim:
    """Count the parameters in no matrix or table: norms, biases, other vectors of every layer."""
    a, spec = place.amounts, place.spec
    matrices = exact_div(a.weights, 2 * place.batch_size * place.seq_len)
    if spec.tie_embeddings:
        matrices -= exact_div(a.head, 2 * place.batch_size * place.seq_len)
    if spec.is_moe:
        one = (2 + spec.gated) * place["d_model"] * place["d_ff_expert"]
        matrices += _moe_layers(place) * (place[experts] - place["top_k"]) * one
    return params - matrices - a.looked_up


READ_OFF: dict[str, Callable[[Place], Dim]] = {
    "n_moe_layers": _moe_layers,
    "n_dense_ffn_layers": lambda place: place.spec.n_layers - _moe_layers(place),
    "n_windowed_layers": lambda place: pieces.attention_layers(place.spec)[0],
    "n_full_layers": lambda place: pieces.attention_layers(place.spec)[1],
    "window_or_all": lambda place: masks.attended_positions(place.seq_len, place.spec.window),
    "ffn_width": _ffn_width,
    "shared_width": _shared_width,
    "stored_params": lambda place: place.amounts.stored,
    "active_params": lambda place: place.amounts.params,
    "token_table": lambda place: place.amounts.token_table,
    "position_table": lambda place: place.amounts.positions,
    "router_params": lambda place: exact_div(
        place.amounts.routers, 2 * place.batch_size * place.seq_len
    ),
    "type_table": lambda place: place.spec.n_token_types * ends.table_width(place.spec),
    "norm_vectors": lambda place: 1 + place.spec.norm_bias,
    "qk_norm_params": _qk_norms,
    "vector_params": lambda place: _vectors(place, place.amounts.stored, "n_experts"),
    "active_vector_params": lambda place: _vectors(place, place.amounts.params, "top_k"),
    "matrix_params": lambda place: exact_div(
        place.amounts.weights, 2 * place.batch_size * place.seq_len
    ),
}


def reference(place: Place, kind: str) -> dict[str, Dim]:
    """Return the value of each letter of a convention for one kind of count."""
    if kind == "kv_cache":
        return _cache(place)
    if kind in MEMORY:
        try:
            return MEMORY[kind](place)
        except SpecError as error:
            raise Absent(str(error)) from None
    a = place.amounts
    if kind in ("params", "active_params"):
        whole = (a.params, a.stored, a.looked_up, a.token_table, a.positions)
        return dict(zip(UNSCALED, whole, strict=True))
    found = a.letters()
    tokens = place.batch_size * place.seq_len
    tied = a.token_table if place.spec.tie_embeddings else 0
    scores = place.batch_size * place["n_heads"] * place.seq_len
    windowed, full = pieces.attention_layers(place.spec)
    near = windowed * masks.attended_positions(place.seq_len, place.spec.window)
    return {
        **found,
        **_pairs(place, found),
        "X": tokens * (a.looked_up - tied),
        "Y": scores * place.spec.n_layers * place.seq_len,
        "Z": scores * (near + full * place.seq_len),
    }


MEMORY: dict[str, Callable[[Place], dict[str, Dim]]] = {
    "activations": lambda place: activation_amounts(place.spec, place.batch_size, place.seq_len),
    "optimizer": lambda place: stored_amounts(place.spec),
}


def _cache(place: Place) -> dict[str, Dim]:
    spec = place.spec
    run = {"batch_size": place.batch_size, "bytes_per_value": place.bytes_per_value}
    kept = model.kv_cache_bytes(spec, seq_len=place.seq_len, **run)
    per_token = model.kv_cache_bytes_per_token(spec, bytes_per_value=place.bytes_per_value)
    return {"K": kept, "U": per_token * place.batch_size * place.seq_len}


def _pairs(place: Place, amounts: dict[str, Dim]) -> dict[str, Dim]:
    """Compute M and G: in a model without a window they are A and A/2."""
    spec, seq_len = place.spec, place.seq_len
    windowed, full = pieces.attention_layers(spec)
    if spec.window is None:
        return {"M": amounts["A"], "G": _half(amounts["A"])}
    m = masks.attended_positions(seq_len, spec.window)
    n_layers, square = spec.n_layers, seq_len * seq_len
    # A is the same for every layer and pair: 2 FLOPs per pair and value, scores and values
    per_pair = exact_div(amounts["A"], n_layers * square)
    near = windowed * (seq_len * m)
    triangle = windowed * (2 * seq_len * m - m * m) + full * square
    return {
        "M": per_pair * (near + full * square),
        "G": _half(per_pair * triangle),
    }


def _half(value: Dim) -> Dim:
    return Fraction(value, 2) if isinstance(value, int) else value / 2


class Structure(Mapping[str, object]):
    """A model's structure and sizes, as the conditions of the data name them."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def __getitem__(self, name: str) -> object:
        """Return a field, with 0 for what the model does not have."""
        if name == "heads_fill_model":
            return self.spec.n_heads * (self.spec.head_dim or 0) == self.spec.d_model
        try:
            found = getattr(self.spec, name)
        except AttributeError:
            raise SpecError("condition", "names no field of a model", name, "see spec/") from None
        return 0 if found is None else found

    def __iter__(self) -> Iterator[str]:
        """Return an empty iterator: conditions ask for names, and never for all of them."""
        return iter(())

    def __len__(self) -> int:
        return 0
