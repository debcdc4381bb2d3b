"""The page as one text: its style and its script inside, nothing from anywhere else.

Its own policy lets nothing be loaded and nothing run but this script, named by its hash.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

from metacount import __version__
from metacount.errors import InputError
from metacount.files import read_of_package
from metacount.views.page.flow import flow_html
from metacount.views.page.model_js import models_js
from metacount.views.page.tree import tree_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.textbook.worksheet import Worksheet

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
    return read_of_package(f"views/page/{name}").decode()


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
