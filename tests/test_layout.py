"""Folders and files stay small enough to be read in one sitting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import metacount

PACKAGE = Path(metacount.__file__).parent
MAX_FILES, MAX_LINES = 12, 300

# Folders with a file for each topic, command or group of model types.
BY_TOPIC = {"spec", "formulas", "modules", "views", "commands", "huggingface/config/families"}
# The names by which the package is entered: __init__, __main__, api, cli.
ENTRANCES = {"": 4}
# Files that are too long, how long at most, and why they are not split.
LONG = {
    "measure/torch_private.py": (440, "every private name of torch, in one file"),
}
# Tables that a person laid out, one row a line; all else is laid out by the formatter.
MAX_BY_HAND = 29


def crowded(package: Path) -> list[str]:
    """Folders with more files than they may have."""
    found = Counter(file.parent for file in package.rglob("*.py") if file.name != "__init__.py")
    names = {folder: folder.relative_to(package).as_posix() for folder in found}
    return [
        f"{names[folder]}: {n} files"
        for folder, n in sorted(found.items())
        if n > MAX_FILES + ENTRANCES.get(names[folder].strip("."), 0)
        and names[folder] not in BY_TOPIC
    ]


def too_long(package: Path) -> list[str]:
    """Files with more lines than they may have."""
    found = {
        file.relative_to(package).as_posix(): len(file.read_text("utf-8").splitlines())
        for file in sorted(package.rglob("*.py"))
    }
    return [
        f"{name}: {n} lines" for name, n in found.items() if n > LONG.get(name, (MAX_LINES, ""))[0]
    ]


def laid_out_by_hand(*folders: Path) -> int:
    """How many statements the formatter has to leave alone."""
    found = [file.read_text("utf-8") for folder in folders for file in folder.rglob("*.py")]
    return sum(text.count("# fmt" + ": ") for text in found)


def test_no_folder_is_crowded() -> None:
    assert crowded(PACKAGE) == []


def test_no_file_is_too_long() -> None:
    assert too_long(PACKAGE) == []


@pytest.mark.parametrize("name", LONG)
def test_an_exception_is_still_one(name: str) -> None:
    assert len((PACKAGE / name).read_text("utf-8").splitlines()) > MAX_LINES


def test_too_much_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "rooms"
    folder.mkdir()
    for n in range(MAX_FILES):
        (folder / f"file{n}.py").write_text("x = 1\n" * MAX_LINES)
    assert crowded(tmp_path) == too_long(tmp_path) == []
    (folder / "one_more.py").write_text("x = 1\n" * (MAX_LINES + 1))
    assert crowded(tmp_path) == ["rooms: 13 files"]
    assert too_long(tmp_path) == ["rooms/one_more.py: 301 lines"]


def test_the_formatter_lays_out_all_but_a_few_tables(tmp_path: Path) -> None:
    root = PACKAGE.parent
    assert laid_out_by_hand(PACKAGE, root / "tests", root / "benchmarks") <= MAX_BY_HAND
    for word in ("skip", "off"):
        (tmp_path / f"{word}.py").write_text(f"x = 1  # fmt: {word}\n")
    assert laid_out_by_hand(tmp_path) == 2
