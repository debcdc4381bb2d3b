"""What programs read: tables by `--markdown`, `--csv`, `--latex`, and JSON in one envelope."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask, assert_readable
from helpers.release import daily

from metacount.catalog import entries
from metacount.cli import COMMANDS
from metacount.cli.options import options_of
from metacount.cli.report import LATEX, Formula, Grid, Share, comma_separated, latex, markdown
from metacount.teaching.claims import claims

TABLES = """
count mixtral-8x7b | count llama-7b bert-base | count llama-7b --conventions
models llama | models --fields | diff llama-7b mixtral-8x7b | code norm | flow gpt2 --formula
tree gpt2 --columns shape,params,share,formula | claims mixtral-total block-512-layernorm
formula gpt2 --set n_layers=2 | flow gpt2 --set n_layers=2 --seq 8
check '2*V*d + d + N*(2*d + 2*d*h*h_d + 2*d*h_kv*h_d + 3*d*m)' llama-7b
bench norm --device cpu --list | train gpt2 --formula | audit nanochat-training --model llama-7b
audit --mfu llama-7b --peak 900 --tokens-per-second 4000
"""
TRICKY = 'a|b & 5 % of $x_1 #2 ~^ {y} \\ "z",\nx² <tag> `c` *d*'
# in LaTeX these steer, unless a backslash stands before them
STEERING = re.compile(r"(?<!\\)[%#~^_$&]")


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in re.split(r"[|\n]", text.strip())]


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
    for line in (line for line in body if line != r"\hline"):
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
@pytest.mark.parametrize("line", lines_of(TABLES))
def test_three_formats_hold_the_same_table(ask: Ask, line: str) -> None:
    in_csv = list(csv.reader(io.StringIO(ask(f"{line} --csv"))))
    in_markdown = rows_of_markdown(ask(f"{line} --markdown"))
    # a formula's --latex is of mathematics
    in_latex = in_csv if "formula gpt2" in line else rows_of_latex(ask(f"{line} --latex"))
    del in_markdown[1]
    assert {len(row) for row in in_csv} == {len(in_csv[0])}
    assert len(in_csv) == len(in_markdown) == len(in_latex) > 1
    for plain, marked, tex in zip(in_csv, in_markdown, in_latex, strict=True):
        for value, cell, cell_of_tex in zip(plain, marked, tex, strict=True):
            if value.isdecimal():
                assert cell.replace(",", "") == cell_of_tex.replace(r"\,", "").strip("$") == value


def test_what_is_refuted_is_a_table_of_what_is_off(ask: Ask) -> None:
    code, out, _ = ask.all("check 12*N*d^2 gpt2 --csv")
    heads, formula, model, *terms = csv.reader(io.StringIO(out))
    assert (code, heads, formula[1:]) == (1, ["what", "form", "value"], ["12·N·d²", "84934656"])
    assert model[2] == "124439808"
    assert sum(int(term[2]) for term in terms) == 84_934_656 - 124_439_808


def test_every_form_of_a_count_has_the_figures_of_its_json(ask: Ask) -> None:
    """Of each model of the catalog, whatever is not 0: in CSV, in text, in a comparison."""
    names = {"by_role": "", "workload": "", "buffers": "buffer ", "checkpoint_parts": "checkpoint "}
    for model in (each for each in entries() if each.sizes is not None):
        prefix = "--prefix 3" if model.spec().kind == "prefix-decoder" else ""
        line = f"{model.id} --seq 7 {prefix}"
        said = ask.json(f"count {line}")
        figures = {k: n for k, n in said.items() if type(n) is int and k != "schema"}
        wanted = dict(figures)
        for group, before in names.items():
            wanted |= {before + n: v for n, v in said.get(group, {}).items() if type(v) is int}
        assert sum(said["by_role"].values()) == said["params"]
        assert sum(said["active_by_role"].values()) == said["active_params"]
        for role, n in said["active_by_role"].items():
            if n != said["by_role"][role]:
                wanted[f"active {role}"] = n
        rows = dict(list(csv.reader(io.StringIO(ask(f"count {line} --csv"))))[1:])
        given = {name: int(value) for name, value in rows.items() if value.isdecimal()}
        assert {k: n for k, n in given.items() if n} == {k: n for k, n in wanted.items() if n}
        lines = {(n, f"{value:,}") for n, value in {**figures, **said["buffers"]}.items() if value}
        for text in (ask(f"count {line}"), ask(f"count {model.id} {line}", width=100)):
            missing = lines - {tuple(line.split()[:2]) for line in text.splitlines()}
            assert not missing, model.id
        verbose = ask(f"count {line} --verbose").splitlines()
        assert_readable(verbose, 80)
        printed = {(n, f"{value:,}") for n, value in said["by_role"].items() if value}
        assert printed <= {tuple(line.split()[:2]) for line in verbose}, model.id


def test_every_sign_is_kept_from_steering() -> None:
    table = Grid(heads=("a_b", "c"), rows=((TRICKY, 7), (None, Share(part=1, whole=4))), align="<>")
    in_csv = list(csv.reader(io.StringIO(comma_separated(table))))
    assert in_csv == [["a_b", "c"], [TRICKY, "7"], ["", "0.25"]]
    rows = rows_of_markdown(markdown(table))
    kept = " ".join(TRICKY.split()).replace("<", "&lt;").replace(">", "&gt;")
    assert rows[2:] == [[kept.replace("& ", "&amp; "), "7"], ["-", "25.0 %"]]
    assert len(rows_of_latex(latex(table))) == 3
    prose = Grid(heads=("a", "what it is"), rows=((1, "x"),), align=">", prose=True)
    assert rows_of_latex(latex(prose)) == [["a", "what it is"], ["1", "x"]]
    assert rows_of_markdown(markdown(prose))[1] == ["---:", ":---"]


def test_a_broken_table_is_found() -> None:
    table = latex(Grid(heads=("a", "b"), rows=((1, 2),), align=">>"))
    for good, bad in (("1 & 2", "1 2"), ("1 &", "5% &"), ("1 &", "x_1 &"), ("1 &", "{1 &")):
        with pytest.raises(AssertionError):
            rows_of_latex(table.replace(good, bad))


def test_latex_mathematics_is_read_by_matplotlib_and_no_sign_is_missing() -> None:
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
    texts = [c.statement for c in claims()] + [e.name for e in entries()]
    assert {sign for sign in "".join(texts) if ord(sign) > 255} <= LATEX.keys()


# ---- JSON

# A command line of each command that has --json; a list has the envelope around each of its rows.
LINES = """
models | models --fields | claims mixtral-total | code | audit | plot --caches llama-7b
survey gpt2 --kind causal-LM --params-only | count gpt2 --columns params | count deepseek-v3
count gpt2 t5-11b | count llama-7b --conventions | count type:mamba --seq 8 | formula deepseek-v3
formula type:gpt2 --from-code | tree deepseek-v3 | flow gpt2 --seq 8 | diff gpt2 llama-7b
flow gpt2 --formula --set n_layers=2 | plot gpt2 | train gpt2 --formula --set n_layers=2
train gpt2 --seq 8 --set n_layers=2 | shard gpt2 --mesh dp=2 --formula --set n_layers=2
fit gpt2 --set n_layers=2 | check 12*N*d^2 gpt2 --set n_layers=2 | verify llama-7b --seq 8
lesson norm | bench norm --device cpu --tokens 2 --list
"""
ENVELOPE = {"metacount", "schema", "model", "changes", "workload", "not_counted", "notes"}


def pairs(value: Any, path: str = "") -> list[str]:
    """Where a list holds nothing but (name, value): what has names should be an object."""
    if isinstance(value, dict):
        return [each for key, item in value.items() for each in pairs(item, f"{path}.{key}")]
    if not isinstance(value, list) or not value:
        return []
    named = (isinstance(i, list) and len(i) == 2 and isinstance(i[0], str) for i in value)
    inner = [each for i, item in enumerate(value) for each in pairs(item, f"{path}[{i}]")]
    return [path, *inner] if all(named) else inner


@daily(9)
@pytest.mark.parametrize("line", lines_of(LINES))
def test_one_envelope_around_every_answer(ask: Ask, line: str) -> None:
    found = json.loads(ask.all(f"{line} --json")[1])
    assert pairs(found) == []
    for answer in found if isinstance(found, list) else [found]:
        assert answer.keys() >= ENVELOPE
        assert list(answer)[:2] == ["metacount", "schema"]
        for name in ("not_counted", "notes"):
            assert all(isinstance(text, str) for text in answer[name])
        assert isinstance(answer["workload"], dict | None)
        assert answer["changes"] == ({"n_layers": 2} if "n_layers=2" in line else {})


def test_every_command_with_json_is_there_and_pairs_would_be_found() -> None:
    tried = {line.split()[0] for line in lines_of(LINES)}
    have = (n for n in COMMANDS if any("--json" in o.names for o in options_of(n)))
    assert tried == {*have}
    assert pairs({"a": [{"spec": [["kind", "decoder"], ["d_model", 7]]}]}) == [".a[0].spec"]


# ---- one word means one thing in every command that has it


def test_the_file_of_an_answer_is_output_and_the_batch_of_all_ranks_global(
    ask: Ask, tmp_path: Path
) -> None:
    picture = tmp_path / "mesh.svg"
    mesh = "shard gpt2 --mesh dp=2 --formula"
    ask(f"{mesh} --output {picture}")
    assert "<svg" in picture.read_text("utf-8")
    found = ask.json(f"{mesh} --global-batch 4")
    assert found == ask.json(f"{mesh} --batch 4") and found["workload"]["batch_size"] == 4
