"""FILE.py:NAME in the place of MODEL: every command takes it as far as it can, within limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import assert_readable, refused, run

from metacount.cli import main
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


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str, width: int = 80) -> str:
    """What a command writes, as its own process does it: without one, to load torch once."""
    monkeypatch.setenv("COLUMNS", "80")
    job = {"arguments": arguments, "columns": width, "terminal": False, "encoding": "utf-8"}
    return str(answered(job)["text"])


def asked_json(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    return json.loads(asked(monkeypatch, *arguments, "--json"))


def test_a_module_without_a_config(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    data = asked_json(monkeypatch, "count", f"{file}:Net", "--input", "3,5")
    assert (data["params"], data["param_bytes"], data["buffers"]) == (PARAMS, 4 * PARAMS, 11)
    assert (data["matmul_flops"], data["macs"]) == (FLOPS, FLOPS // 2)
    assert data["by_module"] == {"up": 42, "inner": 147, "down": 16}
    assert data["workload"] == {"inputs": [[3, 5]]}
    for width in (60, 80, 120):
        text = asked(monkeypatch, "count", f"{file}:Net", width=width)
        assert f"params            {PARAMS}" in text and "matmul_flops" not in text
        assert_readable(text.splitlines()[2:], width)
    tree = asked(monkeypatch, "tree", f"{file}:Net", "--input", "3,5")
    assert re.search(r"inner\.0-2 ×3 +\[7, 7\] +\[3, 7\] +147 +882", tree)
    assert asked_json(monkeypatch, "flow", f"{file}:Net", "--input", "3,5")["matmul_flops"] == FLOPS
    assert asked_json(monkeypatch, "train", f"{file}:Net", "--input", "3,5")["params"] == PARAMS


def test_what_modules_give_is_what_torch_gives(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    run = ("--seq", "7", "--batch", "2")
    nodes = [asked_json(monkeypatch, "tree", "gpt2", "--columns", "output", *run)["tree"]]
    by_path = {}
    while nodes:
        node = nodes.pop()
        by_path[node["path"]] = node["outputs"]
        nodes += node["children"]
    assert by_path["embed_tokens"] == by_path["decoder.layers.0"] == [[2, 7, 768]]
    assert by_path["decoder.layers.0.mlp.up_proj"] == [[2, 7, 3072]]
    assert by_path["lm_head"] == [[2, 7, 50257]]
    theirs = asked(monkeypatch, "tree", f"{file}:llama", "--columns", "output,params", "--seq", "7")
    assert re.search(r"lm_head +\[1, 7, 101\] +2,424", theirs)


def test_a_module_with_a_config_is_that_model_in_every_command(
    monkeypatch: pytest.MonkeyPatch, file: str, tmp_path: Path
) -> None:
    mine = f"{file}:llama"
    assert asked_json(monkeypatch, "count", mine)["params"] == LLAMA
    assert asked_json(monkeypatch, "count", mine, "--set", "n_layers=2")["params"] < LLAMA
    assert str(LLAMA) in asked(monkeypatch, "formula", mine).replace(",", "")
    assert asked_json(monkeypatch, "tree", mine)["tree"]["params"] == LLAMA
    assert asked_json(monkeypatch, "verify", mine, "--seq", "3")["agree"] is True
    assert asked_json(monkeypatch, "diff", mine, "gpt2")["figures"]["params"]["a"] == LLAMA
    assert asked_json(monkeypatch, "fit", mine)["answers"][0]["job"]["mesh"]["dp"] == 1
    assert asked_json(monkeypatch, "shard", mine, "--mesh", "dp=2", "--formula")["model"] == mine
    assert asked_json(monkeypatch, "train", mine, "--formula")["params"] == LLAMA
    picture = str(tmp_path / "picture.svg")
    assert picture in asked(monkeypatch, "plot", mine, "-o", picture)
    assert (tmp_path / "picture.svg").stat().st_size > 1000
    both = asked_json(monkeypatch, "count", mine, "gpt2")
    assert [each["params"] for each in both] == [LLAMA, 124439808]


@pytest.mark.parametrize(
    "arguments",
    ["diff Net gpt2", "fit Net", "formula Net", "plot Net -o NONE.svg", "shard Net --mesh dp=2",
     "train Net --formula", "verify changed"],
)  # fmt: skip
def test_what_cannot_says_which_commands_can(
    monkeypatch: pytest.MonkeyPatch, file: str, arguments: str
) -> None:
    words = [f"{file}:{w}" if w in ("Net", "changed") else w for w in arguments.split()]
    with pytest.raises(InputError, match=r"needs --input|take it as it is") as error:
        asked(monkeypatch, *words)
    named = re.findall(r"`metacount (\w+)`", str(error.value))
    if words[0] == "train":
        return
    assert named == ["count", "tree", "flow", "train"]
    given = next(word for word in words if word.startswith(file))
    for name in named:
        sizes = "3,5" if given.endswith("Net") else "1,4:int64"
        assert asked(monkeypatch, name, given, "--input", sizes)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("endless", "stopped after 5 s; is there a loop without end? --timeout gives it more"),
        ("greedy", "ran out of memory"),
        ("leaves", "its process ended with exit code 3 and without an answer"),
    ],
)
def test_a_file_that_misbehaves_costs_its_own_process_alone(
    capsys: pytest.CaptureFixture[str], file: str, name: str, said: str
) -> None:
    Path(file).write_text(FILE.replace("import transformers", "").partition("config =")[0] + ENDS)
    seconds = "5" if name == "endless" else "100"
    assert said in refused(capsys, "count", f"{file}:{name}", "--timeout", seconds)


def test_an_error_in_that_process_is_the_error_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    assert "--input is for FILE.py:NAME" in refused(capsys, "tree", "gpt2", "--input", "2")
    assert main(["count", f"{file}:llama", "--batch", "0", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert main(["count", "gpt2", "--batch", "0", "--json"]) == 2
    assert capsys.readouterr().err == err
    assert json.loads(err)["field"] == "batch_size"
    for wrong, said in {
        "--input 3,x": "--input is sizes",
        "--input 3,6": "fails on [3, 6]",
        "--input 3,5 --set n_layers=2": "--set is not for a module of your own",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            asked(monkeypatch, "count", f"{file}:Net", *wrong.split())
    for name, said in {"nothing": "has no 'nothing'", "config": "is no module"}.items():
        with pytest.raises(InputError, match=said):
            asked(monkeypatch, "count", f"{file}:{name}")


def test_a_command_in_that_process_prints_what_it_would(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    out = run(capsys, "count", f"{file}:Net")
    assert out.startswith(f"Net  ({file}:Net)\n") and "made" not in out
