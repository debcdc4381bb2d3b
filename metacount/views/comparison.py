"""The figures of several models side by side, whether counted by formula or measured."""

from __future__ import annotations

import os

from metacount import units
from metacount.figures import COUNTED, is_shown
from metacount.files import CONFIG
from metacount.resolve import Model
from metacount.spec import DTYPE_BYTES
from metacount.views.layout import bold, columns, paragraph, table, width_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.resolve import TransformersOnly

DASH = "-"
FACTS = ("kind", "n_layers", "d_model")


def heading(model: Model | TransformersOnly) -> str:
    """Choose the heading of a model's column: its id, or the folder or file of its config.

    >>> from metacount.resolve import find_any
    >>> heading(find_any("gpt2")), heading(find_any("type:llama"))
    ('gpt2', 'type:llama')
    """
    if model.source is None or model.source.folder is None:
        return model.id
    file = os.path.basename(model.id)
    return os.path.basename(model.source.folder) if file == CONFIG else file.removesuffix(".json")


def comparison_text(models: Sequence[Model | TransformersOnly], data: Sequence[Json]) -> str:
    """Write what `count --json` says of each model, as many columns at once as fit."""
    width = columns()
    labels = _labels(data)
    cells = [_cells(model, each, labels) for model, each in zip(models, data, strict=True)]
    names = [heading(model) for model in models]
    blocks: list[list[int]] = []
    for i in range(len(models)):
        block = [*(blocks[-1] if blocks else []), i]
        heads, rows = _side_by_side(names, labels, cells, block)
        if blocks and width_of(heads, rows) <= width:
            blocks[-1] = block
        else:
            blocks.append([i])
    texts = [bold(_common_line(data))]
    for block in blocks:
        heads, rows = _side_by_side(names, labels, cells, block)
        texts.append("\n".join(table(heads, rows, "<" + ">" * len(block))))
    return "\n\n".join([*texts, "\n".join(notes(models, data, width))]) + "\n"


def notes(
    models: Sequence[Model | TransformersOnly], data: Sequence[Json], width: int
) -> list[str]:
    """Write what is to be said of the figures: warnings, and where they come from."""
    lines: list[str] = []
    for model, each in zip(models, data, strict=True):
        for warning in each["warnings"]:
            lines += paragraph(f"warning  {heading(model)}", warning, width)
    counted = (
        "by the formulas; `metacount verify MODEL` compares them with code, "
        "`metacount count MODEL` says what each figure means"
    )
    if any(isinstance(model, Model) for model in models):
        lines += paragraph("counted", counted, width)
    for model, each in zip(models, data, strict=True):
        if not isinstance(model, Model):
            lines += paragraph(f"measured  {heading(model)}", f"by {each['detail']}", width)
    return lines


def _common_line(data: Sequence[Json]) -> str:
    """Write the workload, as far as it is common to all models."""
    runs = [each["workload"] for each in data]
    parts = [f"batch {runs[0]['batch_size']}"]
    for name, label in (("seq_len", "seq"), ("source_len", "source"), ("prefix_len", "prefix")):
        values = {run[name] for run in runs}
        if len(values) == 1 and (value := values.pop()):
            parts.append(f"{label} {value}")
    dtype = runs[0]["dtype"]
    return ", ".join([*parts, f"{dtype} ({DTYPE_BYTES[dtype]} bytes per value)"])


def _labels(data: Sequence[Json]) -> list[str]:
    roles = [role for role in data[0]["by_role"] if any(each["by_role"].get(role) for each in data)]
    buffers = dict.fromkeys(n for each in data for n, k in (each["buffers"] or {}).items() if k)
    run = ["seq_len"] if len({each["workload"]["seq_len"] for each in data}) > 1 else []
    shown = [n for n in COUNTED if is_shown(n, [each.get(n) for each in data])]
    return [*FACTS, "", *roles, "params", *buffers, "", *run, *(n for n in shown if n != "params")]


def _cells(model: Model | TransformersOnly, data: Json, labels: Sequence[str]) -> list[str]:
    return ["" if not label else _cell(model, data, label) for label in labels]


def _cell(model: Model | TransformersOnly, data: Json, label: str) -> str:
    if label in FACTS:
        if not isinstance(model, Model):
            return DASH
        text = str(getattr(model.spec, label))
        encoder = label == "n_layers" and model.spec.has_encoder
        return f"{model.spec.n_encoder_layers} + {text}" if encoder else text
    if label == "seq_len":
        return str(data["workload"][label])
    value = {**data, **(data["buffers"] or {}), **data["by_role"]}.get(label)
    return DASH if value is None else units.exact(value)


def _side_by_side(
    names: Sequence[str], labels: Sequence[str], cells: Sequence[Sequence[str]], block: list[int]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    heads = ("", *(names[i] for i in block))
    rows = [
        (label, *(cells[i][row] for i in block)) if label else ()
        for row, label in enumerate(labels)
    ]
    return heads, rows
