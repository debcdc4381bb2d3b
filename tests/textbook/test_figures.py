"""One list of figures: what `count` prints, what `formula` and `check` take, the README's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.command_line import run_json
from helpers.release import one_in

from metacount import catalog
from metacount.cli import main
from metacount.figures import COUNTED, FIGURES
from metacount.spec import Workload
from metacount.textbook.closed_form import COUNTS, FORWARD, closed_form
from metacount.textbook.count import count, run_sizes

RUN = Workload(batch_size=3, seq_len=17, dtype="fp32")
NAMES = [entry.id for entry in catalog.entries() if entry.sizes is not None]
# of models that only transformers knows; of configs that say how weights are packed
MEASURED = {f"{part}_params" for part in ("text", "text_active", "vision", "audio")}
MEASURED |= {"stored_bytes"}


def test_every_figure_of_a_count_is_a_quantity() -> None:
    assert set(COUNTED) - set(FORWARD) == MEASURED
    assert {name.partition(":")[0] for name in COUNTS} <= set(FIGURES)


def test_the_parts_of_each_quantity_add_up_to_the_figure() -> None:
    for name in NAMES:
        spec = catalog.entry(name).spec()
        run_ = Workload(**{**RUN.to_dict(), "source_len": 11 if spec.has_encoder else None})
        figures = count(spec, run_).to_dict()
        for quantity, parts in FORWARD.items():
            if figures.get(quantity, 0) is not None:
                default = figures["active_params"] if quantity == "least_active_params" else 0
                total = sum(parts(spec, run_sizes(spec, run_)).values())
                assert total == figures.get(quantity, default), (name, quantity)


@pytest.mark.parametrize("name", one_in(12, NAMES))
def test_letters_come_to_the_numbers(name: str) -> None:
    spec = catalog.entry(name).spec()
    for quantity in FORWARD:
        if quantity != "decode_matmul_flops" or spec.kind != "encoder":
            closed_form(spec, RUN if not spec.has_encoder else Workload(), quantity)


def test_by_hand() -> None:
    """GPT-2: 12 layers, 12 heads of 64, keys and values: 2·12·768 values of 4 bytes per token."""
    values = FORWARD["kv_cache_bytes_per_token"]
    spec = catalog.entry("gpt2").spec()
    assert sum(values(spec, run_sizes(spec, RUN)).values()) == 2 * 12 * 768 * 4
    assert closed_form(spec, RUN, "param_bytes").total == 124_439_808 * 4


def test_a_formula_of_each_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    right = "2*N*c*h_kv*h_d"
    data = run_json(capsys, "check", right, "llama3-8b", "--quantity", "kv_cache_bytes_per_token")
    assert data["verdict"] == "equal"
    assert main(("check", "N*d", "gpt2", "--quantity", "macs")) == 1
    text = capsys.readouterr().out
    assert "no mistakes are known by name of this quantity" in " ".join(text.split())


def test_the_table_of_the_readme() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", text.partition("## What the numbers mean")[2], re.M
    )
    assert len(rows) == 10
    assert rows == [(name, FIGURES[name].meaning) for name, _ in rows]
