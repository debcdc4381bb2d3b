"""`metacount audit` as it is typed: table, one formula, MFU, JSON, Markdown, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from helpers.release import daily

from metacount.audit.judge import Found, mfu
from metacount.audit.record import Formula
from metacount.cli import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["audit", *arguments]) == 0
    return capsys.readouterr().out


@daily(2)
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(capsys, "accelerate", "eleuther-cookbook", "megatron-lm", "vllm")
    assert max(map(len, text.splitlines())) <= width
    for said in (
        "FLOPs of training",
        "bytes of the KV cache",
        "-50.00 %",
        "half is missing",
        "bytes of activations",
        "bytes of weights, gradients and optimizer",
    ):
        assert said in text


def test_nothing_of_torch_is_loaded() -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        "main(['audit', 'slime', '--model', 'qwen3-4b'])\nprint('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "False"


def test_one_formula_term_by_term(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, "accelerate-training", "--model", "llama3-8b")
    # the numbers are those of test_audit_verdicts, by hand
    for said in (
        "12*1*2048*32*(4096//32)*(32 + 8)",
        "4,026,531,840",
        "off by -17.85 %",
        "projections lack the factor d_model: -16,488,647,884,800",
        "proven equal to",
        "3·(B + A) = 92,358,976,733,184",
        "with the real function",
    ):
        assert said in text
    small = re.search(r"theirs ([\d,]+), ours ([\d,]+)", " ".join(text.split()))
    assert small is not None and small[1] != small[2]


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = json.loads(printed(capsys, "accelerate-training", "--model", "llama3-8b", "--json"))
    assert sum(term["value"] for term in one["theirs"]) == one["found"]["theirs"]
    gap = one["found"]["theirs"] - one["found"]["ours"]
    (palm,) = json.loads(printed(capsys, "palm", "--model", "llama-7b", "--json"))
    in_all = sum(part["value"] for part in palm["parts"])
    assert in_all == palm["ours"][0]["value"] == 2048 * 6_738_415_616
    (four,) = json.loads(printed(capsys, "slime", "--model", "mixtral-8x7b", "--json"))
    amounts = {amount["of"]: amount["value"] for amount in four["ours"]}
    parts = {part["of"]: part["value"] for part in four["parts"]}
    assert sum(parts.values()) == amounts["W"]
    # Mixtral's head, 2,048 tokens
    assert parts["W, head"] == 2 * 2048 * 4096 * 32000
    assert sum(term["value"] for term in one["difference"]) == gap and one["unaccounted"] == 0
    rows = json.loads(printed(capsys, "vllm", "--json"))
    assert [row["verdict"] for row in rows] == ["equal", "equal"]
    assert rows[0]["in_scope"]["equal"] == sum(m["in_scope"] for m in rows[0]["models"])


def test_mfu_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    # LLaMA-3-8B at 8,192 tokens, 3·(W + C) = 51,471,187,968 FLOPs a token (tests/test_conventions)
    # at 8,000 tokens a second on 989 TFLOP/s
    rows = mfu("llama3-8b", [8192], tokens_per_second=Fraction(8000), peak_tflops=Fraction(989))
    exact = Fraction(51_471_187_968 * 8000, 989 * 10**12)
    assert rows[0].formula is None and rows[0].mfu == (exact,)
    by_id = {row.formula.id: row for row in rows[1:] if row.formula is not None}
    assert by_id["nanotron-training"].per_token == (57_912_852_480,)
    assert by_id["palm-training"].per_token == (61_066_469_376,)
    assert by_id["maxtext-deepseek-training"].mfu == (None,)
    text = printed(
        capsys,
        "--mfu",
        "llama3-8b",
        "--seq",
        "8192",
        "--tokens-per-second",
        "8_000",
        "--peak",
        "989",
    )
    assert "41.63 %" in text and "palm-training" in text
    run = ["--mfu", "llama3-8b", "gpt2", "--tokens-per-second", "1e4", "--peak", "312", "--json"]
    both = json.loads(printed(capsys, *run))
    assert [one["model"] for one in both] == ["llama3-8b", "gpt2"]
    assert [one["seq_len"] for one in both] == [[2048, 8192, 32768], [1024]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["megatron"], "'megatron'"),
        (["--mfu", "gpt2"], "--mfu needs --tokens-per-second and --peak"),
        (["--peak", "989"], "--peak belongs to --mfu"),
        (["--model", "gpt2"], "--model needs a NAME"),
        (["slime", "--model", "t5-small"], ""),
        (["slime", "--model", "jamba-1.5-mini"], ""),
        (["slime", "--model", "deepseek-v3.2"], ""),
        (["slime", "--model", "longcat-flash"], ""),
        (["slime", "--model", "gemma-3n-e4b-text"], "n_altup_inputs"),
        (
            ["--mfu", "t5-small", "--tokens-per-second", "1", "--peak", "1"],
            "t5-small",
        ),
        (
            ["--mfu", "mamba2-130m", "--tokens-per-second", "1", "--peak", "1"],
            "mamba2-130m",
        ),
        (
            ["--mfu", "gpt2", "--seq", "2048", "--tokens-per-second", "1", "--peak", "1"],
            "gpt2 has 1024 positions",
        ),
        (["--set", "n_layers=2"], "--set belongs to --model or --mfu"),
        (["--seq", "0"], ""),
        (["--jobs", "0"], "must be 1 to 64"),
        (["--mfu", "gpt2", "--peak", "fast"], "'fast'"),
    ],
)
def test_what_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and "Traceback" not in captured.err


def test_an_interrupt_keeps_what_was_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metacount.audit import judge as report

    real = report.at_every_model

    def stopped(job: tuple[Formula, tuple[int, ...]]) -> tuple[Found, ...]:
        if job[0].id == "nanochat-prefill":
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(report, "at_every_model", stopped)
    assert main(["audit", "nanochat", "--json"]) == 130
    captured = capsys.readouterr()
    assert [row["id"] for row in json.loads(captured.out)] == ["nanochat-training"]
