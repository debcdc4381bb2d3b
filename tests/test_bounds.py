"""The versions that pyproject.toml allows hold those that the tests run with, and no newer ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PRIVATE = ("torch", "transformers")  # whose private names are used


def allowed() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]


def pinned() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line)
    return {name: Version(version) for name, version in pins}


def test_what_is_tested_is_allowed() -> None:
    for one in allowed():
        assert pinned()[one.name] in one.specifier, one
        assert any(bound.operator == ">=" for bound in one.specifier), one


def test_no_library_whose_private_names_are_used_may_be_newer() -> None:
    found = {one.name: one.specifier for one in allowed() if one.name in PRIVATE}
    assert set(found) == set(PRIVATE)
    for name, specifier in found.items():
        version = pinned()[name]
        later = Version(f"{version.major}.{version.minor + 1}")
        assert later not in specifier, f"{name} {later} was not tested"
        assert Version(f"{version.major}.{version.minor}.99") in specifier, name
