"""`metacount plot` of counts, caches and activations: what is drawn is what is counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask

from metacount import InputError, Request, catalog, count, find_model, plot
from metacount.cli import pictures
from metacount.cli.pictures import activations_figure, quantities_figure
from metacount.measure.activations import STEP, curve
from metacount.textbook.count import QUANTITIES
from metacount.textbook.series import Bar, caches


def texts_of(ask: Ask, file: Path, line: str) -> set[str]:
    """The texts of a picture: matplotlib draws letters as paths and keeps the text as a comment."""
    assert ask(f"plot {line} -o {file}").startswith(f"{file}: ")
    return {t.partition("-->")[0].strip() for t in file.read_text("utf-8").split("<!--")[1:]}


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
    counted = (count(name, Request(seq_len=n)) for name in names for n in (100, 4096))
    totals = [each.to_dict()[quantity] for each in counted]
    drawn = lengths_of_bars(figure.axes[0])
    parts = [round(length / max(drawn), 9) for length in drawn]
    assert parts == [round(total / max(totals), 9) for total in totals]
    if len(figure.axes) > 1:
        assert [round(length, 6) for length in lengths_of_bars(figure.axes[1])] == [100.0] * 6


# 2 · 8 heads · 128 · 32 layers · 1 byte · 2 sequences · 1024 and 131072 tokens
SAID = {
    "llama-7b --over 'd_ff=1024, 4*d_model'":
        "d_ff = 1024|d_ff = 4*d_model|LLaMA-7B (= Llama-2-7B)|2.81B",
    "gpt2 llama-7b --over n_layers=1,2": "GPT-2 small, n_layers = 1|LLaMA-7B (= Llama-2-7B),",
    "llama3-8b --quantity kv_cache_bytes --seq '1k, 128k' --batch 2 --dtype fp8":
        "seq 1,024|seq 131,072|128.00 MiB|16.00 GiB|Llama-3 / 3.1 8B: batch 2, fp8|"
        "KV cache after the sequence [GiB = 2^30 B]",
    "gpt2 bert-base --quantity matmul_flops": "GPT-2 small, seq 1,024|BERT-base uncased, seq 512",
    "--caches llama3-8b --seq 1k,8k":
        "MHA|GQA|MQA|MLA|h_kv = 8, h_d = 128|(the model's own)|d_c = 512, d_r = 64|1K|8K",
}  # fmt: skip


@pytest.mark.parametrize("line", SAID)
def test_what_a_picture_says(ask: Ask, tmp_path: Path, line: str) -> None:
    found = texts_of(ask, tmp_path / "p.svg", line)
    assert {*SAID[line].split("|")} <= found
    assert {"16K", "128K"}.isdisjoint(found)


def test_no_labels_overlap_with_many_models_and_long_names() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    run = count(catalog.ids()[0]).workload
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
        texts = [t for t in (*axes.get_yticklabels(), *axes.texts) if t.get_text()]
        boxes = [text.get_window_extent() for text in texts if text.get_visible()]
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


def test_activations_are_executed() -> None:
    def at(name: str, x: float) -> tuple[float, float]:
        found, i = curve(name), round(4 / STEP) + round(x / STEP)
        assert found.x[i] == x
        return found.y[i], found.derivative[i]

    sigmoid = 1 / (1 + math.exp(-1.0))
    assert at("silu", 1.0) == pytest.approx((sigmoid, sigmoid * (2 - sigmoid)), abs=1e-12)
    phi = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    assert at("gelu", 1.0) == pytest.approx((phi, phi + density), abs=1e-12)
    assert at("relu2", 2.0) == (4.0, 4.0) and at("relu", -1.0) == (0.0, 0.0)
    figure = activations_figure([curve("relu"), curve("gelu")], "en")
    assert list(figure.axes[0].lines[0].get_ydata()) == curve("relu").y
    # the step of ReLU's derivative is not drawn as a slope
    assert sum(math.isnan(value) for value in figure.axes[1].lines[0].get_ydata()) == 1


def test_chinese_labels(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "llama-7b --quantity matmul_flops --lang zh"
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "CHINESE", ())
        assert "no installed font has Chinese" in ask.refused(f"plot {line} -o {tmp_path}/p.svg")
    try:
        pictures.check_chinese()
    except InputError as error:
        pytest.skip(f"needs a font with Chinese letters: {error}")
    # a warning of a missing letter would be an error here
    found = texts_of(ask, tmp_path / "p.svg", line)
    assert {"注意力", "前馈网络", "输出头", "占比 [%]", "批量 1, 序列长度 2,048"} <= found


@pytest.mark.parametrize("name", ["模型 \N{PILE OF POO}", "$x$ \\frac{", "<b> & </b>", "\u0378"])
def test_names_in_any_letters(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps({"name": name, **find_model("gpt2").spec.to_dict()}))
    texts_of(ask, tmp_path / "p.svg", str(file))
    monkeypatch.setattr(pictures, "CHINESE", ())
    ask(f"plot {file} -o {tmp_path / 'p.png'}")
