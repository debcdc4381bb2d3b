"""nanoGPT's arguments: GPTConfig as JSON, and config files of train.py, which are never run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import refused, run_json

from metacount import catalog
from metacount.errors import InputError
from metacount.formulas.model import params
from metacount.resolve import find_model, model_of

GPT2 = {
    "block_size": 1024,
    "vocab_size": 50257,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "dropout": 0.0,
    "bias": True,
}
# as karpathy/nanoGPT's config/train_shakespeare_char.py sets them
SHAKESPEARE = """# train a miniature character-level shakespeare model
out_dir = 'out-shakespeare-char'
eval_interval = 250 # keep frequent because we'll overfit
wandb_run_name = 'mini-gpt'
dataset = 'shakespeare_char'
batch_size = 64
block_size = 256 # context of up to 256 previous characters
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2
learning_rate = 1e-3
"""


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl"])
def test_init_from_takes_the_published_sizes(tmp_path: Path, name: str) -> None:
    file = tmp_path / "eval.py"
    file.write_text(f"init_from = {name!r}\nbatch_size = 8\n")
    assert find_model(str(file)).spec == catalog.entry(name).spec().replace(activation="gelu")
    file.write_text(f"init_from = {name!r}\nblock_size = 512\n")
    assert find_model(str(file)).spec.n_positions == 512


def test_a_config_file_is_read_as_data(tmp_path: Path) -> None:
    file = tmp_path / "train_shakespeare_char.py"
    file.write_text(SHAKESPEARE)
    model = find_model(str(file), ["vocab_size=65"])
    # 65·384 + 256·384; a layer 12·384² and two norm weights; a last norm; without any bias
    assert params(model.spec) == 65 * 384 + 256 * 384 + 6 * (12 * 384**2 + 2 * 384) + 384
    assert not model.spec.norm_bias
    assert "50304: train.py's own" in "\n".join(find_model(str(file)).notes)


def test_arithmetic_is_read_and_imports_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "finetune.py"
    file.write_text(
        '"""A run."""\nimport time\nn_head = 4\nn_embd = 16 * n_head - 4 // 3\n'
        "wandb_run_name = 'ft-' + str(time.time())\nbias = True\n"
        "n_embd = n_embd + 1\n"
    )
    spec = find_model(str(file)).spec
    assert (spec.d_model, spec.n_heads, spec.q_bias) == (64, 4, True)


def test_nothing_is_run(tmp_path: Path) -> None:
    told = tmp_path / "was-run"
    file = tmp_path / "evil.py"
    file.write_text(f"import os\nout_dir = open({str(told)!r}, 'w').write('x')\nn_layer = 2\n")
    assert find_model(str(file)).spec.n_layers == 2
    assert not told.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_layers = 5", "n_layers"),
        ("n_layer = 5\nif True:\n    n_layer = 6\n", ""),
        ("n_layer, n_head = 5, 5", ""),
        ("n_layer = int('5')", "n_layer: "),
        ("n_embd = 9**9**9**9", "2000"),
        ("n_layer = 2.5", "n_layer"),
        ("bias = 1", "bias"),
        ("n_embd = 70", "n_head"),
        ("init_from = 'resume'", "init_from"),
        ("init_from = 'gpt2'\nn_layer = 24", "n_layer is 12 by init_from = gpt2: got 24"),
        ("import time\n", "train.py"),
        ("n_embd = " + "(" * 5000 + "1" + ")" * 5000, "is not Python"),
        ("#" * 300_000, "300000"),
        ("", "nanoGPT"),
        ("n_layer = 1\0", "has a NUL byte"),
    ],
)
def test_a_file_that_is_none_of_nanogpt(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.py"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(message) or None) as error:
        find_model(str(file))
    assert "\n" not in str(error.value)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "args.json"
    file.write_text(json.dumps(GPT2))
    assert run_json(capsys, "count", str(file))["params"] == 124_439_808
    assert model_of(GPT2).spec == catalog.entry("gpt2").spec().replace(activation="gelu")
    for wrong, message in (
        ({"rope": True}, "args.json: rope is not an argument of nanoGPT"),
        ({"n_head": 0}, "n_head"),
        ({"vocab_size": 10**12}, "vocab_size"),
    ):
        file.write_text(json.dumps({**GPT2, **wrong}))
        assert message in refused(capsys, "count", str(file))
    missing = tmp_path / "gone.py"
    assert "no such file" in refused(capsys, "count", str(missing))
