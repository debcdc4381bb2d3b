"""Finds numbers in a lesson's text that stand there typed instead of being computed."""

from __future__ import annotations

import re
import unicodedata

# Names that have a digit. A closed list: whatever else has one must come from a placeholder.
NAMES = ("GPT-2", "Qwen3", "bf16", "float64", "σ²", "x²", "两端", "t5")
WORDS = re.compile(
    r"\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|hundreds?"
    r"|thousands?|millions?|billions?|twice|thrice|double[sd]?|triple|half|halves|thirds?"
    r"|quarters?)\b",
    re.IGNORECASE,
)
CHINESE = frozenset("二两三四五六七八九十百千万亿半双〇")


def without_placeholders(text: str) -> str:
    """The prose that somebody typed."""
    return re.sub(r"\{.*?\}", "", text)


def typed_numbers(text: str) -> list[str]:
    """Every number of the prose, in digits of any script or in words, each with its line.

    A letter's index (W₁) is part of its name. "one" is an article as often as a number.
    """
    found = []
    for line in without_placeholders(text).splitlines():
        bare = line
        for name in NAMES:
            bare = bare.replace(name, "")
        bare = re.sub("[₀-₉]", "", bare)
        digits = [c for c in bare if unicodedata.category(c) in ("Nd", "No", "Nl")]
        digits += [c for c in bare if c in CHINESE]
        digits += [word[0] for word in WORDS.finditer(bare)]
        found += [f"{each}: {line}" for each in digits]
    return found
