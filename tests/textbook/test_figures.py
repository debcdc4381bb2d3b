"""One list of figures: what `count` prints, what `formula` and `check` take, the README's table."""

from __future__ import annotations

import re
from pathlib import Path

from metacount import catalog
from metacount.figures import COUNTED, FIGURES
from metacount.spec import Workload
from metacount.textbook.closed_form import COUNTS, FORWARD
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


def test_the_table_of_the_readme() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", text.partition("## What the numbers mean")[2], re.M
    )
    assert len(rows) == 10
    assert rows == [(name, FIGURES[name].meaning) for name, _ in rows]
