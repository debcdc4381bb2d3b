"""Tables of models with the columns that somebody chose: fields, figures, and what follows."""

from __future__ import annotations

from metacount.cli.answer import Answer
from metacount.cli.report import Cell, Grid, Notes, Share
from metacount.errors import InputError, nearest, shown
from metacount.figures import COUNTED
from metacount.frozen import frozen
from metacount.settings.values import meant
from metacount.spec import FIELDS, ModelSpec
from metacount.units import heads

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metacount.files import Json

RUN = ("batch_size", "seq_len", "source_len", "prefix_len", "dtype")
ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")
BY_ROLE = ("by_role", "active_by_role", "share")
GLU = {
    "silu": "SwiGLU",
    "gelu": "GeGLU",
    "gelu_tanh": "GeGLU",
    "relu": "ReGLU",
    "sigmoid": "GLU",
    "identity": "bilinear",
    "clamped_swiglu": "SwiGLU, clamped",
}
PLAIN = {
    "silu": "SiLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "relu": "ReLU",
    "relu2": "ReLU²",
    "xielu": "xIELU",
}


@frozen
class Row:
    """One model: how its row is headed, its name, its spec where there is one, its figures."""

    heading: str
    name: str
    spec: ModelSpec | None
    data: Json | None


def known_columns() -> list[str]:
    """List the names of all columns."""
    by_role = (f"{kind}.{role}" for kind in BY_ROLE for role in ROLES)
    return [*DERIVED, *COUNTED, *FIELDS, *RUN, "name", *by_role]


def attention_kind(spec: ModelSpec) -> str:
    """Name the kind of attention by what it keeps: MHA, GQA, MQA, MLA or compressed; none without.

    >>> from metacount.catalog import entry
    >>> [attention_kind(entry(name).spec()) for name in ("gpt2", "llama3-8b", "deepseek-v3")]
    ['MHA', 'GQA', 'MLA']
    """
    if spec.attention == "mla":
        return "MLA"
    if spec.attention in ("none", "compressed"):
        return str(spec.attention)
    return heads(spec.n_heads, spec.n_kv_heads).partition(" ")[0]


def _ffn(spec: ModelSpec) -> str:
    if spec.activation is None:
        return "none"
    names = GLU if spec.gated else PLAIN
    return names.get(spec.activation, str(spec.activation))


def _experts(spec: ModelSpec) -> str | None:
    if not spec.is_moe:
        return None
    more = f" + {spec.n_shared_experts}" if spec.n_shared_experts else ""
    return f"{spec.top_k}{more} of {spec.n_experts}{more}"


# What follows from the fields, in the words of tables in papers.
DERIVED: dict[str, Callable[[ModelSpec], Cell]] = {
    "attention": attention_kind,
    "ffn": _ffn,
    "layers": lambda spec: f"{spec.n_encoder_layers} + " * spec.has_encoder + str(spec.n_layers),
    "experts": _experts,
    "d_ff/d_model": lambda spec: spec.d_ff and f"{spec.d_ff / spec.d_model:.2f}",
}


def checked(names: Sequence[str]) -> list[str]:
    """Check columns under our names; raise an `InputError` that names one that is none."""
    known, columns = known_columns(), []
    for name in names:
        try:
            fields = () if name in known else meant(name)
        except InputError:
            fields = ()
        if len(fields) == 1 and fields[0] in FIELDS:
            name = fields[0]  # somebody else's word for a field, or its letter
        if name not in known:
            otherwise = "see `metacount models --fields` and `metacount count --json`"
            remedy = nearest(name, known, otherwise)
            raise InputError(f"--columns: '{shown(name)}' is not a column; {remedy}")
        columns.append(name)
    return columns


def cell(row: Row, name: str) -> Cell:
    """Read one column of one model; None where the model has no such thing, or nobody knows."""
    spec, data = row.spec, row.data
    first, _, role = name.partition(".")
    value: object = None
    if name == "name":
        value = row.name
    elif name in DERIVED:
        value = None if spec is None else DERIVED[name](spec)
    elif name in FIELDS:
        value = None if spec is None else getattr(spec, name)
    elif data is not None and first == "share":
        part = data["by_role"].get(role)
        value = None if part is None else Share(part=part, whole=data["params"])
    elif data is not None and first in BY_ROLE:
        value = (data[first] or {}).get(role)
    elif data is not None:
        value = data["workload"].get(name) if name in RUN else data.get(name)
    return value if value is None or isinstance(value, str | int | Share) else str(value)


def answer(names: Sequence[str], rows: Sequence[Row], notes: Notes | None = None) -> Answer:
    """Give the columns: what does not fit the width goes below, with the models again."""
    return Answer(
        report=lambda: [[_grid(names, rows)], [notes] if notes else []],
        data=lambda: [_data(names, row) for row in rows],
        table=lambda: _grid(names, rows),
    )


def _grid(names: Sequence[str], rows: Sequence[Row]) -> Grid:
    cells = [(row.heading, *(cell(row, name) for name in names)) for row in rows]
    by_column = (column for column in [*zip(*cells, strict=True)][1:])
    sides = [">" if all(map(_is_number, column)) else "<" for column in by_column]
    align = "".join(sides) if cells else ">" * len(names)
    return Grid(heads=("model", *names), rows=cells, align=f"<{align}", blocks=True)


def _is_number(value: Cell) -> bool:
    if isinstance(value, str):
        return value.replace(".", "").isdecimal()
    return not isinstance(value, bool)


def _data(names: Sequence[str], row: Row) -> Json:
    data: Json = {"model": row.heading}
    for name in names:
        value = cell(row, name)
        data[name] = value.part / value.whole if isinstance(value, Share) else value
    return data
