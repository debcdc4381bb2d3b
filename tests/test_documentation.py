"""README.md and docs/: every block runs and prints what is shown, tables and links are current.

A line `...` stands for any lines. `console` blocks start with `$ metacount ...`; of `sh` blocks the
commands of metacount run, and targets of make exist. `python` blocks run as doctests; one that
begins with `# NAME.py` is that file. Commands run in a folder with a config.json and benchmarks/.
"""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, benchmark
from helpers.release import daily, one_day_in

import metacount
from metacount import cli

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {file.name: file.read_text("utf-8") for file in FILES}
BLOCKS = {
    f"{name}:{text.count(chr(10), 0, found.start()) + 1}": (found[1], found[2])
    for name, text in TEXTS.items()
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
}
PROSE = "\n".join(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S) for text in TEXTS.values())
CODE = re.findall(r"`([^`\n]+)`", PROSE)
PARTS = ("peers-short", "peers", "peers-training", "ffn", "ffn-gpu", "proven")
PARTS += ("meshes", "torchtitan")
SLOW = pytest.param("audit", marks=one_day_in(6))


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(text, id=where) for where, (name, text) in BLOCKS.items() if name == kind]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: with a config, the files that blocks show, and the benchmarks."""
    shutil.copy(ROOT / "benchmarks" / "peer_models" / "qwen3-0.6b.json", tmp_path / "config.json")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for kind, text in BLOCKS.values():
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / name[1]).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def matches(printed: str, shown: str) -> bool:
    """Whether `printed` is `shown`, where a line of three dots is any number of lines."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), printed) is not None


@daily(3)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", of_kind("console"))
def test_commands_print_what_is_shown(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program == "metacount"
        cli.main(arguments)
        printed = capsys.readouterr()
        assert matches(printed.out + printed.err, shown), printed.out + printed.err


@daily(3)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", of_kind("sh"))
def test_commands_of_lists_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "make":
            assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), line
        else:
            assert program == "metacount"
            assert cli.main(arguments) == 0, line
            assert capsys.readouterr().out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("block", of_kind("python"))
def test_python_gives_what_is_shown(block: str) -> None:
    if block.startswith("# "):
        compile(block, "shown", "exec")
        return
    test = doctest.DocTestParser().get_doctest(block, {}, "shown", None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_comparison_can_fail() -> None:
    assert {kind for kind, _ in BLOCKS.values()} == {"console", "sh", "python", "text"}
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert not matches("a\nb\nc\n", "a\n...\nd\n")
    assert not matches("a\nb\n", "a\n")


@pytest.mark.parametrize("name", [*PARTS, SLOW])
def test_generated_parts_are_current(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    documentation = benchmark("documentation")
    if name == "audit":  # judged once for all tests
        audits = request.getfixturevalue("audits")
        monkeypatch.setattr(documentation, "audit", lambda: audits)
    _, text, new = documentation.renewed(name)
    assert new == text, "run python benchmarks/documentation.py"
    assert documentation.replaced(text, name, "another\n") != text
    assert set(documentation.PARTS) == {*PARTS, "audit"}


def test_commands_and_options_in_the_text_exist(capsys: pytest.CaptureFixture[str]) -> None:
    helps = {n: (cli.main([n, "--help"]), capsys.readouterr().out)[1] for n in cli.COMMANDS}
    commands = [text.split() for text in CODE if text.startswith("metacount ")]
    assert len(commands) > 30
    for _, name, *words in commands:
        for option in (word for word in words if word.startswith("-")):
            assert name == "COMMAND" or re.search(rf"{option}\b", helps[name]), (name, option)
    for text in CODE:
        if re.match(r"--\w", text):
            option = re.escape(text.split()[0])
            assert any(re.search(rf"{option}\b", each) for each in helps.values()), text


def test_names_files_and_links_in_the_text_exist() -> None:
    source = "\n".join(file.read_text("utf-8") for file in (ROOT / "metacount").rglob("*.py"))
    for text in CODE:
        if found := re.match(r"metacount\.(\w+)", text):
            assert hasattr(metacount, found[1]) or found[1] == "huggingface", text
        if re.fullmatch(r"\w+_(params|bytes|flops)", text):
            assert text in source, text
        if found := re.match(r"(?:python )?((?:metacount|benchmarks|tests)/[\w/.]*)", text):
            assert (ROOT / found[1]).exists(), text
        of_ours = text != "config/train_gpt2.py"  # which is nanoGPT's
        if of_ours and re.fullmatch(r"[a-z_]+/|[a-z_]+/[a-z0-9_/]*(/|\.py)", text):
            within = ("", "metacount", "metacount/formulas", "benchmarks")
            assert any((ROOT / place / text).exists() for place in within), text
    for file in FILES:
        for target in re.findall(r"\]\((?!https?:)([^)]*)\)", file.read_text("utf-8")):
            path, _, anchor = target.partition("#")
            assert (file.parent / path).exists()
            if anchor:
                text = (file.parent / path).read_text("utf-8")
                heads = [head.lower() for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
                assert anchor in [re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in heads]


def test_numbers_in_sentences_are_of_today() -> None:
    from metacount.audit.judge import models
    from metacount.audit.record import compared, formulas
    from metacount.huggingface.config.to_spec import mapped_types
    from metacount.teaching import claims
    from metacount.teaching.lessons import TOPICS

    sources = {formula.source.id for formula in formulas()}
    statements = json.loads((ROOT / "tests/teaching/statements.json").read_text("utf-8"))
    text = " ".join((PROSE + (ROOT / "CHANGELOG.md").read_text("utf-8")).split())
    for pattern, *numbers in (
        (r"(\d+) published models", len(metacount.ids())),
        (r"(\d+) (?:well-known )?statements(?! that)", len(claims.claims())),
        (r"`\w+/teaching/statements.json` holds (\d+)", len(statements)),
        (r"(\d+) formulas (?:from|of) (\d+)", len(formulas()), len(sources)),
        (r"(\d+) of them compared with the real", len(compared())),
        (r"catalog's (\d+) models of one stack", len(models())),
        (r"(\d+) (?:mapped types|model types)(?! of)", len(mapped_types())),
        (r"(\d+) pages", len(TOPICS)),
    ):
        found = re.findall(pattern, text)
        assert found, pattern
        assert {each if isinstance(each, tuple) else (each,) for each in found} == {
            tuple(map(str, numbers))
        }, pattern


def test_the_picture_has_the_words_that_plot_draws(folder: Path) -> None:
    drawn = folder / "parameters.svg"
    assert cli.main(["plot", "llama-7b", "mixtral-8x7b", "-o", str(drawn)]) == 0
    words = [
        re.findall(r"<!-- (.*?) -->", file.read_text("utf-8"))
        for file in (drawn, ROOT / "docs" / "parameters.svg")
    ]
    assert words[0] == words[1] != []


def test_pages_are_short() -> None:
    readme, changelog = (ROOT / name for name in ("README.md", "CHANGELOG.md"))
    assert len(readme.read_text("utf-8").splitlines()) <= 200
    assert readme.stat().st_size <= 10_000
    assert len(changelog.read_text("utf-8").splitlines()) <= 150
