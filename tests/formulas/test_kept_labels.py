"""What the tensors that a backward keeps are called.

A label has no other source than this list: read one that is new before you add it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.miniatures import TINY
from helpers.structures import with_logits

from metacount import SpecError
from metacount.formulas.forward import Pass
from metacount.formulas.kept_model import kept_terms
from metacount.spec import ModelSpec

LABELS = json.loads(Path(__file__).with_name("kept_labels.json").read_text())
# attention, checkpointing, bytes of a value
WAYS = (
    ("eager", "none", 2),
    ("eager", "none", 4),
    ("eager", "full", 4),
    ("flash", "none", 2),
    ("sdpa", "none", 2),
    ("eager", "selective", 2),
    ("flash", "selective", 2),
    ("sdpa", "selective", 4),
)

# what no model of the catalog with logits has
ENDS = {"n_token_types": 3, "embedding_norm": True, "head_transform": True, "d_embedding": 7}
SPECS = with_logits()
SPECS["ends"] = ModelSpec.from_dict({**TINY, "kind": "encoder", **ENDS})
SPECS["values as wide as keys"] = SPECS["deepseek-v2"].replace(v_head_dim=11)


def labels(name: str) -> set[tuple[str, str]]:
    """Role and label of everything that a structure keeps, run in each way that has a formula."""
    spec, found = SPECS[name], set()
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


@pytest.mark.parametrize("name", SPECS)
def test_no_label_is_new(name: str) -> None:
    assert not {label for role, label in labels(name) if label not in LABELS[role]}


def test_every_label_is_used() -> None:
    used = set().union(*map(labels, SPECS))
    assert used == {(role, label) for role, known in LABELS.items() for label in known}
