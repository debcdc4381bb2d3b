"""`metacount lesson` as its users meet it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import daily

import metacount
from metacount.cli.layout import cells, table, wrapped
from metacount.teaching.lessons import TOPICS

ANALYTIC = ("block", "embedding", "qwen3", "compute", "paper")


def test_the_list_has_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "lesson", "--lang", "en")
    assert [line.split()[0] for line in text.splitlines()[1 : 1 + len(TOPICS)]] == list(TOPICS)
    listed = json.loads(run(capsys, "lesson", "--lang", "zh", "--json"))
    assert [each["topic"] for each in listed] == list(TOPICS)
    assert set(listed[0]) >= {"topic", "title", "model"}


def test_text_markdown_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("lesson", "block", "--model", "llama-7b", "--lang", "en")
    data = run_json(capsys, *arguments)
    assert data["values"]["block"] == 202_383_360
    keys = {"topic", "lang", "model", "name", "changes", "title", "blocks", "values"}
    assert set(data) >= keys
    kinds = {block["kind"] for block in data["blocks"]}
    assert kinds == {"heading", "paragraph", "equation", "table", "exercise"}
    for text in (run(capsys, *arguments), run(capsys, *arguments, "--markdown")):
        assert "202,383,360" in text
        assert "metacount check" in text
    markdown = run(capsys, *arguments, "--markdown")
    assert markdown.startswith("# The parameters of a block\n\n")
    assert "| q_proj | [h·h_d, d] | [4096, 4096] | 16,777,216 | 8.3 % |" in markdown
    assert "```sh\nmetacount check" in markdown


def test_answers_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = run(capsys, "lesson", "moe", "--lang", "en")
    shown = run(capsys, "lesson", "moe", "--lang", "en", "--answers")
    assert 'metacount check "..." mixtral-8x7b' in hidden
    assert "V*d" not in hidden
    assert 'metacount check "V*d + 2*N*d*h_d*(h + h_kv)' in shown
    assert '"..."' not in shown


def test_the_model_of_the_readers_choice(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert "61" in run(capsys, "lesson", "block", "--model", "deepseek-v3", "--lang", "en")
    assert run_json(capsys, "lesson", "block", "--model", tiny, "--lang", "en")["model"] == "tiny"
    wide = ("lesson", "ffn", "--model", "llama-7b", "--lang", "en", "--set", "d_ff=12345")
    text = run(capsys, *wide)
    assert "--set d_ff=12345" in text.splitlines()[1]
    assert "12,345" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("moee",), "lesson 'moee' is not known; did you mean moe"),
        (("xyz",), "choose one of block, embedding"),
        (("moe", "--model", "llama-7b"), "needs a model with experts"),
        (("moe", "--model", "longcat-flash"), "experts in the place of a feed-forward: longcat-"),
        (
            ("norm", "--model", "longcat-flash"),
            "needs a block with attention whose norms may stand",
        ),
        (("block", "--model", "gemma-3n-e2b-text"), "lesson block has no word for n_altup_inputs"),
        (("moe", "--model", "nobody-7b"), "not in the catalog"),
        (("moe", "--lang", "fr"), "--lang 'fr' is not known; choose one of en, zh"),
        (("moe", "--json", "--markdown"), "leave one of them out"),
        (("--model", "llama-7b"), "lesson needs TOPIC"),
        (
            ("moe", "--set", "moe_latent_rank=512"),
            "lesson moe has no word for moe_latent_rank of mixtral-8x7b",
        ),
        (("block", "--set", "d_fff=3"), "not a field of a model"),
    ],
)
def test_a_wrong_request_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, "lesson", *arguments)


def test_the_terminals_language_is_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert "The parameters of a block" in run(capsys, "lesson")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "一个块的参数" in run(capsys, "lesson")
    assert run(capsys, "lesson", "block").startswith("一个块的参数\n")
    assert run(capsys, "lesson", "block", "--lang", "en").startswith("The parameters of a block\n")


@daily(2)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_ascii_terminal_gets_escapes_and_no_crash(lang: str) -> None:
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    ran = subprocess.run(
        [sys.executable, "-m", "metacount", "lesson", "block", "--lang", lang],
        capture_output=True,
        check=True,
        env={**dict(__import__("os").environ), **environment},
    )
    assert ran.stderr == b""
    assert b"3,147,776" in ran.stdout
    assert ran.stdout.isascii()


@daily(5)
@pytest.mark.parametrize("topic", ANALYTIC)
def test_a_lesson_that_executes_nothing_imports_no_torch(topic: str) -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        f"assert main(['lesson', {topic!r}, '--json']) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_the_list_of_topics_imports_no_torch() -> None:
    program = (
        "import sys\nfrom metacount.cli import main\nassert main(['lesson']) == 0\n"
        "assert not {'torch', 'sympy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_the_python_api() -> None:
    spec = metacount.entry("llama-7b").spec()
    found = metacount.lesson("block", spec, lang="zh")
    assert isinstance(found, metacount.Lesson)
    assert found.text.startswith("一个块的参数\n")
    assert found._repr_markdown_().startswith("# 一个块的参数\n")
    assert found.to_dict()["values"]["block"] == 202_383_360
    assert '"..." MODEL' in found.text  # a spec has no name to type
    with pytest.raises(metacount.InputError, match="attention"):
        metacount.lesson("atention")


def test_chinese_is_measured_as_a_terminal_shows_it() -> None:
    lines = table(("角色", "n"), [("注意力", "1"), ("ffn", "23")], "<>")
    assert lines == ["角色     n", "注意力   1", "ffn     23"]
    assert len({cells(line) for line in lines[1:]}) == 1
    text = "每个词元用查询去问，用键来应答，用值把内容交出去（见 `metacount lesson moe`）。"
    for width in range(8, 60):
        broken = wrapped(text, width)
        assert "".join(broken).replace(" ", "") == text.replace(" ", "")
        assert all(line[0] not in "，。）" for line in broken)
        assert all(cells(line) <= max(width, 10) for line in broken)
