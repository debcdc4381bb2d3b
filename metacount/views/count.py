"""The figures of one model, each with its definition."""

from __future__ import annotations

from metacount import units
from metacount.catalog import compare_published
from metacount.figures import COUNTED, OF_MTP, is_shown
from metacount.spec import DTYPE_BYTES
from metacount.textbook.count import OTHERS, length_shown
from metacount.textbook.proven import proven_of
from metacount.views.bars import with_bars
from metacount.views.layout import (
    WIDEST_TEXT,
    bold,
    columns,
    noted_table,
    paragraph,
    table,
    wrapped,
)
from metacount.views.models import compared, said_besides
from metacount.views.proven import proven_lines

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.resolve import Model
    from metacount.spec import ModelSpec
    from metacount.textbook.count import Count

DASH = "-"
FLOPS = ("matmul_flops", "causal_matmul_flops")


def count_text(model: Model, result: Count) -> str:
    """Write a model: parameters by role, every figure with its definition, where they are from."""
    width = columns()
    parts = [
        _title(model, width),
        _roles(result),
        _buffers(result, width),
        [
            *map(bold, wrapped(_workload_line(model.spec, result), width)),
            *noted_table((), _figure_rows(model.spec, result), "<>", width),
        ],
        _prediction(model, result, width),
        _notes(model, result, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _title(model: Model, width: int) -> list[str]:
    spec = model.spec
    facts = [spec.kind]
    if spec.has_encoder:
        facts.append(f"{spec.n_encoder_layers} + {spec.n_layers} layers")
    else:
        facts.append(f"{spec.n_layers} layers")
    facts.append(f"d_model {spec.d_model}")
    if spec.vocab_size is not None:
        facts.append(f"vocab_size {spec.vocab_size}")
    if spec.is_moe:
        zero = f" and {spec.n_zero_experts} zero" if spec.n_zero_experts else ""
        facts.append(f"{spec.top_k} of {spec.n_experts}{zero} experts per token")
    lines = [bold(model.name) + (f"  ({model.id})" if model.id != model.name else "")]
    lines += wrapped(", ".join(facts), min(width, WIDEST_TEXT))
    if model.changes:
        changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
        lines += paragraph("changed " if model.computed else "changed", changed, width)
    for said in model.computed:
        lines += paragraph("computed", said, width)
    return lines


def _roles(result: Count) -> list[str]:
    """Write parameters by role; the column of active ones only where it differs."""
    routed = result.active_by_role != result.by_role
    rows = [
        (
            role,
            units.exact(params),
            units.share(params, result.params),
            units.exact(result.active_by_role[role]),
        )
        for role, params in result.by_role.items()
        if params
    ]
    total = (
        "total",
        units.exact(result.params),
        units.share(result.params, result.params),
        units.exact(result.active_params),
    )
    heads = ("role", "params", "share", "active_params")
    shown = 4 if routed else 3
    body = [row[:shown] for row in [*rows, (), total]]
    lines = table(heads[:shown], body, "<>>>"[:shown])
    return with_bars(lines, [params for params in result.by_role.values() if params])


def _buffers(result: Count, width: int) -> list[str]:
    rows = [
        (name, units.exact(values), "buffer values, stored beside the parameters, not among them")
        for name, values in result.buffers.items()
        if values
    ]
    return noted_table((), rows, "<>", width) if rows else []


def _workload_line(spec: ModelSpec, result: Count) -> str:
    run = result.workload
    parts = [f"batch {run.batch_size}", f"seq {length_shown(spec, run.seq_len)}"]
    if run.source_len is not None:
        parts.append(f"source {run.source_len}")
    if run.prefix_len:
        parts.append(f"prefix {run.prefix_len}")
    return ", ".join([*parts, f"{run.dtype} ({DTYPE_BYTES[run.dtype]} bytes per value)"])


def _figure_rows(spec: ModelSpec, result: Count) -> list[tuple[str, str, str]]:
    """List name, exact value, definition in few words with the rounded value before it."""
    no_embed = "without the token table"
    if spec.tie_embeddings:
        no_embed = "its tied token table stays: the head multiplies with it"
    if spec.d_per_layer is not None:
        no_embed = f"without the table of each layer's embeddings; {no_embed}"
    notes = {name: figure.brief for name, figure in COUNTED.items()}
    notes |= {"active_params_no_embed": no_embed}
    if spec.has_encoder:
        notes |= {n: notes[n].replace("forward", "encoder and decoder") for n in FLOPS}
    if result.least_active_params is not None:
        notes["active_params"] = "the most used for one token"
    data = result.to_dict()
    rows = []
    for name, figure in COUNTED.items():
        value = data.get(name)
        if name in OF_MTP or not is_shown(name, [value]):
            continue
        note = f"{figure.short(value)}: {notes[name]}" if value else notes[name]
        if value is None:
            note = "an encoder has no decode step"
        rows.append((name, DASH if value is None else units.exact(value), note))
    return rows


def _prediction(model: Model, result: Count, width: int) -> list[str]:
    """Write what prediction modules add, in a table of their own."""
    if not result.prediction:
        return []
    n = model.spec.n_mtp_layers
    said = f"{n} multi-token-prediction module{'s' if n > 1 else ''}, in none of the figures above"
    rows = [
        (name, units.exact(n), f"{COUNTED[name].short(n)}: {COUNTED[name].brief}")
        for name, n in result.prediction.items()
        if n
    ]
    lines = [*map(bold, wrapped(said, width)), *noted_table((), rows, "<>", width)]
    return [*lines, *paragraph("stored", _stored(model, result), width)]


def _stored(model: Model, result: Count) -> str:
    """Write the published checkpoint as a sum of figures and a rest; "" where none is published."""
    stored = None if model.published is None else model.published.stored_checkpoint
    if stored is None:
        return ""
    parts = result.checkpoint_parts(stored.total)
    words = {"mtp_copies": "copies of embedding and head"}
    terms = " + ".join(f"{units.exact(n)} {words.get(name, name)}" for name, n in parts.items())
    said = f"{units.exact(stored.total)} values in the published checkpoint = {terms}"
    return f"{said} ({stored.note})" if OTHERS in parts else said


def _notes(model: Model, result: Count, width: int) -> list[str]:
    lines: list[str] = []
    for warning in result.warnings:
        lines += paragraph("warning  ", warning, width)
    for note in result.notes:
        lines += paragraph("config   ", note, width)
    entry = model.published
    if entry is not None:
        published = compared(compare_published(entry, result.params), entry)
        lines += paragraph("published", published, width)
        lines += said_besides(entry, width)
    lines += paragraph("units    ", "B = 10^9, T = 10^12; GiB = 2^30 bytes", width)
    check = "by formulas; `verify` compares with code, `--all-sizes` proves them"
    lines += paragraph("counted  ", check, width)
    proof = proven_of(model, result)
    return lines if proof is None else [*lines, *proven_lines(proof, width)]
