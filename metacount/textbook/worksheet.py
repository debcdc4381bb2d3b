"""A model's closed forms with all that is needed to evaluate them at other sizes.

Which sizes may be chosen and between which limits, the comparisons that must come out as they do
here, and the cases of the record of proofs: what a page in a browser computes with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.algebra.recorded import Recorded, names_in
from metacount.frozen import frozen
from metacount.spec import FIELDS, ModelSpec, Workload, legend
from metacount.spec.field import MAX_TOKENS
from metacount.textbook.closed_form import BYTES, LAYERS, closed_form, layers_of
from metacount.textbook.count import QUANTITIES, fitted, run_sizes
from metacount.textbook.proven import by_side, own_type, read_structure, structure
from metacount.textbook.rows import sizes_of

if TYPE_CHECKING:
    from metacount.algebra.recorded import Log
    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import Request
    from metacount.spec.legend import Term
    from metacount.textbook.closed_form import ClosedForm

RUN = ("batch_size", "seq_len", "source_len", "prefix_len")
# What proofs and forms call the sizes of a run, whose decode attends to all that was run.
ALIASES = {legend.by_name(name).letter: name for name in RUN[:3]} | dict.fromkeys(
    ("T", "kv_len"), "seq_len"
)


@frozen
class Size:
    """A size to choose: its line of the legend, its number, and the limits of what it may be.

    Below `least` the model would have another structure, and other forms.
    """

    term: Term
    number: int
    least: int
    most: int


@frozen
class Worksheet:
    """One model: sizes, forms by quantity (None where there is none), rules, recorded proofs.

    `derived` are sizes that follow from others, as formulas; `fixed` all other numbers of the
    model, and `config` its config, of which conditions of proofs may speak. `rules` are what the
    spec, the run and the formulas compare, each with its answer: where one is another, the setting
    is no model, or one with other forms.
    """

    model: Model
    workload: Workload
    sizes: tuple[Size, ...]
    forms: dict[str, ClosedForm | None]
    derived: dict[str, tuple[Term, str]]
    fixed: dict[str, int]
    config: Json
    rules: dict[str, bool]
    proofs: Json | None


def worksheet(model: Model, request: Workload | Request) -> Worksheet:
    """Build the worksheet of one model, at the sizes and the workload that it starts from."""
    spec = model.spec
    run = fitted(spec, request)
    numbers = _chosen(spec, run)
    sizes = tuple(_size(name, number) for name, number in numbers.items())
    config = None if model.source is None else model.source.config
    record = None if model.refused else read_structure(structure(spec))
    int_sizes = {name: value for name, value in spec.to_dict().items() if type(value) is int}
    return Worksheet(
        model=model,
        workload=run,
        sizes=sizes,
        forms={name: _form(spec, run, name) for name in QUANTITIES},
        derived=_derived(spec),
        fixed={name: value for name, value in int_sizes.items() if name not in numbers},
        config=config or {},
        rules=_rules(spec, run, numbers),
        proofs=record and {**record, "sides": by_side(record, own_type(model))},
    )


def _chosen(spec: ModelSpec, run: Workload) -> dict[str, int]:
    """Choose the sizes of a model, and of a run, that letters stand for."""
    values = {**sizes_of(spec), **{name: getattr(run, name) for name in RUN}}
    values.pop("n_mtp_layers", None)  # no form of the page has any of what prediction modules add
    return {name: size for name, size in values.items() if size}


def _size(name: str, number: int) -> Size:
    least, most = 1, MAX_TOKENS
    if name in FIELDS:
        least, most = max(FIELDS[name].least, 1), FIELDS[name].most
    least = 2 if name == "moe_every" else least
    return Size(term=legend.by_name(name), number=number, least=least, most=most)


def _rules(spec: ModelSpec, run: Workload, numbers: dict[str, int]) -> dict[str, bool]:
    """Record what is compared where the spec, the run and the forms are made of `numbers`."""
    asked: Log = {}
    given = {name: Recorded(size, name, asked) for name, size in numbers.items()}
    lengths = {name: given[name] for name in RUN if name in given}
    sizes = {name: size for name, size in given.items() if name not in RUN}
    ModelSpec.from_dict({**spec.to_dict(), **sizes})
    Workload(**{**run.to_dict(), **lengths})
    in_letters = spec.substituted(**sizes)
    of_run = {**run_sizes(spec, run), **lengths, "kv_len": given["seq_len"]}
    for quantity, count in QUANTITIES.items():
        if _has(spec, quantity):
            count(in_letters, of_run)
    return {text: answer for text, answer in asked.items() if names_in(text)}


def _has(spec: ModelSpec, quantity: str) -> bool:
    return quantity != "decode_matmul_flops" or spec.kind != "encoder"


def _form(spec: ModelSpec, run: Workload, quantity: str) -> ClosedForm | None:
    return closed_form(spec, run, quantity) if _has(spec, quantity) else None


def _derived(spec: ModelSpec) -> dict[str, tuple[Term, str]]:
    """Write the numbers of blocks of a kind, for which closed forms have letters, as formulas."""
    n_layers = Recorded(spec.n_layers, "n_layers", {})
    symbols = {"n_layers": n_layers}
    if spec.n_kv_shared_layers:
        symbols["n_kv_shared_layers"] = Recorded(spec.n_kv_shared_layers, "n_kv_shared_layers", {})
    counts = layers_of(spec.substituted(**symbols))
    return {term.name: (term, counts[term.letter].text) for term in LAYERS if term.letter in counts}


BYTES_NAME = BYTES.name
