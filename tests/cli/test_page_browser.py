"""The page in a real browser: its numbers, messages and proofs are those of `count`, everywhere."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import in_a_group

from metacount import Workload, count, units
from metacount import page as page_of
from metacount.algebra import recorded
from metacount.cli.page import page_html
from metacount.errors import SpecError
from metacount.resolve import find_model
from metacount.spec import ModelSpec, Request
from metacount.textbook.count import QUANTITIES, run_sizes
from metacount.textbook.proven import own_type, proven, sizes_text
from metacount.textbook.worksheet import RUN, Worksheet, worksheet

# A decoder with one head for each key, GQA, experts, latent attention, an encoder-decoder, windows
# that slide, configs of types of their own, with chunks, with a quantity that was refuted and one
# whose code runs more; and (`make release`) an encoder, positions that run out, layers in pairs.
MODELS = (
    "llama-7b",
    "llama3-8b",
    "deepseek-v3",
    "t5-11b",
    "gemma3-27b-text",
    "switch-base-8",
    "type:llama4_text",
    "type:gpt_neo",
)
MORE = ("mixtral-8x7b", "bert-base", "gpt2", "longcat-flash", "falcon-h1-7b", "mamba2-1.3b")
MORE += ("mamba-2.8b", "qwen3-next-80b-a3b", "zamba2-1.2b", "kimi-linear-48b-a3b")
EACH = 6

EVALUATE = """
const asked = ASKED;
return models.map((model, i) => asked[i].map((texts) => {
  const found = evaluate(model, texts);
  if (found.problem) return { problem: found.problem };
  const figures = {};
  for (const quantity of model.quantities) {
    const figure = found.figures[quantity.name];
    for (const one of Object.values(figure ? figure.said : {})) {
      one.domain = domain(model, one.where, found.v);
    }
    figures[quantity.name] = figure && { total: figure.total, said: figure.said,
      parts: Object.fromEntries(quantity.parts.map((part, k) => [part.role, figure.parts[k]])) };
  }
  return { figures, warnings: found.warnings };
}));
"""


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECONDS = 60
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
FOUND = re.compile(r'<pre id="found-by-the-test">(.*?)</pre>', re.DOTALL)


def program() -> str:
    """The browser's program; without one the test is skipped, and says so."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    return found


def dom(page: Path, fragment: str = "") -> str:
    """The page's elements after its script ran."""
    with tempfile.TemporaryDirectory() as profile:
        address = f"{page.resolve().as_uri()}{fragment}"
        command = [program(), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", address]
        code, written = in_a_group(command, SECONDS)
    assert code == 0, written
    return written


def evaluated(page: str, script: str, folder: Path, fragment: str = "") -> Any:
    """What `script`, the body of a function, returns in a page: as JSON, in one start of a browser.

    The page's own policy would not let a second script run: it is taken out.
    """
    bare, n = POLICY.subn("", page)
    assert n == 1
    added = (
        "<script>(() => {const pre = document.createElement('pre'); pre.id = 'found-by-the-test';"
        "let found; try { found = (() => {" + script + "})(); } catch (e) "
        "{ found = {error: String(e.stack)}; }"
        "pre.textContent = JSON.stringify(found, (_, x) => typeof x === 'bigint' ? `${x}` : x);"
        "document.body.append(pre);})()</script></body>"
    )
    file = folder / "tested.html"
    file.write_text(bare.replace("</body>", added), encoding="utf-8")
    found = FOUND.search(dom(file, fragment))
    assert found is not None, "the page's script did not run to its end"
    return json.loads(unescape(found[1]))


def drawn(sheet: Worksheet, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """`n` settings that Python takes and half as many that it refuses, each with what it says."""
    draw = random.Random(f"{sheet.model.id} {seed}")
    taken: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for _ in range(200 * n):
        texts = setting(sheet, draw)
        said = python_says(sheet, texts)
        if "problem" not in said and len(taken) < n:
            taken.append({"texts": texts, "said": said})
        elif "problem" in said and len(refused) < n // 2:
            refused.append({"texts": texts, "said": said})
        if len(taken) == n and len(refused) == n // 2:
            return [*taken, *refused]
    raise AssertionError(f"{sheet.model.id}: {len(taken)} settings taken, {len(refused)} refused")


def setting(sheet: Worksheet, draw: random.Random) -> dict[str, str]:
    """Texts of the inputs: some sizes as they are, some others, some of them at their limits."""
    numbers = {size.term.name: size.number for size in sheet.sizes}
    for size in draw.sample(sheet.sizes, draw.randint(0, min(6, len(sheet.sizes)))):
        n = size.number
        near = draw.choice((n + 1, n - 1, 2 * n, 3 * n, n // 2, n // 4))
        wide = draw.choice((1, 2, 3, 5, 7, 12, draw.randint(1, 10**4), size.most, size.most + 1, 0))
        number = draw.choice((near, near, wide))
        # below the least is another structure, of which a page has no form
        numbers[size.term.name] = max(number, size.least if size.term.name != "d_model" else 0)
    dtype = draw.choice(("bf16", "bf16", "fp32", "fp8"))
    return {**{name: str(number) for name, number in numbers.items()}, "dtype": dtype}


def python_says(sheet: Worksheet, texts: dict[str, str]) -> dict[str, Any]:
    """What `count` and the record of proofs say at a setting; the start of the error's text."""
    numbers = {name: int(text) for name, text in texts.items() if name != "dtype"}
    start = {size.term.name: size.number for size in sheet.sizes}
    sizes = {name: number for name, number in numbers.items() if name not in RUN}
    same = all(start[name] == number for name, number in sizes.items())
    try:
        spec = ModelSpec.from_dict({**sheet.model.spec.to_dict(), **sizes})
        lengths = {name: number for name, number in numbers.items() if name in RUN}
        run = Workload(**{**sheet.workload.to_dict(), **lengths, "dtype": texts["dtype"]})
        result = count(spec, run)
    except SpecError as error:
        return {"problem": f"{error.field} {error.rule}: got {error.value}"}
    source = sheet.model.source
    config = source.config if source is not None and same else None
    proof = proven(spec, result, config, own_type=own_type(sheet.model))
    said = {
        side: against
        for side, against in (
            ("transformers", proof and proof.code),
            ("reference", proof and proof.ours),
        )
        if against
    }
    # a model without an encoder has no S_e, whatever a workload says
    small = [
        text
        for text in (proof.small if proof else ())
        if spec.has_encoder or not text.startswith("S_e ")
    ]
    totals = result.to_dict()
    figures: dict[str, Any] = {}
    for quantity, parts in QUANTITIES.items():
        if totals[quantity] is None:
            figures[quantity] = None
            continue
        by_part = parts(spec, run_sizes(spec, run))
        assert sum(by_part.values()) == totals[quantity]
        figures[quantity] = {
            "total": str(totals[quantity]),
            "parts": {part: str(value) for part, value in by_part.items()},
            "said": {
                side: {
                    "name": against.name,
                    "verdict": one.verdict,
                    "text": one.text,
                    "where": list(one.where),
                    "domain": sizes_text(one.where, small),
                }
                for side, against in said.items()
                for one in against.verdicts
                if one.quantity == quantity
            },
        }
    return {"figures": figures, "warnings": list(result.warnings)}


def differences(page: Any, asked: list[dict[str, Any]]) -> list[str]:
    """Where a page says something else than Python; no rounding, no tolerance."""
    found = []
    for one, (texts, said) in zip(page, ((a["texts"], a["said"]) for a in asked), strict=True):
        if "problem" in said:
            # a remedy that is a list of numbers is left out by the page
            if not one.get("problem", "").startswith(said["problem"]):
                found.append(f"{texts}: {one.get('problem')} is not {said['problem']}")
            continue
        if "problem" in one:
            found.append(f"{texts}: refused: {one['problem']}")
            continue
        if one["warnings"] != said["warnings"]:
            found.append(f"{texts}: {one['warnings']} is not {said['warnings']}")
        for quantity, right in said["figures"].items():
            mine = one["figures"][quantity]
            if right is None or mine is None:
                found += [] if mine is right else [f"{texts}: {quantity} {mine} is not {right}"]
                continue
            parts = {part: value for part, value in right["parts"].items() if part in mine["parts"]}
            absent = [
                part
                for part, value in right["parts"].items()
                if part not in mine["parts"] and value != "0"
            ]
            if mine["total"] != right["total"] or mine["parts"] != parts or absent:
                found.append(f"{texts}: {quantity} {mine['total']} is not {right['total']}")
            if mine["said"] != right["said"]:
                found.append(f"{texts}: {quantity} {mine['said']} is not {right['said']}")
    return found


@pytest.fixture(scope="module")
def sheets() -> list[Worksheet]:
    return [worksheet(find_model(name), Request()) for name in MODELS]


@pytest.fixture(scope="module")
def page(sheets: list[Worksheet]) -> str:
    return page_html(sheets)


@pytest.fixture(scope="module")
def asked(sheets: list[Worksheet]) -> list[list[dict[str, Any]]]:
    return [drawn(sheet, EACH) for sheet in sheets]


def evaluated_at(page: str, asked: list[list[dict[str, Any]]], folder: Path) -> Any:
    texts = json.dumps([[one["texts"] for one in those] for those in asked])
    return evaluated(page, EVALUATE.replace("ASKED", texts), folder)


@pytest.mark.release
def test_random_settings_of_more_models_are_counted_as_count_does(tmp_path: Path) -> None:
    sheets = [worksheet(find_model(name), Request()) for name in MORE]
    asked = [drawn(sheet, EACH) for sheet in sheets]
    found = evaluated_at(page_html(sheets), asked, tmp_path)
    for model, mine, those in zip(MORE, found, asked, strict=True):
        assert differences(mine, those) == [], model


def test_random_settings_are_counted_as_count_does(
    page: str, asked: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    found = evaluated_at(page, asked, tmp_path)
    assert "error" not in found, found
    for model, mine, those in zip(MODELS, found, asked, strict=True):
        assert differences(mine, those) == [], model
    # what was compared is not empty: many settings, refusals and proofs, of every verdict
    assert [len(those) for those in asked] == [EACH + EACH // 2] * len(MODELS)
    said = [
        one
        for those in asked
        for a in those
        if "figures" in a["said"]
        for figure in a["said"]["figures"].values()
        if figure
        for one in figure["said"].values()
    ]
    verdicts = {one["verdict"] for one in said}
    assert verdicts == {"equal", "chosen", "differs", "not said"}
    problems = {
        a["said"]["problem"].partition(":")[0].split(" must ")[-1]
        for those in asked
        for a in those
        if "problem" in a["said"]
    }
    assert any("divide" in problem for problem in problems)
    assert any("at most n_experts" in problem for problem in problems)
    assert any("at most 16777216" in problem for problem in problems)


@pytest.mark.parametrize(
    ("table", "key", "wrong", "models"),
    [
        (recorded.FUNCTIONS, "//", "most", ("switch-base-8",)),
        (recorded.FUNCTIONS, "min", "most", ("gemma3-27b-text",)),
        (recorded.COMPARED, " == ", "!==", ("llama3-8b",)),
    ],
)
def test_a_planted_error_is_found(
    sheets: list[Worksheet],
    asked: list[list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: dict[str, str],
    key: str,
    wrong: str,
    models: tuple[str, ...],
) -> None:
    monkeypatch.setitem(table, key, wrong)
    places = [MODELS.index(name) for name in models]
    those = [asked[i] for i in places]
    found = evaluated_at(page_html([sheets[i] for i in places]), those, tmp_path)
    assert differences(found[0], those[0]) != []


def test_a_figure_that_is_not_the_form_s_is_not_said_to_be_proven(tmp_path: Path) -> None:
    llama = worksheet(find_model("llama3-8b"), Request())
    assert llama.proofs is not None
    forms = {**llama.proofs["forms"], "params": llama.proofs["forms"]["params"] + " + 1"}
    changed = Worksheet(**{**vars(llama), "proofs": {**llama.proofs, "forms": forms}})
    (rows,) = evaluated_at(page_html([changed]), [drawn(llama, 6)], tmp_path)
    figures = [row["figures"] for row in rows if "figures" in row]
    assert figures
    for by_quantity in figures:
        said = {name: by_quantity[name]["said"].values() for name in ("params", "active_params")}
        assert {one["verdict"] for one in said["params"]} == {"other figure"}
        assert "other figure" not in {one["verdict"] for one in said["active_params"]}


DRIVE = """
const field = (name) => document.getElementById(`m1-${name}`);
const total = (quantity) =>
  document.querySelector(`#m1 [data-quantity="${quantity}"] output`).textContent;
const typed = (name, text) => {
  field(name).value = text;
  field(name).dispatchEvent(new Event("input", { bubbles: true }));
};
const alert = document.querySelector("#m1 [role=alert]");
const found = { start: total("params") };
typed("n_layers", "2");
found.typed = total("params");
found.hash = location.hash;
const slider = field("n_layers").parentElement.querySelector("input[type=range]");
found.slider = slider.value;
slider.value = "3";
slider.dispatchEvent(new Event("input", { bubbles: true }));
found.dragged = [total("params"), field("n_layers").value];
typed("n_kv_heads", "5");
found.refused = [alert.textContent, alert.hidden, total("params")];
typed("n_kv_heads", "16777217");
found.outOfRange = alert.textContent;
typed("n_kv_heads", "many");
found.noNumber = alert.textContent;
typed("n_kv_heads", "4k");
found.noLength = alert.textContent;
typed("n_kv_heads", "32");
typed("seq_len", "128k");
const dtype = field("dtype");
dtype.value = "fp32";
dtype.dispatchEvent(new Event("input", { bubbles: true }));
found.cache = [total("kv_cache_bytes"), alert.hidden];
document.querySelector("#m1 button").click();
found.reset = [total("params"), location.hash, field("seq_len").value];
const deep = models.find((model) => model.id === "deepseek-v3");
found.zero = evaluate(deep, { ...startOf(deep), n_shared_experts: "0" }).problem;
found.none = evaluate(deep, { ...startOf(deep), n_dense_layers: "0" }).problem;
const gemma = models.find((model) => model.id === "gemma3-27b-text");
found.few = evaluate(gemma, { ...startOf(gemma), n_layers: "3" }).figures.params.total;
found.units = UNITS.map((n) => ["params", "matmul_flops", "kv_cache_bytes"].map((quantity) =>
  rounded(quantity, BigInt(n))));
found.shares = UNITS.map((n) => share(BigInt(n), 10n ** 27n));
return found;
"""
UNITS = [
    0,
    7,
    999,
    1000,
    1023,
    1024,
    9995,
    99950,
    999499,
    999500,
    999999,
    6738415616,
    2**20 - 1,
    1571308972448,
    10**15,
    10**18 + 5,
    2**71,
    10**26,
    10**27,
]


def test_the_inputs_are_driven(page: str, tmp_path: Path) -> None:
    script = DRIVE.replace("UNITS", json.dumps([str(n) for n in UNITS]))
    found = evaluated(page, script, tmp_path)
    assert "error" not in found, found

    def layers(n: int) -> str:
        changed = find_model("llama-7b", [f"n_layers={n}"])
        return units.exact(count(changed.spec).params)

    assert found["start"] == "6,738,415,616"
    assert found["typed"] == layers(2) and found["hash"] == "#N=2" and found["slider"] == "2"
    assert found["dragged"] == [layers(3), "3"]
    assert found["refused"] == ["n_kv_heads must divide n_heads: 32 % 5 = 2: got 5", False, "–"]
    assert found["outOfRange"] == (
        "n_kv_heads must be at most 16777216: got 16777217; choose 1 to 16777216"
    )
    assert found["noNumber"] == "n_kv_heads must be a whole number: got many"
    assert found["noLength"] == "n_kv_heads must be a whole number: got 4k"
    # 2 · 3 layers · 32 heads · 128 · 131072 positions · 4 bytes
    assert found["cache"] == [units.exact(2 * 3 * 32 * 128 * 131072 * 4), True]
    assert found["zero"] == (
        "n_shared_experts 0 is another structure, with other formulas; "
        "metacount count deepseek-v3 --set n_shared_experts=0 counts it"
    )
    # three layers with windows, and none of those that see everything
    assert found["few"] == str(count(find_model("gemma3-27b-text", ["n_layers=3"])).params)
    assert found["none"].startswith("d_ff has no meaning when every layer is MoE: got 18432")
    assert found["reset"] == ["6,738,415,616", "", "2048"]
    for n, texts in zip(UNITS, found["units"], strict=True):
        assert texts == [units.short(n), units.flops(n), units.gib(n)], n
    assert found["shares"] == [units.share(n, 10**27) for n in UNITS]


def test_the_address_sets_the_sizes_and_no_policy_is_in_the_way(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page with spaces.html"
    file.write_text(page, encoding="utf-8")
    assert POLICY.search(page) is not None
    shown = dom(file, "#B=3&S=77&d=512&2.N=1&x=1")
    first = count(find_model("llama-7b", ["d_model=512"]).spec, Workload(batch_size=3, seq_len=77))
    second = count(find_model("llama3-8b", ["n_layers=1"]).spec)
    for result in (first, second):
        for figure in (result.params, result.matmul_flops, result.kv_cache_bytes):
            assert f">{units.exact(figure)}</output>" in shown
    assert "the address says what no model here has: x=1; left out" in shown


def test_labels_in_chinese_and_models_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_of("gpt2", "llama-7b", lang="zh"), encoding="utf-8")
    drawn = dom(file)
    for label in ("注意力", "闭式", "参数量", "模型尺寸", "已证明"):
        assert drawn.count(f">{label}<") >= 2, label
    for label in ("attention", "closed form", "proven", "sizes of the model"):
        assert f">{label}<" not in drawn, label
