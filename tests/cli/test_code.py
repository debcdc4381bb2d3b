"""`metacount code`: what is printed is the code that runs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module

import pytest
from helpers.command_line import refused, run_json
from helpers.release import daily

from metacount.cli import main
from metacount.cli.code import Code, codes, find_codes

pytestmark = pytest.mark.usefixtures("eighty_columns")


@daily(9)
@pytest.mark.parametrize("code", codes(), ids=lambda code: f"{code.file}:{code.name}")
def test_it_is_the_code_that_runs(code: Code) -> None:
    module = import_module("metacount." + code.file.removesuffix(".py").replace("/", "."))
    thing = getattr(module, code.name)
    assert code.text == inspect.getsource(thing).rstrip("\n")
    assert inspect.getsourcelines(thing)[1] == code.line
    assert code.says and code.says == (inspect.getdoc(thing) or "").partition("\n")[0]


def test_a_name_or_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", "RMSNorm", "glu_params"]) == 0
    out = capsys.readouterr().out
    assert "metacount/modules/norm.py, line" in out and "\nclass RMSNorm(nn.Module):\n" in out
    assert "    return ffn_params(d_model, d_ff, gated=True, bias=bias)" in out
    names = [code["name"] for code in run_json(capsys, "code", "ffn")]
    assert names[:5] == ["activate", "gate", "scaled", "FeedForward", "GatedFeedForward"]
    assert {c.file for c in find_codes(["formulas.masks"])} == {"formulas/masks.py"}
    assert [c.file for c in find_codes(["modules.ffn.gated_d_ff"])] == ["modules/ffn.py"]
    assert len(find_codes(["norm", "RMSNorm"])) == len(find_codes(["norm"]))


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {code.name} " in out for code in codes())
    assert max(map(len, out.splitlines())) <= 80
    ast.parse("\n".join(code.text for code in codes()))


def test_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "code 'rmsnrm' is not known; did you mean rmsnorm" in refused(capsys, "code", "rmsnrm")
    assert "`metacount code` lists what there is" in refused(capsys, "code", "../../secret")


def test_it_imports_no_torch() -> None:
    program = "import sys; from metacount.cli import main; main(['code', 'mla'])\n"
    program += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
