"""What the tensors that a backward keeps are called.

A label has no other source than this list: read one that is new before you add it.
"""

from __future__ import annotations

import json
from pathlib import Path

from helpers.miniatures import miniature
from helpers.structures import first_of_each

from metacount import SpecError
from metacount.catalog import entry
from metacount.formulas.forward import Pass
from metacount.formulas.kept_model import kept_terms

LABELS = json.loads(Path(__file__).with_name("kept_labels.json").read_text())
# attention, checkpointing, bytes of a value
WAYS = (
    ("eager", "none", 2),
    ("eager", "full", 4),
    ("flash", "none", 2),
    ("sdpa", "none", 2),
    ("eager", "selective", 2),
)


def test_labels_of_what_is_kept() -> None:
    found: dict[str, set[str]] = {}
    for name in first_of_each(logits=True):
        spec = miniature(entry(name).spec())
        for attention, checkpointing, width in WAYS:
            step = Pass(
                batch_size=2,
                seq_len=5,
                attention=attention,
                checkpointing=checkpointing,
                bytes_per_value=width,
            )
            try:
                terms = kept_terms(spec, step)
            except SpecError:
                continue  # which ones: tests/training/test_each_structure.py
            for term in terms:
                found.setdefault(term.role, set()).add(term.name)
    assert {role: sorted(names) for role, names in sorted(found.items())} == LABELS
