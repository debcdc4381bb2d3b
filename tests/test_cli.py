"""The command line as its users meet it: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metacount import catalog
from metacount.cli import COMMANDS, main
from metacount.closed_form import QUANTITIES
from metacount.formulas import model as formulas
from metacount.resolve import MAX_FILE_BYTES, find_model, parse_settings
from metacount.spec import ModelSpec, Workload
from metacount.views.fields import field_rows

TINY: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 3,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 4,
    "d_ff": 17,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
}
# 2 tables 101*13; per block attention 2*13*4*(6+2), ffn 3*13*17, norms 2*13; a last norm 13
TINY_PARAMS = 2 * 1313 + 3 * (832 + 663 + 26) + 13


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard output of a command that succeeds and says nothing else."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong request gets."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("metacount: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert err.isprintable() or err[:-1].isprintable()
    return err


def script(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "metacount", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **settings,
    )


# count


def test_count_json_has_every_key_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "deepseek-v3")
    assert list(data["by_role"]) == [
        "embedding", "position", "attention", "ffn", "moe", "norm", "head", "other"]  # fmt: skip
    assert sum(data["by_role"].values()) == data["params"] == 671026404352
    assert sum(data["active_by_role"].values()) == data["active_params"] == 37552282624
    assert data["active_params_no_embed"] == 37552282624 - 129280 * 7168
    assert data["buffers"] == {"selection_bias": 58 * 256}
    assert data["param_bytes"] == 2 * 671026404352
    assert data["workload"] == {
        "batch_size": 1, "seq_len": 2048, "dtype": "bf16", "source_len": None, "prefix_len": 0,
    }  # fmt: skip
    assert data["matmul_flops"] == 2 * data["macs"]
    assert data["causal_matmul_flops"] < data["matmul_flops"]
    assert data["kv_cache_bytes_per_token"] == 61 * (512 + 64) * 2
    assert data["kv_cache_bytes"] == 2048 * 61 * (512 + 64) * 2
    assert data["cross_kv_cache_bytes"] == 0
    assert isinstance(data["decode_matmul_flops"], int)
    assert (data["model"], data["source"], data["inferred"]) == ("deepseek-v3", "formula", [])
    assert data["warnings"] == []


def test_several_models_give_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "llama-7b", "bert-base")
    assert [d["model"] for d in data] == ["llama-7b", "bert-base"]
    # an encoder has no step that gives one more token
    assert data[1]["decode_matmul_flops"] is None
    assert (data[1]["kv_cache_bytes"], data[1]["kv_cache_bytes_per_token"]) == (0, 0)
    assert data[1]["warnings"] == [
        "the model has 512 learned positions and cannot run 2048; the counts go on as if it could"
    ]


def test_the_workload_is_counted(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    one = run_json(capsys, "count", tiny, "--seq", "7")
    more = run_json(capsys, "count", tiny, "--seq", "7", "--batch", "5", "--dtype", "fp32")
    assert one["params"] == TINY_PARAMS
    assert more["matmul_flops"] == 5 * one["matmul_flops"]
    assert more["param_bytes"] == 4 * TINY_PARAMS
    # 7 tokens, 3 layers, keys and values of 2 heads of 4 values, 4 bytes each
    assert more["kv_cache_bytes"] == 5 * 7 * 3 * 2 * 2 * 4 * 4
    # 2 per multiply-add; 7 tokens through 3 blocks of 832 + 663 weights and the head,
    # and in each block 7*7 pairs, 2 products, 6 heads of 4 values
    assert one["matmul_flops"] == 2 * (7 * (3 * (832 + 663) + 1313) + 3 * 49 * 2 * 24)
    # of the 49 pairs the mask keeps 28
    assert one["matmul_flops"] - one["causal_matmul_flops"] == 2 * 3 * (49 - 28) * 2 * 24


def test_source_and_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    t5 = run_json(capsys, "count", "t5-small", "--seq", "3", "--source-len", "5")
    assert t5["workload"]["source_len"] == 5
    # 6 layers, keys and values of 8 heads of 64, 2 bytes; 5 source tokens and 3 own
    assert t5["cross_kv_cache_bytes"] == 5 * 6 * 2 * 512 * 2
    assert t5["kv_cache_bytes"] == (5 + 3) * 6 * 2 * 512 * 2
    assert run_json(capsys, "count", "t5-small")["workload"]["source_len"] == 2048
    glm = run_json(capsys, "count", "glm-130b", "--prefix", "100")
    assert glm["causal_matmul_flops"] > run_json(capsys, "count", "glm-130b")["causal_matmul_flops"]


def test_set_changes_sizes_and_drops_the_published_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, "count", "llama-7b", "--set", "n_layers=1", "--set", "vocab_size=none")
    assert data["params"] == 4 * 4096**2 + 3 * 4096 * 11008 + 3 * 4096
    assert data["changes"] == {"n_layers": 1, "vocab_size": None}
    text = run(capsys, "count", "llama-7b", "--set", "n_layers=1")
    assert "changed  n_layers=1" in text
    assert "published" not in text
    assert "published" in run(capsys, "count", "llama-7b")


def test_settings_are_parsed_by_type() -> None:
    settings = ["n_layers=1_000", "gated=FALSE", "norm_eps=1e-6", "window=None", "norm=LayerNorm",
                "window_pattern=LLG", "logit_softcap = 30"]  # fmt: skip
    assert parse_settings(settings) == {
        "n_layers": 1000, "gated": False, "norm_eps": 1e-6, "window": None, "norm": "layernorm",
        "window_pattern": "LLG", "logit_softcap": 30.0,
    }  # fmt: skip


def test_huge_workloads_are_exact_and_quick(capsys: pytest.CaptureFixture[str]) -> None:
    huge = str(2**40)
    start = time.perf_counter()
    for name in ("gemma3-27b-text", "llama4-scout-text", "gpt3-175b", "t5-11b", "deepseek-v3"):
        data = run_json(capsys, "count", name, "--seq", huge, "--batch", huge)
        assert data["matmul_flops"] % 2**80 == 0
        run(capsys, "count", name, "--seq", huge, "--batch", huge)
        run(capsys, "formula", name, "--seq", huge, "--quantity", "causal_matmul_flops")
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("name", catalog.ids())
def test_every_model_of_the_catalog_is_counted_or_refused(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if catalog.entry(name).sizes is None:
        assert "is in the catalog but cannot be built" in refused(capsys, "count", name)
        return
    data = run_json(capsys, "count", name)
    assert sum(data["by_role"].values()) == data["params"]
    lines = run(capsys, "count", name).splitlines()
    assert_readable(lines, 80)
    # the printed columns, read again, are the printed totals
    start = next(i for i, line in enumerate(lines) if line.startswith("role "))
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    rows = [line.split() for line in lines[start + 1 : rule + 2] if not line.startswith("---")]
    *roles, total = rows
    assert total[0] == "total"
    assert sum(number(row[1]) for row in roles) == number(total[1]) == data["params"]
    assert total[2:4] == ["100.0", "%"]
    if len(total) == 5:
        assert sum(number(row[4]) for row in roles) == number(total[4]) == data["active_params"]


def number(text: str) -> int:
    assert re.fullmatch(r"\d{1,3}(,\d{3})*", text)
    return int(text.replace(",", ""))


def assert_readable(lines: list[str], width: int) -> None:
    """No line is too wide, unless it is one long word of a source; nothing is cut short."""
    for line in lines:
        assert len(line) <= width or max(map(len, line.split())) > width // 2, line
        assert line == line.rstrip()
        assert "…" not in line
        assert "..." not in line or not re.search(r"\d[\d,]*\.\.\.", line)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_tables_fit_the_width_or_keep_their_numbers_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = ("llama-7b", "mixtral-8x7b", "deepseek-v3", "t5-11b")
    text = run(capsys, "count", *names)
    data = run_json(capsys, "count", *names)
    numbers = re.findall(r"\d[\d,]*", text)
    for result in data:
        for key in ("params", "active_params", "matmul_flops", "kv_cache_bytes"):
            assert f"{result[key]:,}" in numbers
    if width >= 60:
        assert_readable(text.splitlines(), width)
    one = run(capsys, "count", "deepseek-v3", "--seq", str(2**40))
    assert f"{run_json(capsys, 'count', 'deepseek-v3', '--seq', str(2**40))['macs']:,}" in one


def test_a_comparison_shows_as_many_columns_as_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(width: str) -> list[list[str]]:
        monkeypatch.setenv("COLUMNS", width)
        lines = run(capsys, "count", "gpt2", "llama-7b", "bert-base").splitlines()
        return [line.split() for line in lines if re.match(r" +(gpt2|llama-7b|bert-base)", line)]

    assert heads("120") == [["gpt2", "llama-7b", "bert-base"]]
    assert heads("66") == [["gpt2", "llama-7b"], ["bert-base"]]
    assert heads("40") == [["gpt2"], ["llama-7b"], ["bert-base"]]


def test_an_encoder_shows_a_dash_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "count", "bert-base", "--seq", "512")
    assert re.search(r"^decode_matmul_flops +-  an encoder has no decode step$", text, re.M)
    assert "warning" not in text
    assert "warning" in run(capsys, "count", "bert-base", "--seq", "513")


def test_text_is_plain_when_piped_and_bold_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = run(capsys, "count", "llama-7b")
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    styled = run(capsys, "count", "llama-7b")
    assert "\x1b[1m" in styled
    assert re.sub(r"\x1b\[\d+m", "", styled) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(capsys, "count", "llama-7b") == plain


# models


def test_models_lists_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "models")
    assert [row["model"] for row in data] == list(catalog.ids())
    by_name = {row["model"]: row for row in data}
    assert by_name["llama-7b"]["params"] == 6738415616
    assert by_name["llama-7b"]["status"] == "exact"
    assert by_name["llama-13b"]["status"] == "rounds"
    assert by_name["jamba-1.5-large"]["params"] is None
    assert by_name["jamba-1.5-large"]["not_expressible"]
    lines = run(capsys, "models").splitlines()
    assert_readable(lines, 80)
    printed = {line.split()[0]: line.split()[1] for line in lines[1 : 1 + len(data)]}
    assert printed == {r["model"]: f"{r['params']:,}" if r["params"] else "-" for r in data}


def test_models_shows_more_with_more_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    wide = run(capsys, "models")
    assert "DeepSeek-V3 671B" in wide
    assert "With more width" not in wide
    assert_readable(wide.splitlines(), 160)
    monkeypatch.setenv("COLUMNS", "80")
    assert re.search(r"With more width, or --json: .*name\.", run(capsys, "models"), re.S)


def test_models_can_be_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    assert {r["model"] for r in run_json(capsys, "models", "DEEPSEEK-V")} == {
        "deepseek-v2", "deepseek-v3",
    }  # fmt: skip
    family = run_json(capsys, "models", "--family", "deepseek v3")
    assert [row["model"] for row in family] == ["deepseek-v3"]
    error = refused(capsys, "models", "--family", "DeepSeek V33")
    assert "did you mean deepseek v3" in error
    assert main(["models", "nothing-like-it"]) == 0
    assert capsys.readouterr() == ("", "metacount: no model of the catalog matches\n")


def test_every_field_has_a_line_and_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    rows = field_rows()
    assert [row["field"] for row in rows] == list(ModelSpec.__annotations__)
    assert [row["field"] for row in rows if not row["meaning"]] == []
    text = run(capsys, "models", "--fields")
    assert_readable(text.splitlines(), 80)
    assert {line.split()[0] for line in text.splitlines() if line} >= {r["field"] for r in rows}
    assert run_json(capsys, "models", "--fields") == rows
    required = {row["field"] for row in rows if row["required"]}
    assert required == {"kind", "d_model", "n_layers", "vocab_size", "n_heads", "activation",
                        "gated", "norm", "position"}  # fmt: skip


# formula


def counted(name: str, quantity: str) -> int:
    spec = find_model(name).spec
    workload = Workload()
    if quantity in ("params", "active_params"):
        return int(getattr(formulas, quantity)(spec))
    if quantity == "decode_matmul_flops":
        return int(formulas.decode_matmul_flops(spec, batch_size=1, kv_len=workload.seq_len))
    if quantity == "kv_cache_bytes":
        return int(formulas.kv_cache_bytes(spec, batch_size=1, seq_len=2048, bytes_per_value=2))
    return int(getattr(formulas, quantity)(spec, batch_size=1, seq_len=workload.seq_len))


# one of each kind of attention, mask, feed-forward and stack that the catalog has
VARIED = ("llama-7b", "deepseek-v3", "mixtral-8x7b", "gemma3-27b-text", "llama4-scout-text",
          "t5-11b", "switch-base-8", "bert-base", "gpt2", "glm-130b", "pangu-alpha-207b",
          "gpt-oss-20b", "palm-540b", "textbook-block")  # fmt: skip


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("name", VARIED)
def test_formulas_come_to_the_count(
    capsys: pytest.CaptureFixture[str], name: str, quantity: str
) -> None:
    arguments = ("formula", name, "--quantity", quantity)
    if quantity == "decode_matmul_flops" and find_model(name).spec.kind == "encoder":
        assert "has no decode step" in refused(capsys, *arguments)
        return
    expected = counted(name, quantity)
    # as data: the parts sum, and their Python with the legend's numbers is the value
    data = run_json(capsys, *arguments)
    assert data["total"] == sum(part["value"] for part in data["parts"].values()) == expected
    sizes = {term["name"]: term["value"] for term in data["legend"]}
    for part in data["parts"].values():
        assert eval(part["python"], {"min": min}, dict(sizes)) == part["value"]
    # as a function: without arguments it is this model's count, in whole numbers
    namespace: dict[str, Any] = {}
    exec(run(capsys, *arguments, "--python"), namespace)
    result = namespace[quantity]()
    assert (result, type(result)) == (expected, int)
    # as text: what follows each = sign is a part, and the last one is their sum
    text = run(capsys, *arguments)
    assert_readable(text.splitlines(), 80)
    values = [number(found) for found in re.findall(r"= ([\d,]+)$", text, re.M)]
    parts = values if len(data["parts"]) < 2 else values[:-1]
    assert parts == [part["value"] for part in data["parts"].values()]
    assert sum(parts) == expected == (values or [0])[-1]
    # as LaTeX: the braces close
    latex = run(capsys, *arguments, "--latex")
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\left") == latex.count(r"\right")


def test_the_closed_form_of_llama(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "formula", "llama-7b")
    assert "attention  2·N·d·h_d·(h + h_kv)\n" in text
    assert "           2·32·4096·128·(32 + 32) = 2,147,483,648\n" in text
    assert re.search(r"^h_kv +n_kv_heads +32  key/value heads$", text, re.M)
    assert r"\mathrm{ffn} &= 3 N d m" in run(capsys, "formula", "llama-7b", "--latex")


def test_the_closed_form_of_a_window_keeps_a_letter_for_its_layers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, "formula", "gemma3-27b-text", "--quantity", "kv_cache_bytes")
    cache = data["parts"]["self-attention"]["letters"]
    assert cache == "2·B·c·h_d·h_kv·(N_w·min(S, w - 1) + S·(N - N_w))"
    assert {t["letter"]: t["value"] for t in data["legend"]}["N_w"] == 52


def test_a_name_cannot_break_out_of_the_python(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**TINY, "name": '"""\nraise SystemExit("no")\n\\"""'}))
    namespace: dict[str, Any] = {}
    exec(run(capsys, "formula", str(file), "--python"), namespace)
    assert namespace["params"]() == TINY_PARAMS


# tree and verify


def test_tree_and_verify_of_a_small_model(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert "q_proj" in run(capsys, "tree", tiny)
    assert run_json(capsys, "tree", tiny)["tree"]["params"] == TINY_PARAMS
    data = run_json(capsys, "verify", tiny, "--seq", "7")
    assert (data["model"], data["agree"]) == ("tiny", True)
    for witness in data["witnesses"]:
        assert {"name", "params", "active_params", "matmul_flops", "kv_cache_bytes",
                "detail"} <= set(witness)  # fmt: skip
        assert witness["params"] == TINY_PARAMS
    assert len(data["witnesses"]) == 2
    run(capsys, "verify", tiny, "--seq", "7")


def test_verify_exits_1_when_witnesses_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    from metacount.formulas import ffn

    right = ffn.glu_params
    monkeypatch.setattr(ffn, "glu_params", lambda *a, **k: right(*a, **k) + 1)
    assert main(["verify", tiny, "--seq", "7", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["agree"] is False
    assert any(d.startswith("params:") for d in data["differences"])


def test_verify_needs_models_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert "either MODEL or --all" in refused(capsys, "verify")
    assert "either MODEL or --all" in refused(capsys, "verify", "gpt2", "--all")


# MODEL from a file


def test_a_model_from_a_file_or_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny: str
) -> None:
    assert run_json(capsys, "count", tiny)["model"] == "tiny"
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY, "name": "Mine"}))
    data = run_json(capsys, "count", str(folder))
    assert (data["model"], data["name"], data["params"]) == ("my-model", "Mine", TINY_PARAMS)
    assert run_json(capsys, "count", str(folder) + "/")["model"] == "my-model"
    assert run_json(capsys, "count", str(folder / "config.json"))["params"] == TINY_PARAMS
    with_mark = tmp_path / "bom.json"
    with_mark.write_bytes(b"\xef\xbb\xbf" + json.dumps(TINY).encode())
    assert run_json(capsys, "count", str(with_mark))["params"] == TINY_PARAMS


def test_a_catalog_name_in_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "count", "LLaMA-7B")["model"] == "llama-7b"


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
    "empty object": (b"{}", "kind is missing"),
    "binary": (b"\x80\x04\x95\x00\x01", "is not text in UTF-8: byte 0 is 0x80"),
    "utf-16": ('{"d_model": 1}'.encode("utf-16"), "is not text in UTF-8"),
    "nul": (b'{"a": 1}\0\0', "has a NUL byte"),
    "deep list": (b"[" * 100_000, "nested too deeply"),
    "deep object": (b'{"a":' * 100_000, "nested too deeply"),
    "NaN": (b'{"d_model": NaN}', "NaN is not a number of JSON"),
    "Infinity": (b'{"d_model": -Infinity}', "-Infinity is not a number of JSON"),
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
    "hugging face": (b'{"model_type": "llama", "hidden_size": "x"}',
                     "hidden_size must be a whole number: got 'x'"),
    "hugging face class": (b'{"architectures": ["X"]}', "model_type must be text: got None"),
}  # fmt: skip


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
    assert "no such file" in refused(capsys, "count", str(tmp_path / "no.json"))
    assert "holds no config.json" in refused(capsys, "count", str(tmp_path))
    (tmp_path / "config.json").mkdir()
    assert "is a folder" in refused(capsys, "count", str(tmp_path))
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert "cannot be read" in refused(capsys, "count", str(loop))
    assert "cannot be read" in refused(capsys, "count", "x" * 5000 + ".json")
    assert "embedded null" in refused(capsys, "count", "a\0b.json")
    file = tmp_path / "file.json"
    file.write_text("{}")
    assert "Not a directory" in refused(capsys, "count", f"{file}/config.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    Path(tiny).chmod(0)
    assert "Permission denied" in refused(capsys, "count", tiny)


def test_a_huge_file_is_not_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    start = time.perf_counter()
    assert f"at most {MAX_FILE_BYTES}" in refused(capsys, "count", str(file))
    assert time.perf_counter() - start < 1


def test_pipes_and_devices_do_not_hang(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    for path in (str(fifo), "/dev/zero", "/dev/stdin"):
        message = refused(capsys, "count", path)
        assert "is not a regular file" in message or "cannot be read" in message


# MODEL, --set and options that are wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "lama-7b"], "did you mean llama-7b"),
        (["count", ""], "model '' is not in the catalog"),
        (["count", "zzzzzz"], "see `metacount models`"),
        (["count", "some/where/else"], "no such file"),
        (["count", "type:lama"], "did you mean llama"),
        (["formula", "type:mamba2"], "has no spec, so there is no formula"),
        (["count", "type:mamba2", "--set", "n_layers=2"], "--set needs a model that has a spec"),
        (["count", "a\nb\x1b[2J"], r"a\nb\x1b[2J"),
        (["count", "\udcff"], r"\udcff"),
        (["count", "llama4-maverick"], "The vision tower"),
        (["count", "gpt2", "--set", "n_layers"], "--set needs FIELD=VALUE"),
        (["count", "gpt2", "--set", "n_layer=2"], "did you mean n_layers"),
        (["count", "gpt2", "--set", "=2"], "is not a field of a model"),
        (["count", "gpt2", "--set", "n_layers="], "--set n_layers must be a whole number"),
        (["count", "gpt2", "--set", "n_layers=two"], "--set n_layers must be a whole number"),
        (["count", "gpt2", "--set", "n_layers=1e3"], "--set n_layers must be a whole number"),
        (["count", "gpt2", "--set", "n_layers=none"], "--set n_layers must be a whole number"),
        (["count", "gpt2", "--set", "d_ff=x"], "--set d_ff must be a whole number, or none"),
        (["count", "gpt2", "--set", "n_layers=" + "9" * 5000], "must be a whole number"),
        (["count", "gpt2", "--set", "n_layers=0"], "n_layers must be at least 1"),
        (["count", "gpt2", "--set", "n_layers=999999999"], "n_layers must be at most"),
        (["count", "gpt2", "--set", "gated=yes"], "--set gated must be true or false"),
        (["count", "gpt2", "--set", "norm_eps=nan"], "norm_eps must be a positive number"),
        (["count", "gpt2", "--set", "norm=batchnorm"], "choose one of layernorm, rmsnorm"),
        (["count", "gpt2", "--set", "n_layers=2", "--set", "n_layers=3"], "is given twice"),
        (["count", "llama-7b", "--set", "n_kv_heads=5"], "n_kv_heads must divide n_heads"),
        (["count", "gpt2", "--batch", "0"], "batch_size must be at least 1"),
        (["count", "gpt2", "--seq", "-5"], "seq_len must be at least 1"),
        (["count", "gpt2", "--seq", "8K"], "must be a whole number: got '8K'"),
        (["count", "gpt2", "--seq", "9" * 5000], "must be a whole number"),
        (["count", "gpt2", "--seq", str(2**40 + 1)], "seq_len must be at most"),
        (["count", "gpt2", "--dtype", "int4"], "dtype is unknown"),
        (["count", "gpt2", "--prefix", "3"], "prefix_len belongs to a prefix-decoder"),
        (["count", "gpt2", "--source-len", "3"], "source_len belongs to an encoder-decoder"),
        (["count", "glm-130b", "--prefix", "9999"], "prefix_len must be at most seq_len"),
        (["verify", "gpt2", "--prefix", "3"], "prefix_len belongs to a prefix-decoder"),
        (["count"], "count needs MODEL or --folder DIR"),
        (["count", "gpt2", "--what"], "unrecognized arguments: --what"),
        (["count", "gpt2", "--bat", "3"], "unrecognized arguments"),
        (["count", "gpt2", "--what\n\x1b[2J" + "x" * 9999], "unrecognized arguments"),
        (["formula", "gpt2", "llama-7b"], "unrecognized arguments"),
        (["formula", "gpt2", "--quantity", "parms"], "did you mean params"),
        (["formula", "gpt2", "--latex", "--python"], "not allowed with"),
        (["cuont", "gpt2"], "invalid choice: 'cuont'"),
        ([], "COMMAND"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    error = refused(capsys, *arguments)
    assert message in error
    assert len(error) < 700


def test_a_bug_is_not_called_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ValueError("ours, not theirs")

    monkeypatch.setattr(formulas, "matmul_flops", broken)
    with pytest.raises(ValueError, match="ours, not theirs"):
        main(["count", "gpt2"])


# the process


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--help")
    assert all(name in text for name in COMMANDS)
    assert_readable(text.splitlines(), 80)
    for name in COMMANDS:
        lines = run(capsys, name, "--help").splitlines()
        assert lines[0].startswith(f"usage: metacount {name}")
        assert_readable(lines, 80)
    assert re.fullmatch(r"metacount \d+\.\d+\.\d+\n", run(capsys, "--version"))


def test_the_process_keeps_the_same_rules() -> None:
    done = script("count", "llama-7b", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["params"] == 6738415616
    done = script("count", "lama-7b")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    # argparse itself may have swallowed the error: then it was still quiet
    for arguments, codes in (
        (["models", "--json"], {141}),
        (["count", *["llama-7b"] * 99], {141}),
        (["--help"], {0, 141}),
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "metacount", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert done.stderr == b""
        assert done.returncode in codes


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "metacount", "count", "gpt2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "metacount: error: cannot write the result: No space left on device\n"


def test_an_interrupt_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("metacount.commands.count.find_any", interrupted)
    assert main(["count", "gpt2"]) == 130


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_unicode_is_no_crash(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for arguments in (["formula", "llama-7b"], ["count", "llama-7b"]):
        done = script(*arguments, env=environment, encoding=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert "6,738,415,616" in done.stdout


def test_an_odd_width_is_no_crash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in ("0", "-5", "1", "x", "", "9" * 30, "²"):
        monkeypatch.setenv("COLUMNS", odd)
        assert "6,738,415,616" in run(capsys, "count", "llama-7b")
        assert "6,738,415,616" in run(capsys, "formula", "llama-7b")


def test_a_chunk_at_its_fullest_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "llama4-scout-text", "--seq", "20000", "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "take a chunk of 8192 positions at its fullest: an upper bound" in warning
    assert main(["count", "llama4-scout-text", "--seq", "8192", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
