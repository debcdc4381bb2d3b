"""A lesson is true of every model that it admits: its tables beside `tree` and `flow`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers.release import daily

import metacount
from metacount import InputError, catalog
from metacount.cli.lesson import lesson
from metacount.errors import SpecError
from metacount.teaching.lessons import Page

MODELS = [entry.id for entry in catalog.entries() if entry.sizes is not None]


@cache
def page(topic: str, model: str) -> Page | None:
    """The lesson, or None where it refuses the model."""
    try:
        return lesson(topic, model, lang="en").page
    except (InputError, SpecError):
        return None


def table(found: Page, head: str) -> list[tuple[str, ...]]:
    """The rows of the first table whose head has that cell."""
    return list(next(b.rows for b in found.blocks if b.kind == "table" and head in b.heads))


def number(text: str) -> int:
    return int(text.replace(",", ""))


@cache
def nodes(model: str) -> list[dict[str, Any]]:
    """Every node of the model's tree, from the modules that were built."""
    found: list[dict[str, Any]] = []
    todo = [metacount.tree(model).to_dict()]
    while todo:
        node = todo.pop()
        found.append(node)
        todo += node["children"]
    return found


def last(model: str, name: str) -> dict[str, Any]:
    """The node of that name in the last block of the decoder."""
    of_blocks = [
        n for n in nodes(model) if n["path"].endswith(f".{name}") and ".layers." in n["path"]
    ]
    depth = min(n["path"].count(".") for n in of_blocks)
    outer = [n for n in of_blocks if n["path"].count(".") == depth]
    stack = [n for n in outer if not n["path"].startswith("encoder")] or outer
    return max(stack, key=lambda n: int(n["path"].split(".layers.")[1].split(".")[0]))


def blocks_of(model: str) -> list[dict[str, Any]]:
    return [n for n in nodes(model) if n["module"].endswith("Block") and ".layers." in n["path"]]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_attention(model: str) -> None:
    found = page("attention", model)
    if found is None:
        return
    spec = catalog.entry(model).spec()
    tree = last(model, "self_attn")
    kind = (
        "MLA" if spec.kv_lora_rank else {1: "MQA", spec.n_heads: "MHA"}.get(spec.n_kv_heads, "GQA")
    )
    rows = {row[0]: row for row in table(found, "h_kv")}
    own = rows[kind] if spec.n_heads > 1 else rows["MHA"]
    assert number(own[2]) == tree["params"]
    assert number(own[3]) == found.values["own"] or spec.kind == "prefix-decoder"
    steps = {row[0].partition(" = ")[0]: row for row in table(found, "letters")}
    ran = every_step(metacount.flow(model).to_dict()["steps"])
    shapes = {str(output["shape"]) for step in ran for output in step["outputs"]}
    for name in ("Q", "K", "V", "scores", "context"):
        assert steps[name][2] in shapes, name
    told = " ".join(row[0] for row in table(found, "letters"))
    computed = " ".join(step["equation"] or "" for step in ran)
    for sign in ("sink", "tanh(scores", "σ(gate)"):
        assert (sign in told) == (sign in computed), sign
    names = {n for node in tree["children"] for n in node["tensors"]} | {*tree["tensors"]}
    assert ("+ b_" in told) == any("bias" in n for n in names if "proj" in n or n == "bias")


def every_step(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for step in steps for each in (step, *every_step(step["steps"]))]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_block(model: str) -> None:
    found = page("block", model)
    if found is None:
        return
    rows = table(found, "matrix")
    blocks = {n["params"] for n in blocks_of(model)}
    assert number(rows[-1][3]) in blocks
    shapes = {str(list(s)) for n in nodes(model) for s in n["tensors"].values()}
    for name, _, shape, *_ in rows:
        if shape and "experts" not in name and "shared" not in name:
            assert shape in shapes, name


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_mixture(model: str) -> None:
    found = page("moe", model)
    if found is None:
        return
    tree = last(model, "mlp")
    stored, used = (number(cell) for cell in table(found, "stored")[-1][1:])
    assert (stored, used) == (tree["params"], tree["active_params"])
    router = [n for n in tree["children"] if n["name"] in ("gate", "router")]
    rows = {row[0]: row for row in table(found, "stored")}
    own = next(row for name, row in rows.items() if name.startswith("router"))
    assert [number(own[1])] == [n["params"] for n in router]
    biased = any("bias" in t for n in router for c in (n, *n["children"]) for t in c["tensors"])
    steps = [row[0] for row in table(found, "letters")]
    assert any(step.endswith("+ b_r") for step in steps) == biased


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_feed_forward(model: str) -> None:
    found = page("ffn", model)
    spec = catalog.entry(model).spec()
    if found is None or spec.is_moe or spec.d_ff_pattern:
        return
    assert number(table(found, "width")[-1][3]) == last(model, "mlp")["params"]


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_ends_and_norms(model: str) -> None:
    ends, norms = page("embedding", model), page("norm", model)
    whole = metacount.tree(model).to_dict()["params"]
    if ends is not None:
        assert ends.values["params"] == whole
        assert ends.values["token_table"] in {n["params"] for n in nodes(model)} | {whole}
    if norms is not None:
        leaves = [n for n in nodes(model) if n["role"] == "norm" and not n["children"]]
        assert norms.values["norm_params"] == sum(n["all_params"] for n in leaves)


@daily(10)
@pytest.mark.parametrize("model", MODELS)
def test_compute(model: str) -> None:
    found = page("compute", model)
    if found is None:
        return
    rows = table(found, "role")
    assert sum(number(row[1]) for row in rows) == metacount.count(model).active_params


@pytest.mark.parametrize(
    ("model", "slowest", "factor"),
    [
        # base^(-62/64), which YaRN divides by its factor: 10000^(-0.96875)/40, 150000^(-0.96875)/32
        ("deepseek-v3", 10_000 ** (-62 / 64) / 40, None),
        ("gpt-oss-20b", 150_000 ** (-62 / 64) / 32, "1.347"),
        # Llama 3.1 divides by 8 what turns less than once in 8,192 positions
        ("llama3.1-405b", 500_000 ** (-126 / 128) / 8, None),
        ("llama-7b", 10_000 ** (-126 / 128), None),
    ],
)
def test_angles_are_those_of_the_models_own_rope(
    model: str, slowest: float, factor: str | None
) -> None:
    found = page("position", model)
    assert found is not None
    *_, (_, angle, _) = table(found, "angle per position")
    assert float(angle) == pytest.approx(slowest, rel=1e-3)
    text = " ".join(block.text for block in found.blocks if block.text)
    assert ("also grow by" in text) is (factor is not None) and (factor or "") in text
