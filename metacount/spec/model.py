"""What a model is: a tree of frozen parts. Nothing is computed here.

Formulas and modules both read a `ModelSpec`, never each other.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.spec.altup_rules import check_altup
from metacount.spec.field import Field, Place, declared
from metacount.spec.flat import DEFAULTS, FIELDS, PARTS, RECORDS, REQUIRED_NAMES, ROOT
from metacount.spec.indexer import BlockIndexer
from metacount.spec.mtp import check_mtp
from metacount.spec.position import Rope
from metacount.spec.rope_scaling import record_from
from metacount.spec.rules import check_goes_with, check_model
from metacount.spec.shared_rules import check_shared
from metacount.spec.stack import KINDS, WITH_EXPERTS, Encoder, Stack
from metacount.spec.tree import assembled, flat_place, flattened, paths_below, placed, refuse

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.files import Json
    from metacount.spec.embedding import Embedding, Head
    from metacount.spec.mtp import MultiToken


class ModelSpec:
    """A transformer language model: sizes and structure, nothing measured.

    Made of parts, or of flat names (`n_kv_heads` for `decoder.attention.n_kv_heads`), which can
    be read as well. Sizes are ints; `substituted` gives the same structure with symbols or arrays
    in their place. A flat name of a part that the model does not have is `None` (or False, or 0);
    setting it is an error.

    `embedding` None: the body alone, without embedding and head.
    """

    __declared__ = ROOT

    if TYPE_CHECKING:
        kind: str
        d_model: Any
        embedding: Embedding | None
        head: Head | None
        pooler: bool
        encoder: Stack | None
        decoder: Stack | None
        positions: Any
        prediction: MultiToken | None

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **values: object) -> None:
        flat = _flat_of(values) if PARTS & values.keys() else values
        missing = [name for name in REQUIRED_NAMES if name not in flat]
        unknown = [name for name in flat if name not in FIELDS]
        if missing or unknown:
            wrong = f"misses {', '.join(missing)}" if missing else f"has no {', '.join(unknown)}"
            raise TypeError(f"ModelSpec() {wrong}")
        filled = {**DEFAULTS, **flat}
        for name, value in filled.items():
            field = FIELDS[name]
            if not (value is None and field.lacking):
                field.check(value)
        self._fill(filled, checked=True)
        check_shared(self, self.last_stack)
        check_model(self)
        check_altup(self, self.last_stack)
        check_mtp(self)

    def _fill(self, flat: Json, *, checked: bool) -> None:
        made: dict[str, Any] = {"encoder": None, "decoder": None}
        stacks = KINDS[flat["kind"]]
        if Encoder not in stacks.values():
            mine = tuple(name for name in FIELDS if name != "n_encoder_layers")
            refuse(Encoder, flat, mine, f"in a model of kind {flat['kind']}")
        for name, kind in stacks.items():
            made[name] = assembled(kind, flat, "", checked=checked)
            if checked:
                check_goes_with(made[name], flat["kind"], flat["position"])
        for name, it in ROOT.items():
            if not isinstance(it, Field):
                made[name] = placed(it, flat, checked=checked)
        self.__dict__.update(flat)
        self.__dict__.update(made)

    @classmethod
    def from_dict(cls, data: Json) -> ModelSpec:
        """Build from plain data; an unknown or missing field is a `SpecError` that names it."""
        for key, value in data.items():
            if key not in FIELDS:
                remedy = nearest(str(key), FIELDS, "see `metacount models --fields`")
                raise SpecError(shown_name(key), "is not a field of a model", value, remedy)
        for name in REQUIRED_NAMES:
            if name not in data:
                raise SpecError(name, "is missing", None, f"set {name}")
        made = {
            name: record_from(name, kind, data[name])
            for name, kind in RECORDS.items()
            if name in data
        }
        return cls(**{**data, **made})

    def replace(self, **changes: object) -> ModelSpec:
        """Copy the model with other values of flat names, checked like a new one."""
        try:
            return self.from_dict({**self.to_dict(), **changes})
        except SpecError as error:
            raise error.reworded(
                unset=lambda name: f"pass {name}={FIELDS[name].absent!r}",
                give=lambda name: f"pass {name} as well",
            ) from None

    def substituted(self, **values: object) -> ModelSpec:
        """Copy the structure with symbols or arrays for sizes. Unchecked: rules need numbers."""
        other = object.__new__(type(self))
        other._fill(
            {name: values[name] if name in values else self.__dict__[name] for name in FIELDS},
            checked=False,
        )
        return other

    def to_dict(self) -> Json:
        """Return every flat name, in order; records as plain data."""
        data = {name: self.__dict__[name] for name in FIELDS}
        for name in RECORDS:
            if data[name] is not None:
                data[name] = data[name].to_dict()
        return data

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ModelSpec is frozen: {name} cannot change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ModelSpec is frozen: {name} cannot change")

    def _items(self) -> tuple[object, ...]:
        return tuple(self.__dict__[name] for name in FIELDS)

    def __eq__(self, other: object) -> bool:
        return self._items() == other._items() if type(other) is ModelSpec else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items())

    def __repr__(self) -> str:
        return f"ModelSpec({', '.join(f'{name}={self.__dict__[name]!r}' for name in FIELDS)})"

    def paths(self, **words: object) -> dict[str, str]:
        """Return the flat name at every path that leads to a field of a model like this one.

        `words` are other values of flat names, which may choose other parts.
        """
        known = {name: word for name, word in words.items() if word in FIELDS[name].choices}
        flat = {**self.__dict__, **known}
        found = dict(paths_below(ROOT, flat))
        for name, kind in KINDS[flat["kind"]].items():
            found |= dict(paths_below(declared(kind), flat, f"{name}."))
        return {path: field.name for path, field in found.items()}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, where there is one, and the decoder."""
        return tuple(stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def last_stack(self) -> Stack:
        """The stack that the head reads: the decoder, or the only one that an encoder has."""
        return self.stacks[-1]

    @property
    def has_encoder(self) -> bool:
        """True for an encoder-decoder."""
        return self.kind == "encoder-decoder"

    @property
    def longest(self) -> int | None:
        """Tokens that its table of positions has room for; None where nothing limits them."""
        return None if self.n_positions is None else self.n_positions - self.position_offset

    @property
    def is_moe(self) -> bool:
        """True when at least the spec names experts."""
        return self.last_stack.mixture is not None

    def is_moe_layer(self, index: int) -> bool:
        """Tell whether block `index` (from 0, in either stack) routes to experts."""
        return self.last_stack.mixture is not None and self.last_stack.ffn_of(index) in WITH_EXPERTS

    def is_windowed_layer(self, index: int) -> bool:
        """Tell whether block `index` sees a window only."""
        law = self.last_stack.windowed
        return law is not None and law.holds(index)

    def has_index_layer(self, index: int) -> bool:
        """Tell whether block `index` has a block indexer."""
        part = getattr(self.last_stack.attention, "indexer", None)
        return isinstance(part, BlockIndexer) and part.law.holds(index)

    def has_rope_layer(self, index: int) -> bool:
        """Tell whether block `index` rotates its queries and keys."""
        return isinstance(self.positions, Rope) and self.positions.law.holds(index)


def _flat_of(values: Json) -> Json:
    """Flatten parts to flat names; what is no part is a flat name already."""
    flat = {name: value for name, value in values.items() if name not in PARTS}
    for name in sorted(PARTS & values.keys()):
        found = values[name]
        place = ROOT.get(name)
        if isinstance(place, Place):
            flat_place(place, found, flat)
        elif found is not None:
            flattened(type(found), found, flat)
    return flat
