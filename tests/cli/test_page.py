"""`plot --html` without a browser: one file, nothing from elsewhere, strangers' text as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from helpers.command_line import refused
from helpers.release import ONLY
from helpers.structures import first_of_each

from metacount import InputError, Model, Request, count, find_model, page, units
from metacount.algebra.recorded import NotWhole, condition, in_javascript
from metacount.cli import main
from metacount.cli.page import REFUSED, UNKNOWN

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & '\"`${3}`"


def written(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> str:
    assert main(["plot", "--html", str(file), *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{file}: page of ") and err == ""
    return file.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """The elements of a page with their attributes, and how many are open at its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = written(capsys, tmp_path / "p.html", "deepseek-v3", "t5-11b", "--seq", "1k")
    assert len(text.encode()) < 2 * 2**20  # a MiB a model
    tags = Tags(text)
    assert tags.open == []
    names = [tag for tag, _ in tags.found]
    assert names.count("script") == 1 and names.count("style") == 1
    assert {"link", "img", "iframe", "object", "embed", "base"} & set(names) == set()
    for _, attributes in tags.found:
        assert {"src", "style", "srcset"} & set(attributes) == set()
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?:|//\w+\.|url\(|@import|fetch\(|XMLHttp|eval\(|Function\(", text)
    (policy,) = (a["content"] for t, a in tags.found if a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    # the steps of each forward add up to the FLOPs
    for name in ("deepseek-v3", "t5-11b"):
        total = count(name, Request(seq_len=1024)).matmul_flops
        assert f"{units.exact(total)} FLOPs." in text
    assert text.count("y = x / √(mean(x²) + ε) · w") > 4
    assert "[B, h, S, S] = [1, 128, 1024, 1024]" in text
    # the tree of each model, folded, with its tensors
    assert "0-60" not in text and "3-60 ×58" in text and "decoder" in text
    assert "<code>lm_head</code> (OutputHead) [129280, 7168] 926,679,040 0.1 %" in text
    assert '"number": 1024n' in text


def test_a_name_is_text_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps({"name": EVIL, **find_model("gpt2").spec.to_dict()}), "utf-8")
    text = written(capsys, tmp_path / "p.html", str(file))
    tags = Tags(text)
    assert tags.open == []
    names = [tag for tag, _ in tags.found]
    assert names.count("script") == 1 and "img" not in names
    assert "&lt;script&gt;alert(1)" in text and "<img" not in text


def test_a_forward_that_cannot_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("this <model> has no forward")

    monkeypatch.setattr(import_module("metacount.flow.run"), "flow", refuse)
    text = page("gpt2")
    assert "No forward in order: this &lt;model&gt; has no forward" in text
    assert Tags(text).open == []


def test_a_model_of_which_nothing_is_recorded_or_that_is_refused() -> None:
    llama = find_model("llama-7b")
    assert REFUSED not in page(llama) and UNKNOWN in page(llama)  # as data, shown where it is so
    assert REFUSED in page(Model(**{**vars(llama), "refused": True}))
    assert '"proofs": null' in page(Model(**{**vars(llama), "refused": True}))


@pytest.mark.parametrize(
    "name",
    [name if name == "mamba2-1.3b" else pytest.param(name, marks=ONLY) for name in first_of_each()],
)
def test_a_model_of_any_structure_has_a_page(name: str) -> None:
    assert name in page(find_model(name))


def test_the_page_of_the_api_is_that_of_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert written(capsys, tmp_path / "p.html", "gpt2", "--lang", "en") == page("gpt2")
    chinese = written(capsys, tmp_path / "p.html", "gpt2", "--lang", "zh")
    assert chinese == page("gpt2", lang="zh") and '<html lang="zh">' in chinese
    assert "按执行顺序的前向（同样的尺寸）, batch 1, seq 1024, bf16" in chinese


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2", "--html", "p.txt"), "--html must end in .html: got p.txt"),
        (("gpt2", "--html", "no/such/p.html"), "--html: there is no folder no/such"),
        (("--html", "p.html"), "plot needs one of MODEL"),
        (("--caches", "gpt2", "--html", "p.html"), "--html does not go with --caches"),
        (("gpt2", "--html", "p.html", "--seq", "1,2"), "--seq of a page is one length"),
        (
            ("gpt2", "--html", "p.html", "--quantity", "matmul_flops"),
            "--html does not go with --quantity",
        ),
        (("gpt2", "--html", "p.html", "--over", "d_ff=1"), "--html does not go with --over"),
        # transformers alone knows it: there is no closed form
        (("type:zamba", "--html", "p.html"), "has no spec, so there is no formula"),
        (("gpt2", "type:zamba", "--html", "p.html"), "has no spec, so there is no formula"),
    ],
)
def test_what_makes_no_page(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "plot", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_only_whole_numbers_become_javascript() -> None:
    names = {"a": "v.a", "b": "v.b"}
    assert in_javascript("max(a, 2) - (-(-a // b))", names) == (
        "(most(v.a, 2n) + -(-(floorDiv(-(v.a), v.b))))"
    )
    assert condition("a**2 % b <= 3", names) == "floorMod((v.a ** 2n), v.b) <= 3n"
    for text in ("a / b", "0.5*a", "ceil(a)"):
        with pytest.raises(NotWhole):
            in_javascript(text, names)
    with pytest.raises(NotWhole):
        condition("a + b", names)
