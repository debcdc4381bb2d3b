"""What `check` says of a model's structure, for models that are not all attention."""

from __future__ import annotations

import pytest

from metacount import find_model
from metacount.check.verdict import MIXERS, structure
from metacount.spec import ModelSpec
from metacount.spec.model import CHOICES


def test_every_mixer_has_words() -> None:
    assert {"none", *MIXERS} == set(CHOICES["recurrent"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mamba2-130m", "decoder with Mamba-2, no FFN, RMSNorm, tied head"),
        (
            "jamba-1.5-mini",
            "decoder with Mamba in the layers R of RRRRARRR, multi-head or grouped "
            "attention, gated experts in the layers E of FE, RMSNorm, untied head",
        ),
        (
            "falcon-h1-7b",
            "decoder with Mamba-2 beside attention in every layer, multi-head or "
            "grouped attention, gated FFN, RMSNorm, untied head",
        ),
        (
            "deepseek-v3.2",
            "decoder with MLA that attends to the pairs an indexer selects, gated "
            "experts and shared experts after dense layers, RMSNorm, untied head",
        ),
        (
            "minimax-m3-text",
            "decoder with multi-head or grouped attention that attends to the blocks an indexer "
            "selects in the layers I of GGGIIIIIIIIIIIII..., QK-norm, gated experts and shared "
            "experts after dense layers, RMSNorm, untied head",
        ),
        (
            "longcat-flash",
            "decoder with MLA, gated FFN and beside it gated experts and zero experts in the "
            "layers B of BF, RMSNorm, untied head",
        ),
    ],
)
def test_states_and_patterns_are_said(model: str, said: str) -> None:
    assert structure(find_model(model).spec) == said


def test_shared_blocks_are_said_with_their_adapters() -> None:
    start = "decoder with Mamba-2, behind shared blocks in the layers S of RRRRRS, "
    both = (
        "multi-head or grouped attention, gated FFN, adapters of each use on q, k, v and the FFN, "
    )
    assert structure(find_model("zamba2-1.2b").spec) == f"{start}{both}RMSNorm, tied head"


def test_a_long_pattern_is_cut() -> None:
    said = structure(find_model("nemotron-h-8b").spec)
    assert "Mamba-2 in the layers R of RNRNRNRANRNRNRNR..., " in said
    assert "plain FFN in the layers F of " in said


def test_without_attention_nothing_is_said_of_it() -> None:
    spec: ModelSpec = find_model("mamba-2.8b").spec
    assert "attention" not in structure(spec) and "MLA" not in structure(spec)
