"""Which files of the formulas one model's figures come from, as the README says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from metacount import formulas
from metacount.catalog import entry
from metacount.spec import Workload
from metacount.textbook.count import count

FOLDER = Path(formulas.__path__[0])
README = FOLDER.parents[1] / "README.md"


def answering(model: str) -> tuple[set[str], set[str]]:
    """The files of formulas that answer with anything for a model, and those that say: none."""
    spec = entry(model).spec()
    files: dict[bool, set[str]] = {True: set(), False: set()}

    def note(frame: FrameType, event: str, value: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "return" and file.parent == FOLDER:
            some = any(value.values()) if isinstance(value, dict) else bool(value)
            files[some].add(file.stem)

    sys.setprofile(note)
    try:
        count(spec, Workload())
    finally:
        sys.setprofile(None)
    return files[True], files[False] - files[True]


def test_the_readme_names_the_files_behind_llama() -> None:
    found, none = answering("llama-7b")
    said = re.search(
        r"`count llama-7b` come from twelve files of `formulas/` \(([^)]*)\)", README.read_text()
    )
    assert said and set(re.findall(r"`(\w+)`", said[1])) == found
    assert len(found) == 12 and none >= {"around", "selection", "recurrent"}


def test_another_structure_has_other_files() -> None:
    found, _ = answering("deepseek-v3")
    assert found >= {"mla", "moe", "mtp"}
