"""`metacount count --folder`: every file has its line, in order, and one bad file harms none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask
from helpers.miniatures import TINY, TINY_PARAMS
from helpers.release import one_day_in

from metacount import catalog
from metacount.cli import folder
from metacount.cli.count import data_of
from metacount.cli.folder import FILES_AT_ONCE, count_folder, list_folder
from metacount.errors import InputError
from metacount.resolve import find_in_file
from metacount.spec import Workload

# keys and values of 3 layers, 2 heads of 4, 2 bytes each
TINY_KV = 3 * 2 * 2 * 4 * 2


def write(file: Path, data: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data), encoding="utf-8")


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


def test_each_line_is_what_count_prints_of_that_file(ask: Ask, mixed: Path) -> None:
    found = lines(ask(f"count --folder {mixed} --json --seq 37 --set norm_eps=1"))
    assert [line["model"] for line in found] == ["moe.json", "org/llama/config.json", "tiny.json"]
    for line in found:
        alone = ask.json(f"count {mixed / line['model']} --seq 37 --set norm_eps=1")
        assert line == {**alone, "model": line["model"]}
    assert (found[2]["name"], found[2]["params"]) == ("Tiny", TINY_PARAMS)
    assert found[2]["kv_cache_bytes_per_token"] == TINY_KV


@one_day_in(6)
def test_one_process_and_two_give_the_same_lines(ask: Ask, tmp_path: Path) -> None:
    n_files = 2 * FILES_AT_ONCE + 3  # three parts
    for i in range(n_files):
        write(tmp_path / f"{i % 7}" / f"{i}.json", {**TINY, "n_layers": i + 1})
    write(tmp_path / "3" / "bad.json", [])
    one, two = (ask.all(f"count --folder {tmp_path} --json --jobs {jobs}") for jobs in (1, 2))
    assert one == two and one[0] == 2
    found = lines(one[1])
    assert [line["model"] for line in found] == sorted(line["model"] for line in found)
    assert len(found) == n_files + 1
    for line in found:
        if line["model"] != "3/bad.json":
            n_layers = int(Path(line["model"]).stem) + 1
            assert line["params"] == 2 * 1313 + n_layers * 1521 + 13


# Files that must be refused, each with the start of its reason; more of content: test_resolve.py.
REASONS = {
    "cut.json": "is not JSON: line 1",
    "fifo.json": "is not a regular file",
    "huge.json": "has 17179869184 bytes",
    "loop.json": "leads to no file",
    "null.json": "is not a regular file",
    "twice.json": "k399999 is given twice",
}


def test_a_hostile_file_is_one_line_and_the_others_are_counted(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"kind": ')
    os.mkfifo(tmp_path / "fifo.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**34)  # sparse
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "null.json").symlink_to("/dev/zero")
    # a million keys, the last one twice: found without comparing all with all
    keys = ", ".join(f'"k{i}": 0' for i in range(400_000))
    (tmp_path / "twice.json").write_text("{" + keys + ', "k399999": 1}')
    write(tmp_path / "fine.json", TINY)
    (tmp_path / "up").symlink_to("..")
    write(tmp_path / ("d/" * 300) / "config.json", TINY)
    code, out, err = ask.all(f"count --folder {tmp_path} --json")
    found = {line["model"]: line for line in lines(out)}
    assert (code, err.splitlines()[-1]) == (2, "metacount: error: 6 of 8 files refused")
    assert set(found) == {*REASONS, "fine.json", "d/" * 300 + "config.json"}
    for name, reason in REASONS.items():
        assert set(found[name]) == {"model", "error"}
        assert found[name]["error"].startswith(reason) and "\n" not in found[name]["error"]
    assert found["fine.json"]["params"] == TINY_PARAMS


CTRL = {"model_type": "ctrl", "n_embd": 8, "n_layer": 2, "n_head": 2, "dff": 12, "vocab_size": 17}


@pytest.fixture
def without_formula(tmp_path: Path) -> Path:
    """Of three models one has a formula, one is of a type that transformers alone knows, and one is
    of a type that nobody knows.
    """
    write(tmp_path / "ctrl_config.json", {**CTRL, "n_positions": 9})
    write(tmp_path / "nobody_config.json", {"model_type": "nobody", "hidden_size": 8})
    write(tmp_path / "tiny_config.json", TINY)
    return tmp_path


def test_a_file_without_a_formula_is_measured(ask: Ask, without_formula: Path) -> None:
    from transformers import CTRLConfig, CTRLLMHeadModel

    code, out, err = ask.all(f"count --folder {without_formula} --json")
    tiny, ctrl, nobody = lines(out)
    assert (code, err.splitlines()[-1]) == (2, "metacount: error: 1 of 3 files refused")
    assert (tiny["params"], tiny["source"]) == (TINY_PARAMS, "formula")
    alone = ask.json(f"count {without_formula / ctrl['model']}")
    assert ctrl == {**alone, "model": "ctrl_config.json"}
    module = CTRLLMHeadModel(CTRLConfig(**CTRL))
    assert ctrl["params"] == sum(p.numel() for p in module.parameters())
    assert (ctrl["source"], ctrl["workload"]["seq_len"]) == ("transformers", 9)
    start = "has no formula: the model type nobody has no textbook spec; measuring it: model_type"
    assert nobody["error"].startswith(start) and "got 'nobody'" in nobody["error"]

    code, out, _ = ask.all(f"count --folder {without_formula} --jobs 1")
    text = " ".join(out.split())
    assert out.splitlines()[1].split()[:3] == ["ctrl", "+", f"{ctrl['params']:,}"]
    assert out.splitlines()[2].startswith("tiny  ")
    assert code == 2 and "counted 2 of 3 files: 1 by formula, 1 measured; batch 1" in text
    assert "+ 1 file without a formula" in text and "refused nobody_config.json: has no" in text


def test_measuring_has_an_end(
    ask: Ask, without_formula: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MEASURE_S", 0.01)
    tiny, *slow = lines(ask.all(f"count --folder {without_formula} --json")[1])
    assert tiny["params"] == TINY_PARAMS
    for line in slow:
        assert "measuring it: stopped after 0.01 s; `metacount count FILE` limits" in line["error"]

    monkeypatch.undo()
    monkeypatch.setattr(folder, "MAX_MEMORY", 2**20)  # less than torch has by then
    out = ask.all(f"count --folder {without_formula} --json")[1]
    assert out.count("measuring it: ") == (2 if sys.platform == "linux" else 1)

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "_measured", interrupted)
    code, out, err = ask.all(f"count --folder {without_formula}")
    assert (code, err) == (130, "metacount: interrupted after 1 of 3 files\n")
    assert "tiny" in out and "with 2 files to go" in out


def test_torch_is_loaded_only_where_something_is_measured(without_formula: Path) -> None:
    """Of the process that shows the lines; `--jobs 1` counts in it."""
    said = "import sys; from metacount.cli import main; main(sys.argv[1:]); print('torch' in "
    code = f"if __name__ == '__main__': {said}sys.modules)"
    command = ["count", "--folder", str(without_formula), "--jobs", "1", "--json"]
    run = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert '"source":"transformers"' in run.stdout and run.stdout.endswith("\nFalse\n")


def test_an_error_that_no_rule_foresaw_takes_no_other_count_with_it(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.json", TINY)
    write(tmp_path / "b.json", TINY)

    def stumbling(path: str, settings: Any) -> Any:
        if path.endswith("a.json"):
            raise ZeroDivisionError("on purpose")
        return find_in_file(path, settings)

    monkeypatch.setattr(folder, "find_in_file", stumbling)
    a, b = lines(ask.all(f"count --folder {tmp_path} --json --jobs 1")[1])
    assert a == {"model": "a.json", "error": "not foreseen: ZeroDivisionError: on purpose"}
    assert b["params"] == TINY_PARAMS


def test_names_survive_json_whatever_they_are(ask: Ask, tmp_path: Path) -> None:
    names = ["a\nb.json", "\x1b[31m.json", "é😀.JSON", '"\\.json']
    for name in names:
        write(tmp_path / name, TINY)
    with open(os.fsencode(tmp_path) + b"/\xff.json", "w") as file:
        json.dump(TINY, file)
    out = ask(f"count --folder {tmp_path} --json")
    assert out.isascii()
    assert {line["model"] for line in lines(out)} == {*names, "\udcff.json"}
    out = ask(f"count --folder {tmp_path}", width=100)
    assert "\x1b" not in out
    assert out.count("\n") == 1 + 5 + 1 + 2  # heads, files, a blank, and the sums


def test_a_long_path_is_cut_and_a_short_model_and_a_text_part_are_said(
    ask: Ask, mixed: Path
) -> None:
    write(mixed / ("long" * 15) / "config.json", {"model_type": "gpt2", "n_positions": 9})
    text = {"model_type": "llava", "text_config": {"num_hidden_layers": 2}}
    write(mixed / "z.json", text)
    out = ask(f"count --folder {mixed}", width=100)
    (row,) = (line for line in out.splitlines() if "..." in line)
    assert row.startswith("longlong") and row.split()[0].endswith("long/config")
    assert max(map(len, out.splitlines())) <= 100
    plain = " ".join(out.split())
    assert "seq 2048 (in 1 file with fewer positions, all of them)" in plain
    assert "z * " in plain and "* of 1 file the text part alone" in plain
    found = lines(ask(f"count --folder {mixed} --json"))
    assert [line["workload"]["seq_len"] for line in found] == [9, 2048, 2048, 2048, 2048]
    assert [line.get("part") for line in found] == [*[None] * 4, "text"]


def test_two_long_names_can_be_told_apart(ask: Ask, tmp_path: Path) -> None:
    names = [f"an-owner--{'x' * i}{size}{'y' * (40 - i)}" for i in (0, 9, 40) for size in "12"]
    for name in names:
        write(tmp_path / f"{name}_config.json", TINY)
    rows = ask(f"count --folder {tmp_path}", width=50).splitlines()[1:7]
    assert max(map(len, rows)) <= 50 and all(f"  {TINY_PARAMS:,}  " in row for row in rows)
    ends = [row.split()[0].split("...") for row in rows]
    assert len({*map(tuple, ends)}) == 6
    for (start, end), name in zip(ends, sorted(names), strict=True):
        assert name.startswith(start) and name.endswith(end)


def test_a_file_that_is_no_model_is_passed_over(ask: Ask, mixed: Path) -> None:
    """What NVIDIA's tools write beside a quantised checkpoint."""
    quantised = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    for name in (mixed / "org" / "llama", mixed / ".none"):
        write(name / "hf_quant_config.json", quantised)
    said = "1 file without a size of a model: org/llama/hf_quant_config.json"
    code, out, err = ask.all(f"count --folder {mixed} --json")
    assert (code, len(lines(out)), err) == (0, 3, f"metacount: passed over {said}\n")
    text = " ".join(ask(f"count --folder {mixed}").split())
    assert "counted 3 of 3 files" in text and said in text
    code, _, err = ask.all(f"count --folder {mixed / '.none'}")
    assert (code, err) == (2, "metacount: error: no file of the folder describes a model\n")
    # alone it is asked for as a model, and is none
    ask.refused(f"count {mixed}/org/llama/hf_quant_config.json")
    write(mixed / ".bare" / "tokenizer.json", {})
    assert "holds no .json file" in ask.refused(f"count --folder {mixed / '.bare'}")


class _Dies:
    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, _: object) -> None:
        os.abort()


def test_a_dead_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2 * FILES_AT_ONCE):
        write(tmp_path / f"{i}.json", TINY)
    monkeypatch.setattr(folder, "_Job", _Dies)
    with pytest.raises(InputError, match="a process that counted has died"):
        next(count_folder(list_folder(str(tmp_path)), Workload(), data_of, jobs=2))
