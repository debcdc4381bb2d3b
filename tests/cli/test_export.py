"""Tables for other programs: `--markdown`, `--csv`, `--latex` of every command that has a table."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from helpers.command_line import refused, run
from helpers.release import daily

from metacount.catalog import entries
from metacount.cli import main
from metacount.cli.report import LATEX, Formula, Grid, Share, comma_separated, latex, markdown
from metacount.teaching.claims import claims

COMMANDS = [
    ("count", "mixtral-8x7b"),
    ("count", "llama-7b", "bert-base"),
    ("models", "llama"),
    ("models", "--fields"),
    ("diff", "llama-7b", "mixtral-8x7b"),
    ("tree", "gpt2", "--columns", "shape,params,share,formula"),
    ("claims", "mixtral-total", "block-512-layernorm"),
    ("claims", "mixtral-total"),
    ("formula", "gpt2", "--set", "n_layers=2"),
    ("flow", "gpt2", "--formula"),
    ("flow", "gpt2", "--set", "n_layers=2", "--seq", "8"),
    ("code", "norm"),
    ("count", "llama-7b", "--conventions"),
    ("check", "2*V*d + d + N*(2*d + 2*d*h*h_d + 2*d*h_kv*h_d + 3*d*m)", "llama-7b"),
    ("bench", "norm", "--device", "cpu", "--list"),
    ("audit", "nanochat-kv-cache"),
    ("audit", "nanochat-training", "--model", "llama-7b"),
    ("audit", "--mfu", "llama-7b", "--peak", "900", "--tokens-per-second", "4000"),
]
TRICKY = 'a|b & 5 % of $x_1 #2 ~^ {y} \\ "z",\nx² <tag> `c` *d*'
# in LaTeX these steer, unless a backslash stands before them
STEERING = re.compile(r"(?<!\\)[%#~^_$&]")


def rows_of_markdown(text: str) -> list[list[str]]:
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
    assert set("".join(lines[1])) <= set(" :-")
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line] for line in lines]


def rows_of_latex(text: str) -> list[list[str]]:
    """The cells of a `tabular`, which has as many in each row as its head says."""
    first, *body, last = text.splitlines()
    opened = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", first)
    assert opened and last == r"\end{tabular}"
    assert [i for i, line in enumerate(body) if line == r"\hline"] == [0, 2, len(body) - 1]
    rows = []
    for line in body:
        if line == r"\hline":
            continue
        assert line.endswith(r" \\")
        cells = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
        assert len(cells) == len(opened[1])
        for cell in cells:
            outside = re.sub(r"\$[^$]*\$", "", cell.replace(r"\$", ""))
            assert not STEERING.search(outside), cell
            depth = 0
            for brace in re.findall(r"(?<!\\)[{}]", cell):
                depth += 1 if brace == "{" else -1
                assert depth >= 0
            assert depth == 0
        rows.append([cell.strip() for cell in cells])
    return rows


@daily(3)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_three_formats_hold_the_same_table(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    in_csv = list(csv.reader(io.StringIO(run(capsys, *arguments, "--csv"))))
    in_markdown = rows_of_markdown(run(capsys, *arguments, "--markdown"))
    if arguments[0] == "formula":  # its --latex is of mathematics
        in_latex = in_csv
    else:
        in_latex = rows_of_latex(run(capsys, *arguments, "--latex"))
    del in_markdown[1]
    assert {len(row) for row in in_csv} == {len(in_csv[0])}
    assert len(in_csv) == len(in_markdown) == len(in_latex) > 1
    for plain, marked, tex in zip(in_csv, in_markdown, in_latex, strict=True):
        for value, cell, cell_of_tex in zip(plain, marked, tex, strict=True):
            if value.isdecimal():
                assert cell.replace(",", "") == cell_of_tex.replace(r"\,", "").strip("$") == value


def test_what_is_refuted_is_a_table_of_what_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "12*N*d^2", "gpt2", "--csv"]) == 1
    heads, formula, model, *terms = csv.reader(io.StringIO(capsys.readouterr().out))
    assert (heads, formula) == (["what", "form", "value"], ["formula", "12·N·d²", "84934656"])
    assert model[2] == "124439808"
    assert sum(int(term[2]) for term in terms) == 84_934_656 - 124_439_808
    assert "--csv belongs to --list" in refused(capsys, "bench", "norm", "--csv")


def test_count_exports_what_its_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(run(capsys, "count", "mixtral-8x7b", "llama-7b", "--json"))
    table = csv.reader(io.StringIO(run(capsys, "count", "mixtral-8x7b", "llama-7b", "--csv")))
    heads, *rows = table
    assert heads == ["figure", "mixtral-8x7b", "llama-7b"]
    found = {name: values for name, *values in rows}
    for name, values in found.items():
        role = name.removeprefix("active ")
        for value, model in zip(values, said, strict=True):
            by_role = model["by_role" if role == name else "active_by_role"]
            assert value == str({**by_role, **model["workload"], **model}[role])
    assert {"moe", "active moe", "seq_len", "params", "kv_cache_bytes"} <= found.keys()


def test_every_form_of_a_count_has_the_figures_of_its_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of each model of the catalog, whatever is not 0: in CSV, in text, in a comparison."""
    names = {"by_role": "", "workload": "", "buffers": "buffer ", "checkpoint_parts": "checkpoint "}
    for model in (entry for entry in entries() if entry.sizes is not None):
        prefix = ("--prefix", "3") if model.spec().kind == "prefix-decoder" else ()
        arguments = (model.id, "--seq", "7", *prefix)
        said = json.loads(run(capsys, "count", *arguments, "--json"))
        figures = {k: n for k, n in said.items() if type(n) is int and k != "schema"}
        wanted = dict(figures)
        for group, before in names.items():
            wanted |= {before + n: v for n, v in said.get(group, {}).items() if type(v) is int}
        wanted |= {f"active {role}": n for role, n in said["active_by_role"].items()
                   if n != said["by_role"][role]}  # fmt: skip
        rows = dict(list(csv.reader(io.StringIO(run(capsys, "count", *arguments, "--csv"))))[1:])
        given = {name: int(value) for name, value in rows.items() if value.isdecimal()}
        assert {k: n for k, n in given.items() if n} == {k: n for k, n in wanted.items() if n}
        lines = {(n, f"{value:,}") for n, value in {**figures, **said["buffers"]}.items() if value}
        for text in (run(capsys, "count", *arguments), run(capsys, "count", model.id, *arguments)):
            missing = lines - {tuple(line.split()[:2]) for line in text.splitlines()}
            assert not missing, model.id


def test_every_sign_is_kept_from_steering() -> None:
    table = Grid(heads=("a_b", "c"), rows=((TRICKY, 7), (None, Share(part=1, whole=4))), align="<>")
    assert list(csv.reader(io.StringIO(comma_separated(table)))) == [
        ["a_b", "c"],
        [TRICKY, "7"],
        ["", "0.25"],
    ]
    rows = rows_of_markdown(markdown(table))
    kept = " ".join(TRICKY.split()).replace("<", "&lt;").replace(">", "&gt;")
    assert rows[2] == [kept.replace("& ", "&amp; "), "7"]
    assert rows[3] == ["-", "25.0 %"]
    assert len(rows_of_latex(latex(table))) == 3


def test_a_broken_table_is_found() -> None:
    table = latex(Grid(heads=("a", "b"), rows=((1, 2),), align=">>"))
    for good, bad in (("1 & 2", "1 2"), ("1 &", "5% &"), ("1 &", "x_1 &"), ("1 &", "{1 &")):
        with pytest.raises(AssertionError):
            rows_of_latex(table.replace(good, bad))


def test_prose_is_a_column_of_a_table() -> None:
    table = Grid(heads=("a", "what it is"), rows=((1, "x"),), align=">", prose=True)
    assert rows_of_latex(latex(table)) == [["a", "what it is"], ["1", "x"]]
    assert rows_of_markdown(markdown(table))[1] == ["---:", ":---"]


def test_latex_mathematics_is_read_by_matplotlib() -> None:
    mathtext = pytest.importorskip("matplotlib.mathtext", reason="matplotlib is not installed")
    parser = mathtext.MathTextParser("agg")
    for written in LATEX.values():
        if written.startswith("$"):
            parser.parse(written.replace(r"\sqrt{}", r"\sqrt{x}"))  # a bare root is LaTeX's own
    with pytest.raises(ValueError, match="nosuchcommand"):
        parser.parse(r"$\nosuchcommand$")
    cell = Formula(text="2·d", latex=r"2 d \left(h + h_{kv}\right)")
    (_, (found,)) = rows_of_latex(latex(Grid(heads=("f",), rows=((cell,),), align="<")))
    parser.parse(found)


def test_latex_has_every_sign_that_our_texts_use() -> None:
    texts = [text for c in claims() for text in (c.statement,)] + [e.name for e in entries()]
    strange = {sign for sign in "".join(texts) if ord(sign) > 255} - LATEX.keys()
    assert strange == set()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("count", "gpt2", "--json", "--csv"), "--csv: not allowed with argument --json"),
        (("models", "--markdown", "--latex"), "--latex: not allowed with argument --markdown"),
        (("count", "--folder", ".", "--latex"), "--latex does not go with --folder"),
    ],
)
def test_one_format_at_a_time(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *arguments)
