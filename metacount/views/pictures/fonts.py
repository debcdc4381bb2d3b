"""Fonts that have every letter of a picture: names are strangers' text, in any script."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from metacount.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

PLAIN = "DejaVu Sans"  # comes with matplotlib
NO_LETTER = "\N{WHITE SQUARE}"
# For Chinese, those that are made for it: others draw some letters as Japanese or Korean does.
FIRST = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Microsoft YaHei",
    "Hiragino Sans GB",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "SimHei",
    "Noto Sans CJK JP",
    "Noto Serif CJK SC",
)
NO_SHAPES = "Last Resort"  # a font of boxes


def known_letters(text: str) -> str:
    """Replace each letter of a text that no installed font has by a square."""
    _, missing = _families(text)
    return "".join(NO_LETTER if letter in missing else letter for letter in text)


def give_letters(figure: Figure) -> None:
    """Set fonts that have, together, the letters of all texts of a figure."""
    from matplotlib.text import Text

    texts = [one for one in figure.findobj(Text) if isinstance(one, Text)]
    families, _ = _families("".join(text.get_text() for text in texts))
    if len(families) > 1:
        for text in texts:
            text.set_fontfamily(families)


def _families(text: str) -> tuple[list[str], set[str]]:
    """Find fonts for a text, each for letters that those before lack, and the letters none has."""
    families, missing = [PLAIN], {letter for letter in text if letter != "\n"}
    missing -= _letters_of_plain()
    for name, letters in _installed() if missing else ():
        if missing & letters:
            families.append(name)
            missing -= letters
        if not missing:
            break
    return families, missing


def check_chinese(words: Iterable[str]) -> None:
    """Raise `InputError` where no installed font has the letters of these words."""
    needed = {letter for word in words for letter in word} - _letters_of_plain()
    if not any(needed <= letters for _, letters in _installed()):
        raise InputError(
            "--lang zh: no installed font has Chinese letters; install one, such as Noto Sans CJK "
            "(Debian: fonts-noto-cjk)"
        )


@cache
def _letters_of_plain() -> set[str]:
    from matplotlib.font_manager import findfont

    return _letters(findfont(PLAIN), 0)


def _installed() -> Iterator[tuple[str, set[str]]]:
    """Yield families that are installed with their letters, the ones made for Chinese first.

    matplotlib's own list is from when it was first used: newer fonts are added to it.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    for file in sorted(findSystemFonts()):
        if file not in known:
            try:
                fontManager.addfont(file)
            except (OSError, RuntimeError):  # a broken file is no font of ours
                continue
    entries: dict[str, FontEntry] = {}
    for entry in fontManager.ttflist:
        regular = entry.style == "normal" and entry.weight in (400, "normal")
        if not entry.name.startswith(NO_SHAPES) and (regular or entry.name not in entries):
            entries[entry.name] = entry
    order = [*(name for name in FIRST if name in entries), *sorted(set(entries) - set(FIRST))]
    for name in order:
        try:
            yield name, _letters(entries[name].fname, getattr(entries[name], "index", 0))
        except (OSError, RuntimeError):
            continue


@cache
def _letters(file: str, index: int) -> set[str]:
    from matplotlib import ft2font

    # older versions of matplotlib know the first face of a collection only
    font = ft2font.FT2Font(file, face_index=index) if index else ft2font.FT2Font(file)
    return {chr(code) for code in font.get_charmap()}
