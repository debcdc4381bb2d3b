"""The claims in Chinese: all that a reader sees, the same numbers, nothing left in English."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from helpers.changed_claims import ALL, changed, verdict_on
from helpers.release import daily, one_in

import metacount
from metacount.cli import main
from metacount.cli.claims import LETTER, verdict_report, verdicts_report
from metacount.cli.layout import cells
from metacount.cli.report import in_text
from metacount.errors import SpecError
from metacount.spec.legend import MODEL_TERMS
from metacount.spec.model import FIELDS
from metacount.teaching.claims import TOPICS, judge_claim, texts_of_judges
from metacount.teaching.texts import VERDICTS, Verdict, chinese

BRACES = re.compile(r"\{[^{}]*\}")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]\d+)?|[²³¼]")
NAME = re.compile(r"\{(\w+)\}")

# Names, terms and code words that stand in a Chinese text as they are.
AS_THEY_ARE = """
    Adam AdamW ALiBi Bamba BERT Codestral DeepNorm DeepSeek Flash FLOPs GELU GLU GPT Jamba Kimi
    Korthikanti LayerNorm Linear LLaMA LongCat LoRA M3 Mamba Math MiniMax Mistral Mixtral MLA
    MoE Next Norm PE Playbook QK Qwen ReLU RMSNorm RoPE Scale SGD SiLU Sublayer SwiGLU Swish
    Transformer Ultra
    base bf bias conj cos eps erf float floor gelu logit logits max meta min norm pos pre
    recurrent relu sandwich sigmoid silu sin softmax sqrt tanh top torch weight
    gate_proj up_proj down_proj q_proj o_proj layer_norm gelu_tanh False ScaledDotProduct Router
    alibi learned sinusoidal rope none rmsnorm
"""
ALLOWED = {*AS_THEY_ARE.split(), *(name for name in FIELDS if "_" in name)}
WORD = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)*")
# a letter of a formula, with an index or a power of ten
SHORT = re.compile(r"[A-Za-z](?:_(?:[a-z]{1,3}|I))?|kv|dw_e|dy|[KMBT]|pos|dL|FFN_e")


@pytest.fixture(scope="module")
def both() -> dict[str, dict[str, Verdict]]:
    return {id: {lang: verdict_on(id, lang=lang) for lang in ("en", "zh")} for id in ALL}


def rendered(verdict: Verdict) -> str:
    return in_text(verdict_report(verdict)) + in_text(verdicts_report([verdict], verdict.lang))


def numbers(text: str) -> Counter[str]:
    """The numbers of a text, whatever the language does with their order."""
    return Counter(found.lstrip("+").rstrip(",.") for found in NUMBER.findall(text))


def english_words(text: str, quoted: tuple[str, ...] = ()) -> list[str]:
    """Words of a Chinese text that are no name, term, letter or code word, in no quotation."""
    text = " ".join(text.split())
    for quotation in sorted(quoted, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z_]){re.escape(quotation)}", " ", text)
    words = WORD.findall(re.sub(r"\d+(?:\.\d+)?[KMBTbx]\w*|\de[-+]", "", text))
    return [w for w in words if not (SHORT.fullmatch(w) or w in ALLOWED)]


def quoted_of(verdict: Verdict) -> tuple[str, ...]:
    """What is named after somebody else: ids and names of models, the source of a count."""
    from metacount.catalog import entries

    fields = verdict.claim.claimed if isinstance(verdict.claim.claimed, dict) else {}
    written = [f"{name}{mark}" for name in fields if name in FIELDS for mark in (" ", "：")]
    names = [text for e in entries() for text in (e.id, e.name, e.published.params_source or "")]
    options = [str(verdict.claim.options.get(name)) for name in ("formula", "also_name")]
    code = [f"（{verdict.claim.topic}）", "metacount claims", "`check`", verdict.claim.id]
    return (*filter(None, names), *written, *options, *code)


@daily(10)
@pytest.mark.parametrize("id", one_in(2, ALL))
def test_a_claim_is_told_in_both_languages(id: str, both: dict[str, dict[str, Verdict]]) -> None:
    en, zh = both[id]["en"], both[id]["zh"]
    assert (zh.verdict, zh.lang, en.lang) == (en.verdict, "zh", "en")
    assert english_words(rendered(zh), quoted_of(zh)) == []
    assert not re.search(r"[一-鿿]", rendered(en))
    for text in (zh.statement, zh.reason):
        assert re.search(r"[一-鿿]", text) and text.endswith("。")
    assert numbers(rendered(zh)) == numbers(rendered(en))
    assert "{" not in rendered(zh) and "}" not in rendered(zh)
    assert {*LETTER.findall(zh.reason + zh.correct)} == {*LETTER.findall(en.reason + en.correct)}


SENTENCES = [(claim.id, s) for claim in ALL.values() for s in (*claim.explain, *claim.condition)]
SENTENCES += [
    (j, s) for j, (texts, _) in texts_of_judges().items() for t in texts.values() for s in t
]
WORDS = re.compile(r'"[^"]*"')


def test_sentences_compute_the_same_in_both_languages() -> None:
    """Between the braces stands the same but for the words; outside, the same digits."""
    for id, sentence in SENTENCES:
        texts = sentence.say, sentence.say_zh
        put = ([WORDS.sub("", braces) for braces in BRACES.findall(text)] for text in texts)
        assert sorted(next(put)) == sorted(next(put)), id
        typed = (BRACES.sub("", text) for text in texts)
        assert numbers(next(typed)) == numbers(next(typed)), id
    for claim in ALL.values():
        assert numbers(claim.statement) == numbers(claim.statement_zh)
        assert all(s.say_zh.endswith("。") and s.say.endswith(".") for s in claim.explain)


def test_a_mismatch_is_seen() -> None:
    assert numbers("1,048,576 of 7") != numbers("1,048,576 个中 8 个")
    assert numbers("4·d² and 4e-16") == numbers("误差 4e-16，4·d²")
    assert numbers("4·d²") != numbers("4·d³")
    assert english_words("精确值 is 7，N·d 少，LLaMA 的 h_kv") == ["is"]
    assert english_words("由 x from KerasHub 公布", ("KerasHub",)) == ["from"]
    first = ALL["llama-7b-block"]
    wrong = changed("llama-7b-block", statement_zh=first.statement_zh.replace("202.38M", "202.83M"))
    zh, en = (rendered(judge_claim(wrong, lang=lang)) for lang in ("zh", "en"))
    assert numbers(zh) != numbers(en)
    left = changed("llama-7b-block", statement_zh=first.statement)
    zh = judge_claim(left, lang="zh")
    assert "layer" in english_words(rendered(zh), quoted_of(zh))


def test_the_words_that_are_data_have_their_chinese() -> None:
    assert [t.meaning for t in MODEL_TERMS if t.meaning not in chinese()] == []
    assert [name for name in VERDICTS if name not in chinese()] == []
    assert [name for name in TOPICS if f"topic:{name}" not in chinese()] == []


@daily(6)
@pytest.mark.parametrize("english", chinese())
def test_a_text_of_the_table_has_the_same_values(english: str) -> None:
    told = chinese()[english]
    assert Counter(NAME.findall(english)) == Counter(NAME.findall(told))
    plain = (NAME.sub("", text) for text in (english, told))
    assert numbers(next(plain)) == numbers(next(plain))


@daily(3)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_chinese_lines_fit(
    width: int, monkeypatch: pytest.MonkeyPatch, both: dict[str, dict[str, Verdict]]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for found in both.values():
        for line in rendered(found["zh"]).splitlines():
            assert cells(line) <= width, line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["claims", *arguments]) == 0
    return capsys.readouterr().out


def test_the_terminal_decides_and_an_option_overrides(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("COLUMNS", "80")
    in_chinese = run(capsys, "block-512-ffn")
    assert in_chinese.splitlines() == [
        "block-512-ffn  前馈网络（ffn）",
        "宽度为 512 的块，其前馈网络是两个不带偏置的线性层，升到 2048 再降回来，有",
        "2,097,152 个参数。",
        "",
        "所述    2,097,152",
        "判定    正确",
        "正确值  2,097,152",
        "理由    精确值为 2,097,152。是注意力的两倍。",
        "依据    公式",
        "",
        "计算",
        "  2·d·m = 2·512·2048 = 2,097,152",
        "",
        "字母：d 残差流的宽度；m 前馈网络的隐藏宽度，最终值（经 2/3 规则和取整之后）。",
    ]
    english = run(capsys, "block-512-ffn", "--lang", "en")
    assert "verdict  right" in english
    monkeypatch.setenv("LC_ALL", "C")
    assert run(capsys, "block-512-ffn") == english
    assert run(capsys, "block-512-ffn", "--lang", "zh") == in_chinese


def test_the_list_in_chinese_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--lang", "zh", "--topic", "embedding"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "嵌入（embedding）"
    assert "2 条说法：有条件 1、错误 1" in lines
    assert run(capsys, "--topic", "embedding", "--verdict", "right", "--lang", "zh") == "0 条说法\n"
    assert main(["claims", "alibi-no-params", "--lang", "zh"]) == 0
    assert capsys.readouterr().err == "metacount: 有 1 条说法通过运行模块判定\n"


def test_other_programs_get_english_unless_they_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    (plain,) = json.loads(run(capsys, "bert-base-embedding", "--json"))
    (told,) = json.loads(run(capsys, "bert-base-embedding", "--json", "--lang", "zh"))
    assert list(plain) == list(told)
    assert (plain["lang"], told["lang"]) == ("en", "zh")
    assert plain["condition"] == "it means the token table alone"
    assert told["condition"] == "指的是只算词元表"
    for name in ("id", "topic", "model", "claimed", "verdict"):
        assert plain[name] == told[name]
    assert run(capsys, "block-512-ffn", "--markdown").startswith("| claim |")
    assert run(capsys, "block-512-ffn", "--csv", "--lang", "zh").startswith("编号,主题,说法,判定")


def test_the_python_api_takes_a_language(capsys: pytest.CaptureFixture[str]) -> None:
    assert metacount.judge_claim("mixtral-total", lang="zh").reason.startswith(
        "精确值为 46,702,792,704"
    )
    with pytest.raises(SpecError, match="lang"):
        metacount.judge_claim("mixtral-total", lang="de")
    assert main(["claims", "--lang", "de"]) == 2
    assert "--lang" in capsys.readouterr().err
