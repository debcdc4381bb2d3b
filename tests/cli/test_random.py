"""Command lines drawn at random: each ends with an answer, or with one line that says why not."""

from __future__ import annotations

import contextlib
import io

from helpers.random_models import accepted, changes
from helpers.release import ONLY
from helpers.structures import first_of_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.cli import main
from metacount.textbook.closed_form import COUNTS

MESHES = ["dp=2", "tp=2", "dp=2,pp=2", "dp=2,tp=2", "dp=4,ep=2", "cp=2"]
FORMULAS = ["12*n_layers*d_model**2", "2*N*d", "V*d + N*(4*d**2)", "6*N*d*S"]
# what may follow a model's name; each command is asked with one value of each list
ASKED: dict[str, list[list[list[str]]]] = {
    "count": [[[], ["--json"]], [["--seq", n] for n in ("1", "7", "300")]],
    "formula": [
        [["--quantity", name] for name in COUNTS],
        [[], ["--latex"], ["--python"], ["--json"]],
    ],
    "tree": [[[], ["--json"], ["--depth", "2"]]],
    "flow": [[[], ["--json"]], [["--seq", "1"], ["--seq", "64"]]],
    "train": [
        [["--reference", "--set", "n_layers=2"], ["--formula"]],
        [["--optimizer", name] for name in ("adamw", "muon", "adafactor", "sgd")],
        [["--checkpointing", name] for name in ("none", "full", "selective")],
        [["--attention", name] for name in ("eager", "sdpa", "flash")],
        [["--seq", "7"], ["--seq", "64", "--json"]],
    ],
    "shard": [[["--formula", "--mesh", mesh] for mesh in MESHES], [[], ["--train"], ["--json"]]],
    "fit": [[[], ["--json"]]],
    "verify": [[["--set", "n_layers=2"]], [["--seq", n] for n in ("1", "7", "64")]],
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(first_of_each()))
    spec = entry(name).spec()
    fields = draw(accepted(spec, tries=6) if draw(st.integers(0, 4)) else changes(spec))
    line = [name, *(word for field in fields for word in ("--set", f"{field}={fields[field]}"))]
    command = draw(st.sampled_from([*ASKED, "diff", "check"]))
    if command == "diff":
        return [command, name, draw(st.sampled_from(first_of_each()))]
    if command == "check":
        return [command, draw(st.sampled_from(FORMULAS)), *line]
    for words in ASKED[command]:
        line += draw(st.sampled_from(words))
    return [command, *line]


def ended(line: list[str]) -> tuple[int, str, str]:
    """The exit code of a command line, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    return code, out.getvalue(), err.getvalue()


@ONLY  # a second an example
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=command_lines())
def test_any_command_line(line: list[str]) -> None:
    code, out, err = ended(line)
    if code == 2:
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("metacount: error: ")
    else:
        assert code == 0 or (code, line[0]) == (1, "check")  # a formula that is wrong
        assert out
        assert "Traceback" not in err
