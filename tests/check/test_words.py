"""A difference in words, to the letter: mistakes that people made, found again, exactly.

`words.json` has a formula a line, the terms with their values, and in `why` how these come about.
`first`: the words before the first other explanation of the same difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily, one_in

import metacount

CASES = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
# somebody's formula, as it was published
QWEN3_DENSE = (
    "n_layers*(2*d_model + 3*d_model*d_ff + 2*n_heads*head_dim*d_model"
    " + 2*n_kv_heads*head_dim*d_model + 2*head_dim) + d_model*(2*vocab_size+1)"
)


@daily(12)
@pytest.mark.parametrize("case", one_in(3, CASES))
def test_the_words_of_a_mistake(case: dict[str, Any]) -> None:
    result = metacount.check(case["formula"], case["model"], quantity=case["quantity"])
    assert result.verdict == "wrong"
    assert sum(term.value for term in result.terms) == result.difference_value
    terms = [[term.words, int(term.value)] for term in result.terms]
    if case.get("first"):
        terms = [[words.partition(", or ")[0], value] for words, value in terms]
    if all(isinstance(term, list) for term in case["terms"]):
        assert sorted(terms) == sorted(case["terms"])
    else:
        assert [words for words, value in terms if value] == case["terms"]


def test_somebody_was_right() -> None:
    assert metacount.check(QWEN3_DENSE, "qwen3-32b").verdict == "equal"


@pytest.mark.parametrize(
    ("model", "more", "words", "value"),
    [
        # t5-small: 6 encoder blocks with two norms of 512 and two FFN matrices of 512·2048
        ("t5-small", "- N_e*d", "encoder: one of the 2 norms of the blocks left out", -3072),
        ("t5-small", "- N_e*d*m", "encoder: one of FFN up_proj and down_proj left out", -6_291_456),
        # 3·58·7168·2048
        ("deepseek-v3", "+ 3*(N - N_0)*d*m_e", "one expert too many in each MoE layer", 2554331136),
    ],
)
def test_a_mistake_in_our_own_form(model: str, more: str, words: str, value: int) -> None:
    result = metacount.check(f"{metacount.check('1', model).ours} {more}", model)
    assert [(term.words, term.value) for term in result.terms] == [(words, value)]
