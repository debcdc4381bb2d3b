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
from metacount.algebra.javascript import condition, in_javascript, names_in
from metacount.algebra.writing import in_letters
from metacount.cli.expressions import in_python
from metacount.errors import InputError
from metacount.figures import FIGURES
from metacount.files import read_of_package
from metacount.settings.values import LENGTHS
from metacount.spec import DTYPE_BYTES
from metacount.textbook.proven import FROM, own_type
from metacount.textbook.read_rules import ELSEWHERE
from metacount.textbook.worksheet import ALIASES, BYTES_NAME, RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.textbook.closed_form import ClosedForm
    from metacount.textbook.read_rules import Rule
    from metacount.textbook.worksheet import Worksheet


UNKNOWN = "nothing is recorded of a model of this structure"
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


def models_js(sheets: Sequence[Worksheet]) -> str:
    """Write the models of a page in JavaScript, one a line."""
    return ",\n".join(literal(_model(sheet)) for sheet in sheets)


def _model(sheet: Worksheet) -> Json:
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
                "meaning": s.term.meaning,
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
                "meaning": term.meaning,
                "value": Code(f"(v) => {in_javascript(text, _names(text))}"),
            }
            for name, (term, text) in sheet.derived.items()
        ],
        "quantities": [
            {
                "name": name,
                "meaning": FIGURES[name].meaning,
                "parts": None if form is None else _parts(form),
            }
            for name, form in sheet.forms.items()
        ],
        "elsewhere": ELSEWHERE,
        "rules": _rules(sheet.rules),
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


def _rules(rules: Sequence[Rule]) -> list[Json]:
    return [
        {
            "test": _test(rule.test),
            "outcome": rule.outcome,
            "message": [_formula(text) if i % 2 else text for i, text in enumerate(rule.message)],
            "otherwise": _rules(rule.otherwise),
        }
        for rule in rules
    ]


def _proofs(record: Json) -> Json:
    return {
        "transformers": record["transformers"],
        "layers": [[name, _formula(text)] for name, text in record["layers"].items()],
        "forms": {quantity: _formula(text) for quantity, text in record["forms"].items()},
        "conditions": [_condition(*condition) for condition in record["conditions"]],
        "sides": {
            side: [{"name": one["name"], "cases": _cases(one)} for one in those]
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


def _cases(one: Json) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for case in one["cases"]:
        for quantity, recorded in case["quantities"].items():
            found.setdefault(quantity, []).append(_case(recorded))
    return found


def _case(case: Json) -> Json:
    """Copy what is recorded of a case; where something is left, write the test whether it is 0."""
    found = {key: value for key, value in case.items() if key not in ("zero", "textbook", "code")}
    if "zero" in case:
        test = case["zero"]
        found["zero"] = {"holds": _test(test), "names": list(names_in(test))}
    return found


TREE_OPEN_DEPTH = 2  # modules that stand open at first


def tree_html(tree: Json, total: int) -> str:
    """Render the lines of `measure`'s tree, as the tree's `to_dict` gives them."""
    return f'<div class="tree">{_module(tree, total, 0)}</div>'


def _module(node: Json, total: int, depth: int) -> str:
    name = node["name"] if node["count"] == 1 else f"{node['name']} ×{node['count']}"
    kind = "" if node["module"] in ("ModuleList", node["name"]) else f" ({node['module']})"
    kind += f" {node['computes']}" if node.get("computes") else ""
    if node["n_experts"] is not None:
        kind += f" {node['n_experts']} fused, {node['top_k']} used per token"
    params = node["all_params"]
    line = _line(name, kind, units.exact(params), units.share(params, total))
    copies = params // node["params"] if node["params"] else 1
    tensors = node["tensors"]
    if list(tensors) == ["weight"] and not (node["children"] or node["tied"] or node["buffers"]):
        kind += f" {tensors['weight']}"  # one weight and nothing else is one line, not two
        line = _line(name, kind, units.exact(params), units.share(params, total))
        return f'<div class="leaf">{line}</div>'
    inner = [_tensor(key, shape, copies) for key, shape in tensors.items()]
    inner += [_leaf(key, f" is {place}, counted there", "0") for key, place in node["tied"].items()]
    inner += [_leaf(key, f" {shape} buffer", "0") for key, shape in node["buffers"].items()]
    inner += [_module(child, total, depth + 1) for child in node["children"]]
    if not inner:
        return f'<div class="leaf">{line}</div>'
    opened = " open" if depth < TREE_OPEN_DEPTH else ""
    return f"<details{opened}><summary>{line}</summary>{''.join(inner)}</details>"


def _tensor(name: str, shape: list[int], copies: int) -> str:
    numel = copies
    for n in shape:
        numel *= n
    return _leaf(name, f" {shape}", units.exact(numel))


def _leaf(name: str, said: str, params: str) -> str:
    return f'<div class="leaf">{_line(name, said, params, "")}</div>'


def _line(name: str, said: str, params: str, share: str) -> str:
    about = f'<span class="faint">{escape(said)}</span>' if said else ""
    shown = f' <span class="faint">{escape(share)}</span>' if share else ""
    return f'{escape(name)}{about} <span class="n">{params}</span>{shown}'


FLOW_OPEN_DEPTH = 2  # modules whose steps stand open at first


def flow_html(flow: Json) -> str:
    """Render the steps of a flow, as its `to_dict` gives them, and their sum."""
    steps = "".join(_step(step, 0) for step in flow["steps"])
    total = f"{units.exact(flow['params'])} parameters, {units.exact(flow['matmul_flops'])} FLOPs"
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in flow["notes"])
    return f'<div class="tree flow">{steps}</div><p>In all {total}.</p>{notes}'


def _step(step: Json, depth: int) -> str:
    times = f" ×{step['times']}" if step["times"] > 1 else ""
    name = f"<b>{escape(step['name'] + times)}</b> " if step["name"] else ""
    line = name + _said(step) + _figures(step)
    if not step["steps"] or step["like"]:
        return f'<div class="leaf">{line}{_shapes(step)}</div>'
    inner = "".join(_step(one, depth + 1) for one in step["steps"])
    opened = " open" if depth < FLOW_OPEN_DEPTH else ""
    return f"<details{opened}><summary>{line}</summary>{inner}</details>"


def _said(step: Json) -> str:
    """Choose the equation; else the step that is repeated, or the module or what ran in it."""
    if step["like"]:
        return escape(f"as {step['like']}")
    if step["equation"]:
        return f"<code>{escape(step['equation'])}</code>"
    if step["steps"]:
        return f'<span class="faint">{escape(step["module"])}</span>'
    return escape(step["module"] or " ".join(step["operators"]) or "reshaped")


def _figures(step: Json) -> str:
    """Write parameters and FLOPs, of one repetition; FLOPs in letters too where they are known."""
    found = [f"{units.short(step['params'])} parameters"] if step["params"] else []
    found += [units.flops(step["matmul_flops"])] if step["matmul_flops"] else []
    letters = step["matmul_flops_letters"]
    found += [letters] if letters and step["matmul_flops"] and not step["steps"] else []
    text = escape(", ".join(found))
    return f' <span class="n faint">{text}</span>' if found else ""


def _shapes(step: Json) -> str:
    """Write inputs and outputs, in letters and in numbers; once where all are of one shape."""
    sides = [step["inputs"], step["outputs"]]
    if not step["inputs"] or all(one == step["outputs"][0] for side in sides for one in side):
        sides = [step["outputs"][:1]]
    letters = " → ".join(_all(side, "letters") for side in sides)
    numbers = " → ".join(_all(side, "shape") for side in sides)
    text = letters if letters == numbers else f"{letters} = {numbers}"
    return f'<div class="faint shape">{escape(text)}</div>' if text else ""


def _all(shapes: Sequence[Json], kind: str) -> str:
    return "; ".join(
        "["
        + ", ".join(
            str(n if term is None else term)
            for n, term in zip(one["shape"], one[kind], strict=True)
        )
        + "]"
        for one in shapes
    )


READ = (
    "The figures are computed in this page, in whole numbers of any length, by the closed "
    "forms of the textbook formulas; a tag says which of them were proven equal to code, and for "
    "which sizes. Sizes can be typed (a length of 128k is 128·1024) or dragged; the address keeps "
    "them."
)
TREE = (
    "×N: N modules with the same tensors, shown once; the numbers are of all N. Read off the "
    "reference module as instantiated on the meta device."
)

FLOW = (
    "Read off a run of the reference module on the meta device. Figures of what repeats (×N) are "
    "of one; FLOPs are of matrix products alone, 2 for each multiply-add."
)


def page(*models: Given, workload: Workload | Request | None = None) -> str:
    """Make the page of models that `metacount plot --html` writes: HTML, whole in itself.

    >>> page("gpt2").partition("\\n")[0]
    '<!doctype html>'
    """
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.worksheet import worksheet

    return page_html([worksheet(model_of(model), workload or Request()) for model in models])


def page_html(sheets: Sequence[Worksheet]) -> str:
    """Write the page of some models, each with its forms and the tree of its reference module."""
    trees = [_tree(sheet.model.spec) for sheet in sheets]
    script = _inside("page.js").replace("//MODELS//", models_js(sheets))
    style = _inside("page.css")
    names = ", ".join(sheet.model.name for sheet in sheets)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [
        _section(i, sheet, tree)
        for i, (sheet, tree) in enumerate(zip(sheets, trees, strict=True), 1)
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(names)}: metacount</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<header>",
            "<h1>metacount</h1>",
            f'<p class="faint">{escape(READ)}</p>',
            _contents(sheets),
            '<p id="address" role="alert" hidden></p>',
            "<noscript><p>The numbers need JavaScript; the trees do not.</p></noscript>",
            "</header>",
            "<main>",
            *sections,
            "</main>",
            f'<footer><p class="faint">metacount {__version__}. B = 10^9, T = 10^12; GiB = 2^30 '
            "bytes.</p></footer>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _tree(spec: ModelSpec) -> Json:
    from metacount.measure.tree import module_tree
    from metacount.modules.build import build

    root = module_tree(build(spec))
    return root.to_dict(root.params)


def _section(i: int, sheet: Worksheet, tree: Json) -> str:
    model = sheet.model
    title = model.name + (f" ({model.id})" if model.id != model.name else "")
    changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
    said = [f"changed: {changed}"] if changed else []
    said += model.notes
    about = "".join(f'<p class="faint">{escape(text)}</p>' for text in said)
    return (
        f'<section aria-labelledby="t{i}"><h2 id="t{i}">{escape(title)}</h2>{about}'
        f'<div id="m{i}"></div><details><summary>Module tree, at the sizes that the model came '
        f'with</summary><p class="faint">{escape(TREE)}</p>'
        f"{tree_html(tree, tree['all_params'])}</details>{_flow(sheet)}</section>"
    )


def _flow(sheet: Worksheet) -> str:
    """Write the forward in order, at the sizes that the model came with; or why it cannot run."""
    from metacount.flow.run import flow

    run = sheet.workload
    what = f"batch {run.batch_size}, seq {run.seq_len}, {run.dtype}"
    try:
        inside = flow_html(flow(sheet.model, run, reference=True).to_dict())
    except InputError as error:
        return f'<p class="faint">No forward in order: {escape(str(error))}</p>'
    return (
        f"<details><summary>Forward in execution order, at these sizes too, {what}</summary>"
        f'<p class="faint">{escape(FLOW)}</p>{inside}</details>'
    )


def _contents(sheets: Sequence[Worksheet]) -> str:
    if len(sheets) == 1:
        return ""
    links = "".join(
        f'<li><a href="#t{i}">{escape(sheet.model.name)}</a></li>'
        for i, sheet in enumerate(sheets, 1)
    )
    return f'<nav aria-label="Models"><ul>{links}</ul></nav>'


def _inside(name: str) -> str:
    return read_of_package(f"cli/{name}").decode()


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
