"""`metacount claims` as its users meet it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.changed_claims import changed
from helpers.release import daily, one_day_in

from metacount.cli import main
from metacount.errors import SpecError
from metacount.teaching.claims import TOPICS, claims, find_claim
from metacount.teaching.texts import label


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["claims", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["claims", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@daily(2)
@pytest.mark.parametrize("width", ["80", "100"])
def test_the_list_fits_and_ends_with_the_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = run(capsys).splitlines()
    assert [line for line in lines if len(line) > int(width)] == []
    assert [line for line in lines if line.isupper() and not line.startswith(" ")] == [
        topic.upper() for topic in TOPICS
    ]
    assert "110 statements: 52 right, 22 conditional, 36 wrong" in lines
    for claim in claims():
        assert f"  {claim.id}" in lines


def test_help_names_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {*TOPICS} <= {*words}


@daily(2)
@pytest.mark.parametrize("width", ["80", "100"])
def test_whole_computations_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = run(capsys, *(claim.id for claim in claims())).splitlines()
    assert [line for line in lines if len(line) > int(width)] == []


def test_a_squared_letter_is_explained_and_a_percent_sign_stays_with_its_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, "minimax-state")
    assert "d_l²·h_l" in text and "d_l width of one of its keys and values" in text
    assert "75 % smaller than with MLA in every layer." in run(capsys, "kimi-linear-cache-75")


def test_one_claim_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "llama-7b-attention")
    assert text.splitlines() == [
        "llama-7b-attention  (attention)",
        "The attention of one LLaMA-7B layer has 67.11M parameters.",
        "",
        "stated   67.11M",
        "verdict  right",
        "correct  67,108,864",
        "reason   The exact count is 67,108,864, which rounds to 67.11M. Here h·h_d = d and "
        "h_kv = h, so that",
        "         it is 4·d².",
        "witness  formula",
        "",
        "computation",
        "  2·d·h_d·(h + h_kv) = 2·4096·128·(32 + 32) = 67,108,864",
        "",
        "Letters: d residual width; h query heads; h_kv key/value heads; h_d width of one head.",
    ]


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--topic", "embedding")
    assert "2 statements: 1 conditional, 1 wrong" in text
    text = run(capsys, "--topic", "embedding", "--verdict", "wrong")
    assert "1 statement: 1 wrong" in text
    assert "llama-7b-head-tied" in text
    assert "bert-base-embedding" not in text
    assert run(capsys, "--topic", "embedding", "--verdict", "right") == "0 statements\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "bert-base-embedding", "block-512-ffn", "--json"))
    assert [item["id"] for item in data] == ["bert-base-embedding", "block-512-ffn"]
    keys = "id topic statement model claimed verdict correct condition reason computation witness"
    assert {*keys.split(), "lang"} <= {*data[0]}
    assert data[0]["condition"] == "it means the token table alone"
    assert (data[1]["claimed"], data[1]["condition"]) == ("2,097,152", None)
    assert data[1]["computation"] == ["2·d·m = 2·512·2048 = 2,097,152"]
    assert len(json.loads(run(capsys, "--json", "--topic", "norm"))) == 10


def test_only_claims_about_behaviour_say_that_modules_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["claims", "alibi-no-params", "block-512-ffn"]) == 0
    said = capsys.readouterr().err
    assert said == "metacount: 1 statement is judged by running modules\n"
    assert main(["claims", "block-512-ffn"]) == 0
    assert capsys.readouterr().err == ""


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "mixtral-totel")
    assert said.startswith("metacount: error: claim 'mixtral-totel' is not known; did you mean")
    assert "mixtral-total" in said
    assert "moe" in refused(capsys, "--topic", "moo")
    assert "wrong" in refused(capsys, "--verdict", "wrng")
    with pytest.raises(SpecError, match="claim"):
        find_claim("nothing like it")


@one_day_in(6)
def test_numbers_and_formulas_load_no_torch() -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        "assert main(['claims', 'attention-4d2', 'qwen3-235b-active', 'qwen3-dense-formula',"
        " 'shares-70-25-5']) == 0\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)


def test_rounding_goes_by_the_printed_digits() -> None:
    for text, exact, holds in (
        ("67.11M", 67_105_000, True),
        ("67.11M", 67_104_999, False),
        ("67.11M", 67_115_000, True),
        ("67.11M", 67_115_001, False),
        ("46B", 46_702_792_704, False),
        ("1,048,576", 1_048_576, True),
        ("1,048,576", 1_048_577, False),
    ):
        assert label(text).holds(exact) is holds
    for text in ("", "M", "7 apples", "about 7B", "1.2.3M"):
        with pytest.raises(ValueError, match="a claimed number is"):
            label(text)


def test_a_claim_that_cannot_be_judged_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import metacount.teaching.claims

    broken = changed("mixtral-total", claimed="46 apples")
    monkeypatch.setattr(metacount.teaching.claims, "claims", lambda: (broken,))
    said = refused(capsys, "mixtral-total")
    assert said.count("\n") == 1 and "Traceback" not in said
    assert "mixtral-total" in said and "46 apples" in said
