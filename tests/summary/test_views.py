"""Results as they show themselves: as text, in notebooks, in a shell."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

import metacount
from metacount import Workload
from metacount.cli import main

torch = pytest.importorskip("torch")

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


def test_a_long_tree_says_how_much_is_left_out() -> None:
    deep = torch.nn.Sequential(*(torch.nn.Linear(n, n + 1) for n in range(1, 60)))
    text = str(metacount.summary(deep))
    assert re.search(r"^\.\.\. \d+ lines more$", text, re.M)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (metacount.count("gpt2"), "124,439,808"),
        (metacount.count_training("gpt2"), "train_matmul_flops"),
        (metacount.judge_claim("mixtral-total"), "46,702,792,704"),
        (metacount.diff("gpt2", "gpt2-medium"), "resized   embedding"),
        (metacount.verify("gpt2"), "agree  formula, reference, published"),
        (metacount.check("12*N*d**2", "gpt2"), "wrong: short by 39,505,152"),
        (metacount.tree("gpt2"), "embed_tokens"),
        (metacount.shard("gpt2", "dp=2", formula=True), "on 2 ranks: dp=2"),
        (metacount.flow("gpt2"), "letters  B = 1 batch_size"),
        (metacount.fit("gpt2", "l4"), "the smallest mesh for serving, seq 1024"),
        (metacount.audit("slime-forward", model="qwen3-4b"), "slime"),
    ],
)
def test_a_result_prints_itself(found: Any, shown: str) -> None:
    assert shown in str(found)
    assert repr(found) == str(found)
    assert re.search("<(pre|table)>", found._repr_html_()) and "<script" not in found._repr_html_()


def test_sizes_as_keywords() -> None:
    sizes = {"seq_len": 8192, "batch_size": 2}
    assert metacount.count("llama-7b", **sizes) == metacount.count("llama-7b", Workload(**sizes))
    assert metacount.verify("gpt2", seq_len=16).workload.seq_len == 16
    assert metacount.diff("gpt2", "llama-7b", seq_len=9).a.workload.seq_len == 9


def test_an_error_is_json_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "gpt2", "--set", "n_heads=5", "--json"]) == 2
    out, err = capsys.readouterr()
    said = json.loads(err)
    assert out == "" and said["error"].startswith(f"{said['field']} {said['rule']}")
    assert said["metacount"] == metacount.__version__
    assert main(["count", "nothing-like-it", "--json"]) == 2
    assert "not in the catalog" in json.loads(capsys.readouterr().err)["error"]


def test_all_by_itself_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    words = ("memory", "activation", "peak", "KV", "MFU", "FSDP", "metacount count llama-7b")
    assert [word for word in words if word not in text] == []
