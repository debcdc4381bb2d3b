"""Textbook formulas against the forms read off code, for all sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacount.tracing.domain import in_words
from metacount.tracing.sizes import SMALLEST
from metacount.views.code_form import in_fields
from metacount.views.layout import bold, columns, paragraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.proofs import Proof


def proofs_text(name: str, proofs: Sequence[Proof]) -> str:
    """A line for each quantity: proven, refuted with what is left, or why nothing was shown."""
    width = columns()
    lines = [bold(f"{name}: formula less the form read off code, for all sizes")]
    label = max(len(proof.quantity) for proof in proofs)
    for proof in proofs:
        lines += paragraph(f"{proof.quantity:{label}}", _said(proof), width)
    where = list(dict.fromkeys(text for proof in proofs for text in _where(proof)))
    every = f"all sizes from {SMALLEST}" + (", where " + "; ".join(where) if where else "")
    lines += paragraph(f"{'that is':{label}}", every, width)
    form = next((proof.form for proof in proofs if proof.form is not None), None)
    if form is not None:
        lines += paragraph(f"{'code':{label}}", form.source, width)
    return "\n".join(lines) + "\n"


def _said(proof: Proof) -> str:
    if proof.proven:
        return "0: equal for all sizes"
    if proof.problem:
        return f"not shown: {proof.problem}"
    left = "; ".join(f"{role} {in_fields(expr)}" for role, expr in proof.differences.items())
    return f"differs: {left}"


def _where(proof: Proof) -> list[str]:
    if proof.form is None:
        return []
    return [*(in_words(c, in_fields) for c in proof.form.domain), *proof.form.solved]


def proofs_data(proofs: Sequence[Proof]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "quantity": proof.quantity,
            "proven": proof.proven,
            "differences": {role: in_fields(expr) for role, expr in proof.differences.items()},
            "problem": proof.problem,
            "domain": _where(proof),
            "code": None if proof.form is None else in_fields(proof.form.total),
            "source": None if proof.form is None else proof.form.source,
        }
        for proof in proofs
    ]
