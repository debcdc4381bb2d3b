"""The lessons' texts: no number is typed, both languages ask for the same, everything is used."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from helpers.prose import typed_numbers

from metacount.languages import LANGUAGES, language_of
from metacount.lessons import TOPICS
from metacount.lessons.source import pieces, placeholders, read_text, read_words
from metacount.spec import legend

BOTH = [(topic, lang) for topic in TOPICS for lang in LANGUAGES]


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_every_number_of_the_prose_is_computed(topic: str, lang: str) -> None:
    assert typed_numbers(read_text(lang, topic)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "LLaMA has 7 billion parameters.",
        "Its width is 4·d.",
        "W is [d, d²].",
        "It is ½ of that.",
        "There are two matrices.",
        "twice as much",
        "共有三个矩阵。",
        "４ 个头",
        "{{ n }} of 8 experts",
    ],
)
def test_a_typed_number_is_found(planted: str) -> None:
    assert typed_numbers("# Title\n\n" + planted) != []


def test_names_and_placeholders_are_no_typed_numbers() -> None:
    assert typed_numbers("Qwen3 and GPT-2: {{ n }} of {{ m:short }}, W₁·x, x², one of them") == []


@pytest.mark.parametrize("topic", TOPICS)
def test_both_languages_ask_for_the_same(topic: str) -> None:
    found = [Counter(placeholders(read_text(lang, topic))) for lang in LANGUAGES]
    assert set(found[0]) == set(found[1])
    kinds = [
        [p.kind for p in pieces(read_text(lang, topic)) if p.kind != "paragraph"]
        for lang in LANGUAGES
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_every_brace_is_a_placeholder(topic: str, lang: str) -> None:
    text = read_text(lang, topic)
    left = re.sub(r"\{\{ \w+(:\w+)? \}\}|\{\{\? (not )?\w+ \}\}", "", text)
    assert "{" not in left
    assert "}" not in left
    # a condition stands before what it decides about, nowhere else
    assert re.findall(r"^(?!\{\{\?).*\{\{\?.*$", text, flags=re.MULTILINE) == []


def test_the_words_of_cells_are_there_in_both_languages() -> None:
    english, chinese = (read_words(lang) for lang in LANGUAGES)
    names = {term.name for term in legend.TERMS}  # meanings of sizes: English has the legend
    assert set(english) == set(chinese) - names
    assert all(english.values())
    assert all(chinese.values())


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_chinese_is_chinese(topic: str, lang: str) -> None:
    paragraphs = [p for p in pieces(read_text(lang, topic)) if p.kind in ("paragraph", "heading")]
    wide = [any(c >= "\u4e00" for line in p.lines for c in line.text) for p in paragraphs]
    # a heading may be letters alone
    assert sum(wide) >= 0.9 * len(wide) if lang == "zh" else not any(wide)


@pytest.mark.parametrize(
    ("environment", "encoding", "lang"),
    [
        ({}, "utf-8", "en"),
        ({"LANG": "zh_CN.UTF-8"}, "utf-8", "zh"),
        ({"LANG": "zh_TW"}, "utf-8", "zh"),
        ({"LANG": "zh"}, "utf-8", "zh"),
        ({"LANG": "zhx_XX"}, "utf-8", "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "de_DE.UTF-8"}, "utf-8", "en"),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "zh_CN.GB18030"}, "gb18030", "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "utf-8", "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "utf-8", "zh"),  # empty is not set
        ({"LANG": "zh_CN.UTF-8"}, "ascii", "en"),
        ({"LANG": "zh_CN.UTF-8"}, "no such encoding", "en"),
        ({"LANG": "zh_CN.UTF-8"}, None, "zh"),
    ],
)
def test_the_terminal_says_the_language(
    environment: dict[str, str], encoding: str | None, lang: str
) -> None:
    assert language_of(environment, encoding) == lang
