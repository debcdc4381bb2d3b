"""What a model is: a tree of frozen parts. Nothing is computed here.

Its ends and prediction modules, the way from flat names (files, JSON, `--set`) to parts and back,
every flat name in one table, and `ModelSpec`. Formulas and modules both read it, never each other.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest, shown_name
from metacount.frozen import REQUIRED
from metacount.spec.attention import BlockIndexer, Indexer
from metacount.spec.field import (
    MAX_LAYERS,
    MAX_VOCAB,
    ROWS,
    Field,
    Place,
    altered,
    choice,
    declared,
    flag,
    number,
    one_of,
    part,
    size,
    where,
)
from metacount.spec.mixers import NoRecurrent
from metacount.spec.position import POSITIONS, Rope, record_from
from metacount.spec.rules import check_goes_with, check_model
from metacount.spec.stack import KINDS, WITH_EXPERTS, Encoder, Stack

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from metacount.files import Json


@part
class Embedding:
    """The tables that tokens are looked up in."""

    vocab_size: int = size("vocab_size", most=MAX_VOCAB, asked=True)
    n_token_types: int = size("n_token_types", default=0, least=0, most=MAX_VOCAB)
    width: int | None = size("d_embedding", default=None)
    norm: bool = flag("embedding_norm", default=False)
    scale: float = number("embedding_scale", default=1.0)


@part
class HeadTransform:
    """What stands between the last block and the head."""

    bias: bool = flag("head_transform_bias", default=False)


@part
class Head:
    """From the last block's output to logits."""

    tied: bool = flag("tie_embeddings", default=False)
    bias: bool = flag("head_bias", default=False)
    transform: HeadTransform | None = where(
        "head_transform", HeadTransform, flag("head_transform", default=False), default=None
    )
    scale: float = number("logit_scale", default=1.0)
    softcap: float | None = number("logit_softcap", default=None)


@part
class MultiToken:
    """Modules that read the model's hidden state and the next token, each with a layer of its own.

    Its layer has attention over everything, and experts where the model has experts. Embedding and
    head are those of the model.
    """

    n_modules: int = size("n_mtp_layers", most=MAX_LAYERS)
    dense: bool = flag("mtp_dense", default=False)


def fields_of(kind: type, path: str = "", lacking: bool = False) -> Iterator[tuple[str, Field]]:
    """Yield each field below a part's class with its path, also switches; some names come twice.

    A field that a model may do without, since it may do without the part, is marked as `lacking`.
    """
    for attribute, it in declared(kind).items():
        full = f"{path}{attribute}"
        if isinstance(it, Field):
            it.lacking = it.lacking or (lacking and it.default is REQUIRED)
            yield full, it
            continue
        if it.switch is not None:
            yield full, it.switch
        everywhere = set.intersection(*(set(names_of(each)) for each in it.kinds.values()))
        for below in it.kinds.values():
            for path_below, field in fields_of(below, f"{full}.", lacking or bool(it.without)):
                if field.name not in everywhere and field.default is REQUIRED:
                    field.lacking = True
                yield path_below, field


def paths_below(
    place_of: dict[str, Field | Place], flat: Json, path: str = ""
) -> Iterator[tuple[str, Field]]:
    """Yield each path below these places and fields, for the words in `flat`, and its field."""
    for attribute, it in place_of.items():
        full = f"{path}{attribute}"
        if isinstance(it, Field):
            yield full, it
            continue
        if it.switch is not None:
            yield full, it.switch
        kind = it.kinds[""] if "" in it.kinds else it.kinds[flat[it.by]]
        yield from paths_below(declared(kind), flat, f"{full}.")


def assembled(kind: type, flat: Json, needed: str, *, checked: bool) -> object:
    """Make a part of class `kind` from flat values; `checked`: by its rules, else anything goes."""
    values: dict[str, object] = {}
    needed = vars(kind).get("needed", needed)
    for attribute, it in declared(kind).items():
        if isinstance(it, Place):
            values[attribute] = placed(it, flat, checked=checked)
            continue
        value = values[attribute] = flat[it.name]
        if value is None and it.default is REQUIRED:
            raise SpecError(it.name, f"is needed {needed}", None, f"set {it.name}")
    made: object = object.__new__(kind)
    made.__dict__.update(values)
    check = getattr(kind, "check", None)
    if checked and check is not None:
        check(made)
    return made


def placed(place: Place, flat: Json, *, checked: bool) -> object:
    """Make what stands in a place by the flat values: a part, or None where none is said."""
    if not place.by:
        return assembled(place.kinds[""], flat, "", checked=checked)
    chosen = flat[place.by]
    if place.without:
        kind = place.kinds[""]
        if is_there(chosen):
            return assembled(kind, flat, "", checked=checked)
        refuse(kind, flat, (), place.without, place.remedy)
        return None
    made = assembled(place.kinds[chosen], flat, f"by {place.by} {chosen}", checked=checked)
    for word, kind in place.kinds.items():
        if word != chosen:
            mine = names_of(place.kinds[chosen])
            refuse(kind, flat, mine, f"with {place.by} {chosen}", place.remedy)
    return made


def is_there(value: object) -> bool:
    """Tell whether a switch says that its part is there; a symbol says yes."""
    return value is not None and value is not False and not (isinstance(value, int) and value == 0)


_names: dict[type, tuple[str, ...]] = {}


def names_of(kind: type) -> tuple[str, ...]:
    """List the flat names below a part's class."""
    if kind not in _names:
        _names[kind] = tuple(dict.fromkeys(field.name for _, field in fields_of(kind)))
    return _names[kind]


_absent: dict[type, tuple[tuple[str, object], ...]] = {}


def refuse(kind: type, flat: Json, but: tuple[str, ...], why: str, remedy: str = "") -> None:
    """Raise `SpecError` for a value of a part that is not there."""
    if kind not in _absent:
        _absent[kind] = tuple({field.name: field.absent for _, field in fields_of(kind)}.items())
    for name, absent in _absent[kind]:
        value = flat[name]
        if value is absent or name in but:
            continue
        if isinstance(value, int | float | str) and value == absent:  # no array, no symbol
            continue
        rule = f"has no meaning {why}"
        raise SpecError(name, rule, getattr(value, "kind", value), remedy or f"leave {name} out")


def flattened(kind: type, value: object, into: Json) -> Json:
    """Add to `into` the flat values of a part and of what is below it, and return `into`."""
    for attribute, it in declared(kind).items():
        member = getattr(value, attribute)
        if isinstance(it, Field):
            _put(into, it.name, member)
        else:
            flat_place(it, member, into)
    return into


def flat_place(place: Place, value: object, into: Json) -> None:
    """Add to `into` what stands in a place: the word of its switch, and the part's own values."""
    if place.switch is not None:
        word = value is not None if place.without else vars(type(value))["word"]
        _put(into, place.switch.name, word)
    if value is not None:
        flattened(type(value), value, into)
    elif place.switch is None:
        for _, field in fields_of(place.kinds[""]):
            if field.name == place.by:
                _put(into, place.by, field.absent)


def _put(into: Json, name: str, value: object) -> None:
    if name in into and into[name] != value:
        rule = "differs between the encoder and the decoder, which are made alike"
        raise SpecError(name, rule, value, f"choose {into[name]!r}")
    into[name] = value


ROOT: dict[str, Field | Place] = {
    "kind": choice("kind", *KINDS),
    "d_model": size("d_model"),
    "embedding": where("vocab_size", Embedding, default=None),
    "head": where(
        "has_head", Head, flag("has_head", default=True), without="without a head", default=None
    ),
    "prediction": where("n_mtp_layers", MultiToken, default=None),
    "pooler": flag("pooler", default=False),
    "positions": one_of(choice("position"), *POSITIONS),
}


def _fields() -> tuple[dict[str, Field], dict[str, str]]:
    """Return every flat name's field, in order, and the path of each in a model with a decoder."""
    root = type("Root", (), {"__declared__": ROOT})
    fields = {field.name: (path, field) for path, field in fields_of(Stack, "decoder.")}
    depth = declared(Encoder)["n_layers"]
    assert isinstance(depth, Field)  # a size
    fields["n_encoder_layers"] = ("encoder.n_layers", depth)
    fields |= {field.name: (path, field) for path, field in fields_of(root)}
    names = [name for name in ROWS if name in fields]
    return {name: fields[name][1] for name in names}, {name: fields[name][0] for name in names}


def every_path() -> dict[str, Field]:
    """Map every path of any model to a field; a few paths lead to another in another model."""
    root = type("Root", (), {"__declared__": ROOT})
    stacks = (("encoder.", Encoder), ("decoder.", Stack))
    below = {path: field for name, kind in stacks for path, field in fields_of(kind, name)}
    return {**dict(fields_of(root)), **below}


FIELDS, PATHS = _fields()
PARTS = {"embedding", "head", "positions", "encoder", "decoder", "prediction"}
REQUIRED_NAMES = tuple(
    name
    for name, field in FIELDS.items()
    if field.asked or (field.default is REQUIRED and not field.lacking)
)
DEFAULTS = {name: field.absent for name, field in FIELDS.items()}
NEVER_NONE = {n for n, f in FIELDS.items() if f.absent is None and not (f.optional or f.lacking)}
RECORDS = {name: field.made for name, field in FIELDS.items() if field.made is not None}
CHOICES = {name: field.choices for name, field in FIELDS.items() if field.choices}
LIMITS = {name: field.most for name, field in FIELDS.items() if field.takes == "whole"}


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
        stacks: tuple[Stack, ...]  # the encoder, where there is one, and the decoder
        last_stack: Stack  # which the head reads: the decoder, or the only one of an encoder

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
            if value is not DEFAULTS[name] or name in NEVER_NONE:
                FIELDS[name].check(value)
        self._fill(filled, checked=True)
        check_model(self)

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
        self.__dict__.update(with_stacks(made))

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
        paths = dict(paths_below(ROOT, flat))
        for name, kind in KINDS[flat["kind"]].items():
            paths |= dict(paths_below(declared(kind), flat, f"{name}."))
        return {path: field.name for path, field in paths.items()}

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

    def shares_index(self, index: int) -> bool:
        """Tell whether the attention of block `index` reads what an earlier indexer chose."""
        part = getattr(self.last_stack.attention, "indexer", None)
        return isinstance(part, Indexer) and not part.law.holds(index)

    def has_rope_layer(self, index: int) -> bool:
        """Tell whether block `index` rotates its queries and keys."""
        return isinstance(self.positions, Rope) and self.positions.law.holds(index)


def with_stacks(made: Json) -> Json:
    """Add to a model's parts its stacks in order, and the last one: both are asked for often."""
    stacks = tuple(stack for stack in (made["encoder"], made["decoder"]) if stack is not None)
    return {**made, "stacks": stacks, "last_stack": stacks[-1]}


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


def left_out(spec: ModelSpec) -> tuple[str, ...]:
    """Say that no figure has the prediction modules of a model in it; nothing without them."""
    if spec.prediction is None:
        return ()
    n = spec.prediction.n_modules
    return (
        f"not counted: {n} multi-token-prediction module{'s' if n > 1 else ''}; "
        "`count` says what they add",
    )


def prediction_layers(spec: ModelSpec) -> ModelSpec:
    """Give the layers of the prediction modules as the stack of a model; sizes may be symbols.

    Each has the attention of `spec`, over everything, and its experts, or its dense feed-forward.
    """
    modules, stack = spec.prediction, spec.last_stack
    assert modules is not None  # of a spec that has some
    experts = stack.mixture is not None and not modules.dense
    own = altered(
        stack,
        n_layers=modules.n_modules,
        mixer_pattern="A",
        ffn_pattern="E" if experts else "F",
        mixture=stack.mixture if experts else None,
        recurrent=NoRecurrent(),
        attention=altered(stack.attention, window=None),
        norms=altered(stack.norms, first=True),
    )
    made = with_stacks({"encoder": spec.encoder, "decoder": own})
    return altered(spec, n_layers=modules.n_modules, prediction=None, **made)
