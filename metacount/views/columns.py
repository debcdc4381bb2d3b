"""Tables of models with the columns that somebody chose: fields, figures, and what follows."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.figures import COUNTED
from metacount.notation import heads
from metacount.settings.names import meant
from metacount.spec import FIELDS
from metacount.views.count_table import RUN
from metacount.views.layout import GAP, columns, table
from metacount.views.tables import Share, Table
from metacount.views.tables import shown as shown_cell

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from metacount.files import Json
    from metacount.spec import ModelSpec
    from metacount.views.tables import Cell

    # How a row is headed, its name, its spec where there is one, what `count --json` says of it.
    Row: TypeAlias = tuple[str, str, ModelSpec | None, Json | None]

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
}


def attention_kind(spec: ModelSpec) -> str:
    """Name the kind of attention by what it keeps: MHA, GQA, MQA or MLA; none without attention.

    >>> from metacount.catalog import entry
    >>> [attention_kind(entry(name).spec()) for name in ("gpt2", "llama3-8b", "deepseek-v3")]
    ['MHA', 'GQA', 'MLA']
    """
    if spec.attention == "mla":
        return "MLA"
    if spec.attention == "none":
        return "none"
    return heads(spec.n_heads, spec.n_kv_heads).partition(" ")[0]


def _layers(spec: ModelSpec) -> str:
    return f"{spec.n_encoder_layers} + {spec.n_layers}" if spec.has_encoder else str(spec.n_layers)


def _ffn(spec: ModelSpec) -> str:
    if spec.activation is None:
        return "none"
    names = GLU if spec.gated else PLAIN
    return names.get(spec.activation, str(spec.activation))


def _experts(spec: ModelSpec) -> str | None:
    """Say how many experts a token goes through, of how many there are."""
    if not spec.is_moe:
        return None
    more = f" + {spec.n_shared_experts}" if spec.n_shared_experts else ""
    return f"{spec.top_k}{more} of {spec.n_experts}{more}"


def _ratio(spec: ModelSpec) -> str | None:
    return None if spec.d_ff is None else f"{spec.d_ff / spec.d_model:.2f}"


# What follows from the fields, in the words of tables in papers.
DERIVED: dict[str, Callable[[ModelSpec], Cell]] = {
    "attention": attention_kind,
    "ffn": _ffn,
    "layers": _layers,
    "experts": _experts,
    "d_ff/d_model": _ratio,
}


def checked(names: Sequence[str]) -> list[str]:
    """Check columns under our names; raise an `InputError` that names one that is none."""
    return [_checked(name) for name in names]


def _checked(name: str) -> str:
    first, _, role = name.partition(".")
    if first in BY_ROLE and role in ROLES:
        return name
    if name in (*DERIVED, *COUNTED, *RUN, *FIELDS, "name"):
        return name
    known = [
        *DERIVED,
        *COUNTED,
        *FIELDS,
        *RUN,
        "name",
        *(f"{b}.{r}" for b in BY_ROLE for r in ROLES),
    ]
    try:
        found = meant(name)
    except InputError:
        found = ()
    if len(found) == 1 and found[0] in FIELDS:
        return found[0]  # somebody else's word for a field, or its letter
    remedy = nearest(name, known, "see `metacount models --fields` and `metacount count --json`")
    raise InputError(f"--columns: '{shown(name)}' is not a column; {remedy}")


def cell(row: Row, name: str) -> Cell:
    """Read one column of one model; None where the model has no such thing, or nobody knows."""
    _, said, spec, data = row
    first, _, role = name.partition(".")
    found: object = None
    if name == "name":
        found = said
    elif name in DERIVED:
        found = None if spec is None else DERIVED[name](spec)
    elif name in FIELDS:
        found = None if spec is None else getattr(spec, name)
    elif data is not None and first == "share":
        part = data["by_role"].get(role)
        found = None if part is None else Share(part=part, whole=data["params"])
    elif data is not None and first in BY_ROLE:
        found = (data[first] or {}).get(role)
    elif data is not None:
        found = data["workload"].get(name) if name in RUN else data.get(name)
    return found if found is None or isinstance(found, str | int | Share) else str(found)


def columns_table(names: Sequence[str], rows: Sequence[Row]) -> Table:
    """Tabulate the columns: a row for each model, below the names of the columns."""
    names = checked(names)
    cells = tuple((row[0], *(cell(row, name) for name in names)) for row in rows)
    align = "".join(
        ">" if all(_is_number(line[i + 1]) for line in cells) else "<" for i in range(len(names))
    )
    return Table(heads=("model", *names), rows=cells, align="<" + align)


def _is_number(value: Cell) -> bool:
    if isinstance(value, str):
        return value.replace(".", "").isdecimal()
    return not isinstance(value, bool)


def columns_data(names: Sequence[str], rows: Sequence[Row]) -> list[Json]:
    """Convert the columns of models to plain data; a share is a number between 0 and 1."""
    names = checked(names)
    made = []
    for row in rows:
        cells = {name: cell(row, name) for name in names}
        made.append(
            {
                "model": row[0],
                **{
                    name: value.part / value.whole if isinstance(value, Share) else value
                    for name, value in cells.items()
                },
            }
        )
    return made


def columns_text(names: Sequence[str], rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """Write the table of columns: what does not fit the width goes below, with the models again."""
    made = columns_table(names, rows)
    texts = [[shown_cell(value) for value in line] for line in made.rows]
    widths = [
        max(len(text) for text in (head, *(line[i] for line in texts)))
        for i, head in enumerate(made.heads)
    ]
    blocks: list[list[int]] = []
    room = 0
    for i in range(1, len(made.heads)):
        if not blocks or room < widths[i] + len(GAP):
            blocks.append([0])
            room = columns() - widths[0]
        blocks[-1].append(i)
        room -= widths[i] + len(GAP)
    parts = []
    for block in blocks:
        lines = [[line[i] for i in block] for line in texts]
        align = "".join(made.align[i] for i in block)
        parts.append("\n".join(table([made.heads[i] for i in block], lines, align)))
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"
