"""Conditions as texts: asked of numbers, never run; fingerprints of what a proof rests on."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import zipfile
import zipimport
from pathlib import Path
from typing import Any

import pytest
import sympy

from metacount.catalog import entry
from metacount.textbook import fingerprints
from metacount.textbook.domain import NotKnown, NotReadable, holds
from metacount.textbook.proof_record import all_said, read_record
from metacount.tracing.condition import in_domain
from metacount.tracing.run.sizes import divides, symbol
from metacount.tracing.solve.smallest import smallest
from metacount.verify.recording import as_test

d, h, k, B, S, w = (symbol(name) for name in ("d", "h", "k", "B", "S", "w"))


@pytest.mark.parametrize(
    ("text", "numbers", "right"),
    [
        ("S + 1 < window", {"S": 10, "window": 12}, True),
        ("S + 1 < window", {"S": 11, "window": 12}, False),
        ("(d) % (2*h) == 0", {"d": 12, "h": 3}, True),
        ("(d) % (2*h) == 0", {"d": 12, "h": 4}, False),
        ("-3*h + d**2 >= 0", {"d": 3, "h": 3}, True),
        ("(-(-(n)//(2))) != 3", {"n": 5}, False),
    ],
)
def test_a_condition_is_asked_of_numbers(text: str, numbers: dict[str, int], right: bool) -> None:
    assert holds(text, numbers) is right


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os') == 1",
        "d.real == 1",
        "f(d) == 1",
        "d",
        "1 < d < 3",
        "d == 'x'",
        "d ==",
        "9**9**9 == 1",
        "d % 0 == 0",
        "[d] == 1",
        "d == 1.5",
        "(lambda: d)() == 1",
        "(d == 1",
        "d) == 1",
        "() == 1",
        "d(d) == 1",
        "d d == 1",
        "2d == 1",
        "d * * 2 == 1",
        "d / 2 == 1",
        "d ^ 2 == 1",
        "d**-1 == 1",
        "+d == 1",
        "d + == 1",
        " == 1",
        "d // (d - 12) == 0",
        "d == 1 or d == 2",
    ],
)
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(NotReadable):
        holds(text, {"d": 12})


def test_every_condition_of_the_record_is_read_as_python_reads_it() -> None:
    found = read_record()
    tests = {test for one in found["records"] for _, test in one["conditions"] if test}
    tests |= {said["zero"] for *_, said in all_said(found) if "zero" in said}
    assert len(tests) > 200
    draw, said = random.Random(7), set()
    for test in sorted(tests):
        names = [node.id for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)]
        for largest in (3, 12, 200):
            numbers = {name: draw.randint(1, largest) for name in names}
            try:
                right = eval(test, {"__builtins__": {}}, numbers)
            except ZeroDivisionError:
                with pytest.raises(NotReadable):
                    holds(test, numbers)
                continue
            assert holds(test, numbers) is right, (test, numbers)
            said.add(right)
    assert said == {True, False}


@pytest.mark.parametrize("seed", range(5))
def test_any_sum_is_read_as_python_reads_it(seed: int) -> None:
    draw = random.Random(seed)

    def text(depth: int) -> str:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(["d", "S", "n_heads", "7", "0", "12"])
        left, right = text(depth - 1), text(depth - 1)
        return draw.choice(
            [
                f"({left})",
                f"-{left}",
                f"({left})**2",
                f"{left} + {right}",
                f"{left}-{right}",
                f"{left}*{right}",
                f"{left}//{right}",
                f"{left} % {right}",
                f"({left} - {right})",
            ]
        )

    numbers, read = {"d": 5, "S": 3, "n_heads": 8}, 0
    for _ in range(500):
        condition = f"{text(5)} {draw.choice(['<', '<=', '==', '!=', '>', '>='])} {text(3)}"
        try:
            right = eval(condition, {"__builtins__": {}}, numbers)
        except ZeroDivisionError:
            with pytest.raises(NotReadable, match="0"):
                holds(condition, numbers)
            continue
        assert holds(condition, numbers) is right, condition
        read += 1
    assert read > 200


def test_a_size_without_a_number_is_named() -> None:
    with pytest.raises(NotKnown, match="window"):
        holds("S + 1 < window", {"S": 2048})


@pytest.mark.parametrize("number", [None, True, 2048.0, "2048"])
def test_only_a_whole_number_is_a_size(number: Any) -> None:
    with pytest.raises(NotKnown, match="window"):
        holds("window > 0", {"window": number})


@pytest.mark.parametrize("number", ["True", "2048.0", "'2048'", "None", "2j"])
def test_only_a_whole_number_is_compared(number: str) -> None:
    with pytest.raises(NotReadable):
        holds(f"S < {number}", {"S": 1})
    with pytest.raises(NotReadable):
        holds(f"S + {number} > 0", {"S": 1})


@pytest.mark.parametrize(
    ("condition", "right"),
    [("S**8 == 256", True), ("S**0 == 1", True), ("-S**2 == -4", True), ("S // 2 == 1", True)],
)
def test_arithmetic_of_conditions(condition: str, right: bool) -> None:
    assert holds(condition, {"S": 2}) is right


@pytest.mark.parametrize(
    "condition",
    [
        "S**9 == 512",
        "S**-1 == 1",
        "S // 0 == 1",
        "S % 0 == 1",
        "S << 1 == 4",
        "S / 2 == 1",
        "~S == 1",
        "not S",
        "S is d",
        "S in S",
        "S < 3 < 4",
        "",
    ],
)
def test_no_other_arithmetic(condition: str) -> None:
    with pytest.raises(NotReadable):
        holds(condition, {"S": 2})


def test_each_comparison_on_both_sides() -> None:
    said = {
        op: [holds(f"S {op} 5", {"S": n}) for n in (4, 5, 6)]
        for op in ("==", "!=", "<", "<=", ">", ">=")
    }
    assert said == {
        "==": [False, True, False],
        "!=": [True, False, True],
        "<": [True, False, False],
        "<=": [True, True, False],
        ">": [False, False, True],
        ">=": [False, True, True],
    }


@pytest.mark.parametrize(
    "condition",
    [
        divides(2 * h, d),
        divides(sympy.Integer(2), d / h),
        sympy.Gt(d / h, 3, evaluate=False),
        sympy.Le(S + 1, w, evaluate=False),
        sympy.Eq(k, d / h, evaluate=False),
        sympy.Ne(d, h, evaluate=False),
        sympy.Ge(sympy.floor(d / h), k, evaluate=False),
        sympy.Lt(sympy.ceiling(S / w), 3, evaluate=False),
        sympy.Eq(sympy.Mod(S, 4), 1, evaluate=False),
    ],
)
def test_a_text_says_what_the_condition_says(condition: Any) -> None:
    text, letters = as_test(condition), sorted(condition.free_symbols, key=str)
    said = set()
    tried = ((12, 3, 4, 9), (8, 2, 4, 4), (9, 2, 1, 5), (4, 12, 7, 3), (6, 3, 2, 4), (5,) * 4)
    for numbers in tried:
        at = dict(zip(letters, numbers, strict=False))
        right = in_domain((condition,), at, {})
        assert holds(text, {letter.name: n for letter, n in at.items()}) is right
        said.add(right)
    assert len(said) == 2  # the numbers fall on both sides


def test_what_torch_asked_says_how_small_sizes_may_be() -> None:
    differ = sympy.Ne(B, 1, evaluate=False)
    assert smallest([differ, sympy.Ge(B * S, 2, evaluate=False)], {}) == {B: 2, S: 1}
    assert smallest([sympy.Ge(B * (S - 1), 2, evaluate=False)], {}) == {B: 1, S: 3}
    times = sympy.Dummy("q", integer=True, positive=True)
    found = smallest([sympy.Gt(h / k, 1, evaluate=False)], {h: k * times})
    assert found == {times: 2}  # twice as many heads as key/value heads, at the least


# A matrix of a feed-forward, and one with twice its rows.
UP, UP_TWICE = b'f"{name}.up_proj", width', b'f"{name}.up_proj", 2 * width'


def test_a_constant_is_told_and_a_comment_is_not() -> None:
    file = "formulas/feed_forward.py"
    source = fingerprints.source_of(file)
    assert source is not None
    recorded = {file: fingerprints.fingerprint(file)}
    reads = {
        "as it is": source,
        "line ends": source.replace(b"\n", b"\r\n"),
        "comment": source + b"\n# one more\n",
        "docstring": source.replace(b"Map x through a hidden width", b"Widen x to", 1),
    }
    for read in reads.values():
        assert fingerprints.changed([file], recorded, lambda _, r=read: r) is None
    for right, wrong in ((UP, UP_TWICE), (b"if not part.gated", b"if part.gated")):
        assert right in source
        planted = source.replace(right, wrong, 1)
        assert fingerprints.changed([file], recorded, lambda _, p=planted: p) == file
    assert fingerprints.changed([file], recorded, lambda _: None) == file  # no sources here
    assert fingerprints.changed([file], recorded, lambda _: b"def (") == file
    assert fingerprints.changed(["formulas/tape.py"], recorded) == "formulas/tape.py"


def test_an_archive_has_sources_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = fingerprints.source_of("errors.py")
    assert source is not None
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("metacount/errors.py", source)
    monkeypatch.setattr(fingerprints, "_loader", zipimport.zipimporter(str(archive)))
    monkeypatch.setattr(fingerprints, "PACKAGE", str(archive / "metacount"))
    assert fingerprints.source_of("errors.py") == source
    assert fingerprints.source_of("rules.py") is None


def test_the_record_is_read_from_an_archive_and_held_against_it(tmp_path: Path) -> None:
    package = Path(fingerprints.PACKAGE)
    right, wrong = UP, UP_TWICE
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(entry("llama-7b").spec().to_dict()), "utf-8")
    program = (
        "import json, metacount\n"
        "from metacount.textbook.proven import proven\n"
        "from metacount.spec import ModelSpec, Workload\n"
        f"found = proven(ModelSpec.from_dict(json.load(open({str(spec)!r}))), Workload())\n"
        "print('all.zip' in metacount.__file__, len(found.code.of('equal')),"
        " len(found.ours.of('equal')))"
    )
    for planted, said in ((right, "True 5 6"), (wrong, "True 0 0")):
        archive = tmp_path / "all.zip"
        with zipfile.ZipFile(archive, "w") as made:
            for file in (*package.rglob("*.py"), package / "proofs.json"):
                source = file.read_bytes()
                if file.name == "feed_forward.py" and file.parent.name == "formulas":
                    assert right in source
                    source = source.replace(right, planted)
                made.writestr(f"metacount/{file.relative_to(package).as_posix()}", source)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(archive)},
        )
        assert done.stdout.strip() == said
