"""What the tensors that a backward keeps are called.

A label has no other source than this list: read one that is new before you add it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


def labels(name: str) -> set[tuple[str, str]]:
    """Role and label of everything that a structure keeps, run in each way that has a formula."""
    spec, found = miniature(entry(name).spec()), set()
    for attention, checkpointing, width in WAYS:
        step = Pass(
            batch_size=2,
            seq_len=5,
            attention=attention,
            checkpointing=checkpointing,
            bytes_per_value=width,
        )
        try:
            found |= {(term.role, term.name) for term in kept_terms(spec, step)}
        except SpecError:
            continue  # which ones: tests/training/test_each_structure.py
    return found


@pytest.mark.parametrize("name", first_of_each(logits=True))
def test_no_label_is_new(name: str) -> None:
    assert not {label for role, label in labels(name) if label not in LABELS[role]}


def test_every_label_is_used() -> None:
    used = set().union(*map(labels, first_of_each(logits=True)))
    assert used == {(role, label) for role, known in LABELS.items() for label in known}
