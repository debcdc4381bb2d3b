"""`metacount check` as a person runs it: exit codes, text and JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.release import daily

from metacount.cli import main

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_equal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, LLAMA, "llama-7b")
    assert (code, err) == (0, "")
    first = out.partition("\n\n")[0].replace("\n", " ")
    assert first == (
        "equal for all sizes (d_model, n_layers, vocab_size, n_heads, n_kv_heads, head_dim, d_ff)"
    )
    assert "= 6,738,415,616" in out


def test_wrong_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + d*k + 3*k*d*m_e + 2*d)"
    code, out, _ = run(capsys, text, "mixtral-8x7b", "--quantity", "active_params")
    assert code == 1 and out.startswith("wrong: short by 786,432 (-0.0061 %)\n")
    last = "short by n_layers·d_model·(n_experts - top_k) = 786,432: the router is counted for the"
    assert f"{last} active experts only" in " ".join(out.split())


def test_equal_here(capsys: pytest.CaptureFixture[str]) -> None:
    text = LLAMA.replace("2*d*h_d*(h + h_kv)", "4*d^2")
    code, out, _ = run(capsys, text, "llama-7b")
    assert code == 1
    assert out.startswith("equal at these sizes, but not in general\n")
    assert "n_heads·head_dim = d_model and n_heads = n_kv_heads" in out
    assert "the formula gives 12" in " ".join(out.split())
    assert "^ is read as a power" in out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, LLAMA.replace("3*d*m", "2*d*m"), "llama-7b", "--json")
    data = json.loads(out)
    assert code == 1
    assert data["verdict"] == "wrong" and data["holds"] is False
    assert data["model"] == "llama-7b" and data["quantity"] == "params"
    assert data["ours_value"] == 6_738_415_616
    # N·d·m = 32·4096·11008
    assert data["difference_value"] == -1_442_840_576
    assert data["terms"] == [
        {
            "expr": "-N*d*m",
            "value": -1_442_840_576,
            "words": "one of FFN gate_proj, up_proj and down_proj left out",
            "known": True,
        }
    ]


@daily(3)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for text, model in [("12*n_layers*d_model**2", "gpt2"), ("n_layers", "llama3-8b")]:
        _, out, _ = run(capsys, text, model)
        assert [line for line in out.splitlines() if len(line) > width] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("L[0]", "llama-7b"), "indexing at column 2"),
        (("d*frobs", "llama-7b"), "'frobs' is no size"),
        (("d", "llama-7b", "--quantity", "flops"), "--quantity 'flops' is unknown; did you mean"),
        (("mine.py", "llama-7b"), "which function? give FILE.py:FUNCTION"),
        (("none.py:f", "llama-7b"), "no such file"),
        (("1/(d - 4096)", "llama-7b"), "divides by zero at the sizes of the model"),
        (("(d - 4096)**-1", "llama-7b"), "divides by zero at the sizes of the model"),
        (("d", "llama-7b", "--timeout", "0"), "must be seconds, more than 0"),
        (("d", "llama-7b", "--timeout", "nan"), "must be seconds, more than 0"),
        (("d", "llama4-maverick"), "has no spec, so there is no formula"),
        (("d", "no-such-model"), "is not in the catalog"),
        (("d", "type:zamba"), "has no spec, so there is no formula"),
    ],
)
def test_no_formula_is_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_check_imports_no_torch() -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        f"assert main(['check', {LLAMA!r}, 'llama-7b']) == 0\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
