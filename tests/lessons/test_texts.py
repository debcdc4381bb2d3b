"""The lessons' texts: no number is typed, both languages ask for the same, everything is used."""

from __future__ import annotations

import re

import pytest
from helpers.prose import typed_numbers

from metacount.languages import LANGUAGES, language_of
from metacount.spec import legend
from metacount.teaching.lessons import TOPICS
from metacount.teaching.page import read_page, read_words

BOTH = [(topic, lang) for topic in TOPICS for lang in LANGUAGES]


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_every_number_of_the_prose_is_computed(topic: str, lang: str) -> None:
    assert typed_numbers(read_page(lang, f"{topic}.md")) == []


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


def pieces(lang: str, topic: str) -> list[str]:
    """The blocks of a page without the conditions of their lines."""
    text = re.sub(r"^\{\? [^{}]+\} ?", "", read_page(lang, f"{topic}.md"), flags=re.MULTILINE)
    return re.split(r"\n(?: *\n)+", text.strip("\n"))


@pytest.mark.parametrize("topic", TOPICS)
def test_both_languages_ask_for_the_same(topic: str) -> None:
    pages = [read_page(lang, f"{topic}.md") for lang in LANGUAGES]
    braces = [set(re.findall(r"\{[^{}]*\}", page)) for page in pages]
    assert braces[0] == braces[1]
    kind = re.compile(r"##?(?= )|\||    |\{\w+\}$")
    found = [[kind.match(piece) for piece in pieces(lang, topic)] for lang in LANGUAGES]
    kinds = [[match[0] for match in each if match] for each in found]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_every_brace_is_a_placeholder(topic: str, lang: str) -> None:
    text = read_page(lang, f"{topic}.md")
    left = re.sub(r"\{\w+(:\w+)?\}|^\{\? [\w ]+\}", "", text, flags=re.MULTILINE)
    assert "{" not in left
    assert "}" not in left


def test_the_words_of_cells_are_there_in_both_languages() -> None:
    english, chinese = (read_words(lang) for lang in LANGUAGES)
    names = {term.name for term in legend.TERMS}  # meanings of sizes: English has the legend
    assert set(english) == set(chinese) - names
    assert all(english.values())
    assert all(chinese.values())


@pytest.mark.parametrize(("topic", "lang"), BOTH)
def test_chinese_is_chinese(topic: str, lang: str) -> None:
    plain = ("|", "    ", "{", "# ")
    paragraphs = [piece for piece in pieces(lang, topic) if not piece.startswith(plain)]
    wide = [any(c >= "\u4e00" for c in piece) for piece in paragraphs]
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
