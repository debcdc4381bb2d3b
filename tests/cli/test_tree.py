"""`metacount tree`: fits, folds what repeats, and every line adds up to the line above it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.miniatures import TINY
from helpers.release import daily, one_in

import metacount
from metacount import catalog
from metacount.cli import layout, main
from metacount.cli.tree import COLUMNS, Forms, forms_of, rows_of
from metacount.measure.node import Node, fold, walk
from metacount.measure.tree import module_tree, whole_tree
from metacount.modules.build import build
from metacount.spec import CHOICES, ModelSpec
from metacount.textbook.count import count
from metacount.textbook.rows import Rows

BUILT = [e.id for e in catalog.entries() if e.sizes is not None]
RIGHT = ("params", "one", "share", "flops", "active", "bytes")
WIDEST, LONGEST = 80, 60
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
    rows = []
    for line in lines[first + 1 : lines.index("", first)]:
        guide = re.match(r"[│├└─ ]*", line)
        assert guide is not None
        step = 3 if "─" in "".join(lines) else 2
        cells = {}
        start = 0
        for name, end in ends.items():
            found = re.search(r"(?:^|  )([\d,.<>]+(?: %)?|)$", line[start:end])
            cells[name] = found[1].strip() if found else ""
            start = end
        name = line[len(guide[0]) : min(ends.values())]
        rows.append({"level": len(guide[0]) // step, "name": name, **cells})
    return rows


def number(text: str) -> int:
    return int(text.replace(",", "")) if text else 0


def families(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each row that has rows below it, and these."""
    for i, row in enumerate(rows):
        inside = []
        for other in rows[i + 1 :]:
            if other["level"] <= row["level"]:
                break
            if other["level"] == row["level"] + 1:
                inside.append(other)
        if inside:
            yield row, inside


def check_sums(rows: list[dict[str, Any]]) -> None:
    """Every line is the sum of the lines right below it, column by column."""
    assert rows[0]["level"] == 0
    for row, inside in families(rows):
        for column in ("params", "active", "bytes"):
            if column in row:
                assert number(row[column]) == sum(number(one[column]) for one in inside), row
        if any(one.get("flops") for one in inside):
            assert number(row["flops"]) == sum(number(one["flops"]) for one in inside), row
        if "one" in row:
            parts = 0
            for part in inside:
                times = re.search(r"×(\d+)(?![^()]*\))", part["name"].rstrip("… "))
                alike = int(times[1]) if times and part["one"] else 1
                parts += number(part["one"] or part["params"]) * alike
            assert number(row["one"] or row["params"]) == parts, row


@daily(6)
@pytest.mark.parametrize("name", one_in(6, BUILT))
def test_every_tree_fits_and_adds_up(
    capsys: pytest.CaptureFixture[str], eighty_columns: None, name: str
) -> None:
    text = run(capsys, "tree", name)
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDEST
    assert len(lines) <= LONGER.get(name, LONGEST)
    rows = printed(text)
    check_sums(rows)
    assert (
        number(rows[0]["params"]) == count(catalog.entry(name).spec(), metacount.Request()).params
    )
    assert all(row["params"] for row in rows)


@daily(3)
@pytest.mark.parametrize("name", TYPES)
def test_periods_of_layers_fold(
    capsys: pytest.CaptureFixture[str], eighty_columns: None, name: str
) -> None:
    text = run(capsys, "tree", name)
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDEST
    assert len(lines) <= LONGEST
    check_sums(printed(text))


def test_a_period_says_what_it_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert "layers.(0-2 ×3, 3) ×12" in run(capsys, "tree", "type:qwen3_next")
    assert "layers.((0, 1) ×2, 4, 5, 6, 7) ×4" in run(capsys, "tree", "type:jamba")
    gemma = run(capsys, "tree", "gemma3-27b-text", "--columns", "params")
    assert "(0-4 ×5, 5) ×10" in gemma
    assert "60-61 ×2" in gemma
    assert "window 1024" in gemma


def test_a_sum_that_is_wrong_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(run(capsys, "tree", "mixtral-8x7b"))
    check_sums(rows)
    for column in ("params", "one"):
        for row in rows[2:]:
            if row[column]:
                broken = [{**one, column: "1"} if one is row else one for one in rows]
                with pytest.raises(AssertionError):
                    check_sums(broken)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "t5-small", "deepseek-v2", "gopher-280b"])
def test_measured_columns_add_up_to_the_count(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = run(
        capsys,
        "tree",
        name,
        "--columns",
        "params,active,flops,bytes",
        "--seq",
        "16",
        "--source-len" if name == "t5-small" else "--batch",
        "5" if name == "t5-small" else "2",
    )
    rows = printed(text)
    check_sums(rows)
    request = metacount.Request(
        seq_len=16,
        batch_size=1 if name == "t5-small" else 2,
        source_len=5 if name == "t5-small" else None,
    )
    figures = count(catalog.entry(name).spec(), request)
    assert {
        column: number(rows[0][column]) for column in ("params", "active", "flops", "bytes")
    } == {
        "params": figures.params,
        "active": figures.active_params,
        "flops": figures.matmul_flops,
        "bytes": figures.param_bytes,
    }


def test_columns_of_transformers_own_modules(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tree", "type:qwen3_next", "--seq", "8")
    rows = printed(run(capsys, *arguments, "--columns", "params,active,flops,bytes"))
    check_sums(rows)
    said = run_json(capsys, "count", "type:qwen3_next", "--seq", "8")
    assert number(rows[0]["active"]) == said["active_params"]
    assert number(rows[0]["flops"]) == said["matmul_flops"]
    assert any("(own products)" in row["name"] for row in rows)


@daily(12)
@pytest.mark.parametrize("name", one_in(9, BUILT))
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


def test_a_formula_is_printed_with_its_letters(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "tree", "mixtral-8x7b", "--columns", "shape,one,formula")
    experts = next(line for line in text.splitlines() if "gate_up_proj" in line)
    assert experts.endswith("[8, 28672, 4096]    939,524,096  2·E·d·m_e")
    assert re.search(r"\nm_e +d_ff_expert +14,336 +hidden width of one expert\n", text)
    data = run_json(capsys, "tree", "textbook-block", "--columns", "formula")
    (block,) = data["tree"]["children"][0]["children"][0]["children"]
    mlp = next(child for child in block["children"] if child["name"] == "mlp")
    assert mlp["formula"] == "2·d·m"


def test_queries_keys_and_values_are_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [
        row
        for row in printed(run(capsys, "tree", "textbook-block"))
        if row["name"].startswith("q_proj")
    ]
    assert row["params"] == "786,432"  # 3·512²
    rows = printed(run(capsys, "tree", "llama3-8b", "--only", "layers.0"))
    together = next(row for row in rows if row["name"].startswith("q_proj, k_proj, v_proj"))
    assert number(together["params"]) == (32 + 8 + 8) * 128 * 4096


def test_what_a_module_computes_stands_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    llama = run(capsys, "tree", "llama3-8b")
    for said in (
        "self_attn  GQA 32/8, RoPE",
        "mlp  silu(gate) · up",
        "input_layernorm  RMSNorm",
        "x + f(norm(x))",
    ):
        assert said in llama
    assert "norm(x + f(x))" in run(capsys, "tree", "bert-base")
    assert "MLA 128, latent 512 + 64" in run(capsys, "tree", "deepseek-v3", "--columns", "params")


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


def test_every_placement_is_here() -> None:
    assert {*BLOCKS, "hybrid"} == {*CHOICES["norm_placement"]}  # hybrid: two of these, by layer


def test_depth_cuts_and_still_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(run(capsys, "tree", "deepseek-v3", "--depth", "2"))
    assert max(row["level"] for row in rows) == 2
    check_sums(rows)
    assert len(printed(run(capsys, "tree", "deepseek-v3", "--depth", "0"))) == 1
    data = run_json(capsys, "tree", "deepseek-v3", "--depth", "1")
    assert all(not child["children"] for child in data["tree"]["children"])


def test_only_takes_a_path_or_the_end_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(capsys, "tree", "gpt2", "--only", "decoder.layers.3.mlp")
    assert whole.startswith("GPT-2 small  (gpt2): decoder.layers.3.mlp\n")
    assert run(capsys, "tree", "gpt2", "--only", "layers.3.mlp") == whole
    folded = run(capsys, "tree", "gpt2", "--only", "layers.0-11.mlp")
    assert folded == run(capsys, "tree", "gpt2", "--only", "layers.0.mlp")
    assert metacount.tree("gpt2", only="layers.3.mlp").root.params == 2 * 768 * 3072 + 3072 + 768


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "layers.0.self_atn"), "did you mean decoder.layers.0-11.self_attn"),
        (("--only", "mlp"), "mlp is the end of 12 paths; give one of them: decoder.layers.0.mlp, "),
        (("--only", "?"), "the model has no module ?; it has embed_tokens, decoder, lm_head"),
        (("--depth", "-1"), "--depth must be 0 or more: got -1"),
        (("--depth", "x"), "must be a whole number: got 'x'"),
        (("--columns", "shape,parms"), "'parms' is no column of a tree; did you mean params?"),
        (("--columns", "one,one"), "--columns: one is given twice"),
        (("--columns", ""), "choose some of shape, output, params"),
        (("--dtype", "fp8", "--columns", "bytes"), "dtype is not one that a module is built in"),
        (("--csv", "--json"), "not allowed with argument"),
    ],
)
def test_bad_requests_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, "tree", "gpt2", *arguments)


def test_what_multiplies_and_stores_nothing_has_no_formula(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run(capsys, "tree", "textbook-block", "--columns", "flops,formula")
    (core,) = (line for line in text.splitlines() if " core" in line)
    assert core.split()[-1].replace(",", "").isdecimal()  # the FLOPs, and nothing behind them


def test_a_formula_of_anothers_module_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no formula here" in refused(capsys, "tree", "type:gpt2", "--columns", "formula")


def test_exported_rows_are_the_printed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ",".join(name for name in COLUMNS if name not in ("flops", "formula"))
    arguments = ("tree", "mixtral-8x7b", "--columns", columns)
    exported = list(csv.DictReader(io.StringIO(run(capsys, *arguments, "--csv"))))
    rows = printed(run(capsys, *arguments))
    assert [int(row["params"]) for row in exported] == [number(row["params"]) for row in rows]
    experts = next(
        r for r in exported if r["module"] == "decoder.layers.0-31.mlp.experts.down_proj"
    )
    assert (experts["copies"], experts["shape"]) == ("32", "[8, 4096, 14336]")
    assert main(["tree", "mixtral-8x7b", "--latex", "--columns", "params,formula"]) == 0
    assert r"& $2 E d m_{e}$ \\" in capsys.readouterr().out


def test_colours_only_where_a_terminal_takes_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(capsys, "tree", "gpt2")
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    bright = run(capsys, "tree", "gpt2")
    assert f"\x1b[{layout.COLOURS['ffn']}mmlp\x1b[0m" in bright
    assert re.sub(r"\x1b\[\d+m", "", bright) == plain
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert run(capsys, "tree", "gpt2") == plain


def leaf(name: str, kind: int, params: int = 7) -> Node:
    made = module_tree(build(catalog.entry("textbook-block").spec()))
    return Node(
        **{
            **vars(made),
            "name": name,
            "path": name,
            "alike": kind,
            "params": params,
            "children": (),
            "tensors": {},
            "tied": {},
        }
    )


@pytest.mark.parametrize(
    ("kinds", "folded"),
    [
        ("aaaa", "0-3×4"),
        ("abab", "(0×1,1×1)×2"),
        ("aaabaaab", "(0-2×3,3×1)×2"),
        ("aaabaaabaa", "(0-2×3,3×1)×2,8-9×2"),
        ("xaabaab", "0×1,(1-2×2,3×1)×2"),
        ("ababcab" * 2, "((0×1,1×1)×2,4×1,5×1,6×1)×2"),
        ("abcd", "0×1,1×1,2×1,3×1"),
        ("aabbaabb", "(0-1×2,2-3×2)×2"),
        ("a", "0×1"),
    ],
)
def test_periods_are_found(kinds: str, folded: str) -> None:
    nodes = tuple(leaf(str(i), ord(kind), ord(kind)) for i, kind in enumerate(kinds))
    root = fold(Node(**{**vars(leaf("root", 0)), "children": nodes}))

    def said(node: Node) -> str:
        inside = f"({','.join(map(said, node.children))})" if node.children else node.name
        return f"{inside}×{node.count}"

    assert ",".join(map(said, root.children)) == folded
    assert sum(n.params * n.count for n in root.children) == sum(map(ord, kinds))


def test_layers_with_other_windows_are_not_alike() -> None:
    tree = module_tree(build(catalog.entry("gemma2-2b").spec()))
    kinds = [node.computes for node in walk(tree) if node.module == "Block"]
    assert len(set(kinds)) == 2
    assert forms_of(tree) == ((1, ""),)
