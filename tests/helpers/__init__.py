"""What tests share: models, files, servers and slow second opinions."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def one_line(error: BaseException) -> str:
    """What an error says: one printable line."""
    text = str(error)
    assert text and text.isprintable(), repr(text)
    return text
