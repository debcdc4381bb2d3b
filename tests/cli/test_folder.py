"""`metacount count --folder`: every file has its line, in order, and one bad file harms none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.miniatures import TINY, TINY_PARAMS
from helpers.release import one_day_in

from metacount import catalog
from metacount.cli import folder, main
from metacount.cli.folder import FILES_AT_ONCE, Outcome, count_folder, list_folder
from metacount.errors import InputError
from metacount.resolve import find_in_file
from metacount.spec import Workload

# keys and values of 3 layers, 2 heads of 4, 2 bytes each
TINY_KV = 3 * 2 * 2 * 4 * 2


def write(file: Path, data: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data), encoding="utf-8")


def counted(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["count", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A spec of ours, a Hugging Face repository's folder with what else lies in one, and a MoE."""
    write(tmp_path / "tiny.json", {"name": "Tiny", **TINY})
    write(tmp_path / "org" / "llama" / "config.json", {"model_type": "llama", "vocab_size": 7})
    for companion in ("tokenizer.json", "generation_config.json", "model.safetensors.index.json"):
        write(tmp_path / "org" / "llama" / companion, {"version": "1.0"})
    write(tmp_path / "moe.json", dict(catalog.entry("mixtral-8x7b").sizes or ()))
    write(tmp_path / ".hidden" / "config.json", {"model_type": "llama"})
    (tmp_path / "README.md").write_text("no model")
    return tmp_path


def test_each_line_is_what_count_prints_of_that_file(
    capsys: pytest.CaptureFixture[str], mixed: Path
) -> None:
    code, out, err = counted(capsys, "--folder", str(mixed), "--json", "--seq", "37")
    assert (code, err) == (0, "")
    found = lines(out)
    assert [line["model"] for line in found] == ["moe.json", "org/llama/config.json", "tiny.json"]
    for line in found:
        code, out, err = counted(capsys, str(mixed / line.pop("model")), "--json", "--seq", "37")
        alone = json.loads(out)
        del alone["model"]
        assert (code, line) == (0, alone)
    assert (found[2]["name"], found[2]["params"]) == ("Tiny", TINY_PARAMS)
    assert found[2]["kv_cache_bytes_per_token"] == TINY_KV


def test_settings_reach_every_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path / "a.json", TINY)
    write(tmp_path / "b.json", {**TINY, "n_layers": 5})
    code, out, _ = counted(capsys, "--folder", str(tmp_path), "--json", "--set", "n_layers=1")
    # one block of the three, the rest as above
    assert code == 0
    assert [line["params"] for line in lines(out)] == [TINY_PARAMS - 2 * 1521] * 2


@one_day_in(6)
def test_one_process_and_two_give_the_same_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    n_files = 2 * FILES_AT_ONCE + 3  # three parts
    for i in range(n_files):
        write(tmp_path / f"{i % 7}" / f"{i}.json", {**TINY, "n_layers": i + 1})
    write(tmp_path / "3" / "bad.json", [])
    one, two = (
        counted(capsys, "--folder", str(tmp_path), "--json", "--jobs", jobs) for jobs in "12"
    )
    assert one == two
    assert one[0] == 2
    found = lines(one[1])
    assert [line["model"] for line in found] == sorted(line["model"] for line in found)
    assert len(found) == n_files + 1
    for line in found:
        if line["model"] != "3/bad.json":
            n_layers = int(Path(line["model"]).stem) + 1
            assert line["params"] == 2 * 1313 + n_layers * 1521 + 13


def test_parts_are_not_counted_long_before_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "FILES_AT_ONCE", 1)
    for name in "abc":
        write(tmp_path / f"{name}.json", TINY)
    parts = count_folder(list_folder(str(tmp_path)), Workload(), jobs=1)
    assert [outcome.path for outcome in next(parts)] == ["a.json"]
    (tmp_path / "b.json").write_text("{")
    (outcome,) = next(parts)
    assert outcome.error is not None
    assert outcome.error.startswith("is not JSON")


# Files that must be refused, each with the start of its reason; more of content: test_resolve.py.
REASONS = {
    "cut.json": "is not JSON: line 1",
    "fifo.json": "is not a regular file",
    "huge.json": "has 17179869184 bytes",
    "loop.json": "leads to no file",
    "null.json": "is not a regular file",
    "twice.json": "k399999 is given twice",
    "vision.json": "has no formula: the model type vit",
}


def hostile(folder: Path) -> None:
    """Write the files that must be refused."""
    (folder / "cut.json").write_text('{"kind": ')
    os.mkfifo(folder / "fifo.json")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(2**34)  # sparse
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "null.json").symlink_to("/dev/zero")
    # a million keys, the last one twice: found without comparing all with all
    keys = ", ".join(f'"k{i}": 0' for i in range(400_000))
    (folder / "twice.json").write_text("{" + keys + ', "k399999": 1}')
    write(folder / "vision.json", {"model_type": "vit"})


def test_a_hostile_file_is_one_line_and_the_others_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hostile(tmp_path)
    write(tmp_path / "fine.json", TINY)
    (tmp_path / "up").symlink_to("..")
    deep = tmp_path
    for _ in range(300):
        deep = deep / "d"
    write(deep / "config.json", TINY)
    code, out, err = counted(capsys, "--folder", str(tmp_path), "--json")
    found = {line["model"]: line for line in lines(out)}
    assert code == 2
    assert err.splitlines()[-1] == "metacount: error: 7 of 9 files refused"
    assert set(found) == {*REASONS, "fine.json", "d/" * 300 + "config.json"}
    for name, reason in REASONS.items():
        assert set(found[name]) == {"model", "error"}
        assert found[name]["error"].startswith(reason)
        assert "\n" not in found[name]["error"]
    assert found["fine.json"]["params"] == TINY_PARAMS


def test_a_folder_that_cannot_be_listed_is_an_error_in_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path / "fine.json", TINY)
    # a path that grows beyond what the system takes, made from within
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("x" * 200, dir_fd=here)
        inner = os.open("x" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    code, out, _ = counted(capsys, "--folder", str(tmp_path), "--json")
    fine, long = lines(out)
    assert (code, fine["params"]) == (2, TINY_PARAMS)
    assert long["error"] == "cannot be listed: File name too long"


def test_an_error_that_no_rule_foresaw_takes_no_other_count_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.json", TINY)
    write(tmp_path / "b.json", TINY)
    real = find_in_file

    def stumbling(path: str, settings: Any) -> Any:
        if path.endswith("a.json"):
            raise ZeroDivisionError("on purpose")
        return real(path, settings)

    monkeypatch.setattr(folder, "find_in_file", stumbling)
    ((a, b),) = count_folder(list_folder(str(tmp_path)), Workload(), jobs=1)
    assert a == Outcome(path="a.json", data={}, error="not foreseen: ZeroDivisionError: on purpose")
    assert b.data["params"] == TINY_PARAMS


def test_names_survive_json_whatever_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ["a\nb.json", "\x1b[31m.json", "é😀.JSON", '"\\.json']
    for name in names:
        write(tmp_path / name, TINY)
    with open(os.fsencode(tmp_path) + b"/\xff.json", "w") as file:
        json.dump(TINY, file)
    _, out, _ = counted(capsys, "--folder", str(tmp_path), "--json")
    assert out.isascii()
    assert {line["model"] for line in lines(out)} == {*names, "\udcff.json"}
    _, out, _ = counted(capsys, "--folder", str(tmp_path))
    assert "\x1b" not in out
    assert out.count("\n") == 1 + 5 + 1 + 2  # heads, files, a blank, and the sums


# The figures of each file are those of `count` (above); this is how they stand side by side.
NARROW = """\
model                          params   active_params    kv/token  matmul_flops
moe.json               46,702,792,704  12,879,925,248  128.00 KiB    54.4 TFLOP
org/llama/config.json   6,476,328,960   6,476,328,960  512.00 KiB    28.7 TFLOP
tiny.json                       7,202           7,202        96 B    1.23 GFLOP

counted  3 of 5 files: batch 1, seq 2048, bf16 (2 bytes per value)
refused  a/bad.json, and 1 file more: n_kv_heads must divide n_heads: 6 % 5 = 1:
         got 5; choose 1, 2, 3, 6
passed   3 files of tokenizers and the like, which describe no model; 1 link to
         other folders
figures  kv/token in bytes (KiB = 2^10) over all layers; --json has every figure
         of each
"""


def test_the_table_of_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write(mixed / "a" / "bad.json", {**TINY, "n_kv_heads": 5})
    write(mixed / "a" / "worse.json", {**TINY, "n_kv_heads": 4})
    (mixed / "a" / "up").symlink_to("..")
    code, out, err = counted(capsys, "--folder", str(mixed))
    assert (code, err) == (2, "metacount: error: 2 of 5 files refused\n")
    assert out == NARROW


def test_a_long_path_is_cut_and_a_short_model_is_said(
    capsys: pytest.CaptureFixture[str], mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    write(mixed / ("long" * 15) / "config.json", {"model_type": "gpt2", "n_positions": 9})
    code, out, _ = counted(capsys, "--folder", str(mixed))
    row = next(line for line in out.splitlines() if line.startswith("..."))
    assert code == 0 and row.split()[0].endswith("long/config.json")
    assert max(map(len, out.splitlines())) <= 100
    assert "seq 2048 (in 1 file with fewer positions, all of them)" in " ".join(out.split())
    _, out, _ = counted(capsys, "--folder", str(mixed), "--json")
    assert [line["workload"]["seq_len"] for line in lines(out)] == [9, 2048, 2048, 2048]


def test_a_file_that_is_no_model_is_passed_over(
    capsys: pytest.CaptureFixture[str], mixed: Path
) -> None:
    """What NVIDIA's tools write beside a quantised checkpoint."""
    quantised = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    write(mixed / "org" / "llama" / "hf_quant_config.json", quantised)
    write(mixed / ".none" / "hf_quant_config.json", quantised)
    said = "1 file without a size of a model: org/llama/hf_quant_config.json"
    code, out, err = counted(capsys, "--folder", str(mixed), "--json")
    assert (code, err) == (0, f"metacount: passed over {said}\n")
    assert len(lines(out)) == 3
    code, out, err = counted(capsys, "--folder", str(mixed))
    assert (code, err) == (0, "")
    assert "counted  3 of 3 files" in out
    assert said in " ".join(out.split())
    code, _, err = counted(capsys, "--folder", str(mixed / ".none"))
    assert (code, err) == (2, "metacount: error: no file of the folder describes a model\n")
    # alone it is asked for as a model, and is none
    code, _, err = counted(capsys, str(mixed / "org" / "llama" / "hf_quant_config.json"))
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "nowhere-at-all"], "--folder nowhere-at-all: no such folder"),
        (["--folder", __file__], "is no folder; give a file as MODEL"),
        (["gpt2", "--folder", "."], "MODEL does not go with --folder"),
        (["gpt2", "--jobs", "2"], "--jobs belongs to --folder"),
        ([], "count needs MODEL or --folder DIR"),
        *((["--folder", ".", "--jobs", jobs], "--jobs") for jobs in ("0", "-1", "257")),
    ],
)
def test_a_wrong_request_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = counted(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_of_what_also_sees_the_text_part_is_counted_and_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path / "a.json", {"model_type": "llava", "text_config": {"num_hidden_layers": 2}})
    write(tmp_path / "b.json", {"model_type": "llama", "num_hidden_layers": 2})
    code, out, _ = counted(capsys, "--folder", str(tmp_path), "--json")
    seen, plain = lines(out)
    assert code == 0
    assert (seen["params"], seen["part"]) == (plain["params"], "text")
    assert "part" not in plain
    _, out, _ = counted(capsys, "--folder", str(tmp_path))
    assert "a.json (text)" in out
    assert "of 1 file the text part alone" in out


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer.json", {})
    with pytest.raises(InputError):
        list_folder(str(tmp_path))


@one_day_in(6)
def test_a_reader_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    for i in range(3 * FILES_AT_ONCE):
        write(tmp_path / f"{i}.json", TINY)
    command = [sys.executable, "-m", "metacount", "count", "--folder", str(tmp_path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (first["model"], first["params"]) == ("0.json", TINY_PARAMS)
    assert (process.wait(timeout=60), said) == (141, b"")


class _Dies:
    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, _: object) -> None:
        os.abort()


def test_a_dead_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2 * FILES_AT_ONCE):
        write(tmp_path / f"{i}.json", TINY)

    monkeypatch.setattr(folder, "_Job", _Dies)
    parts = count_folder(list_folder(str(tmp_path)), Workload(), jobs=2)
    with pytest.raises(InputError):
        next(parts)
