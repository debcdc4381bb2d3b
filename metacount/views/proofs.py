"""Textbook formulas against the forms read off code, case by case, for all sizes of a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.textbook.proven import FROM, sizes_text
from metacount.verify.recording import conditions_of
from metacount.views.code_form import in_fields
from metacount.views.layout import bold, columns, paragraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.verify.cases import Case
    from metacount.verify.for_all_sizes import Proof

    Shown = Sequence[tuple[Case, Sequence[Proof]]]


def proofs_text(name: str, shown: Shown) -> str:
    """Write a line for each case and quantity: equal, refuted with what is left, or not shown."""
    width = columns()
    lines = [bold(f"{name}: formula less the form read off code")]
    label = max(len(proof.quantity) for _, proofs in shown for proof in proofs)
    for case, proofs in shown:
        lines += ["", bold(case.name)]
        for proof in proofs:
            lines += paragraph(f"{proof.quantity:{label}}", _said(proof), width)
        if any(proof.form is not None for proof in proofs):
            every = sizes_text(where_of(proofs))
            lines += paragraph(f"{'that is':{label}}", every, width)
    form = next((p.form for _, proofs in shown for p in proofs if p.form is not None), None)
    if form is not None:
        lines += ["", *paragraph(f"{'code':{label}}", form.source, width)]
    return "\n".join(lines) + "\n"


def _said(proof: Proof) -> str:
    if proof.problem:
        return f"not shown: {proof.problem}"
    if proof.differences:
        left = "; ".join(f"{role} {in_fields(expr)}" for role, expr in proof.differences.items())
        return f"differs: {left}" + (f" ({proof.note})" if proof.note else "")
    if proof.idle is not None:
        return (
            f"0 for the experts that a token chose; the code runs {in_fields(proof.idle)} "
            "more FLOPs, on experts that it did not choose"
        )
    return "0: equal for all sizes of this case"


def where_of(proofs: Sequence[Proof]) -> list[str]:
    """List the domain of several proofs together, in words."""
    found = (one.says for proof in proofs for one in conditions_of(proof, in_fields))
    return list(dict.fromkeys(filter(None, found)))


def proofs_data(shown: Shown) -> list[Json]:
    """Convert proofs to plain data, one after the other; `case` says of which sizes."""
    return [
        {
            "quantity": proof.quantity,
            "case": case.name,
            "proven": proof.proven,
            "equal_for_chosen_experts": proof.of_chosen,
            "more_by_code": None if proof.idle is None else in_fields(proof.idle),
            "differences": {role: in_fields(expr) for role, expr in proof.differences.items()},
            "problem": proof.problem,
            "note": proof.note,
            "sizes_from": FROM,
            "domain": where_of([proof]),
            "code": None if proof.form is None else in_fields(proof.form.total),
            "source": None if proof.form is None else proof.form.source,
        }
        for case, proofs in shown
        for proof in proofs
    ]
