"""Texts in two languages, chosen when they are printed.

A judge writes its sentences in English, with names between braces for what it computed; the Chinese
for each stands in `chinese.json` under the English. What is not there reads alike in both: numbers,
formulas, names of models and fields.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

CHINESE = Path(__file__).parent / "chinese.json"


@frozen
class Said:
    """A text with names between braces, and what they stand for."""

    english: str
    values: dict[str, Words]


@frozen
class Listed:
    """Texts one after the other; `capital` where the first begins a sentence."""

    parts: tuple[Words, ...]
    between: str
    capital: bool


Words: TypeAlias = str | Said | Listed


def say(english: str, /, **values: Words | int) -> Said:
    """Make a text of the table of translations, with its values."""
    found = {name: str(v) if isinstance(v, int) else v for name, v in values.items()}
    return Said(english=english, values=found)


def listed(parts: Iterable[Words], between: str = ", ", *, capital: bool = False) -> Listed:
    """Join several texts into one."""
    return Listed(parts=tuple(parts), between=between, capital=capital)


def in_language(words: Words, lang: str) -> str:
    """Write the text as a reader of a language sees it.

    >>> fits = say("{number} too few", number="7")
    >>> in_language(fits, "en"), in_language(fits, "zh")
    ('7 too few', '少 7')
    >>> in_language(listed(["a", "b"], " or ", capital=True), "en")
    'A or b'
    """
    if isinstance(words, str):
        return words
    if isinstance(words, Said):
        text = translated(words.english, lang)
        values = {name: in_language(value, lang) for name, value in words.values.items()}
        return text.format(**values) if values else text
    text = translated(words.between, lang).join(in_language(part, lang) for part in words.parts)
    return text[:1].upper() + text[1:] if words.capital else text


def translated(english: str, lang: str) -> str:
    """Translate an English text by the table; keep the English where it has none."""
    return english if lang == "en" else chinese().get(english, english)


@lru_cache
def chinese() -> dict[str, str]:
    """Read the Chinese of every text, by the English."""
    found: dict[str, str] = json.loads(CHINESE.read_text(encoding="utf-8"))
    return found
