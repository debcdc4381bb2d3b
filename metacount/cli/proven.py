"""What the record of proofs says of a model's figures: short for `count`, whole for `verify`."""

from __future__ import annotations

from metacount.cli.layout import paragraph
from metacount.textbook.proven import CODE, SHOWN, sizes_text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.textbook.proven import Against, Proven, Said

WHY = " (verify --all-sizes)"


def proven_notes(proof: Proven) -> list[tuple[str, str]]:
    """Say what the figures are proven against, and what is another figure than what was proven."""
    sides = [against for against in (proof.code, proof.ours) if against is not None]
    equal = [
        _whose(it, proof, version=True) + " (in part)" * (len(it.of("equal")) < len(it.said))
        for it in sides
        if it.of("equal")
    ]
    wrong = {one.quantity: one.text for it in sides for one in it.of("other figure")}
    notes = [("proven   ", f"against {' and '.join(equal)}")] if equal else []
    return [*notes, *(("unproven ", f"{quantity}: {why}") for quantity, why in wrong.items())]


def proven_lines(proof: Proven, width: int) -> list[str]:
    """Write what the figures are proven against, and a line for what is not: no domains."""
    lines = [line for note in proven_notes(proof) for line in paragraph(*note, width)]
    sides = [against for against in (proof.code, proof.ours) if against is not None]
    for against in sides:
        whose = _whose(against, proof)
        for label, verdict, what in (
            ("runs more", "chosen", f"{whose} also runs experts that a token did not choose"),
            ("differs  ", "differs", f"not what {whose} computes"),
        ):
            if those := against.of(verdict):
                lines += paragraph(label, f"{_names(those)}: {what}", width)
        if those := against.of("not said"):
            reasons = dict.fromkeys(one.text for one in those)
            said = f"{_names(those)} against {whose}"
            room = width - len("unproven   ") - len(said)
            why = next((w for w in (f": {'; '.join(reasons)}", WHY) if len(w) <= room), "")
            lines += paragraph("unproven ", said + why, width)
    return lines


def recorded_lines(proof: Proven, width: int) -> list[str]:
    """Write all that is recorded: what is equal to code and for which sizes, what is not, what is
    not said and why.
    """
    lines: list[str] = []
    for against in (proof.code, proof.ours):
        if against is None:
            continue
        whose = _whose(against, proof, version=True)
        domain = sizes_text(against.where, proof.small, SHOWN)
        if equal := against.of("equal"):
            lines += paragraph(
                "proven   ", f"{_names(equal)}: equal to {whose}, for {domain}", width
            )
        for one in against.of("chosen"):
            said = (
                f"{one.quantity}: the formula counts the experts that a token chose, and is "
                f"equal to {whose} for them; that code runs {one.text} more FLOPs, on experts "
                f"that it did not choose; for {domain}"
            )
            lines += paragraph("runs more", said, width)
        for one in against.of("differs"):
            said = f"{one.quantity}: the formula less {whose} is {one.text}"
            lines += paragraph("differs  ", said, width)
        reasons: dict[str, list[Said]] = {}
        for one in against.of("not said", "other figure"):
            reasons.setdefault(one.text, []).append(one)
        for why, those in reasons.items():
            said = f"{_names(those)}: not said to be proven against {whose}: {why}"
            lines += paragraph("unproven ", said, width)
    return lines


def _whose(against: Against, proof: Proven, *, version: bool = False) -> str:
    if against.side != CODE:
        return "our modules"
    numbers = f" {'.'.join(proof.transformers.split('.')[:2])}'s" if version else "'"
    other = proof.own_type not in (None, against.name)
    return f"transformers{numbers} {against.name}" + (" (same structure)" * other)


def _names(said: Iterable[Said]) -> str:
    return ", ".join(one.quantity for one in said)
