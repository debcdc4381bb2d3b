"""Results of the Python API: they print themselves, and take the sizes of a run as keywords."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import metacount
from metacount import InputError, Workload
from metacount.cli import main


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


def test_a_wrong_keyword_names_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"count\(\) takes no 'seq'; did you mean seq_len\?"):
        metacount.count("gpt2", seq=3)
    with pytest.raises(TypeError, match="it takes batch_size, seq_len, dtype"):
        metacount.diff("gpt2", "gpt2", zzzzzz=3)
    with pytest.raises(InputError, match="a workload or seq_len, not both"):
        metacount.count("gpt2", Workload(), seq_len=3)


def test_other_wrong_keywords_name_the_right_ones() -> None:
    with pytest.raises(TypeError, match=r"has no bogus; it takes .*micro_batches"):
        metacount.fit("gpt2", "l4", bogus=3)
    with pytest.raises(TypeError, match=r"tree\(\) takes no 'seq'; did you mean seq_len"):
        metacount.tree("gpt2", seq=3)


def test_a_picture_shows_itself_in_a_notebook() -> None:
    png = vars(metacount.plot("gpt2"))["_repr_png_"]()
    assert png.startswith(b"\x89PNG") and len(png) > 5000


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
