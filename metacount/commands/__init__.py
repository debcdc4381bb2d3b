"""The commands, a file for each: its options, and a `run` that returns its text and exit code.

No arithmetic here, and nothing imported before it is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from metacount.views.tables import Table

    # A whole text, or its pieces as they come; the exit code, or who knows it after the last piece.
    Result = tuple[str | Generator[str, None, None], int | Callable[[], int]]


def json_text(data: object) -> str:
    """Write `data` as the JSON that a command prints."""
    import json
    import sys

    # where stdout knows no ×, its escape must be JSON's own: Python's would be no JSON
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = not encoding.lower().startswith("utf")
    return json.dumps(data, indent=2, ensure_ascii=plain) + "\n"


def table_text(name: str, table: Table) -> str:
    """Write a table in the format that an option names."""
    from metacount.views.tables import WRITERS

    return WRITERS[name](table)


def prepare_for_torch() -> None:
    """Stop garbage collection, in vain among torch's million objects, and transformers' advice."""
    import gc
    import os

    gc.disable()
    # transformers' own advice is for people who run a model, not for those who count it
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
