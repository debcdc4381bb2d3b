"""Says which test files need no torch: those that load none, through however many imports.

`python tests/fast.py` prints them, and the files of the package whose docstrings are such tests;
`make fast` runs these. `conftest.py` marks their tests `fast`.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
HEAVY = {"torch", "transformers", "accelerate"}
# What a process, or a file loaded by its path, imports is not seen here: it may be torch.
STARTS = {"subprocess", "multiprocessing", "importlib", "runpy"}


@cache
def fast_files() -> list[Path]:
    """The files with tests, all of which need no torch."""
    from helpers.import_graph import ImportGraph, modules_in

    ours = modules_in(ROOT / "metacount", ROOT)
    graph = ImportGraph({**modules_in(TESTS, TESTS), **ours})

    def is_fast(name: str) -> bool:
        reached = graph.reached(name)
        libraries = {each.partition(".")[0] for other in reached for each in graph.libraries[other]}
        tests = {each for other in reached if other not in ours for each in graph.libraries[other]}
        starts = {each.partition(".")[0] for each in tests}
        return not libraries & HEAVY and not starts & STARTS

    def has_tests(name: str, file: Path) -> bool:
        text = file.read_text("utf-8")
        if name not in ours:
            return file.name.startswith("test_")
        # an example that uses public names may load anything
        return ">>>" in text and ">>> import metacount\n" not in text

    files = sorted(graph.files.items())
    return [file for name, file in files if has_tests(name, file) and is_fast(name)]


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(ROOT)]
    print("\n".join(str(file.relative_to(ROOT)) for file in fast_files()))
