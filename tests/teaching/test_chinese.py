"""The claims in Chinese: all that a reader sees, the same numbers, nothing left in English."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from helpers.changed_claims import ALL, changed, verdict_on
from helpers.release import daily, one_in

from metacount.cli.claims import LETTER, verdict_report, verdicts_report
from metacount.cli.report import in_text
from metacount.spec.legend import MODEL_TERMS
from metacount.spec.model import FIELDS
from metacount.teaching.claims import TOPICS, judge_claim, judges
from metacount.teaching.texts import VERDICTS, Verdict, chinese

BRACES = re.compile(r"\{[^{}]*\}")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]\d+)?|[²³¼]")
NAME = re.compile(r"\{(\w+)\}")

# Code words that stand in a Chinese text as they are; names and terms have a capital letter.
AS_THEY_ARE = """
    base bias conj float floor gelu logit logits meta norm recurrent relu sandwich sigmoid silu
    softmax sqrt tanh torch weight alibi learned sinusoidal rope none rmsnorm
    gate_proj up_proj down_proj q_proj o_proj layer_norm gelu_tanh
"""
ALLOWED = {*AS_THEY_ARE.split(), *(name for name in FIELDS if "_" in name)}
WORD = re.compile(r"(?<![A-Za-z_])[a-z]{2}[a-z_]{2,}(?![A-Za-z_])")


@pytest.fixture(scope="module")
def both() -> dict[str, dict[str, Verdict]]:
    return {id: {lang: verdict_on(id, lang=lang) for lang in ("en", "zh")} for id in ALL}


def rendered(verdict: Verdict) -> str:
    return in_text(verdict_report(verdict)) + in_text(verdicts_report([verdict], verdict.lang))


def numbers(text: str) -> Counter[str]:
    """The numbers of a text, whatever the language does with their order."""
    return Counter(found.lstrip("+").rstrip(",.") for found in NUMBER.findall(text))


def english_words(text: str, quoted: tuple[str, ...] = ()) -> list[str]:
    """Words of a Chinese text in small letters that are no code word, and in no quotation."""
    text = " ".join(text.split())
    for quotation in sorted(quoted, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z_]){re.escape(quotation)}", " ", text)
    return [word for word in WORD.findall(text) if word not in ALLOWED]


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
SENTENCES += [(j, s) for j, (texts, _) in judges().items() for t in texts.values() for s in t]
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
    assert english_words("精确值 here 7，N·d 少，LLaMA 的 h_kv") == ["here"]
    assert english_words("由 x from KerasHub 公布", ("KerasHub",)) == ["from"]
    first = ALL["llama-7b-block"]
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
