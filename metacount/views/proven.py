"""What the record of proofs says of a model and a workload, with its domain, for `count`."""

from __future__ import annotations

from metacount.textbook.domain import SHOWN, sizes_text
from metacount.textbook.proof_record import CODE
from metacount.views.layout import paragraph

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.textbook.proven import Against, Proven, Said

ANEW = "`verify --all-sizes` shows it anew"


def proven_lines(proof: Proven, width: int) -> list[str]:
    """Write what is equal to code and for which sizes, what is not, what is not said and why."""
    lines: list[str] = []
    for against in (proof.code, proof.ours):
        if against is None:
            continue
        whose = "our reference modules"
        if against.side == CODE:
            whose = f"the code of {against.name} in transformers {proof.transformers}"
        if equal := against.of("equal"):
            said = f"{_names(equal)}: equal to {whose}, for {_domain(against, proof)}"
            lines += paragraph("proven   ", said, width)
        for one in against.of("chosen"):
            said = (
                f"{one.quantity}: the formula counts the experts that a token chose, and is "
                f"equal to {whose} for them; that code runs {one.text} more FLOPs, on experts "
                f"that it did not choose; for {_domain(against, proof)}"
            )
            lines += paragraph("runs more", said, width)
        for one in against.of("differs"):
            said = f"{one.quantity}: the formula less {whose} is {one.text}"
            lines += paragraph("differs  ", said, width)
        reasons: dict[str, list[Said]] = {}
        for one in against.of("not said"):
            reasons.setdefault(one.text, []).append(one)
        for why, those in reasons.items():
            said = f"{_names(those)}: not said to be proven against {whose}: {why}"
            lines += paragraph("unproven ", said, width)
    return lines + paragraph("         ", ANEW, width) if lines else []


def _names(said: list[Said] | tuple[Said, ...]) -> str:
    return ", ".join(one.quantity for one in said)


def _domain(against: Against, proof: Proven) -> str:
    return sizes_text(against.where, proof.small, SHOWN)
