"""Labels of pictures and of the page, in English and in Chinese: rows of `labels.tsv`."""

from __future__ import annotations

from functools import cache

from metacount.files import table_of_package


@cache
def labels() -> dict[str, tuple[str, str]]:
    """Read what stands for a name or a sentence in each language."""
    rows = table_of_package("cli/labels.tsv").items()
    return {name: (english or name, chinese) for name, (english, chinese) in rows}


def say(text: str, lang: str) -> str:
    """Put a name or a sentence in a language; what has no other form stays.

    >>> say("share", "en"), say("share", "zh"), say("kv_cache_bytes", "en"), say("gpt2", "zh")
    ('share', '占比', 'KV cache after the sequence', 'gpt2')
    """
    return labels().get(text, (text, text))[lang == "zh"]


def words(lang: str) -> dict[str, str]:
    """List what is said otherwise than in English."""
    return {name: chinese for name, (_, chinese) in labels().items()} if lang == "zh" else {}
