"""One page for a browser: closed forms of models, evaluated at sizes that a reader chooses.

All text of a model goes through `literal` or `escape`: a config's name is a stranger's. The page's
own policy lets nothing be loaded, and nothing run but its script, named by its hash.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

from metacount import __version__, units
from metacount.algebra.recorded import condition, in_javascript, names_in
from metacount.algebra.text import in_letters
from metacount.cli.expressions import in_python
from metacount.cli.flow import described, name_of, shape_lines
from metacount.cli.results import tree_html
from metacount.cli.tree import rows_of
from metacount.errors import InputError
from metacount.figures import FIGURES
from metacount.files import Json
from metacount.languages import label, translations
from metacount.package import read_of_package
from metacount.settings.values import LENGTHS
from metacount.spec import DTYPE_BYTES, Request, Workload
from metacount.textbook.proven import FROM, own_type
from metacount.textbook.worksheet import ALIASES, BYTES_NAME, RUN, Worksheet, worksheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.flow.result import Flow
    from metacount.flow.steps import Step
    from metacount.resolve import Given
    from metacount.textbook.closed_form import ClosedForm


UNKNOWN = "nothing is recorded of a model of this structure"
WIDEST, NO_END = 160, 10**6  # characters of what a step is, and of its shapes
REFUSED = "transformers refuses this config, so that nothing of its code speaks of it"


class Code(str):
    """JavaScript that stands as it is."""


def literal(value: object) -> str:
    """Write plain data as JavaScript that cannot end its HTML script: whole numbers become BigInts.

    >>> literal({"a": [1, "</script>", None], "f": Code("(v) => v.d")})
    '{"a": [1n, "\\\\u003c/script\\\\u003e", null], "f": (v) => v.d}'
    """
    if isinstance(value, Code):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}n"
    text = json.dumps(value)  # ASCII alone: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _model(sheet: Worksheet, lang: str) -> Json:
    spec = sheet.model.spec
    return {
        "name": sheet.model.name,
        "id": sheet.model.id,
        "dtype": sheet.workload.dtype,
        "dtypes": dict(DTYPE_BYTES),
        "bytesName": BYTES_NAME,
        "aliases": ALIASES,
        "runNames": RUN,
        "sizes": [
            {
                "name": s.term.name,
                "letter": s.term.letter,
                "meaning": _meaning(s.term.name, s.term.meaning, lang),
                "isLength": s.term.name in (*LENGTHS, *RUN[1:]),
                "number": s.number,
                "least": s.least,
                "most": s.most,
            }
            for s in sheet.sizes
        ],
        "derived": [
            {
                "name": name,
                "letter": term.letter,
                "meaning": _meaning(name, term.meaning, lang),
                "value": Code(f"(v) => {in_javascript(text, _names(text))}"),
            }
            for name, (term, text) in sheet.derived.items()
        ],
        "quantities": [
            {
                "name": name,
                "meaning": _meaning(name, FIGURES[name].meaning, lang),
                "parts": None if form is None else _parts(form),
            }
            for name, form in sheet.forms.items()
        ],
        "rules": [
            {
                "test": _test(text),
                "answer": answer,
                "says": text if not answer else f"{text} does not hold",
            }
            for text, answer in sheet.rules.items()
        ],
        "longest": None
        if spec.longest is None
        else _formula("n_positions - position_offset")
        if spec.position_offset
        else _formula("n_positions"),
        "chunked": _formula("window") if spec.window_kind == "chunked" and spec.window else None,
        "fixed": sheet.fixed,
        "config": {f"config_{n}": v for n, v in sheet.config.items() if type(v) is int},
        "given": list(sheet.config),
        "ownType": own_type(sheet.model),
        "from": FROM,
        "order": [*spec.to_dict(), *RUN],
        "unproven": REFUSED if sheet.model.refused else UNKNOWN,
        "proofs": None if sheet.proofs is None else _proofs(sheet.proofs),
    }


def _meaning(name: str, english: str, lang: str) -> str:
    return translations(lang).get(name, english)


def _parts(form: ClosedForm) -> list[Json]:
    return [
        {"role": part, "letters": in_letters(expr), "value": _formula(in_python(expr, form))}
        for part, expr in form.parts.items()
    ]


def _names(text: str) -> dict[str, str]:
    """Map each name of a formula to what stands for it: a member of the setting `v`."""
    return {name: f"v.{ALIASES.get(name, name)}" for name in names_in(text)}


def _formula(text: str) -> Code:
    return Code(f"(v) => {in_javascript(text, _names(text))}")


def _test(text: str) -> Code:
    return Code(f"(v) => {condition(text, _names(text))}")


def _proofs(record: Json) -> Json:
    return {
        "transformers": record["transformers"],
        "layers": [[name, _formula(text)] for name, text in record["layers"].items()],
        "forms": {quantity: _formula(text) for quantity, text in record["forms"].items()},
        "conditions": [_condition(*condition) for condition in record["conditions"]],
        "sides": {
            side: [{"name": proof["name"], "cases": _cases(proof)} for proof in those]
            for side, those in record["sides"].items()
        },
    }


def _condition(says: str, test: str, defaults: Json | None = None) -> Json:
    return {
        "says": says,
        "test": test,
        "names": list(names_in(test)) if test else [],
        "holds": _test(test) if test else Code("() => true"),
        "defaults": [
            [field, names, _formula(text)] for field, (text, *names) in (defaults or {}).items()
        ],
    }


def _cases(theorem: Json) -> dict[str, list[Json]]:
    cases: dict[str, list[Json]] = {}
    for case in theorem["cases"]:
        for quantity, recorded in case["quantities"].items():
            cases.setdefault(quantity, []).append(_case(recorded))
    return cases


def _case(case: Json) -> Json:
    """Copy what is recorded of a case; where something is left, write the test whether it is 0."""
    copy = {key: value for key, value in case.items() if key not in ("zero", "textbook", "code")}
    if "zero" in case:
        test = case["zero"]
        copy["zero"] = {"holds": _test(test), "names": list(names_in(test))}
    return copy


OPEN_DEPTH = 2  # levels that stand open at first


def flow_html(flow: Flow, lang: str = "en") -> str:
    """Render the steps of a flow, to be opened module by module, and their sum."""
    steps = "".join(_step(step, 0) for step in flow.steps)
    total = f"{units.exact(flow.params)} parameters, {units.exact(flow.matmul_flops)} FLOPs"
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in flow.notes)
    return f'<div class="tree flow">{steps}</div><p>{label("In all", lang)} {total}.</p>{notes}'


def _step(step: Step, depth: int) -> str:
    """Write what a step is with its figures, of one repetition, then its shapes or its steps."""
    name = f"<b>{escape(name_of(step))}</b> " if step.name else ""
    figures = [f"{units.short(step.params)} parameters"] if step.params else []
    figures += [units.flops(step.flops)] if step.flops else []
    if step.flops_letters and step.flops and not step.inside:
        figures.append(step.flops_letters)
    line = f"{name}<code>{escape(described(step, WIDEST))}</code>"
    line += f' <span class="n faint">{escape(", ".join(figures))}</span>' if figures else ""
    if not step.inside or step.like:
        shown = "" if step.like else escape(" ".join(shape_lines(step, NO_END)))
        return f'<div>{line}<div class="faint shape">{shown}</div></div>'
    inner = "".join(_step(below, depth + 1) for below in step.inside)
    opened = " open" if depth < OPEN_DEPTH else ""
    return f"<details{opened}><summary>{line}</summary>{inner}</details>"


def page(*models: Given, workload: Workload | Request | None = None, lang: str = "en") -> str:
    """Make the page of models that `metacount plot --html` writes: HTML, whole in itself.

    `lang` is the language of its labels: en or zh.

    >>> page("gpt2").partition("\\n")[0]
    '<!doctype html>'
    """
    from metacount.resolve import model_of

    return page_html([worksheet(model_of(m), workload or Request()) for m in models], lang)


PAGE = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{names}: metacount</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>metacount</h1>
<p class="faint">{read}</p>
{contents}
<p id="address" role="alert" hidden></p>
<noscript><p>{noscript}</p></noscript>
</header>
<main>
{sections}
</main>
<footer><p class="faint">metacount {version}. B = 10^9, T = 10^12; GiB = 2^30 bytes.</p></footer>
<script>{script}</script>
</body>
</html>
"""


def page_html(sheets: Sequence[Worksheet], lang: str = "en") -> str:
    """Write the page of some models side by side, each with its forms, its tree and its flow."""
    models = ",\n".join(literal(_model(sheet, lang)) for sheet in sheets)
    script = _inside("page.js").replace("//MODELS//", models)
    script = script.replace("//WORDS//", literal(translations(lang)))
    style = _inside("page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(
        f'<li><a href="#t{i}">{escape(sheet.model.name)}</a></li>'
        for i, sheet in enumerate(sheets, 1)
    )
    return PAGE.format(
        lang=lang,
        policy=escape(policy),
        names=escape(", ".join(sheet.model.name for sheet in sheets)),
        style=style,
        read=escape(label("how the page is read", lang)),
        contents=f'<nav aria-label="Models"><ul>{links}</ul></nav>' if len(sheets) > 1 else "",
        noscript=label("The numbers need JavaScript; the trees do not.", lang),
        sections="\n".join(_section(i, sheet, lang) for i, sheet in enumerate(sheets, 1)),
        version=__version__,
        script=script,
    )


def _section(i: int, sheet: Worksheet, lang: str) -> str:
    from metacount.measure.tree import module_tree
    from metacount.modules.build import build

    model = sheet.model
    title = model.name + (f" ({model.id})" if model.id != model.name else "")
    changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
    notes = [f"{label('changed', lang)}: {changed}"] if changed else []
    about = "".join(f'<p class="faint">{escape(text)}</p>' for text in (*notes, *model.notes))
    rows = rows_of(module_tree(build(model.spec)))
    tree = _folded("module tree", "what the tree is", tree_html(rows, OPEN_DEPTH), lang)
    return (
        f'<section aria-labelledby="t{i}"><div><h2 id="t{i}">{escape(title)}</h2>{about}</div>'
        f'<div id="m{i}"></div>{tree}{_flow(sheet, lang)}</section>'
    )


def _folded(title: str, about: str, inside: str, lang: str, run: str = "") -> str:
    return (
        f"<details><summary>{escape(label(title, lang) + run)}</summary>"
        f'<p class="faint">{escape(label(about, lang))}</p>'
        f'<div class="tree">{inside}</div></details>'
    )


def _flow(sheet: Worksheet, lang: str) -> str:
    from metacount.flow.run import flow

    run = sheet.workload
    try:
        inside = flow_html(flow(sheet.model, run, reference=True), lang)
    except InputError as error:
        return f'<p class="faint">{label("No forward in order", lang)}: {escape(str(error))}</p>'
    what = f", batch {run.batch_size}, seq {run.seq_len}, {run.dtype}"
    return _folded("forward in order", "what the forward is", inside, lang, what)


def _inside(name: str) -> str:
    return read_of_package(f"cli/{name}").decode()


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
