"""Which language a reader's terminal speaks; labels of pictures and of the page in both."""

from __future__ import annotations

from functools import cache

from metacount.errors import InputError, shown
from metacount.package import table_of_package

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

LANGUAGES = ("en", "zh")
ORDER = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set decides, as POSIX has it


def language_of(environment: Mapping[str, str], encoding: str | None) -> str:
    """Choose Chinese where the locale is Chinese and the encoding can write it, else English.

    >>> language_of({"LANG": "zh_CN.UTF-8"}, "utf-8")
    'zh'
    >>> language_of({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "utf-8")
    'en'
    >>> language_of({"LANG": "zh_CN"}, "ascii")
    'en'
    """
    locale = next((environment[name] for name in ORDER if environment.get(name)), "")
    if locale.partition("_")[0].partition(".")[0].lower() != "zh":
        return "en"
    try:
        "参数".encode(encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return "en"
    return "zh"


def checked_language(lang: str) -> str:
    """Return the language, or raise an `InputError` with those that there are."""
    if lang not in LANGUAGES:
        raise InputError(
            f"--lang '{shown(lang)}' is not known; choose one of {', '.join(LANGUAGES)}"
        )
    return lang


def terminal_language() -> str:
    """Return the language of the terminal that this process writes to."""
    import os
    import sys

    return language_of(os.environ, getattr(sys.stdout, "encoding", None))


@cache
def labels() -> dict[str, tuple[str, str]]:
    """Read what stands for a name or a sentence in each language."""
    rows = table_of_package("cli/labels.tsv").items()
    return {name: (english or name, chinese) for name, (english, chinese) in rows}


def label(text: str, lang: str) -> str:
    """Put a name or a sentence in a language; what has no other form stays.

    >>> label("share", "en"), label("share", "zh"), label("gpt2", "zh")
    ('share', '占比', 'gpt2')
    """
    return labels().get(text, (text, text))[lang == "zh"]


def translations(lang: str) -> dict[str, str]:
    """List what is said otherwise than in English."""
    return {name: chinese for name, (_, chinese) in labels().items()} if lang == "zh" else {}
