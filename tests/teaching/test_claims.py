"""`metacount claims` as its users meet it, in both languages."""

from __future__ import annotations

import json

import pytest
from helpers.changed_claims import changed
from helpers.command_line import Ask
from helpers.release import daily

import metacount
from metacount.cli.report import cells
from metacount.errors import SpecError
from metacount.teaching.claims import TOPICS, claims, find_claim
from metacount.teaching.texts import label

EVERY = tuple(claim.id for claim in claims())


@daily(3)
@pytest.mark.parametrize("ids", [(), EVERY], ids=["list", "computations"])
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit(ask: Ask, width: int, lang: str, ids: tuple[str, ...]) -> None:
    lines = ask.all("claims", *ids, "--lang", lang, width=width)[1].splitlines()
    assert [line for line in lines if cells(line) > width] == []
    if not ids and lang == "en":
        assert [line for line in lines if line.isupper() and not line.startswith(" ")] == [
            topic.upper() for topic in TOPICS
        ]
        assert "110 statements: 52 right, 22 conditional, 36 wrong" in lines
        assert {f"  {id}" for id in EVERY} <= {*lines}


def test_a_squared_letter_is_explained_and_a_percent_sign_stays_with_its_number(ask: Ask) -> None:
    text = ask("claims minimax-state")
    assert "d_l²·h_l" in text and "d_l width of one of its keys and values" in text
    assert "75 % smaller than with MLA in every layer." in ask("claims kimi-linear-cache-75")


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
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("claims llama-7b-attention", width=82) == ENGLISH
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert ask("claims block-512-ffn") == CHINESE
    assert "verdict  right" in ask("claims block-512-ffn --lang en")
    monkeypatch.setenv("LC_ALL", "C")
    assert ask("claims block-512-ffn --lang zh") == CHINESE


def test_filters(ask: Ask) -> None:
    assert "2 statements: 1 conditional, 1 wrong" in ask("claims --topic embedding")
    text = ask("claims --topic embedding --verdict wrong")
    assert "1 statement: 1 wrong" in text
    assert "llama-7b-head-tied" in text and "bert-base-embedding" not in text
    for lang, said in (("en", "0 statements\n"), ("zh", "0 条说法\n")):
        assert ask(f"claims --topic embedding --verdict right --lang {lang}") == said


def test_json(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")  # other programs get English unless they ask
    ids = "claims bert-base-embedding block-512-ffn"
    data, told = (ask.json(f"{ids} {more}") for more in ("", "--lang zh"))
    assert [item["id"] for item in data] == ["bert-base-embedding", "block-512-ffn"]
    keys = "id topic statement model claimed verdict correct condition reason computation witness"
    assert {*keys.split(), "lang"} <= {*data[0]} == {*told[0]}
    assert data[0]["condition"] == "it means the token table alone"
    assert (told[0]["condition"], told[0]["lang"]) == ("指的是只算词元表", "zh")
    assert (data[1]["claimed"], data[1]["condition"]) == ("2,097,152", None)
    assert data[1]["computation"] == ["2·d·m = 2·512·2048 = 2,097,152"]
    assert len(json.loads(ask.all("claims --topic norm --json")[1])) == 10


def test_only_claims_about_behaviour_say_that_modules_run(ask: Ask) -> None:
    for line, said in (
        ("alibi-no-params", "metacount: 1 statement is judged by running modules\n"),
        ("alibi-no-params --lang zh", "metacount: 有 1 条说法通过运行模块判定\n"),
        ("block-512-ffn", ""),
    ):
        code, _, err = ask.all(f"claims {line}")
        assert (code, err) == (0, said)


REFUSED = {
    "mixtral-totel": "claim 'mixtral-totel' is not known; did you mean mixtral-total",
    "--topic moo": "moe",
    "--verdict wrng": "wrong",
    "--lang de": "--lang 'de'",
}


def test_what_is_not_known_is_refused(ask: Ask) -> None:
    for line, said in REFUSED.items():
        assert said in ask.refused(f"claims {line}")
    judged = metacount.judge_claim("mixtral-total", lang="zh")
    assert judged.reason.startswith("精确值为 46,702,792,704")
    with pytest.raises(SpecError, match="lang"):
        metacount.judge_claim("mixtral-total", lang="de")
    with pytest.raises(SpecError, match="claim"):
        find_claim("nothing like it")


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
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = changed("mixtral-total", claimed="46 apples")
    monkeypatch.setattr("metacount.teaching.claims.claims", lambda: (broken,))
    said = ask.refused("claims mixtral-total")
    assert "mixtral-total" in said and "46 apples" in said
