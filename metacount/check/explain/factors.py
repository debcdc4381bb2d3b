"""A whole count that is off by a factor, in words."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from metacount.check.condition import named
from metacount.check.explain.mistakes import listed
from metacount.check.given.vocabulary import BYTES_LETTER


def factor_words(factor: Fraction, powers: list[tuple[Any, int]], quantity: str) -> str:
    """What it usually means when a whole count is off by a factor."""
    said = [_number_words(factor, quantity)] if factor != 1 else []
    missing = [named(letter) for letter, n in powers if n < 0 and letter != BYTES_LETTER]
    extra = [named(letter) for letter, n in powers if n > 0 and letter != BYTES_LETTER]
    for letter, n in powers:
        if letter == BYTES_LETTER:
            said.append("values, not bytes" if n < 0 else "multiplied by the bytes of a value")
    if missing:
        said.append(f"not multiplied by {listed(missing)}")
    if extra:
        said.append(f"multiplied by {listed(extra)} once too often")
    return ", ".join(said)


def _number_words(factor: Fraction, quantity: str) -> str:
    large = factor if factor > 1 else 1 / factor
    text = f"a factor of {large}"
    flops = quantity.endswith("_flops")
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if quantity == "kv_cache_bytes" and factor == Fraction(1, 2**power):
            return f"{unit}, not bytes"
    words = {
        Fraction(1, 2): "multiply-adds, not FLOPs",
        Fraction(3): "a forward and a backward, not the forward alone",
        Fraction(4): "forward, recomputation and backward, not the forward alone",
        Fraction(3, 2): "multiply-adds of a forward and a backward",
        Fraction(2): "FLOPs counted twice",
    }
    if flops and factor in words:
        return f"{text}: {words[factor]}"
    if quantity == "kv_cache_bytes":
        said = {
            Fraction(1, 2): "keys or values only, or values of one byte, or not bytes",
            Fraction(2): "keys and values counted twice, or the bytes of a value",
        }
        if factor in said:
            return f"{text}: {said[factor]}"
    return f"{text} too {'much' if factor > 1 else 'little'}"
