"""`plot --html`: strangers' text is text, and what a browser shows of it is what `count` says."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from html import unescape
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Ask
from helpers.processes import in_a_group
from helpers.release import ONLY
from helpers.structures import first_of_each

from metacount import InputError, Model, Request, Workload, count, find_model, page, units
from metacount.algebra import recorded
from metacount.cli.page import REFUSED, UNKNOWN, page_html
from metacount.errors import SpecError
from metacount.spec import ModelSpec
from metacount.textbook.count import QUANTITIES, run_sizes
from metacount.textbook.proven import own_type, proven, sizes_text
from metacount.textbook.worksheet import RUN, Worksheet, worksheet

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & '\"`${3}`"


class Tags(HTMLParser):
    """The elements of a page with their attributes, and how many are open at its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []
        self.names = [tag for tag, _ in self.found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing() -> None:
    text = page("deepseek-v3", "t5-11b", workload=Request(seq_len=1024))
    assert len(text.encode()) < 2 * 2**20  # a MiB a model
    tags = Tags(text)
    assert tags.names.count("script") == 1 and tags.names.count("style") == 1
    assert {"link", "img", "iframe", "object", "embed", "base"} & set(tags.names) == set()
    for _, attributes in tags.found:
        assert {"src", "style", "srcset"} & set(attributes) == set()
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?:|//\w+\.|url\(|@import|fetch\(|XMLHttp|eval\(|Function\(", text)
    (policy,) = (a["content"] for t, a in tags.found if a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    # the steps of each forward add up to the FLOPs
    for name in ("deepseek-v3", "t5-11b"):
        assert f"{units.exact(count(name, Request(seq_len=1024)).matmul_flops)} FLOPs." in text
    assert "[B, h, S, S] = [1, 128, 1024, 1024]" in text
    assert "<code>lm_head</code> (OutputHead) [129280, 7168] 926,679,040 0.1 %" in text


def test_a_name_is_text_and_nothing_else(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(json.dumps({"name": EVIL, **find_model("gpt2").spec.to_dict()}), "utf-8")
    text = page(file)
    tags = Tags(text)
    assert tags.names.count("script") == 1 and "img" not in tags.names
    assert "&lt;script&gt;alert(1)" in text and "<img" not in text


def test_what_cannot_run_and_what_is_not_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = find_model("llama-7b")
    assert REFUSED not in page(llama) and UNKNOWN in page(llama)  # as data, shown where it is so
    refused = page(Model(**{**vars(llama), "refused": True}))
    assert REFUSED in refused and '"proofs": null' in refused

    def refuse(*_: object, **__: object) -> None:
        raise InputError("this <model> has no forward")

    monkeypatch.setattr(import_module("metacount.flow.run"), "flow", refuse)
    text = page("gpt2")
    assert "No forward in order: this &lt;model&gt; has no forward" in text and Tags(text)


@pytest.mark.parametrize(
    "name",
    [name if name == "mamba2-1.3b" else pytest.param(name, marks=ONLY) for name in first_of_each()],
)
def test_a_model_of_any_structure_has_a_page(name: str) -> None:
    assert name in page(find_model(name))


def test_the_page_of_the_api_is_that_of_the_command(ask: Ask, tmp_path: Path) -> None:
    for lang in ("en", "zh"):
        file = tmp_path / f"{lang}.html"
        assert ask(f"plot gpt2 --lang {lang} --html {file}") == f"{file}: page of gpt2\n"
        text = file.read_text("utf-8")
        assert text == page("gpt2", lang=lang) and f'<html lang="{lang}">' in text


# ---- in a browser

# A decoder with one head for each key, GQA, experts, latent attention, an encoder-decoder, windows
# that slide, configs of types of their own, with chunks, with a quantity that was refuted and one
# whose code runs more; and (`make release`) an encoder, positions that run out, layers in pairs.
MODELS = (
    "llama-7b", "llama3-8b", "deepseek-v3", "t5-11b", "gemma3-27b-text", "switch-base-8",
    "type:llama4_text", "type:gpt_neo",
)  # fmt: skip
MORE = (
    "mixtral-8x7b", "bert-base", "gpt2", "longcat-flash", "falcon-h1-7b", "mamba2-1.3b",
    "mamba-2.8b", "qwen3-next-80b-a3b", "zamba2-1.2b", "kimi-linear-48b-a3b",
)  # fmt: skip
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
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
FOUND = re.compile(r'<pre id="found-by-the-test">(.*?)</pre>', re.DOTALL)
RUN_SCRIPT = (
    "<script>(() => {const pre = document.createElement('pre'); pre.id = 'found-by-the-test';"
    "let found; try { found = (() => {SCRIPT})(); } catch (e) { found = {error: String(e.stack)}; }"
    "pre.textContent = JSON.stringify(found, (_, x) => typeof x === 'bigint' ? `${x}` : x);"
    "document.body.append(pre);})()</script></body>"
)
Asked = list[list[dict[str, Any]]]


def dom(file: Path, fragment: str = "") -> str:
    """The page's elements after its script ran; without a browser the test is skipped."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        address = f"{file.resolve().as_uri()}{fragment}"
        command = [program, *FLAGS.split(), f"--user-data-dir={profile}", "--dump-dom", address]
        code, written = in_a_group(command, 60)
    assert code == 0, written
    return written


def evaluated(text: str, script: str, folder: Path) -> Any:
    """What `script`, the body of a function, returns in a page: as JSON, in one start of a browser.

    The page's own policy would not let a second script run: it is taken out.
    """
    bare, n = POLICY.subn("", text)
    assert n == 1
    file = folder / "tested.html"
    added = RUN_SCRIPT.replace("SCRIPT", script)
    file.write_text(bare.replace("</body>", added), encoding="utf-8")
    found = FOUND.search(dom(file))
    assert found is not None, "the page's script did not run to its end"
    return json.loads(unescape(found[1]))


def drawn(sheet: Worksheet, n: int = EACH) -> list[dict[str, Any]]:
    """`n` settings that Python takes and half as many that it refuses, each with what it says."""
    draw = random.Random(f"{sheet.model.id} 0")
    taken: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for _ in range(200 * n):
        texts = setting(sheet, draw)
        said = python_says(sheet, texts)
        some, most = (refused, n // 2) if "problem" in said else (taken, n)
        if len(some) < most:
            some.append({"texts": texts, "said": said})
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
    lengths = {name: number for name, number in numbers.items() if name in RUN}
    try:
        spec = ModelSpec.from_dict({**sheet.model.spec.to_dict(), **sizes})
        run = Workload(**{**sheet.workload.to_dict(), **lengths, "dtype": texts["dtype"]})
        result = count(spec, run)
    except SpecError as error:
        return {"problem": f"{error.field} {error.rule}: got {error.value}"}
    source = sheet.model.source
    same = all(start[name] == number for name, number in sizes.items())
    config = source.config if source is not None and same else None
    proof = proven(spec, result, config, own_type=own_type(sheet.model))
    sides = {"transformers": proof and proof.code, "reference": proof and proof.ours}
    # a model without an encoder has no S_e, whatever a workload says
    small = [t for t in (proof.small if proof else ()) if spec.has_encoder or t[:4] != "S_e "]
    totals = result.to_dict()
    figures: dict[str, Any] = dict.fromkeys(QUANTITIES)
    for quantity, parts in QUANTITIES.items():
        if totals[quantity] is None:
            continue
        by_part = parts(spec, run_sizes(spec, run))
        assert sum(by_part.values()) == totals[quantity]
        figures[quantity] = {
            "total": str(totals[quantity]),
            "parts": {part: str(value) for part, value in by_part.items()},
            "said": {
                side: {
                    **{name: getattr(one, name) for name in ("verdict", "text")},
                    "name": against.name,
                    "where": list(one.where),
                    "domain": sizes_text(one.where, small),
                }
                for side, against in sides.items()
                if against
                for one in against.verdicts
                if one.quantity == quantity
            },
        }
    return {"figures": figures, "warnings": list(result.warnings)}


# of MLA's widths; of a stack of two that has no experts
OTHER_FORMS = re.compile(
    r"where (\(qk_nope_head_dim|q_lora_rank > d_model|\(\(\(n_encoder_layers).*; metacount count"
)


def differences(found: Any, asked: list[dict[str, Any]]) -> list[str]:
    """Where a page says something else than Python; no rounding, no tolerance."""
    wrong = []
    for one, (texts, said) in zip(found, ((a["texts"], a["said"]) for a in asked), strict=True):
        if "problem" in said or "problem" in one:
            # a setting that Python takes may be one of other forms, where the page says so
            allowed = "problem" in said or OTHER_FORMS.search(one["problem"])
            if not (allowed and "problem" in one):
                wrong.append(f"{texts}: {one.get('problem')} is not {said.get('problem')}")
            continue
        if one["warnings"] != said["warnings"]:
            wrong.append(f"{texts}: {one['warnings']} is not {said['warnings']}")
        for quantity, right in said["figures"].items():
            mine = one["figures"][quantity]
            if right is not None and mine is not None:  # a part of 0 may have no form
                right["parts"] = {
                    part: value
                    for part, value in right["parts"].items()
                    if part in mine["parts"] or value != "0"
                }
            if mine != right:
                wrong.append(f"{texts}: {quantity} {mine} is not {right}")
    return wrong


@pytest.fixture(scope="module")
def sheets() -> list[Worksheet]:
    return [worksheet(find_model(name), Request()) for name in MODELS]


@pytest.fixture(scope="module")
def asked(sheets: list[Worksheet]) -> Asked:
    return [drawn(sheet) for sheet in sheets]


def evaluated_at(sheets: list[Worksheet], asked: Asked, folder: Path) -> Any:
    texts = json.dumps([[one["texts"] for one in those] for those in asked])
    found = evaluated(page_html(sheets), EVALUATE.replace("ASKED", texts), folder)
    assert "error" not in found, found
    return found


@pytest.mark.release
def test_random_settings_of_more_models_are_counted_as_count_does(tmp_path: Path) -> None:
    sheets = [worksheet(find_model(name), Request()) for name in MORE]
    asked = [drawn(sheet) for sheet in sheets]
    assert not any(map(differences, evaluated_at(sheets, asked, tmp_path), asked))


def test_random_settings_are_counted_as_count_does(
    sheets: list[Worksheet], asked: Asked, tmp_path: Path
) -> None:
    found = evaluated_at(sheets, asked, tmp_path)
    for model, mine, those in zip(MODELS, found, asked, strict=True):
        assert differences(mine, those) == [], model
    # what was compared is not empty: many settings, refusals and proofs, of every verdict
    assert [len(those) for those in asked] == [EACH + EACH // 2] * len(MODELS)
    all_said = [a["said"] for those in asked for a in those]
    figures = [f for said in all_said for f in said.get("figures", {}).values() if f]
    verdicts = {one["verdict"] for figure in figures for one in figure["said"].values()}
    assert verdicts == {"equal", "chosen", "differs", "not said"}
    problems = " ".join(said.get("problem", "") for said in all_said)
    assert all(rule in problems for rule in ("divide", "at most n_experts", "at most 16777216"))


def test_a_planted_error_is_found(
    sheets: list[Worksheet], asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model, key in (("switch-base-8", "//"), ("gemma3-27b-text", "min")):
        i = MODELS.index(model)
        with monkeypatch.context() as patch:
            patch.setitem(recorded.FUNCTIONS, key, "most")
            (found,) = evaluated_at([sheets[i]], [asked[i]], tmp_path)
        assert differences(found, asked[i]) != []


def test_a_figure_that_is_not_the_form_s_is_not_said_to_be_proven(tmp_path: Path) -> None:
    llama = worksheet(find_model("llama3-8b"), Request())
    assert llama.proofs is not None
    forms = {**llama.proofs["forms"], "params": llama.proofs["forms"]["params"] + " + 1"}
    changed = Worksheet(**{**vars(llama), "proofs": {**llama.proofs, "forms": forms}})
    (rows,) = evaluated_at([changed], [drawn(llama)], tmp_path)
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
const typed = (input, text) => {
  input.value = text;
  input.dispatchEvent(new Event("input", { bubbles: true }));
};
const alert = document.querySelector("#m1 [role=alert]");
typed(field("n_layers"), "2");
const slider = field("n_layers").parentElement.querySelector("input[type=range]");
const found = { typed: [total("params"), location.hash, slider.value] };
typed(slider, "3");
found.dragged = [total("params"), field("n_layers").value];
for (const text of ["5", "16777217", "4k"]) {
  typed(field("n_kv_heads"), text);
  found[text] = [alert.textContent, alert.hidden, total("params")];
}
typed(field("n_kv_heads"), "32");
typed(field("seq_len"), "128k");
typed(field("dtype"), "fp32");
found.cache = [total("kv_cache_bytes"), alert.hidden];
document.querySelector("#m1 button").click();
found.reset = [total("params"), location.hash, field("seq_len").value];
found.units = UNITS.map((n) => ["params", "matmul_flops", "kv_cache_bytes"].map((quantity) =>
  rounded(quantity, BigInt(n))));
found.shares = UNITS.map((n) => share(BigInt(n), 10n ** 27n));
return found;
"""
UNITS = [
    0, 7, 999, 1000, 1023, 1024, 9995, 99950, 999499, 999500, 999999, 6738415616, 2**20 - 1,
    1571308972448, 10**15, 10**18 + 5, 2**71, 10**26, 10**27,
]  # fmt: skip


MORE_SAID = "metacount count llama-7b with --set says more"


def test_the_inputs_are_driven(tmp_path: Path) -> None:
    script = DRIVE.replace("UNITS", json.dumps([str(n) for n in UNITS]))
    found = evaluated(page("llama-7b"), script, tmp_path)
    assert "error" not in found, found
    two, three = (
        units.exact(count(find_model("llama-7b", [f"n_layers={n}"])).params) for n in (2, 3)
    )
    assert found["typed"] == [two, "#N=2", "2"]
    assert found["dragged"] == [three, "3"]
    for text, problem in {
        "5": "these forms are not of a setting where (n_heads % n_kv_heads) != 0; " + MORE_SAID,
        "16777217": "these forms are not of a setting where n_kv_heads <= 16777216 does not "
        "hold; " + MORE_SAID,
        "4k": "n_kv_heads must be a whole number: got 4k",
    }.items():
        assert found[text] == [problem, False, "–"]
    # 2 · 3 layers · 32 heads · 128 · 131072 positions · 4 bytes
    assert found["cache"] == [units.exact(2 * 3 * 32 * 128 * 131072 * 4), True]
    assert found["reset"] == ["6,738,415,616", "", "2048"]
    assert found["units"] == [[units.short(n), units.flops(n), units.gib(n)] for n in UNITS]
    assert found["shares"] == [units.share(n, 10**27) for n in UNITS]


def test_the_address_sets_the_sizes_and_no_policy_is_in_the_way(tmp_path: Path) -> None:
    file = tmp_path / "page with spaces.html"
    file.write_text(page("llama-7b", "llama3-8b", lang="zh"), encoding="utf-8")
    shown = dom(file, "#B=3&S=77&d=512&2.N=1&x=1")
    first = count(find_model("llama-7b", ["d_model=512"]).spec, Workload(batch_size=3, seq_len=77))
    second = count(find_model("llama3-8b", ["n_layers=1"]).spec)
    for result in (first, second):
        for figure in (result.params, result.matmul_flops, result.kv_cache_bytes):
            assert f">{units.exact(figure)}</output>" in shown
    assert "x=1" in shown
    for label in ("注意力", "闭式", "参数量", "模型尺寸", "已证明"):
        assert shown.count(f">{label}<") >= 2, label
    for label in ("attention", "closed form", "proven", "sizes of the model"):
        assert f">{label}<" not in shown, label
