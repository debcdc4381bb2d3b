"""MODEL and `--set`: a file or a folder is read, and what is wrong with it is one line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask, refused
from helpers.miniatures import TINY, TINY_PARAMS
from helpers.release import daily

from metacount import files as json_file
from metacount.cli import main
from metacount.errors import InputError
from metacount.files import MAX_FILE_BYTES
from metacount.resolve import find_model
from metacount.settings import parse_settings

pytestmark = pytest.mark.usefixtures("eighty_columns")


@daily(5)
@pytest.mark.parametrize("name", ["llama-7b", "bert-base", "deepseek-v3", "gpt2", "gemma3-1b"])
def test_every_path_of_a_model_sets_its_field(name: str) -> None:
    spec = find_model(name).spec
    for path, field in spec.paths().items():
        value = getattr(spec, field)
        if isinstance(value, str | int | float | bool | None):
            text = value if isinstance(value, str) else str(value).lower()
            assert find_model(name, [f"{path}={text}"]).changes == {field: value}
    stack = "encoder" if name == "bert-base" else "decoder"
    more = spec.n_layers + 1
    assert find_model(name, [f"{stack}.n_layers={more}"]).spec == spec.replace(n_layers=more)


NOWHERE = {
    "llama-7b decoder.atention.n_kv_heads=8": "--set",
    "bert-base decoder.n_layers=2": "--set",
    "llama-7b positions.n_buckets=8": "positions.n_buckets",
    "t5-base decoder.attention.n_heads=4": "--set",
    "llama-7b n_kv_heads=8 decoder.attention.n_kv_heads=8": "n_kv_heads is given tw",
    "llama-7b decoder.n_layers=two": "--set",
    "llama-7b head.tied=maybe": "--set",
}


@pytest.mark.parametrize("asked", NOWHERE)
def test_a_path_that_leads_nowhere(asked: str) -> None:
    name, *settings = asked.split()
    with pytest.raises(InputError, match=re.escape(NOWHERE[asked])):
        find_model(name, settings)


def test_a_path_of_a_part_that_another_setting_chooses() -> None:
    settings = ["position=sinusoidal", "n_positions=none", "positions.style=halves"]
    spec = find_model("gpt2", settings).spec
    assert (spec.sinusoid_style, spec.positions.style) == ("halves", "halves")
    both = find_model("t5-base", ["encoder.n_layers=2", "decoder.n_layers=3"]).spec
    assert (both.n_encoder_layers, both.n_layers) == (2, 3)


def test_settings_are_parsed_by_type() -> None:
    texts = ["n_layers=1_000", "gated=FALSE", "norm_eps=1e-6", "window=None", "norm=LayerNorm"]
    values = {"n_layers": 1000, "gated": False, "norm_eps": 1e-6, "window": None}
    values |= {"norm": "layernorm", "window_pattern": "LLG", "logit_softcap": 30.0}
    assert parse_settings([*texts, "window_pattern=LLG", "logit_softcap = 30"]) == values


def test_a_model_from_a_file_or_folder(ask: Ask, tmp_path: Path, tiny: str) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY, "name": "Mine"}))
    data = ask.json(f"count {folder}")
    assert (data["model"], data["name"], data["params"]) == ("my-model", "Mine", TINY_PARAMS)
    with_mark = tmp_path / "bom.json"
    with_mark.write_bytes(b"\xef\xbb\xbf" + json.dumps(TINY).encode())
    for file, name in ((tiny, "tiny"), (f"{folder}/", "my-model"), (with_mark, "bom")):
        found = ask.json(f"count {file}")
        assert (found["model"], found["params"]) == (name, TINY_PARAMS)
    assert ask.json(f"count {folder}/config.json")["params"] == TINY_PARAMS
    assert ask.json("count LLaMA-7B")["model"] == "llama-7b"


def tiny_with(**changes: Any) -> bytes:
    return json.dumps({**TINY, **changes}).encode()


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t", "is empty"),
    "broken": (b'{\n  "d_model": 13,\n  nonsense}', "line 3, column 3"),
    "cut short": (b'{"d_model": ', "line 1, column 13"),
    "two objects": (b"{}{}", "line 1, column 3: Extra data"),
    "list": (b"[1, 2]", "must be a JSON object {...}: got a list"),
    "number": (b"7", "got a number"),
    "text": (b'"llama"', "got text"),
    "null": (b"null", "got null"),
    "true": (b"true", "got true or false"),
    "empty object": (b"{}", "missing: kind (decoder, enc"),
    "binary": (b"\x80\x04\x95\x00\x01", "is not text in UTF-8: byte 0 is 0x80"),
    "utf-16": ('{"d_model": 1}'.encode("utf-16"), "is not text in UTF-8"),
    "nul": (b'{"a": 1}\0\0', "has a NUL byte"),
    "deep list": (b"[" * 100_000, "nested too deeply"),
    "deep object": (b'{"a":' * 100_000, "nested too deeply"),
    "NaN": (tiny_with(d_model=float("nan")), "d_model must be a whole number: got nan"),
    "Infinity": (tiny_with(norm_eps=float("-inf")), "norm_eps must be a positive number"),
    "tagged": (tiny_with(n_heads={"__float__": "Infinity"}), "n_heads must be a whole number"),
    "tag alone": (b'{"__float__": "NaN"}', "must be a JSON object {...}: got a number"),
    "hugging face NaN": (
        b'{"model_type": "llama", "vocab_size": NaN}',
        "vocab_size must be a whole number: got nan",
    ),
    "duplicate": (b'{"d_model": 1, "d_model": 2}', "d_model is given twice"),
    "absurd": (b'{"d_model": ' + b"9" * 5000 + b"}", "a number of 5000 digits is no size"),
    "41 digits": (b'{"d_model": ' + b"9" * 41 + b"}", "a number of 41 digits is no size"),
    "large": (tiny_with(d_model=10**39), "d_model must be at most"),
    "overflow": (b'{"norm_eps": 1e999, ' + tiny_with()[1:], "norm_eps must be a positive number"),
    "negative": (tiny_with(d_model=-1), "d_model must be at least 1"),
    "zero": (tiny_with(n_layers=0), "n_layers must be at least 1"),
    "float": (tiny_with(d_model=13.0), "d_model must be a whole number"),
    "bool": (tiny_with(d_model=True), "d_model must be a whole number"),
    "string": (tiny_with(d_model="13"), "d_model must be a whole number"),
    "list value": (tiny_with(norm=["rmsnorm"]), "norm is unknown"),
    "object value": (tiny_with(n_heads={"a": [1]}), "n_heads must be a whole number"),
    "int for bool": (tiny_with(gated=1), "gated must be true or false"),
    "unknown field": (tiny_with(hidden_sise=1), "hidden_sise is not a field"),
    "rule": (tiny_with(n_kv_heads=4), "n_kv_heads must divide n_heads: 6 % 4 = 2"),
    "name": (tiny_with(name=7), "name must be text: got 7"),
    "odd key": (b'{"a\\nb\\u001b[31m": 1}', r"a\nb\x1b[31m"),
    "hugging face": (
        b'{"model_type": "llama", "hidden_size": "x"}',
        "hidden_size must be a whole number: got 'x'",
    ),
    "hugging face class": (
        b'{"architectures": ["X"]}',
        "model_type is missing, and architectures names no class",
    ),
}


@daily(3)
@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("command", ["count", "formula"])
def test_a_bad_file_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, case: str
) -> None:
    content, message = BAD_FILES[case]
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    error = refused(capsys, command, str(file))
    assert message in error
    assert "bad.json" in error
    assert len(error) < 600


def test_missing_and_unreadable_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config" / "config.json").mkdir(parents=True)
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "file.json").write_text("{}")
    with (tmp_path / "huge.json").open("wb") as sparse:
        sparse.truncate(2**40)
    os.mkfifo(tmp_path / "fifo.json")
    for name, said in (
        ("no.json", "no such file"),
        ("", "holds no config.json"),
        ("config", "is a folder"),
        ("loop.json", "cannot be read"),
        ("x" * 5000 + ".json", "cannot be read"),
        ("a\0b.json", "embedded null"),
        ("file.json/config.json", "Not a directory"),
        ("huge.json", f"at most {MAX_FILE_BYTES}"),
        # they do not hang
        ("fifo.json", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        ("/dev/stdin", "is not a regular file|cannot be read"),
    ):
        assert re.search(said, refused(capsys, "count", str(tmp_path / name))), name


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    Path(tiny).chmod(0)
    assert "Permission denied" in refused(capsys, "count", tiny)


def test_a_file_at_its_limits_and_one_more(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: str
) -> None:
    size = os.path.getsize(tiny)
    monkeypatch.setattr(json_file, "MAX_FILE_BYTES", size)
    assert ask.json(f"count {tiny}")["params"] == TINY_PARAMS
    monkeypatch.setattr(json_file, "MAX_FILE_BYTES", size - 1)
    said = f"has {size} bytes; a model's description has at most {size - 1}"
    assert said in ask.refused(f"count {tiny}")
    # it grew after it was asked for its size
    monkeypatch.setattr(os.path, "getsize", lambda path: 1)
    assert f"has more than {size - 1} bytes" in ask.refused(f"count {tiny}")
    monkeypatch.undo()
    file = tmp_path / "digits.json"
    for digits, said in ((40, "d_model must be at most"), (41, "a number of 41 digits is no size")):
        file.write_bytes(tiny_with(d_model=10 ** (digits - 1)))
        assert said in ask.refused(f"count {file}")


NO_REPOSITORY = "org/ /name a/b/c .org/name org/.name org/-name ~org/name org/~ org/na:me ../name"


@pytest.mark.parametrize("name", [*NO_REPOSITORY.split(), "or g/name", "org/..", "org/name?x"])
def test_what_is_no_repository_is_not_asked_of_a_hub(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("asked a hub")

    monkeypatch.setattr("metacount.huggingface.hub.read_config", asked)
    assert "no such file" in refused(capsys, "count", name) or name in ("org/..", "../name")
    with pytest.raises(AssertionError, match="asked a hub"):
        main(["count", "Org_1.x-y/n.a_m-e9"])
