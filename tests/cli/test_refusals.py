"""What a command cannot do is one line that names what is wrong; what it cannot do without, too."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.command_line import Ask

from metacount.cli.pictures import MOST_BARS

MODULE = """
from torch import nn

net = nn.Linear(3, 5)
"""
MANY = ",".join(map(str, range(1, MOST_BARS + 2)))
# A command line, then what its refusal says. OUT is a file that must not be there afterwards.
WRONG = f"""
tree gpt2 --only layers.0.self_atn                  did you mean decoder.layers.0-11.self_attn
tree gpt2 --only mlp                                is the end of 12 paths; give one of them: deco
tree gpt2 --depth x                                 must be a whole number: got 'x'
tree gpt2 --columns shape,parms                     'parms' is no column of a tree; did you mean p
tree type:gpt2 --columns formula                    no formula here
tree gpt2 --input 2                                 --input is for FILE.py:NAME
diff gpt2 gpt2-medium --set n_layers=2              leave out B or --set
diff gpt2 llama-7b --source-len 3                   source_len belongs to an encoder-decoder
count gpt2 --columns parms                          'parms' is not a column; did you mean params
count gpt2 --conventions --columns params           does not go with --con
count gpt2 --seq 1k,16                              one length here; `metacount plot`, `metacount a
count --folder nowhere-at-all                       --folder nowhere-at-all: no such folder
count --folder {__file__}                           is no folder; give a file as MODEL
count gpt2 --folder .                               MODEL does not go with --folder
count --folder . --jobs 257                         --jobs must be 1 to 256: got 257
count bert-base --set n_mtp_layers=1                n_mtp_layers
models --family 'DeepSeek V33'                      deepseek v3
code rmsnrm                                         code 'rmsnrm' is not known; did you mean rmsnorm
code ../../secret                                   `metacount code` lists what there is
bench norm --csv                                    --csv belongs to --list
flow gpt2 --formula --decode                        --formula does not go with
plot llama-7b --quantity parms -o OUT               'parms' is unknown; did you mean params
plot llama-7b --over d_fff=1,2 -o OUT               --set: 'd_fff' is not a field of a model
plot llama-7b --over n_layers={MANY} -o OUT         {MOST_BARS + 1} bars are too many for one pic
plot llama-7b --seq 1k,,4k -o OUT                   must be a whole number: got ''
plot bert-base --quantity kv_cache_bytes -o OUT     kv_cache_bytes is 0 for all
plot bert-base --quantity decode_matmul_flops -o OUT  has no decode step
plot --caches gpt2 --over n_layers=2 -o OUT         --over belongs to MODEL or --like; leave it out
plot --activations rleu -o OUT                      there is no activation 'rleu'; did you mean relu
plot llama-7b --caches gpt2 -o OUT                  plot needs one of MODEL, --caches MODEL
plot llama-7b --json -o OUT                         --json does not go with -o
plot --roofline r.json --json                       --json gives the numbers of a picture of models
plot gpt2 --html p.html -o OUT                      --html does not go with -o
plot gpt2 --html p.html --seq 1,2                   --seq of a page is one length
plot gpt2 type:zamba --html p.html                  has no spec, so there is no formula
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "none.py").write_text("import torch", encoding="utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_a_wrong_request_is_one_line(ask: Ask, folder: Path, row: str) -> None:
    line, said = re.split(" {2,}", row, maxsplit=1)
    there = {*folder.rglob("*")}
    assert said in ask.refused(line.replace("OUT", "out.svg"))
    assert {*folder.rglob("*")} == there


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a file, with a model in place of what is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "gpt2" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_command_that_a_text_names_is_one_with_these_options_and_runs(
    ask: Ask, folder: Path
) -> None:
    meant = {
        "FILE.py:NAME": f"{folder / 'mine.py'}:net",
        "FILE": str(folder / "a" / "config.json"),
        "NAME": "nanogpt",
        "MODEL": "gpt2",
    }
    files = (ROOT / "metacount").rglob("*.py")
    texts = [text for file in files for text in _texts(ast.parse(file.read_text("utf-8")))]
    named = {each for text in texts for each in re.findall(r"`metacount ([^`]+)`", text)}
    assert len(named) > 30
    ran = 0
    for command in named:
        name, *words = command.split()
        help_text = ask(name if name.startswith("-") else f"{name} --help", width=100)
        options = [word for word in words if word.startswith("--")]
        assert all(re.search(rf"{option}\b", help_text) for option in options), command
        # a word that is neither the whole of an example nor in capitals is one of its choices
        known = (word in meant or word in help_text or "gpt2" in command for word in words)
        assert all(known), command
        # what is more than the name of a command or of an option is run as it stands
        if {"gpt2", *meant} & {*words} and "--folder" not in words:
            ran += 1
            assert ask(shlex.join([name, *(meant.get(word, word) for word in words)])), command
    assert ran > 5
