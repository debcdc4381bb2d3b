"""`metacount check` as a person runs it: exit codes, text and JSON."""

from __future__ import annotations

import json
import re

import pytest
from helpers.command_line import Ask

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
ROUTED = LLAMA.replace("3*d*m", "d*k + 3*k*d*m_e")
# A formula, a model and options; the exit code and what is printed, its start first.
PRINTED = {
    f"'{LLAMA}' llama-7b": (
        *(0, "equal for all sizes (d_model, n_layers, vocab_size, n_heads, n_kv_heads, head_dim, "),
        "= 6,738,415,616",
    ),
    f"'{ROUTED}' mixtral-8x7b --quantity active_params": (
        *(1, "wrong: short by 786,432 (-0.0061 %) "),
        "short by n_layers·d_model·(n_experts - top_k) = 786,432: the router is counted for the "
        "active experts only",
    ),
    f"'{LLAMA.replace('2*d*h_d*(h + h_kv)', '4*d^2')}' llama-7b": (
        *(1, "equal at these sizes, but not in general "),
        "n_heads·head_dim = d_model and n_heads = n_kv_heads",
        *("the formula gives 12", "^ is read as a power"),
    ),
}


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("line", PRINTED)
def test_what_is_printed(ask: Ask, line: str, width: int) -> None:
    expected, start, *said = PRINTED[line]
    code, out, err = ask.all(f"check {line}", width=width)
    text = "".join(out.split())  # a narrow screen breaks a line between the letters of a product
    assert (code, err) == (expected, "") and text.startswith(str(start).replace(" ", ""))
    assert [words for words in said if str(words).replace(" ", "") not in text] == []
    assert [row for row in out.splitlines() if len(row) > width] == []


def test_json_says_the_same(ask: Ask) -> None:
    code, out, _ = ask.all(f"check '{LLAMA.replace('3*d*m', '2*d*m')}' llama-7b --json")
    data = json.loads(out)
    assert (code, data["verdict"], data["holds"]) == (1, "wrong", False)
    assert (data["model"], data["quantity"]) == ("llama-7b", "params")
    assert data["ours_value"] == 6_738_415_616
    gap = -32 * 4096 * 11008
    words = "one of FFN gate_proj, up_proj and down_proj left out"
    assert data["difference_value"] == gap
    assert data["terms"] == [{"expr": "-N*d*m", "value": gap, "words": words, "known": True}]


REFUSED = """
L[0] llama-7b                      indexing at column 2
d*frobs llama-7b                   'frobs' is no size
d llama-7b --quantity flops        --quantity 'flops' is unknown; did you mean
mine.py llama-7b                   which function? give FILE.py:FUNCTION
none.py:f llama-7b                 no such file
1/(d-4096) llama-7b                divides by zero at the sizes of the model
(d-4096)**-1 llama-7b              divides by zero at the sizes of the model
d llama-7b --timeout 0             must be seconds, more than 0
d llama-7b --timeout nan           must be seconds, more than 0
d llama4-maverick                  has no spec, so there is no formula
d no-such-model                    is not in the catalog
d type:zamba                       has no spec, so there is no formula
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_no_formula_is_exit_2(ask: Ask, row: str) -> None:
    line, said = re.split(" {2,}", row)
    assert said in ask.refused(f"check {line}")
