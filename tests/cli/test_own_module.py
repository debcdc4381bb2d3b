"""FILE.py:NAME in the place of MODEL: every command takes it as far as it can, within limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask, assert_readable

from metacount.errors import InputError
from metacount.own_module import answered

FILE = """
import os, time
import torch
import transformers
from torch import nn

print("made")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(5, 7)
        self.inner = nn.Sequential(*[nn.Linear(7, 7, bias=False) for _ in range(3)])
        self.down = nn.Linear(7, 2)
        self.register_buffer("scale", torch.ones(11))
    def forward(self, x):
        return self.down(self.inner(self.up(x).relu()))

config = transformers.LlamaConfig(hidden_size=24, num_hidden_layers=3, num_attention_heads=4,
    intermediate_size=34, vocab_size=101)
def llama():
    return transformers.LlamaForCausalLM(config)
def changed():
    made = transformers.LlamaForCausalLM(config)
    made.extra = nn.Linear(2, 2)
    return made
"""
ENDS = """
def endless():
    while True:
        pass
def greedy():
    return [bytearray(2**28) for _ in range(64)]
def leaves():
    os._exit(3)
"""
PARAMS = (5 * 7 + 7) + 3 * 7 * 7 + (7 * 2 + 2)
FLOPS = 2 * 3 * (5 * 7 + 3 * 7 * 7 + 7 * 2)  # over 3 rows, 2 for each multiply-add
LLAMA = 2 * 101 * 24 + 3 * (4 * 24 * 24 + 3 * 24 * 34 + 2 * 24) + 24


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.py").write_text(FILE, encoding="utf-8")
    return tmp_path / "mine.py"


def answer(line: str, width: int = 80) -> str:
    """What a command writes, as its own process does it: without one, to load torch once."""
    words = {"arguments": line.split(), "columns": width, "terminal": False, "encoding": "utf-8"}
    return str(answered(words)["text"])


def data(line: str) -> Any:
    return json.loads(answer(f"{line} --json"))


def test_a_module_without_a_config() -> None:
    found = data("count mine.py:Net --input 3,5")
    assert (found["params"], found["param_bytes"], found["buffers"]) == (PARAMS, 4 * PARAMS, 11)
    assert (found["matmul_flops"], found["macs"]) == (FLOPS, FLOPS // 2)
    assert found["by_module"] == {"up": 42, "inner": 147, "down": 16}
    assert found["workload"] == {"inputs": [[3, 5]]}
    for width in (60, 120):
        text = answer("count mine.py:Net", width)
        assert f"params            {PARAMS}" in text and "matmul_flops" not in text
        assert_readable(text.splitlines()[2:], width)
    tree = answer("tree mine.py:Net --input 3,5")
    assert re.search(r"inner\.0-2 ×3 +\[7, 7\] +\[3, 7\] +147 +882", tree)
    assert data("flow mine.py:Net --input 3,5")["matmul_flops"] == FLOPS
    assert data("train mine.py:Net --input 3,5")["params"] == PARAMS


def test_what_modules_give_is_what_torch_gives() -> None:
    nodes = [data("tree gpt2 --columns output --seq 7 --batch 2")["tree"]]
    by_path = {}
    while nodes:
        node = nodes.pop()
        by_path[node["path"]] = node["outputs"]
        nodes += node["children"]
    assert by_path["embed_tokens"] == by_path["decoder.layers.0"] == [[2, 7, 768]]
    assert by_path["decoder.layers.0.mlp.up_proj"] == [[2, 7, 3072]]
    assert by_path["lm_head"] == [[2, 7, 50257]]
    theirs = answer("tree mine.py:llama --columns output,params --seq 7")
    assert re.search(r"lm_head +\[1, 7, 101\] +2,424", theirs)


def test_a_module_with_a_config_is_that_model_in_every_command(file: Path) -> None:
    assert data("count mine.py:llama --set n_layers=2")["params"] < LLAMA
    assert str(LLAMA) in answer("formula mine.py:llama").replace(",", "")
    assert data("tree mine.py:llama")["tree"]["params"] == LLAMA
    assert data("verify mine.py:llama --seq 3")["agree"] is True
    assert data("diff mine.py:llama gpt2")["figures"]["params"]["a"] == LLAMA
    assert data("fit mine.py:llama")["answers"][0]["job"]["mesh"]["dp"] == 1
    assert data("shard mine.py:llama --mesh dp=2 --formula")["model"] == "mine.py:llama"
    assert data("train mine.py:llama --formula")["params"] == LLAMA
    assert "p.svg" in answer("plot mine.py:llama -o p.svg")
    assert file.with_name("p.svg").stat().st_size > 1000
    assert [each["params"] for each in data("count mine.py:llama gpt2")] == [LLAMA, 124439808]


@pytest.mark.parametrize(
    "line",
    ["diff mine.py:Net gpt2", "fit mine.py:Net", "formula mine.py:Net", "plot mine.py:Net -o n.svg",
     "shard mine.py:Net --mesh dp=2", "verify mine.py:changed"],
)  # fmt: skip
def test_what_cannot_says_which_commands_can(line: str) -> None:
    with pytest.raises(InputError, match=r"needs --input|take it as it is") as error:
        answer(line)
    named = re.findall(r"`metacount (\w+)`", str(error.value))
    assert named == ["count", "tree", "flow", "train"]
    given = line.split()[1]
    for name in named if "diff" in line or "verify" in line else ():
        assert answer(f"{name} {given} --input {'3,5' if 'Net' in given else '1,4:int64'}")


@pytest.mark.parametrize(
    ("name", "seconds", "said"),
    [
        ("endless", 5, "stopped after 5 s; is there a loop without end? --timeout gives it more"),
        ("greedy", 100, "ran out of memory"),
        ("leaves", 100, "its process ended with exit code 3 and without an answer"),
    ],
)
def test_a_file_that_misbehaves_costs_its_own_process_alone(
    ask: Ask, file: Path, name: str, seconds: int, said: str
) -> None:
    file.write_text(FILE.replace("import transformers", "").partition("config =")[0] + ENDS)
    assert said in ask.refused(f"count mine.py:{name} --timeout {seconds}")


def test_an_error_in_that_process_is_the_error_of_the_command(ask: Ask) -> None:
    theirs, ours = (ask.all(f"count {m} --batch 0 --json") for m in ("mine.py:llama", "gpt2"))
    assert theirs == ours and theirs[:2] == (2, "")
    assert json.loads(theirs[2])["field"] == "batch_size"
    for wrong, said in {
        "Net --input 3,x": "--input is sizes",
        "Net --input 3,6": "fails on [3, 6]",
        "Net --input 3,5 --set n_layers=2": "--set is not for a module of your own",
        "nothing": "has no 'nothing'",
        "config": "is no module",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            answer(f"count mine.py:{wrong}")
