"""A model whose layers share blocks, in parts: those of `diff`, rows of a tree."""

from __future__ import annotations

import pytest

from metacount import catalog
from metacount.diff.compared import QUANTITIES, parts
from metacount.modules.build import build
from metacount.spec import Workload
from metacount.textbook.count import count
from metacount.textbook.rows import Rows

RUN = Workload(seq_len=300)
MODELS = ("zamba2-1.2b", "zamba2-7b")


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_diff_add_up(name: str) -> None:
    spec = catalog.entry(name).spec()
    found, counted = parts(spec, RUN), count(spec, RUN).to_dict()
    for quantity in QUANTITIES:
        assert sum(part.values[quantity] for part in found) == counted[quantity]
    blocks, uses = (p for p in found if "shared" in p.name)
    assert blocks.copies == spec.n_shared_blocks
    assert uses.copies == sum(spec.decoder.shared_of(i) is not None for i in range(spec.n_layers))


@pytest.mark.parametrize("name", MODELS)
def test_the_rows_of_a_tree_are_the_modules_parameters(name: str) -> None:
    spec = catalog.entry(name).spec()
    rows, module = Rows(spec), build(spec)
    first = spec.mixer_pattern.index("S")
    for path, part in module.named_modules():
        if not any(True for _ in part.parameters()) or path == "lm_head":
            continue
        if path.startswith("decoder.layers.") and int(path.split(".")[2]) not in (0, first):
            continue
        assert rows.form(path) == sum({id(p): p.numel() for p in part.parameters()}.values()), path
    with pytest.raises(KeyError):
        Rows(catalog.entry("mamba2-130m").spec()).form("decoder.shared_blocks")
