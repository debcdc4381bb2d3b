"""The lessons' texts: no number is typed, both languages ask for the same, everything is used."""

from __future__ import annotations

import re

import pytest
from helpers.prose import typed_numbers

from metacount.languages import LANGUAGES, language_of
from metacount.teaching.lessons import TOPICS, source_of, text_in


@pytest.mark.parametrize("topic", TOPICS)
def test_every_number_of_the_prose_is_computed(topic: str) -> None:
    for lang in LANGUAGES:
        assert typed_numbers(text_in(source_of(topic).text, lang)) == []


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
        "{n} of 8 experts",
    ],
)
def test_a_typed_number_is_found(planted: str) -> None:
    assert typed_numbers("# Title\n\n" + planted) != []


def test_names_and_placeholders_are_no_typed_numbers() -> None:
    assert typed_numbers("Qwen3 and GPT-2: {n} of {m:short}, W₁·x, x², one of them") == []


@pytest.mark.parametrize("topic", TOPICS)
def test_a_line_and_its_translation_have_the_same_braces(topic: str) -> None:
    english, chinese = (
        re.sub(r"^\{(\?|each)[^{}]*\} ?", "", text_in(source_of(topic).text, lang), flags=re.M)
        for lang in LANGUAGES
    )
    braces = (set(re.findall(r"\{[^{}]*\}", text)) for text in (english, chinese))
    # what is said of a size in English is the legend's
    assert {it for it in next(braces) if not it.startswith("{meaning(")} == next(braces)
    for one, other in zip(english.splitlines(), chinese.splitlines(), strict=True):
        assert not any(c >= "\u4e00" for c in one)
        prose = re.search("[A-Za-z]{4,} [a-z]+ [a-z]+", re.sub(r"`[^`]*`|\{[^{}]*\}", "", one))
        assert not prose or any(c >= "\u4e00" for c in other), one


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
