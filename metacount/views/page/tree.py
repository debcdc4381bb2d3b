"""The module tree as HTML to expand: a line for each module and tensor, without a script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from metacount import units

if TYPE_CHECKING:
    from metacount.files import Json

OPEN_DEPTH = 2  # modules that stand open at first


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
    opened = " open" if depth < OPEN_DEPTH else ""
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
