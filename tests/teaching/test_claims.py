"""`metacount claims` as its users meet it, in both languages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.changed_claims import changed
from helpers.command_line import refused
from helpers.release import daily, one_day_in

import metacount
from metacount.cli import main
from metacount.cli.report import cells
from metacount.errors import SpecError
from metacount.teaching.claims import TOPICS, claims, find_claim
from metacount.teaching.texts import label

EVERY = tuple(claim.id for claim in claims())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["claims", *arguments]) == 0
    return capsys.readouterr().out


@daily(3)
@pytest.mark.parametrize("ids", [(), EVERY], ids=["list", "computations"])
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    lang: str,
    ids: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run(capsys, *ids, "--lang", lang).splitlines()
    assert [line for line in lines if cells(line) > width] == []
    if not ids and lang == "en":
        assert [line for line in lines if line.isupper() and not line.startswith(" ")] == [
            topic.upper() for topic in TOPICS
        ]
        assert "110 statements: 52 right, 22 conditional, 36 wrong" in lines
        assert {f"  {id}" for id in EVERY} <= {*lines}


def test_a_squared_letter_is_explained_and_a_percent_sign_stays_with_its_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, "minimax-state")
    assert "d_l²·h_l" in text and "d_l width of one of its keys and values" in text
    text = run(capsys, "kimi-linear-cache-75")
    assert "75 % smaller than with MLA in every layer." in text


ENGLISH = """llama-7b-attention  (attention)
The attention of one LLaMA-7B layer has 67.11M parameters.

stated   67.11M
verdict  right
correct  67,108,864
reason   The exact count is 67,108,864, which rounds to 67.11M. Here h·h_d = d and
         h_kv = h, so that it is 4·d².
witness  formula

computation
  2·d·h_d·(h + h_kv) = 2·4096·128·(32 + 32) = 67,108,864

Letters: d residual width; h query heads; h_kv key/value heads; h_d width of one
head.
"""
CHINESE = """block-512-ffn  前馈网络（ffn）
宽度为 512 的块，其前馈网络是两个不带偏置的线性层，升到 2048 再降回来，有
2,097,152 个参数。

所述    2,097,152
判定    正确
正确值  2,097,152
理由    精确值为 2,097,152。是注意力的两倍。
依据    公式

计算
  2·d·m = 2·512·2048 = 2,097,152

字母：d 残差流的宽度；m 前馈网络的隐藏宽度，最终值（经 2/3 规则和取整之后）。
"""


def test_one_claim_shows_everything_in_the_language_of_the_terminal_or_the_one_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "82")
    assert run(capsys, "llama-7b-attention") == ENGLISH
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("COLUMNS", "80")
    assert run(capsys, "block-512-ffn") == CHINESE
    assert "verdict  right" in run(capsys, "block-512-ffn", "--lang", "en")
    monkeypatch.setenv("LC_ALL", "C")
    assert run(capsys, "block-512-ffn", "--lang", "zh") == CHINESE


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 statements: 1 conditional, 1 wrong" in run(capsys, "--topic", "embedding")
    text = run(capsys, "--topic", "embedding", "--verdict", "wrong")
    assert "1 statement: 1 wrong" in text
    assert "llama-7b-head-tied" in text and "bert-base-embedding" not in text
    none = ("--topic", "embedding", "--verdict", "right")
    assert run(capsys, *none) == "0 statements\n"
    assert run(capsys, *none, "--lang", "zh") == "0 条说法\n"


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")  # other programs get English unless they ask
    ids = ("bert-base-embedding", "block-512-ffn", "--json")
    data, told = (json.loads(run(capsys, *ids, *more)) for more in ((), ("--lang", "zh")))
    assert [item["id"] for item in data] == ["bert-base-embedding", "block-512-ffn"]
    keys = "id topic statement model claimed verdict correct condition reason computation witness"
    assert {*keys.split(), "lang"} <= {*data[0]} == {*told[0]}
    assert data[0]["condition"] == "it means the token table alone"
    assert (told[0]["condition"], told[0]["lang"]) == ("指的是只算词元表", "zh")
    assert (data[1]["claimed"], data[1]["condition"]) == ("2,097,152", None)
    assert data[1]["computation"] == ["2·d·m = 2·512·2048 = 2,097,152"]
    assert len(json.loads(run(capsys, "--json", "--topic", "norm"))) == 10


def test_only_claims_about_behaviour_say_that_modules_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for id, lang, said in (
        ("alibi-no-params", "en", "metacount: 1 statement is judged by running modules\n"),
        ("alibi-no-params", "zh", "metacount: 有 1 条说法通过运行模块判定\n"),
        ("block-512-ffn", "en", ""),
    ):
        assert main(["claims", id, "--lang", lang]) == 0
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mixtral-totel"], "claim 'mixtral-totel' is not known; did you mean mixtral-total"),
        (["--topic", "moo"], "moe"),
        (["--verdict", "wrng"], "wrong"),
        (["--lang", "de"], "--lang 'de'"),
    ],
)
def test_what_is_not_known_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, "claims", *arguments)


def test_the_python_api() -> None:
    judged = metacount.judge_claim("mixtral-total", lang="zh")
    assert judged.reason.startswith("精确值为 46,702,792,704")
    with pytest.raises(SpecError, match="lang"):
        metacount.judge_claim("mixtral-total", lang="de")
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
    said = refused(capsys, "claims", "mixtral-total")
    assert "mixtral-total" in said and "46 apples" in said
