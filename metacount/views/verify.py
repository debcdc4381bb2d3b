"""Witnesses side by side as text: one model in full, or a line for each of many."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph, table, width_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.verify.compare import Verification
    from metacount.verify.forward import Forward

DASH = "-"


def verification_text(result: Verification, name: str) -> str:
    """Write every quantity with what each witness says, where they come from, and the verdict."""
    from metacount.witness import QUANTITIES

    witnesses = result.witnesses
    said = {name: [w.figures[name] for w in witnesses] for name in QUANTITIES}
    # nobody has an opinion, or all say that there is none of it
    said = {name: values for name, values in said.items() if not {*values} <= {None, 0}}
    heads = ("", *(w.name for w in witnesses), "")
    rows = [
        (name, *(DASH if v is None else units.exact(v) for v in values), _mark(values))
        for name, values in said.items()
    ]
    width = columns()
    run = result.workload
    work = f"batch_size {run.batch_size}, seq_len {run.seq_len}, dtype {run.dtype}"
    if run.source_len is not None:
        work += f", source_len {run.source_len}"
    lines = [bold(name) + (f"  ({result.model})" if name != result.model else ""), work, ""]
    if width_of(heads, rows) <= width:
        lines += table(heads, rows, "<" + ">" * len(witnesses) + "<")
    else:
        lines += table(("", "value", "said by"), _by_value(said, [*heads[1:-1]]), "<><")
    label = max(len(w.name) for w in witnesses)
    told = [(w.name, w.detail) for w in witnesses] + [("note", note) for note in result.notes]
    lines += [""]
    for who, text in told:
        lines += paragraph(f"{who:{label}}", text, width)
    return "\n".join([*lines, "", *_verdict(result, width)]) + "\n"


def _mark(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if len({*known}) > 1:
        return "differ"
    return "equal" if len(known) > 1 else ""


def _by_value(
    said: dict[str, list[int | None]], names: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Make a row for each value that is given, with those who give it: for narrow terminals."""
    rows = []
    for quantity, values in said.items():
        known = dict.fromkeys(value for value in values if value is not None)
        for i, value in enumerate(known):
            who = [name for name, given in zip(names, values, strict=True) if given == value]
            rows.append(("" if i else quantity, units.exact(value), " = ".join(who)))
    return rows


def _verdict(result: Verification, width: int) -> list[str]:
    if result.agree and len(result.witnesses) == 1:
        said = "there is nothing to compare it with"
        return paragraph("one witness", said, width, style=bold)
    if result.agree:
        exact = [w.name for w in result.witnesses if w.figures["params"] is not None]
        said = f"{', '.join(exact)}: whatever two of them give, role by role, to the last digit"
        return paragraph("agree", said, width, style=bold)
    lines = [bold("DISAGREE")]
    for difference in result.differences:
        lines += paragraph("", difference, width)
    return lines


def verifications_text(results: list[Verification]) -> str:
    """Write a line for each model and a closing line for all."""
    rows = []
    for result in results:
        published = next((w for w in result.witnesses if w.name == "published"), None)
        exact = published is not None and published.figures["params"] is not None
        rows.append(
            (
                result.model,
                units.exact(result.witnesses[0].figures["params"] or 0),
                " = ".join(w.name for w in result.witnesses if w.name != "published")
                if result.agree
                else "DISAGREE",
                "equal"
                if exact and result.agree
                else "DIFFERENT"
                if exact
                else DASH
                if published is None
                else published.detail.partition(":")[0],
            )
        )
    heads = ("model", "params", "witnesses", "published")
    wrong = [result for result in results if not result.agree]
    lines = table(heads, rows, "<><<")
    alone = [r for r in results if r.agree and len(r.witnesses) == 1]
    agreeing = len(results) - len(wrong) - len(alone)
    lines += ["", bold(f"{agreeing} of {len(results)} models agree")]
    if alone:
        lines += [f"{len(alone)} with one witness, and nothing to compare it with"]
    for result in wrong:
        lines += [f"{result.model}:", *("  " + line for line in result.differences)]
    return "\n".join(lines) + "\n"


def forward_text(name: str, found: Forward) -> str:
    """Write how far apart the two forwards of a model are, and what was offloaded for them."""
    from metacount.verify.forward import TOLERANCE

    width = columns()
    ran = f"batch_size {found.batch_size}, seq_len {found.seq_len}, fp32 on {found.device}"
    lines = ["", bold(f"{name}: a forward of both modules, with the same weights"), ran]
    if found.refused:
        return "\n".join([*lines, *paragraph("not run", found.refused, width)]) + "\n"
    apart = "are not finite, or of another shape"
    if found.largest_difference is not None:
        apart = f"differ by at most {found.largest_difference:.1e} of the largest"
    said = f"{units.exact(found.values)} {found.compared} of transformers and of the reference"
    said = f"{said} {apart} (allowed in float32: {TOLERANCE:.0e})"
    lines += paragraph("equal" if found.agree else "DIFFERENT", said, width, style=bold)
    if any(found.offloaded_bytes):
        theirs, ours = (units.gib(size) for size in found.offloaded_bytes)
        said = f"through accelerate's dispatch: {theirs} of transformers' module, {ours} of ours"
        lines += paragraph("offloaded", said, width)
    return "\n".join(lines) + "\n"
