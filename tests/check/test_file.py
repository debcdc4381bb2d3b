"""A function of a file: what it says, and that nothing it does gets out of its process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import InputError, Workload, find_model
from metacount.check import Judgement
from metacount.check.given.process import answer_of
from metacount.check.verdict import judged_file

GOOD = """
def whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):
    block = 2*d_model*head_dim*(n_heads + n_kv_heads) + 3*d_model*d_ff + 2*d_model
    return n_layers*block + d_model + 2*vocab_size*d_model
"""


def judge(
    folder: Path, text: str, function: str = "f", *, model: str = "llama-7b", timeout: float = 20
) -> Judgement:
    file = folder / "mine.py"
    file.write_text(text, encoding="utf-8")
    found = find_model(model)
    case = (found.spec, Workload())
    return judged_file(str(file), function, found, case, "params", timeout=timeout)


@one_day_in(4)
def test_letters_go_through_a_plain_function(tmp_path: Path) -> None:
    result = judge(tmp_path, GOOD, "whole")
    assert result.verdict == "equal"
    assert result.theirs is not None and result.theirs_value == 6_738_415_616


def test_foreign_names_defaults_and_an_object(tmp_path: Path) -> None:
    text = GOOD + (
        "def f(config, scale=1, *, head_dim=None, **rest):\n"
        "    assert 'num_hidden_layers' in config and config.get('n_experts') is None\n"
        "    head_dim = head_dim or config.hidden_size // config.n_heads\n"
        "    assert not config.tie_word_embeddings\n"
        "    return whole(config['hidden_size'], config.num_hidden_layers, config.n_head,\n"
        "                 config.num_key_value_heads, head_dim, config.intermediate_size,\n"
        "                 config.vocab_size)*scale\n"
    )
    result = judge(tmp_path, text)
    assert result.verdict == "equal"
    assert result.notes == ("scale keeps its default, 1",)


def test_its_own_folder_is_importable(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("TWO = 2\n")
    text = "from beside import TWO\ndef f(d_model):\n    return TWO*d_model\n"
    assert judge(tmp_path, text).theirs_value == 8192


def test_numbers_only_that_are_right(tmp_path: Path) -> None:
    text = GOOD + (
        "def f(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):\n"
        "    n = whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)\n"
        "    return int(n)\n"
    )
    result = judge(tmp_path, text)
    assert (result.verdict, result.theirs) == ("equal_where_tried", None)
    assert result.tried == result.planned > 500


@one_day_in(4)
def test_numbers_only_that_are_wrong_in_words(tmp_path: Path) -> None:
    text = GOOD + (
        "def f(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):\n"
        "    n = whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)\n"
        "    return int(n - vocab_size*d_model)\n"
        "def half(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):\n"
        "    n = whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)\n"
        "    return int(2*n)\n"
        "def odd(d_model):\n"
        "    return int(d_model**3)\n"
    )
    result = judge(tmp_path, text)
    assert result.verdict == "wrong"
    assert [(t.words, t.value) for t in result.terms] == [
        ("one of embedding and output head left out", -131_072_000)  # 32000·4096
    ]
    (term,) = judge(tmp_path, text, "half").terms
    assert (term.words, term.value) == ("a factor of 2 too much", 6_738_415_616)
    (term,) = judge(tmp_path, text, "odd").terms
    assert not term.known


def test_a_branch_that_letters_do_not_take(tmp_path: Path) -> None:
    # LLaMA-3 has fewer key/value heads than heads: only other sizes take the wrong branch
    text = GOOD + (
        "def f(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):\n"
        "    if n_heads == n_kv_heads:\n"
        "        return 1\n"
        "    return whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)\n"
    )
    result = judge(tmp_path, text, model="llama3-8b")
    assert result.verdict == "equal_here"
    found = result.counterexample
    assert found is not None and found.theirs == 1
    assert found.sizes["n_heads"] == found.sizes["n_kv_heads"]


@one_day_in(4)
def test_floats(tmp_path: Path) -> None:
    text = GOOD + (
        "def f(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):\n"
        "    n = whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)\n"
        "    return n*1.0\n"
        "def thirds(d_model):\n"
        "    return 8/3*d_model\n"
    )
    result = judge(tmp_path, text)
    assert result.verdict == "equal"
    assert result.notes == (
        "the function returns floats; they are exact for whole numbers up to 2^53 only",
    )
    assert judge(tmp_path, text, "thirds").verdict == "wrong"


@daily(5)
@pytest.mark.parametrize(
    ("text", "said"),
    one_in(
        2,
        [
            ("def g(d_model): return 1", "has no function 'f'; it has g"),
            ("f = 3", "has no function 'f'; it has no function"),
            ("def f(:", "mine.py, line 1: is not Python"),
            ("raise OSError('x')", "raised OSError when it was loaded: x"),
            ("raise SystemExit", "raised SystemExit when it was loaded"),
            ("def f(frobs): return 1", "the argument 'frobs' is no size that is known here"),
            ("def f(n_experts): return 1", "the argument n_experts: llama-7b has no n_experts"),
            ("def f(d, /): return 1", "d can only be given by position"),
            ("def f(config): return config.frobs", "raised AttributeError .* 'frobs' is no size"),
            ("def f(cfg): return cfg['n_experts']", "raised KeyError .* llama-7b has no n_experts"),
        ],
    ),
)
def test_what_cannot_be_called_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        judge(tmp_path, text)


def test_a_missing_file(tmp_path: Path) -> None:
    found = find_model("llama-7b")
    case = (found.spec, Workload())
    with pytest.raises(InputError, match=r"none\.py"):
        judged_file(str(tmp_path / "none.py"), "f", found, case, "params")


def test_a_function_of_the_caller_is_called_here() -> None:
    calls: list[Any] = []

    def mine(d_model: Any, n_layers: Any) -> Any:
        calls.append(d_model)
        return 12 * n_layers * d_model**2

    result = metacount.check(mine, "gpt2")
    assert result.verdict == "wrong"
    assert result.theirs_value == 12 * 12 * 768**2
    assert calls[0] == 768
    assert [term.words for term in result.terms][:2] == [
        "embedding left out",
        "position table left out",
    ]


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["{'text': 'mine'}", '{"ended": 0}'], None),
        (['{"text": "ours"}', '{"ended": 0}'], "ours"),  # both before anybody reads
        (['{"text": "ours"}', '{"text": "mine"}'], None),
    ],
)
def test_an_answer_and_the_end_of_its_process_may_come_together(
    lines: list[str], answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "server.py").write_text(f"import os\nos.write(1, {text!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if answer is None:
        with pytest.raises(InputError, match="wrote over"):
            answer_of("{}", "mine.py:f", 20, "server")
    else:
        assert answer_of("{}", "mine.py:f", 20, "server") == {"text": answer}
