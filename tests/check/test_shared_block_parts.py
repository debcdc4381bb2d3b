"""A model whose layers share blocks, in parts: those of `diff`, of `check`, rows of a tree."""

from __future__ import annotations

import pytest

from metacount import catalog
from metacount.check.parts import Letters, Part, flop_parts, parameter_parts
from metacount.diff.compared import QUANTITIES, parts
from metacount.formulas import model
from metacount.modules.build import build
from metacount.spec import Workload, legend
from metacount.textbook.count import count
from metacount.textbook.rows import Rows

RUN = Workload(seq_len=300)
MODELS = ("zamba2-1.2b", "zamba2-2.7b", "zamba2-7b")


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
def test_the_parts_of_check_add_up(name: str) -> None:
    spec = catalog.entry(name).spec()
    letters, symbols = Letters(spec, RUN), legend.sympy_symbols(t.name for t in legend.TERMS)
    sizes = {t.name: getattr(spec, t.name) for t in legend.MODEL_TERMS}
    sizes |= {"batch_size": 1, "seq_len": 300, "kv_len": 300}
    numbers = {symbols[name]: size for name, size in sizes.items() if size}

    def total(found: list[Part]) -> int:
        return int(sum(part.total for part in found).subs(numbers))

    assert total(parameter_parts(letters, active=False)) == model.params(spec)
    run = {"batch_size": 1, "seq_len": 300}
    assert total(flop_parts(letters, "matmul_flops")) == model.matmul_flops(spec, **run)
    decoded = model.decode_matmul_flops(spec, batch_size=1, kv_len=300)
    assert total(flop_parts(letters, "decode_matmul_flops")) == decoded


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
