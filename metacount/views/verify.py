"""Witnesses side by side as text: one model in full, or a line for each of many."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph, table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.check import Verification

DASH = "-"


def verification_text(result: Verification, name: str) -> str:
    """Every quantity with what each witness says, where they come from, and the verdict."""
    from metacount.check import QUANTITIES

    witnesses = result.witnesses
    rows = []
    for quantity in QUANTITIES:
        figures = [w.figures[quantity] for w in witnesses]
        known = {value for value in figures if value is not None}
        if known <= {0}:  # nobody has an opinion, or all say that there is none of it
            continue
        several = sum(value is not None for value in figures) > 1
        mark = "differ" if len(known) > 1 else "equal" if several else ""
        rows.append((quantity, *(DASH if v is None else units.exact(v) for v in figures), mark))
    heads = ("", *(w.name for w in witnesses), "")
    width = columns()
    run = result.workload
    work = f"batch_size {run.batch_size}, seq_len {run.seq_len}, dtype {run.dtype}"
    if run.source_len is not None:
        work += f", source_len {run.source_len}"
    lines = [bold(name) + (f"  ({result.model})" if name != result.model else ""), work, ""]
    lines += table(heads, rows, "<" + ">" * len(witnesses) + "<")
    label = max(len(w.name) for w in witnesses)
    said_by = [(w.name, w.detail) for w in witnesses] + [("note", note) for note in result.notes]
    lines += [""]
    for who, said in said_by:
        lines += paragraph(f"{who:{label}}", said, width)
    return "\n".join([*lines, "", *_verdict(result, width)]) + "\n"


def _verdict(result: Verification, width: int) -> list[str]:
    if result.agree and len(result.witnesses) == 1:
        said = "there is nothing to compare it with"
        return paragraph("one witness", said, width, style=bold)
    if result.agree:
        parts = "every quantity, role by role"
        exact = [w.name for w in result.witnesses if w.figures["params"] is not None]
        said = f"{', '.join(exact)}: {parts}, to the last digit"
        return paragraph("agree", said, width, style=bold)
    lines = [bold("DISAGREE")]
    for difference in result.differences:
        lines += paragraph("", difference, width)
    return lines


def verifications_text(results: list[Verification]) -> str:
    """A line for each model and a closing line for all."""
    rows = []
    for result in results:
        published = next((w for w in result.witnesses if w.name == "published"), None)
        exact = published is not None and published.figures["params"] is not None
        rows.append((
            result.model,
            units.exact(result.witnesses[0].figures["params"] or 0),
            " = ".join(w.name for w in result.witnesses if w.name != "published")
            if result.agree else "DISAGREE",
            "equal" if exact and result.agree else "DIFFERENT" if exact
            else DASH if published is None else published.detail.partition(":")[0],
        ))  # fmt: skip
    heads = ("model", "params", "witnesses", "published")
    wrong = [result for result in results if not result.agree]
    lines = table(heads, rows, "<><<")
    agreeing = len(results) - len(wrong)
    lines += ["", bold(f"{agreeing} of {len(results)} models agree")]
    for result in wrong:
        lines += [f"{result.model}:", *("  " + line for line in result.differences)]
    return "\n".join(lines) + "\n"
