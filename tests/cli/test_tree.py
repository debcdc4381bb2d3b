"""`metacount tree`: fits, folds what repeats, and every line adds up to the line above it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.command_line import Ask, number
from helpers.miniatures import TINY
from helpers.release import chosen, daily, one_in

import metacount
from metacount import catalog
from metacount.cli.report import COLOURS
from metacount.cli.tree import Forms, rows_of
from metacount.measure.node import fold, walk
from metacount.measure.tree import whole_tree
from metacount.modules.build import build
from metacount.spec import CHOICES, ModelSpec
from metacount.textbook.count import count
from metacount.textbook.rows import Rows

BUILT = [e.id for e in catalog.entries() if e.sizes is not None]
RIGHT = ("params", "one", "share", "flops", "active", "bytes")
LONGEST = 60
# a dense layer, two kinds of mixers and experts: nothing of it is there twice; six kinds of layers
LONGER = {"kimi-linear-48b-a3b": 62, "gemma-3n-e2b-text": 112, "gemma-3n-e4b-text": 112}
# What transformers builds: periods of layers, and a part that sees.
TYPES = ("type:jamba", "type:qwen3_next", "type:gemma3_text", "type:llama4")


def printed(text: str) -> list[dict[str, Any]]:
    """The lines of a printed tree: level, name, and what stands in each column of numbers."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("module "))
    ends = {
        word: lines[first].index(f" {word}") + 1 + len(word)
        for word in lines[first].split()[1:]
        if word in RIGHT
    }
    step = 3 if "─" in "".join(lines) else 2
    rows = []
    for line in lines[first + 1 : lines.index("", first)]:
        guide = re.match(r"[│├└─ ]*", line)
        assert guide is not None
        cells, start = {}, 0
        for name, end in ends.items():
            found = re.search(r"(?:^|  )([\d,.<>]+(?: %)?|)$", line[start:end])
            cells[name] = found[1].strip() if found else ""
            start = end
        name = line[len(guide[0]) : min(ends.values())]
        rows.append({"level": len(guide[0]) // step, "name": name, **cells})
    return rows


def families(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each row that has rows below it, and these."""
    for i, row in enumerate(rows):
        ends = (k for k, o in enumerate(rows[i + 1 :], i + 1) if o["level"] <= row["level"])
        below = rows[i + 1 : next(ends, None)]
        if inside := [other for other in below if other["level"] == row["level"] + 1]:
            yield row, inside


def check_sums(rows: list[dict[str, Any]]) -> None:
    """Every line is the sum of the lines right below it, column by column."""
    assert rows[0]["level"] == 0
    for row, inside in families(rows):
        for column in ("params", "active", "bytes", "flops"):
            parts = [number(part.get(column) or "0") for part in inside]
            if column in row and (column != "flops" or any(parts)):
                assert number(row[column]) == sum(parts), row
        if "one" in row:
            total = 0
            for part in inside:
                times = re.search(r"×(\d+)(?![^()]*\))", part["name"].rstrip("… "))
                alike = int(times[1]) if times and part["one"] else 1
                total += number(part["one"] or part["params"]) * alike
            assert number(row["one"] or row["params"]) == total, row


@daily(6)
@pytest.mark.parametrize("name", one_in(6, [*BUILT, *TYPES]))
def test_every_tree_fits_and_adds_up(ask: Ask, name: str) -> None:
    text = ask(f"tree {name}")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= LONGER.get(name, LONGEST)
    rows = printed(text)
    check_sums(rows)
    assert all(row["params"] for row in rows)
    if name in BUILT:
        spec = catalog.entry(name).spec()
        assert number(rows[0]["params"]) == count(spec, metacount.Request()).params


def test_a_sum_that_is_wrong_is_found(ask: Ask) -> None:
    rows = printed(ask("tree mixtral-8x7b", width=100))
    for column in ("params", "one"):
        for row in (row for row in rows[2:] if row[column]):
            broken = [{**one, column: "1"} if one is row else one for one in rows]
            with pytest.raises(AssertionError):
                check_sums(broken)


def test_a_period_says_what_it_is_made_of(ask: Ask) -> None:
    assert "layers.(0-2 ×3, 3) ×12" in ask("tree type:qwen3_next", width=100)
    assert "layers.((0, 1) ×2, 4, 5, 6, 7) ×4" in ask("tree type:jamba", width=100)


MEASURED = {
    "mixtral-8x7b": "--batch 2", "t5-small": "--source-len 5", "deepseek-v2": "--batch 2",
    "type:qwen3_next": "",
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_measured_columns_add_up_to_the_count(ask: Ask, name: str) -> None:
    run = f"{name} --seq 16 {MEASURED[name]}"
    rows = printed(ask(f"tree --columns params,active,flops,bytes {run}", width=100))
    check_sums(rows)
    figures = ask.json(f"count {run}")
    names = ("params", "active_params", "matmul_flops", "param_bytes")
    columns = ("params", "active", "flops", "bytes")
    assert [number(rows[0][column]) for column in columns] == [figures[n] for n in names]
    assert any("(own products)" in row["name"] for row in rows) == name.startswith("type:")


@daily(12)
@pytest.mark.parametrize("name", chosen(BUILT, lambda i: i % 9 == 0 or "zamba2" in BUILT[i]))
def test_every_formula_is_what_was_measured(name: str) -> None:
    spec = catalog.entry(name).spec()
    whole = whole_tree(build(spec))
    in_numbers, in_letters = Rows(spec), Forms(spec)
    for node in walk(whole):
        assert in_numbers.form(node.path) == node.params, node.path
    for row in rows_of(fold(whole)):
        if row.forms:
            assert in_letters.of(row.forms).value == (row.params if row.one is None else row.one)
        else:
            assert row.params == 0


BLOCKS = {
    "pre": "0.5·x + 0.25·f(norm(x))",
    "post": "norm(0.5·x + 0.25·f(x))",
    "deep": "norm(0.7825·x + 0.25·f(x))",  # of 3 layers: 0.5·(2·3)^(1/4)
    "sandwich": "0.5·x + 0.25·norm(f(norm(x)))",
    "post_branch": "0.5·x + 0.25·norm(f(x))",
    "stream": "0.5·norm(x) + 0.25·f(norm(x))",
    "parallel": "0.5·x + 0.25·attn(norm(x)) + 0.25·mlp(norm(x))",
    "parallel_two": "0.5·x + 0.25·attn(norm(x)) + 0.25·mlp(norm'(x))",
}


@pytest.mark.parametrize("placement", BLOCKS)
def test_what_a_block_computes(placement: str) -> None:
    changes = {"norm_placement": placement, "residual_weight": 0.5, "residual_scale": 0.25}
    tree = metacount.tree(ModelSpec.from_dict({**TINY, **changes}), only="layers.0")
    assert tree.root.computes == BLOCKS[placement]
    assert {*BLOCKS, "hybrid"} == {*CHOICES["norm_placement"]}  # hybrid: two of these, by layer


def test_depth_and_only_cut_and_still_add_up(ask: Ask) -> None:
    rows = printed(ask("tree deepseek-v3 --depth 2"))
    assert max(row["level"] for row in rows) == 2
    check_sums(rows)
    data = ask.json("tree deepseek-v3 --depth 1")
    assert all(not child["children"] for child in data["tree"]["children"])
    part = ask("tree gpt2 --only decoder.layers.3.mlp")
    assert part == ask("tree gpt2 --only layers.3.mlp")
    assert ask("tree gpt2 --only layers.0-11.mlp") == ask("tree gpt2 --only layers.0.mlp")
    assert metacount.tree("gpt2", only="layers.3.mlp").root.params == 2 * 768 * 3072 + 3072 + 768


@pytest.mark.parametrize("line", ["tree gpt2", "count llama-7b"])
def test_colours_only_where_a_terminal_takes_them(ask: Ask, line: str) -> None:
    plain, bright = ask(line), ask.on_a_terminal(line)
    assert "\x1b" not in plain
    assert (f"\x1b[{COLOURS['ffn']}mmlp\x1b[0m" if "tree" in line else "\x1b[1m") in bright
    bars = re.compile(r"  [█▏▎▍▌▋▊▉]+$", re.MULTILINE)  # a terminal has these, in no colour
    dim = ask.on_a_terminal(line, NO_COLOR="1")
    for text in (re.sub(r"\x1b\[\d+m", "", bright), dim, ask.on_a_terminal(line, TERM="dumb")):
        assert bars.sub("", text) == plain
