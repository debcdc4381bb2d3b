"""`metacount lesson` as its users meet it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import daily

import metacount
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


@daily(5)
@pytest.mark.parametrize("topic", ANALYTIC)
def test_a_lesson_that_executes_nothing_imports_no_torch(topic: str) -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        f"assert main(['lesson', {topic!r}, '--json']) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
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
