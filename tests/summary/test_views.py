"""A summary in a terminal, in Markdown and in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

torch = pytest.importorskip("torch")

import metacount  # noqa: E402

pytestmark = pytest.mark.usefixtures("eighty_columns")


class Balanced(HTMLParser):
    """Every tag that is opened is closed, and nothing runs or is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert not {name for name, _ in attrs} - {"style", "open"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_roles_are_of_all_parameters_and_add_up() -> None:
    text = str(metacount.summary("mixtral-8x7b"))
    assert max(map(len, text.splitlines())) <= 80
    params = re.search(r"^params +([\d,]+)$", text, re.M)
    roles = re.search(r"^role +params +share\n((?:.+\n)+)", text, re.M)
    assert params is not None and roles is not None
    numbers = [int(line.split()[1].replace(",", "")) for line in roles[1].splitlines()]
    assert sum(numbers) == int(params[1].replace(",", "")) == 46_702_792_704
    assert "GQA 32/8, RoPE" in text and "counted by the formulas" in text


def test_a_stranger_s_class_is_text() -> None:
    hostile = type("<b>x|y</b>", (torch.nn.Linear,), {})(3, 5)
    found = metacount.summary(torch.nn.Sequential(hostile))
    page = found._repr_html_()
    parsed = Balanced()
    parsed.feed(page)
    assert parsed.open == [] and "code" in parsed.seen and "<b>x" not in page
    title = metacount.summary(hostile).to_markdown()
    assert "<b>x" not in title and "x\\|y" in title


def test_a_notebook_opens_module_by_module() -> None:
    page = metacount.summary("gpt2")._repr_html_()
    parsed = Balanced()
    parsed.feed(page)
    assert parsed.open == [] and {"details", "summary", "table"} <= parsed.seen
    assert not {"script", "link", "img"} & parsed.seen
    assert page.count("<details open") == 1 and "124,439,808" in page and "×12" in page


def test_markdown_has_a_table_for_each() -> None:
    text = metacount.summary("gpt2").to_markdown()
    heads = [line for line in text.splitlines() if line.startswith("| ") and ":-" not in line]
    assert {"| figure | value |", "| role | params | share |"} <= set(heads)
    assert "| module | copies | shape | params | share |" in heads
    assert text.startswith("## GPT-2 small\n")


def test_a_long_tree_says_how_much_is_left_out() -> None:
    deep = torch.nn.Sequential(*(torch.nn.Linear(n, n + 1) for n in range(1, 60)))
    text = str(metacount.summary(deep))
    assert re.search(r"^\.\.\. \d+ lines more$", text, re.M)
