"""`metacount plot` of counts, caches and activations: what is drawn and what is refused."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import refused, run_json

from metacount import InputError, Request, catalog, count, find_model, plot
from metacount.cli import main, pictures
from metacount.cli.pictures import MOST_BARS, activations_figure, quantities_figure
from metacount.files import write_whole
from metacount.measure.activations import STEP, curve
from metacount.textbook.count import QUANTITIES
from metacount.textbook.series import Bar, bars, caches


def test_what_was_drawn_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "p.svg")
    for options, words in (
        (("gpt2",), "parameters of gpt2"),
        (("gpt2", "bert-base", "--quantity", "active_params"), "active_params of gpt2, bert-base"),
        (("--caches", "gpt2"), "KV caches of gpt2 with MHA, GQA, MQA, MLA"),
        (("--activations", "relu", "silu", "relu"), "relu, silu and their derivatives"),
    ):
        assert main(["plot", *options, "-o", file]) == 0
        assert capsys.readouterr().out == f"{file}: {words}\n"


def svg_of(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> str:
    assert main(["plot", *arguments, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{file}: ") and out.count("\n") == 1 and err == ""
    return file.read_text(encoding="utf-8")


def said(svg: str) -> set[str]:
    """The texts of a picture: matplotlib draws letters as paths and keeps the text as a comment."""
    return {part.partition("-->")[0].strip() for part in svg.split("<!--")[1:]}


def lengths_of_bars(axes: Any) -> list[float]:
    """The length of each bar, its parts added."""
    found: dict[float, float] = {}
    for patch in axes.patches:
        found[patch.get_y()] = found.get(patch.get_y(), 0.0) + patch.get_width()
    return [found[y] for y in sorted(found)]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_bars_are_as_long_as_what_is_counted(quantity: str) -> None:
    names = ("t5-11b", "gemma3-27b-text", "switch-base-8")
    if quantity == "state_bytes":
        names = ("mamba2-130m", "jamba-1.5-mini", "lfm2-1.2b")
    figure = plot(*names, quantity=quantity, seq_lens=(100, 4096))
    totals = [
        count(name, Request(seq_len=n)).to_dict()[quantity] for name in names for n in (100, 4096)
    ]
    drawn = lengths_of_bars(figure.axes[0])
    assert len(drawn) == len(totals)
    scale = max(totals) / max(drawn)
    assert [round(length * scale / max(totals), 9) for length in drawn] == [
        round(total / max(totals), 9) for total in totals
    ]
    if len(figure.axes) > 1:
        assert [round(length, 6) for length in lengths_of_bars(figure.axes[1])] == [100.0] * 6


def test_parts_of_a_bar_by_hand() -> None:
    model = find_model("llama-7b", ["n_layers=1"])
    (one,) = bars([("one block", model)], [Request()], "params")
    # 2 tables of 32000 · 4096, 4 · 4096², 3 · 4096 · 11008, 3 norms of 4096
    assert one.parts == {
        "embedding": 131072000,
        "attention": 67108864,
        "ffn": 135266304,
        "norm": 12288,
        "head": 131072000,
    }


def test_values_of_a_field_are_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = svg_of(capsys, tmp_path / "p.svg", "llama-7b", "--over", "d_ff=1024, 4*d_model")
    assert "d_ff = 1024, " not in svg
    assert {"d_ff = 1024", "d_ff = 4*d_model", "LLaMA-7B (= Llama-2-7B)", "2.81B"} <= said(svg)
    two = svg_of(capsys, tmp_path / "q.svg", "gpt2", "llama-7b", "--over", "n_layers=1,2")
    assert {"GPT-2 small, n_layers = 1", "LLaMA-7B (= Llama-2-7B),"} <= said(two)


def test_lengths_are_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("--quantity", "kv_cache_bytes", "--seq", "1k, 128k", "--batch", "2", "--dtype")
    svg = svg_of(capsys, tmp_path / "p.svg", "llama3-8b", *arguments, "fp8")
    # 2 · 8 heads · 128 · 32 layers · 1 byte · 2 sequences · 1024 and 131072 tokens
    assert {
        "seq 1,024",
        "seq 131,072",
        "128.00 MiB",
        "16.00 GiB",
        "Llama-3 / 3.1 8B: batch 2, fp8",
        "KV cache after the sequence [GiB = 2^30 B]",
    } <= said(svg)
    long = svg_of(capsys, tmp_path / "q.svg", "gpt2", "bert-base", "--quantity", "matmul_flops")
    assert {"GPT-2 small, seq 1,024", "BERT-base uncased, seq 512"} <= said(long)
    warned = svg_of(capsys, tmp_path / "r.svg", "gpt2", "--quantity", "matmul_flops", "--seq", "2k")
    assert any(
        "GPT-2 small: the model has 1024 learned positions and cannot run 2048" in text
        for text in said(warned)
    )


def test_no_labels_overlap_with_many_models_and_long_names() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    models = [find_model(name) for name in [*catalog.ids()][:3]]
    run = count(models[0].spec).workload
    long = "a-very-long-name-that-somebody-gave-to-a-model of several words and more words still"
    parts = {"attention": 3 * 10**9, "ffn": 8 * 10**9, "norm": 10, "head": 10**9}
    rows = [
        Bar(model=f"{long} {i}", label=f"{long} {i}", run=run, parts=parts, warnings=("too long",))
        for i in range(12)
    ]
    figure = quantities_figure(rows, "matmul_flops")
    assert [text.get_text() for text in figure.texts] == ["12 models: too long"]
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    width = figure.bbox.width
    for axes in figure.axes:
        texts = [*axes.get_yticklabels(), *axes.texts]
        boxes = [
            text.get_window_extent() for text in texts if text.get_text() and text.get_visible()
        ]
        for i, box in enumerate(boxes):
            assert box.x0 >= 0 and box.x1 <= width
            assert not any(box.overlaps(other) for other in boxes[:i])
    assert figure.axes[0].bbox.width > width / 4  # the names leave room for the bars


def test_caches_are_what_count_says_of_such_attention() -> None:
    llama = find_model("llama3-8b")
    found = {cache.kind: cache for cache in caches(llama.spec, "bf16")}
    for kind, heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
        same = find_model("llama3-8b", [f"n_kv_heads={heads}"])
        assert found[kind].bytes_per_token == count(same).kv_cache_bytes_per_token
    assert [kind for kind, cache in found.items() if cache.own] == ["GQA"]
    deepseek = {cache.kind: cache for cache in caches(find_model("deepseek-v3").spec, "fp8")}
    # 61 layers · (512 + 64) values of one byte
    assert deepseek["MLA"].bytes_per_token == 61 * 576 and deepseek["MLA"].own
    assert deepseek["MHA"].sizes == {"h_kv": 128, "h_d": 128}
    # a prime number of heads has no groups
    few = find_model("gpt2", ["n_heads=7", "n_kv_heads=7"])
    assert [cache.kind for cache in caches(few.spec, "bf16")] == ["MHA", "MQA", "MLA"]


def test_picture_of_caches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = svg_of(capsys, tmp_path / "p.svg", "--caches", "llama3-8b", "--seq", "1k,8k")
    assert {
        "MHA",
        "GQA",
        "MQA",
        "MLA",
        "h_kv = 8, h_d = 128",
        "(the model's own)",
        "d_c = 512, d_r = 64",
        "512.00 KiB",
        "1K",
        "8K",
    } <= said(svg)
    assert {"16K", "128K"}.isdisjoint(said(svg))
    assert "128K" in said(svg_of(capsys, tmp_path / "q.svg", "--caches", "llama3-8b"))


def test_the_numbers_of_pictures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = run_json(capsys, "plot", "llama3-8b", "--quantity", "kv_cache_bytes", "--seq", "1,2")
    assert one["parts"] == {"self-attention": 131072} and one["total"] == 131072
    assert (two["total"], two["workload"]["seq_len"]) == (262144, 2)
    changed = ("--set", "n_layers=2", "--over", "d_ff=100,200")
    for bar, d_ff in zip(run_json(capsys, "plot", "llama-7b", *changed), (100, 200), strict=True):
        assert bar["total"] == 2 * 32000 * 4096 + 2 * (4 * 4096 + 3 * d_ff + 2) * 4096 + 4096
    found = run_json(capsys, "plot", "--caches", "llama3-8b")
    assert {(row["model"], row["dtype"]) for row in found} == {("llama3-8b", "bf16")}
    assert {row["kind"]: row["bytes_per_token"] for row in found}["MQA"] == 16384
    no_numbers = refused(capsys, "plot", "--roofline", "r.json", "--json")
    assert "--json gives the numbers of a picture of models, caches or activations" in no_numbers
    (relu,) = run_json(capsys, "plot", "--activations", "relu")
    assert (relu["x"][-1], relu["y"][-1], relu["derivative"][0]) == (4.0, 4.0, 0.0)


def test_activations_are_executed() -> None:
    middle = round(4 / STEP)

    def at(name: str, x: float) -> tuple[float, float]:
        found = curve(name)
        i = middle + round(x / STEP)
        assert found.x[i] == x
        return found.y[i], found.derivative[i]

    sigmoid = 1 / (1 + math.exp(-1.0))
    assert at("silu", 1.0) == pytest.approx((sigmoid, sigmoid * (2 - sigmoid)), abs=1e-12)
    phi = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    assert at("gelu", 1.0) == pytest.approx((phi, phi + density), abs=1e-12)
    assert at("relu2", 2.0) == (4.0, 4.0) and at("relu", -1.0) == (0.0, 0.0)
    figure = activations_figure([curve("relu"), curve("gelu")], "en")
    (relu, _), slopes = figure.axes[0].lines[:2], figure.axes[1].lines[0].get_ydata()
    assert list(relu.get_ydata()) == curve("relu").y
    # the step of ReLU's derivative is not drawn as a slope
    assert sum(math.isnan(value) for value in slopes) == 1
    with pytest.raises(InputError):
        activations_figure([curve("relu")] * 10, "en")


def chinese_or_skip() -> None:
    try:
        pictures.check_chinese()
    except InputError as error:
        pytest.skip(f"needs a font with Chinese letters: {error}")


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_chinese_labels(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    chinese_or_skip()
    # a warning of a missing letter would be an error here
    file = tmp_path / f"p.{ending}"
    arguments = ["llama-7b", "--quantity", "matmul_flops", "--lang", "zh"]
    assert main(["plot", *arguments, "-o", str(file)]) == 0
    assert capsys.readouterr().err == ""
    if ending == "svg":
        assert {"注意力", "前馈网络", "输出头", "占比 [%]", "批量 1, 序列长度 2,048"} <= said(
            file.read_text("utf-8")
        )


def test_no_chinese_font_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "CHINESE", ())
    file = tmp_path / "p.svg"
    err = refused(capsys, "plot", "llama-7b", "--lang", "zh", "-o", str(file))
    assert "no installed font has Chinese letters" in err and not file.exists()


@pytest.mark.parametrize("name", ["模型 \N{PILE OF POO}", "$x$ \\frac{", "<b> & </b>", "\u0378"])
def test_names_in_any_letters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / "model.json"
    spec = find_model("gpt2").spec.to_dict()
    file.write_text(json.dumps({"name": name, **spec}), encoding="utf-8")
    svg_of(capsys, tmp_path / "p.svg", str(file))
    monkeypatch.setattr(pictures, "CHINESE", ())
    svg_of(capsys, tmp_path / "q.svg", str(file))
    assert main(["plot", str(file), "-o", str(tmp_path / "p.png")]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-7b", "--quantity", "parms"), "--quantity 'parms' is unknown; did you mean params"),
        (("llama-7b", "--over", "d_ff"), "--over needs FIELD=VALUE,VALUE,...: got"),
        (("llama-7b", "--over", "d_fff=1,2"), "--set: 'd_fff' is not a field of a model"),
        (("llama-7b", "--over", "d_ff=1,x"), "--set d_ff must be a whole number"),
        (("llama-7b", "--over", "n_kv_heads=32,5"), "n_kv_heads must divide n_heads"),
        (
            ("llama-7b", "--over", "n_layers=" + ",".join(map(str, range(1, MOST_BARS + 2)))),
            f"{MOST_BARS + 1} bars are too many for one picture, at most {MOST_BARS}",
        ),
        (("llama-7b", "--seq", "1k,,4k"), "--seq takes lengths such as 1k,4k,16k: got ''"),
        (("llama-7b", "--seq", "-1"), "--seq takes lengths such as 1k,4k,16k: got '-1'"),
        (("llama-7b", "--seq", "0"), "seq_len must be at least 1"),
        (("llama-7b", "--dtype", "int3"), "dtype is unknown"),
        (("bert-base", "--quantity", "kv_cache_bytes"), "kv_cache_bytes is 0 for all"),
        (("bert-base", "--quantity", "decode_matmul_flops"), "has no decode step"),
        (("--caches", "bert-base"), "keeps no cache"),
        (("--caches", "type:zamba"), "type:zamba has no spec, so there is no formula"),
        (("--caches", "gpt2", "--over", "n_layers=2"), "--over belongs to MODEL; leave it out"),
        (("--caches", "gpt2", "--quantity", "matmul_flops"), "--quantity belongs to MODEL"),
        (("--activations", "rleu"), "there is no activation 'rleu'; did you mean relu"),
        (("--activations", "relu", "--seq", "4"), "--seq belongs to MODEL or --caches"),
        (("llama-7b", "--caches", "gpt2"), "plot needs one of MODEL, --caches MODEL"),
        (("llama-7b", "--launch", "graph"), "--launch belongs to --roofline or --curves"),
        (("llama-7b", "--json"), "--json does not go with -o"),
        (("llama-7b", "--html", "p.html"), "--html does not go with -o"),
    ],
)
def test_what_cannot_be_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "p.svg"
    assert message in refused(capsys, "plot", *arguments, "-o", str(file))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.svg"
    write_whole("-o", str(file), b"old")
    write_whole("-o", str(file), b"new")
    assert file.read_bytes() == b"new"
    assert oct(file.stat().st_mode & 0o777) == oct(0o666 & ~_umask())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError):
        write_whole("-o", str(file), b"cut")
    assert file.read_bytes() == b"new" and [*tmp_path.iterdir()] == [file]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
