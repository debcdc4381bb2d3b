"""The cases of which a proof consists: which sizes are letters, on which side of a window, B or 1.

A size that is 1 stays a number while code runs with symbols, and proves nothing of other numbers.
So every structure is traced at generic sizes first, where all of its sizes are letters; then, for
themselves, with what its models have besides: a single key/value head, as many as heads, one
sequence, more tokens than a window is wide, or as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.spec import ModelSpec, Workload
from metacount.spec.stack import OF_LAYERS, OF_LISTS
from metacount.textbook.proven import SIZES, structure
from metacount.tracing.sources import LAYER_PATTERNS, NO_SIZES, As, whole_fields, with_fields

if TYPE_CHECKING:
    from metacount.files import Json

SEQ_LEN = 64
ONE = ", one sequence"
WINDOWS = {"below": 128, "above": 32, "at": SEQ_LEN}  # beside SEQ_LEN tokens
CHUNKS = ("ssm_chunk_size", "index_block_len")  # of a length that is a letter
SHORT_CHUNK = 16  # of which a sequence has several: any number of them is ⌈S/c⌉
FEW_LAYERS = 12  # are traced sooner than many; how many there are is a letter
FEW_BORROWING = 4  # of these, where that many borrow keys and values
MOST_CHANGED = 2  # fields of a spec that one size of a config may change (d_model and head_dim)
OF_A_RUN = ("matmul_flops", "causal_matmul_flops", "decode_matmul_flops", "kv_cache_bytes")
OF_A_MODEL = ("params", "active_params")
PATTERNS = (*OF_LAYERS, *OF_LISTS)  # letters at 1, too


@frozen
class Case:
    """One model to be traced: a spec or a config, how, and of which quantities."""

    name: str
    model: Json | ModelSpec
    workload: Workload
    run_as: As
    quantities: tuple[str, ...]


def cases(
    model: Json | ModelSpec, others: Iterable[ModelSpec] = (), *, own_layers: bool = False
) -> Iterator[Case]:
    """Yield the cases of a model's structure:
    generic sizes, then what it and `others` have besides.

    `others` are specs of the same structure. For B sequences where that is quick, for 1 always. Of
    few layers; of as many as the model has (`own_layers`) where their number stayed a number.
    """
    generic = _generic(model, few=not own_layers)
    at = f", n_layers = {spec_of(generic).n_layers}" if own_layers else ""
    yield from _of_one("generic sizes" + at, generic, As(), every=True)
    for name, own, tied in _besides(model, generic, others):
        yield from _of_one(name + at, own, As(tied=tied), every=not tied)


def cases_at_own_layers(
    model: Json | ModelSpec, others: Iterable[ModelSpec] = ()
) -> Iterator[Case]:
    """Yield the cases once more with as many layers as the model and each of `others` has."""
    done = {spec_of(_generic(model)).n_layers}
    for config in (model, *others):
        n_layers = spec_of(config).n_layers
        if n_layers in done:
            continue
        done.add(n_layers)
        if not isinstance(model, ModelSpec):
            config = next(_changed(model, "n_layers", [n_layers], spec_of(model)), model)
        if spec_of(config).n_layers == n_layers:
            yield from cases(config, others, own_layers=True)


def cases_at_a_limit(model: Json | ModelSpec, name: str) -> Iterator[Case]:
    """Yield the generic cases once more with sequences as long as a size is: of the spec, or a
    field that a config alone has.
    """
    generic = _generic(model)
    spec = spec_of(generic)
    at: Json | ModelSpec | None = None
    if getattr(spec, name, None):
        at = next(_changed(generic, name, [SEQ_LEN], spec), None)
    elif not isinstance(generic, ModelSpec):
        at = with_fields(generic, {name: SEQ_LEN})
    if at is not None:
        yield from _of_one(f"S = {name}", at, As(), every=False)


def shown_cases(model: Json | ModelSpec, asked: tuple[str, ...] = ()) -> list[Case]:
    """List the cases of one model that are shown anew when it is asked for: of B sequences, or else
    of 1; of all quantities, or of those asked for.
    """
    every = list(cases(model))
    of_many = {case.name for case in every if not case.run_as.one_sequence}
    chosen = []
    for case in every:
        if case.name in of_many or case.name.removesuffix(ONE) not in of_many:
            names = tuple(n for n in case.quantities if not asked or n in asked)
            chosen += [Case(**{**vars(case), "quantities": names})] if names else []
    return chosen


def _of_one(name: str, model: Json | ModelSpec, run_as: As, *, every: bool) -> Iterator[Case]:
    spec = spec_of(model)
    workload = Workload(seq_len=SEQ_LEN, source_len=53 if spec.has_encoder else None)
    for side, sized in _sides(model):
        text = f"{name}, {side} the window" if side else name
        run_as_one = As(one_sequence=True, tied=run_as.tied)
        if side in ("", "below") or (side == "above" and name == "generic sizes"):
            first = OF_A_MODEL if every and side != "above" else ()
            yield Case(
                name=text,
                model=sized,
                workload=workload,
                run_as=run_as,
                quantities=(*first, *OF_A_RUN),
            )
        yield Case(
            name=text + ONE, model=sized, workload=workload, run_as=run_as_one, quantities=OF_A_RUN
        )


def _sides(model: Json | ModelSpec) -> Iterator[tuple[str, Json | ModelSpec]]:
    """Yield the model with more tokens than its window is wide, with fewer, and with as many."""
    spec = spec_of(model)
    if spec.window is None:
        yield "", model
        return
    for side, window in WINDOWS.items():
        sized = next(_changed(model, "window", [window], spec), None)
        if sized is not None:
            yield side, sized


def spec_of(model: Json | ModelSpec) -> ModelSpec:
    """Return the spec of a spec, or of a config."""
    return model if isinstance(model, ModelSpec) else spec_from_config(model).spec


def small(spec: ModelSpec) -> dict[str, int]:
    """Return the sizes that are 1: they would stay numbers."""
    return {
        name: value
        for name, value in spec.to_dict().items()
        if name in SIZES and name not in PATTERNS and type(value) is int and value == 1
    }


def _generic(model: Json | ModelSpec, *, few: bool = True) -> Json | ModelSpec:
    """Return the structure with sizes above 1, fewer key/value heads, few layers."""
    spec = spec_of(model)
    layers = {"n_kv_shared_layers": FEW_BORROWING, "n_layers": FEW_LAYERS}
    for name, number in {**layers, "n_encoder_layers": FEW_LAYERS}.items():
        if few and getattr(spec, name) > number:
            model = next(_changed(model, name, [number], spec_of(model)), model)
    for name in CHUNKS:
        if (getattr(spec, name) or 0) > SHORT_CHUNK:
            model = next(_changed(model, name, [SHORT_CHUNK], spec_of(model)), model)
    for name in small(spec):
        now = spec_of(model)
        others = _heads(now) if name == "n_kv_heads" else [3, 4, 2, 5, 6, 8]
        model = next(_changed(model, name, others, now), model)
    spec = spec_of(model)
    if spec.attention == "gqa" and spec.n_kv_heads == spec.n_heads:
        fewer = (
            m
            for m in _changed(model, "n_kv_heads", _heads(spec), spec)
            if spec_of(m).n_heads == spec.n_heads
        )
        model = next(fewer, model)
    spec = spec_of(model)
    if spec.attention == "gqa" and spec.n_kv_heads == 1:
        # no divisor but itself (71 heads)
        for heads in _changed(model, "n_heads", [12, 8], spec):
            config = next(_changed(heads, "n_kv_heads", [4], spec_of(heads)), None)
            if config is not None:
                return config
    return model


def _heads(spec: ModelSpec) -> list[int]:
    """List numbers of key/value heads between 1 and that of heads."""
    return [n for n in range(spec.n_heads // 2, 1, -1) if spec.n_heads % n == 0]


def _besides(
    model: Json | ModelSpec, generic: Json | ModelSpec, others: Iterable[ModelSpec]
) -> Iterator[tuple[str, Json | ModelSpec, bool]]:
    """Yield (name, model, whether key/value heads are as many as heads)
    for what generic sizes leave out.

    Each kind once: the numbers that stay numbers, and whether heads are tied.
    """
    of_generic = spec_of(generic)
    seen = {(frozenset(small(of_generic).items()), _tied(of_generic))}
    if not isinstance(model, ModelSpec) and of_generic.attention == "gqa":
        # a type's models are not known: most of them have one of both
        others = [*others, of_generic.replace(n_kv_heads=of_generic.n_heads)]
    for spec in (spec_of(model), *others):
        numbers, tied = small(spec), _tied(spec)
        key = frozenset(numbers.items()), tied
        if key in seen:
            continue
        seen.add(key)
        own = generic
        for name, value in numbers.items():
            own = next(_changed(own, name, [value], spec_of(own)), own)
        if tied:
            now = spec_of(own)
            own = next(_changed(own, "n_kv_heads", [now.n_heads], now), own)
        reached = spec_of(own)
        if (frozenset(small(reached).items()), _tied(reached)) == key:
            texts = [f"{name} = {value}" for name, value in numbers.items()]
            yield ", ".join([*texts, *(["n_kv_heads = n_heads"] if tied else [])]), own, tied


def _tied(spec: ModelSpec) -> bool:
    return bool(spec.attention == "gqa" and spec.n_kv_heads == spec.n_heads)


def _changed(
    model: Json | ModelSpec, name: str, numbers: Iterable[int], spec: ModelSpec
) -> Iterator[Json | ModelSpec]:
    """Yield the model with other numbers for a size of its spec, where it stays of its structure.

    What changes least comes first: of two fields of a config that have one number, the right one.
    """
    key, before = structure(spec), spec.to_dict()
    for number in numbers:
        candidates: list[tuple[int, int, Json | ModelSpec]] = []
        for changed in _with(model, name, number, before[name]):
            try:
                made = spec_of(changed)
            except SpecError:
                continue
            if getattr(made, name) == number and structure(made) == key:
                other = sum(value != before[field] for field, value in made.to_dict().items())
                candidates.append((other, len(candidates), changed))
        if candidates and min(candidates)[0] <= MOST_CHANGED:
            yield min(candidates)[2]


def _with(model: Json | ModelSpec, name: str, number: int, now: int) -> Iterator[Json | ModelSpec]:
    if isinstance(model, ModelSpec):
        try:
            yield model.replace(**{name: number})
        except SpecError:
            return
        return
    for key, value in whole_fields(model).items():
        same_kind = (key in LAYER_COUNTS) == (name in ("n_layers", "n_encoder_layers"))
        if value == now and same_kind and key not in LAYER_PATTERNS and key not in NO_SIZES:
            yield with_fields(model, {key: number})
