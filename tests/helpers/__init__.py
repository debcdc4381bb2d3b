"""What tests share: models, files, servers and slow second opinions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> Any:
    """A script of the benchmarks as a module; it may import others from there."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    return importlib.import_module(name)


def one_line(error: BaseException) -> str:
    """What an error says: one printable line."""
    text = str(error)
    assert text and text.isprintable(), repr(text)
    return text
